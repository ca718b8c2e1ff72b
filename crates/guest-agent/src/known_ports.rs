//! Ports of the box as a server knows them.

mod allowance;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use guest_protocol::{ListeningPort, PortChange};
use tokio::task::AbortHandle;

use self::allowance::Allowance;
use crate::sockets::Socket;

/// Number and address of a port, in the order of lists.
pub(crate) type PortKey = (u16, IpAddr);

/// Returns the key of a port.
pub(crate) fn key(port: &ListeningPort) -> PortKey {
    (port.port, port.address)
}

/// Ports that were reported to servers. They outlive a server, so that the next one is sent what is
/// different, and nothing twice.
#[derive(Debug, Default)]
pub(crate) struct KnownPorts {
    pub(crate) known: RefCell<Known>,
    /// Task that looks for the present receiver.
    pub(crate) task: RefCell<Option<AbortHandle>>,
}

/// Ports of the last look, and those that were reported.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Sockets of the last look, each with its port; `None` for one that is not the box's.
    sockets: HashMap<Socket, Option<ListeningPort>>,
    /// Ports that were reported as open, and not as closed since.
    reported: BTreeMap<PortKey, ListeningPort>,
    /// Port of the last report. The next ones begin after it, so that ports that come and go do not
    /// keep others from being reported.
    last: Option<PortKey>,
    pub(crate) allowance: Allowance,
}

impl Known {
    /// Returns whether no port is reported as open.
    pub(crate) fn is_empty(&self) -> bool {
        self.reported.is_empty()
    }

    /// Takes over the sockets of a look. Processes are looked for only for sockets that are new.
    pub(crate) fn learn(&mut self, sockets: Vec<Socket>, find: impl FnOnce(&[Socket]) -> Vec<Option<ListeningPort>>) {
        let new: Vec<Socket> = sockets.iter().copied().filter(|it| !self.sockets.contains_key(it)).collect();
        if new.is_empty() && sockets.len() == self.sockets.len() {
            return;
        }
        let mut found: HashMap<Socket, Option<ListeningPort>> = HashMap::new();
        if !new.is_empty() {
            found = find(&new).into_iter().zip(&new).map(|(port, socket)| (*socket, port)).collect();
        }
        let mut before = std::mem::take(&mut self.sockets);
        self.sockets = sockets
            .into_iter()
            .map(|socket| (socket, found.remove(&socket).or_else(|| before.remove(&socket)).flatten()))
            .collect();
    }

    /// Returns at most `most` changes that are not reported, those after the last report first.
    pub(crate) fn changes(&self, most: usize) -> Vec<PortChange> {
        let mut open: BTreeMap<PortKey, &ListeningPort> = BTreeMap::new();
        for port in self.sockets.values().flatten() {
            // Several sockets may share a port.
            open.entry(key(port)).or_insert(port);
        }
        let closed = self.reported.iter().filter(|(key, _)| !open.contains_key(key));
        let closed = closed.map(|(key, port)| (*key, false, port));
        let opened = open.iter().filter(|(key, _)| !self.reported.contains_key(key));
        let opened = opened.map(|(key, port)| (*key, true, *port));
        let mut changes: Vec<_> = closed.chain(opened).collect();
        changes.sort_unstable_by_key(|(key, ..)| (self.last.is_some_and(|last| *key <= last), *key));
        changes.truncate(most);
        changes.into_iter().map(|(_, is_open, port)| PortChange { is_open, port: port.clone() }).collect()
    }

    /// Takes over a change that was reported.
    pub(crate) fn report(&mut self, change: PortChange) {
        let key = key(&change.port);
        self.last = Some(key);
        self.allowance.spend();
        if change.is_open {
            self.reported.insert(key, change.port);
        } else {
            self.reported.remove(&key);
        }
    }
}

#[cfg(test)]
mod test {
    use std::net::Ipv4Addr;

    use super::*;

    fn socket(port: u16, inode: u64) -> Socket {
        Socket { port, address: Ipv4Addr::LOCALHOST.into(), inode }
    }

    /// Looks, and returns up to `most` changes as numbers, negative for a port that is closed.
    fn look(known: &mut Known, sockets: &[Socket], most: usize) -> Vec<i32> {
        known.learn(sockets.to_vec(), |new| {
            let port = |socket: &Socket| ListeningPort {
                port: socket.port,
                address: socket.address,
                pid: None,
                process: None,
            };
            new.iter().map(|socket| (socket.inode > 0).then(|| port(socket))).collect()
        });
        let changes = known.changes(most);
        changes
            .into_iter()
            .map(|change| {
                let number = i32::from(change.port.port);
                let number = if change.is_open { number } else { -number };
                known.report(change);
                number
            })
            .collect()
    }

    #[test]
    fn each_change_is_reported_once_and_foreign_sockets_never() {
        let mut known = Known::default();
        assert!(look(&mut known, &[socket(80, 0)], 9).is_empty());
        assert_eq!(look(&mut known, &[socket(80, 0), socket(81, 1), socket(82, 2)], 9), [81, 82]);
        assert!(look(&mut known, &[socket(80, 0), socket(81, 1), socket(82, 2)], 9).is_empty());
        // Another socket takes the port over.
        assert!(look(&mut known, &[socket(81, 3), socket(82, 2)], 9).is_empty());
        assert_eq!(look(&mut known, &[socket(81, 3), socket(80, 4)], 9), [80, -82]);
        assert_eq!(look(&mut known, &[], 9), [-80, -81]);
        assert!(look(&mut known, &[], 9).is_empty());
    }

    #[test]
    fn several_sockets_of_one_port_are_one_port() {
        let mut known = Known::default();
        assert_eq!(look(&mut known, &[socket(80, 1), socket(80, 2)], 9), [80]);
        assert!(look(&mut known, &[socket(80, 2)], 9).is_empty());
        assert_eq!(look(&mut known, &[], 9), [-80]);
    }

    #[test]
    fn what_waits_for_its_turn_and_is_undone_is_not_reported_and_all_others_are() {
        let mut known = Known::default();
        let many: Vec<Socket> = (1..=1000).map(|port| socket(port, port.into())).collect();
        assert_eq!(look(&mut known, &many, 2), [1, 2]);
        // The first ones flap.
        assert_eq!(look(&mut known, &many[2..], 2), [3, 4]);
        assert_eq!(look(&mut known, &many[4..8], 9), [5, 6, 7, 8, -1, -2, -3, -4]);
        assert!(look(&mut known, &many[4..8], 9).is_empty());
    }
}
