//! Tests with hostile layers, and with layers that other programs unpack too.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod equal;
mod ground;
mod hostile;
mod imports;
mod random;
mod user;
