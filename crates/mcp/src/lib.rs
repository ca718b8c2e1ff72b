//! Server of the Model Context Protocol: tools by which a model works in sandboxes.
//!
//! It is a client of Tidebox's API and holds no rights of its own. Over stdio it acts with one key, and makes a sandbox
//! for calls that name none; over HTTP, where the protocol has no sessions, each request brings its key, and names its
//! sandbox. The protocol is that of [2026-07-28](https://modelcontextprotocol.io/specification/2026-07-28) and of the
//! versions before it.
//!
//! Results are text and images, and never structured: clients show a model one of both.

mod access;
mod arguments;
mod bounds;
mod call;
mod caller;
mod failure;
mod home;
mod http;
mod resources;
mod server;
mod text;
mod tools;

pub use http::{Listener, ListenerOptions};
pub use server::{Options, Server};
