//! Rate limit: a bucket of tokens for each caller.
//!
//! The identity of a caller is kept as a salted hash only. The number of buckets is bounded, and
//! a bucket is forgotten only once it is full again, when it is equal to a new one: so made-up
//! callers cannot push out another caller's empty bucket and have it come back full. Callers for
//! which there is no room share buckets by their address.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::ops::Bound;
use std::time::{Duration, Instant};

use domain::{Bucket, Empty, OwnerId, Rate};
use parking_lot::{Mutex, MutexGuard};
use sha2::{Digest, Sha256};

use crate::auth::KeyId;
use crate::config::{self, RateKey};
use crate::stats;

/// The most callers with a bucket of their own: about 10 MB.
const BUCKETS_MAX: usize = 65_536;
/// Number of buckets that all others share, by address.
const SHARED_BUCKETS: usize = 1024;
/// The most buckets that are checked under one lock, so that no request waits for long.
const PRUNED_AT_ONCE: usize = 1024;
/// Least time between two reports of refused requests.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Identity whose bucket a request takes from.
#[derive(Clone, Copy)]
pub enum Caller<'a> {
    Owner(&'a OwnerId),
    /// Holder of this key.
    Key(&'a KeyId),
    /// Client at this address; `None` on the Unix socket.
    Address(Option<IpAddr>),
    /// Attempts to get in without the right key, from this address.
    Attempts(Option<IpAddr>),
    /// Attempts to pass for a worker, from this address.
    WorkerAttempts(Option<IpAddr>),
}

/// Refusal of a request that comes too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooFast {
    /// Time that the caller has to wait.
    pub wait: Duration,
    /// Number of requests refused since the last report, if the next one is due.
    pub untold: Option<u64>,
}

/// The buckets of all callers.
pub struct RateLimiter {
    rate: Rate,
    key_by: RateKey,
    bucket_ttl: Duration,
    cleanup_interval: Duration,
    buckets_max: usize,
    started: Instant,
    /// Salt of the hashes. Without it, a list of known owners or addresses would reveal the
    /// caller behind a hash.
    salt: [u8; 32],
    state: Mutex<State>,
}

/// Salted hash of a caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key([u8; 16]);

struct State {
    buckets: HashMap<Key, Kept>,
    /// The same buckets, by the time at which they are full.
    by_full: BTreeSet<(Duration, Key)>,
    shared: Vec<Bucket>,
    stats: stats::RateLimit,
    untold: u64,
    told_at: Option<Duration>,
}

struct Kept {
    bucket: Bucket,
    full_at: Duration,
    asked_at: Duration,
}

impl RateLimiter {
    /// Returns the limiter of this configuration; `None` if there is no limit.
    #[must_use]
    pub fn new(config: &config::RateLimit) -> Option<Self> {
        config.enabled.then(|| Self::with_room(config, BUCKETS_MAX))
    }

    fn with_room(config: &config::RateLimit, buckets_max: usize) -> Self {
        let rate = rate(config);
        let state = State {
            buckets: HashMap::new(),
            by_full: BTreeSet::new(),
            shared: vec![Bucket::full(rate, Duration::ZERO); SHARED_BUCKETS],
            stats: stats::RateLimit::default(),
            untold: 0,
            told_at: None,
        };
        Self {
            rate,
            key_by: config.key_by,
            bucket_ttl: config.bucket_ttl,
            cleanup_interval: config.cleanup_interval,
            buckets_max,
            started: Instant::now(),
            salt: rand::random(),
            state: Mutex::new(state),
        }
    }

    /// Returns the identity by which requests share a bucket.
    #[must_use]
    pub fn key_by(&self) -> RateKey {
        self.key_by
    }

    /// Returns the number of requests that a caller may make in a minute.
    #[must_use]
    pub fn per_minute(&self) -> u32 {
        self.rate.per_minute.get()
    }

    /// Takes a token of `caller`, who is at `address`, and returns how many are left.
    ///
    /// # Errors
    /// [`TooFast`] if there is none.
    pub fn take(&self, caller: Caller, address: Option<IpAddr>) -> Result<u32, TooFast> {
        self.take_at(caller, address, self.started.elapsed())
    }

    /// Checks that `caller` has a token left.
    ///
    /// # Errors
    /// [`TooFast`] if there is none.
    pub fn look(&self, caller: Caller, address: Option<IpAddr>) -> Result<(), TooFast> {
        self.look_at(caller, address, self.started.elapsed())
    }

    /// Returns its counts since the start.
    #[must_use]
    pub fn stats(&self) -> stats::RateLimit {
        let state = self.lock();
        stats::RateLimit { active_buckets: state.buckets.len() as u64, ..state.stats }
    }

    /// Forgets idle callers at regular intervals, forever.
    pub async fn keep_small(&self) {
        loop {
            tokio::time::sleep(self.cleanup_interval).await;
            self.prune_at(self.started.elapsed());
        }
    }

