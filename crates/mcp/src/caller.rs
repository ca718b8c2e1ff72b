//! Callers over HTTP.

use axum::http::request::Parts;
use client::Client;
use rmcp::model::Extensions;

/// Client that acts with the key of a request; an extension of the request.
#[derive(Debug, Clone)]
pub(crate) struct Caller(pub(crate) Client);

impl Caller {
    /// Returns the client of the request that a message came with.
    pub(crate) fn of(extensions: &Extensions) -> Option<Client> {
        Some(extensions.get::<Parts>()?.extensions.get::<Caller>()?.0.clone())
    }
}
