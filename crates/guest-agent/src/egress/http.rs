//! Proxy of HTTP: requests that are passed on, and tunnels by `CONNECT`.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{CONTENT_LENGTH, PROXY_AUTHORIZATION, TRANSFER_ENCODING};
use hyper::http::uri::{PathAndQuery, Uri};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::{self, OnUpgrade};
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::spawn_local;
use tokio::time::timeout;

use super::forward::{HTTP_PORT, prepare, strip};
use super::inside;
use super::output::Output;
use super::refusal::Refusal;
use super::requests::{Accepted, Requests};
use super::target::Target;
use super::upstream;
use crate::link::Link;

/// Maximum size of a request's head, and of the pieces of a body.
const BUFFER_BYTES: usize = 64 * 1024;
/// Longest wait for a kept connection to be free: it is, once its last answer was passed on.
const KEPT_WAIT: Duration = Duration::from_millis(100);

type Body = Either<Incoming, Full<Bytes>>;

/// Serves one connection of a process, which has `wait` for each head.
pub(super) async fn serve(
    stream: TcpStream,
    requests: Rc<Requests>,
    credentials: Option<(&str, &str)>,
    permit: Rc<OwnedSemaphorePermit>,
    wait: Duration,
) {
    // A small piece is mostly a question or an answer, which the other side waits for.
    let _ = stream.set_nodelay(true);
    let password = credentials.map(|(user, password)| format!("{user}:{password}"));
    let session = Rc::new(Session { requests, password, permit, kept: RefCell::default() });
    let service = service_fn(move |request| {
        let session = Rc::clone(&session);
        async move {
            let answer = session.answer(request).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(|refusal| refusal.response()))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(wait)
        .max_header_size(BUFFER_BYTES)
        .max_buf_size(BUFFER_BYTES)
        .auto_date_header(false)
        .preserve_header_case(true)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    // There is nowhere to report a process that hangs up.
    drop(connection.await);
}

/// A connection of a process.
struct Session {
    requests: Rc<Requests>,
    /// User and password that each request has to bring.
    password: Option<String>,
    permit: Rc<OwnedSemaphorePermit>,
    /// Connection of the last request, for a next one to the same host.
    kept: RefCell<Option<(Target, SendRequest<Incoming>)>>,
}

impl Session {
    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        if !self.is_known(&request) {
            return Err(Refusal::no_password());
        }
        if request.method() == Method::CONNECT { self.tunnel(request).await } else { self.pass_on(request).await }
    }

    fn is_known(&self, request: &Request<Incoming>) -> bool {
        let Some(right) = &self.password else { return true };
        let given = request.headers().get(PROXY_AUTHORIZATION).and_then(|value| value.to_str().ok()?.split_once(' '));
        given.is_some_and(|(scheme, given)| {
            scheme.eq_ignore_ascii_case("basic") && STANDARD.decode(given.trim()).is_ok_and(|it| it == right.as_bytes())
        })
    }

    /// Makes a tunnel: what the process sends from now on goes to the host as it is.
    async fn tunnel(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let target = Target::parse(request.uri().authority().map_or("", |it| it.as_str()), None)?;
        if let Some(inside) = self.requests.dial_inside(&target).await {
            let upgrade = upgrade::on(&mut request);
            let permit = Rc::clone(&self.permit);
            spawn_local(async move {
                let Ok(process) = upgrade.await else { return };
                // The end of either side is the end of both.
                drop(inside::relay(TokioIo::new(process), inside).await);
                drop(permit);
            });
            return Ok(Response::new(Either::Right(Full::default())));
        }
        let Accepted { input, reply } = self.requests.ask(&target).await?;
        let upgrade = upgrade::on(&mut request);
        let permit = Rc::clone(&self.permit);
        spawn_local(async move {
            // Otherwise the process has hung up, which the end of `reply` says.
            let Ok(parts) = upgrade.await.map(|upgraded| upgraded.downcast::<TokioIo<TcpStream>>()) else { return };
            let Ok(parts) = parts else { return };
            let output = Link::open(parts.io.into_inner(), parts.read_buf, input, permit);
            drop(reply.send(Output::Tunnel(output)));
        });
        Ok(Response::new(Either::Right(Full::default())))
    }

    /// Passes a request on, and its answer back.
    async fn pass_on(&self, mut request: Request<Incoming>) -> Result<Response<Body>, Refusal> {
        let target = target(request.uri())?;
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        *request.version_mut() = Version::HTTP_11;
        let upgrades = prepare(request.headers_mut(), &target)?;
        let process = upgrades.then(|| upgrade::on(&mut request));
        let (sender, mut response) = self.send(&target, request).await?;
        let is_upgraded = strip(response.headers_mut());
        // Of the two, only this one counts for a reader of HTTP.
        if response.headers().contains_key(TRANSFER_ENCODING) {
            response.headers_mut().remove(CONTENT_LENGTH);
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let process = process.filter(|_| is_upgraded);
            let process =
                process.ok_or_else(|| Refusal::unreachable("the host switched protocols without being asked"))?;
            let host = upgrade::on(&mut response);
            spawn_local(exchange(process, host, Rc::clone(&self.permit)));
        } else {
            self.kept.replace(Some((target, sender)));
        }
        Ok(response.map(Either::Left))
    }

    /// Sends a request on the kept connection, or on a new one.
    async fn send(
        &self,
        target: &Target,
        mut request: Request<Incoming>,
    ) -> Result<(SendRequest<Incoming>, Response<Incoming>), Refusal> {
        let kept = self.kept.take().filter(|(of, _)| of == target);
        if let Some((_, mut sender)) = kept
            && let Ok(Ok(())) = timeout(KEPT_WAIT, sender.ready()).await
        {
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((sender, response)),
                // The host has closed it meanwhile. What was not sent can be sent again.
                Err(mut error) => request = error.take_message().ok_or_else(no_answer)?,
            }
        }
        let mut sender = match self.requests.dial_inside(target).await {
            Some(inside) => upstream::inside(inside).await?,
            None => upstream::open(self.requests.ask(target).await?).await?,
        };
        let response = sender.send_request(request).await.map_err(|_| no_answer())?;
        Ok((sender, response))
    }
}

fn no_answer() -> Refusal {
    Refusal::unreachable("the host closed the connection without an HTTP response")
}

/// Returns the target of a request that is to be passed on.
fn target(uri: &Uri) -> Result<Target, Refusal> {
    match (uri.scheme_str(), uri.authority()) {
        (Some("http"), Some(authority)) => Target::parse(authority.as_str(), Some(HTTP_PORT)),
        (Some("https"), Some(_)) => Err(Refusal::malformed(
            "this proxy does not start TLS itself; use CONNECT for https URLs, as programs with HTTPS_PROXY do",
        )),
        (Some(_), Some(_)) => Err(Refusal::malformed("this proxy forwards only http:// URLs; use CONNECT for others")),
        _ => Err(Refusal::malformed(
            "this is the sandbox's proxy, not a web server; use it through HTTP_PROXY, or request an absolute URL",
        )),
    }
}

/// Passes bytes on between a process and a host that have changed their protocol.
async fn exchange(process: OnUpgrade, host: OnUpgrade, permit: Rc<OwnedSemaphorePermit>) {
    if let (Ok(process), Ok(host)) = (process.await, host.await) {
        // The end of either side, also by an error, is the end of both.
        drop(tokio::io::copy_bidirectional(&mut TokioIo::new(process), &mut TokioIo::new(host)).await);
    }
    drop(permit);
}
