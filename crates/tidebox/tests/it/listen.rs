//! Listeners and their limits: TLS, the Unix socket, bounds, draining.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::server::{PATIENCE, TestServer};

mod bounds;
mod drain;
mod framing;
mod peer;
mod socket;
mod tls;

/// A request that is answered from memory, and the connection's last.
const HEALTH: &str = "GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Returns the address that the server listens on.
fn address(server: &TestServer) -> SocketAddr {
    server.url.split_once("://").unwrap().1.parse().unwrap()
}

/// Reads until the connection ends, also when it is reset.
async fn rest(stream: &mut (impl AsyncRead + Unpin + ?Sized), patience: Duration) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(patience, stream.read_to_end(&mut answer)).await;
    assert!(read.is_ok(), "the connection stays open: {}", String::from_utf8_lossy(&answer));
    String::from_utf8_lossy(&answer).into_owned()
}

/// Sends bytes and reads until the server hangs up.
async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, bytes: &[u8]) -> String {
    // The server may refuse before all is sent.
    let _ = stream.write_all(bytes).await;
    rest(&mut stream, PATIENCE).await
}

async fn tcp(server: &TestServer) -> TcpStream {
    TcpStream::connect(address(server)).await.unwrap()
}

/// Splits an answer of known length into head and body.
fn parted(answer: &str) -> (&str, &str) {
    answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

#[track_caller]
fn is_health(answer: &str) {
    let (head, body) = parted(answer);
    assert!(head.starts_with("HTTP/1.1 200 ") && body.contains(r#""status":"ok""#), "{answer}");
}

/// A self-signed certificate for `localhost`, with its key.
pub struct Certificate {
    pem: String,
    key: String,
}

impl Certificate {
    pub fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        Self { pem: made.cert.pem(), key: made.signing_key.serialize_pem() }
    }

    fn write(&self, dir: &Path) -> (PathBuf, PathBuf) {
        let files = (dir.join("cert.pem"), dir.join("key.pem"));
        std::fs::write(&files.0, &self.pem).unwrap();
        std::fs::write(&files.1, &self.key).unwrap();
        files
    }

    /// Returns the settings of a server that uses it from `dir`.
    pub fn settings(&self, dir: &Path) -> String {
        let (cert, key) = self.write(dir);
        format!("server.tls.cert_file={} server.tls.key_file={}", cert.display(), key.display())
    }

    fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()
    }

    /// Connects as a client that trusts only this certificate.
    async fn connect(&self, server: &TestServer) -> TlsStream<TcpStream> {
        self.try_connect(server, "localhost", &["http/1.1"]).await.unwrap()
    }

    pub async fn try_connect(
        &self,
        server: &TestServer,
        name: &'static str,
        protocols: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.der()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let connecting = TlsConnector::from(Arc::new(config)).connect(name.try_into().unwrap(), tcp(server).await);
        tokio::time::timeout(PATIENCE, connecting).await.expect("a handshake ends")
    }
}

/// Runs a server that must not start and returns its exit code and messages.
fn refused_start(settings: &[(&str, &str)]) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidebox"));
    command.arg("serve").env_clear().env("HOME", dir.path()).current_dir(dir.path()).stdin(Stdio::null());
    command.env("TIDEBOX_SERVER_PORT", "0").env("TIDEBOX_DATA_DIR", dir.path().join("data"));
    command.env("TIDEBOX_SYSTEM_CONFIG", "");
    command.env("TIDEBOX_PROVIDERS_NATIVE_ENABLED", "false");
    for (key, value) in settings {
        command.env(format!("TIDEBOX_{}", key.replace('.', "_").to_uppercase()), value);
    }
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}
