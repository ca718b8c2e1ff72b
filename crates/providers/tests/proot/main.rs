//! The provider `proot`: what it promises, and that it says what it does not.

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
