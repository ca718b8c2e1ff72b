//! Requests about the inside of a remote sandbox.

use std::fmt;
use std::sync::Arc;

use client::Client;
use domain::SandboxId;

use super::boxes::Known;
use super::remote::Remote;
use crate::{Error, Result};

/// The inside of a box, reached through the remote service's API.
pub(super) struct CustomGuest {
    pub(super) remote: Arc<Remote>,
    pub(super) id: SandboxId,
    pub(super) known: Known,
}

impl fmt::Debug for CustomGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomGuest").field("id", &self.id).finish_non_exhaustive()
    }
}

fn busy() -> Error {
    Error::Exhausted("too many operations are in progress in this sandbox; try again later".to_owned())
}

impl CustomGuest {
    /// Returns the id of the sandbox at the remote service.
    pub(super) fn sandbox(&self) -> &str {
        &self.known.remote
    }

    /// Returns the client for requests that change something.
    pub(super) fn writing(&self) -> Result<Client> {
        self.remote.writing(&self.id)
    }

    /// Acquires one of the permits for requests about this box.
    pub(super) async fn permit(&self) -> Result<tokio::sync::SemaphorePermit<'_>> {
        let permit = tokio::time::timeout(self.remote.timeout, self.known.permits.acquire()).await;
        permit.map_err(|_| busy())?.map_err(|_| busy())
    }

    /// Waits for an answer about this box, holding a permit.
    pub(super) async fn ask<T>(
        &self,
        action: &'static str,
        answer: impl Future<Output = client::Result<T>>,
    ) -> Result<T> {
        let _permit = self.permit().await?;
        self.remote.within_of(action, self.remote.boxes.generation(&self.id), answer).await
    }

    /// Waits for an answer like [`CustomGuest::ask`], where "not found" may also mean `path`.
    pub(super) async fn ask_of<T>(
        &self,
        action: &'static str,
        path: &str,
        answer: impl Future<Output = client::Result<T>>,
    ) -> Result<T> {
        match self.ask(action, answer).await {
            Err(Error::Gone) => Err(self.missing(path).await),
            answer => answer,
        }
    }

    /// Returns the error for "not found", which the API uses for the path and for the sandbox.
    pub(super) async fn missing(&self, path: &str) -> Error {
        match self.remote.still_runs(&self.known).await {
            Ok(true) => Error::NotFound(format!("{path}: no such file or directory")),
            Ok(false) => Error::Gone,
            Err(error) => error,
        }
    }
}
