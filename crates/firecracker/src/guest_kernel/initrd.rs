//! Archive of a guest's first files.

use std::io::Write as _;

use cpio::newc::{self, Builder, ModeFileType};

use super::error::{Error, Result};
use super::modules::Module;

/// Maximum size. The guest holds it in its memory, and those in use have a tenth of it.
const LEN_MAX: u64 = 128 << 20;

const FOLDERS: [&str; 5] = ["dev", "modules", "newroot", "proc", "sys"];

/// Returns an archive with the agent as first program, and the modules. The same inputs make the
/// same bytes.
///
/// # Errors
/// If it would be too large.
pub(super) fn build(agent: &[u8], modules: &[Module]) -> Result<Vec<u8>> {
    let len: u64 = modules.iter().map(|module| module.content.len() as u64).sum::<u64>() + agent.len() as u64;
    if len > LEN_MAX {
        return Err(Error::InitrdTooLarge(len));
    }
    let mut archive = Archive::default();
    for folder in FOLDERS {
        archive.add(folder, ModeFileType::Directory, 0o755, 2, (0, 0), &[]);
    }
    archive.add("dev/console", ModeFileType::Char, 0o600, 1, (5, 1), &[]);
    archive.add("dev/null", ModeFileType::Char, 0o666, 1, (1, 3), &[]);
    archive.add("init", ModeFileType::Regular, 0o755, 1, (0, 0), agent);
    let order: String = modules.iter().map(|module| format!("{}\n", module.name)).collect();
    archive.add("modules/order", ModeFileType::Regular, 0o444, 1, (0, 0), order.as_bytes());
    for module in modules {
        let path = format!("modules/{}", module.name);
        archive.add(&path, ModeFileType::Regular, 0o444, 1, (0, 0), &module.content);
    }
    Ok(newc::trailer(archive.bytes).expect("memory can be written to"))
}

#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    /// Number of the last entry.
    inode: u32,
}

impl Archive {
    fn add(
        &mut self,
        path: &str,
        kind: ModeFileType,
        mode: u32,
        links: u32,
        (major, minor): (u32, u32),
        content: &[u8],
    ) {
        self.inode += 1;
        let entry = Builder::new(path).ino(self.inode).mode(mode).set_mode_file_type(kind).nlink(links);
        let len = u32::try_from(content.len()).expect("the sum is bounded");
        let mut entry = entry.rdev_major(major).rdev_minor(minor).write(&mut self.bytes, len);
        entry.write_all(content).and_then(|()| entry.finish()).expect("memory can be written to");
    }
}

#[cfg(test)]
mod test {
    use std::io::Read as _;

    use super::*;

    fn module(name: &str, content: &[u8]) -> Module {
        Module { name: name.to_owned(), content: content.to_vec() }
    }

    type Entry = (String, u32, (u32, u32), Vec<u8>);

    /// Returns path, mode, device and content of each entry; fails if one is not as all should be.
    fn entries(archive: &[u8]) -> Vec<Entry> {
        let (mut rest, mut found) = (archive, Vec::new());
        loop {
            assert_eq!((archive.len() - rest.len()) % 4, 0);
            let mut reader = newc::Reader::new(rest).unwrap();
            let entry = reader.entry().clone();
            if entry.is_trailer() {
                return found;
            }
            assert_eq!((entry.ino() as usize, entry.mtime(), entry.uid(), entry.gid()), (found.len() + 1, 0, 0, 0));
            let mut content = Vec::new();
            reader.read_to_end(&mut content).unwrap();
            found.push((entry.name().to_owned(), entry.mode(), (entry.rdev_major(), entry.rdev_minor()), content));
            rest = reader.finish().unwrap();
        }
    }

    #[test]
    fn it_has_the_agent_the_modules_and_their_order() {
        let modules = [module("b.ko", b"second"), module("a.ko", b"1")];
        let archive = build(b"agent", &modules).unwrap();
        let dir = |path: &str| (path.to_owned(), 0o040_755, (0, 0), Vec::new());
        let file = |path: &str, mode, content: &[u8]| (path.to_owned(), mode, (0, 0), content.to_vec());
        assert_eq!(
            entries(&archive),
            [
                dir("dev"),
                dir("modules"),
                dir("newroot"),
                dir("proc"),
                dir("sys"),
                ("dev/console".to_owned(), 0o020_600, (5, 1), Vec::new()),
                ("dev/null".to_owned(), 0o020_666, (1, 3), Vec::new()),
                file("init", 0o100_755, b"agent"),
                file("modules/order", 0o100_444, b"b.ko\na.ko\n"),
                file("modules/b.ko", 0o100_444, b"second"),
                file("modules/a.ko", 0o100_444, b"1"),
            ]
        );
        assert_eq!(archive, build(b"agent", &modules).unwrap());
        assert_eq!(archive.len() % 4, 0);
    }

    #[test]
    fn without_modules_their_order_is_empty() {
        let entries = entries(&build(b"agent", &[]).unwrap());
        assert_eq!(entries.last().unwrap(), &("modules/order".to_owned(), 0o100_444, (0, 0), Vec::new()));
    }

    #[test]
    fn one_that_no_guest_could_hold_is_refused() {
        let agent = vec![0; usize::try_from(LEN_MAX).unwrap()];
        assert!(build(&agent, &[]).is_ok());
        let error = build(&agent, &[module("a.ko", b"1")]).unwrap_err();
        assert!(matches!(error, Error::InitrdTooLarge(len) if len == LEN_MAX + 1), "{error}");
    }
}
