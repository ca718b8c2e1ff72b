//! Who waits for room, and in which order they get it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::OwnerId;

/// A place in the queue. Lower ones came first.
pub type Ticket = u64;

/// First come, first served; but an owner who is at its own cap does not hold
/// up other owners.
///
/// Each owner has a line, in order; a line is *held* while its owner is at its
/// cap. The first of all that stand at the head of a line that is not held is
/// next. Every operation costs the logarithm of the queue's length, so that a
/// wake-up does not look at everybody who waits.
#[derive(Debug)]
pub struct Queue<T> {
    waiting: BTreeMap<Ticket, (Option<OwnerId>, T)>,
    lines: HashMap<Option<OwnerId>, Line>,
    /// The heads of the lines that are not held.
    heads: BTreeSet<Ticket>,
}

#[derive(Debug, Default)]
struct Line {
    tickets: BTreeSet<Ticket>,
    held: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), lines: HashMap::new(), heads: BTreeSet::new() }
    }
}

impl<T> Queue<T> {
    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Takes a place. `ticket` is one that was never used before.
    pub fn join(&mut self, ticket: Ticket, owner: Option<OwnerId>, item: T) {
        self.change_line(&owner, |line| {
            line.tickets.insert(ticket);
        });
        self.waiting.insert(ticket, (owner, item));
    }

    /// Gives a place up, because room was found or nobody waits for it any more.
    pub fn leave(&mut self, ticket: Ticket) -> Option<T> {
        let (owner, item) = self.waiting.remove(&ticket)?;
        self.change_line(&owner, |line| {
            line.tickets.remove(&ticket);
        });
        Some(item)
    }

    /// Who is next.
    #[must_use]
    pub fn first(&self) -> Option<(Ticket, &T)> {
        let ticket = *self.heads.first()?;
        self.waiting.get(&ticket).map(|(_, item)| (ticket, item))
    }

    /// Who has waited longest, whether or not its owner is at its cap.
    #[must_use]
    pub fn oldest(&self) -> Option<(Ticket, &T)> {
        self.waiting.first_key_value().map(|(ticket, (_, item))| (*ticket, item))
    }

    /// Who holds `ticket`.
    pub fn get_mut(&mut self, ticket: Ticket) -> Option<&mut T> {
        self.waiting.get_mut(&ticket).map(|(_, item)| item)
    }

    /// Whether `ticket` still waits.
    #[must_use]
    pub fn contains(&self, ticket: Ticket) -> bool {
        self.waiting.contains_key(&ticket)
    }

    /// Who stands at the head of the line of `ticket`.
    #[must_use]
    pub fn head_of_line(&self, ticket: Ticket) -> Option<&T> {
        let (owner, _) = self.waiting.get(&ticket)?;
        let head = self.lines.get(owner)?.tickets.first()?;
        self.waiting.get(head).map(|(_, item)| item)
    }

    /// The owner of `ticket` is at its cap: its line waits for [`Queue::release`].
    pub fn hold(&mut self, ticket: Ticket) {
        if let Some((owner, _)) = self.waiting.get(&ticket) {
            self.change_line(&owner.clone(), |line| line.held = true);
        }
    }

    /// The owner may have room again.
    pub fn release(&mut self, owner: &OwnerId) {
        let owner = Some(owner.clone());
        if self.lines.contains_key(&owner) {
            self.change_line(&owner, |line| line.held = false);
        }
    }

    fn change_line(&mut self, owner: &Option<OwnerId>, change: impl FnOnce(&mut Line)) {
        let line = self.lines.entry(owner.clone()).or_default();
        if let Some(head) = line.tickets.first() {
            self.heads.remove(head);
        }
        change(line);
        match line.tickets.first() {
            Some(head) if !line.held => {
                self.heads.insert(*head);
            }
            Some(_) => {}
            // An owner without anybody who waits is forgotten, so that lines
            // cannot grow with every owner that ever came.
            None => {
                self.lines.remove(owner);
            }
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

    fn queue(places: &[(&str, Ticket)]) -> Queue<&'static str> {
        let mut queue = Queue::default();
        for (name, ticket) in places {
            queue.join(*ticket, Some(owner(name)), "");
        }
        queue
    }

    fn next(queue: &Queue<&str>) -> Option<Ticket> {
        queue.first().map(|(ticket, _)| ticket)
    }

    #[test]
    fn who_came_first_is_served_first() {
        let mut queue = queue(&[("a", 1), ("b", 2), ("a", 3)]);
        queue.join(4, None, "");
        for expected in 1..=4 {
            assert_eq!(next(&queue), Some(expected));
            queue.leave(expected);
        }
        assert!(queue.is_empty() && queue.lines.is_empty() && queue.heads.is_empty());
    }

    #[test]
    fn an_owner_at_its_cap_does_not_hold_up_others() {
        let mut queue = queue(&[("a", 1), ("a", 2), ("b", 3)]);
        queue.hold(1);
        assert_eq!(next(&queue), Some(3));
        assert_eq!(queue.oldest().map(|(ticket, _)| ticket), Some(1));
        queue.release(&owner("a"));
        assert_eq!(next(&queue), Some(1));
    }

    #[test]
    fn a_held_line_stays_held_when_its_head_leaves_or_somebody_joins() {
        let mut queue = queue(&[("a", 1), ("a", 2)]);
        queue.hold(1);
        queue.leave(1);
        queue.join(3, Some(owner("a")), "");
        assert_eq!(next(&queue), None);
        queue.release(&owner("a"));
        assert_eq!(next(&queue), Some(2));
        queue.release(&owner("nobody"));
    }

    proptest! {
        /// Against a list that is searched from the front.
        #[test]
        fn the_queue_does_what_a_list_would(steps in prop::collection::vec((0..5u8, 0..4u8), 1..200)) {
            let names = ["a", "b", "c", "d"];
            let mut queue = Queue::default();
            let mut list: Vec<(Ticket, u8)> = Vec::new();
            let mut held = std::collections::HashSet::new();
            let mut ticket = 0;
            for (step, who) in steps {
                let name = owner(names[who as usize]);
                match step {
                    0 | 1 => {
                        ticket += 1;
                        queue.join(ticket, Some(name), ());
                        list.push((ticket, who));
                    }
                    2 => {
                        if let Some((ticket, ())) = queue.first().map(|(ticket, item)| (ticket, *item)) {
                            queue.leave(ticket);
                            list.retain(|(other, _)| *other != ticket);
                        }
                    }
                    3 => {
                        if let Some((ticket, _)) = list.iter().find(|(_, other)| *other == who) {
                            queue.hold(*ticket);
                            held.insert(who);
                        }
                    }
                    _ => {
                        queue.release(&name);
                        held.remove(&who);
                    }
                }
                held.retain(|who| list.iter().any(|(_, other)| other == who));
                let expected = list.iter().find(|(_, who)| !held.contains(who)).map(|(ticket, _)| *ticket);
                prop_assert_eq!(queue.first().map(|(ticket, _)| ticket), expected);
                prop_assert_eq!(queue.len(), list.len());
            }
        }
    }
}
