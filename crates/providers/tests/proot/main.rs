//! Tests of the provider `proot`: its promises, and its reports of what it cannot promise.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and one tells another what it started")]

mod ground;
mod images;
#[path = "../ground/inside.rs"]
mod inside;
mod limits;
#[path = "../ground/processes.rs"]
mod processes;
mod remains;
mod restart;
mod suite;
mod walls;
