//! Connections out of boxes: each is asked for by a box's agent, decided by every policy that
//! applies, and dialled here, so that nothing in the box can get around a policy.

mod account;
mod connection;
mod hello;
mod host_stream;
mod interception;
mod ledger;
mod refused;
mod relay;
mod request_head;
mod resolve;
mod service;
#[cfg(test)]
mod test;

pub use ledger::{Counts, EgressDecision, EgressLimits};
pub use service::{Egress, EgressConfig};
