//! The front for E2B's SDKs: their control plane, and the data plane of each sandbox, on the same port as the API.
//!
//! It translates requests and answers, and calls the control like the other fronts; `docs/use/e2b.md` says what
//! differs from E2B. [`address`] finds out whom a request is for, [`admission`] checks the token of a sandbox, and
//! [`routes`] has a table for each plane.

pub mod address;
pub mod admission;
mod builds;
pub mod connect;
pub mod error;
mod files;
mod filesystem;
mod in_box;
pub mod interpreter;
mod network;
mod paging;
mod process;
mod proto_json;
mod query;
pub mod routes;
mod sandboxes;
mod signature;
mod snapshots;
mod templates;
pub mod upload_link;
mod user;
mod wire;
