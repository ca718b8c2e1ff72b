//! Byte streams below the Engine's API: a unix socket, TCP, or TLS over TCP.
//!
//! Each request has a connection of its own, as in bollard: an attached one is never returned,
//! and a local socket costs next to nothing.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::{BollardRequest, Docker as Client};
use http::header::HOST;
use http::{HeaderValue, Response, Uri};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::task::TaskTracker;

use super::config::{DockerConfig, DockerTls};

/// Default socket of an Engine.
const USUAL_SOCKET: &str = "/var/run/docker.sock";
/// Limit for making a connection.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// API version of requests. An older Engine is asked in its own, down to
/// [`super::engine::API_MIN`].
const API: bollard::ClientVersion = bollard::ClientVersion { major_version: 1, minor_version: 44 };
/// Limit for the head of an answer. Starting a box takes long on an Engine that makes many at
/// once.
const ANSWER_WAIT_SECS: u64 = 120;

/// Address of the Engine.
#[derive(Clone)]
pub(super) enum Endpoint {
    Unix(PathBuf),
    /// Host and port, and TLS if configured.
    Tcp(String, Option<(TlsConnector, ServerName<'static>)>),
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "{}", path.display()),
            Endpoint::Tcp(address, None) => write!(f, "tcp://{address}"),
            Endpoint::Tcp(address, Some(_)) => write!(f, "tcp://{address} (TLS)"),
        }
    }
}

impl Endpoint {
    /// Finds the Engine by the configuration, or else by the environment of Docker's own client.
    ///
    /// # Errors
    /// A message for the operator that says what is wrong.
    pub(super) fn find(config: &DockerConfig) -> Result<Endpoint, String> {
        Endpoint::find_with(config, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn find_with(config: &DockerConfig, environment: impl Fn(&str) -> Option<String>) -> Result<Endpoint, String> {
        let (socket, tls, origin) = if config.socket.is_empty() {
            let Some(host) = environment("DOCKER_HOST") else { return Ok(Endpoint::Unix(USUAL_SOCKET.into())) };
            let folder = environment("DOCKER_CERT_PATH").map(PathBuf::from);
            let tls = environment("DOCKER_TLS_VERIFY").and(folder).map(|folder| DockerTls {
                ca: folder.join("ca.pem"),
                cert: Some(folder.join("cert.pem")),
                key: Some(folder.join("key.pem")),
            });
            if tls.is_none() && environment("DOCKER_TLS_VERIFY").is_some() && host.starts_with("tcp://") {
                return Err("DOCKER_TLS_VERIFY is set without DOCKER_CERT_PATH; name the folder of ca.pem, cert.pem \
                            and key.pem, or set providers.docker.socket and providers.docker.tls"
                    .to_owned());
            }
            (host, config.tls.clone().or(tls), "DOCKER_HOST")
        } else {
            (config.socket.clone(), config.tls.clone(), "providers.docker.socket")
        };
        if let Some(path) = socket.strip_prefix("unix://").or_else(|| socket.starts_with('/').then_some(&socket)) {
            return Ok(Endpoint::Unix(path.into()));
        }
        let address = socket.strip_prefix("tcp://").or_else(|| socket.strip_prefix("http://"));
        let address = address.map(|address| address.trim_end_matches('/').to_owned());
        let Some(address) = address.filter(|address| has_port(address)) else {
            return Err(format!(
                "{origin} is {socket:?}, which is not an Engine address; write a path, unix:///path, or tcp://host:port"
            ));
        };
        let Some(tls) = tls else { return Ok(Endpoint::Tcp(address, None)) };
        let host = address.rsplit_once(':').map_or("", |(host, _)| host).trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host)
            .map_err(|_| format!("{origin} has a host that is not valid in a certificate"))?;
        Ok(Endpoint::Tcp(address, Some((connector(&tls)?, name))))
    }

    /// Returns a client of the Engine's API. `tasks` runs the drivers of its connections.
    pub(super) fn client(&self, tasks: &TaskTracker) -> Result<Client, bollard::errors::Error> {
        let endpoint = Arc::new(self.clone());
        let tasks = tasks.clone();
        let transport = move |request: BollardRequest| {
            let endpoint = Arc::clone(&endpoint);
            let tasks = tasks.clone();
            async move { endpoint.send(request, &tasks).await }
        };
        let client = Client::connect_with_custom_transport(transport, Some("http://engine"), ANSWER_WAIT_SECS, &API)?;
        Ok(client.with_request_modifier(readable_login))
    }

    async fn send(
        &self,
        request: BollardRequest,
        tasks: &TaskTracker,
    ) -> Result<Response<Incoming>, bollard::errors::Error> {
        let io = tokio::time::timeout(CONNECT_WAIT, self.connect());
        let io = io.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
        // Ends with the connection, once the answer or the stream that it was upgraded to is
        // dropped.
        tasks.spawn(connection.with_upgrades());
        let mut request = request;
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let path: Uri = path.parse().map_err(http::Error::from)?;
        *request.uri_mut() = path;
        let host = match self {
            Endpoint::Unix(_) => HeaderValue::from_static("docker"),
            Endpoint::Tcp(address, _) => HeaderValue::try_from(address).map_err(http::Error::from)?,
        };
        request.headers_mut().insert(HOST, host);
        Ok(sender.send_request(request).await?)
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Endpoint::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
            Endpoint::Tcp(address, tls) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                keep_alive(&stream)?;
                match tls {
                    None => Ok(Box::new(stream)),
                    Some((connector, name)) => Ok(Box::new(connector.connect(name.clone(), stream).await?)),
                }
            }
        }
    }
}

