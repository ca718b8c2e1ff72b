//! The client over TLS: the certificates that it trusts and refuses.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use tidebox_client::{Client, Error, Options};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate authority of the test, and a server with its certificate.
struct TlsServer {
    folder: tempfile::TempDir,
    url: String,
    _serving: JoinSet<()>,
}

impl TlsServer {
    /// Starts a server with a certificate for `name`.
    async fn named(name: &str) -> TlsServer {
        let mut of_authority = CertificateParams::new(Vec::new()).expect("parameters");
        of_authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(of_authority, key).expect("an authority");
        let key = KeyPair::generate().expect("a key");
        let of_server = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        let certificate = of_server.signed_by(&key, &authority).expect("a certificate");
        TlsServer::with(&authority.pem(), &certificate, &key).await
    }

    /// Starts a server with a certificate that its own key has signed and that is that of an authority, as
    /// `openssl req -x509` makes it.
    async fn vouching_for_itself(name: &str, last_year: i32) -> TlsServer {
        let mut parameters = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.not_after = date_time_ymd(last_year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = parameters.self_signed(&key).expect("a certificate");
        TlsServer::with(&certificate.pem(), &certificate, &key).await
    }

    /// Starts a server with this certificate; `authority` is what its callers are given.
    async fn with(authority: &str, certificate: &Certificate, key: &KeyPair) -> TlsServer {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("ca.pem"), authority).expect("a file");
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from(certificate.der().to_vec())],
                PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
            )
            .expect("a server");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("https://127.0.0.1:{}", listener.local_addr().expect("an address").port());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.is_ok_and(|count| count > 0) {}
                let body = r#"{"status":"alive","version":"0","uptime":"1s"}"#;
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        TlsServer { folder, url, _serving: serving }
    }

    fn authority(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    fn client(&self, ca_file: Option<&Path>) -> Client {
        Client::open(&self.url, Options { api_key: Some("k"), ca_file, ..Options::default() }).expect("a client")
    }
}

fn refusal(error: Error) -> String {
    match error {
        Error::Connect { reason, .. } => reason,
        other @ (Error::Argument { .. }
        | Error::Timeout { .. }
        | Error::Api { .. }
        | Error::Protocol { .. }
        | Error::Cut { .. }
        | Error::TooLarge { .. }
        | Error::Io(_)) => panic!("not a refusal to connect: {other:?}"),
    }
}

#[tokio::test]
async fn an_authority_of_our_own_is_trusted_when_it_is_named() {
    let server = TlsServer::named("127.0.0.1").await;
    assert_eq!(server.client(Some(&server.authority())).live().await.expect("an answer").status, "alive");
}

#[tokio::test]
async fn a_server_that_nobody_vouches_for_is_refused() {
    let (server, other) = (TlsServer::named("127.0.0.1").await, TlsServer::named("127.0.0.1").await);
    let reason = refusal(server.client(Some(&other.authority())).live().await.unwrap_err());
    assert!(reason.contains("certificate"), "{reason}");
    // The system's authorities have not signed its certificate either.
    let error = server.client(None).live().await.unwrap_err();
    assert!(refusal(error).contains("certificate"));
}

#[tokio::test]
async fn a_certificate_that_is_given_itself_is_trusted_for_its_names_and_its_time() {
    let server = TlsServer::vouching_for_itself("127.0.0.1", 4000).await;
    assert_eq!(server.client(Some(&server.authority())).live().await.expect("an answer").status, "alive");
    // Another one of the same kind and name, one for another name, and one whose time is over.
    let other = TlsServer::vouching_for_itself("127.0.0.1", 4000).await;
    let reason = refusal(other.client(Some(&server.authority())).live().await.unwrap_err());
    assert!(reason.contains("certificate"), "{reason}");
    for server in [
        TlsServer::vouching_for_itself("boxes.example.com", 4000).await,
        TlsServer::vouching_for_itself("127.0.0.1", 2001).await,
    ] {
        let reason = refusal(server.client(Some(&server.authority())).live().await.unwrap_err());
        assert!(reason.contains("certificate"), "{reason}");
    }
}

#[tokio::test]
async fn a_server_of_another_name_is_refused() {
    let server = TlsServer::named("boxes.example.com").await;
    let reason = refusal(server.client(Some(&server.authority())).live().await.unwrap_err());
    assert!(reason.contains("certificate"), "{reason}");
}

#[tokio::test]
async fn a_server_without_tls_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let server = TlsServer::named("127.0.0.1").await;
    let ca_file = Some(server.authority());
    let client = Client::open(&url, Options { ca_file: ca_file.as_deref(), ..Options::default() }).expect("a client");
    refusal(client.live().await.unwrap_err());
}
