//! The whole service below HTTP, against a world that breaks.

pub(crate) mod lab;
mod simulation;
