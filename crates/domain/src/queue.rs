//! Queue of spawns that wait for room, and the order in which they get it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;

use crate::OwnerId;

/// Position in the queue; a lower one came first.
pub type Ticket = u64;

/// A queue of spawns that wait for room. It serves the first waiter first, with two exceptions: an
/// owner at its own cap does not block other owners, and a kind of place that is exhausted does not
/// block waiters for another kind.
///
/// A waiter is an item (`T`). The waiters of one owner for one kind (`K`) are a line, in order. An
/// owner or a kind is *held* while there is no room for it, for a reason (`R`). Next is the lowest
/// ticket among the heads of the lines whose owner and kind are not held. A wake-up does not visit
/// every waiter: joining, leaving and holding a kind cost the logarithm of the queue's length, the
/// other steps one such step for each kind.
#[derive(Debug)]
pub struct Queue<T, K, R> {
    waiting: BTreeMap<Ticket, Waiting<T, K>>,
    lines: HashMap<(Option<OwnerId>, K), BTreeSet<Ticket>>,
    owners: HashMap<Option<OwnerId>, Owner<K, R>>,
    kinds: HashMap<K, Kind<R>>,
    /// The first head of each kind that is not held.
    firsts: BTreeSet<Ticket>,
}

#[derive(Debug)]
struct Waiting<T, K> {
    owner: Option<OwnerId>,
    kind: K,
    item: T,
}

/// An owner with at least one waiter.
#[derive(Debug)]
struct Owner<K, R> {
    /// Kinds that the owner has a line for.
    kinds: HashSet<K>,
    held: Option<R>,
}

/// A kind with at least one waiter.
#[derive(Debug)]
struct Kind<R> {
    /// Number of lines for it.
    lines: usize,
    /// Heads of the lines whose owner is not held.
    heads: BTreeSet<Ticket>,
    held: Option<R>,
}

impl<R> Kind<R> {
    fn empty() -> Self {
        Self { lines: 0, heads: BTreeSet::new(), held: None }
    }
}

/// Size of the queue, and each owner's share of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    /// Maximum number of waiters.
    pub all: usize,
    /// Maximum number of waiters of one owner; `None` derives it from the free places.
    pub of_one: Option<usize>,
}

/// The limit that refuses another waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPlace {
    /// The queue is full.
    Queue,
    /// The owner has reached its share.
    Share,
}

impl Places {
    /// Decides whether another waiter is admitted, beside `waiting` ones of all owners, `own` of
    /// them of the same owner. Waiters without an owner count as one owner.
    ///
    /// Unless it is configured, an owner's share is as many places as it leaves free. One owner
    /// alone gets half of all places, and the next half of the rest: of 1,024 places, ten owners
    /// that take all they can leave one for the next.
    ///
    /// # Errors
    /// [`NoPlace`] names the limit that is reached.
    pub fn admit(&self, waiting: usize, own: usize) -> Result<(), NoPlace> {
        let free = self.all.saturating_sub(waiting);
        if free == 0 {
            return Err(NoPlace::Queue);
        }
        if own >= self.of_one.unwrap_or(free) { Err(NoPlace::Share) } else { Ok(()) }
    }
}

impl<T, K, R> Default for Queue<T, K, R> {
    fn default() -> Self {
        Self {
            waiting: BTreeMap::new(),
            lines: HashMap::new(),
            owners: HashMap::new(),
            kinds: HashMap::new(),
            firsts: BTreeSet::new(),
        }
    }
}

impl<T, K: Clone + Eq + Hash, R> Queue<T, K, R> {
    /// Returns the number of waiters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a waiter in the order of its `ticket`, which must never have been used before.
    pub fn join(&mut self, ticket: Ticket, owner: Option<OwnerId>, kind: K, item: T) {
        self.change_line(&owner, &kind, |line| {
            line.insert(ticket);
        });
        self.waiting.insert(ticket, Waiting { owner, kind, item });
    }

    /// Removes a waiter, because room was found or its caller gave up, and returns it; `None` if
    /// `ticket` does not wait.
    pub fn leave(&mut self, ticket: Ticket) -> Option<T> {
        let Waiting { owner, kind, item } = self.waiting.remove(&ticket)?;
        self.change_line(&owner, &kind, |line| {
            line.remove(&ticket);
        });
        Some(item)
    }

