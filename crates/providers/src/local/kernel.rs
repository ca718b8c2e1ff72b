//! Kernel resources of a box that no control group counts, measured from the host.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::process::descendants;
use crate::KernelShare;

/// Memory of a connection that no program has accepted, without the data that waits in it.
const CONNECTION_BYTES: u64 = 2_600;
/// Most rows read of a network namespace: far more than make a box the one that takes most.
const ROWS_MAX: usize = 500_000;
/// Most bytes read of the watches of one `epoll` descriptor: some hundreds of watches.
const WATCHES_BYTES_MAX: u64 = 64 * 1024;
/// Most descriptors of one process that are read.
const DESCRIPTORS_MAX: usize = 100_000;

fn measure(first: u32, share: KernelShare) -> u64 {
    let processes = descendants(first).into_iter().map(|pid| PathBuf::from(format!("/proc/{pid}")));
    match share {
        KernelShare::TcpBytes => connections(processes).map(|connection| connection.unaccepted_bytes()).sum(),
        KernelShare::TcpOrphans => connections(processes).filter(Connection::is_orphan).count() as u64,
        KernelShare::OpenFiles => processes.map(|process| open_files(&process)).sum(),
        KernelShare::Watches => processes.map(|process| watches(&process)).sum(),
    }
}

/// Measures the share of the box whose first process is `first`.
pub(crate) async fn kernel_usage(first: u32, share: KernelShare) -> Option<u64> {
    tokio::task::spawn_blocking(move || measure(first, share)).await.ok()
}

/// Row of `/proc/net/tcp` or `/proc/net/tcp6`.
#[derive(Debug, PartialEq, Eq)]
struct Connection {
    state: u8,
    to_send: u64,
    received: u64,
    /// True if a program has a descriptor of it.
    is_held: bool,
}

impl Connection {
    /// Parses a row with the columns number, addresses, state, `to_send:received`, timer,
    /// retransmissions, user, timeout, inode.
    fn parse(row: &str) -> Option<Connection> {
        let mut fields = row.split_whitespace().skip(3);
        let state = u8::from_str_radix(fields.next()?, 16).ok()?;
        let (to_send, received) = fields.next()?.split_once(':')?;
        let is_held = fields.nth(4)? != "0";
        let to_send = u64::from_str_radix(to_send, 16).ok()?;
        let received = u64::from_str_radix(received, 16).ok()?;
        Some(Connection { state, to_send, received, is_held })
    }

    /// Returns the bytes that the connection holds if it was never accepted: no program has it,
    /// and it is open or closed only by the other end.
    fn unaccepted_bytes(&self) -> u64 {
        const ESTABLISHED: u8 = 1;
        const CLOSE_WAIT: u8 = 8;
        let waits = !self.is_held && [ESTABLISHED, CLOSE_WAIT].contains(&self.state);
        if waits { CONNECTION_BYTES + self.received } else { 0 }
    }

    /// Returns whether it is closed here and has data that the other end does not take.
    fn is_orphan(&self) -> bool {
        const FIN_WAIT_1: u8 = 4;
        const LAST_ACK: u8 = 9;
        const CLOSING: u8 = 11;
        !self.is_held && self.to_send > 0 && [FIN_WAIT_1, LAST_ACK, CLOSING].contains(&self.state)
    }
}

/// Returns the connections in every network namespace of these processes but the server's own,
/// whose connections are those of the whole host.
fn connections(processes: impl Iterator<Item = PathBuf>) -> impl Iterator<Item = Connection> {
    let own = network_namespace(Path::new("/proc/self"));
    let mut seen: HashSet<Option<PathBuf>> = HashSet::from([None, own]);
    let first_in_each = processes.filter(move |process| seen.insert(network_namespace(process)));
    first_in_each.flat_map(|process| ["tcp", "tcp6"].map(|name| process.join("net").join(name))).flat_map(|file| {
        let rows = File::open(file).into_iter().flat_map(|file| BufReader::new(file).lines().skip(1).take(ROWS_MAX));
        rows.map_while(Result::ok).filter_map(|row| Connection::parse(&row))
    })
}

