//! The Tidebox service: the HTTP API in front, the rules applied behind it, and
//! the reconcilers that finish what a crash left.

mod admission;
mod app;
mod audit;
mod auth;
mod budget;
pub mod config;
mod control;
mod egress;
mod events;
mod heartbeat;
mod hop_by_hop;
mod http;
mod operation_metrics;
mod owner_keys;
mod port_watch;
mod process;
mod provider_registry;
mod rate_limit;
mod reconcile;
mod remote_workers;
mod run;
mod secrets;
mod shutdown;
mod stats;
#[cfg(test)]
mod test;
pub mod worker_token;

pub use process::{Memory, VERSION};
pub use run::{Failure, Options, run};
