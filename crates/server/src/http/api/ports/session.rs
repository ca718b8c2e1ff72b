//! The session of a WebSocket that is a TCP connection to a port.

use api::{PortMessage, SocketEof, SocketKind};
use bytes::Bytes;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error as Fault, Message};
use tokio_util::sync::CancellationToken;

use crate::budget::Reservation;
use crate::control::Error;
use crate::http::error::{ApiError, malformed};
use crate::http::state::Api;
use crate::http::stream::port_stream::{Cut, Part, PortStream};
use crate::http::stream::websocket::{BUFFER_BYTES, End, Inflow, Life, MESSAGE, Session, heard, json, kind, pings};
use crate::http::strict_json::parse_as;

/// Largest message that is sent, in bytes.
const PIECE_BYTES_MAX: usize = 16 * 1024;
/// Memory held by every connection for as long as it is open: the copy of a message that is sent,
/// whose buffer stays, and the read buffers. What a process sends is counted while there is any.
pub(super) const SOCKET_BYTES: usize = PIECE_BYTES_MAX + 2 * BUFFER_BYTES;

/// An open connection to a process. Dropping it resets it.
pub(super) struct Connection {
    pub to_process: mpsc::Sender<Part>,
    pub from_process: PortStream,
    /// Token that resets it.
    pub ended: CancellationToken,
}

/// Passes bytes between a connection and the client on `io`.
pub(super) async fn run(
    api: Api,
    id: String,
    io: impl AsyncRead + AsyncWrite + Unpin,
    life: Life,
    connection: Connection,
    held: Reservation,
) {
    let ended = connection.ended.clone();
    let mut session = Session::on(io, held).await;
    let inflow = session.inflow();
    let end = tokio::select! {
        end = converse(&api, &id, &mut session.socket, &inflow, connection) => end,
        end = life.over("the connection was closed") => end,
        () = ended.cancelled() => {
            ApiError::from(Error::NoFile("the port was closed, which resets its connections".to_owned()))
                .into()
        }
    };
    session.end(end).await;
}

async fn converse<S>(
    api: &Api,
    id: &str,
    socket: &mut WebSocketStream<S>,
    inflow: &Inflow,
    connection: Connection,
) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Connection { to_process, from_process, ended: _ } = connection;
    let (mut sink, mut source) = socket.split();
    tokio::select! {
        end = listen(&mut source, to_process, inflow) => end,
        told = tell(&mut sink, from_process) => match told {
            Ok(end) => end,
            Err(Cut::Provider(error)) => ApiError::from(api.control.cut(id, error).await).into(),
            Err(Cut::Spent(spent)) => ApiError::from(spent).into(),
        },
    }
}

/// Passes on what the client sends, at the speed of the process, until the client disconnects or sends
/// what makes no sense.
async fn listen<S>(source: &mut S, to_process: mpsc::Sender<Part>, inflow: &Inflow) -> End
where
    S: Stream<Item = Result<Message, Fault>> + Unpin,
{
    let mut has_ended = false;
    loop {
        let message = match heard(source).await {
            Ok(message) => message,
            Err(end) => return end,
        };
        inflow.restart();
        let part = match message {
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
            Message::Close(_) => return End::silent(),
            Message::Binary(_) | Message::Text(_) if has_ended => {
                return malformed("your direction has ended with `eof`; nothing can follow").into();
            }
            Message::Binary(bytes) if bytes.is_empty() => continue,
            Message::Binary(bytes) => inflow.counted(bytes).await.map(Part::Bytes),
            Message::Text(text) => eof(&text),
        };
        match part {
            Ok(part) => {
                has_ended = matches!(part, Part::End);
                // A process that has closed its end needs no more.
                let _ = to_process.send(part).await;
            }
            Err(error) => return error.into(),
        }
    }
}

/// Reads the only text message that there is.
fn eof(text: &str) -> Result<Part, ApiError> {
    match kind(text)? {
        SocketKind::Eof => parse_as::<SocketEof>(MESSAGE, text.as_bytes()).map(|_| Part::End),
        SocketKind::Start | SocketKind::Stdin | SocketKind::Resize | SocketKind::Signal => {
            Err(malformed("the only message on a connection to a port is `eof`; send bytes in binary frames"))
        }
    }
}

