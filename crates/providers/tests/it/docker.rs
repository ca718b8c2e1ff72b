//! Tests of the provider `docker`, on an Engine that they start.

mod doomed;
mod engine;
pub(crate) mod harness;
mod images;
mod isolation;
mod restart;
mod snapshots;
mod suite;
