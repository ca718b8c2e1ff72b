//! Heartbeat in the form in which a control plane gets it.

use crate::control::Heartbeat;

/// Converts an offer of this server to a heartbeat.
pub fn heartbeat(offer: Heartbeat) -> api::Heartbeat {
    api::Heartbeat {
        hostname: Some(offer.hostname),
        status: offer.status.map(|status| status.as_str().to_owned()),
        providers: offer.providers,
        capabilities: offer.capabilities,
        capacity: api::Capacity {
            max_sandboxes: offer.capacity.max_sandboxes,
            max_sandboxes_per_owner: offer.capacity.max_sandboxes_per_owner,
        },
    }
}
