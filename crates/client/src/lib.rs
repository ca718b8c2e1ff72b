//! Rust SDK of a Tidebox server's HTTP API, `/api/v1`.
//!
//! A Tidebox server makes *sandboxes*: disposable environments to run code that is not trusted. A
//! [`Client`] spawns a sandbox, runs commands in it and removes it:
//!
//! ```no_run
//! use tidebox_client::Client;
//! use tidebox_client::api::{ExecRequest, SpawnRequest};
//!
//! # async fn example() -> tidebox_client::Result<()> {
//! let client = Client::new("http://127.0.0.1:7423", None, None)?;
//! let sandbox = client.spawn(&SpawnRequest::default()).await?;
//! let request = ExecRequest { command: "uname -a".into(), ..Default::default() };
//! let result = client.exec(&sandbox.id, request).await?;
//! assert_eq!(result.exit_code, 0);
//! client.destroy(&sandbox.id).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The bodies of requests and answers are the types of [`api`], which stand here as well.
//!
//! # Calls
//!
//! - Connection: [`Client::new`], or [`Client::open`] with [`Options`].
//! - Sandboxes: [`Client::spawn`], [`Client::list_page`] with a [`Filter`], [`Client::extend`],
//!   [`Client::wait`], [`Client::destroy`].
//! - Commands: [`Client::exec`] returns the whole output, [`Client::exec_stream`] an [`ExecStream`]
//!   of it while the command runs; [`Client::exec_resumable`] reads on where a line broke.
//! - Background processes: [`Client::start_process`], [`Client::processes`], [`Client::process_output`] as
//!   a [`ProcessOutput`], [`Client::attach_process`] as [`Attached`].
//! - Contexts, which keep the state of an interpreter between runs: [`Client::run_code`] gives a [`RunStream`];
//!   [`Client::create_context`], [`Client::contexts`], [`Client::complete_code`].
//! - Files: [`Client::write_file`], [`Client::list_files`], [`Client::read_file`] as a
//!   [`FileStream`], [`Client::search_files`], [`Client::replace_in_files`],
//!   [`Client::read_archive`], [`Client::write_archive`], [`Client::watch_files`] as
//!   a [`FileChangeStream`]; for a synchronization [`Client::read_manifest`], [`Client::pack_files`],
//!   [`Client::amend_files`].
//! - Ports: [`Client::ports`], [`Client::connect_port`] as a [`PortStream`], [`Client::listen_port`] as a
//!   [`PortListener`].
//! - Images: [`Client::images`], [`Client::pull_image`] with its progress as a [`PullStream`].
//! - Secrets: [`Client::save_secret`], [`Client::secrets`].
//! - Keys of owners: [`Client::create_key`], [`Client::keys`], [`Client::revoke_key`].
//! - Templates: [`Client::create_template`], [`Client::spawn_template`].
//! - The service: [`Client::ready`], [`Client::providers`], [`Client::events`] as an
//!   [`EventStream`], [`Client::audit`].
//! - Workers, which run sandboxes for another server: [`Client::as_worker`].
//!
//! # Errors
//!
//! A call that the server refuses returns [`Error::Api`]. A code in the documentation of a call,
//! such as `not_found`, is the `code` of that error; [`Error::is_code`] compares it.
//!
//! # Bounds
//!
//! A call that only looks something up or changes a value has a deadline, [`Options::answer_max`].
//! Commands, spawns, waits, transfers, and removals of sandboxes, files and images have none: TCP
//! keep-alive detects a server that is gone, and a stream that falls silent ends after
//! [`Options::silence_max`] ([`EventStream::SILENCE_MAX`] for events).
//!
//! The client keeps in memory at most 1 MiB of an answer with one object, 32 MiB of a list, 256 MiB
//! of a command's buffered output and 8 MiB of one line of a stream (20 MiB of a run of code). More is [`Error::Protocol`].
//! JSON of more than 1 MiB (64 MiB in [`Client::write_file_whole`]) is not sent:
//! [`Error::TooLarge`].

#![warn(missing_docs)]

mod archive;
mod connection;
mod context;
mod error;
mod event;
mod exec;
mod file;
mod frame;
mod image;
mod key;
mod line;
mod line_stream;
mod path;
mod port;
mod port_listener;
mod process;
mod provider;
mod sandbox;
mod search;
mod secret;
mod snapshot;
mod template;
mod tls;
mod tree;
mod watch;
mod worker;

pub use api;
pub use connection::{Client, Options, install_crypto, is_loopback, open_http};
pub use context::RunStream;
pub use error::{Error, Result, innermost};
pub use event::{AuditQuery, EventQuery, EventStream};
pub use exec::{ExecEvent, ExecStream, Exit};
pub use file::{FileStream, Range};
pub use image::PullStream;
pub use port::PortStream;
pub use port_listener::PortListener;
pub use process::{Attached, AttachedEvents, AttachedInput, ProcessEvent, ProcessOutput};
pub use sandbox::{Filter, Page, Spawned};
pub use watch::FileChangeStream;
