//! Probe of the host: its result, and the boxes that it makes.

use std::time::Duration;

use domain::{Resources, SandboxId};

use super::image::HOST;
use crate::Spec;

/// Size of a probe's box, which is small and ends by itself soon if the server does not end it.
pub(crate) const SIZE: Resources = Resources { memory_mb: 64, vcpus: 1, disk_mb: 0, pids: 16 };
const LIFETIME: Duration = Duration::from_secs(60);

/// Returns the id of a probe's box: all bits set, which random ids do not hit.
pub(crate) fn probe_id() -> SandboxId {
    SandboxId::from_entropy([0xff; 10])
}

/// Returns the spec of a probe's box.
pub(crate) fn probe_spec(resources: &Resources) -> Spec {
    Spec {
        image: HOST.to_owned(),
        resources: *resources,
        entrypoint: false,
        metadata: Default::default(),
        lifetime: LIFETIME,
        egress: Vec::new(),
        trust: None,
        snapshot: None,
        is_copy: false,
        asker: None,
    }
}

/// Result of a probe, with the backend's capabilities `C` on this host.
#[derive(Debug, Clone)]
pub struct Probe<C> {
    /// Capabilities; `None` if no box can be made.
    pub(crate) can: Option<C>,
    /// Reason why no box can be made, with advice for the operator.
    pub(crate) error: Option<String>,
    /// Missing features, a sentence each.
    pub(crate) missing: Vec<String>,
    /// Version of the program that the boxes are made with, if it is not the server's own.
    pub(crate) version: Option<String>,
}

impl<C> Default for Probe<C> {
    fn default() -> Self {
        Probe { can: None, error: None, missing: Vec::new(), version: None }
    }
}
