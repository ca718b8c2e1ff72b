//! Images as the kernel reads them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;

use erofs::{Ids, Tree, write};
use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags, makedev, mknodat, setxattr};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};

const BASE: u32 = 1_000_000;
const IDS: Ids = Ids { base: BASE, count: 65_536 };

/// Returns a folder of which an image can be made and mounted; `None` if nothing can be mounted here.
fn folder() -> Option<tempfile::TempDir> {
    if !rustix::process::geteuid().is_root() {
        fixtures::skip("erofs", "only root can mount an image");
        return None;
    }
    Some(tempfile::tempdir().unwrap())
}

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// Writes the image of a tree and mounts it apart from any folder. Returns the tree in it.
fn mounted(dir: &Path) -> Option<OwnedFd> {
    let image = dir.with_extension("erofs");
    let out = File::options().read(true).write(true).create_new(true).open(&image).unwrap();
    let written = write(vec![Tree { name: "tree".to_owned(), dir: open(dir) }], IDS, &out).unwrap();
    assert_eq!(out.metadata().unwrap().len(), written.bytes);
    let context = match fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC) {
        Ok(context) => context,
        Err(errno) => {
            fixtures::skip("erofs", &format!("the kernel has no such file system: {errno}"));
            return None;
        }
    };
    fsconfig_set_string(context.as_fd(), "source", &image).unwrap();
    fsconfig_set_flag(context.as_fd(), "ro").unwrap();
    match fsconfig_create(context.as_fd()) {
        Ok(()) => {}
        Err(Errno::NOTBLK) => {
            fixtures::skip("erofs", "the kernel mounts devices only, and no files");
            return None;
        }
        Err(errno) => panic!("the image is refused: {errno}"),
    }
    let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap();
    Some(
        rustix::fs::openat(mount, "tree", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap(),
    )
}

/// All that can be seen of a tree, by path.
fn seen(root: &OwnedFd) -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    let mut numbers = BTreeMap::new();
    let root = format!("/proc/self/fd/{}", root.as_raw_fd());
    let mut waiting = vec![String::new()];
    while let Some(path) = waiting.pop() {
        let real = format!("{root}/{path}");
        let about = fs::symlink_metadata(&real).unwrap();
        // Names of one inode have one number, whatever it is.
        let next = numbers.len();
        let number = (about.nlink() > 1 && !about.is_dir()).then(|| *numbers.entry(about.ino()).or_insert(next));
        let mut line = format!(
            "{:o} {} {} {} {}.{} {} {number:?}",
            about.mode(),
            about.uid() % BASE,
            about.gid() % BASE,
            about.rdev(),
            about.mtime(),
            about.mtime_nsec(),
            about.nlink(),
        );
        if about.is_file() {
            line += &format!(" {} {:?}", about.len(), digest(&File::open(&real).unwrap()));
        } else if about.is_symlink() {
            line += &format!(" {:?}", fs::read_link(&real).unwrap());
        } else if about.is_dir() {
            let names = fs::read_dir(&real).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            // In an order that is the same for every file system.
            let mut names: Vec<_> = names.collect();
            names.sort();
            waiting.extend(names.into_iter().map(|name| if path.is_empty() { name } else { format!("{path}/{name}") }));
        }
        if !about.is_symlink() {
            line += &attributes(&real);
        }
        seen.insert(path, line);
    }
    seen
}

fn digest(file: &File) -> u64 {
    let (mut buffer, mut at, mut sum) = (vec![0; 1 << 20], 0, 0u64);
    loop {
        match file.read_at(&mut buffer, at).unwrap() {
            0 => return sum,
            count => {
                sum = buffer[..count]
                    .iter()
                    .fold(sum, |sum, byte| sum.rotate_left(5) ^ sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
                at += count as u64;
            }
        }
    }
}

fn attributes(path: &str) -> String {
    let mut names = vec![0u8; 65_536];
    let count = rustix::fs::listxattr(path, &mut names[..]).unwrap();
    let mut found: Vec<_> = names[..count]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0u8; 65_536];
            let count = rustix::fs::getxattr(path, name, &mut value[..]).unwrap();
            value.truncate(count);
            (String::from_utf8(name.to_vec()).unwrap(), value)
        })
        .collect();
    found.sort();
    format!(" {found:?}")
}