/// Returns the identity of a process's network namespace; `None` if it cannot be seen.
fn network_namespace(process: &Path) -> Option<PathBuf> {
    fs::read_link(process.join("ns/net")).ok()
}

/// Returns the number of descriptors of a process.
fn open_files(process: &Path) -> u64 {
    let dir = process.join("fd");
    // The kernel reports the number as the size from version 6.2 on.
    match fs::metadata(&dir).map(|metadata| metadata.size()) {
        Ok(0) => fs::read_dir(dir).map_or(0, |entries| entries.take(DESCRIPTORS_MAX).count() as u64),
        Ok(count) => count,
        Err(_) => 0,
    }
}

/// Returns the number of files that a process watches, at most some hundreds for each descriptor:
/// enough to recognize a box that collects them.
fn watches(process: &Path) -> u64 {
    let entries = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().take(DESCRIPTORS_MAX);
    let polls = entries.filter(|entry| {
        fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str().as_encoded_bytes() == b"anon_inode:[eventpoll]")
    });
    polls.filter_map(|poll| watches_in(&process.join("fdinfo").join(poll.file_name()))).sum()
}

/// Counts the files that the `fdinfo` of an `epoll` descriptor lists; `None` if it is gone.
fn watches_in(fdinfo: &Path) -> Option<u64> {
    let info = File::open(fdinfo).ok()?;
    let lines = BufReader::new(info.take(WATCHES_BYTES_MAX)).lines().map_while(Result::ok);
    Some(lines.filter(|line| line.starts_with("tfd:")).count() as u64)
}

#[cfg(test)]
mod test {
    use super::*;

    fn row(state: &str, queues: &str, inode: &str) -> Connection {
        let row = format!(
            "  12: 0100007F:07D0 0100007F:B2D6 {state} {queues} 00:00000000 00000000     0        0 {inode} 1 0 20 4 30 10 -1"
        );
        Connection::parse(&row).unwrap()
    }

    #[test]
    fn only_connections_that_no_program_has_are_counted() {
        assert_eq!(row("01", "00000000:00001000", "0").unaccepted_bytes(), CONNECTION_BYTES + 4096);
        assert_eq!(row("08", "00000000:00000000", "0").unaccepted_bytes(), CONNECTION_BYTES);
        assert_eq!(row("01", "00000000:00001000", "4711").unaccepted_bytes(), 0);
        assert_eq!(row("0A", "00000000:00000080", "4711").unaccepted_bytes(), 0, "it listens");
        assert!(row("04", "00001000:00000000", "0").is_orphan());
        assert!(!row("06", "00000000:00000000", "0").is_orphan(), "nothing waits in it");
        assert!(!row("01", "00001000:00000000", "4711").is_orphan());
        assert_eq!(Connection::parse("  sl  local_address rem_address   st tx_queue"), None);
    }

    #[test]
    fn open_files_and_watches_of_a_process_are_counted() {
        let own = Path::new("/proc/self");
        let files = open_files(own);
        let watched = watches(own);
        let held: Vec<File> = (0..100).map(|_| File::open("/dev/null").unwrap()).collect();
        assert!(open_files(own) >= files + 50, "other tests may close some meanwhile");
        drop(held);
        let poll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        let event = rustix::event::epoll::EventData::new_u64(0);
        let flags = rustix::event::epoll::EventFlags::IN;
        let pipes: Vec<_> = (0..100).map(|_| std::io::pipe().unwrap()).collect();
        pipes.iter().for_each(|(end, _)| rustix::event::epoll::add(&poll, end, event, flags).unwrap());
        assert!(watches(own) >= watched + 50, "other tests may close some meanwhile");
    }
}