    /// Returns the next waiter to try; `None` if all waiters are held or the queue is empty.
    #[must_use]
    pub fn first(&self) -> Option<(Ticket, &T)> {
        let ticket = *self.firsts.first()?;
        self.waiting.get(&ticket).map(|waiting| (ticket, &waiting.item))
    }

    /// Returns the next waiter to try and those right behind it, up to one that is held.
    pub fn row(&self) -> impl Iterator<Item = (Ticket, &T)> {
        let first = self.firsts.first().copied();
        let behind = first.into_iter().flat_map(|first| self.waiting.range(first..));
        let free = behind.take_while(move |(ticket, _)| self.why_held(**ticket).is_none());
        free.map(|(ticket, waiting)| (*ticket, &waiting.item))
    }

    /// Returns the waiter with the lowest ticket, held or not.
    #[must_use]
    pub fn oldest(&self) -> Option<(Ticket, &T)> {
        self.waiting.first_key_value().map(|(ticket, waiting)| (*ticket, &waiting.item))
    }

    /// Returns the waiter with `ticket`, if it still waits.
    #[must_use]
    pub fn get(&self, ticket: Ticket) -> Option<&T> {
        self.waiting.get(&ticket).map(|waiting| &waiting.item)
    }

    /// Returns the waiter with `ticket`, if it still waits.
    pub fn get_mut(&mut self, ticket: Ticket) -> Option<&mut T> {
        self.waiting.get_mut(&ticket).map(|waiting| &mut waiting.item)
    }

    /// Returns the reason why the owner or the kind of `ticket` is held, if one of them is.
    #[must_use]
    pub fn why_held(&self, ticket: Ticket) -> Option<&R> {
        let Waiting { owner, kind, .. } = self.waiting.get(&ticket)?;
        let owner = self.owners.get(owner).and_then(|owner| owner.held.as_ref());
        owner.or_else(|| self.kinds.get(kind)?.held.as_ref())
    }

    /// Holds the owner of `ticket`, which is at its cap, until [`Queue::release_owner`]. A `ticket`
    /// that does not wait has no effect.
    pub fn hold_owner(&mut self, ticket: Ticket, why: R) {
        if let Some(Waiting { owner, .. }) = self.waiting.get(&ticket) {
            self.set_held(&owner.clone(), Some(why));
        }
    }

    /// Holds the kind that `ticket` wants, of which no place is left, until
    /// [`Queue::release_kinds`]. A `ticket` that does not wait has no effect.
    pub fn hold_kind(&mut self, ticket: Ticket, why: R) {
        if let Some(Waiting { kind, .. }) = self.waiting.get(&ticket) {
            self.change_kind(&kind.clone(), |kind| kind.held = Some(why));
        }
    }

    /// Releases an owner, which may have room again.
    pub fn release_owner(&mut self, owner: &OwnerId) {
        self.set_held(&Some(owner.clone()), None);
    }

    /// Releases all kinds, which may have room again.
    pub fn release_kinds(&mut self) {
        let held = self.kinds.iter().filter(|(_, kind)| kind.held.is_some());
        let held: Vec<K> = held.map(|(name, _)| name.clone()).collect();
        for name in held {
            self.change_kind(&name, |kind| kind.held = None);
        }
    }

    fn set_held(&mut self, owner: &Option<OwnerId>, held: Option<R>) {
        let Some(known) = self.owners.get_mut(owner) else { return };
        let is_free = held.is_none();
        known.held = held;
        let kinds: Vec<K> = known.kinds.iter().cloned().collect();
        for name in kinds {
            let head = self.lines.get(&(owner.clone(), name.clone())).and_then(BTreeSet::first).copied();
            self.change_kind(&name, |kind| match head {
                Some(head) if is_free => drop(kind.heads.insert(head)),
                Some(head) => drop(kind.heads.remove(&head)),
                None => {}
            });
        }
    }

    fn change_line(&mut self, owner: &Option<OwnerId>, kind: &K, change: impl FnOnce(&mut BTreeSet<Ticket>)) {
        let key = (owner.clone(), kind.clone());
        let line = self.lines.entry(key.clone()).or_default();
        let before = line.first().copied();
        change(line);
        let after = line.first().copied();
        if after.is_none() {
            self.lines.remove(&key);
        }
        let known = self.owners.entry(owner.clone()).or_insert_with(|| Owner { kinds: HashSet::new(), held: None });
        let is_free = known.held.is_none();
        if after.is_some() {
            known.kinds.insert(kind.clone());
        } else {
            known.kinds.remove(kind);
            // Entries of owners without waiters are dropped, so that the map does not grow with
            // every owner ever seen.
            if known.kinds.is_empty() {
                self.owners.remove(owner);
            }
        }
        self.change_kind(kind, |kind| {
            kind.lines = (kind.lines + usize::from(after.is_some())) - usize::from(before.is_some());
            if let Some(before) = before {
                kind.heads.remove(&before);
            }
            if let Some(after) = after.filter(|_| is_free) {
                kind.heads.insert(after);
            }
        });
    }

