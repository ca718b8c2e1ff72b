//! Workers, and the choice of one for a sandbox.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use crate::admission::is_reached;

/// Maximum length of an id, in bytes.
const ID_BYTES_MAX: usize = 128;

/// Identifier of a worker: 1 to 128 letters, digits, `.`, `_` or `-` (not `.` or `..`), so that it
/// fits a path, a header and a configuration key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(String);

/// A text that is not a worker id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a worker id is 1 to 128 letters, digits, `.`, `_` or `-`, and neither `.` nor `..`")]
pub struct InvalidWorkerId;

impl WorkerId {
    /// Reads an id.
    ///
    /// # Errors
    /// [`InvalidWorkerId`] describes a valid one.
    pub fn parse(text: &str) -> Result<Self, InvalidWorkerId> {
        let fits = (1..=ID_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
            && !matches!(text, "." | "..");
        if fits { Ok(Self(text.to_owned())) } else { Err(InvalidWorkerId) }
    }

    /// Returns the id of the server itself, which no other worker may take.
    #[must_use]
    pub fn local() -> Self {
        Self("local".to_owned())
    }

    /// Returns whether the id is that of the server itself.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.0 == "local"
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// State that a worker reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkerStatus {
    /// The worker accepts sandboxes.
    Online,
    /// The worker keeps the sandboxes that it has and accepts no more.
    Draining,
    /// The worker cannot run sandboxes.
    Unhealthy,
}

impl WorkerStatus {
    /// All states that a worker can report.
    pub const ALL: [WorkerStatus; 3] = [WorkerStatus::Online, WorkerStatus::Draining, WorkerStatus::Unhealthy];

    /// Returns the state's name in the API and in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            WorkerStatus::Online => "online",
            WorkerStatus::Draining => "draining",
            WorkerStatus::Unhealthy => "unhealthy",
        }
    }

    /// Reads a name that [`WorkerStatus::as_str`] wrote; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

/// Maximum number of active sandboxes that a worker accepts; 0 means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Maximum over all owners together.
    pub max_sandboxes: u64,
    /// Maximum for any one owner.
    pub max_sandboxes_per_owner: u64,
}

/// Returns whether a worker whose last heartbeat was at `last_heartbeat` has been silent for
/// `after` or longer.
#[must_use]
pub fn is_stale(last_heartbeat: Timestamp, now: Timestamp, after: Duration) -> bool {
    let silent_ms = now.as_millisecond().saturating_sub(last_heartbeat.as_millisecond());
    u128::try_from(silent_ms).is_ok_and(|silent_ms| silent_ms >= after.as_millis())
}

/// A worker, as the placement of a sandbox sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Id of the worker.
    pub id: WorkerId,
    /// State that it reports.
    pub status: WorkerStatus,
    /// True if its last heartbeat is too old.
    pub stale: bool,
    /// True if it has the requested provider.
    pub offers: bool,
    /// Maximum load that it accepts.
    pub capacity: Capacity,
    /// Number of active sandboxes that it runs.
    pub active: u64,
    /// Number of those that belong to the requesting owner; `None` without an owner.
    pub owner_active: Option<u64>,
}

impl Candidate {
    /// Returns whether the worker may run one more sandbox: it is online, not stale, has the
    /// provider and is below its capacity. The server's own capacity for one owner does not count
    /// here, since quotas override it.
    #[must_use]
    pub fn is_eligible(&self) -> bool {
        // The server's own capacity for one owner is a default that quotas override.
        let owner_cap = if self.id.is_local() { 0 } else { self.capacity.max_sandboxes_per_owner };
        self.status == WorkerStatus::Online
            && !self.stale
            && self.offers
            && !is_reached(self.capacity.max_sandboxes, self.active)
            && !self.owner_active.is_some_and(|used| is_reached(owner_cap, used))
    }
}

