//! Load of the kernel resources that all boxes of this host share.

use std::fs;

use providers::KernelShare;
use rustix::event::epoll;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// Files with the loads, and with the bounds of the host, which an operator may change at any
/// time.
const CONNECTIONS: &str = "/proc/net/sockstat";
const FILES: &str = "/proc/sys/fs/file-nr";
const TCP_MEMORY: &str = "/proc/sys/net/ipv4/tcp_mem";
const ORPHANS_MAX: &str = "/proc/sys/net/ipv4/tcp_max_orphans";
/// Divisor of the bound on orphans. The kernel resets connections from a quarter of its bound
/// on.
const ORPHANS_PART: u64 = 8;
/// Divisor of the bound on open files. Beyond the bound, only root of the host can open a file.
const FILES_PART: u64 = 2;

/// Loads above which a box is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    tcp_pages: u64,
    orphans: u64,
}

/// Returns the resources that the host is short of now; those that its kernel does not report
/// are left out.
pub(super) fn short() -> Vec<KernelShare> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut short = Bounds::parse(&read(TCP_MEMORY), &read(ORPHANS_MAX)).short(&read(CONNECTIONS));
    short.extend(are_files_short(&read(FILES)).then_some(KernelShare::OpenFiles));
    short.extend(can_not_watch().then_some(KernelShare::Watches));
    short
}

impl Bounds {
    /// Parses the load from which on the kernel itself frees TCP memory, the first of three
    /// numbers, and a share of the bound on orphaned connections.
    fn parse(tcp_memory: &str, orphans_max: &str) -> Bounds {
        let first = |text: &str| text.split_whitespace().next().and_then(|number| number.parse().ok());
        Bounds {
            tcp_pages: first(tcp_memory).unwrap_or(u64::MAX),
            orphans: first(orphans_max).map_or(u64::MAX, |most: u64| most / ORPHANS_PART),
        }
    }

    fn short(self, connections: &str) -> Vec<KernelShare> {
        let line = connections.lines().find_map(|line| line.strip_prefix("TCP:")).unwrap_or_default();
        let value = |name: &str| {
            let mut words = line.split_whitespace().skip_while(|word| *word != name);
            words.nth(1).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
        };
        let shares = [
            (value("mem") > self.tcp_pages, KernelShare::TcpBytes),
            (value("orphan") > self.orphans, KernelShare::TcpOrphans),
        ];
        shares.into_iter().filter(|(is_short, _)| *is_short).map(|(_, share)| share).collect()
    }
}

/// Returns whether more than half of all files are open; `files` has the open files first and
/// the bound last.
fn are_files_short(files: &str) -> bool {
    let numbers: Vec<u64> = files.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    let [open, _, most] = numbers[..] else { return false };
    open > most / FILES_PART
}

/// Returns whether this user can add no epoll watch; without one, no connection is accepted.
fn can_not_watch() -> bool {
    let watch = || -> Result<(), Errno> {
        let (poll, event) = (epoll::create(epoll::CreateFlags::CLOEXEC)?, eventfd(0, EventfdFlags::CLOEXEC)?);
        epoll::add(&poll, &event, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
    };
    watch() == Err(Errno::NOSPC)
}

#[cfg(test)]
mod test {
    use super::*;

    fn connections(orphans: u64, pages: u64) -> String {
        format!("sockets: used 12\nTCP: inuse 1 orphan {orphans} tw 0 alloc 1 mem {pages}\nUDP: inuse 0 mem 9999999\n")
    }

    #[test]
    fn a_host_is_short_from_the_bounds_of_its_kernel_on() {
        let bounds = Bounds::parse("287901\t383868\t575802\n", "131072\n");
        assert_eq!(bounds.short(&connections(10, 29)), []);
        assert_eq!(bounds.short(&connections(10, 300_000)), [KernelShare::TcpBytes]);
        assert_eq!(bounds.short(&connections(20_000, 29)), [KernelShare::TcpOrphans]);
        assert!(are_files_short("1500000\t0\t2466177\n"));
        assert!(!are_files_short("771\t0\t2466177\n"));
        assert!(!are_files_short("1500000\t0\t9223372036854775807\n"));
    }

    #[test]
    fn what_a_kernel_does_not_tell_is_not_short() {
        assert_eq!(Bounds::parse("", "").short(&connections(u64::MAX - 1, u64::MAX - 1)), []);
        assert_eq!(Bounds::parse("1 2 3", "80").short(""), []);
        assert!(!are_files_short(""));
    }

    #[test]
    fn this_host_has_files_to_watch() {
        assert!(!can_not_watch());
    }
}
