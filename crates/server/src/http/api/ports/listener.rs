//! The session of a WebSocket that listens on a port.

use std::collections::VecDeque;
use std::time::Duration;

use api::{ListenMessage, ListenRefuse};
use bytes::Bytes;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep_until};
use tokio_tungstenite::tungstenite::{Error as Fault, Message};

use crate::budget::Reservation;
use crate::control::Listener;
use crate::control::Refuser;
use crate::http::error::{ApiError, malformed};
use crate::http::state::Api;
use crate::http::stream::websocket::{BUFFER_BYTES, End, Inflow, Life, MESSAGE, Session, heard, json, pings};
use crate::http::strict_json::parse_as;

/// Time in which a connection has to be taken.
const TAKEN_WITHIN: Duration = Duration::from_secs(15);
/// Memory held for as long as the port is listened on: the read and write buffers.
pub(super) const SOCKET_BYTES: usize = 2 * BUFFER_BYTES;

/// Announces connections to the client on `io`, until either side ends.
pub(super) async fn run(
    api: Api,
    id: String,
    io: impl AsyncRead + AsyncWrite + Unpin,
    life: Life,
    mut listener: Listener,
    held: Reservation,
) {
    let mut session = Session::on(io, held).await;
    let inflow = session.inflow();
    let refuser = listener.refuser();
    let end = {
        let (mut sink, mut source) = (&mut session.socket).split();
        tokio::select! {
            end = announce(&api, &id, &mut listener, &mut sink) => end,
            end = hear(&mut source, &refuser, &inflow) => end,
            end = life.over("the port is closed") => end,
        }
    };
    // The connections end before the last message.
    drop(listener);
    session.end(end).await;
}

/// Announces each connection, gives up those that are not taken in time, and pings the client.
async fn announce(api: &Api, id: &str, listener: &mut Listener, sink: &mut (impl Sink<Message> + Unpin)) -> End {
    let refuser = listener.refuser();
    let mut pings = pings();
    // Connections that are announced, with the time at which they are given up.
    let mut waiting: VecDeque<(Instant, u64)> = VecDeque::new();
    let mut message = json(&ListenMessage::Listening { port: listener.port() });
    loop {
        if sink.send(message).await.is_err() {
            return End::silent();
        }
        message = loop {
            let due = waiting.front().map(|(due, _)| *due);
            tokio::select! {
                connection = listener.next() => match connection {
                    Some(Ok(connection)) => {
                        waiting.push_back((Instant::now() + TAKEN_WITHIN, connection));
                        break json(&ListenMessage::Connection { connection });
                    }
                    Some(Err(error)) => return ApiError::from(api.control.cut(id, error).await).into(),
                    None => return ApiError::from(api.control.cut(id, providers::Error::Gone).await).into(),
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    // One that was taken is no longer among those that wait.
                    waiting.pop_front().into_iter().for_each(|(_, number)| refuser.refuse(number));
                }
                _ = pings.tick() => break Message::Ping(Bytes::new()),
            }
        };
    }
}

/// Refuses what the client refuses, until it disconnects or sends what makes no sense.
async fn hear(
    source: &mut (impl Stream<Item = Result<Message, Fault>> + Unpin),
    refuser: &Refuser,
    inflow: &Inflow,
) -> End {
    loop {
        let message = match heard(source).await {
            Ok(message) => message,
            Err(end) => return end,
        };
        inflow.restart();
        match refusal(message) {
            Ok(number) => number.into_iter().for_each(|number| refuser.refuse(number)),
            Err(end) => return end,
        }
    }
}

/// Reads the number of a connection that the client refuses; `None` for what says nothing.
fn refusal(message: Message) -> Result<Option<u64>, End> {
    match message {
        Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => Ok(None),
        Message::Close(_) => Err(End::silent()),
        Message::Binary(_) => {
            Err(malformed("this WebSocket carries no data of connections; accept each connection on its own WebSocket")
                .into())
        }
        Message::Text(text) => match parse_as::<ListenRefuse>(MESSAGE, text.as_bytes()) {
            Ok(refuse) => Ok(Some(refuse.connection)),
            Err(error) => Err(error.into()),
        },
    }
}
