//! Tests of the provider `native`, attacked from inside its boxes and from outside.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and one tells another what it started")]

mod burst;
mod ground;
mod hostile;
mod images;
#[path = "../ground/inside.rs"]
mod inside;
mod limits;
mod powers;
#[path = "../ground/processes.rs"]
mod processes;
mod remains;
mod restart;
mod shares;
mod slots;
mod suite;
mod walls;