    fn take_at(&self, caller: Caller, address: Option<IpAddr>, now: Duration) -> Result<u32, TooFast> {
        let key = self.key(caller);
        let state = &mut *self.lock();
        let taken = if state.has_room_for(key, self.buckets_max, now) {
            state.take(key, self.rate, now)
        } else {
            let shared = self.shared(address);
            state.shared[shared].take(self.rate, now)
        };
        if taken.is_ok() {
            state.stats.allowed_total += 1;
        }
        taken.map_err(|empty| state.refuse(empty, now))
    }

    fn look_at(&self, caller: Caller, address: Option<IpAddr>, now: Duration) -> Result<(), TooFast> {
        let key = self.key(caller);
        let state = &mut *self.lock();
        let looked = if let Some(kept) = state.buckets.get_mut(&key) {
            kept.bucket.look(self.rate, now)
        } else if state.buckets.len() < self.buckets_max {
            return Ok(());
        } else {
            let shared = self.shared(address);
            state.shared[shared].look(self.rate, now)
        };
        looked.map(drop).map_err(|empty| state.refuse(empty, now))
    }

    fn prune_at(&self, now: Duration) {
        let mut from = Bound::Unbounded;
        loop {
            let state = &mut *self.lock();
            // Buckets that are not full yet must stay, however long they are idle.
            let full = state.by_full.range((from, Bound::Included((now, Key([u8::MAX; 16])))));
            let full: Vec<(Duration, Key)> = full.take(PRUNED_AT_ONCE).copied().collect();
            let Some(last) = full.last() else { return };
            from = Bound::Excluded(*last);
            for (full_at, key) in full {
                let kept = state.buckets.get(&key);
                if kept.is_some_and(|kept| kept.asked_at.saturating_add(self.bucket_ttl) <= now) {
                    state.forget(full_at, key);
                }
            }
        }
    }

    fn key(&self, caller: Caller) -> Key {
        let mut hash = Sha256::new().chain_update(self.salt);
        match caller {
            Caller::Owner(owner) => hash.update([b"o", owner.as_str().as_bytes()].concat()),
            Caller::Key(key) => hash.update([b"k", key.as_str().as_bytes()].concat()),
            Caller::Address(address) => hash.update([&b"a"[..], &octets(address)].concat()),
            Caller::Attempts(address) => hash.update([&b"t"[..], &octets(address)].concat()),
            Caller::WorkerAttempts(address) => hash.update([&b"w"[..], &octets(address)].concat()),
        }
        let mut key = [0; 16];
        key.copy_from_slice(&hash.finalize()[..16]);
        Key(key)
    }

    /// Returns which of the shared buckets is that of `address`.
    fn shared(&self, address: Option<IpAddr>) -> usize {
        let Key([high, low, ..]) = self.key(Caller::Address(address));
        usize::from(u16::from_be_bytes([high, low])) % SHARED_BUCKETS
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Output of the rate alone: not even the hashes of callers belong in a log.
impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("rate", &self.rate).finish_non_exhaustive()
    }
}

impl State {
    /// Returns whether `key` has a bucket, or may have a new one.
    fn has_room_for(&mut self, key: Key, buckets_max: usize, now: Duration) -> bool {
        if self.buckets.len() < buckets_max || self.buckets.contains_key(&key) {
            return true;
        }
        match self.by_full.first().copied() {
            Some((full_at, idle)) if full_at <= now => {
                self.forget(full_at, idle);
                true
            }
            _ => false,
        }
    }

    fn take(&mut self, key: Key, rate: Rate, now: Duration) -> Result<u32, Empty> {
        let kept = self.buckets.entry(key).or_insert_with(|| {
            let bucket = Bucket::full(rate, now);
            Kept { bucket, full_at: bucket.full_at(rate), asked_at: now }
        });
        let taken = kept.bucket.take(rate, now);
        let before = std::mem::replace(&mut kept.full_at, kept.bucket.full_at(rate));
        kept.asked_at = kept.asked_at.max(now);
        self.by_full.remove(&(before, key));
        self.by_full.insert((kept.full_at, key));
        taken
    }

    fn forget(&mut self, full_at: Duration, key: Key) {
        self.by_full.remove(&(full_at, key));
        self.buckets.remove(&key);
        self.stats.evicted_total += 1;
    }

    fn refuse(&mut self, empty: Empty, now: Duration) -> TooFast {
        self.stats.limited_total += 1;
        self.untold += 1;
        let is_due = self.told_at.is_none_or(|told| told.saturating_add(TELL_EVERY) <= now);
        let untold = is_due.then(|| std::mem::take(&mut self.untold));
        if is_due {
            self.told_at = Some(now);
        }
        TooFast { wait: empty.wait, untold }
    }
}

/// Returns the rate of a configuration.
fn rate(config: &config::RateLimit) -> Rate {
    Rate { per_minute: at_least_one(config.requests_per_minute), burst: at_least_one(config.burst) }
}

fn at_least_one(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}

/// Returns bytes that differ for any two addresses, and for none.
fn octets(address: Option<IpAddr>) -> Vec<u8> {
    match address {
        None => Vec::new(),
        Some(IpAddr::V4(address)) => address.octets().to_vec(),
        Some(IpAddr::V6(address)) => address.octets().to_vec(),
    }
}

#[cfg(test)]
mod test;
