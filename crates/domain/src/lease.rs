//! Leases: the right of one worker to act on a resource until an expiry.
//!
//! ```text
//!            grant               renew (holder, unexpired)
//! never ──────────────▶ held ◀──────────────┐
//!                        │ └────────────────┘
//!                        │ time
//!                        ▼
//!                     expired ──grant──▶ held, by the one that asked
//! ```
//!
//! Each step raises the generation. A writer sends its generation, and a receiver refuses one older
//! than it has seen, so that a holder that was away cannot undo later writes.

use std::time::Duration;

use jiff::Timestamp;

use crate::WorkerId;

/// The right of a worker to act on a resource, until an expiry.
///
/// Every grant and renewal raises the generation. A writer sends its generation, and a receiver
/// refuses one older than it has seen, so that a holder that was away cannot undo later writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Resource: the id of a sandbox.
    pub resource: String,
    /// Worker that holds the lease.
    pub holder: WorkerId,
    /// Generation, from 1: rises with every grant and renewal.
    pub generation: u64,
    /// Instant from which the lease is expired.
    pub expires_at: Timestamp,
}

/// The reason for refusing a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefused {
    /// No lease was ever granted, or it was given back.
    #[error("there is no lease on this resource")]
    Missing,
    /// Another worker holds the lease.
    #[error("the lease is held by another worker")]
    Held,
    /// The lease of the caller has expired.
    #[error("the lease has expired")]
    Expired,
}

impl Lease {
    /// Grants a lease to `holder` for `ttl` from `now`, in place of the lease `before`.
    ///
    /// # Errors
    /// [`LeaseRefused::Held`] while another worker holds `before`, unexpired.
    pub fn grant(
        before: Option<&Lease>,
        resource: &str,
        holder: &WorkerId,
        now: Timestamp,
        ttl: Duration,
    ) -> Result<Lease, LeaseRefused> {
        let first = Lease::first(resource, holder, now, ttl);
        match before {
            None => Ok(first),
            Some(lease) if lease.is_valid(now) && lease.holder != *holder => Err(LeaseRefused::Held),
            Some(lease) => Ok(Lease { generation: lease.generation + 1, ..first }),
        }
    }

    /// Creates the first lease on a resource, of generation 1.
    #[must_use]
    pub fn first(resource: &str, holder: &WorkerId, now: Timestamp, ttl: Duration) -> Lease {
        Lease { resource: resource.to_owned(), holder: holder.clone(), generation: 1, expires_at: later(now, ttl) }
    }

    /// Moves a lease to `holder`, also if it is unexpired: only for a lease `before` whose holder
    /// never learned of it, and so has nothing to give back.
    #[must_use]
    pub fn pass_on(before: Option<&Lease>, resource: &str, holder: &WorkerId, now: Timestamp, ttl: Duration) -> Lease {
        let generation = before.map_or(1, |lease| lease.generation + 1);
        Lease { generation, ..Lease::first(resource, holder, now, ttl) }
    }

    /// Renews the lease `found`, of `holder`, for `ttl` from `now`; may shorten it.
    ///
    /// # Errors
    /// [`LeaseRefused`] if there is no lease, another worker holds it, or it has expired.
    pub fn renew(
        found: Option<&Lease>,
        holder: &WorkerId,
        now: Timestamp,
        ttl: Duration,
    ) -> Result<Lease, LeaseRefused> {
        let lease = found.ok_or(LeaseRefused::Missing)?;
        if lease.holder != *holder {
            return Err(LeaseRefused::Held);
        }
        if !lease.is_valid(now) {
            return Err(LeaseRefused::Expired);
        }
        Ok(Lease { generation: lease.generation + 1, expires_at: later(now, ttl), ..lease.clone() })
    }

    /// Returns whether the lease is unexpired at `now`.
    #[must_use]
    pub fn is_valid(&self, now: Timestamp) -> bool {
        now < self.expires_at
    }
}

fn later(now: Timestamp, ttl: Duration) -> Timestamp {
    let ms = now.as_millisecond().saturating_add(i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX));
    Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(ms).unwrap()
    }

    fn worker(n: u8) -> WorkerId {
        WorkerId::parse(&format!("w{n}")).unwrap()
    }

    const TTL: Duration = Duration::from_millis(100);

    #[test]
    fn a_lease_is_renewed_by_its_holder_while_it_lasts() {
        let lease = Lease::grant(None, "sb", &worker(1), at(0), TTL).unwrap();
        assert_eq!((lease.generation, lease.expires_at), (1, at(100)));
        let renewed = Lease::renew(Some(&lease), &worker(1), at(99), TTL).unwrap();
        assert_eq!((renewed.generation, renewed.expires_at), (2, at(199)));
    }

    #[test]
    fn nobody_else_renews_it_and_nobody_once_it_is_over() {
        let lease = Lease::grant(None, "sb", &worker(1), at(0), TTL).unwrap();
        assert_eq!(Lease::renew(Some(&lease), &worker(2), at(1), TTL), Err(LeaseRefused::Held));
        assert_eq!(Lease::renew(Some(&lease), &worker(1), at(100), TTL), Err(LeaseRefused::Expired));
        assert_eq!(Lease::renew(Some(&lease), &worker(2), at(100), TTL), Err(LeaseRefused::Held));
        assert_eq!(Lease::renew(None, &worker(1), at(0), TTL), Err(LeaseRefused::Missing));
    }

    #[test]
    fn it_is_taken_over_only_once_it_is_over() {
        let lease = Lease::grant(None, "sb", &worker(1), at(0), TTL).unwrap();
        assert_eq!(Lease::grant(Some(&lease), "sb", &worker(2), at(99), TTL), Err(LeaseRefused::Held));
        let taken = Lease::grant(Some(&lease), "sb", &worker(2), at(100), TTL).unwrap();
        assert_eq!((taken.holder, taken.generation), (worker(2), 2));
    }

    proptest! {
        #[test]
        fn a_generation_never_goes_back_and_two_holders_are_never_both_valid(
            steps in prop::collection::vec((any::<bool>(), 0u8..3, 0i64..80, 1u64..150), 1..60)
        ) {
            let mut stored: Option<Lease> = None;
            // The last lease that each worker received, which is all it knows.
            let mut known: Vec<Option<Lease>> = vec![None; 3];
            let mut now_ms = 0;
            for (grants, who, passed_ms, ttl_ms) in steps {
                now_ms += passed_ms;
                let (now, holder, ttl) = (at(now_ms), worker(who), Duration::from_millis(ttl_ms));
                let got = if grants {
                    Lease::grant(stored.as_ref(), "sb", &holder, now, ttl)
                } else {
                    Lease::renew(stored.as_ref(), &holder, now, ttl)
                };
                if let Ok(lease) = got {
                    let before = stored.as_ref().map_or(0, |lease| lease.generation);
                    prop_assert_eq!(lease.generation, before + 1);
                    prop_assert_eq!(&lease.holder, &holder);
                    prop_assert!(lease.is_valid(now));
                    known[usize::from(who)] = Some(lease.clone());
                    stored = Some(lease);
                }
                let valid = known.iter().flatten().filter(|lease| lease.is_valid(now)).count();
                prop_assert!(valid <= 1, "{known:?} at {now_ms}");
            }
        }
    }
}
