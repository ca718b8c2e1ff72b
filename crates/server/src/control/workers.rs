//! Workers: the servers that run sandboxes, and the boxes that they hold.

pub(super) mod box_host;
pub(super) mod inventory;
pub(super) mod placement;
pub(super) mod registry;
pub(super) mod worker_role;
