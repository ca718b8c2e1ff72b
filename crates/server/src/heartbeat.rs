//! Worker role of a server: it sends heartbeats to its control plane, renews the leases on the
//! sandboxes placed here, and ends those whose lease is lost.
//!
//! The time until which a sandbox may run is stored before anything else happens. It counts from
//! before the control plane was asked, on this server's clock. So the worker always stops first,
//! also after a restart, and without reaching the control plane.

mod wire;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use domain::{SandboxId, Timestamp, WorkerId};
use futures_util::{FutureExt, StreamExt};
use tokio_util::sync::CancellationToken;

use crate::config::{Secret, WorkerSelf};
use crate::control::Control;
use crate::control::Held;
use crate::control::hostname;
use store::clock;

/// Interval at which leases that are lost for too long are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The most leases that are renewed at once.
const AT_ONCE: usize = 8;
/// The largest token file, in bytes.
const TOKEN_BYTES_MAX: u64 = 4096;
/// Longest time for an answer of the control plane.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Reason why this server cannot be a worker. Texts are for the operator.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// No control plane is configured.
    #[error("no control plane is set; use --control-plane, or set `worker.control_plane`")]
    NoControlPlane,
    /// No token is configured.
    #[error("no credential; set `worker.token_file` or `worker.token`")]
    NoToken,
    /// The id cannot be used.
    #[error("`{0}` cannot be this worker's id: {1}; set `worker.id`")]
    Id(String, String),
    /// The connection cannot be set up.
    #[error("cannot set up the connection to the control plane: {0}")]
    Client(#[from] client::Error),
}

/// Credential that is shown to the control plane.
enum Token {
    Fixed(Secret),
    /// Read for each request, since a short-lived token is replaced from time to time.
    File(PathBuf),
}

impl Token {
    async fn read(&self) -> Result<String, String> {
        let path = match self {
            Token::Fixed(secret) => return Ok(secret.expose().to_owned()),
            Token::File(path) => path,
        };
        let size = tokio::fs::metadata(path).await.map_err(|error| unreadable(path, &error))?.len();
        if size > TOKEN_BYTES_MAX {
            return Err(format!("`{}` is larger than {TOKEN_BYTES_MAX} bytes", path.display()));
        }
        let text = tokio::fs::read_to_string(path).await.map_err(|error| unreadable(path, &error))?;
        match text.trim() {
            "" => Err(format!("`{}` is empty", path.display())),
            token => Ok(token.to_owned()),
        }
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> String {
    format!("cannot read `{}`: {error}", path.display())
}

/// Connection of a worker to its control plane.
pub struct WorkerAgent {
    id: WorkerId,
    client: client::Client,
    token: Token,
}

impl WorkerAgent {
    /// Prepares the connection. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Fault`] says what to change.
    pub fn open(own: &WorkerSelf) -> Result<Self, Fault> {
        if own.control_plane.is_empty() {
            return Err(Fault::NoControlPlane);
        }
        let token = match (&own.token, &own.token_file) {
            (Some(token), _) => Token::Fixed(token.clone()),
            (None, Some(file)) => Token::File(file.clone()),
            (None, None) => return Err(Fault::NoToken),
        };
        let name = own.id.clone().unwrap_or_else(hostname);
        let id = WorkerId::parse(&name).map_err(|error| Fault::Id(name.clone(), error.to_string()))?;
        if id.is_local() {
            return Err(Fault::Id(name, "every server uses `local` for itself".to_owned()));
        }
        let options =
            client::Options { ca_file: own.ca_file.as_deref(), answer_max: ANSWER_MAX, ..client::Options::default() };
        let client = client::Client::open(&own.control_plane, options)?;
        if own.control_plane.starts_with("http://") && !client.is_local() {
            tracing::warn!("the worker's token is sent unencrypted; use an https:// URL");
        }
        Ok(Self { id, client, token })
    }

    /// Runs until `stop` is cancelled.
    pub async fn run(self, control: Arc<Control>, stop: CancellationToken) {
        let terms = control.policy().leases;
        let retry = terms.heartbeat_interval.min(terms.grace / 6);
        let mut is_troubled = false;
        tracing::info!(worker = %self.id, control_plane = self.client.base_url(), "running as a worker of a control \
            plane");
        let watch = async {
            let mut look = tokio::time::interval(LOOK_EVERY);
            look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                look.tick().await;
                control.end_what_is_lost().await;
            }
        };
        let beat = async {
            loop {
                let trouble = self.beat(&control).await.err();
                match (&trouble, is_troubled) {
                    (Some(error), false) => tracing::warn!(error, "lost contact with the control plane; retrying"),
                    (None, true) => tracing::info!("contact with the control plane is restored"),
                    (Some(_), true) | (None, false) => {}
                }
                is_troubled = trouble.is_some();
                tokio::time::sleep(if is_troubled { retry } else { terms.heartbeat_interval }).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = watch => {}
            () = beat => {}
        }
    }

    /// Sends one heartbeat, and renews every lease.
    async fn beat(&self, control: &Control) -> Result<(), String> {
        let token = self.token.read().await?;
        let client = self.client.as_worker(self.id.as_str(), &token).map_err(|error| error.to_string())?;
        let offer = control.own_offer().await.map_err(|error| error.to_string())?;
        let beat = wire::heartbeat(offer);
        // Leases are renewed even if the heartbeat is refused.
        let heard = client.heartbeat(self.id.as_str(), &beat).await.map_err(|error| error.to_string());
        let held = control.held().await.map_err(|error| error.to_string())?;
        let renewals: Vec<_> = held.iter().map(|held| self.renew(control, &client, held).boxed()).collect();
        let renewed: Vec<Result<(), String>> =
            futures_util::stream::iter(renewals).buffer_unordered(AT_ONCE).collect().await;
        heard?;
        renewed.into_iter().collect()
    }

    async fn renew(&self, control: &Control, client: &client::Client, held: &Held) -> Result<(), String> {
        let asked_at = control.now();
        let ttl = control.policy().leases.ttl;
        let renewed = client.renew_lease(self.id.as_str(), &held.resource, &domain::format_duration(ttl)).await;
        match renewed {
            Ok(_) => note(control, &held.id, clock::after(asked_at, ttl)).await,
            Err(error) if error.is_code("conflict") || error.is_code("not_found") => {
                if held.until.is_none_or(|until| until > asked_at) {
                    tracing::warn!(id = %held.id, resource = held.resource, %error, "the lease on a sandbox is lost");
                    note(control, &held.id, asked_at).await?;
                }
                Err(format!("a lease is lost: {error}"))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

async fn note(control: &Control, id: &SandboxId, until: Timestamp) -> Result<(), String> {
    control.hold_until(id, until).await.map_err(|error| error.to_string())
}
