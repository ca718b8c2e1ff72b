//! What this server offers, as it is said to a control plane.

use crate::control::Heartbeat;

/// A heartbeat as it is sent.
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
