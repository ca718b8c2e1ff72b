//! Connections that are not made.

use std::net::IpAddr;

use providers::EgressReason;

use super::ledger::Verdict;

/// A connection that is not made.
pub(super) struct Refused {
    pub(super) verdict: Verdict,
    pub(super) reason: EgressReason,
    pub(super) words: String,
    pub(super) address: Option<IpAddr>,
}

impl Refused {
    pub(super) fn denied(words: impl ToString, address: Option<IpAddr>) -> Refused {
        Refused { verdict: Verdict::Denied, reason: EgressReason::Denied, words: words.to_string(), address }
    }

    pub(super) fn busy(words: String) -> Refused {
        Refused { verdict: Verdict::Denied, reason: EgressReason::Busy, words, address: None }
    }

    pub(super) fn failed(reason: EgressReason, words: impl ToString, address: Option<IpAddr>) -> Refused {
        Refused { verdict: Verdict::Failed, reason, words: words.to_string(), address }
    }
}
