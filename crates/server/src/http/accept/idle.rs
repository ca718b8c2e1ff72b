//! Idle connections. When every place is taken, the one that has been idle for longest gives
//! its place to a new connection.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http_body::Body as _;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::http::body::Keeping;
use crate::http::request_memory::SMALL_BYTES;

/// Connections of a listener, ordered by how long each has been idle.
#[derive(Debug, Clone, Default)]
pub(super) struct Idle(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    list: Mutex<List>,
    /// Notified when an idle connection appears after there was none to ask.
    changed: Notify,
}

#[derive(Debug, Default)]
struct List {
    connections: HashMap<u64, Standing>,
    /// Idle connections that were not asked to leave.
    ranked: BTreeSet<Rank>,
    /// Number of connections that were asked to leave and are still open.
    asked: usize,
    /// True while a new connection waits for a place and there was no idle one to ask.
    is_wanted: bool,
    next: u64,
}

/// Order of leaving: those of trusted proxies last, since they carry the requests of many
/// callers; then by the start of their idle time.
type Rank = (bool, Instant, u64);

/// State of a connection.
#[derive(Debug)]
struct Standing {
    is_trusted: bool,
    /// Number of requests between their heads and the ends of their answers.
    under_way: usize,
    /// True while the client takes no byte of what is sent.
    is_stuck: bool,
    /// True if the last answer was longer than [`SMALL_BYTES`] or of unknown length: a client
    /// may take its time to read it.
    is_long: bool,
    is_asked: bool,
    rank: Option<Rank>,
    leave: Arc<Notify>,
}

impl Idle {
    /// Registers a connection, idle at first.
    pub(super) fn enter(&self, is_trusted: bool) -> Turn {
        let leave = Arc::<Notify>::default();
        let standing = Standing {
            is_trusted,
            under_way: 0,
            is_stuck: false,
            is_long: false,
            is_asked: false,
            rank: None,
            leave: Arc::clone(&leave),
        };
        let mut list = self.lock();
        let id = list.next;
        list.next += 1;
        list.connections.insert(id, standing);
        drop(list);
        let turn = Turn { idle: self.clone(), id, leave };
        turn.change(|_| {});
        turn
    }

    /// Asks the connection that has been idle for longest to leave. At most one at a time is
    /// asked: one place is needed.
    pub(super) fn ask_longest(&self) {
        let mut list = self.lock();
        if list.asked == 0 {
            list.is_wanted = !list.ask_first(|_| true);
        }
    }

    /// Asks all connections that have been idle for longer than `wait` to leave. Those of
    /// trusted proxies, which keep connections for their own callers, are not asked.
    pub(super) fn ask_longer_than(&self, wait: Duration) {
        let Some(since) = Instant::now().checked_sub(wait) else { return };
        let mut list = self.lock();
        while list.ask_first(|(is_trusted, at, _)| !is_trusted && *at < since) {}
    }

    /// Waits until a connection becomes idle or an asked one gets a request, after there was
    /// none to ask.
    pub(super) async fn changed(&self) {
        self.0.changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        // No panic can leave the list inconsistent.
        self.0.list.lock()
    }
}

impl List {
    /// Asks the first connection in order, if `is_one` accepts it. Returns whether one was asked.
    fn ask_first(&mut self, is_one: impl Fn(&Rank) -> bool) -> bool {
        let Some(rank) = self.ranked.first().copied().filter(is_one) else { return false };
        self.ranked.remove(&rank);
        if let Some(standing) = self.connections.get_mut(&rank.2) {
            standing.rank = None;
            standing.is_asked = true;
            standing.leave.notify_one();
            self.asked += 1;
        }
        true
    }
}

/// Handle on the state of one connection. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Turn {
    idle: Idle,
    id: u64,
    leave: Arc<Notify>,
}

impl Turn {
    /// Counts a request whose head is complete.
    pub(super) fn begin(&self) -> UnderWay {
        self.change(|standing| standing.under_way += 1);
        UnderWay { turn: self.clone(), is_long: false, is_for_good: false }
    }

    /// Records whether the client takes no byte of what is sent.
    pub(super) fn stick(&self, is_stuck: bool) {
        self.change(|standing| standing.is_stuck = is_stuck);
    }

    /// Removes the connection from the list.
    pub(super) fn end(&self) {
        let mut list = self.idle.lock();
        let Some(standing) = list.connections.remove(&self.id) else { return };
        if let Some(rank) = standing.rank {
            list.ranked.remove(&rank);
        }
        list.asked -= usize::from(standing.is_asked);
    }

