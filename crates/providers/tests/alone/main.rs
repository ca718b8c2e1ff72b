//! Measurements of time, and of this process's memory. No other test runs at the same time.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent_memory;
mod docker_speed;
#[path = "../it/docker/harness.rs"]
#[expect(dead_code, reason = "the tests of the provider use the rest")]
mod harness;
#[path = "../it/image_store.rs"]
mod image_store;
mod interrupted;
#[path = "../it/native/harness.rs"]
#[expect(dead_code, unused_imports, reason = "the tests of the provider use the rest")]
mod native_harness;
#[path = "../it/processes.rs"]
mod processes;
#[path = "../it/test_box.rs"]
#[expect(dead_code, reason = "the tests of the provider use the rest")]
mod test_box;

use tokio::sync::Mutex;

/// Lock that each test holds while it measures.
static QUIET: Mutex<()> = Mutex::const_new(());
