//! Contexts: interpreters that keep their state between runs of code.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::{Environment, Span, StringMap};

/// Language of a context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CodeLanguage {
    /// Python 3, with `IPython` where the sandbox has it.
    #[default]
    Python,
    /// JavaScript, with Node.js.
    JavaScript,
    /// TypeScript, with Node.js 22.13 or later.
    TypeScript,
    /// Bash.
    Bash,
    /// R.
    R,
    /// Java, with `JShell` of a JDK of version 11 or later.
    Java,
}

/// A context to make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ContextRequest {
    /// Language of the context.
    #[serde(default)]
    pub language: CodeLanguage,
    /// Absolute path of the directory to start in; at most 512 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = r"^/[^\x00]*$", max_length = 512)]
    pub workdir: Option<String>,
    /// User to run as: `name`, `uid`, `name:group` or `uid:gid`; the sandbox's default user if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 64)]
    pub user: Option<String>,
    /// Variables added to the sandbox's environment; at most about 3 kB in all.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schema(value_type = Environment)]
    pub env: StringMap,
}

/// A context of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Context {
    /// Id of the context in its sandbox: the name of its language for the default context of that language.
    pub id: String,
    /// Language of the context.
    pub language: CodeLanguage,
    /// State of the context.
    pub state: ContextState,
    /// Directory in which it started, if it was given one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// User that it runs as, if it was given one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Number of the background process that its interpreter is.
    pub process_id: u64,
    /// Time at which its interpreter was started, by the clock of the sandbox.
    #[schema(format = DateTime)]
    pub started_at: String,
}

/// State of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ContextState {
    /// It waits for code.
    Idle,
    /// It runs code.
    Busy,
    /// Its interpreter has ended; the next run starts another, without the state.
    Ended,
}

/// Code to run in a context.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// The code.
    #[schema(pattern = r"^[^\x00]*$")]
    pub code: String,
    /// Language whose default context runs it. With a context in the path, it must be the language of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<CodeLanguage>,
    /// Deadline, such as `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Span>)]
    pub timeout: Option<String>,
    /// Variables of the environment, for this run only.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schema(value_type = Environment)]
    pub env: StringMap,
}

/// A line of the answer to a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RunLine {
    /// The run has begun.
    Started {
        /// Id of the context.
        context_id: String,
        /// Number of runs of the interpreter, with this one.
        execution_count: u64,
        /// True if the interpreter had ended since the last run, so that another was started without its state.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        state_lost: bool,
    },
    /// Output on stdout.
    Stdout {
        /// The output; bytes that are not UTF-8 become U+FFFD.
        text: String,
    },
    /// Output on stderr.
    Stderr {
        /// The output; bytes that are not UTF-8 become U+FFFD.
        text: String,
    },
    /// The value of the last expression, or something displayed.
    Result {
        /// True for the value of the last expression.
        main: bool,
        /// Representations by MIME type: text as it is, binary data in base64, JSON as a value.
        data: Map<String, Value>,
    },
    /// The code failed.
    Error {
        /// Name of the error's type.
        name: String,
        /// Message of the error.
        value: String,
        /// Places where it happened, for people.
        traceback: String,
    },
    /// A result was left out, because the caller holds too much of the server's memory.
    Dropped,
    /// Nothing happened for a while.
    KeepAlive,
    /// The run has ended; the last line.
    End {
        /// Outcome of the run.
        outcome: RunOutcome,
        /// True if the interpreter was replaced because it did not end the code.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        restarted: bool,
        /// Duration of the run, such as `1.5s`.
        duration: String,
    },
}

/// Outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RunOutcome {
    /// The code ended.
    Ok,
    /// The code failed; an `error` line says how.
    Error,
    /// The code was interrupted.
    Interrupted,
    /// The deadline passed: the code was interrupted, and its interpreter replaced if it ran on.
    TimedOut,
    /// The interpreter ended, or its sandbox; an `error` line says how.
    Died,
}

/// Code to complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompleteRequest {
    /// The code.
    #[schema(pattern = r"^[^\x00]*$")]
    pub code: String,
    /// Number of characters before the cursor; the end of the code if absent or behind it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<usize>,
}

/// Completions of code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Completions {
    /// Character of the code with which each match begins.
    pub start: usize,
    /// Texts for what is between `start` and the cursor.
    pub matches: Vec<String>,
}
