//! Names that processes have looked up, and the addresses that stand for them.
//!
//! The box has no name server: the server looks names up, when it makes a connection. So each name
//! that a process asks for gets an address of its own, by which the agent knows the name again when
//! the process connects.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

/// First address, and number of addresses: 198.18.0.0/15, which no host of the internet has, without
/// the first 256 (see [`crate::diverted`]).
const FIRST: u32 = u32::from_be_bytes([198, 18, 1, 0]);
const COUNT: u32 = (1 << 17) - 256;
/// Maximum number of names: as many as there can be connections to in [`KEPT`], with the limit of
/// connections in a second that a sandbox has by default. They take some megabytes at worst.
const NAMES_MAX: usize = 16_384;
/// Shortest time for which an unused address stands for its name. Programs keep addresses for longer
/// than they are allowed to, some for a minute.
const KEPT: Duration = Duration::from_secs(5 * 60);

/// Names with an address.
#[derive(Debug, Default)]
pub(super) struct Names {
    table: RefCell<Table>,
}

#[derive(Debug, Default)]
struct Table {
    addresses: HashMap<Rc<str>, u32>,
    entries: HashMap<u32, Entry>,
    /// Addresses in the order of their last use.
    order: BTreeMap<u64, u32>,
    turn: u64,
    /// Number of the next address. All of them are given out before one is given out again, so that
    /// an old address mostly stands for no name, and not for another one.
    next: u32,
}

#[derive(Debug)]
struct Entry {
    name: Rc<str>,
    turn: u64,
    used: Instant,
    /// Number of open connections.
    open: u32,
}

/// Meaning of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// It stands for this name.
    Name(Rc<str>),
    /// It is one of those for names, and stands for none now.
    Gone,
    /// It is another address.
    NoName,
}

impl Names {
    /// Returns the address of a name, which is in lower case. `None` if no address is free.
    pub(super) fn address_of(&self, name: &str) -> Option<Ipv4Addr> {
        let mut table = self.table.borrow_mut();
        let address = match table.addresses.get(name) {
            Some(address) => *address,
            None => table.add(name)?,
        };
        table.touch(address);
        Some(Ipv4Addr::from_bits(address))
    }

    /// Returns the name that an address stands for.
    pub(super) fn name_of(&self, address: IpAddr) -> Found {
        let Some(address) = number(address) else { return Found::NoName };
        let mut table = self.table.borrow_mut();
        table.touch(address);
        table.entries.get(&address).map_or(Found::Gone, |entry| Found::Name(Rc::clone(&entry.name)))
    }

    /// Keeps the name of an address until the returned value is dropped.
    pub(super) fn hold(self: &Rc<Names>, address: IpAddr) -> Option<Held> {
        let address = number(address)?;
        self.table.borrow_mut().entries.get_mut(&address)?.open += 1;
        Some(Held { names: Rc::clone(self), address })
    }
}

fn number(address: IpAddr) -> Option<u32> {
    let IpAddr::V4(address) = address.to_canonical() else { return None };
    let address = address.to_bits();
    (FIRST..FIRST + COUNT).contains(&address).then_some(address)
}

impl Table {
    fn add(&mut self, name: &str) -> Option<u32> {
        if self.entries.len() >= NAMES_MAX {
            self.forget_one()?;
        }
        let address = loop {
            let address = FIRST + self.next;
            self.next = (self.next + 1) % COUNT;
            if !self.entries.contains_key(&address) {
                break address;
            }
        };
        let name: Rc<str> = name.into();
        self.addresses.insert(Rc::clone(&name), address);
        self.entries.insert(address, Entry { name, turn: 0, used: Instant::now(), open: 0 });
        Some(address)
    }

    /// Forgets the name that was not used for the longest time, if that is long enough.
    fn forget_one(&mut self) -> Option<()> {
        let unused = self.order.values().find(|address| self.entries.get(address).is_some_and(|it| it.open == 0));
        let address = *unused?;
        if self.entries.get(&address)?.used.elapsed() < KEPT {
            return None;
        }
        let entry = self.entries.remove(&address)?;
        self.order.remove(&entry.turn);
        self.addresses.remove(&entry.name);
        Some(())
    }

    fn touch(&mut self, address: u32) {
        let Some(entry) = self.entries.get_mut(&address) else { return };
        self.order.remove(&entry.turn);
        self.turn += 1;
        (entry.turn, entry.used) = (self.turn, Instant::now());
        self.order.insert(self.turn, address);
    }
}

/// A name in use by a connection.
#[derive(Debug)]
pub(super) struct Held {
    names: Rc<Names>,
    address: u32,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut table = self.names.table.borrow_mut();
        table.touch(self.address);
        if let Some(entry) = table.entries.get_mut(&self.address) {
            entry.open -= 1;
        }
    }
}

#[cfg(test)]
mod test {
    use tokio::time::advance;

    use super::*;

    fn name(names: &Names, address: Ipv4Addr) -> Option<String> {
        match names.name_of(address.into()) {
            Found::Name(name) => Some(name.to_string()),
            Found::Gone => None,
            Found::NoName => panic!("{address} is for no name"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_keeps_its_address_and_two_names_have_two() {
        let names = Names::default();
        let first = names.address_of("a.example").unwrap();
        assert_eq!(first, Ipv4Addr::new(198, 18, 1, 0));
        assert_ne!(names.address_of("b.example").unwrap(), first);
        assert_eq!(names.address_of("a.example").unwrap(), first);
        assert_eq!(name(&names, first).as_deref(), Some("a.example"));
        let mapped = IpAddr::V6(first.to_ipv6_mapped());
        assert_eq!(names.name_of(mapped), Found::Name("a.example".into()));
        for other in ["198.18.0.255", "198.20.0.0", "198.17.255.255", "127.0.0.1", "::1", "8.8.8.8"] {
            assert_eq!(names.name_of(other.parse().unwrap()), Found::NoName, "{other}");
        }
        assert_eq!(names.name_of("198.19.255.255".parse().unwrap()), Found::Gone);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_names_takes_bounded_memory_and_no_address_from_a_name_in_use() {
        let names = Rc::new(Names::default());
        let first = names.address_of("first.example").unwrap();
        let held = names.hold(first.into()).unwrap();
        let second = names.address_of("second.example").unwrap();
        let given: Vec<_> = (0..100_000).map_while(|n| names.address_of(&format!("n{n}.example"))).collect();
        assert_eq!(given.len(), NAMES_MAX - 2);
        advance(KEPT / 2).await;
        assert!(names.address_of("late.example").is_none(), "all are fresh");
        assert_eq!(name(&names, second).as_deref(), Some("second.example"));
        advance(KEPT / 2).await;
        // All but the held one and the one that was just used can go now, the oldest ones first.
        let more: Vec<_> = (0..100_000).map_while(|n| names.address_of(&format!("m{n}.example"))).collect();
        assert_eq!(more.len(), NAMES_MAX - 2);
        assert_eq!(names.table.borrow().entries.len(), NAMES_MAX);
        assert_eq!(names.table.borrow().order.len(), NAMES_MAX);
        assert_eq!(name(&names, first).as_deref(), Some("first.example"));
        assert_eq!(name(&names, second).as_deref(), Some("second.example"));
        assert_eq!(name(&names, given[0]), None);
        assert!(more.iter().all(|address| !given.contains(address)), "no address stands for another name yet");
        drop(held);
        advance(KEPT).await;
        assert!(names.address_of("late.example").is_some());
    }
}