/// Returns numbers in an order that nothing depends on.
fn numbers() -> impl FnMut(u64) -> u64 {
    let mut state = 7u64;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

#[test]
fn a_mounted_image_is_the_tree() {
    let Some(temp) = folder() else { return };
    let (dir, mut number) = (temp.path().join("t"), numbers());
    fs::create_dir(&dir).unwrap();
    let mut dirs = vec![dir.clone()];
    // Sizes around those at which the layout changes.
    let sizes = [0, 1, 31, 32, 4000, 4031, 4032, 4033, 4095, 4096, 4097, 8128, 8192, 12_345, 262_143, 262_144, 400_001];
    for at in 0..2000u64 {
        let parent = dirs[usize::try_from(number(dirs.len() as u64)).unwrap()].clone();
        let name = format!("{at}-{}", "n".repeat(usize::try_from(number(200)).unwrap()));
        let path = parent.join(name);
        match number(20) {
            0..3 => {
                fs::create_dir(&path).unwrap();
                dirs.push(path.clone());
            }
            3 => symlink("t".repeat(usize::try_from(number(4090)).unwrap() + 1), &path).unwrap(),
            4 => mknodat(CWD, &path, FileType::Fifo, Mode::RUSR, 0).unwrap(),
            5 => mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), makedev(0, 0)).unwrap(),
            6 => mknodat(CWD, &path, FileType::BlockDevice, Mode::RUSR, makedev(259, 70_000)).unwrap(),
            7 => mknodat(CWD, &path, FileType::Socket, Mode::RUSR, 0).unwrap(),
            _ => {
                let size = sizes[usize::try_from(number(sizes.len() as u64)).unwrap()];
                let content: Vec<u8> = (0..size).map(|_| u8::try_from(number(256)).unwrap()).collect();
                fs::write(&path, content).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(u32::try_from(number(0o10000)).unwrap()))
                    .unwrap();
                if number(10) == 0 {
                    fs::hard_link(&path, parent.join(format!("{at}-again"))).unwrap();
                }
                if number(5) == 0 {
                    setxattr(
                        &path,
                        "user.some",
                        &vec![b'v'; usize::try_from(number(900)).unwrap()],
                        XattrFlags::empty(),
                    )
                    .unwrap();
                }
            }
        }
        let (uid, gid) = (u32::try_from(number(65_536)).unwrap(), u32::try_from(number(3)).unwrap());
        lchown(&path, Some(BASE + uid), Some(BASE + gid)).unwrap();
    }
    // More entries than a block has, and attributes of a directory.
    let many = dir.join("many");
    fs::create_dir(&many).unwrap();
    (0..3000).for_each(|at| fs::write(many.join(format!("{at}")), format!("{at}")).unwrap());
    setxattr(&many, "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
    for path in std::fs::read_dir(&many).unwrap().map(|entry| entry.unwrap().path()).chain([dir.clone(), many]) {
        chown(path, Some(BASE), Some(BASE)).unwrap();
    }
    let Some(image) = mounted(&dir) else { return };
    let (expected, found) = (seen(&open(&dir)), seen(&image));
    for (path, line) in &expected {
        assert_eq!(found.get(path), Some(line), "{path}");
    }
    assert_eq!(found.len(), expected.len());
}

#[test]
fn every_name_is_found_however_its_directory_ends() {
    let Some(temp) = folder() else { return };
    let dir = temp.path().join("tree");
    // More than fits behind an inode; the length of the last name moves the end over all places of a slot.
    let names = |last: usize| (0..40).map(|n| format!("{n:0>110}")).chain([format!("z{}", "y".repeat(last))]);
    for last in 0..64 {
        let path = dir.join(last.to_string());
        fs::create_dir_all(&path).unwrap();
        names(last).for_each(|name| fs::write(path.join(name), last.to_string()).unwrap());
    }
    let Some(root) = mounted(&dir) else { return };
    let root = format!("/proc/self/fd/{}", root.as_raw_fd());
    for last in 0..64 {
        for name in names(last) {
            let read = fs::read_to_string(format!("{root}/{last}/{name}"));
            assert!(read.is_ok_and(|text| text == last.to_string()), "{name} of {last}");
        }
    }
}

#[test]
fn holes_stay_holes() {
    let Some(temp) = folder() else { return };
    let dir = temp.path().join("t");
    fs::create_dir(&dir).unwrap();
    let file = File::create(dir.join("sparse")).unwrap();
    file.write_all_at(b"begin", 0).unwrap();
    file.write_all_at(b"middle", 20 << 30).unwrap();
    file.set_len(40 << 30).unwrap();
    for small in 0..100 {
        let file = File::create(dir.join(format!("small{small}"))).unwrap();
        file.set_len(128 * 1024 - 7).unwrap();
        file.write_all_at(b"middle", 64 * 1024).unwrap();
    }
    let Some(image) = mounted(&dir) else { return };
    let image = format!("/proc/self/fd/{}", image.as_raw_fd());
    for small in 0..100 {
        let found = fs::read(format!("{image}/small{small}")).unwrap();
        let ahead = found.iter().position(|byte| *byte != 0);
        assert_eq!((found.len(), ahead, &found[64 * 1024..][..6]), (128 * 1024 - 7, Some(64 * 1024), &b"middle"[..]));
    }
    let (found, mut middle) = (File::open(format!("{image}/sparse")).unwrap(), [0; 6]);
    assert_eq!(found.metadata().unwrap().len(), 40 << 30);
    found.read_exact_at(&mut middle, 20 << 30).unwrap();
    assert_eq!(&middle, b"middle");
    let taken = fs::metadata(dir.with_extension("erofs")).unwrap().blocks() * 512;
    // A block of data of each, its end behind the inode, and the beginning.
    assert!(taken < 100 * 3 * 4096 + (1 << 20), "the image takes {taken} bytes");
}

