//! Tests of the providers: each alone on a real host, Engine or service, and the guest over a byte
//! stream with agents that lie. What measures memory or time is in the program `alone`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and one tells another what it started")]

mod agent;
mod bridge;
mod custom;
mod docker;
mod e2b;
mod firecracker;
mod image_store;
mod mock;
mod native;
mod processes;
mod proot;
mod test_box;
