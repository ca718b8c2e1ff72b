//! Bounds of an answer.

use std::time::Duration;

/// Time after which a call answers, though the work is not done: clients give up after 60 seconds.
pub(crate) const ANSWER_AFTER: Duration = Duration::from_secs(45);
/// Most base64 characters in an answer: clients take at most 1 MiB in one event, and send what they took to a model with
/// every later message.
pub(crate) const BASE64_CHARS_MAX: usize = 900_000;
