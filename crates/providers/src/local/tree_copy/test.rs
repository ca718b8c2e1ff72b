use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::*;

fn copied(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    copy_tree(from, to.path(), &["shown"], None).unwrap();
    to
}

#[test]
fn content_links_modes_and_times_are_the_same() {
    let from = tempfile::tempdir().unwrap();
    fs::create_dir_all(from.path().join("a/b")).unwrap();
    fs::write(from.path().join("a/b/file"), vec![7; 3_000_000]).unwrap();
    fs::set_permissions(from.path().join("a/b/file"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("/etc/passwd", from.path().join("a/link")).unwrap();
    symlink("nowhere", from.path().join("dangling")).unwrap();
    let odd = Path::new(std::ffi::OsStr::from_bytes(b"odd\xff\nname"));
    fs::write(from.path().join(odd), "odd").unwrap();
    let to = copied(from.path());
    let old = from.path().join("a/b/file");
    let new = to.path().join("a/b/file");
    assert_eq!(fs::read(&old).unwrap(), fs::read(&new).unwrap());
    let old = fs::metadata(old).unwrap();
    let new = fs::metadata(new).unwrap();
    assert_eq!((old.mode(), old.mtime(), old.mtime_nsec()), (new.mode(), new.mtime(), new.mtime_nsec()));
    let old = from.path().join("a/b").metadata().unwrap();
    let new = to.path().join("a/b").metadata().unwrap();
    assert_eq!((old.mtime(), old.mtime_nsec()), (new.mtime(), new.mtime_nsec()));
    assert_eq!(fs::read_link(to.path().join("a/link")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(fs::read_link(to.path().join("dangling")).unwrap(), Path::new("nowhere"));
    assert_eq!(fs::read(to.path().join(odd)).unwrap(), b"odd");
}

#[test]
fn no_file_is_shared_with_the_original_or_with_another_name() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("one"), "same").unwrap();
    fs::hard_link(from.path().join("one"), from.path().join("two")).unwrap();
    let to = copied(from.path());
    fs::write(to.path().join("one"), "changed").unwrap();
    assert_eq!(fs::read(to.path().join("two")).unwrap(), b"same");
    assert_eq!(fs::read(from.path().join("one")).unwrap(), b"same");
}

#[test]
fn a_layer_keeps_modes_and_the_marks_of_its_overlay() {
    let from = tempfile::tempdir().unwrap();
    let at = |name: &str| from.path().join(name);
    fs::create_dir(at("closed")).unwrap();
    fs::write(at("closed/run"), "x").unwrap();
    mknodat(CWD, at("removed"), FileType::CharacterDevice, Mode::empty(), WHITEOUT).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    fs::create_dir(at("proc")).unwrap();
    let closed = File::open(at("closed")).unwrap();
    if fsetxattr(&closed, "user.overlay.opaque", b"y", XattrFlags::empty()) == Err(Errno::OPNOTSUPP) {
        return;
    }
    for (name, mode) in [("closed/run", 0o4511), ("closed", 0o555), ("proc", 0o1777), ("", 0o750)] {
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let to = tempfile::tempdir().unwrap();
    copy_layer(from.path(), to.path(), Path::new("/")).unwrap();
    let copied = |name: &str| fs::symlink_metadata(to.path().join(name)).unwrap();
    for (name, mode) in [("closed/run", 0o4511), ("closed", 0o555), ("proc", 0o1777), ("", 0o750)] {
        assert_eq!(copied(name).mode() & 0o7777, mode, "{name}");
    }
    assert_eq!(FileType::from_raw_mode(copied("removed").mode()), FileType::CharacterDevice);
    assert_eq!(copied("removed").rdev(), WHITEOUT);
    assert_eq!(FileType::from_raw_mode(copied("socket").mode()), FileType::Socket);
    let mut value = [0; 8];
    let size = fgetxattr(File::open(to.path().join("closed")).unwrap(), "user.overlay.opaque", &mut value[..]);
    assert_eq!(&value[..size.unwrap()], b"y");
}

#[test]
fn a_file_of_a_layer_that_cannot_be_read_is_named_as_its_box_knows_it() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("secret"), "x").unwrap();
    fs::set_permissions(from.path().join("secret"), fs::Permissions::from_mode(0o200)).unwrap();
    let to = tempfile::tempdir().unwrap();
    let copied = copy_layer(from.path(), to.path(), Path::new("/usr"));
    if rustix::process::geteuid().is_root() {
        return copied.unwrap();
    }
    assert_eq!(copied.unwrap_err().to_string(), "/usr/secret cannot be read by its owner; run `chmod u+rX` on it");
}

#[test]
fn the_names_of_one_file_of_a_box_stay_names_of_one_file() {
    let from = tempfile::tempdir().unwrap();
    fs::create_dir(from.path().join("dir")).unwrap();
    fs::write(from.path().join("dir/one"), "same").unwrap();
    for other in ["two", "dir/three"] {
        fs::hard_link(from.path().join("dir/one"), from.path().join(other)).unwrap();
    }
    fs::write(from.path().join("other"), "same").unwrap();
    let to = tempfile::tempdir().unwrap();
    copy_box(from.path(), to.path(), None).unwrap();
    fs::write(to.path().join("two"), "changed").unwrap();
    for (name, content) in [("dir/one", "changed"), ("dir/three", "changed"), ("other", "same")] {
        assert_eq!(fs::read_to_string(to.path().join(name)).unwrap(), content, "{name}");
    }
    assert_eq!(fs::metadata(to.path().join("dir/one")).unwrap().nlink(), 3);
    assert_eq!(fs::read(from.path().join("two")).unwrap(), b"same");
}

#[test]
fn attributes_of_programs_are_those_of_the_copy_of_a_box() {
    let from = tempfile::tempdir().unwrap();
    fs::create_dir(from.path().join("dir")).unwrap();
    fs::write(from.path().join("file"), "x").unwrap();
    let to = tempfile::tempdir().unwrap();
    let attributed = ["dir", "file"].map(|name| {
        let opened = File::open(from.path().join(name)).unwrap();
        fsetxattr(&opened, "user.note", b"kept", XattrFlags::empty())
    });
    if attributed.contains(&Err(Errno::OPNOTSUPP)) {
        return;
    }
    copy_box(from.path(), to.path(), None).unwrap();
    for name in ["dir", "file"] {
        let mut value = [0; 8];
        let size = fgetxattr(File::open(to.path().join(name)).unwrap(), "user.note", &mut value[..]).unwrap();
        assert_eq!(&value[..size], b"kept", "{name}");
    }
}

#[test]
fn holes_stay_holes() {
    let from = tempfile::tempdir().unwrap();
    let file = File::create(from.path().join("sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"in the middle", 1 << 39).unwrap();
    let to = copied(from.path());
    let copy = File::open(to.path().join("sparse")).unwrap();
    assert_eq!(copy.metadata().unwrap().len(), 1 << 40);
    assert!(copy.metadata().unwrap().blocks() < 1000);
    let mut found = [0; 13];
    std::os::unix::fs::FileExt::read_exact_at(&copy, &mut found, 1 << 39).unwrap();
    assert_eq!(&found, b"in the middle");
}

#[test]
fn what_its_owner_could_not_use_he_can() {
    let from = tempfile::tempdir().unwrap();
    fs::create_dir(from.path().join("closed")).unwrap();
    fs::write(from.path().join("closed/file"), "x").unwrap();
    fs::set_permissions(from.path().join("closed/file"), fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(from.path().join("closed"), fs::Permissions::from_mode(0o555)).unwrap();
    let to = copied(from.path());
    assert_eq!(to.path().join("closed").metadata().unwrap().mode() & 0o7777, 0o755);
    assert_eq!(to.path().join("closed/file").metadata().unwrap().mode() & 0o7777, 0o644);
}

#[test]
fn memory_for_the_paths_of_directories_and_of_links_is_bounded() {
    let from = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        fs::create_dir(from.path().join(name)).unwrap();
        fs::write(from.path().join(name).join("file"), "").unwrap();
    }
    fs::hard_link(from.path().join("one/file"), from.path().join("one/twin")).unwrap();
    let copied = |memory| {
        let to = tempfile::tempdir().unwrap();
        copy(from.path(), to.path(), Kind::Box, None, memory)
    };
    // Two directories and a name of a file.
    let all = 2 * (3 * PATH_BYTES + "one/twinonetwo".len());
    copied(all).unwrap();
    let refused = copied(all - 1).unwrap_err();
    assert!(refused.get_ref().is_some_and(|cause| cause.is::<Unfit>()), "{refused:?}");
}

#[test]
fn a_file_that_its_owner_cannot_read_is_named_to_a_server_without_privileges() {
    let from = tempfile::tempdir().unwrap();
    fs::create_dir(from.path().join("dir")).unwrap();
    fs::write(from.path().join("dir/secret"), "x").unwrap();
    fs::set_permissions(from.path().join("dir/secret"), fs::Permissions::from_mode(0o200)).unwrap();
    let to = tempfile::tempdir().unwrap();
    let copied = copy_box(from.path(), to.path(), None);
    if rustix::process::geteuid().is_root() {
        return copied.unwrap();
    }
    let refused = copied.unwrap_err();
    assert!(refused.get_ref().is_some_and(|cause| cause.is::<Unfit>()), "{refused:?}");
    assert_eq!(refused.to_string(), "/dir/secret cannot be read by its owner; run `chmod u+rX` on it");
}

#[test]
fn files_that_vanish_while_they_are_copied_are_left_out() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let from = tempfile::tempdir().unwrap();
    let dir = from.path().join("dir");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("kept"), "kept").unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // As a package manager does: new names, then the old ones, of each kind.
            while !is_done.load(Ordering::Relaxed) {
                for number in 0..100 {
                    fs::write(dir.join(format!("{number}.new")), "new").unwrap();
                    symlink("nowhere", dir.join(format!("{number}.link"))).unwrap();
                    fs::create_dir(dir.join(format!("{number}.dir"))).unwrap();
                }
                for number in 0..100 {
                    fs::rename(dir.join(format!("{number}.new")), dir.join("kept.other")).unwrap();
                    fs::remove_file(dir.join(format!("{number}.link"))).unwrap();
                    fs::remove_dir(dir.join(format!("{number}.dir"))).unwrap();
                }
            }
        });
        let outcomes: Vec<_> = (0..50)
            .map(|_| {
                let to = tempfile::tempdir().unwrap();
                copy_tree(from.path(), to.path(), &[], None)?;
                copy_box(from.path(), tempfile::tempdir().unwrap().path(), None)?;
                fs::read_to_string(to.path().join("dir/kept"))
            })
            .collect();
        is_done.store(true, Ordering::Relaxed);
        for outcome in outcomes {
            assert_eq!(outcome.unwrap(), "kept");
        }
    });
}

