//! Requests to hosts that secrets are bound to: read from the process, which speaks TLS with the
//! server here, and sent to the host by TLS with the secrets in their headers.

use std::io::{self, Cursor};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{CONNECTION, CONTENT_TYPE, EXPECT, HOST, UPGRADE};
use axum::http::uri::Authority as HttpAuthority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use bytes::Bytes;
use domain::{Host, SecretBinding};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use providers::EgressReason;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;

use super::account::{Account, Shared};
use super::hello::HANDSHAKE;
use super::refused::Refused;
use crate::budget::Reservation;
use crate::hop_by_hop::{Trailed, is_framed_twice, remove_hop_by_hop, upgrade};

/// Memory of a connection: the buffers of HTTP and of TLS towards both sides, in bytes.
const MEMORY_BYTES: usize = 192 * 1024;
/// Largest head of a request or an answer, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Longest time for TLS with the process or the host.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(20);

/// Longest time for which a process is read on after the last answer: one that is still sending would
/// lose the answer with the connection.
const LINGER: Duration = Duration::from_secs(2);

/// Header with the name of a refusal's reason, as on those of the agent.
const REASON_HEADER: HeaderName = HeaderName::from_static("tidebox-egress");

/// Answer to a request of a process: the host's, or a refusal.
type Answer = Response<Either<Incoming, Full<Bytes>>>;

/// A connection whose requests are changed.
#[derive(Debug)]
pub(super) struct Interception {
    /// Port of the host, which speaks TLS there.
    pub(super) port: u16,
    /// Memory of the connection.
    _held: Reservation,
}

impl Account {
    /// Returns the interception of a connection, if secrets are bound to its host.
    pub(super) async fn interception(&self, host: &Host, port: u16) -> Result<Option<Interception>, Refused> {
        let in_force = self.in_force.borrow().clone();
        if in_force.secrets.is_empty() {
            return Ok(None);
        }
        let port = SecretBinding::https_port(port);
        let bound = self.shared.secrets.are_bound(&in_force.secrets, in_force.owner.as_ref(), host, port).await;
        let is_bound = bound.map_err(|error| {
            tracing::error!(id = %self.id, error = %providers::Chain(&error), "cannot look up secrets");
            Refused::failed(EgressReason::Unreachable, "the secrets for the host cannot be read", None)
        })?;
        if !is_bound {
            return Ok(None);
        }
        let mut held = self.memory().nothing();
        held.grow(MEMORY_BYTES).map_err(|_| {
            Refused::busy("the server has no memory for another connection with secrets; try again".to_owned())
        })?;
        Ok(Some(Interception { port, _held: held }))
    }
}

impl Interception {
    /// Serves the requests of a process until either side has gone.
    pub(super) async fn serve(self, account: &Arc<Account>, host: &Host, process: UnixStream, stream: TcpStream) {
        let (process, rest) = match doubled(process) {
            Ok(both) => both,
            Err(error) => return tracing::warn!(id = %account.id, %error, "cannot serve a connection with secrets"),
        };
        self.serve_requests(account, host, process, stream).await;
        if let Ok(mut rest) = UnixStream::from_std(rest) {
            let _ = timeout(LINGER, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
        }
    }

    async fn serve_requests(self, account: &Arc<Account>, host: &Host, mut process: UnixStream, stream: TcpStream) {
        let mut first = [0];
        if !matches!(process.read(&mut first).await, Ok(1)) {
            return;
        }
        let is_tls = first[0] == HANDSHAKE;
        let (read, write) = process.into_split();
        let process = tokio::io::join(Cursor::new(first).chain(read), write);
        let exchange = Arc::new(Exchange {
            account: Arc::clone(account),
            host: host.clone(),
            port: self.port,
            upstream: Mutex::new(Upstream { stream: Some(stream), sender: None }),
            tasks: Mutex::default(),
            is_over: CancellationToken::new(),
        });
        if !is_tls {
            return exchange.serve(process).await;
        }
        match account.accept(host, process).await {
            Ok(process) => exchange.serve(process).await,
            Err(error) => {
                tracing::debug!(id = %account.id, %host, %error, "TLS with a process failed");
            }
        }
    }
}

/// Returns a stream, and a second handle of it for after the first is closed.
fn doubled(stream: UnixStream) -> io::Result<(UnixStream, std::os::unix::net::UnixStream)> {
    let stream = stream.into_std()?;
    let second = stream.try_clone()?;
    Ok((UnixStream::from_std(stream)?, second))
}

/// Any error, of which only the words matter.
type AnyError = Box<dyn std::error::Error + Send + Sync>;

impl Account {
    /// Speaks TLS with a process, as its host.
    async fn accept<S>(&self, host: &Host, process: S) -> Result<tokio_rustls::server::TlsStream<S>, AnyError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let now = self.shared.clock.now();
        let authority = self.authority.get_or_try_init(async || {
            let authority = self.shared.secrets.authority(&self.id, now).await?;
            authority.ok_or_else(|| AnyError::from("the sandbox has ended"))
        });
        let config = authority.await?.server(host, now)?;
        Ok(timeout(HANDSHAKE_WAIT, TlsAcceptor::from(config).accept(process)).await??)
    }
}