#[test]
fn a_directory_that_is_larger_than_what_is_written_at_once_has_all_its_names() {
    let Some(temp) = folder() else { return };
    let dir = temp.path().join("t");
    let names: Vec<String> = (0..3000).map(|number| format!("{number:0>200}")).collect();
    for below in ["a", "b/c"] {
        fs::create_dir_all(dir.join(below)).unwrap();
        for name in &names {
            fs::write(dir.join(below).join(name), name).unwrap();
        }
    }
    fs::write(dir.join("z"), "last").unwrap();
    let Some(image) = mounted(&dir) else { return };
    let image = format!("/proc/self/fd/{}", image.as_raw_fd());
    for below in ["a", "b/c"] {
        assert_eq!(fs::read_dir(format!("{image}/{below}")).unwrap().count(), names.len());
        for name in &names {
            assert_eq!(fs::read_to_string(format!("{image}/{below}/{name}")).unwrap(), *name);
        }
    }
    assert_eq!(fs::read_to_string(format!("{image}/z")).unwrap(), "last");
}

#[test]
fn ids_of_lists_and_capabilities_are_those_of_the_image() {
    let Some(temp) = folder() else { return };
    let dir = temp.path().join("t");
    fs::create_dir(&dir).unwrap();
    let file = dir.join("file");
    fs::write(&file, "x").unwrap();
    chown(&file, Some(BASE + 5), Some(7)).unwrap();
    // Version 2; then tag, permissions and id of each entry.
    let list = |id: u32| -> Vec<u8> {
        let entries =
            [(0x01, 6, u32::MAX), (0x02, 4, id), (0x04, 4, u32::MAX), (0x10, 4, u32::MAX), (0x20, 4, u32::MAX)];
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            list.extend_from_slice(&u16::to_le_bytes(tag));
            list.extend_from_slice(&u16::to_le_bytes(permissions));
            list.extend_from_slice(&u32::to_le_bytes(id));
        }
        list
    };
    match setxattr(&file, "system.posix_acl_access", &list(BASE + 9), XattrFlags::empty()) {
        Ok(()) => {}
        Err(errno) => return fixtures::skip("erofs", &format!("there are no access lists here: {errno}")),
    }
    let mut capability = 0x0300_0001u32.to_le_bytes().to_vec();
    capability.extend_from_slice(&[0x00, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let version_2 = [&0x0200_0001u32.to_le_bytes(), &capability[4..]].concat();
    capability.extend_from_slice(&BASE.to_le_bytes());
    setxattr(&file, "security.capability", &capability, XattrFlags::empty()).unwrap();
    let Some(image) = mounted(&dir) else { return };
    let image = format!("/proc/self/fd/{}/file", image.as_raw_fd());
    let about = fs::metadata(&image).unwrap();
    assert_eq!((about.uid(), about.gid()), (5, 65_534), "an id from outside is that of nobody");
    let value = |name: &str| {
        let mut value = [0; 100];
        let count = rustix::fs::getxattr(&image, name, &mut value[..]).unwrap();
        value[..count].to_vec()
    };
    assert_eq!(value("system.posix_acl_access"), list(9));
    assert_eq!(value("security.capability"), version_2);
}

#[test]
fn what_one_overlay_has_noted_is_left_out_and_what_it_has_removed_is_not() {
    let Some(temp) = folder() else { return };
    let dir = temp.path().join("t");
    fs::create_dir_all(dir.join("opaque")).unwrap();
    for name in ["user.overlay.opaque", "user.overlay.origin", "user.overlay.impure"] {
        setxattr(dir.join("opaque"), name, b"y", XattrFlags::empty()).unwrap();
    }
    mknodat(CWD, dir.join("removed"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    let Some(image) = mounted(&dir) else { return };
    let found = seen(&image);
    assert!(found["opaque"].ends_with(r#"[("user.overlay.opaque", [121])]"#), "{}", found["opaque"]);
    assert!(found["removed"].starts_with("20000 "), "{}", found["removed"]);
}

#[test]
fn directories_that_are_nested_too_deep_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("t");
    fs::create_dir(&dir).unwrap();
    let mut deepest = open(&dir);
    for _ in 0..1200 {
        rustix::fs::mkdirat(&deepest, "d", Mode::RWXU).unwrap();
        deepest = rustix::fs::openat(&deepest, "d", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    }
    let out = tempfile::tempfile().unwrap();
    let refused = write(vec![Tree { name: "tree".to_owned(), dir: open(&dir) }], IDS, &out).unwrap_err();
    assert!(refused.to_string().contains("nested deeper than 1000 levels"), "{refused}");
}

#[test]
fn the_error_of_the_thread_that_writes_is_that_of_the_call() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("image"), []).unwrap();
    let out = File::open(temp.path().join("image")).unwrap();
    let tree = Tree { name: "tree".to_owned(), dir: open(temp.path()) };
    let error = write(vec![tree], IDS, &out).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::BADF.raw_os_error()), "it is open to read only");
}
