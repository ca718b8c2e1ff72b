//! Settings of several servers together: the workers of a control plane, this server's own role as
//! a worker, and leases.

use std::path::PathBuf;
use std::time::Duration;

use super::super::declare::{SecretOrFile, section};
use super::super::read::{LATER_FILE, Optional, OrEmpty, SECRET_FILE};
use super::super::secret::Secret;
use super::super::text::{URL, WORKER_ID};

section! {
    /// Access to another Tidebox that runs sandboxes for this one.
    pub struct Worker {
        /// Base URL of the worker with this id, such as `https://w1.example.com:7423`. Every entry
        /// needs one.
        pub url: String as URL,
        /// Key that the worker's API requires.
        pub api_key: Option<Secret> as SecretOrFile,
        /// PEM authority that signed the worker's certificate. Unset: the system's.
        pub ca_file: Option<PathBuf> as Optional(LATER_FILE),
    }
}

section! {
    /// Role of this server as a worker of a control plane.
    pub struct WorkerSelf {
        /// Base URL of the control plane that `tidebox worker` works for.
        pub control_plane: String as OrEmpty(Optional(URL)),
        /// Id of this worker. Unset: the name of the host.
        pub id: Option<String> as Optional(WORKER_ID),
        /// Credential that this worker sends to the control plane: its `auth.worker_tokens` entry
        /// or `auth.worker_token`.
        pub token: Option<Secret>,
        /// File that holds `worker.token`; set one of the two. Read again for every request, so
        /// that a short-lived signed token can be replaced.
        pub token_file: Option<PathBuf> as Optional(SECRET_FILE),
        /// PEM authority that signed the control plane's certificate. Unset: the system's.
        pub ca_file: Option<PathBuf>,
    }
}

section! {
    /// Times of leases and heartbeats. They must be the same on the control plane and its workers.
    #[derive(Copy)]
    pub struct Leases {
        /// Time that a worker may be unreachable before the lease on a sandbox ends.
        pub ttl: Duration = "2m",
        /// Further time until the worker ends the sandbox and the control plane gives it up.
        pub grace: Duration = "30s",
        /// Interval at which a worker sends a heartbeat and renews its leases; at most half of
        /// `leases.ttl` and of `leases.stale_after`.
        pub heartbeat_interval: Duration = "30s",
        /// Silence after which a worker gets no more sandboxes.
        pub stale_after: Duration = "2m",
    }
}
