//! Account of one box: what its processes asked for, and what became of it.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use domain::{Bucket, Rate, Timestamp};
use parking_lot::Mutex;

/// Most decisions that are kept of a box.
const DECISIONS_MAX: usize = 100;
/// Least time between two events about what a box was denied.
const EVENT_EVERY: Duration = Duration::from_secs(1);

/// Outcome of a connection that a process asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It was made.
    Allowed,
    /// A policy or a limit refused it.
    Denied,
    /// The host could not be reached.
    Failed,
}

impl Verdict {
    /// Returns its name in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Allowed => "allowed",
            Verdict::Denied => "denied",
            Verdict::Failed => "failed",
        }
    }
}

/// A connection that a process asked for, with its outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressDecision {
    pub at: Timestamp,
    /// Host as the process wrote it.
    pub host: String,
    pub port: u16,
    /// Address that was dialled, or the first that was refused.
    pub address: Option<IpAddr>,
    pub verdict: Verdict,
    /// Reason of a refusal or failure.
    pub reason: Option<String>,
}

/// Numbers of connections and bytes.
#[derive(Debug, Default)]
pub struct Counters {
    verdicts: [AtomicU64; 3],
    /// Connections that are open.
    open: AtomicU64,
    /// Bytes to hosts.
    sent: AtomicU64,
    /// Bytes from hosts.
    received: AtomicU64,
}

/// Values of [`Counters`] at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub allowed: u64,
    pub denied: u64,
    pub failed: u64,
    pub open: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
}

/// Direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Sent,
    Received,
}

