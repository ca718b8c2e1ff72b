//! Tests of the provider `custom` against services that answer badly, late, without end, or not
//! at all. Each time the error has a type, the wait and the memory have a bound, and nothing is
//! left.

mod exec;
pub(crate) mod fake_service;
pub(crate) mod harness;
mod health;
mod pauses;
mod ports;
mod starts;
