//! Messages of a driver.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Longest message of a driver, in bytes. A driver leaves representations out that make it longer.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Message of a driver. [`Message::Begin`] and [`Message::End`] come on stdout and on stderr, the others on stdout.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    /// The kernel accepts requests.
    Ready {
        /// Interpreter with its version, for people.
        version: String,
    },
    /// A run begins; output before it belongs to no run.
    Begin {
        /// Number of the request.
        run: u64,
        /// Number of runs of the kernel, with this one.
        count: u64,
    },
    /// A value, or something displayed.
    Result {
        /// Number of the request.
        run: u64,
        /// True for the value of the last expression, false for what the code displayed.
        #[serde(default)]
        main: bool,
        /// Representations by MIME type: text as it is, binary data in base64, JSON as a value.
        data: Map<String, Value>,
    },
    /// The code failed.
    Error {
        /// Number of the request.
        run: u64,
        /// Name of the error's type.
        name: String,
        /// Its message.
        value: String,
        /// Places where it happened, for people, without colors.
        traceback: String,
    },
    /// Completions of the text before the cursor.
    Completions {
        /// Number of the request.
        run: u64,
        /// Character of the code with which each match begins.
        start: usize,
        /// Texts for what is between `start` and the cursor.
        matches: Vec<String>,
    },
    /// The request was handled; what comes after it belongs to no run.
    End {
        /// Number of the request.
        run: u64,
    },
}
