//! The whole service below HTTP, against a world that breaks.

mod simulation;
