//! Requests of all connections: their bounds, and the way to their answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode, Version, header};
use axum::response::Response;
use bytes::Bytes;
use tower::ServiceExt;

use super::body_timeout::Patient;
use crate::budget::Budget;
use crate::control::Control;
use crate::http::body;
use crate::http::e2b::routes;
use crate::http::peer::TrustedProxies;
use crate::http::site::{Site, Sites};

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
        let (router, site) = self.sites.select(&mut request);
        let is_chunked = request.headers().contains_key(header::TRANSFER_ENCODING);
        // A client that sent `Expect` does not send the body after a refusal. Over HTTP/2 the rest
        // of a body can be refused by itself.
        let is_held_back = request.version() == Version::HTTP_2 || request.headers().contains_key(header::EXPECT);
        let (head, body) = request.into_parts();
        // The other end of a preview's body is a program, which may take and give at any pace.
        let (body, mut left) = match site {
            Site::Preview => Patient::unhurried(body),
            Site::E2bData if routes::is_unhurried(head.uri.path()) => Patient::unhurried(body),
            Site::Api | Site::E2bControl | Site::E2bData | Site::E2bInterpreter => Patient::new(body),
        };
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
