//! Rust SDK of a Tidebox server's HTTP API, `/api/v1`.
//!
//! ```no_run
//! use tidebox_client::Client;
//! use tidebox_client::api::{ExecRequest, SpawnRequest};
//!
//! # async fn example() -> tidebox_client::Result<()> {
//! let client = Client::new("http://127.0.0.1:7423", None, None)?;
//! let sandbox = client.spawn(&SpawnRequest::default()).await?;
//! let result = client.exec(&sandbox.id, ExecRequest { command: "uname -a".into(), ..Default::default() }).await?;
//! assert_eq!(result.exit_code, 0);
//! client.destroy(&sandbox.id).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Waits are bounded where the server bounds them too. A request that the server answers from
//! memory has [`Options::answer_max`]. Commands, spawns and transfers have no deadline of their
//! own: TCP keep-alive detects a server that is gone, and [`Options::silence_max`] a stream that
//! falls silent. Memory is bounded too: an answer larger than the call allows is refused unread.

#![warn(missing_docs)]

mod connection;
mod error;
mod event;
mod exec;
mod file;
mod image;
mod line;
mod path;
mod provider;
mod sandbox;
mod template;
mod worker;

pub use api;
pub use connection::{Client, Options, install_crypto};
pub use error::{Error, Result};
pub use event::{AuditQuery, EventQuery, EventStream};
pub use exec::{ExecEvent, ExecStream, Exit};
pub use file::{FileStream, Range};
pub use image::PullStream;
pub use sandbox::{Filter, Page};