impl Counters {
    fn count(&self, verdict: Verdict) {
        self.verdicts[verdict as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn add(&self, direction: Direction, bytes: u64) {
        let counter = match direction {
            Direction::Sent => &self.sent,
            Direction::Received => &self.received,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the present values.
    pub(super) fn counts(&self) -> Counts {
        let [allowed, denied, failed] = &self.verdicts;
        Counts {
            allowed: value(allowed),
            denied: value(denied),
            failed: value(failed),
            open: value(&self.open),
            bytes_sent: value(&self.sent),
            bytes_received: value(&self.received),
        }
    }
}

fn value(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Limits on the connections of one box.
#[derive(Debug, Clone, Copy)]
pub struct EgressLimits {
    /// Most connections at once.
    pub connections: u32,
    /// New connections a second.
    pub connections_per_second: u32,
    /// Bytes a second in both directions; `None` for no limit.
    pub bytes_per_second: Option<u64>,
    /// Bytes in all in both directions; `None` for no limit.
    pub bytes: Option<u64>,
    /// Time without a byte after which a connection is closed.
    pub idle: Duration,
    /// Time for a look-up, and for a host to answer.
    pub connect: Duration,
}

impl EgressLimits {
    fn rate(self) -> Rate {
        let burst = NonZeroU32::new(self.connections_per_second).unwrap_or(NonZeroU32::MIN);
        Rate { per_minute: burst.saturating_mul(NonZeroU32::new(60).unwrap_or(NonZeroU32::MIN)), burst }
    }
}

/// Account of one box.
#[derive(Debug)]
pub(super) struct Ledger {
    limits: EgressLimits,
    started: Instant,
    counters: Counters,
    /// Bytes that the box had exchanged before they were counted here.
    before: AtomicU64,
    /// Bytes that are stored, with those before.
    stored: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    decisions: VecDeque<EgressDecision>,
    /// Tokens for new connections.
    bucket: Bucket,
    /// Time, since `started`, from which the next bytes are within the rate.
    next_bytes: Duration,
    /// Time, since `started`, from which the next event is sent.
    next_event: Duration,
    /// Refusals since the last event.
    unsaid: u64,
}

impl Ledger {
    pub(super) fn new(limits: EgressLimits) -> Ledger {
        let inner = Inner {
            decisions: VecDeque::new(),
            bucket: Bucket::full(limits.rate(), Duration::ZERO),
            next_bytes: Duration::ZERO,
            next_event: Duration::ZERO,
            unsaid: 0,
        };
        Ledger {
            limits,
            started: Instant::now(),
            counters: Counters::default(),
            before: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            inner: Mutex::new(inner),
        }
    }

    /// Takes a token for a new connection, and returns whether there was one.
    pub(super) fn may_connect(&self) -> bool {
        let now = self.started.elapsed();
        self.inner.lock().bucket.take(self.limits.rate(), now).is_ok()
    }

    /// Returns whether the box may still exchange bytes.
    pub(super) fn has_bytes_left(&self) -> bool {
        self.limits.bytes.is_none_or(|limit| self.exchanged() < limit)
    }

    /// Continues the count from the stored number of bytes.
    pub(super) fn resume(&self, stored: u64) {
        // Of an account that is older than the number, it is a part.
        self.before.fetch_max(stored.saturating_sub(self.counted()), Ordering::Relaxed);
        self.stored.fetch_max(stored, Ordering::Relaxed);
    }

    /// Returns the bytes that are to be stored, if there is a bound on them and some are not stored yet.
    pub(super) fn unstored(&self) -> Option<u64> {
        let exchanged = self.exchanged();
        (self.limits.bytes.is_some() && exchanged > self.stored.load(Ordering::Relaxed)).then_some(exchanged)
    }

    /// Notes that this number of bytes is stored.
    pub(super) fn has_stored(&self, bytes: u64) {
        self.stored.fetch_max(bytes, Ordering::Relaxed);
    }

    fn exchanged(&self) -> u64 {
        self.before.load(Ordering::Relaxed).saturating_add(self.counted())
    }

    fn counted(&self) -> u64 {
        let counts = self.counters.counts();
        counts.bytes_sent.saturating_add(counts.bytes_received)
    }

    /// Counts a connection as open for as long as the result lives.
    pub(super) fn open<'a>(&'a self, totals: &'a Counters) -> impl Drop + use<'a> {
        Open::begin([&self.counters, totals])
    }

    /// Keeps a decision. Returns the number of refusals that an event has to tell of, if one is due.
    pub(super) fn keep(&self, decision: EgressDecision, totals: &Counters) -> Option<u64> {
        self.counters.count(decision.verdict);
        totals.count(decision.verdict);
        let now = self.started.elapsed();
        let mut inner = self.inner.lock();
        let is_denied = decision.verdict == Verdict::Denied;
        if inner.decisions.len() == DECISIONS_MAX {
            inner.decisions.pop_front();
        }
        inner.decisions.push_back(decision);
        if !is_denied {
            return None;
        }
        inner.unsaid += 1;
        if now < inner.next_event {
            return None;
        }
        inner.next_event = now + EVENT_EVERY;
        Some(std::mem::take(&mut inner.unsaid))
    }

    /// Counts bytes, and returns the time to wait until they are within the rate.
    pub(super) fn pass(&self, direction: Direction, bytes: usize, totals: &Counters) -> Duration {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.counters.add(direction, bytes);
        totals.add(direction, bytes);
        let Some(rate) = self.limits.bytes_per_second else { return Duration::ZERO };
        let now = self.started.elapsed();
        let takes = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let mut inner = self.inner.lock();
        inner.next_bytes = inner.next_bytes.max(now) + takes;
        inner.next_bytes - now
    }

    pub(super) fn counts(&self) -> Counts {
        self.counters.counts()
    }

    /// Returns the newest decisions, the newest first.
    pub(super) fn decisions(&self) -> Vec<EgressDecision> {
        self.inner.lock().decisions.iter().rev().cloned().collect()
    }
}

/// Place of an open connection in two accounts.
struct Open<'a>([&'a Counters; 2]);

impl<'a> Open<'a> {
    fn begin(accounts: [&'a Counters; 2]) -> Open<'a> {
        for counters in accounts {
            counters.open.fetch_add(1, Ordering::Relaxed);
        }
        Open(accounts)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        for counters in self.0 {
            counters.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    pub(in crate::egress) const LIMITS: EgressLimits = EgressLimits {
        connections: 4,
        connections_per_second: 3,
        bytes_per_second: Some(1000),
        bytes: Some(1500),
        idle: Duration::from_secs(1),
        connect: Duration::from_secs(1),
    };

    fn decision(verdict: Verdict) -> EgressDecision {
        EgressDecision {
            at: Timestamp::UNIX_EPOCH,
            host: "a.example".to_owned(),
            port: 443,
            address: None,
            verdict,
            reason: None,
        }
    }

    #[test]
    fn refusals_are_told_of_once_a_second_with_their_number() {
        let (ledger, totals) = (Ledger::new(LIMITS), Counters::default());
        assert_eq!(ledger.keep(decision(Verdict::Allowed), &totals), None);
        assert_eq!(ledger.keep(decision(Verdict::Denied), &totals), Some(1));
        assert_eq!(ledger.keep(decision(Verdict::Denied), &totals), None);
        assert_eq!(ledger.keep(decision(Verdict::Failed), &totals), None);
        ledger.inner.lock().next_event = Duration::ZERO;
        assert_eq!(ledger.keep(decision(Verdict::Denied), &totals), Some(2));
        let counts = Counts { allowed: 1, denied: 3, failed: 1, ..Counts::default() };
        assert_eq!((ledger.counts(), totals.counts()), (counts, counts));
    }

    #[test]
    fn only_the_newest_decisions_are_kept() {
        let (ledger, totals) = (Ledger::new(LIMITS), Counters::default());
        for port in 0..250 {
            ledger.keep(EgressDecision { port, ..decision(Verdict::Denied) }, &totals);
        }
        let ports: Vec<u16> = ledger.decisions().iter().map(|decision| decision.port).collect();
        assert_eq!(ports, (150..250).rev().collect::<Vec<u16>>());
    }

    #[test]
    fn connections_and_bytes_have_limits() {
        let (ledger, totals) = (Ledger::new(LIMITS), Counters::default());
        assert!((0..3).all(|_| ledger.may_connect()));
        assert!(!ledger.may_connect());
        let wait = ledger.pass(Direction::Sent, 1000, &totals);
        assert!(wait > Duration::from_millis(900) && wait <= Duration::from_secs(1), "{wait:?}");
        assert!(ledger.has_bytes_left());
        assert!(ledger.pass(Direction::Received, 500, &totals) > wait);
        assert!(!ledger.has_bytes_left());
        assert_eq!(totals.counts().bytes_sent, 1000);
    }

    #[test]
    fn a_connection_counts_as_open_until_its_end() {
        let (ledger, totals) = (Ledger::new(LIMITS), Counters::default());
        let open = ledger.open(&totals);
        assert_eq!((ledger.counts().open, totals.counts().open), (1, 1));
        drop(open);
        assert_eq!((ledger.counts().open, totals.counts().open), (0, 0));
    }
}
