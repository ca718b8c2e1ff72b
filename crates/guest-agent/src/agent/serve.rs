//! The guest protocol over HTTP/2: connections, routes, answers.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use guest_protocol::{FILE_HEADER, Failure, FailureKind, Hello, REQUEST_HEADER, VERSION, VERSION_HEADER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, CONTROLS};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{UnixListener, UnixStream};

use super::failure::{Result, failure, invalid};
use super::{Agent, exec, files};

/// What an answer carries.
enum Body {
    Whole(Full<Bytes>),
    Command(exec::Output),
    File(files::Content),
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<std::io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Body::Whole(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            Body::Command(body) => Pin::new(body).poll_frame(cx),
            Body::File(body) => Pin::new(body).poll_frame(cx),
        }
    }
}

/// Connections at once: the server has one, and a new one after its restart.
const CONNECTIONS_MAX: usize = 16;
/// Requests at once on one connection.
const STREAMS_MAX: u32 = 2048;
/// What may be under way to us for one request.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// What may be under way for all requests of a connection together: enough for
/// all that a server has at once, or two commands that do not read their stdin
/// would stop everybody else's.
const CONNECTION_WINDOW: u32 = 576 * 1024 * 1024;
/// Callers that hang up all at once are no attack.
const PENDING_RESETS_MAX: usize = 4096;
/// The largest HTTP/2 frame.
const FRAME_BYTES: u32 = 64 * 1024;
/// What we hold of an answer that the connection has no room for.
const SEND_BUFFER: usize = 1024 * 1024;
/// Room for a request header with a path of 4 KiB, each byte percent-encoded.
const HEADERS_BYTES_MAX: u32 = 128 * 1024;
/// The largest JSON request.
const JSON_BYTES_MAX: usize = 256 * 1024;
/// After an accept that failed for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Everything but printable ASCII, and the sign that marks the rest.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// Hyper's tasks run on our only thread.
#[derive(Clone, Copy)]
struct OnThisThread;

impl<F: Future + 'static> hyper::rt::Executor<F> for OnThisThread {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(async move { drop(task.await) });
    }
}

/// Serves connections for as long as there is a listener.
pub(crate) async fn accept(listener: UnixListener, agent: Rc<Agent>) -> std::io::Result<()> {
    let places = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((stream, _)) => {
                let agent = Rc::clone(&agent);
                tokio::task::spawn_local(async move {
                    serve(stream, agent).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn serve(stream: UnixStream, agent: Rc<Agent>) {
    let service = service_fn(|request| {
        let agent = Rc::clone(&agent);
        async move { Ok::<_, Infallible>(answer(&agent, request).await) }
    });
    let connection = http2::Builder::new(OnThisThread)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_local_error_reset_streams(PENDING_RESETS_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // A server that goes away comes back on another connection.
    let _ = connection.await;
}

async fn answer(agent: &Rc<Agent>, request: Request<Incoming>) -> Response<Body> {
    let spoken = request.headers().get(VERSION_HEADER).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
    if spoken != Some(VERSION) {
        let mut response = Response::new(whole(Bytes::new()));
        *response.status_mut() = StatusCode::HTTP_VERSION_NOT_SUPPORTED;
        response.headers_mut().insert(VERSION_HEADER, HeaderValue::from(VERSION));
        return response;
    }
    route(agent, request).await.unwrap_or_else(|failure| refusal(&failure))
}

async fn route(agent: &Rc<Agent>, request: Request<Incoming>) -> Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    match (&parts.method, path) {
        (&Method::GET, "/hello") => json(&Hello { protocol: VERSION, version: env!("CARGO_PKG_VERSION").to_owned() }),
        (&Method::POST, "/exec") => Ok(Response::new(Body::Command(exec::start(agent, body).await?))),
        (&Method::GET, "/file") => {
            let (info, content) = files::read(&header(&parts.headers)?)?;
            let mut response = Response::new(Body::File(content));
            let info = serde_json::to_string(&info).map_err(|error| internal(&error))?;
            let info = percent_encoding::utf8_percent_encode(&info, ENCODED).to_string();
            response.headers_mut().insert(FILE_HEADER, HeaderValue::try_from(info).map_err(|error| internal(&error))?);
            Ok(response)
        }
        (&Method::PUT, "/file") => done(files::write(&header(&parts.headers)?, body).await?),
        (&Method::POST, "/deadline") => {
            let deadline: guest_protocol::Deadline = read(body).await?;
            agent.deadline.set(deadline.in_ms);
            done(())
        }
        (&Method::POST, "/files/delete") => done(files::delete(&read(body).await?).await?),
        (&Method::POST, "/files/move") => done(files::rename(&read(body).await?)?),
        (&Method::POST, "/files/chmod") => done(files::chmod(&read(body).await?)?),
        (&Method::POST, "/files/stat") => json(&files::stat(&read(body).await?)?),
        (&Method::POST, "/files/list") => json(&files::list(&read(body).await?).await?),
        (&Method::POST, "/files/glob") => json(&files::glob(&read(body).await?).await?),
        (&Method::POST, "/console") => {
            let wanted: guest_protocol::Console = read(body).await?;
            json(&agent.console.newest(wanted.lines))
        }
        _ => Err(failure(FailureKind::NotSupported, format!("the agent has no {} {path}", parts.method))),
    }
}

fn internal(error: &dyn std::error::Error) -> Failure {
    failure(FailureKind::Internal, error.to_string())
}

fn whole(bytes: Bytes) -> Body {
    Body::Whole(Full::new(bytes))
}

fn json(value: &impl Serialize) -> Result<Response<Body>> {
    Ok(Response::new(whole(serde_json::to_vec(value).map_err(|error| internal(&error))?.into())))
}

fn done((): ()) -> Result<Response<Body>> {
    Ok(Response::new(whole(Bytes::from_static(b"{}"))))
}

fn refusal(failure: &Failure) -> Response<Body> {
    let mut response = Response::new(whole(serde_json::to_vec(failure).unwrap_or_default().into()));
    *response.status_mut() = StatusCode::from_u16(failure.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

/// A JSON request.
async fn read<T: DeserializeOwned>(body: Incoming) -> Result<T> {
    let body = Limited::new(body, JSON_BYTES_MAX).collect().await.map_err(|error| invalid(error.to_string()))?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| invalid(error.to_string()))
}

/// The JSON of a request whose body is file content.
fn header<T: DeserializeOwned>(headers: &HeaderMap) -> Result<T> {
    let value = headers.get(REQUEST_HEADER).ok_or_else(|| invalid("the request does not say which file"))?;
    let text = percent_encoding::percent_decode(value.as_bytes()).decode_utf8();
    let text = text.map_err(|error| invalid(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))
}
