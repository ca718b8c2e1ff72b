//! An internet of the test's own: one server on loopback that is every host, over TLS.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;

use crate::authority::authority;

/// Program that writes what the hosts serve.
const FILES: &str = include_str!("files.py");

pub struct Internet {
    pub port: u16,
    /// Certificate of the authority that vouches for the hosts, as PEM.
    pub authority: String,
    asked: Arc<Mutex<BTreeSet<String>>>,
    serving: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Internet {
    pub async fn start(hosts: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("tidebox-internet-").tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let written =
            Command::new("python3").args(["-c", FILES]).arg(folder.path()).arg(port.to_string()).status().unwrap();
        assert!(written.success());
        let (authority, acceptor) = authority(hosts);
        let asked = Arc::<Mutex<BTreeSet<String>>>::default();
        let (root, heard) = (folder.path().to_owned(), Arc::clone(&asked));
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, root, heard) = (acceptor.clone(), root.clone(), Arc::clone(&heard));
                tokio::spawn(async move {
                    // A client may hang up.
                    if let Ok(stream) = acceptor.accept(stream).await {
                        let host = stream.get_ref().1.server_name().expect("a client names the host").to_owned();
                        let _ = answer(stream, &root.join(&host)).await;
                        heard.lock().unwrap().insert(host);
                    }
                });
            }
        });
        Self { port, authority, asked, serving, _folder: folder }
    }

    /// Returns true if a connection to this host has arrived.
    pub fn was_asked(&self, host: &str) -> bool {
        self.asked.lock().unwrap().contains(host)
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Answers one request with a file of the folder.
async fn answer(stream: TlsStream<TcpStream>, folder: &Path) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).await? > 0 {}
    let path = head.split_whitespace().nth(1).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default().trim_start_matches('/');
    let file: PathBuf = if path.ends_with('/') { folder.join(path).join("index.html") } else { folder.join(path) };
    let (status, body) = std::fs::read(file).map_or(("404 Not Found", Vec::new()), |content| ("200 OK", content));
    let kind = if path.ends_with('/') { "text/html" } else { "application/octet-stream" };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await
}