#[test]
fn what_a_box_gets_made_up_is_left_out() {
    let from = tempfile::tempdir().unwrap();
    symlink("/etc", from.path().join("dev")).unwrap();
    symlink("/etc", from.path().join(".tidebox")).unwrap();
    fs::create_dir_all(from.path().join("proc/x")).unwrap();
    fs::create_dir_all(from.path().join("usr/dev")).unwrap();
    fs::create_dir_all(from.path().join("shown/by another")).unwrap();
    let to = copied(from.path());
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 2);
    assert_eq!(fs::read_dir(to.path().join("shown")).unwrap().count(), 0);
    assert!(to.path().join("usr/dev").is_dir());
}

#[test]
fn a_tree_deeper_than_any_path_is_refused_with_a_reason() {
    let from = tempfile::tempdir().unwrap();
    let top = from.path().join("top");
    let inner = from.path().join("inner");
    let outer = from.path().join("outer");
    fs::create_dir(&inner).unwrap();
    for _ in 0..3000 {
        fs::create_dir(&outer).unwrap();
        fs::rename(&inner, outer.join("d")).unwrap();
        fs::rename(&outer, &inner).unwrap();
    }
    fs::rename(&inner, &top).unwrap();
    let to = tempfile::tempdir().unwrap();
    let refused = copy_tree(from.path(), to.path(), &[], None).unwrap_err();
    assert!(refused.to_string().contains("longer than 4,096 bytes"), "{refused}");
    host_disk::remove_tree(from.path()).unwrap();
    host_disk::remove_tree(to.path()).unwrap();
}
