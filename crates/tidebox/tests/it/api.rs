//! The API, route by route.

mod admission;
mod conformance;
mod errors;
mod exec;
mod files;
mod idempotency;
mod list;
mod quotas;
mod sandboxes;
mod system;
mod templates;