impl Shared {
    /// Returns the settings of TLS towards hosts.
    async fn tls(&self) -> Result<Arc<ClientConfig>, AnyError> {
        let config = self.tls.get_or_try_init(async || {
            let file = self.ca_file.clone();
            let roots = tokio::task::spawn_blocking(move || roots(file.as_deref())).await??;
            let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()?
                .with_root_certificates(roots)
                .with_no_client_auth();
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Ok::<_, AnyError>(Arc::new(config))
        });
        config.await.cloned()
    }
}

/// Returns the authorities of the system, and those of the operator's file. Blocks.
fn roots(file: Option<&Path>) -> Result<RootCertStore, AnyError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for certificate in file.map(CertificateDer::pem_file_iter).transpose()?.into_iter().flatten() {
        roots.add(certificate?)?;
    }
    Ok(roots)
}

/// The host's side of a connection.
#[derive(Debug)]
struct Upstream {
    /// Connection that was made, until the first request.
    stream: Option<TcpStream>,
    sender: Option<client::SendRequest<Trailed<Incoming>>>,
}

/// Requests of one connection, and the host's answers.
#[derive(Debug)]
struct Exchange {
    account: Arc<Account>,
    host: Host,
    port: u16,
    upstream: Mutex<Upstream>,
    /// Tasks that read and write, aborted on drop.
    tasks: Mutex<JoinSet<()>>,
    /// Token for the end of the host's side.
    is_over: CancellationToken,
}

/// A request that is not sent to the host.
#[derive(Debug)]
enum Refusal {
    /// It gets an answer with this reason, in these words.
    Answered(EgressReason, String),
    /// The host closed the connection between two requests. The process sees the same, and tries again
    /// as it would without this server.
    Closed,
}

/// The host has closed the connection.
#[derive(Debug, thiserror::Error)]
#[error("the host has closed the connection")]
struct Closed;

impl Refusal {
    fn new(reason: EgressReason, words: impl Into<String>) -> Refusal {
        Refusal::Answered(reason, words.into())
    }

    fn response(self, host: &Host) -> Result<Answer, Closed> {
        let Refusal::Answered(reason, words) = self else { return Err(Closed) };
        let words = format!("egress to {host} is refused: {words}\n");
        let mut response = Response::new(Either::Right(Full::new(Bytes::from(words))));
        *response.status_mut() = StatusCode::from_u16(reason.status()).unwrap_or_default();
        response.headers_mut().insert(REASON_HEADER, HeaderValue::from_static(reason.name()));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        Ok(response)
    }
}

