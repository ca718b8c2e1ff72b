//! `/sandboxes/{id}/preview`: URLs of ports.

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::{Extension, Json};

use super::wire;
use crate::auth::preview::{Form, token};
use crate::http::caller::Caller;
use crate::http::error::{Result, malformed};
use crate::http::peer::Peer;
use crate::http::request::{Json as Body, Name};
use crate::http::state::Api;
use crate::owner_keys::OwnerKey;

/// Get the URL of a port
///
/// The URL opens the port in a browser until `expires_at`. Programs can send the token as `X-Preview-Token` instead. A
/// public URL needs no token: everyone who knows the host name has access.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/preview",
    operation_id = "create_preview", tag = "ports", params(("id" = String, Path)),
    request_body = api::PreviewRequest,
    responses(
        (status = 200, body = api::Preview, description = "The URL; the server does not check that something listens \
                                                           on the port"),
        (status = 400, body = api::ErrorBody, description = "Invalid port or lifetime"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox, or it is destroyed or expired"),
        (status = 429, body = api::ErrorBody, description = "`ttl` is above the maximum")))]
pub async fn mint(
    State(api): State<Api>,
    Name(id): Name,
    Extension(peer): Extension<Peer>,
    caller: Caller,
    headers: HeaderMap,
    Body(body): Body<api::PreviewRequest>,
) -> Result<Json<api::Preview>> {
    let api::PreviewRequest { port, ttl, public } = body;
    if port == 0 {
        return Err(malformed("`port` must be a number from 1 to 65535"));
    }
    let ttl = ttl.map(|text| wire::span("ttl", &text)).transpose()?;
    // A link lives no longer than the key that it is made with may.
    let key_expires_at = caller.owner_key().and_then(OwnerKey::expires_at);
    let expires_at = api.control.preview_expiry(&id, ttl, key_expires_at).await?;
    let expires_s = u32::try_from(expires_at.as_second()).unwrap_or(u32::MAX);
    let form = if public { Form::HostName } else { Form::Token };
    let permit = api.settings.preview_key.sign(form, &id, port, expires_s);
    let scheme = if peer.is_secure { "https" } else { "http" };
    let domain = &api.settings.preview_domain;
    let server_port = port_of(&headers);
    let (url, token) = if public {
        (format!("{scheme}://{port}-{id}-{permit}.{domain}{server_port}/"), None)
    } else {
        let token = token(&permit);
        (format!("{scheme}://{port}-{id}.{domain}{server_port}/?token={token}"), Some(token))
    };
    Ok(Json(api::Preview { url, port, public, token, expires_at: wire::time(expires_at) }))
}

/// Returns the port with its colon by which the client reaches this server; nothing for the usual one.
fn port_of(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let port = host.rsplit_once(':').map_or("", |(_, port)| port);
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if is_port { format!(":{port}") } else { String::new() }
}
