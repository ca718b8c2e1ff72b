use std::os::unix::fs::MetadataExt as _;

use proptest::prelude::*;

use super::*;
use crate::guest_kernel::elf;
use crate::guest_kernel::test::{bz_image, install_modules, payload, unpacked_kernel};

/// Folder with the file of a kernel, and modules beside it.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new(kernel: &[u8]) -> Host {
        let host = Host { dir: tempfile::tempdir().unwrap() };
        fs::write(host.kernel(), kernel).unwrap();
        host
    }

    fn kernel(&self) -> PathBuf {
        self.dir.path().join("kernel")
    }

    fn made(&self) -> PathBuf {
        self.dir.path().join("data/made")
    }

    fn prepare(&self, agent: &[u8]) -> Result<GuestKernel> {
        prepare_with(&self.kernel(), None, agent, &self.made(), &self.dir.path().join("modules"))
    }

    /// Writes the folder of modules of the release, with all that a guest needs.
    fn install_modules(&self, release: &str) -> PathBuf {
        let folder = self.dir.path().join("modules").join(release);
        install_modules(&folder, release);
        folder
    }

    /// Returns the names of all that was made.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(self.made()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn a_bz_image_becomes_an_elf_kernel_and_an_initrd() {
    let host = Host::new(&bz_image("6.1.0-56-amd64 (x) #1", &payload()));
    let guest = host.prepare(b"agent").unwrap();
    assert_eq!(fs::read(&guest.kernel).unwrap(), unpacked_kernel());
    assert!(fs::read(&guest.initrd).unwrap().starts_with(b"070701"));
    assert_eq!(guest.kernel, host.made().join(&guest.digest).join("vmlinux"));
    assert_eq!(guest.initrd, host.made().join(&guest.digest).join("initrd"));
    assert_eq!((guest.release.as_deref(), guest.modules.len()), (Some("6.1.0-56-amd64"), 0));
    for file in [&guest.kernel, &guest.initrd] {
        assert_eq!(fs::metadata(file).unwrap().mode() & 0o7777, 0o444);
    }
    assert_eq!(host.names(), [guest.digest]);
}

#[test]
fn an_elf_kernel_is_taken_as_it_is_without_the_modules_of_the_host() {
    let mut kernel = unpacked_kernel();
    kernel.extend_from_slice(b"Linux version 6.1.0-own (a@b) #1");
    let host = Host::new(&kernel);
    host.install_modules("6.1.0-own");
    let guest = host.prepare(b"agent").unwrap();
    assert_eq!(fs::read(&guest.kernel).unwrap(), kernel);
    assert_eq!((guest.release.as_deref(), guest.modules.len()), (Some("6.1.0-own"), 0));
    assert_eq!(fs::metadata(host.kernel()).unwrap().nlink(), 1);
}

#[test]
fn modules_are_those_of_the_release_or_those_given() {
    let host = Host::new(&bz_image("6.1.0 (x) #1", &payload()));
    let without = host.prepare(b"agent").unwrap();
    let folder = host.install_modules("6.1.0");
    let with = host.prepare(b"agent").unwrap();
    assert_eq!(with.modules.last().map(String::as_str), Some("overlay.ko"));
    let given = prepare(&host.kernel(), Some(&folder), b"agent", &host.made()).unwrap();
    assert_eq!(given, with);
    assert_ne!(without.digest, with.digest);
    let other = host.install_modules("6.2.0");
    let error = prepare(&host.kernel(), Some(&other), b"agent", &host.made()).unwrap_err();
    assert!(matches!(error, Error::OtherRelease { .. }), "{error}");
}

#[test]
fn it_is_made_again_only_if_an_input_changes() {
    let host = Host::new(&bz_image("6.1.0 (x) #1", &payload()));
    host.install_modules("6.1.0");
    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    let first = host.prepare(b"agent").unwrap();
    let inodes = (inode(&first.kernel), inode(&first.initrd));
    let second = host.prepare(b"agent").unwrap();
    assert_eq!(first, second);
    assert_eq!((inode(&second.kernel), inode(&second.initrd)), inodes);

    let agent = host.prepare(b"other agent").unwrap();
    let module = host.dir.path().join("modules/6.1.0/kernel/virtio_blk.ko");
    fs::write(&module, [elf::MAGIC, b"changed"].concat()).unwrap();
    let changed = host.prepare(b"agent").unwrap();
    fs::write(host.kernel(), bz_image("6.1.0 (x) #2", &payload())).unwrap();
    let kernel = host.prepare(b"agent").unwrap();
    let mut digests = vec![first.digest, agent.digest, changed.digest, kernel.digest];
    digests.sort();
    assert_eq!(host.names(), digests);
}

#[test]
fn what_was_cut_off_is_made_again() {
    let host = Host::new(&bz_image("6.1.0 (x) #1", &payload()));
    let guest = host.prepare(b"agent").unwrap();
    for (file, len) in [(&guest.kernel, 100), (&guest.initrd, 0)] {
        fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
        File::options().write(true).open(file).unwrap().set_len(len).unwrap();
    }
    fs::remove_file(&guest.initrd).unwrap();
    assert_eq!(host.prepare(b"agent").unwrap(), guest);
    assert_eq!(fs::read(&guest.kernel).unwrap(), unpacked_kernel());
    assert!(guest.initrd.exists());
}

