//! Tests against a fake process of Firecracker, and what they can ask against a real one.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod api;
mod fake;
mod guest;
mod likeness;
mod process;
mod vsock;
