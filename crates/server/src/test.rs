//! Tests of the whole service below HTTP, with injected faults.

pub(crate) mod harness;
mod simulation;