    fn change_kind(&mut self, name: &K, change: impl FnOnce(&mut Kind<R>)) {
        let kind = self.kinds.entry(name.clone()).or_insert_with(Kind::empty);
        if let Some(first) = kind.heads.first() {
            self.firsts.remove(first);
        }
        change(kind);
        if let Some(first) = kind.heads.first().filter(|_| kind.held.is_none()) {
            self.firsts.insert(*first);
        }
        if kind.lines == 0 {
            self.kinds.remove(name);
        }
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn owner(name: &str) -> OwnerId {
        OwnerId::parse(name).unwrap()
    }

    type TestQueue = Queue<&'static str, u8, &'static str>;

    fn queue(places: &[(&str, u8, Ticket)]) -> TestQueue {
        let mut queue = Queue::default();
        for (name, kind, ticket) in places {
            queue.join(*ticket, Some(owner(name)), *kind, "");
        }
        queue
    }

    fn next(queue: &TestQueue) -> Option<Ticket> {
        queue.first().map(|(ticket, _)| ticket)
    }

    fn is_forgotten(queue: &TestQueue) -> bool {
        queue.is_empty()
            && queue.lines.is_empty()
            && queue.owners.is_empty()
            && queue.kinds.is_empty()
            && queue.firsts.is_empty()
    }

    #[test]
    fn who_came_first_is_served_first() {
        let mut queue = queue(&[("a", 0, 1), ("b", 1, 2), ("a", 2, 3)]);
        queue.join(4, None, 0, "");
        for expected in 1..=4 {
            assert_eq!(next(&queue), Some(expected));
            queue.leave(expected);
        }
        assert!(is_forgotten(&queue));
    }

    #[test]
    fn an_owner_at_its_cap_does_not_hold_up_others() {
        let mut queue = queue(&[("a", 0, 1), ("a", 1, 2), ("b", 0, 3)]);
        queue.hold_owner(1, "cap");
        assert_eq!(next(&queue), Some(3));
        assert_eq!(queue.oldest().map(|(ticket, _)| ticket), Some(1));
        assert_eq!([1, 2, 3].map(|ticket| queue.why_held(ticket).copied()), [Some("cap"), Some("cap"), None]);
        queue.release_owner(&owner("a"));
        assert_eq!(next(&queue), Some(1));
    }

    #[test]
    fn a_kind_without_a_place_does_not_hold_up_who_wants_another() {
        let mut queue = queue(&[("a", 0, 1), ("b", 0, 2), ("a", 1, 3), ("c", 1, 4)]);
        queue.hold_kind(1, "full");
        assert_eq!(next(&queue), Some(3), "also of the same owner");
        assert_eq!([2, 3].map(|ticket| queue.why_held(ticket).copied()), [Some("full"), None]);
        queue.leave(3);
        assert_eq!(next(&queue), Some(4));
        queue.hold_owner(4, "cap");
        assert_eq!(next(&queue), None);
        queue.release_kinds();
        assert_eq!(next(&queue), Some(1));
        for ticket in [1, 2, 4] {
            queue.leave(ticket);
        }
        assert!(is_forgotten(&queue));
    }

    #[test]
    fn a_held_line_stays_held_when_its_head_leaves_or_somebody_joins() {
        let mut queue = queue(&[("a", 0, 1), ("a", 0, 2)]);
        queue.hold_owner(1, "cap");
        queue.leave(1);
        queue.join(3, Some(owner("a")), 1, "");
        assert_eq!(next(&queue), None);
        assert_eq!(queue.why_held(3), Some(&"cap"));
        queue.release_owner(&owner("a"));
        assert_eq!(next(&queue), Some(2));
        queue.release_owner(&owner("nobody"));
    }

    #[track_caller]
    fn check_place(all: usize, of_one: Option<usize>, waiting: usize, own: usize, expected: Result<(), NoPlace>) {
        assert_eq!(Places { all, of_one }.admit(waiting, own), expected, "{all} {of_one:?} {waiting} {own}");
    }

    #[test]
    fn an_owner_gets_its_share_of_the_places_and_no_more() {
        check_place(1, None, 0, 0, Ok(()));
        check_place(1, None, 1, 0, Err(NoPlace::Queue));
        check_place(10, None, 4, 4, Ok(()));
        check_place(10, None, 5, 5, Err(NoPlace::Share));
        check_place(10, None, 5, 0, Ok(()));
        check_place(10, None, 8, 3, Err(NoPlace::Share));
        check_place(10, Some(2), 2, 1, Ok(()));
        check_place(10, Some(2), 2, 2, Err(NoPlace::Share));
        check_place(10, Some(10), 9, 9, Ok(()));
        check_place(10, Some(10), 10, 10, Err(NoPlace::Queue));
        check_place(10, Some(2), 10, 2, Err(NoPlace::Queue));
    }

    proptest! {
        /// Owners that take all they get, in any order, leave a place to a new one.
        #[test]
        fn a_newcomer_finds_a_place_beside_three_greedy_owners(
            all in 16..200usize, asks in prop::collection::vec(0..3usize, 0..600),
        ) {
            let places = Places { all, of_one: None };
            let mut held = [0; 3];
            for owner in asks {
                if places.admit(held.iter().sum(), held[owner]).is_ok() {
                    held[owner] += 1;
                }
            }
            prop_assert!(held.iter().all(|own| *own <= all.div_ceil(2)), "{:?}", held);
            prop_assert_eq!(places.admit(held.iter().sum(), 0), Ok(()));
        }
    }

    proptest! {
        /// Compares the queue with a list that is searched from the front.
        #[test]
        fn the_queue_does_what_a_list_would(steps in prop::collection::vec((0..8u8, 0..4u8, 0..3u8), 1..200)) {
            let names = ["a", "b", "c", "d"];
            let mut queue = Queue::default();
            let mut list: Vec<(Ticket, u8, u8)> = Vec::new();
            let (mut owners, mut kinds) = (HashSet::new(), HashSet::new());
            let mut ticket = 0;
            for (step, who, kind) in steps {
                let name = owner(names[who as usize]);
                match step {
                    0..=2 => {
                        ticket += 1;
                        queue.join(ticket, Some(name), kind, ());
                        list.push((ticket, who, kind));
                    }
                    3 => {
                        if let Some((ticket, ())) = queue.first().map(|(ticket, item)| (ticket, *item)) {
                            queue.leave(ticket);
                            list.retain(|(other, ..)| *other != ticket);
                        }
                    }
                    4 => {
                        if let Some((ticket, ..)) = list.iter().find(|(_, other, _)| *other == who) {
                            queue.hold_owner(*ticket, ());
                            owners.insert(who);
                        }
                    }
                    5 => {
                        if let Some((ticket, ..)) = list.iter().find(|(_, _, other)| *other == kind) {
                            queue.hold_kind(*ticket, ());
                            kinds.insert(kind);
                        }
                    }
                    6 => {
                        queue.release_owner(&name);
                        owners.remove(&who);
                    }
                    _ => {
                        queue.release_kinds();
                        kinds.clear();
                    }
                }
                owners.retain(|who| list.iter().any(|(_, other, _)| other == who));
                kinds.retain(|kind| list.iter().any(|(_, _, other)| other == kind));
                let is_held = |who: &u8, kind: &u8| owners.contains(who) || kinds.contains(kind);
                let expected = list.iter().find(|(_, who, kind)| !is_held(who, kind)).map(|(ticket, ..)| *ticket);
                prop_assert_eq!(queue.first().map(|(ticket, _)| ticket), expected);
                let behind = list.iter().skip_while(|(ticket, ..)| Some(*ticket) != expected);
                let row: Vec<Ticket> =
                    behind.take_while(|(_, who, kind)| !is_held(who, kind)).map(|(ticket, ..)| *ticket).collect();
                prop_assert_eq!(queue.row().map(|(ticket, _)| ticket).collect::<Vec<_>>(), row);
                prop_assert_eq!(queue.len(), list.len());
                for (ticket, who, kind) in &list {
                    prop_assert_eq!(queue.why_held(*ticket).is_some(), is_held(who, kind));
                }
            }
        }
    }
}