/// Returns whether an address has a host and a port.
fn has_port(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Enables TCP keep-alive, so that a vanished Engine is noticed even while the connection is
/// idle.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(15))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5))?;
    Ok(sockopt::set_tcp_keepcnt(stream, 3)?)
}

/// Rewrites a login from the base64 alphabet of bollard to that of Engines.
fn readable_login(mut request: BollardRequest) -> BollardRequest {
    const LOGIN: &str = "X-Registry-Auth";
    let rewritten = request.headers().get(LOGIN).and_then(|value| {
        let mut value = HeaderValue::try_from(value.to_str().ok()?.replace('+', "-").replace('/', "_")).ok()?;
        value.set_sensitive(true);
        Some(value)
    });
    if let Some(value) = rewritten {
        request.headers_mut().insert(LOGIN, value);
    }
    request
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let read = read.map_err(|error| unreadable(path, &error))?;
    if read.is_empty() { Err(unreadable(path, &"it contains no certificate")) } else { Ok(read) }
}

fn unreadable(path: &Path, error: &dyn fmt::Display) -> String {
    format!("{} cannot be used for providers.docker.tls: {error}", path.display())
}

fn connector(tls: &DockerTls) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&tls.ca)? {
        roots.add(certificate).map_err(|error| unreadable(&tls.ca, &error))?;
    }
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let config = match (&tls.cert, &tls.key) {
        (None, None) => config.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let own = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
            config.with_client_auth_cert(certificates(cert)?, own).map_err(|error| unreadable(cert, &error))?
        }
        _ => {
            return Err("providers.docker.tls has only one of cert and key; set both if the Engine asks for a \
                        certificate, otherwise neither"
                .to_owned());
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod test {
    use std::collections::HashMap;

    use domain::StoreId;

    use super::*;

    fn found(socket: &str, environment: &[(&str, &str)]) -> Result<String, String> {
        let config = DockerConfig { socket: socket.to_owned(), ..DockerConfig::new(StoreId::from_entropy([1; 10])) };
        let environment: HashMap<_, _> = environment.iter().copied().collect();
        let found = Endpoint::find_with(&config, |name| environment.get(name).map(|value| (*value).to_owned()));
        found.map(|endpoint| endpoint.to_string())
    }

    #[test]
    fn the_engine_is_where_the_configuration_the_environment_or_habit_says() {
        assert_eq!(found("", &[]).unwrap(), "/var/run/docker.sock");
        assert_eq!(found("", &[("DOCKER_HOST", "unix:///run/user/7/docker.sock")]).unwrap(), "/run/user/7/docker.sock");
        assert_eq!(found("", &[("DOCKER_HOST", "tcp://engine:2375/")]).unwrap(), "tcp://engine:2375");
        let other = [("DOCKER_HOST", "tcp://engine:2375")];
        assert_eq!(found("/run/podman.sock", &other).unwrap(), "/run/podman.sock");
        assert_eq!(found("unix:///run/other.sock", &other).unwrap(), "/run/other.sock");
        assert_eq!(found("tcp://[::1]:2376", &other).unwrap(), "tcp://[::1]:2376");
    }

    #[test]
    fn what_names_no_engine_is_said_with_where_it_comes_from() {
        for socket in ["engine", "tcp://engine", "tcp://:2375", "ssh://engine", "tcp://engine:http"] {
            let error = found(socket, &[]).unwrap_err();
            assert!(error.contains("providers.docker.socket") && error.contains(socket), "{error}");
            assert!(found("", &[("DOCKER_HOST", socket)]).unwrap_err().contains("DOCKER_HOST"));
        }
        let error = found("", &[("DOCKER_HOST", "tcp://e:1"), ("DOCKER_TLS_VERIFY", "1")]).unwrap_err();
        assert!(error.contains("DOCKER_CERT_PATH"), "{error}");
        let tls = [("DOCKER_HOST", "tcp://e:1"), ("DOCKER_TLS_VERIFY", "1"), ("DOCKER_CERT_PATH", "/nowhere")];
        let error = found("", &tls).unwrap_err();
        assert!(error.contains("/nowhere/ca.pem"), "{error}");
    }

    #[test]
    fn a_login_is_written_in_the_alphabet_that_engines_read() {
        let request = http::Request::builder().header("X-Registry-Auth", "a+b/c==");
        let request = request.body(bollard::body_full(bytes::Bytes::new())).unwrap();
        assert_eq!(readable_login(request).headers()["X-Registry-Auth"], "a-b_c==");
    }
}
