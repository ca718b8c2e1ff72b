//! The small shell of a mock box.

mod builtins;
mod parse;
pub(super) mod run;
mod state;
mod streams;

/// Commands that a mock box has: those that the conformance suite and the documentation use.
pub const COMMANDS: &[&str] = &[
    ":", "[", "cat", "cd", "chmod", "echo", "env", "exit", "false", "head", "kill", "ln", "ls", "mkdir", "printenv",
    "printf", "pwd", "read", "rm", "seq", "setsid", "sh", "sleep", "test", "touch", "true", "wc", "yes",
];