impl Exchange {
    async fn serve(self: Arc<Self>, process: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let exchange = Arc::clone(&self);
        let service = service_fn(move |request| {
            let exchange = Arc::clone(&exchange);
            async move { exchange.answer(request).await.or_else(|refusal| refusal.response(&exchange.host)) }
        });
        let mut builder = server::Builder::new();
        builder.max_buf_size(HEAD_BYTES_MAX).timer(TokioTimer::new()).header_read_timeout(None);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(process), service).with_upgrades());
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.is_over.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(id = %self.account.id, host = %self.host, %error, "the requests of a process were cut off");
        }
        // The host's side ends with it, but for what has switched to another protocol.
        *self.upstream.lock().await = Upstream { stream: None, sender: None };
        let mut tasks = std::mem::take(&mut *self.tasks.lock().await);
        while tasks.join_next().await.is_some() {}
    }

    async fn answer(&self, mut request: Request<Incoming>) -> Result<Answer, Refusal> {
        let path = self.checked(&request)?;
        let in_force = self.account.in_force.borrow().clone();
        let secrets = &self.account.shared.secrets;
        let bound = secrets.headers(&in_force.secrets, in_force.owner.as_ref(), &self.host, self.port).await;
        let bound = bound.map_err(|error| {
            tracing::error!(id = %self.account.id, error = %providers::Chain(&error), "cannot send a secret");
            Refusal::new(EgressReason::Unreachable, "the operator's secret for it cannot be read")
        })?;
        let switch = upgrade(request.headers());
        let from_process = switch.as_ref().map(|_| hyper::upgrade::on(&mut request));
        let headers = request.headers_mut();
        remove_hop_by_hop(headers);
        // The server answers it by itself, once it reads the body.
        headers.remove(EXPECT);
        if let Some(protocol) = switch {
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, protocol);
        }
        let secret: Vec<HeaderName> = bound.iter().map(|(name, _)| name.clone()).collect();
        for (name, value) in bound {
            headers.insert(name, value);
        }
        *request.uri_mut() = path;
        *request.version_mut() = Version::HTTP_11;
        // A host that reads trailers as headers must not find another value there.
        let request = request.map(|body| {
            Trailed::new(body, move |trailers| {
                for name in &secret {
                    trailers.remove(name);
                }
            })
        });
        let mut upstream = self.upstream.lock().await;
        let sender = self.connected(&mut upstream).await?;

        sender.ready().await.map_err(|_| Refusal::Closed)?;
        let sent = sender.send_request(request);
        drop(upstream);
        let mut answer = sent.await.map_err(|error| {
            tracing::debug!(id = %self.account.id, host = %self.host, %error, "a host did not answer with HTTP");
            self.is_over.cancel();
            Refusal::new(EgressReason::Unreachable, format!("the host did not answer: {error}"))
        })?;
        if is_framed_twice(answer.headers()) {
            self.is_over.cancel();
            return Err(Refusal::new(
                EgressReason::Unreachable,
                "the host declares the length of its response in two ways",
            ));
        }
        let mut protocol = None;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(process) = from_process else {
                self.is_over.cancel();
                return Err(Refusal::new(EgressReason::Unreachable, "the host switched protocols without being asked"));
            };
            protocol = answer.headers().get(UPGRADE).cloned();
            let host = hyper::upgrade::on(&mut answer);
            self.tasks.lock().await.spawn(switched(process, host));
        }
        let headers = answer.headers_mut();
        remove_hop_by_hop(headers);
        if let Some(protocol) = protocol {
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, protocol);
        }
        Ok(answer.map(Either::Left))
    }

    /// Checks that a request is for the host that the connection is to, and returns its path.
    fn checked(&self, request: &Request<Incoming>) -> Result<Uri, Refusal> {
        // A host that cannot be read counts as another.
        let named = authorities(request.uri(), request.headers()).unwrap_or_default();
        if named.is_empty() || !named.iter().all(|named| Host::parse(named.host()).as_ref() == Ok(&self.host)) {
            let words = format!("the request names a host other than {}; open a separate connection for it", self.host);
            return Err(Refusal::new(EgressReason::Denied, words));
        }
        if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
            let words = "CONNECT and TRACE are not sent to a host that gets a secret";
            return Err(Refusal::new(EgressReason::Denied, words));
        }
        let path = request.uri().path_and_query().cloned();
        Ok(path.map_or_else(|| Uri::from_static("/"), Uri::from))
    }

    /// Returns the sender of requests to the host; begins TLS at the first call.
    async fn connected<'a>(
        &self,
        upstream: &'a mut Upstream,
    ) -> Result<&'a mut client::SendRequest<Trailed<Incoming>>, Refusal> {
        if let Some(stream) = upstream.stream.take() {
            upstream.sender = Some(self.connect(stream).await.map_err(|error| {
                tracing::debug!(id = %self.account.id, host = %self.host, %error, "TLS with a host failed");
                self.is_over.cancel();
                Refusal::new(EgressReason::Unreachable, format!("TLS with the host failed: {error}"))
            })?);
        }
        upstream.sender.as_mut().ok_or(Refusal::Closed)
    }

    async fn connect(&self, stream: TcpStream) -> Result<client::SendRequest<Trailed<Incoming>>, AnyError> {
        let _ = stream.set_nodelay(true);
        let name = ServerName::try_from(self.host.to_string())?;
        let connector = TlsConnector::from(self.account.shared.tls().await?);
        let stream = timeout(HANDSHAKE_WAIT, connector.connect(name, stream)).await??;
        let mut builder = client::Builder::new();
        builder.max_buf_size(HEAD_BYTES_MAX);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let over = self.is_over.clone().drop_guard();
        self.tasks.lock().await.spawn(async move {
            let _over = over;
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection with secrets broke");
            }
        });
        Ok(sender)
    }
}

/// Returns the hosts that a request names; `None` if one of them cannot be read.
fn authorities(uri: &Uri, headers: &HeaderMap) -> Option<Vec<HttpAuthority>> {
    let mut named: Vec<HttpAuthority> = uri.authority().cloned().into_iter().collect();
    for value in headers.get_all(HOST) {
        named.push(value.to_str().ok()?.parse().ok()?);
    }
    // Two of them, or a user before the host, are an attempt to have it read in two ways.
    let is_plain = headers.get_all(HOST).iter().count() == 1 && named.iter().all(|named| !named.as_str().contains('@'));
    is_plain.then_some(named)
}

/// Passes bytes between a process and a host that have both switched to another protocol.
async fn switched(process: OnUpgrade, host: OnUpgrade) {
    let (Ok(process), Ok(host)) = tokio::join!(process, host) else { return };
    let mut process = TokioIo::new(process);
    let mut host = TokioIo::new(host);
    // An end without a goodbye is that of the protocol in use.
    let _ = tokio::io::copy_bidirectional(&mut process, &mut host).await;
}
