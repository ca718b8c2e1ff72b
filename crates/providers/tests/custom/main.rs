//! Tests of the provider `custom` against services that answer badly, late, without end, or not
//! at all. Each time the error has a type, the wait and the memory have a bound, and nothing is
//! left.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod exec;
mod ground;
mod health;
mod rogue;
mod starts;
