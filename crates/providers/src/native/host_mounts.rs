//! Mount points of the host.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::path::Path;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Mount points that the server sees, read again when the kernel tells of a change.
#[derive(Debug, Default)]
pub(super) struct HostMounts(Mutex<Option<Table>>);

#[derive(Debug)]
struct Table {
    file: File,
    points: Vec<String>,
}

impl HostMounts {
    /// Returns the mount points below these directories. Without the kernel's list there are none: a box is
    /// made all the same.
    pub(super) fn below(&self, dirs: &[String]) -> Vec<String> {
        let mut kept = self.0.lock();
        if !kept.as_ref().is_some_and(Table::is_current) {
            *kept = Table::read().ok();
        }
        let points = kept.iter().flat_map(|table| &table.points);
        points.filter(|point| is_below(Path::new(point), dirs)).cloned().collect()
    }
}

fn is_below(point: &Path, dirs: &[String]) -> bool {
    dirs.iter().any(|dir| point != Path::new(dir) && point.starts_with(dir))
}

impl Table {
    fn read() -> std::io::Result<Table> {
        let mut file = File::open("/proc/self/mountinfo")?;
        // A change between the two is told of.
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        file.rewind()?;
        let points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(unescaped).collect();
        Ok(Table { file, points })
    }

    /// Returns whether no mount has changed since the list was opened.
    fn is_current(&self) -> bool {
        let mut files = [PollFd::new(&self.file, PollFlags::PRI)];
        poll(&mut files, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|changed| changed == 0)
    }
}

/// Returns a path as `mountinfo` writes it, where a few characters are octal numbers.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn mounts_below_a_directory_are_found() {
        let mounts = HostMounts::default();
        let found = mounts.below(&["/".to_owned()]);
        assert!(found.iter().any(|point| point == "/proc"), "{found:?}");
        assert_eq!(mounts.below(&["/proc/self".to_owned()]), Vec::<String>::new());
        assert_eq!(mounts.below(&["/".to_owned()]), found);
        assert_eq!(unescaped("/usr/a\\040b"), "/usr/a b");
    }
}
