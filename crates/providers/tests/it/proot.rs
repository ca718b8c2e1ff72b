//! Tests of the provider `proot`: its promises, and its reports of what it cannot promise.

mod cleanup;
mod harness;
mod images;
mod isolation;
mod limits;
mod restart;
mod snapshots;
mod suite;
