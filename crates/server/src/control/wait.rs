//! Wait: until a sandbox is in a state.

use std::time::Duration;

use domain::{SandboxId, State};

use super::{Control, Error, Resource, Result, has_expired};
use crate::store::Sandbox;

/// The longest wait that one request may ask for.
pub const WAIT_MAX: Duration = Duration::from_secs(600);

/// What can be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// Ready for commands.
    Running,
    /// Nothing of it is left.
    Destroyed,
    /// Ended by a fault.
    Failed,
}

impl WaitFor {
    /// Reads the word of the API.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "running" => Some(Self::Running),
            "destroyed" => Some(Self::Destroyed),
            "failed" => Some(Self::Failed),
            _ => None,
        }
    }

    /// Whether a sandbox in `state` is there, may still come there (`None`), or
    /// never will.
    fn reached(self, state: State) -> Option<bool> {
        use State as S;
        match (self, state) {
            (Self::Running, S::Running) | (Self::Destroyed, S::Destroyed) | (Self::Failed, S::Failed) => Some(true),
            (_, S::Creating) | (Self::Destroyed, _) | (Self::Failed, S::Running) => None,
            (Self::Running, S::Destroying | S::Destroyed | S::Failed)
            | (Self::Failed, S::Destroying | S::Destroyed) => Some(false),
        }
    }
}

impl Control {
    /// Answers when the sandbox is in the state that is waited for.
    ///
    /// # Errors
    /// [`Error::Timeout`] when it is not within `timeout`, [`Error::Conflict`] as
    /// soon as it never will be, [`Error::NotFound`] for an id that is not known, and
    /// for one that has expired unless its end is what is waited for.
    pub async fn wait(&self, id: &str, state: WaitFor, timeout: Duration) -> Result<Sandbox> {
        let missing = || Error::NotFound(Resource::Sandbox, id.to_owned());
        let parsed = SandboxId::parse(id).map_err(|_| missing())?;
        let reached = async {
            let mut changes = self.changes.subscribe();
            loop {
                changes.mark_unchanged();
                let sandbox = self.store.sandbox(&parsed).await?.ok_or_else(missing)?;
                if state != WaitFor::Destroyed && has_expired(&sandbox, self.now()) {
                    return Err(missing());
                }
                match state.reached(sandbox.state) {
                    Some(true) => return Ok(sandbox),
                    Some(false) => {
                        return Err(Error::Conflict(format!(
                            "sandbox `{id}` is {} and will never be {}",
                            sandbox.state,
                            match state {
                                WaitFor::Running => "running",
                                WaitFor::Destroyed => "destroyed",
                                WaitFor::Failed => "failed",
                            }
                        )));
                    }
                    // The sender lives as long as `self`.
                    None => drop(changes.changed().await),
                }
            }
        };
        tokio::time::timeout(timeout, reached).await.unwrap_or_else(|_| {
            Err(Error::Timeout(format!(
                "sandbox `{id}` did not reach that state within {}; ask again, or for longer (at most {})",
                domain::format_duration(timeout),
                domain::format_duration(WAIT_MAX)
            )))
        })
    }
}
