use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::guest_kernel::test::{DEP, install_modules, module};

/// Order that follows from these files.
const ORDER: [&str; 14] = [
    "virtio_ring.ko",
    "virtio.ko",
    "virtio_mmio.ko",
    "virtio_blk.ko",
    "vsock.ko",
    "vmw_vsock_virtio_transport_common.ko",
    "vmw_vsock_virtio_transport.ko",
    "virtio-rng.ko",
    "crc32c-intel.ko",
    "crc32c_generic.ko",
    "jbd2.ko",
    "crc16.ko",
    "ext4.ko",
    "overlay.ko",
];

fn host() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("6.1.0");
    install_modules(&folder, "6.1.0");
    (dir, folder)
}

fn names(modules: &[Module]) -> Vec<&str> {
    modules.iter().map(|module| module.name.as_str()).collect()
}

#[test]
fn modules_come_behind_what_they_need_and_unpacked() {
    let (_dir, folder) = host();
    let modules = read(&folder, Some("6.1.0")).unwrap();
    assert_eq!(names(&modules), ORDER);
    for module in &modules {
        assert!(module.content.ends_with(b"\0vermagic=6.1.0 SMP mod_unload \0"), "{}", module.name);
    }
}

#[test]
fn what_is_built_in_is_left_out() {
    let (_dir, folder) = host();
    fs::write(folder.join("modules.builtin"), "kernel/fs/ext4/ext4.ko\nkernel/virtio.ko\nkernel/overlay.ko\n").unwrap();
    let dep: String = DEP
        .lines()
        .filter(|line| !line.contains("fs/ext4.ko:") && !line.contains("fs/overlay.ko:"))
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(folder.join("modules.dep"), dep.replace("kernel/virtio.ko", "")).unwrap();
    let modules = read(&folder, None).unwrap();
    assert_eq!(
        names(&modules),
        [
            "virtio_ring.ko",
            "virtio_mmio.ko",
            "virtio_blk.ko",
            "vsock.ko",
            "vmw_vsock_virtio_transport_common.ko",
            "vmw_vsock_virtio_transport.ko",
            "virtio-rng.ko",
        ]
    );
}

#[test]
fn a_missing_module_is_named_with_its_option() {
    for (module, option) in NEEDED {
        let (_dir, folder) = host();
        let is_kept = |line: &&str| name_of(line.split_once(':').unwrap().0).as_deref() != Some(module);
        let dep: String = DEP.lines().filter(is_kept).map(|line| format!("{line}\n")).collect();
        fs::write(folder.join("modules.dep"), dep).unwrap();
        let error = read(&folder, None).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("needs the module {module},")) && text.contains(option), "{text}");
        fs::write(folder.join("modules.builtin"), format!("kernel/somewhere/{module}.ko\n")).unwrap();
        read(&folder, None).unwrap();
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(read(empty.path(), None).unwrap_err(), Error::ModuleMissing { .. }));
}

#[test]
fn a_module_of_another_kernel_is_refused() {
    let (_dir, folder) = host();
    let file = folder.join("kernel/fs/jbd2.ko");
    fs::write(&file, module("jbd2", "6.1.0-other")).unwrap();
    let error = read(&folder, Some("6.1.0")).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{} is for the kernel 6.1.0-other, not for 6.1.0: use the folder /lib/modules/6.1.0", file.display())
    );
    assert_eq!(read(&folder, None).unwrap().len(), ORDER.len());
}

#[test]
fn what_cannot_be_a_module_is_refused() {
    let (_dir, folder) = host();
    let file = folder.join("kernel/fs/jbd2.ko");
    let refusal = || read(&folder, None).unwrap_err().to_string();
    fs::write(&file, "text").unwrap();
    assert!(refusal().contains("jbd2.ko is damaged: it is not a module"), "{}", refusal());
    fs::remove_file(&file).unwrap();
    assert!(refusal().contains("jbd2.ko cannot be read: No such file"), "{}", refusal());
    fs::create_dir(&file).unwrap();
    assert!(refusal().contains("jbd2.ko cannot be read: not a regular file"), "{}", refusal());
    for outside in ["../../jbd2.ko", "/etc/jbd2.ko"] {
        fs::write(folder.join("modules.dep"), DEP.replace("kernel/fs/jbd2.ko", outside)).unwrap();
        assert!(refusal().contains("it points outside of the folder"), "{}", refusal());
    }
    fs::write(folder.join("modules.dep"), [0xff, 0xfe]).unwrap();
    assert!(refusal().contains("modules.dep is damaged: it is not text"), "{}", refusal());
}

#[test]
fn a_chain_without_end_is_cut() {
    let (_dir, folder) = host();
    let chain: String = (0..1000).map(|number| format!("kernel/m{number}.ko: kernel/m{}.ko\n", number + 1)).collect();
    let dep = DEP.replace("kernel/fs/overlay.ko:", "kernel/fs/overlay.ko: kernel/m0.ko");
    fs::write(folder.join("modules.dep"), dep + &chain).unwrap();
    let text = read(&folder, None).unwrap_err().to_string();
    assert!(text.contains("modules.dep is damaged: a guest would need over 256 modules"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each module stands once, behind all that it needs, whatever is wished for.
    #[test]
    fn an_order_loads_each_once_behind_its_needs(
        needs in prop::collection::vec(prop::collection::btree_set(0..30_usize, 0..3), 30),
        wishes in prop::collection::vec(prop::collection::vec(0..30_usize, 0..3), 30),
    ) {
        let name = |number: usize| format!("m{number}");
        let mut index = Index::default();
        let mut all_needs: Vec<Vec<usize>> = Vec::new();
        for (number, needs) in needs.iter().enumerate() {
            // Without circles, and with what they need in turn, as depmod writes them.
            let direct = needs.iter().copied().filter(|need| *need < number);
            let mut all: Vec<usize> = direct.flat_map(|need| [vec![need], all_needs[need].clone()].concat()).collect();
            all.sort_unstable_by(|one, other| other.cmp(one));
            all.dedup();
            index.files.insert(name(number), format!("m{number}.ko"));
            index.needs.insert(name(number), all.iter().copied().map(name).collect());
            index.wishes.insert(name(number), wishes[number].iter().copied().map(name).collect());
            all_needs.push(all);
        }
        let mut order = Order::of(&index);
        for number in [29, 7, 13] {
            order.add(&name(number));
        }
        let at = |number: usize| order.paths.iter().position(|path| **path == format!("m{number}.ko"));
        for number in [29, 7, 13] {
            prop_assert!(at(number).is_some());
        }
        for (number, needs) in all_needs.iter().enumerate() {
            let Some(place) = at(number) else { continue };
            prop_assert_eq!(order.paths.iter().filter(|path| **path == format!("m{number}.ko")).count(), 1);
            for need in needs {
                prop_assert!(at(*need).is_some_and(|before| before < place), "{} before {}: {:?}", need, number, order.paths);
            }
        }
    }

    #[test]
    fn any_index_is_read_or_refused(text in "[a-z_:./ \\n-]{0,400}") {
        let (_dir, folder) = host();
        for name in ["dep", "softdep", "alias", "builtin"] {
            fs::write(folder.join(format!("modules.{name}")), &text).unwrap();
        }
        let _ = read(&folder, None);
    }
}
