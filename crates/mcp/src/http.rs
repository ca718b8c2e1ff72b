//! The protocol over streamable HTTP: each request brings its key.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use client::{Client, Filter};
use parking_lot::Mutex;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::caller::Caller;
use crate::server::Server;

/// Path of the protocol.
const PATH: &str = "/mcp";
/// Header that the API has its key in, and that callers may use.
const KEY_HEADER: &str = "x-api-key";
/// Time for which a key counts as accepted without asking the API.
const ACCEPTED_FOR: Duration = Duration::from_secs(60);
/// Keys that are remembered as accepted.
const ACCEPTED_MAX: usize = 1000;
/// Largest request, in bytes: a file to write, as JSON.
const REQUEST_BYTES_MAX: usize = 16 << 20;

/// Choices of the person who starts the server.
#[derive(Debug, Clone)]
pub struct ListenerOptions {
    /// Address to listen on.
    pub address: SocketAddr,
    /// Names, besides those of this machine, that requests may have in `Host`.
    pub hosts: Vec<String>,
    /// Origins of web pages that may send requests, such as `https://app.example.com`.
    pub origins: Vec<String>,
    /// True to work in sandboxes that were made elsewhere, too.
    pub all_sandboxes: bool,
}

/// Server that listens.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    options: ListenerOptions,
    gate: Gate,
}

/// Checks who sends a request.
#[derive(Debug, Clone)]
struct Gate {
    /// Client without a key.
    client: Client,
    /// True if the API asks for no key.
    is_open: bool,
    accepted: Arc<Mutex<HashMap<String, Instant>>>,
}

impl Listener {
    /// Listens on an address. `client` has no key.
    ///
    /// # Errors
    /// If the API does not answer, the address is taken, or others could reach an API that asks for no key.
    pub async fn bind(client: Client, options: ListenerOptions) -> std::io::Result<Self> {
        let is_open = match ask(&client).await {
            Ok(()) => true,
            Err(error) if error.is_code("unauthorized") => false,
            Err(error) => return Err(std::io::Error::other(error)),
        };
        if is_open && !options.address.ip().is_loopback() {
            return Err(std::io::Error::other(
                "the server asks for no key, so everybody who reaches this address could use it: set auth.enabled and \
                 auth.api_key_file there, or listen on 127.0.0.1",
            ));
        }
        let address = options.address;
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| std::io::Error::other(format!("cannot listen on {address}: {error}")))?;
        Ok(Self { listener, options, gate: Gate { client, is_open, accepted: Arc::default() } })
    }

    /// Returns the URL for clients on this machine.
    ///
    /// # Errors
    /// If the system does not tell the address.
    pub fn url(&self) -> std::io::Result<String> {
        Ok(format!("http://{}{PATH}", self.listener.local_addr()?))
    }

    /// Serves until `stop` is done. Then the calls that run are cancelled.
    ///
    /// # Errors
    /// If connections cannot be accepted.
    pub async fn serve(self, stop: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()> {
        let stopping = CancellationToken::new();
        let local = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into_iter();
        let address = self.options.address.ip().to_string();
        let config = StreamableHttpServerConfig::default()
            // Without it a request to a page's own name would reach this address (DNS rebinding).
            .with_allowed_hosts(local.chain([address]).chain(self.options.hosts))
            .with_allowed_origins(self.options.origins)
            .enforce_origin_validation()
            .with_max_request_body_bytes(REQUEST_BYTES_MAX)
            .with_cancellation_token(stopping.clone());
        let server = Server::of_callers(self.options.all_sandboxes);
        let service =
            StreamableHttpService::new(move || Ok(server.clone()), Arc::new(LocalSessionManager::default()), config);
        let router = Router::new()
            .route_service(PATH, service)
            .layer(from_fn_with_state(self.gate, admit))
            .fallback(|| async { (StatusCode::NOT_FOUND, format!("the protocol is served at {PATH}")) });
        let stop = async move {
            stop.await;
            stopping.cancel();
        };
        axum::serve(self.listener, router).with_graceful_shutdown(stop).await
    }
}

/// Asks the API for little, to learn whether it accepts the key.
async fn ask(client: &Client) -> client::Result<()> {
    client.list_page(&Filter { limit: Some(1), ..Filter::default() }).await.map(drop)
}

/// Lets a request pass that has a key of the API.
async fn admit(State(gate): State<Gate>, mut request: Request, next: Next) -> Response {
    match gate.caller(request.headers()).await {
        Ok(caller) => drop(request.extensions_mut().insert(caller)),
        Err(refusal) => return refusal,
    }
    let response = next.run(request).await;
    match response.status() {
        StatusCode::FORBIDDEN => plain(
            StatusCode::FORBIDDEN,
            "the `Host` or `Origin` is not allowed: start `tidebox mcp` with --allow-host NAME, or for a web page \
             --allow-origin https://NAME",
        ),
        _ => response,
    }
}

impl Gate {
    async fn caller(&self, headers: &HeaderMap) -> Result<Caller, Response> {
        if self.is_open {
            return Ok(Caller(self.client.clone()));
        }
        let Some(key) = key(headers) else { return Err(unauthorized("send the key of the server")) };
        let client = self.client.with_header(KEY_HEADER, key).map_err(|_| unauthorized("the key is malformed"))?;
        if !self.has_accepted(key) {
            match ask(&client).await {
                // A key that may not list may do other things.
                Ok(()) => self.accept(key),
                Err(error) if error.is_code("forbidden") => self.accept(key),
                Err(error) if error.is_code("unauthorized") => return Err(unauthorized("the key is wrong")),
                Err(error) => return Err(plain(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())),
            }
        }
        Ok(Caller(client))
    }

    fn has_accepted(&self, key: &str) -> bool {
        self.accepted.lock().get(key).is_some_and(|at| at.elapsed() < ACCEPTED_FOR)
    }

    fn accept(&self, key: &str) {
        let mut accepted = self.accepted.lock();
        if accepted.len() >= ACCEPTED_MAX {
            accepted.clear();
        }
        accepted.insert(key.to_owned(), Instant::now());
    }
}

/// Returns the key of a request.
fn key(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key)
    });
    let key = bearer.or_else(|| headers.get(KEY_HEADER)?.to_str().ok())?;
    Some(key.trim()).filter(|key| !key.is_empty())
}

fn unauthorized(reason: &str) -> Response {
    let text = format!("{reason}: `Authorization: Bearer KEY`, or `X-API-Key: KEY`");
    let mut response = plain(StatusCode::UNAUTHORIZED, &text);
    response.headers_mut().insert(WWW_AUTHENTICATE, axum::http::HeaderValue::from_static("Bearer realm=\"tidebox\""));
    response
}

fn plain(status: StatusCode, text: &str) -> Response {
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], Body::from(format!("{text}\n"))).into_response()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_key_is_found_in_either_header() {
        let headers =
            |name: &'static str, value: &str| HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
        assert_eq!(key(&headers("authorization", "Bearer abc")), Some("abc"));
        assert_eq!(key(&headers("authorization", "bearer  abc ")), Some("abc"));
        assert_eq!(key(&headers("x-api-key", "abc")), Some("abc"));
        for (name, value) in [("authorization", "Basic abc"), ("authorization", "abc"), ("x-api-key", " ")] {
            assert_eq!(key(&headers(name, value)), None, "{name}: {value}");
        }
    }
}