#[test]
fn many_at_once_make_one() {
    let host = Host::new(&bz_image("6.1.0 (x) #1", &payload()));
    let made: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..8).map(|_| scope.spawn(|| host.prepare(b"agent").unwrap())).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert!(made.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(fs::read(&made[0].kernel).unwrap(), unpacked_kernel());
    assert_eq!(host.names(), [made[0].digest.clone()]);
}

#[test]
fn a_failure_leaves_nothing() {
    let mut payload = payload();
    let size = payload.len() - 4;
    payload[size] += 1;
    let host = Host::new(&bz_image("6.1.0 (x) #1", &payload));
    let error = host.prepare(b"agent").unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
    assert!(host.names().is_empty());
}

#[test]
fn what_is_no_kernel_is_refused_with_what_it_is() {
    let host = Host::new(b"#!/bin/sh\n");
    let refusal = |path: &Path| prepare(path, None, b"agent", &host.made()).unwrap_err().to_string();
    let remedy = "use a bzImage, such as /boot/vmlinuz-<release>, or an uncompressed ELF kernel (vmlinux)";
    let kernel = host.kernel();
    assert_eq!(refusal(&kernel), format!("{} is not a kernel: {remedy}", kernel.display()));
    let folder = host.dir.path();
    assert_eq!(refusal(folder), format!("{} is a folder: {remedy}", folder.display()));
    assert_eq!(refusal(Path::new("/dev/zero")), format!("/dev/zero is not a regular file: {remedy}"));
    let absent = folder.join("absent");
    assert_eq!(
        refusal(&absent),
        format!("{} cannot be read: No such file or directory (os error 2)", absent.display())
    );
    fs::write(&kernel, unpacked_kernel()).unwrap();
    assert_eq!(refusal(&kernel), format!("{} is an ELF file, but not a Linux kernel: {remedy}", kernel.display()));
    let mut arm = unpacked_kernel();
    arm[18] = 183;
    fs::write(&kernel, arm).unwrap();
    let what = "an ELF file for a processor other than x86-64 (machine 183)";
    assert_eq!(refusal(&kernel), format!("{} is {what}: {remedy}", kernel.display()));
    assert!(!host.made().exists());
}

#[test]
fn pruning_keeps_the_named_one_and_what_is_not_ours() {
    let host = Host::new(&bz_image("6.1.0 (x) #1", &payload()));
    prune(&host.made(), "absent").unwrap();
    let old = host.prepare(b"old").unwrap();
    let new = host.prepare(b"new").unwrap();
    fs::write(host.made().join(".new-left"), "").unwrap();
    fs::write(host.made().join("notes"), "").unwrap();
    fs::create_dir(host.made().join("folder")).unwrap();
    // An earlier one that was interrupted.
    fs::create_dir(host.made().join("0".repeat(64))).unwrap();
    prune(&host.made(), &new.digest).unwrap();
    let mut kept = vec![new.digest.clone(), "folder".to_owned(), "notes".to_owned()];
    kept.sort();
    assert_eq!(host.names(), kept);
    assert!(new.kernel.exists() && new.initrd.exists() && !old.kernel.exists());
}

#[test]
fn a_child_that_has_the_descriptor_does_not_hold_the_lock() {
    let host = Host::new(&bz_image("6.1.0-56-amd64 (x) #1", &payload()));
    host.prepare(b"agent").unwrap();
    let lock = Lock::shared(&host.made()).unwrap();
    // It shares the open file, as a child does until it runs its own program.
    let of_the_child = lock.0.try_clone().unwrap();
    drop(lock);
    prune(&host.made(), "none").unwrap();
    assert_eq!(host.names(), Vec::<String>::new());
    drop(of_the_child);
}

#[test]
fn nothing_is_pruned_while_something_is_made() {
    let host = Host::new(&bz_image("6.1.0 (x) #1", &payload()));
    let guest = host.prepare(b"agent").unwrap();
    let lock = File::open(host.made()).unwrap();
    lock.lock_shared().unwrap();
    prune(&host.made(), "other").unwrap();
    assert!(guest.kernel.exists());
    drop(lock);
    prune(&host.made(), "other").unwrap();
    assert!(!guest.kernel.exists());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// A kernel that was changed anywhere is either refused, or makes a kernel that is one.
    #[test]
    fn a_changed_or_shortened_image_never_makes_something_else(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        in_header in any::<bool>(),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut image = bz_image("6.1.0 (x) #1", &payload());
        let reach = if in_header { 0x260 } else { image.len() };
        for (at, byte) in changes {
            let at = at.index(reach);
            image[at] = byte;
        }
        if let Some(cut) = cut {
            image.truncate(cut.index(image.len()));
        }
        let host = Host::new(&image);
        if let Ok(guest) = host.prepare(b"agent") {
            prop_assert!(elf::check(&fs::read(&guest.kernel).unwrap()).is_ok());
        }
    }
}
