//! Disk space: what another box or snapshot may take, and what is reserved for writes in progress.

pub(super) mod headroom;
pub(super) mod reservations;