/// Sends what the process sends at the speed of the client, and pings it. Returns once both
/// directions have ended, or the client is gone.
async fn tell<S, E>(sink: &mut S, from_process: impl Stream<Item = Result<Bytes, E>> + Unpin) -> Result<End, E>
where
    S: Sink<Message> + Unpin,
{
    let mut from_process = from_process.fuse();
    let mut pings = pings();
    // Bytes that have arrived and are not sent yet.
    let mut rest = Bytes::new();
    let mut has_ended = false;
    loop {
        // `select!` polls at random: a client that is sent a lot is pinged, too.
        let message = tokio::select! {
            () = std::future::ready(()), if !rest.is_empty() => {
                Message::Binary(rest.split_to(PIECE_BYTES_MAX.min(rest.len())))
            }
            piece = from_process.next(), if rest.is_empty() => match piece.transpose()? {
                Some(piece) if !piece.is_empty() => {
                    rest = piece;
                    continue;
                }
                None if has_ended => return Ok(End::silent()),
                // An empty piece is the end of what the process sends.
                Some(_) | None => {
                    has_ended = true;
                    json(&PortMessage::Eof)
                }
            },
            _ = pings.tick() => Message::Ping(Bytes::new()),
        };
        if sink.send(message).await.is_err() {
            return Ok(End::silent());
        }
    }
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use futures_util::stream;
    use tokio::time::timeout;

    use super::*;
    use crate::budget::{Budget, Caller};
    use crate::http::stream::port_stream::input;
    use crate::http::stream::websocket::PING_EVERY;

    /// Returns a sink that accepts every message, and a receiver of the messages.
    fn outbox() -> (impl Sink<Message> + Unpin, mpsc::Receiver<Message>) {
        let (sender, receiver) = mpsc::channel(64);
        let sink = futures_util::sink::unfold(sender, |sender: mpsc::Sender<Message>, message| async move {
            sender.send(message).await.map(|()| sender)
        });
        (Box::pin(sink), receiver)
    }

    async fn sent(mut receiver: mpsc::Receiver<Message>) -> Vec<Message> {
        let mut messages = Vec::new();
        while let Some(message) = receiver.recv().await {
            messages.push(message);
        }
        messages
    }

    /// Passes these messages on, and returns the end and what the process received.
    async fn received(messages: Vec<Message>) -> (End, Vec<Result<Bytes, providers::Error>>) {
        let account = Budget::new(1 << 20).account(Caller::Address(None), None);
        let inflow = Session::on(tokio::io::duplex(64).0, account.nothing()).await.inflow();
        let (to_process, input) = input();
        let mut source = stream::iter(messages.into_iter().map(Ok)).boxed();
        tokio::join!(listen(&mut source, to_process, &inflow), input.collect())
    }

    const EOF: &str = r#"{"type":"eof"}"#;

    #[tokio::test]
    async fn bytes_are_passed_on_until_their_end() {
        let (end, pieces) = received(vec![Message::binary("a"), Message::binary("bc"), Message::text(EOF)]).await;
        assert!(end.words.is_none());
        let pieces: Vec<Bytes> = pieces.into_iter().map(Result::unwrap).collect();
        assert_eq!(pieces, ["a", "bc"]);
    }

    #[tokio::test]
    async fn a_client_that_hangs_up_before_its_end_resets_the_connection() {
        let (_, pieces) = received(vec![Message::binary("a"), Message::Close(None)]).await;
        assert!(matches!(&pieces[..], [Ok(_), Err(_)]), "{pieces:?}");
    }

    #[tokio::test]
    async fn what_makes_no_sense_is_refused_and_resets_the_connection() {
        for (messages, words) in [
            (vec![Message::text("hello")], "the message"),
            (vec![Message::text(r#"{"type":"stdin","data":"a"}"#)], "binary frames"),
            (vec![Message::text(r#"{"type":"eof","more":1}"#)], "unknown field"),
            (vec![Message::text(EOF), Message::binary("a")], "nothing can follow"),
            (vec![Message::text(EOF), Message::text(EOF)], "nothing can follow"),
        ] {
            let (end, _) = received(messages).await;
            let Some(api::SocketOutput::Error { code, message }) = end.words else { panic!("{words}") };
            assert!(code == "bad_request" && message.contains(words), "{message}");
        }
    }

    #[tokio::test]
    async fn the_end_of_a_process_is_said_once_and_the_connection_goes_on() {
        let (mut sink, receiver) = outbox();
        let pieces = ["abc", ""].map(|piece| Ok::<_, providers::Error>(Bytes::from_static(piece.as_bytes())));
        let told = tell(&mut sink, stream::iter(pieces)).await.unwrap();
        drop(sink);
        assert!(told.words.is_none());
        assert_eq!(sent(receiver).await, [Message::binary("abc"), Message::text(EOF)]);
        // A provider that only knows the end of both.
        let (mut sink, receiver) = outbox();
        tell(&mut sink, stream::empty::<Result<Bytes, providers::Error>>()).await.unwrap();
        drop(sink);
        assert_eq!(sent(receiver).await, [Message::text(EOF)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_pinged_while_nothing_is_sent() {
        let (mut sink, receiver) = outbox();
        let silence = timeout(
            2 * PING_EVERY + Duration::from_secs(1),
            tell(&mut sink, stream::pending::<Result<Bytes, providers::Error>>()),
        );
        assert!(silence.await.is_err());
        drop(sink);
        assert_eq!(sent(receiver).await, vec![Message::Ping(Bytes::new()); 2]);
    }

    #[tokio::test]
    async fn a_large_piece_is_sent_in_several_messages() {
        let (mut sink, receiver) = outbox();
        let large: Bytes = (0..=255).cycle().take(3 * PIECE_BYTES_MAX + 5).collect();
        tell(&mut sink, stream::iter([Ok::<_, providers::Error>(large.clone())])).await.unwrap();
        drop(sink);
        let messages = sent(receiver).await;
        let pieces: Vec<Bytes> =
            messages[..messages.len() - 1].iter().map(|message| message.clone().into_data()).collect();
        assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES_MAX));
        assert!(pieces.concat() == large);
    }
}
