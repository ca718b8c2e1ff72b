//! HTTP/2: a client, frames by hand, and what the server promises to both.

mod attacks;
mod bounds;
mod requests;

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::{HeaderMap, Request, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::server::{PATIENCE, TestServer};

/// First bytes of a client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
// Kinds of frames, and their flags.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A client with one connection.
pub struct Client {
    sender: SendRequest<Bytes>,
    /// Task that reads and writes the connection; it returns the connection's end.
    driver: JoinSet<Result<(), h2::Error>>,
}

/// An answer with its whole body.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
}

impl Reply {
    pub async fn read(response: ResponseFuture) -> Result<Self, h2::Error> {
        let read = async {
            let (head, mut stream) = response.await?.into_parts();
            let mut body = Vec::new();
            while let Some(bytes) = stream.data().await {
                let bytes = bytes?;
                stream.flow_control().release_capacity(bytes.len())?;
                body.extend_from_slice(&bytes);
            }
            let trailers = stream.trailers().await?;
            Ok(Self { status: head.status, headers: head.headers, body, trailers })
        };
        timeout(PATIENCE, read).await.expect("a whole answer comes")
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }
}

impl Client {
    pub async fn open(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        Self::built(Builder::new().initial_window_size(1 << 20).initial_connection_window_size(1 << 24), io).await
    }

    pub async fn built(builder: &Builder, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (sender, connection) = builder.handshake(io).await.unwrap();
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        Self { sender, driver }
    }

    /// Connects without TLS, by prior knowledge.
    pub async fn to(server: &TestServer) -> Self {
        Self::open(tcp(server).await).await
    }

    /// Sends the head of a request, which is all of it if it `is_end`.
    pub async fn send(
        &mut self,
        request: Request<()>,
        is_end: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        timeout(PATIENCE, poll_fn(|context| self.sender.poll_ready(context))).await.expect("there is a place")?;
        self.sender.send_request(request, is_end)
    }

    /// Sends a request without a body and reads the answer.
    pub async fn ask(&mut self, method: &str, host: &str, path: &str) -> Result<Reply, h2::Error> {
        let request = Request::builder().method(method).uri(format!("http://{host}{path}")).body(()).unwrap();
        Reply::read(self.send(request, true).await?.0).await
    }

    /// Sends a request with a body and reads the answer.
    pub async fn put(&mut self, request: Request<()>, body: &[u8]) -> Result<Reply, h2::Error> {
        let (response, mut stream) = self.send(request, false).await?;
        let (reply, _) = tokio::join!(Reply::read(response), write(&mut stream, body, true));
        reply
    }

    pub async fn is_healthy(&mut self) {
        let reply = self.ask("GET", "localhost", "/api/v1/health").await.unwrap();
        assert!(reply.status == 200 && reply.text().contains(r#""status":"ok""#), "{reply:?}");
    }

    /// Waits for the end of the connection, and returns the server's reason.
    pub async fn end(&mut self, patience: Duration) -> Option<Reason> {
        let ended = timeout(patience, self.driver.join_next()).await.expect("the connection ends");
        ended.unwrap().unwrap().err().and_then(|error| error.reason())
    }
}

/// Sends bytes as fast as the server takes them. Returns how many it took.
pub async fn write(stream: &mut SendStream<Bytes>, bytes: &[u8], is_end: bool) -> usize {
    let mut sent = 0;
    while sent < bytes.len() {
        stream.reserve_capacity((bytes.len() - sent).min(1 << 16));
        if stream.capacity() == 0 && !matches!(poll_fn(|context| stream.poll_capacity(context)).await, Some(Ok(_))) {
            return sent;
        }
        let count = stream.capacity().min(bytes.len() - sent);
        if stream.send_data(Bytes::copy_from_slice(&bytes[sent..sent + count]), false).is_err() {
            return sent;
        }
        sent += count;
    }
    if is_end {
        let _ = stream.send_data(Bytes::new(), true);
    }
    sent
}

async fn tcp(server: &TestServer) -> TcpStream {
    TcpStream::connect(server.url.split_once("://").unwrap().1).await.unwrap()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the block of headers of a request to the API.
fn block(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    // Scheme `http`, and names by their numbers in the static table.
    let mut block = vec![0x86];
    let text = |block: &mut Vec<u8>, text: &str| {
        assert!(text.len() < 127, "longer texts have longer lengths");
        block.push(u8::try_from(text.len()).unwrap());
        block.extend_from_slice(text.as_bytes());
    };
    for (name, value) in [(2, method), (4, path), (1, "localhost")] {
        block.push(name);
        text(&mut block, value);
    }
    for (name, value) in more {
        block.push(0);
        text(&mut block, name);
        text(&mut block, value);
    }
    block
}

/// Kind, flags, stream and payload.
type Frame = (u8, u8, u32, Vec<u8>);

/// A connection with frames by hand. What the server sends is read all the time.
struct Raw {
    writer: tokio::net::tcp::OwnedWriteHalf,
    /// Reads to the end, and returns the frames.
    reader: JoinSet<Vec<Frame>>,
}

impl Raw {
    /// Connects and sends the preface and settings.
    async fn open(server: &TestServer) -> Self {
        let (mut reader, writer) = tcp(server).await.into_split();
        let mut frames = JoinSet::new();
        frames.spawn(async move {
            let mut came = Vec::new();
            let mut head = [0; 9];
            while reader.read_exact(&mut head).await.is_ok() {
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                let mut payload = vec![0; length as usize];
                if reader.read_exact(&mut payload).await.is_err() {
                    break;
                }
                came.push((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload));
            }
            came
        });
        let mut raw = Self { writer, reader: frames };
        assert!(raw.send(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).await);
        raw
    }

    /// Returns whether the bytes could be sent.
    async fn send(&mut self, bytes: &[u8]) -> bool {
        timeout(PATIENCE, self.writer.write_all(bytes)).await.is_ok_and(|written| written.is_ok())
    }

    /// Waits for the end and returns the frames that came.
    async fn frames(mut self, patience: Duration) -> Vec<Frame> {
        let ended = timeout(patience, self.reader.join_next()).await;
        ended.expect("the server hangs up").unwrap().unwrap()
    }

    /// Waits for the end and returns the reason of the server.
    async fn reason(self, patience: Duration) -> Option<u32> {
        let frames = self.frames(patience).await;
        let last = frames.iter().rev().find(|(kind, ..)| *kind == GOAWAY);
        last.map(|(.., payload)| u32::from_be_bytes(payload[4..8].try_into().unwrap()))
    }
}

/// Reasons by number.
const NO_ERROR: u32 = 0;
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const ENHANCE_YOUR_CALM: u32 = 11;
