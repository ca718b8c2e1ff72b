//! One reader of the events: its position, and its filter.

use std::sync::Arc;

use domain::SandboxId;
use tokio::sync::watch;

use super::{Event, EventType, Events, Full};
use crate::budget::Holders;

/// The most events per read, which a reader that has hung up keeps in memory.
const BATCH_MAX: usize = 16;

/// Events that a reader wants to see.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Kinds of events; every kind if empty.
    pub kinds: Vec<EventType>,
    /// Sandbox to which they happened; `None` for all events.
    pub sandbox: Option<SandboxId>,
}

impl Filter {
    fn admits(&self, event: &Event) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&event.kind))
            && self.sandbox.as_ref().is_none_or(|wanted| event.sandbox.as_ref() == Some(wanted))
    }
}

/// Next item for a reader.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// Events in order, at least one.
    Events(Vec<Arc<Event>>),
    /// Gap: the events of these ids are no longer kept.
    Lost {
        /// Last of the ids.
        id: u64,
        /// Number of ids; each was an event if `is_exact`.
        count: u64,
        /// True if all of them are ids of this process. It is not known how many of its last ids
        /// an earlier process used.
        is_exact: bool,
    },
    /// The reader knows a later id than there is: from another store, or from a newer copy of
    /// this one. It goes on from the oldest event that is kept.
    Ahead {
        /// Id before the oldest event that is kept.
        id: u64,
    },
    /// End of the present events, or of the server.
    End,
}

/// A reader, which counts as one until it is dropped.
#[derive(Debug)]
pub struct Subscription {
    events: Arc<Events>,
    filter: Filter,
    /// Id up to which everything has been dealt with.
    cursor: u64,
    changed: watch::Receiver<u64>,
    follows: bool,
    holders: Holders,
}

impl Subscription {
    /// Starts a reader of the events after the id `after`, or after now. It ends at the present
    /// unless it `follows`.
    ///
    /// # Errors
    /// [`Full`] while there are too many readers, in all or of these holders.
    pub fn begin(
        events: &Arc<Events>,
        filter: Filter,
        after: Option<u64>,
        follows: bool,
        holders: Holders,
    ) -> Result<Self, Full> {
        events.readers().enter(holders)?;
        let changed = events.latest.subscribe();
        let cursor = after.unwrap_or_else(|| events.lock().next - 1);
        Ok(Self { events: Arc::clone(events), filter, cursor, changed, follows, holders })
    }

    /// Returns the id up to which everything has been dealt with.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Waits for the next item. Safe to cancel.
    pub async fn next(&mut self) -> Next {
        loop {
            self.changed.mark_unchanged();
            if let Some(found) = self.read() {
                return found;
            }
            let closed = self.events.closed.clone();
            if !self.follows || closed.is_cancelled() {
                return Next::End;
            }
            tokio::select! {
                () = closed.cancelled() => return Next::End,
                changed = self.changed.changed() => {
                    if changed.is_err() {
                        return Next::End;
                    }
                }
            }
        }
    }

    fn read(&mut self) -> Option<Next> {
        let history = self.events.lock();
        if self.cursor >= history.next {
            self.cursor = history.ring.front().map_or(history.next, |oldest| oldest.id) - 1;
            return Some(Next::Ahead { id: self.cursor });
        }
        let start = history.ring.partition_point(|event| event.id <= self.cursor);
        let mut found = Vec::new();
        for event in history.ring.range(start..) {
            if event.id != self.cursor + 1 || found.len() == BATCH_MAX {
                break;
            }
            self.cursor = event.id;
            if self.filter.admits(event) {
                found.push(Arc::clone(event));
            }
        }
        if !found.is_empty() {
            return Some(Next::Events(found));
        }
        let start = history.ring.partition_point(|event| event.id <= self.cursor);
        let present = history.ring.get(start).map_or(history.next, |event| event.id);
        if present == self.cursor + 1 {
            return None;
        }
        let is_exact = self.cursor + 1 >= history.first;
        let count = present - self.cursor - 1;
        self.cursor = present - 1;
        Some(Next::Lost { id: self.cursor, count, is_exact })
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.events.readers().leave(self.holders);
    }
}

#[cfg(test)]
mod test {
    use serde_json::json;

    use super::super::{HISTORY_MAX, ID_BLOCK};
    use super::*;
    use crate::budget::{Budget, Caller};
    use store::clock::from_ms;

    fn events(block: std::ops::Range<u64>) -> Arc<Events> {
        let events = Events::default();
        events.take_ids(block);
        Arc::new(events)
    }

    fn publish(events: &Events, count: u64) {
        for n in 0..count {
            events.publish(EventType::FileWritten, None, from_ms(0), json!({ "n": n }));
        }
    }

    fn holders() -> Holders {
        Budget::new(0).account(Caller::Address(None), None).holders()
    }

    fn reader(events: &Arc<Events>, after: Option<u64>) -> Subscription {
        Subscription::begin(events, Filter::default(), after, false, holders()).unwrap()
    }

    /// Returns the ids of all events that come, and the losses that are reported.
    async fn all(mut reader: Subscription) -> (Vec<u64>, Vec<(u64, bool)>) {
        let (mut ids, mut lost) = (Vec::new(), Vec::new());
        loop {
            match reader.next().await {
                Next::Events(found) => ids.extend(found.iter().map(|event| event.id)),
                Next::Lost { count, is_exact, .. } => lost.push((count, is_exact)),
                Next::Ahead { .. } => lost.push((u64::MAX, true)),
                Next::End => return (ids, lost),
            }
        }
    }

