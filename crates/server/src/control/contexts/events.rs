//! Requests for runs, and the events of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value};

use super::streams::Stream;
use crate::budget::Reservation;
use crate::control::error::{Error, Result};

/// Code to run.
#[derive(Debug, Clone)]
pub struct CodeRequest {
    pub code: String,
    /// Variables of the environment, for this run only.
    pub env: BTreeMap<String, String>,
    pub deadline: Deadline,
}

impl CodeRequest {
    /// Checks what every language would choke on.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a NUL, and for a name that no variable can have.
    pub(super) fn check(&self) -> Result<()> {
        check_code(&self.code)?;
        let is_variable = |(name, value): (&String, &String)| {
            !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0')
        };
        if !self.env.iter().all(is_variable) {
            let fault = "a variable in `env` (`env_vars`) needs a name without `=`, and neither may contain a NUL";
            return Err(Error::Invalid(fault.to_owned()));
        }
        Ok(())
    }
}

/// Checks code.
///
/// # Errors
/// [`Error::Invalid`] for a NUL.
pub(super) fn check_code(code: &str) -> Result<()> {
    if code.contains('\0') {
        return Err(Error::Invalid("`code` contains a NUL, which no language takes; remove it".to_owned()));
    }
    Ok(())
}

/// Deadline of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deadline {
    /// The default of commands.
    Default,
    /// As long as commands may run.
    Longest,
    After(Duration),
}

/// Name of the error that tells that the interpreter ended.
pub const DIED: &str = "KernelDied";

/// Event of a run. The last one is [`RunEvent::End`] or [`RunEvent::Cut`].
#[derive(Debug)]
pub enum RunEvent {
    Started {
        /// Number of runs of the interpreter, with this one.
        count: u64,
        /// True if the interpreter had ended, so that another was started without the state.
        is_new: bool,
    },
    Output(Stream, Bytes),
    /// A value, or something displayed.
    Result {
        /// True for the value of the last expression.
        is_main: bool,
        /// Representations by MIME type: text as it is, binary data in base64, JSON as a value.
        data: Map<String, Value>,
        held: Reservation,
    },
    Error {
        name: String,
        value: String,
        traceback: String,
        held: Reservation,
    },
    /// A result was left out, because the caller holds too much memory.
    Dropped,
    /// Completions of a text.
    Completions {
        start: usize,
        matches: Vec<String>,
    },
    End(RunEnd),
    /// The box or its provider failed.
    Cut(providers::Error),
}

/// End of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunEnd {
    pub outcome: Outcome,
    /// True if the interpreter was replaced because it did not end the code.
    pub restarted: bool,
    pub duration: Duration,
}

/// Outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The code failed.
    Failed,
    /// The code was interrupted by a request, and ended.
    Interrupted,
    /// The deadline passed.
    TimedOut,
    /// The interpreter ended, or was ended by a request.
    Died,
}
