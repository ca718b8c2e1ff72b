//! The provider `proot`: what it promises, and that it says what it does not.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, and one tells another what it started")]

mod ground;
mod images;
mod limits;
mod remains;
mod restart;
mod suite;
mod walls;
