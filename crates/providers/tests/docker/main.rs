//! Tests of the provider `docker`, on an Engine that they start.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and one tells another what it started")]

mod engine;
mod ground;
mod images;
#[path = "../ground/inside.rs"]
mod inside;
mod restart;
mod speed;
mod suite;
mod walls;
