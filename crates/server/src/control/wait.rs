//! Waiting for a state of a sandbox.

use std::sync::Arc;
use std::time::Duration;

use domain::{SandboxId, State};

use super::conflict::Conflict;
use super::error::{Error, Result};
use super::resource::Resource;
use super::service::Control;
use store::Sandbox;

/// Maximum wait of one request.
pub const WAIT_MAX: Duration = Duration::from_secs(600);

/// States that a request can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// Ready for commands.
    Running,
    /// Made: it is running, or paused by now.
    Made,
    /// Completely removed.
    Destroyed,
    /// Ended by a fault.
    Failed,
}

impl WaitFor {
    /// Parses the API's name of a state.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "running" => Some(Self::Running),
            "destroyed" => Some(Self::Destroyed),
            "failed" => Some(Self::Failed),
            _ => None,
        }
    }

    /// Returns `Some(true)` if a sandbox in `state` has reached the target, `None` if it may still
    /// reach it, and `Some(false)` if it never will.
    fn reached(self, state: State) -> Option<bool> {
        use State as S;
        match (self, state) {
            (Self::Running, S::Running)
            | (Self::Made, S::Running | S::Paused)
            | (Self::Destroyed, S::Destroyed)
            | (Self::Failed, S::Failed) => Some(true),
            (_, S::Creating)
            | (Self::Destroyed, _)
            | (Self::Failed, S::Running | S::Paused)
            | (Self::Running, S::Paused) => None,
            (Self::Running | Self::Made, S::Destroying | S::Destroyed | S::Failed)
            | (Self::Failed, S::Destroying | S::Destroyed) => Some(false),
        }
    }
}

impl Control {
    /// Waits until the sandbox is in the given state.
    ///
    /// # Errors
    /// [`Error::Timeout`] if it does not reach the state within `timeout`, [`Error::Conflict`]
    /// as soon as it never will, [`Error::NotFound`] for an unknown id, and for an expired
    /// sandbox unless the request waits for its end.
    pub async fn wait(&self, id: &str, state: WaitFor, timeout: Duration) -> Result<Sandbox> {
        let missing = || Error::NotFound(Resource::Sandbox, id.to_owned());
        let parsed = SandboxId::parse(id).map_err(|_| missing())?;
        let reached = async {
            let mut wait = self.waiters.begin(&parsed);
            let mut found = self.store.sandbox(&parsed).await?.map(Arc::new);
            loop {
                let sandbox = found.ok_or_else(missing)?;
                if state != WaitFor::Destroyed && sandbox.has_expired(self.now()) {
                    return Err(missing());
                }
                match state.reached(sandbox.state) {
                    Some(true) => return Ok(Arc::unwrap_or_clone(sandbox)),
                    Some(false) => {
                        let awaited = match state {
                            WaitFor::Running | WaitFor::Made => "running",
                            WaitFor::Destroyed => "destroyed",
                            WaitFor::Failed => "failed",
                        };
                        let state = sandbox.state;
                        return Err(Conflict::NeverReached { sandbox: id.to_owned(), state, awaited }.into());
                    }
                    None => {
                        // Frees the row for the duration of the wait: a row may be large, and a
                        // wait long.
                        drop(sandbox);
                        found = wait.next(|| async { Ok(self.store.sandbox(&parsed).await?) }).await?;
                    }
                }
            }
        };
        tokio::time::timeout(timeout, reached).await.unwrap_or_else(|_| {
            Err(Error::Timeout(format!(
                "sandbox `{id}` did not reach that state within {}; retry, or wait longer (at most {})",
                domain::format_duration(timeout),
                domain::format_duration(WAIT_MAX)
            )))
        })
    }
}
