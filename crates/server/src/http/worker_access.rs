//! Who calls on a worker route.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use super::Api;
use super::error::{ApiError, Refusal};
use super::wire;

/// A worker whose credential was checked.
#[derive(Debug)]
pub struct Worker {
    id: wire::WorkerId,
    scopes: Vec<String>,
}

impl Worker {
    /// Its id, if its credential is good for `scope`.
    ///
    /// # Errors
    /// If it is not.
    pub fn may(self, scope: &str) -> Result<wire::WorkerId, ApiError> {
        if self.scopes.iter().any(|granted| granted == scope) { Ok(self.id) } else { Err(Refusal::Worker.into()) }
    }
}

impl FromRequestParts<Api> for Worker {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let Path(segments) = Path::<Vec<String>>::from_request_parts(parts, api).await.map_err(|_| Refusal::Worker)?;
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let (Some(id), Some(token)) = (header("x-worker-id"), header("x-worker-token")) else {
            return Err(Refusal::Worker.into());
        };
        let auth = &api.settings.auth;
        let expected = auth.worker_tokens.get(id).or(auth.worker_token.as_ref());
        let shown = crate::config::Secret::new(token.to_owned());
        if segments.first().map(String::as_str) != Some(id) || expected != Some(&shown) {
            return Err(Refusal::Worker.into());
        }
        let scopes = ["worker:heartbeat", "worker:lease"].map(str::to_owned).to_vec();
        Ok(Self { id: wire::worker_id("X-Worker-ID", id)?, scopes })
    }
}
