//! Use of resources, of sandboxes and of the service.

pub(super) mod samples;
pub(super) mod sandbox_stats;
pub(super) mod stats;
