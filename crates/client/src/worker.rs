//! Calls of a worker to its control plane.

use api::{Heartbeat, Lease, RenewRequest, Renewed, Worker};
use reqwest::Method;

use crate::connection::Patience;
use crate::path::segment;
use crate::{Client, Result};

/// Calls of a worker, a server that runs sandboxes for this one.
impl Client {
    /// Returns a client that shares this connection and authenticates as the worker `id`, with its
    /// secret `token`.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] if a header cannot carry `id` or `token`.
    pub fn as_worker(&self, id: &str, token: &str) -> Result<Client> {
        self.with_header("x-worker-id", id)?.with_header("x-worker-token", token)
    }

    /// Sends a heartbeat of the worker `id`. Needs [`Client::as_worker`].
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn heartbeat(&self, id: &str, beat: &Heartbeat) -> Result<Worker> {
        let path = format!("/worker/{}/heartbeat", segment("the worker's id", id)?);
        self.send_json(Method::POST, &path, beat, Patience::Short).await
    }

    /// Renews the lease of the worker `id` on the sandbox `resource`, for `ttl` from now, such as
    /// `2m`; at most `1h`. Needs [`Client::as_worker`].
    ///
    /// # Errors
    /// `conflict` if another worker holds the lease or it has expired, `not_found` if there is no
    /// lease; another [`crate::Error`] if no answer comes.
    pub async fn renew_lease(&self, id: &str, resource: &str, ttl: &str) -> Result<Lease> {
        let id = segment("the worker's id", id)?;
        let resource = segment("the resource", resource)?;
        let request = RenewRequest { ttl: ttl.to_owned() };
        let path = format!("/worker/{id}/leases/{resource}/renew");
        let renewed: Renewed = self.send_json(Method::POST, &path, &request, Patience::Short).await?;
        Ok(renewed.lease)
    }
}