    /// Waits until the connection has to give up its place. A request that begins withdraws the
    /// demand.
    pub(super) async fn asked_to_leave(&self) {
        loop {
            self.leave.notified().await;
            if self.idle.lock().connections.get(&self.id).is_some_and(|standing| standing.is_asked) {
                return;
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut Standing)) {
        let mut list = self.idle.lock();
        let List { connections, ranked, asked, is_wanted, .. } = &mut *list;
        let Some(standing) = connections.get_mut(&self.id) else { return };
        change(standing);
        // A client stuck on a short answer is not slow: it has left many answers unread.
        let is_idle = !(standing.under_way > 0 || standing.is_stuck && standing.is_long);
        let mut is_place = false;
        if is_idle && standing.rank.is_none() && !standing.is_asked {
            let rank = (standing.is_trusted, Instant::now(), self.id);
            standing.rank = Some(rank);
            ranked.insert(rank);
            is_place = std::mem::take(is_wanted);
        } else if !is_idle {
            if let Some(rank) = standing.rank.take() {
                ranked.remove(&rank);
            }
            // Another connection has to leave in its stead.
            is_place = std::mem::take(&mut standing.is_asked);
            *asked -= usize::from(is_place);
        }
        drop(list);
        if is_place {
            self.idle.0.changed.notify_one();
        }
    }
}

/// Request whose answer has not been sent yet. On drop of the last one the connection becomes idle.
#[derive(Debug)]
pub(super) struct UnderWay {
    turn: Turn,
    is_long: bool,
    is_for_good: bool,
}

impl UnderWay {
    /// Keeps the request under way until `body` has been sent, or for the life of the
    /// connection if it switches to another protocol.
    pub(super) fn answer(mut self, body: Body, is_for_good: bool) -> Keeping<UnderWay> {
        self.is_long = body.size_hint().exact().is_none_or(|bytes| bytes > SMALL_BYTES as u64);
        self.is_for_good = is_for_good;
        Keeping::new(body, self)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.is_for_good {
            self.turn.change(|standing| {
                standing.under_way -= 1;
                standing.is_long = self.is_long;
            });
        }
    }
}

#[cfg(test)]
mod test {
    use futures_util::FutureExt;

    use super::*;

    /// Returns whether the connection has to leave now.
    fn is_asked(turn: &Turn) -> bool {
        turn.asked_to_leave().now_or_never().is_some()
    }

    async fn pass(time: Duration) {
        tokio::time::advance(time).await;
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_one_without_a_request_for_longest_is_asked_and_one_at_a_time() {
        let idle = Idle::default();
        let first = idle.enter(false);
        pass(SECOND).await;
        let second = idle.enter(false);
        pass(SECOND).await;
        drop(first.begin());
        idle.ask_longest();
        idle.ask_longest();
        assert!(is_asked(&second) && !is_asked(&first));
        second.end();
        idle.ask_longest();
        assert!(is_asked(&first));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_under_way_is_never_asked_to_leave() {
        let idle = Idle::default();
        let turn = idle.enter(false);
        let under_way = turn.begin();
        idle.ask_longest();
        idle.ask_longer_than(Duration::ZERO);
        assert!(!is_asked(&turn));
        assert!(idle.changed().now_or_never().is_none());
        // Its answer is being sent, and its client reads slowly.
        let answer = under_way.answer(Body::from(vec![0; SMALL_BYTES + 1]), false);
        turn.stick(true);
        drop(answer);
        idle.ask_longest();
        assert!(!is_asked(&turn));
        turn.stick(false);
        assert!(idle.changed().now_or_never().is_some(), "who waits looks again");
        idle.ask_longest();
        assert!(is_asked(&turn));
        // A request that begins just then goes on, and another connection has to leave.
        drop(turn.begin().answer(Body::empty(), true));
        assert!(!is_asked(&turn));
        assert!(idle.changed().now_or_never().is_some());
        let other = idle.enter(false);
        idle.ask_longest();
        assert!(is_asked(&other) && !is_asked(&turn));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_with_many_requests_is_idle_after_the_last() {
        let idle = Idle::default();
        let turn = idle.enter(false);
        let (one, other) = (turn.begin(), turn.begin());
        drop(one);
        idle.ask_longest();
        assert!(!is_asked(&turn));
        drop(other);
        idle.ask_longest();
        assert!(is_asked(&turn));
    }

    #[tokio::test(start_paused = true)]
    async fn short_answers_that_are_not_read_keep_no_place() {
        let idle = Idle::default();
        let turn = idle.enter(false);
        let answer = turn.begin().answer(Body::from("refused"), false);
        turn.stick(true);
        drop(answer);
        idle.ask_longest();
        assert!(is_asked(&turn));
    }

    #[tokio::test(start_paused = true)]
    async fn connections_of_proxies_leave_last_and_not_for_waiting() {
        let idle = Idle::default();
        let proxy = idle.enter(true);
        pass(SECOND).await;
        let (old, new) = (idle.enter(false), idle.enter(false));
        pass(SECOND).await;
        drop(new.begin());
        idle.ask_longer_than(SECOND / 2);
        assert!(is_asked(&old) && !is_asked(&new) && !is_asked(&proxy));
        old.end();
        idle.ask_longest();
        assert!(is_asked(&new));
        new.end();
        idle.ask_longest();
        assert!(is_asked(&proxy));
    }

    #[test]
    fn nothing_is_kept_of_connections_that_ended() {
        let idle = Idle::default();
        for _ in 0..3 {
            let turn = idle.enter(false);
            let under_way = turn.begin();
            turn.end();
            drop(under_way);
        }
        let turn = idle.enter(false);
        idle.ask_longest();
        turn.end();
        let list = idle.lock();
        assert!(list.connections.is_empty() && list.ranked.is_empty() && list.asked == 0, "{list:?}");
    }
}