    #[tokio::test]
    async fn a_reader_gets_every_event_after_its_own_once_and_in_order() {
        let events = events(1..2001);
        publish(&events, 300);
        assert_eq!(all(reader(&events, Some(0))).await, ((1..=300).collect(), vec![]));
        assert_eq!(all(reader(&events, Some(299))).await, (vec![300], vec![]));
        assert_eq!(all(reader(&events, None)).await, (vec![], vec![]));
    }

    #[tokio::test]
    async fn a_reader_that_has_fallen_behind_is_told_exactly_how_many_it_lost() {
        let events = events(1..5001);
        publish(&events, HISTORY_MAX as u64 + 7);
        let (ids, lost) = all(reader(&events, Some(2))).await;
        assert_eq!((ids.len(), lost), (HISTORY_MAX, vec![(5, true)]));
        assert_eq!(all(reader(&events, Some(7))).await.1, Vec::new());
        assert_eq!(all(reader(&events, Some(6))).await.1, [(1, true)]);
    }

    #[tokio::test]
    async fn what_an_earlier_process_told_is_lost_and_nobody_knows_how_much() {
        let events = events(2049..3073);
        assert_eq!(all(reader(&events, Some(1500))).await, (vec![], vec![(548, false)]));
        publish(&events, 1);
        assert_eq!(all(reader(&events, Some(1500))).await, (vec![2049], vec![(548, false)]));
        assert_eq!(all(reader(&events, Some(2048))).await, (vec![2049], vec![]));
    }

    #[tokio::test]
    async fn an_id_that_is_still_to_come_leads_to_what_is_here() {
        let events = events(1..1025);
        publish(&events, 3);
        assert_eq!(all(reader(&events, Some(4))).await, (vec![1, 2, 3], vec![(u64::MAX, true)]));
        assert_eq!(all(reader(&events, Some(u64::MAX))).await, (vec![1, 2, 3], vec![(u64::MAX, true)]));
        assert_eq!(all(reader(&events, Some(3))).await, (vec![], vec![]));
    }

    #[tokio::test]
    async fn without_an_id_left_events_are_lost_and_readers_are_told() {
        let events = events(1..11);
        publish(&events, 14);
        assert_eq!(all(reader(&events, Some(0))).await, ((1..=10).collect(), vec![]));
        events.take_ids(11..21);
        publish(&events, 2);
        let (ids, lost) = all(reader(&events, Some(0))).await;
        assert_eq!((ids, lost), ((1..=10).chain(15..=16).collect(), vec![(4, true)]));
        assert_eq!(events.counts().events_total, 16);
    }

    #[tokio::test]
    async fn ids_are_asked_for_before_they_run_out() {
        use futures_util::FutureExt as _;

        let events = events(1..2 * ID_BLOCK + 1);
        publish(&events, ID_BLOCK);
        assert!(events.ids_wanted().now_or_never().is_none());
        publish(&events, 1);
        assert!(events.ids_wanted().now_or_never().is_some());
        events.take_ids(2 * ID_BLOCK + 1..3 * ID_BLOCK + 1);
        assert!(events.ids_wanted().now_or_never().is_none());
        assert_eq!(all(reader(&events, Some(ID_BLOCK))).await.1, Vec::new());
    }

    #[tokio::test]
    async fn a_filter_shows_what_it_says_and_tells_of_losses_all_the_same() {
        let events = events(1..5001);
        let id = SandboxId::from_entropy([3; 10]);
        events.publish(EventType::ExecStarted, Some(&id), from_ms(0), json!({}));
        events.publish(EventType::ExecFailed, Some(&id), from_ms(0), json!({}));
        publish(&events, 1);
        let seen = async |kinds: &[EventType], sandbox: Option<&SandboxId>| {
            let filter = Filter { kinds: kinds.to_vec(), sandbox: sandbox.cloned() };
            all(Subscription::begin(&events, filter, Some(0), false, holders()).unwrap()).await
        };
        assert_eq!(seen(&[EventType::ExecFailed], None).await, (vec![2], vec![]));
        assert_eq!(seen(&[EventType::ExecFailed, EventType::FileWritten], None).await, (vec![2, 3], vec![]));
        assert_eq!(seen(&[], Some(&id)).await, (vec![1, 2], vec![]));
        assert_eq!(seen(&[EventType::FileWritten], Some(&id)).await, (vec![], vec![]));
        publish(&events, HISTORY_MAX as u64);
        assert_eq!(seen(&[EventType::ExecFailed], None).await, (vec![], vec![(3, true)]));
    }

    #[tokio::test]
    async fn readers_are_counted_for_as_long_as_they_read() {
        let events = events(1..1025);
        let readers = [reader(&events, None), reader(&events, None)];
        assert_eq!(events.counts().subscribers, 2);
        drop(readers);
        assert_eq!(events.counts().subscribers, 0);
    }

    #[tokio::test]
    async fn closing_ends_a_reader_that_waits() {
        let events = events(1..1025);
        let waiting = Subscription::begin(&events, Filter::default(), None, true, holders()).unwrap();
        let (seen, ()) = tokio::join!(all(waiting), async {
            tokio::task::yield_now().await;
            events.close();
        });
        assert!(seen.0.is_empty());
    }
}
