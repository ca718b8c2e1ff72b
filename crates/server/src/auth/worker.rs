//! Credentials of workers, in the order in which they are tried: a signed token, the worker's
//! own token, the token that all workers share.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, HeaderName};
use domain::Timestamp;

use super::credential::{Denied, denied, single};
use super::key::KeyHash;
use super::token::{self, Scope};
use crate::config::{Auth, Secret};

const WORKER_ID: HeaderName = HeaderName::from_static("x-worker-id");
const WORKER_TOKEN: HeaderName = HeaderName::from_static("x-worker-token");
/// Id of the worker that is this server itself.
const LOCAL: &str = "local";

/// Worker that proved its identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerClaims {
    /// Id of the worker.
    pub id: String,
    /// Scopes granted to it.
    pub scopes: Vec<Scope>,
}

/// Configured credentials of workers.
#[derive(Debug, Clone, Default)]
pub struct Workers {
    /// Signing keys: the current one first, then earlier ones.
    signing: Vec<Secret>,
    revoked: Vec<String>,
    own: BTreeMap<String, KeyHash>,
    shared: Option<KeyHash>,
}

impl Workers {
    /// Collects the credentials of this configuration.
    #[must_use]
    pub fn new(auth: &Auth) -> Workers {
        Workers {
            signing: auth.worker_signing_key.iter().chain(&auth.worker_signing_keys).cloned().collect(),
            revoked: auth.worker_revoked_token_ids.clone(),
            own: auth.worker_tokens.iter().map(|(id, token)| (id.clone(), KeyHash::of(token))).collect(),
            shared: auth.worker_token.as_ref().map(KeyHash::of),
        }
    }

    /// Verifies that the caller is the worker `id` of the path, and returns its scopes.
    ///
    /// # Errors
    /// [`Denied`] if it is not, or if no credential is configured for it.
    pub fn verify(&self, id: &str, headers: &HeaderMap, now: Timestamp) -> Result<WorkerClaims, Denied> {
        let named =
            single(headers, &WORKER_ID, "`X-Worker-ID` is given twice; send it once", "`X-Worker-ID` is empty")?;
        let token = single(
            headers,
            &WORKER_TOKEN,
            "`X-Worker-Token` is given twice; send it once",
            "`X-Worker-Token` is empty",
        )?;
        let (Some(named), Some(token)) = (named, token) else {
            return Err(denied("this route requires a worker's credentials; send `X-Worker-ID` and `X-Worker-Token`"));
        };
        if named != id.as_bytes() {
            return Err(denied("`X-Worker-ID` is not the worker named in the path"));
        }
        if id == LOCAL {
            return Err(denied("the worker `local` is this server itself; give the worker another id"));
        }
        let tried = Some(KeyHash::of_bytes(token).id());
        let scopes = self.scopes(id, token, now).map_err(|message| Denied::of(message, tried))?;
        Ok(WorkerClaims { id: id.to_owned(), scopes })
    }

    fn scopes(&self, id: &str, token: &[u8], now: Timestamp) -> Result<Vec<Scope>, &'static str> {
        if let Some(token) = std::str::from_utf8(token).ok().filter(|token| token::is_signed(token)) {
            return self.scopes_signed(id, token, now);
        }
        let given = KeyHash::of_bytes(token);
        let (known, otherwise) = match (self.own.get(id), &self.shared) {
            (Some(own), _) => (
                own,
                "`X-Worker-Token` is not this worker's token; a worker with its own token cannot use the shared one",
            ),
            (None, Some(shared)) => (shared, "`X-Worker-Token` is not a token that this server accepts"),
            (None, None) => {
                return Err("no token is configured for this worker; set a token or a signing key in `auth`");
            }
        };
        if known.matches(&given) { Ok(Scope::ALL.to_vec()) } else { Err(otherwise) }
    }

    fn scopes_signed(&self, id: &str, token: &str, now: Timestamp) -> Result<Vec<Scope>, &'static str> {
        if self.signing.is_empty() {
            return Err("signed tokens are not accepted here: `auth.worker_signing_key` is not set");
        }
        let claims =
            token::verify(token, &self.signing, &self.revoked, now.as_millisecond()).map_err(token::Fault::message)?;
        if claims.worker_id != id {
            return Err("the token belongs to another worker");
        }
        Ok(claims.granted())
    }
}

#[cfg(test)]
mod test;
