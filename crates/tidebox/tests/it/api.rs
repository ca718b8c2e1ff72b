//! The API, route by route.

mod admission;
mod archives;
mod conformance;
mod disk;
mod errors;
mod exec;
mod files;
mod idempotency;
mod list;
mod quotas;
mod rows;
mod sandboxes;
mod search;
mod sizes;
mod system;
mod templates;
mod watch;

use serde_json::Value;

/// Returns the lifetime with which a sandbox was made, in seconds.
fn lifetime(sandbox: &Value) -> i64 {
    let at = |key: &str| sandbox[key].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    at("expires_at").duration_since(at("created_at")).as_secs()
}
