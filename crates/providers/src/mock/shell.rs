//! The small shell of a mock box.

mod builtins;
mod interpreter;
mod parse;
pub(super) mod run;
mod state;
mod streams;
