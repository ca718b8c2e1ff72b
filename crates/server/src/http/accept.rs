//! The accept loop: header time-outs, a bound on connections, draining.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

/// How long a client may take to send the head of a request, and how long a
/// connection may wait for its next one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections at once. Each may cost some tens of kilobytes.
const CONNECTIONS_MAX: usize = 4096;
/// The pause after a failed accept (out of descriptors, say), so that it cannot spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long requests under way may take to finish once we are told to stop.
pub const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Serves `router` until told to stop, then lets requests under way finish.
pub async fn serve(listener: TcpListener, router: Router, tasks: TaskTracker, stop: CancellationToken) {
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = async {
                let place = Arc::clone(&places).acquire_owned().await;
                (listener.accept().await, place)
            } => accepted,
        };
        let (Ok((stream, _)), Ok(place)) = accepted else {
            tracing::warn!("cannot accept a connection; trying again");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Small answers must not wait for an acknowledgement of the last one.
        let _ = stream.set_nodelay(true);
        let router = router.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let router = router.clone();
            async move {
                Ok::<_, Infallible>(router.oneshot(request.map(Body::new)).await.unwrap_or_else(|never| match never {}))
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tasks.spawn(async move {
            // A client that breaks the protocol or hangs up is its own concern.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(DRAIN_MAX, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not finish in time and are cut off");
    }
}
