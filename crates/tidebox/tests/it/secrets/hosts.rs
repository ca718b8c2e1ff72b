//! Hosts of a test's own: one server on loopback that is all of them, over TLS, and keeps what it is
//! asked.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::authority::authority;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Host that the client named in TLS.
    pub host: String,
    /// Request line and headers.
    pub head: String,
    pub body: Vec<u8>,
    /// Lines behind a body in chunks.
    pub trailers: String,
}

impl Asked {
    /// Returns the values of a header.
    pub fn header(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }
}

pub struct Hosts {
    pub port: u16,
    /// Certificate of the authority that vouches for the hosts, as PEM.
    pub authority: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    _tasks: JoinSet<()>,
}

impl Hosts {
    pub async fn start(hosts: &[&str]) -> Hosts {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (authority, acceptor) = authority(hosts);
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let mut tasks = JoinSet::new();
        let heard = Arc::clone(&asked);
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                // A client may hang up at any time.
                open.spawn(serve(acceptor.clone(), stream, Arc::clone(&heard)));
            }
        });
        Hosts { port, authority, asked, _tasks: tasks }
    }

    /// Returns what was asked since the last call.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream, heard: Arc<Mutex<Vec<Asked>>>) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let host = stream.get_ref().1.server_name().unwrap_or("no name").to_owned();
    let mut stream = BufReader::new(stream);
    while let Some(true) = answer(&host, &mut stream, &heard).await {}
}

/// Answers one request; `None` once the client has gone.
async fn answer(host: &str, stream: &mut BufReader<TlsStream<TcpStream>>, heard: &Mutex<Vec<Asked>>) -> Option<bool> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let asked = Asked { host: host.to_owned(), head, body: Vec::new(), trailers: String::new() };
    let length = asked.header("content-length").first().map_or(0, |length| length.parse().unwrap());
    let (mut body, mut trailers) = (vec![0; length], String::new());
    stream.read_exact(&mut body).await.ok()?;
    if asked.header("transfer-encoding") == ["chunked"] {
        (body, trailers) = chunks(stream).await?;
    }
    let path = asked.head.split(' ').nth(1).unwrap().to_owned();
    heard.lock().unwrap().push(Asked { body: body.clone(), trailers, ..asked });
    let (line, content) = match path.as_str() {
        "/redirect" => ("302 Found\r\nLocation: /elsewhere".to_owned(), Vec::new()),
        "/echo" => ("200 OK".to_owned(), body),
        "/switch" => {
            let line = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nhello";
            stream.write_all(line).await.ok()?;
            stream.flush().await.ok()?;
            let (mut read, mut write) = tokio::io::split(stream);
            tokio::io::copy(&mut read, &mut write).await.ok()?;
            return None;
        }
        "/events" => {
            let line = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(format!("{line}9\r\ndata: 1\n\n\r\n").as_bytes()).await.ok()?;
            stream.flush().await.ok()?;
            // The next event never comes.
            stream.read_u8().await.ok()?;
            return None;
        }
        "/twice" => ("200 OK\r\nTransfer-Encoding: chunked".to_owned(), b"0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n".to_vec()),
        _ => ("200 OK".to_owned(), b"ok\n".to_vec()),
    };
    let head = format!("HTTP/1.1 {line}\r\nContent-Length: {}\r\n\r\n", content.len());
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(&content).await.ok()?;
    stream.flush().await.ok()?;
    Some(true)
}

/// Reads a body in chunks, and the lines behind it.
async fn chunks(stream: &mut BufReader<TlsStream<TcpStream>>) -> Option<(Vec<u8>, String)> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let length = usize::from_str_radix(line.trim(), 16).ok()?;
        if length == 0 {
            let mut trailers = String::new();
            while stream.read_line(&mut trailers).await.ok()? > 2 {}
            return Some((body, trailers));
        }
        let mut chunk = vec![0; length + 2];
        stream.read_exact(&mut chunk).await.ok()?;
        body.extend_from_slice(&chunk[..length]);
    }
}