/// Returns the eligible worker with the fewest active sandboxes; of several, the first by id;
/// `None` if none is eligible.
#[must_use]
pub fn choose(candidates: &[Candidate]) -> Option<&WorkerId> {
    let eligible = candidates.iter().filter(|candidate| candidate.is_eligible());
    eligible.min_by_key(|candidate| (candidate.active, &candidate.id)).map(|candidate| &candidate.id)
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn candidate(id: &str, active: u64) -> Candidate {
        Candidate {
            id: WorkerId::parse(id).unwrap(),
            status: WorkerStatus::Online,
            stale: false,
            offers: true,
            capacity: Capacity::default(),
            active,
            owner_active: None,
        }
    }

    fn capacity(max_sandboxes: u64, max_sandboxes_per_owner: u64) -> Capacity {
        Capacity { max_sandboxes, max_sandboxes_per_owner }
    }

    #[track_caller]
    fn check(candidates: &[Candidate], expected: Option<&str>) {
        assert_eq!(choose(candidates).map(WorkerId::as_str), expected);
    }

    #[test]
    fn worker_ids_are_fit_for_a_path() {
        for text in ["w1", "local", "a.b_c-D", &"x".repeat(128)] {
            assert_eq!(WorkerId::parse(text).unwrap().as_str(), text);
        }
        for text in ["", ".", "..", "a/b", "a b", "ä", "a\0", "a%2f", "a:b", &"x".repeat(129)] {
            assert_eq!(WorkerId::parse(text), Err(InvalidWorkerId), "{text}");
        }
    }

    #[test]
    fn a_worker_is_stale_when_it_has_been_silent_for_so_long() {
        let at = |ms| Timestamp::from_millisecond(ms).unwrap();
        let after = Duration::from_secs(120);
        assert!(!is_stale(at(0), at(119_999), after));
        assert!(is_stale(at(0), at(120_000), after));
        assert!(!is_stale(at(500_000), at(0), after), "one that is ahead of us is not silent");
    }

    #[test]
    fn the_one_with_the_fewest_active_sandboxes_is_chosen() {
        check(&[candidate("a", 3), candidate("b", 1), candidate("c", 2)], Some("b"));
        check(&[], None);
    }

    #[test]
    fn ties_are_broken_by_id() {
        check(&[candidate("w2", 1), candidate("local", 1), candidate("w1", 1)], Some("local"));
    }

    #[test]
    fn who_is_not_online_or_stale_or_lacks_the_provider_or_is_full_is_not_chosen() {
        let busy = candidate("z", 9);
        let passed_over = [
            Candidate { status: WorkerStatus::Draining, ..candidate("a", 0) },
            Candidate { status: WorkerStatus::Unhealthy, ..candidate("b", 0) },
            Candidate { stale: true, ..candidate("c", 0) },
            Candidate { offers: false, ..candidate("d", 0) },
            Candidate { capacity: capacity(5, 0), ..candidate("e", 5) },
            Candidate { capacity: capacity(0, 2), owner_active: Some(2), ..candidate("f", 2) },
        ];
        for one in &passed_over {
            check(std::slice::from_ref(one), None);
            check(&[one.clone(), busy.clone()], Some("z"));
        }
        check(&[Candidate { capacity: capacity(5, 2), owner_active: Some(1), ..candidate("g", 4) }], Some("g"));
        check(&[Candidate { capacity: capacity(0, 2), ..candidate("h", 4) }], Some("h"));
    }

    #[test]
    fn the_servers_own_capacity_for_an_owner_is_left_to_quotas() {
        check(&[Candidate { capacity: capacity(0, 2), owner_active: Some(7), ..candidate("local", 7) }], Some("local"));
    }

    proptest! {
        #[test]
        fn whoever_is_chosen_is_eligible_and_nobody_eligible_has_fewer(
            actives in prop::collection::vec((0u64..4, 0u64..4, any::<bool>(), any::<bool>()), 0..8)
        ) {
            let candidates: Vec<Candidate> = actives.into_iter().enumerate().map(|(n, (active, cap, stale, offers))| {
                Candidate { capacity: capacity(cap, 0), stale, offers, ..candidate(&format!("w{n}"), active) }
            }).collect();
            let eligible: Vec<&Candidate> = candidates.iter().filter(|one| one.is_eligible()).collect();
            match choose(&candidates) {
                None => prop_assert!(eligible.is_empty()),
                Some(id) => {
                    let chosen = eligible.iter().find(|one| one.id == *id);
                    prop_assert!(chosen.is_some_and(|chosen| eligible.iter().all(|one| one.active >= chosen.active)));
                }
            }
        }
    }
}
