//! One connection, with bounds on the size and the pace of what a client sends. HTTP/1.1 is here,
//! HTTP/2 in `http2`.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode, Version, header};
use axum::response::Response;
use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::body_timeout::Patient;
use super::connection_limit::Place;
use super::http2;
use super::idle::Turn;
use super::intake::{HEAD_BYTES_MAX, Intake, Phase};
use super::preface::Opening;
use super::write_timeout::Steady;
use crate::budget::{Budget, Caller};
use crate::control::Control;
use crate::http::body;
use crate::http::peer::{self, TrustedProxies};
use crate::http::preview::Sites;

/// Time that a client may take to send the head of a request, and that a connection may wait
/// for its next request.
pub(super) const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Most headers in one request.
pub(super) const HEADERS_MAX: usize = 100;

/// Routers with the shared state that connections need to answer requests.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) sites: Sites,
    pub(super) control: Arc<Control>,
    pub(super) memory: Arc<Budget>,
    pub(super) proxies: TrustedProxies,
}

impl Service {
    /// Answers a request, also one that makes no sense.
    pub(super) async fn answer<B>(&self, from: Origin, mut request: Request<B>) -> Response
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let caller = self.proxies.caller(from.address, from.is_tls, request.headers());
        request.extensions_mut().insert(caller);
        let (router, is_preview) = self.sites.select(&mut request);
        let is_chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
        // A client that sent `Expect` does not send the body after a refusal. Over HTTP/2 the rest
        // of a body can be refused by itself.
        let is_held_back = request.version() == Version::HTTP_2 || request.headers().contains_key(header::EXPECT);
        let (head, body) = request.into_parts();
        // The other end of a preview's body is a program, which may take and give at any pace.
        let (body, mut left) = if is_preview { Patient::unhurried(body) } else { Patient::new(body) };
        let request = Request::from_parts(head, Body::new(body));
        let mut response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
        if let (Ok(left), false) = (left.try_recv(), is_held_back || response.status().is_success()) {
            body::drain(&mut Body::new(left).into_data_stream()).await;
        }
        // hyper honours `Transfer-Encoding` and drops a `Content-Length` sent with it. If a
        // proxy honoured the latter, bytes that it takes for the body would be read here as
        // another caller's next request.
        if is_chunked && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Other end of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Origin {
    /// Its address; `None` on the Unix socket.
    pub(super) address: Option<IpAddr>,
    /// True if this server ends its TLS.
    pub(super) is_tls: bool,
    /// True if the handshake has settled on HTTP/2. Without TLS, the first bytes tell.
    pub(super) is_http2: bool,
}

/// Answers the requests of one connection. Once `stop` is cancelled, at most the requests under
/// way are finished. Ends between two requests when the place is needed for another connection.
pub(super) async fn converse<S>(stream: S, from: Origin, place: Place, service: Arc<Service>, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let address = from.address.map(peer::caller);
    let account = service.memory.account(Caller::Address(address), address);
    let (stream, phase) = Intake::around(stream, &account);
    let turn = place.turn().clone();
    let stream = Steady::new(stream, place);
    let stream = if from.is_http2 {
        Some(Opening::known(stream))
    } else if from.is_tls {
        http1(Opening::known(stream), from, &phase, &turn, &service, &stop).await
    } else {
        http1(Opening::of(stream), from, &phase, &turn, &service, &stop).await
    };
    if let Some(stream) = stream {
        phase.multiplex();
        // Apart, so that connections of HTTP/1.1 take no memory for it.
        Box::pin(http2::converse(stream, from, turn, service, stop)).await;
    }
}

/// Answers requests of HTTP/1.1. Returns the stream if its client speaks HTTP/2.
async fn http1<S>(
    stream: Opening<S>,
    from: Origin,
    phase: &Phase,
    turn: &Turn,
    service: &Arc<Service>,
    stop: &CancellationToken,
) -> Option<Opening<S>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = service_fn(|request| {
        let (service, phase, under_way) = (Arc::clone(service), phase.clone(), turn.begin());
        async move {
            phase.set(true);
            let response = service.answer(from, request).await;
            // Bytes after a switch to another protocol are no request head.
            let is_switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
            phase.set(is_switched);
            Ok::<_, Infallible>(response.map(|body| under_way.answer(body, is_switched)))
        }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(HEAD_BYTES_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades();
    let mut conversing = Pin::new(&mut connection);
    // Errors of a client that breaks the protocol or hangs up are ignored.
    tokio::select! {
        // Polled first, so that a request that has arrived counts as under way before the
        // connection can be asked to leave.
        biased;
        _ = conversing.as_mut() => {}
        () = turn.asked_to_leave() => {}
        () = stop.cancelled() => {
            conversing.as_mut().graceful_shutdown();
            let _ = conversing.await;
        }
    }
    connection.into_parts()?.io.into_inner().again()
}
