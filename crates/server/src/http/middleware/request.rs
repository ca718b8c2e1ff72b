//! Middleware around every request: its id, the `Host` check, CORS, authentication, a log line,
//! and an answer even after a panic of the server.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tracing::Instrument;

use crate::http::e2b::address::Addressed;
use crate::http::error::{ApiError, Refusal};
use crate::http::middleware::cors::Cors;
use crate::http::middleware::hosts::{Hosts, Sender};
use crate::http::peer::Peer;
use crate::http::policy::Policy;
use crate::http::preview::target::Asked;
use crate::http::site::Site;
use crate::http::state::Api;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Longest request id of a caller that is used, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Id of a request in the log and in the audit history.
#[derive(Debug, Clone)]
pub struct RequestId(pub HeaderValue);

/// Names the request, checks its `Host` and `Origin`, finds the policy of its route, logs the
/// answer, and answers 500 should a handler panic.
pub async fn pass<F>(api: &Api, mut request: Request, next: impl FnOnce(Policy, Request) -> F) -> Response
where
    F: Future<Output = Response>,
{
    let started = Instant::now();
    let id = request_id(request.headers());
    let span = tracing::info_span!("request", id = id.to_str().unwrap_or(""));
    request.extensions_mut().insert(RequestId(id.clone()));
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let site = request.extensions().get::<Site>().copied().unwrap_or(Site::Api);
    let is_preview = site == Site::Preview;
    let policy = api.policies.of(site, matched, &method);
    request.extensions_mut().insert(policy);
    let peer = request.extensions().get::<Peer>().and_then(|peer| peer.address).map(tracing::field::display);
    let origin_allowed = api.settings.cors.answer(request.headers());
    let mut response = async {
        let cors = &api.settings.cors;
        let checked = check(&api.settings.hosts, cors, site, &request);
        let preflight = cors.preflight(&method, request.headers()).filter(|_| !is_preview);
        let answered = match (checked, preflight) {
            (Err(refused), _) => Ok(refused.into_response()),
            (Ok(()), Some(answer)) => Ok(answer),
            (Ok(()), None) => AssertUnwindSafe(next(policy, request)).catch_unwind().await,
        };
        let response = answered.unwrap_or_else(|_| {
            tracing::error!("a request made the server panic");
            ApiError::from(Refusal::Internal).into_response()
        });
        let status = response.status().as_u16();
        let took_ms = started.elapsed().as_secs_f64() * 1000.0;
        tracing::debug!(%method, path, peer, status, took_ms, "answered");
        response
    }
    .instrument(span)
    .await;
    api.renderers.render(site, &mut response);
    let headers = response.headers_mut();
    if is_preview {
        // The answer is that of a program in a sandbox.
        headers.entry(REQUEST_ID).or_insert(id);
        return response;
    }
    headers.insert(REQUEST_ID, id);
    Cors::mark(origin_allowed, headers);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Checks the host and the origin of a request.
fn check(hosts: &Hosts, cors: &Cors, site: Site, request: &Request) -> Result<(), ApiError> {
    let extensions = request.extensions();
    match site {
        Site::Api | Site::E2bControl => hosts.check(request, cors, Sender::Client),
        Site::Preview => match extensions.get() {
            Some(Asked::Port(target)) if !target.has_own_host() => hosts.check(request, cors, Sender::ClientOfProgram),
            // Host names of previews were checked with their targets, and their origins are checked there.
            _ => Ok(()),
        },
        Site::E2bData | Site::E2bInterpreter => {
            let is_on_api_host = extensions.get::<Addressed>().is_none_or(|addressed| !addressed.by_host);
            if is_on_api_host {
                hosts.check_name(request)?;
            }
            hosts.check_origin(request, cors, Sender::HolderOfToken)
        }
    }
}

/// Returns the caller's request id if it is printable and short enough, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(REQUEST_ID).filter(|value| {
        (1..=REQUEST_ID_BYTES_MAX).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
    });
    given.cloned().unwrap_or_else(|| {
        let made = format!("{:016x}", rand::random::<u64>());
        HeaderValue::try_from(made).unwrap_or_else(|_| HeaderValue::from_static("0"))
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_request_id_is_repeated_only_if_it_is_fit_to_be() {
        let given =
            |value: &str| HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_bytes(value.as_bytes()).unwrap())]);
        assert_eq!(request_id(&given("abc-1")), "abc-1");
        assert_ne!(request_id(&given("a b")), "a b");
        assert_eq!(request_id(&given(&"x".repeat(129))).len(), 16);
        assert_eq!(request_id(&HeaderMap::new()).len(), 16);
    }
}
