//! The small shell of a mock box.

mod builtins;
mod parse;
pub(super) mod run;
mod state;
mod streams;

/// Commands that a mock box has.
pub const COMMANDS: &[&str] = &[
    ":", "[", "cat", "cd", "chmod", "echo", "env", "exit", "export", "false", "head", "id", "kill", "ln", "ls",
    "mkdir", "mv", "nohup", "printenv", "printf", "pwd", "rm", "seq", "setsid", "sh", "sleep", "tee", "test", "touch",
    "true", "wc", "whoami", "yes",
];
