//! Previews: requests to the host name of a port are passed on to the program that listens on it.

pub mod admission;
mod exchange;
mod headers;
pub mod pages;
pub mod target;
mod tunnel;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri, Version, header};
use axum::response::{IntoResponse, Redirect, Response};
use domain::{KeyScope, PortAccess};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tracing::Instrument;

use self::admission::Admission;
use self::exchange::{Driver, EXCHANGE_BYTES, answer, exchange};
use self::headers::{
    COOKIE, is_loop, keep_harmless, to_client, to_program, token_in, trailers_to_program, without_token,
};
use self::target::{Asked, NamedBy, Target, is_of_same_sandbox};
use self::tunnel::Tunnel;
use super::caller::Caller;
use super::error::{ApiError, Refusal, Result, malformed};
use super::key_life::KeyLife;
use super::middleware::users;
use super::peer::Peer;
use super::policy::{About, Gate, NamedIn, Policy};
use super::request_memory::{Meter, WAIT_MAX};
use super::state::Api;
use super::stream::port_stream::{PortStream, input};
use crate::auth::{OwnerAccess, Principal};
use crate::budget::Reservation;
use crate::control::Error;
use crate::hop_by_hop::{Trailed, is_framed_twice, upgrade};

/// Rule for pages that come from the API's own origin: they get another one, which is that of no page.
const SANDBOX: &str = "sandbox allow-scripts allow-forms";

/// Demands on a request to a preview, whatever its path.
pub const POLICY: Policy = Policy {
    takes_key_as_protocol: true,
    about: About::OneSandbox(NamedIn::Host),
    owners: OwnerAccess::Scope(KeyScope::SandboxesWrite),
    ..Policy::of(Gate::Preview)
};

/// Passes a request on to the program, and its answer back.
pub async fn forward(
    State(api): State<Api>,
    Extension(asked): Extension<Asked>,
    Extension(admission): Extension<Admission>,
    meter: Meter,
    request: Request,
) -> Result<Response> {
    let (mut parts, body) = request.into_parts();
    let Asked::Port(target) = asked else {
        return Err(malformed("the host of a preview must be `<port>-<sandbox id>.<domain>`, sent once"));
    };
    if admission == Admission::NoTrafficToken {
        return Err(Refusal::NoTrafficToken.into());
    }
    if parts.method == Method::CONNECT {
        return Err(malformed("previews do not forward CONNECT"));
    }
    let protocol = upgrade(&parts.headers);
    let is_read = matches!(parts.method, Method::GET | Method::HEAD);
    if admission == Admission::Link && is_read && protocol.is_none() && target.has_own_host() {
        return opened(&parts);
    }
    check(&api, &target, admission, &parts, protocol.is_some())?;
    // A permit opens the port to whoever holds it.
    if admission == Admission::Key {
        users::check(&api, POLICY.about, &mut parts).await?;
    }
    let held = meter.account().reserve_within(EXCHANGE_BYTES, WAIT_MAX).await?;
    let peer = parts.extensions.get::<Peer>().copied().ok_or(Refusal::Internal)?;
    to_program(&mut parts.headers, &api.settings.access, peer);
    if !target.has_own_host() {
        // They would be those of all sandboxes.
        parts.headers.remove(header::COOKIE);
    }
    if let NamedBy::Path(prefix) = &target.named_by {
        cut_prefix(&mut parts, prefix)?;
    }
    parts.uri = Uri::try_from(without_token(&parts.uri)).map_err(|_| malformed("the path cannot be forwarded"))?;
    parts.version = Version::HTTP_11;
    let life = KeyLife::among(&parts.extensions);
    let client = parts.extensions.remove::<OnUpgrade>().filter(|_| protocol.is_some());
    let tunnel = connect(&api, &target, &meter).await?;
    let from_client = api.clone();
    let body =
        Body::new(Trailed::new(body, move |trailers| trailers_to_program(trailers, &from_client.settings.access)));
    let (mut response, driver) = exchange(tunnel, Request::from_parts(parts, body), api.control.tasks()).await?;
    if is_framed_twice(response.headers()) {
        return Err(Refusal::BadAnswer.into());
    }
    let is_switch = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    to_client(response.headers_mut(), is_switch);
    if !target.has_own_host() {
        keep_harmless(response.headers_mut());
        response.headers_mut().append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOX));
    }
    if !is_switch {
        return answer(response, driver, held).await;
    }
    let program = hyper::upgrade::on(&mut response);
    let Some(client) = client else { return Err(Refusal::BadAnswer.into()) };
    switch(&api, life, client, program, driver, held);
    let (parts, _) = response.into_parts();
    Ok(Response::from_parts(parts, Body::empty()))
}

