//! Middleware that writes the audit history. Every request passes through it; few are recorded.

use std::borrow::Cow;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Instant;

use axum::extract::Request;
use axum::http::{Extensions, HeaderValue, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use providers::Chain;
use tracing::Instrument;

use crate::audit::{self, AGENT_CHARS_MAX, PATH_CHARS_MAX};
use crate::auth::Principal;
use crate::control::{Error, NewAuditEntry, Unavailable};
use crate::http::caller::Caller;
use crate::http::error::{ApiError, Failure, Refusal};
use crate::http::middleware::auth::Refused;
use crate::http::middleware::request::RequestId;
use crate::http::peer::Peer;
use crate::http::policy::{Audit, Policy};
use crate::http::state::Api;

/// Subject of a request whose path does not name it. Set by the handler as an extension of the
/// answer.
#[derive(Debug, Clone)]
pub struct Subject(pub String);

/// Owner of the [`Subject`], if it has one. Set in the same way.
#[derive(Debug, Clone)]
pub struct SubjectOwner(pub String);

/// Facts about a request, collected before it is answered.
struct Asked {
    started: Instant,
    method: Method,
    uri: Uri,
    agent: Option<HeaderValue>,
    id: Option<RequestId>,
    address: Option<IpAddr>,
}

/// Action of a request, as the history records it.
#[derive(Debug, Default)]
struct Deed {
    /// Name of the action, such as `quotas.update`.
    action: Cow<'static, str>,
    /// True if the request asks for a change.
    is_change: bool,
    /// True if successes are not recorded.
    only_failures: bool,
}

impl Asked {
    fn of(request: &Request) -> Self {
        Self {
            started: Instant::now(),
            method: request.method().clone(),
            uri: request.uri().clone(),
            agent: request.headers().get(header::USER_AGENT).cloned(),
            id: request.extensions().get().cloned(),
            address: address(request.extensions()),
        }
    }

    fn deed(&self, audit: Audit) -> Option<Deed> {
        let is_change = !matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS);
        let (action, only_failures) = match audit {
            Audit::Nothing => return None,
            Audit::Always(action) => (action.into(), false),
            Audit::Failures(action) => (action.into(), true),
            Audit::Unknown => (audit::unknown_action(self.method.as_str(), self.uri.path()).into(), false),
        };
        Some(Deed { action, is_change, only_failures })
    }

    fn entry(&self, api: &Api, action: Cow<'static, str>, response: &Response) -> NewAuditEntry {
        let (actor, key) = actor(response.extensions());
        let extensions = response.extensions();
        let pairs = [
            ("key", key),
            ("name", extensions.get().map(|Subject(name)| name.clone())),
            ("owner", extensions.get().map(|SubjectOwner(owner)| owner.clone())),
            ("error", extensions.get().map(|Failure(error)| error.code().to_owned())),
        ];
        let detail: Vec<String> =
            pairs.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?))).collect();
        let agent = self.agent.as_ref().map(|agent| String::from_utf8_lossy(agent.as_bytes()).into_owned());
        NewAuditEntry {
            created_at: api.control.now(),
            actor,
            action: action.into_owned(),
            method: audit::bounded(self.method.as_str(), 16),
            path: audit::bounded(self.uri.path(), PATH_CHARS_MAX),
            status: response.status().as_u16(),
            duration_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            request_id: self.id.as_ref().and_then(|id| id.0.to_str().ok()).unwrap_or_default().to_owned(),
            remote_addr: self.address.map(|address| address.to_string()),
            user_agent: agent.map(|agent| audit::bounded(&agent, AGENT_CHARS_MAX)),
            detail: Some(detail.join(" ")).filter(|detail| !detail.is_empty()),
        }
    }
}

/// Returns the actor, and the id of the key that was used.
fn actor(answer: &Extensions) -> (String, Option<String>) {
    if let Some(Refused { key_id }) = answer.get() {
        return ("anonymous".to_owned(), key_id.as_ref().map(|key| key.as_str().to_owned()));
    }
    let principal = answer.get::<Caller>().map_or(&Principal::Anonymous, |caller| &caller.principal);
    let actor = match principal {
        Principal::Anonymous => "anonymous".to_owned(),
        Principal::ApiKey(_) => "api_key".to_owned(),
        Principal::Admin(_) => "admin".to_owned(),
        Principal::Owner(holder) => format!("owner:{}", holder.key.owner()),
        Principal::Worker(id) => format!("worker:{id}"),
    };
    (actor, principal.key_id().map(|key| key.as_str().to_owned()))
}

/// Returns the client's address.
fn address(request: &Extensions) -> Option<IpAddr> {
    request.get::<Peer>().and_then(|peer| peer.address)
}

/// Answers a request, and records it before the answer is sent.
pub async fn pass<F>(
    api: Api,
    policy: Policy,
    request: Request,
    next: impl FnOnce(Request) -> F + Send + 'static,
) -> Response
where
    F: Future<Output = Response> + Send + 'static,
{
    let asked = Asked::of(&request);
    let deed = asked.deed(policy.audit);
    if deed.as_ref().is_none_or(|deed| !deed.is_change) {
        let response = next(request).await;
        return write(&api, &asked, deed, response).await;
    }
    // Runs in a task of its own: a caller that hangs up must not keep its change out of the
    // history.
    let control = std::sync::Arc::clone(&api.control);
    let work = async move {
        let answered = AssertUnwindSafe(next(request)).catch_unwind().await;
        let (response, panic) = match answered {
            Ok(response) => (response, None),
            Err(panic) => (ApiError::from(Refusal::Internal).into_response(), Some(panic)),
        };
        let response = write(&api, &asked, deed, response).await;
        panic.map_or(response, |panic| resume_unwind(panic))
    };
    match control.tasks().spawn(work.in_current_span()).await {
        Ok(response) => response,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            Err(_) => ApiError::from(Error::from(Unavailable::ShuttingDown)).into_response(),
        },
    }
}

async fn write(api: &Api, asked: &Asked, deed: Option<Deed>, response: Response) -> Response {
    let is_refused = response.extensions().get::<Refused>().is_some();
    let Some(deed) = deed.or_else(|| is_refused.then(Deed::default)) else { return response };
    let succeeded = response.status().is_success();
    if deed.only_failures && succeeded {
        return response;
    }
    let entry = asked.entry(api, deed.action, &response);
    let written = if is_refused {
        api.control.record_refusal(asked.address, entry).await
    } else {
        api.control.record_audit(&entry).await
    };
    let Err(error) = written else { return response };
    tracing::error!(error = %Chain(&error), "the audit history cannot be written");
    if deed.is_change && succeeded {
        return ApiError::from(Error::from(Unavailable::AuditNotWritten)).into_response();
    }
    response
}
