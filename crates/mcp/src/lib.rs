//! Server of the Model Context Protocol: tools by which a model works in sandboxes.
//!
//! It is a client of Tidebox's API and holds no rights of its own. Over stdio it acts with one key, and makes a sandbox
//! for calls that name none; over HTTP, where the protocol has no sessions, each request brings its key, and names its
//! sandbox. The protocol is that of [2026-07-28](https://modelcontextprotocol.io/specification/2026-07-28) and of the
//! versions before it.
//!
//! Results are text and images, and never structured: clients show a model one of both.

mod arguments;
mod failure;
mod handler;
mod home;
mod http;
mod resources;
mod text;
mod tools;

use std::time::Duration;

pub use failure::Failure;
pub use handler::Server;
pub use http::{Listener, ListenerOptions};

/// Label of the sandboxes that are made here.
pub const LABEL: &str = "tidebox.mcp";

/// Time after which a call answers, though the work is not done: clients give up after 60 seconds.
const ANSWER_AFTER: Duration = Duration::from_secs(45);

/// Most base64 characters in an answer: clients take at most 1 MiB in one event, and send what they took to a model with
/// every later message.
const BASE64_CHARS_MAX: usize = 900_000;

/// Choices of the person who starts the server.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Sandbox for calls that name none, over stdio.
    pub sandbox: api::SpawnRequest,
    /// True to work in sandboxes that were made elsewhere, too.
    pub all_sandboxes: bool,
}
