//! Ports of a sandbox that this client listens on.

use std::io;

use api::{ListenKind, ListenMessage, ListenRefuse};
use bytes::Bytes;
use futures_util::{SinkExt, Stream, StreamExt};
use reqwest::StatusCode;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use crate::port::{PortStream, Socket, cut};
use crate::sandbox::sandbox_path;
use crate::{Client, Error, Result};

/// Ports that are listened on.
impl Client {
    /// Listens on a port of the loopback of the sandbox `id`: each connection of a program there is
    /// announced here.
    ///
    /// # Errors
    /// `not_found` if there is no such sandbox, `conflict` if the port is in use, `not_supported` if the
    /// provider cannot or the operator does not allow it, another [`Error::Api`] if the server refuses,
    /// another [`Error`] if no answer comes.
    pub async fn listen_port(&self, id: &str, port: u16) -> Result<PortListener> {
        let path = sandbox_path(id, &format!("/ports/{port}/listen"))?;
        let socket = Box::new(self.open_socket(&path).await?);
        Ok(PortListener { client: self.clone(), id: id.to_owned(), port, socket })
    }

    /// Takes the connection of this number to a port that is listened on, and sends it `input`, as
    /// [`Client::connect_port`].
    ///
    /// # Errors
    /// `not_found` if no such connection waits, another [`Error::Api`] if the server refuses, another
    /// [`Error`] if no answer comes.
    pub async fn accept_port(
        &self,
        id: &str,
        port: u16,
        connection: u64,
        input: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<PortStream> {
        let path = sandbox_path(id, &format!("/ports/{port}/listen/{connection}"))?;
        self.open_port(&path, input).await
    }
}

/// A port of a sandbox that is listened on. Dropping it ends that and resets its connections.
#[derive(Debug)]
pub struct PortListener {
    client: Client,
    id: String,
    port: u16,
    socket: Box<Socket>,
}

impl PortListener {
    /// Returns the number of the next connection, for [`Client::accept_port`]. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Api`] if the sandbox ended or its provider failed; [`Error::Cut`], [`Error::Timeout`] or
    /// [`Error::Protocol`] if the server sends no more, not even a ping for
    /// [`crate::Options::silence_max`], or a message that cannot be read. The port is no longer
    /// listened on.
    pub async fn next(&mut self) -> Result<u64> {
        let after = self.client.silence_max();
        loop {
            let message = timeout(after, self.socket.next()).await.map_err(|_| Error::Timeout { after })?;
            match message {
                Some(Ok(Message::Text(text))) => match serde_json::from_str(&text) {
                    Ok(ListenMessage::Listening { .. }) => {}
                    Ok(ListenMessage::Connection { connection }) => return Ok(connection),
                    Ok(ListenMessage::Error { code, message }) => {
                        let status = StatusCode::SWITCHING_PROTOCOLS.as_u16();
                        return Err(Error::Api { status, code, message, request_id: None });
                    }
                    Err(error) => return Err(self.client.protocol(format!("cannot parse a message: {error}"))),
                },
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Binary(_))) => {
                    return Err(self.client.protocol("unexpected binary message".to_owned()));
                }
                Some(Ok(Message::Close(_))) | None => return Err(cut("the server closed the connection".to_owned())),
                Some(Err(error)) => return Err(cut(error.to_string())),
            }
        }
    }

    /// Takes a connection; see [`Client::accept_port`].
    ///
    /// # Errors
    /// As [`Client::accept_port`].
    pub async fn accept(
        &self,
        connection: u64,
        input: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<PortStream> {
        self.client.accept_port(&self.id, self.port, connection, input).await
    }

    /// Resets a connection that waits. Cancel-safe.
    ///
    /// # Errors
    /// [`Error::Cut`] if the server is gone.
    pub async fn refuse(&mut self, connection: u64) -> Result<()> {
        let refuse = ListenRefuse { kind: ListenKind::Refuse, connection };
        let text = serde_json::to_string(&refuse).expect("a message is JSON");
        self.socket.send(Message::text(text)).await.map_err(|error| cut(error.to_string()))
    }
}