/// Changes a request at a path of the API's own host: the program gets the rest of the path.
fn cut_prefix(parts: &mut Parts, prefix: &str) -> Result<()> {
    if let Ok(prefix) = HeaderValue::from_str(prefix) {
        parts.headers.insert("x-forwarded-prefix", prefix);
    }
    let rest = parts.uri.path().strip_prefix(prefix).filter(|rest| !rest.is_empty()).unwrap_or("/");
    let query = parts.uri.query().map_or(String::new(), |query| format!("?{query}"));
    parts.uri = Uri::try_from(format!("{rest}{query}")).map_err(|_| malformed("the path cannot be forwarded"))?;
    Ok(())
}

/// Refuses what a page of another origin or a loop asks for.
fn check(api: &Api, target: &Target, admission: Admission, parts: &Parts, is_switch: bool) -> Result<()> {
    if is_loop(&parts.headers) {
        return Err(Refusal::Loop.into());
    }
    if admission != Admission::Key {
        return Ok(());
    }
    let principal = &Caller::among(&parts.extensions)?.principal;
    // Without a key only its origin tells a page from a program. What a WebSocket brings is shown to
    // the page, whatever its origin.
    let origin = parts.headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
    if is_switch
        && *principal == Principal::Anonymous
        && origin.is_some_and(|origin| !api.settings.cors.lists(origin))
        && !is_of_same_sandbox(&parts.headers, target, &api.settings.preview_domain)
    {
        return Err(Refusal::SocketOrigin.into());
    }
    Ok(())
}

async fn connect(api: &Api, target: &Target, meter: &Meter) -> Result<Tunnel> {
    let (to_program, input) = input();
    let from_program = match api.control.connect_preview(&target.sandbox, target.port, input).await {
        Ok(from_program) => from_program,
        Err(error) => return Err(not_connected(api, target, error).await),
    };
    Ok(Tunnel::new(PortStream::new(from_program, meter.account()), to_program, meter.account().clone()))
}

/// Returns the error for a port that cannot be connected to, in the words that the clients of the sandbox look for.
async fn not_connected(api: &Api, target: &Target, error: Error) -> ApiError {
    let access = api.control.port_access(&target.sandbox).await;
    let has_terms = target.named_by == NamedBy::Headers || access.is_some_and(|access| access != PortAccess::Private);
    let Target { sandbox, port, .. } = target;
    let is_closed = matches!(error, Error::NoFile(_));
    let is_gone = matches!(error, Error::NotFound(..) | Error::Conflict(_));
    if has_terms && is_closed {
        return Refusal::PortClosed { sandbox: sandbox.clone(), port: *port }.into();
    }
    if has_terms && is_gone {
        return Refusal::NoSandbox(sandbox.clone()).into();
    }
    if is_closed { Refusal::NothingListens(*port).into() } else { error.into() }
}

/// Answers the first request of a browser: the token becomes a cookie, and the address loses it.
fn opened(parts: &Parts) -> Result<Response> {
    let token = token_in(parts.uri.query().unwrap_or_default()).ok_or(Refusal::Internal)?;
    let path = without_token(&parts.uri);
    // A path that begins with two slashes would be another host.
    let is_host = path.get(1..2).is_some_and(|second| matches!(second, "/" | "\\"));
    let location = if is_host { format!("/.{path}") } else { path };
    let secure = if parts.extensions.get::<Peer>().is_some_and(|peer| peer.is_secure) { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={token}; Path=/; HttpOnly; SameSite=Lax{secure}");
    let cookie = HeaderValue::try_from(cookie).map_err(|_| Refusal::Internal)?;
    let headers: [(HeaderName, HeaderValue); 3] = [
        (header::SET_COOKIE, cookie),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    Ok((headers, Redirect::to(&location)).into_response())
}

/// Passes bytes between a client and a program that have both switched to another protocol.
fn switch(api: &Api, life: KeyLife, client: OnUpgrade, program: OnUpgrade, driver: Driver, held: Reservation) {
    let stop = api.stop.clone();
    let relay = async move {
        let relay = async {
            let (Ok(client), Ok(program)) = tokio::join!(client, program) else { return };
            let Ok(program) = program.downcast::<TokioIo<Tunnel>>() else { return };
            drop(driver);
            program.io.into_inner().relay(TokioIo::new(client), program.read_buf).await;
        };
        tokio::select! {
            () = relay => {}
            () = stop.cancelled() => {}
            () = life.over() => {}
        }
        drop(held);
    };
    api.control.tasks().spawn(relay.in_current_span());
}
