//! Failures that end the process.

use std::net::SocketAddr;

use crate::{heartbeat, http};

/// Reason why the service could not start, or had to stop. Texts are for the operator.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The key that secrets are sealed with cannot be used.
    #[error(
        "cannot use the key file `{path}`: {source}; it must hold 32 random bytes, and only the original ones open the \
         stored secrets"
    )]
    KeyFile {
        /// The file.
        path: String,
        /// Error of the operating system, or invalid data for a file of another length.
        #[source]
        source: std::io::Error,
    },
    /// A directory or file cannot be used.
    #[error("cannot use `{path}`: {source}; set `data_dir` to a directory that you own")]
    DataDir {
        /// Directory or file that cannot be used.
        path: String,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// Another server uses the same data.
    #[error("another tidebox server uses the data directory `{dir}`{by}; stop it, or set another `data_dir`")]
    Locked {
        /// The data directory.
        dir: String,
        /// Process that holds it, in parentheses; empty if it is not known.
        by: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}; change `server.host` or `server.port`")]
    Listen {
        /// Address that was to be listened on.
        address: SocketAddr,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] http::TlsFault),
    /// The Unix socket cannot be listened on.
    #[error(transparent)]
    Socket(#[from] http::SocketFault),
    /// The store cannot be opened.
    #[error("cannot open the store: {0}")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The image store cannot be opened.
    #[error("cannot open the image store `{path}`: {source}; make sure that `data_dir` belongs to this user")]
    Images {
        /// Folder of the image store.
        path: String,
        /// Error of the image store.
        #[source]
        source: images::Error,
    },
    /// A required provider cannot be set up.
    #[error("cannot set up the provider `{name}`: {source}")]
    Provider {
        /// Name of the provider.
        name: &'static str,
        /// Error of the provider.
        #[source]
        source: providers::Error,
    },
    /// A worker of the configuration cannot be used.
    #[error("cannot set up the worker `{id}`: {source}; check `workers.{id}`")]
    Worker {
        /// Id of the worker.
        id: String,
        /// Error of the worker's client.
        #[source]
        source: providers::Error,
    },
    /// A second signal came before the shutdown that the first one began had ended.
    #[error("stopped at once by a second signal; the next start finishes the work in progress")]
    Hurried,
    /// The server cannot work for a control plane.
    #[error("cannot run as a worker: {0}")]
    AsWorker(#[from] heartbeat::Fault),
    /// The operating system refused a call that normally succeeds.
    #[error("cannot start: {0}")]
    System(#[source] std::io::Error),
    /// A part of the service ended by itself.
    #[error("a part of the service stopped unexpectedly: {0}; the log has the cause")]
    Died(&'static str),
}
