//! The API of the service, `/api/v1`: the route table, one file per resource, the conversions of its
//! types, and its description.

mod admin;
mod audit;
mod contexts;
mod diagnostics;
mod egress;
pub mod error;
mod events;
mod exec;
mod files;
mod images;
mod keys;
mod metrics;
mod openapi;
mod output;
mod pauses;
mod pool;
mod ports;
mod previews;
mod processes;
mod providers;
mod quotas;
pub mod routes;
mod sandbox_stats;
mod sandboxes;
mod secrets;
mod snapshots;
mod system;
mod templates;
pub mod wire;
mod workers;
