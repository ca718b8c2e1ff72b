//! One connection, with bounds on the size and the pace of what a client sends. HTTP/1.1 is here,
//! HTTP/2 in `http2`.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use axum::http::StatusCode;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::connection_limit::Place;
use super::http2;
use super::idle::Turn;
use super::intake::{HEAD_BYTES_MAX, Intake, Phase};
use super::preface::Opening;
use super::service::{HEAD_TIMEOUT, HEADERS_MAX, Origin, Service};
use super::write_timeout::Steady;
use crate::budget::Caller;
use crate::http::peer;

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
        let service = Arc::clone(service);
        let phase = phase.clone();
        let under_way = turn.begin();
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
