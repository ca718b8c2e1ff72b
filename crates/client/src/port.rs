//! Ports of a sandbox: the list of them, and connections to them.

use std::io;

use api::{ListeningPort, PortMessage, Preview, PreviewRequest, SocketEof, SocketKind};
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, Stream, StreamExt};
use reqwest::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use reqwest::{Method, StatusCode, Upgraded};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as Fault, Message};

use crate::connection::Patience;
use crate::error::innermost;
use crate::sandbox::sandbox_path;
use crate::{Client, Error, Result};

/// Largest message that is sent, in bytes.
const PIECE_BYTES_MAX: usize = 64 * 1024;
/// Largest message that is taken from the server, in bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Size of reads and writes, in bytes.
const BUFFER_BYTES: usize = 16 * 1024;

pub(crate) type Socket = WebSocketStream<Upgraded>;

/// Ports.
impl Client {
    /// Returns the TCP ports that processes of the sandbox `id` listen on, by number and address.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn ports(&self, id: &str) -> Result<Vec<ListeningPort>> {
        self.get_list(&sandbox_path(id, "/ports")?).await
    }

    /// Connects to a TCP port that a process of the sandbox `id` listens on, and sends it `input`.
    /// The end of `input` is the end of what the process receives; an error of it resets the
    /// connection.
    ///
    /// # Errors
    /// `not_found` if there is no such sandbox or nothing listens on the port, another
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn connect_port(
        &self,
        id: &str,
        port: u16,
        input: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<PortStream> {
        self.open_port(&sandbox_path(id, &format!("/ports/{port}/connect"))?, input).await
    }

    pub(crate) async fn open_port(
        &self,
        path: &str,
        input: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<PortStream> {
        let (sink, source) = self.open_socket(path).await?.split();
        let mut sender = JoinSet::new();
        sender.spawn(send(sink, input));
        Ok(PortStream { client: self.clone(), open: Some(Open { source, sender }), has_ended: false })
    }

    /// Returns a URL that opens a port of the sandbox `id` in a browser.
    ///
    /// # Errors
    /// `not_found` if there is no such sandbox, `resource_limit` if the time is above the longest
    /// lifetime; another [`Error`] if no answer comes.
    pub async fn preview(&self, id: &str, request: &PreviewRequest) -> Result<Preview> {
        self.send_json(Method::POST, &sandbox_path(id, "/preview")?, request, Patience::Short).await
    }

    pub(crate) async fn open_socket(&self, path: &str) -> Result<Socket> {
        let key = generate_key();
        let request = self
            .request(Method::GET, path, Patience::Short)
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, &key)
            .header(SEC_WEBSOCKET_PROTOCOL, api::SOCKET_PROTOCOL);
        let response = self.send_any(request).await?;
        let status = response.status();
        if status.is_success() {
            return Err(self.protocol(format!("status {status} instead of a WebSocket")));
        }
        if status != StatusCode::SWITCHING_PROTOCOLS {
            return Err(self.refusal(response).await);
        }
        let accept = response.headers().get(SEC_WEBSOCKET_ACCEPT);
        if accept.is_none_or(|accept| accept != derive_accept_key(key.as_bytes()).as_str()) {
            return Err(self.protocol("the WebSocket handshake does not match the request".to_owned()));
        }
        let io = response.upgrade().await.map_err(|error| cut(innermost(&error)))?;
        let config = WebSocketConfig::default()
            .read_buffer_size(BUFFER_BYTES)
            .write_buffer_size(BUFFER_BYTES)
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        Ok(WebSocketStream::from_raw_socket(io, Role::Client, Some(config)).await)
    }
}

/// A connection to a port: what the process sends. Dropping it resets the connection.
#[derive(Debug)]
pub struct PortStream {
    client: Client,
    /// `None` after the end.
    open: Option<Open>,
    /// True once the process sends no more.
    has_ended: bool,
}

#[derive(Debug)]
struct Open {
    source: SplitStream<Socket>,
    /// Task that sends the input.
    sender: JoinSet<Result<()>>,
}

impl PortStream {
    /// Returns the next bytes of the process. An empty piece, which comes once, says that it sends
    /// no more; `None` that both directions have ended, or that there was an error. Cancel-safe: no
    /// bytes are lost by dropping this future.
    ///
    /// A stream that is not read for five minutes is cut by the server.
    ///
    /// # Errors
    /// [`Error::Io`] if the input failed; [`Error::Api`] if the sandbox ended or its provider
    /// failed; [`Error::Cut`], [`Error::Timeout`] or [`Error::Protocol`] if the server sends no more,
    /// not even a ping for [`crate::Options::silence_max`], or a message that cannot be read. The
    /// connection is reset.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let Some(open) = &mut self.open else { return Ok(None) };
        let piece = match open.next(&self.client, self.has_ended).await {
            Ok(Some(piece)) if piece.is_empty() && std::mem::replace(&mut self.has_ended, true) => {
                Err(self.client.protocol("a port connection ended twice".to_owned()))
            }
            piece => piece,
        };
        if !matches!(piece, Ok(Some(_))) {
            self.open = None;
        }
        piece
    }
}

impl Open {
    async fn next(&mut self, client: &Client, has_ended: bool) -> Result<Option<Bytes>> {
        let after = client.silence_max();
        loop {
            let message = tokio::select! {
                Some(sent) = self.sender.join_next() => {
                    sent.map_err(|error| cut(error.to_string()))??;
                    continue;
                }
                message = timeout(after, self.source.next()) => message.map_err(|_| Error::Timeout { after })?,
            };
            match message {
                Some(Ok(Message::Binary(bytes))) if bytes.is_empty() => {}
                Some(Ok(Message::Binary(bytes))) => return Ok(Some(bytes)),
                Some(Ok(Message::Text(text))) => return told(client, &text).map(Some),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(Some(CloseFrame { code: CloseCode::Normal, .. })))) if has_ended => {
                    return Ok(None);
                }
                Some(Ok(Message::Close(_))) | None => return Err(cut("the server closed the connection".to_owned())),
                Some(Err(Fault::Capacity(error))) => return Err(client.protocol(error.to_string())),
                Some(Err(error)) => return Err(cut(error.to_string())),
            }
        }
    }
}

/// Reads a text message: the end of what the process sends, or an error.
fn told(client: &Client, text: &str) -> Result<Bytes> {
    match serde_json::from_str(text) {
        Ok(PortMessage::Eof) => Ok(Bytes::new()),
        Ok(PortMessage::Error { code, message }) => {
            let status = StatusCode::SWITCHING_PROTOCOLS.as_u16();
            Err(Error::Api { status, code, message, request_id: None })
        }
        Err(error) => Err(client.protocol(format!("cannot parse a message: {error}"))),
    }
}

/// Sends the input at the speed of the process, and then its end.
async fn send(
    mut sink: SplitSink<Socket, Message>,
    input: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Result<()> {
    let mut input = std::pin::pin!(input);
    while let Some(piece) = input.next().await {
        let mut piece = piece.map_err(Error::Io)?;
        while !piece.is_empty() {
            let message = Message::Binary(piece.split_to(PIECE_BYTES_MAX.min(piece.len())));
            if sink.send(message).await.is_err() {
                // The last message of the server says why.
                return Ok(());
            }
        }
    }
    let end = serde_json::to_string(&SocketEof { kind: SocketKind::Eof }).expect("a message is JSON");
    let _ = sink.send(Message::text(end)).await;
    Ok(())
}

pub(crate) fn cut(reason: String) -> Error {
    Error::Cut { what: "both directions had ended", reason }
}
