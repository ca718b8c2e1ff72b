//! Speaks to a Tidebox server: the Rust SDK of `/api/v1`.
//!
//! ```no_run
//! # async fn example() -> client::Result<()> {
//! let client = client::Client::new("http://127.0.0.1:7423", None, None)?;
//! let sandbox = client.spawn(&api::SpawnRequest::default()).await?;
//! let result = client.exec(&sandbox.id, api::ExecRequest { command: "uname -a".into(), ..Default::default() }).await?;
//! assert_eq!(result.exit_code, 0);
//! client.destroy(&sandbox.id).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Waits are bounded where the server bounds them too: a question that is
//! answered from memory has [`Options::answer_max`]; commands, spawns and
//! transfers take as long as they take, while a server that is gone is noticed
//! by TCP, and a stream that falls silent by [`Options::silence_max`]. So is memory:
//! an answer that is larger than what was asked for can be is refused unread.

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

pub use connection::{Client, Options};
pub use error::{Error, Result};
pub use event::{AuditQuery, EventQuery, EventStream};
pub use exec::{ExecEvent, ExecStream, Exit};
pub use file::{FileStream, Range};
pub use image::PullStream;
pub use sandbox::{Filter, Page};
