//! The session of a WebSocket: one command, from its start to its end.

use std::time::Duration;

use api::{SOCKET_STDERR, SOCKET_STDOUT, SocketKind, SocketOutput};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{Sink, SinkExt, Stream, StreamExt, stream};
use providers::{ExitStatus, OutputEvent, OutputStream, STREAM_BYTES_MAX};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error as Fault, Message};
use tokio_util::io::ReaderStream;

use super::inflow::Counter;
use crate::budget::{Account, Reservation};
use crate::control::{Handle, InteractiveExec, InteractiveInput};
use crate::http::error::{ApiError, Refusal, malformed};
use crate::http::meter::{SMALL_BYTES, held_with};
use crate::http::state::Api;
use crate::http::strict_json::parse_as;
use crate::http::text::Text;
use crate::http::wire;

/// Largest message, in bytes: the same as for JSON bodies.
const MESSAGE_BYTES_MAX: usize = crate::http::request::JSON_BYTES_MAX;
/// Time that a client may take to send its first message.
const START_WAIT: Duration = Duration::from_secs(10);
/// Interval of pings to the client. Many proxies cut connections that are quiet for long.
const PING_EVERY: Duration = Duration::from_secs(15);
/// Silence after which a client counts as gone, though pinged many times. It equals the time
/// for which a client may take no byte of what is sent.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// Time for the last message and the client's close frame.
const FAREWELL_MAX: Duration = Duration::from_secs(5);
/// Size of reads and writes. Few clients send much.
const BUFFER_BYTES: usize = 16 * 1024;
/// Most bytes that are read after a message that cannot be decoded.
const GARBLED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Name of messages in errors.
const MESSAGE: &str = "the message";

/// End of a session.
#[derive(Debug)]
struct End {
    /// Last message; `None` if the client is gone.
    words: Option<SocketOutput>,
    code: CloseCode,
    /// True if what the client sends can no longer be decoded.
    is_garbled: bool,
}

impl End {
    fn said(words: SocketOutput) -> End {
        End { words: Some(words), code: CloseCode::Normal, is_garbled: false }
    }

    fn gone() -> End {
        End { words: None, code: CloseCode::Normal, is_garbled: false }
    }

    fn error(error: &ApiError) -> End {
        error.log();
        let (_, api::ErrorBody { code, message }) = error.body();
        End::said(SocketOutput::Error { code, message })
    }

    fn stopping() -> End {
        let message = "the server is shutting down; what ran was killed".to_owned();
        let words = SocketOutput::Error { code: "unavailable".to_owned(), message };
        End { words: Some(words), code: CloseCode::Away, is_garbled: false }
    }

    /// Returns the end for a read that failed.
    fn of_fault(fault: &Fault) -> End {
        let (code, name, message) = match fault {
            Fault::Capacity(_) => {
                let message = format!("a message may have {MESSAGE_BYTES_MAX} bytes; send more in several");
                (CloseCode::Size, "payload_too_large", message)
            }
            Fault::Utf8(_) => (CloseCode::Invalid, "bad_request", "a text message is not UTF-8".to_owned()),
            Fault::Protocol(error) => (CloseCode::Protocol, "bad_request", format!("that is no WebSocket: {error}")),
            Fault::Io(error) if error.kind() == std::io::ErrorKind::OutOfMemory => {
                return End { is_garbled: true, ..End::error(&Refusal::Busy.into()) };
            }
            Fault::ConnectionClosed
            | Fault::AlreadyClosed
            | Fault::Io(_)
            | Fault::Tls(_)
            | Fault::WriteBufferFull(_)
            | Fault::AttackAttempt
            | Fault::Url(_)
            | Fault::Http(_)
            | Fault::HttpFormat(_) => return End::gone(),
        };
        let words = SocketOutput::Error { code: name.to_owned(), message };
        End { words: Some(words), code, is_garbled: true }
    }
}

impl From<ApiError> for End {
    fn from(error: ApiError) -> End {
        End::error(&error)
    }
}

/// Largest piece of output in one text message, in bytes: escaping may make it six times as long.
const TEXT_BYTES_MAX: usize = 16 * 1024;
/// Largest piece of output in one binary message, in bytes: sent as it is.
const BINARY_BYTES_MAX: usize = 64 * 1024;
/// Memory held by every socket: output that waits in the box's connection for a client that
/// does not read, the two copies of a message that is sent, and the read buffers.
pub(super) const SOCKET_BYTES: usize = STREAM_BYTES_MAX + 2 * 6 * TEXT_BYTES_MAX + 4 * BUFFER_BYTES;

/// Runs one command for the client on `io`.
pub(super) async fn run(api: Api, id: String, io: impl AsyncRead + AsyncWrite + Unpin, held: Reservation) {
    let account = held.account().clone();
    let (io, counter) = Counter::around(io, account.nothing(), BUFFER_BYTES);
    let config = WebSocketConfig::default()
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES)
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await;
    let end = tokio::select! {
        end = converse(&api, &id, &mut socket, (&account, &counter)) => end,
        () = api.stop.cancelled() => End::stopping(),
    };
    counter.stop();
    // After a timeout the client may not get the last message. Nothing more is done about it.
    let _ = timeout(FAREWELL_MAX, part(&mut socket, end)).await;
    drop(held);
}

/// Account that memory is taken from, and counter of the incoming message.
type Meter<'a> = (&'a Account, &'a Counter);

async fn converse<S>(api: &Api, id: &str, socket: &mut WebSocketStream<S>, meter: Meter<'_>) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let command = match first(socket).await {
        Ok(command) => command,
        Err(end) => return end,
    };
    meter.1.restart();
    // One piece waits here, and one in the task that passes stdin on.
    let (stdin, content) = mpsc::channel(1);
    let content = stream::unfold(content, |mut content| async move { Some((Ok(content.recv().await?), content)) });
    let input = InteractiveInput { stdin: content.boxed(), terminal: command.terminal };
    let begun = match api.control.exec_interactive(id, command.request, input).await {
        Ok(begun) => begun,
        Err(error) => return ApiError::from(error).into(),
    };
    let InteractiveExec { running, handle } = begun;
    let form = Form { binary: command.binary, timeout: running.timeout };
    let (mut sink, mut source) = socket.split();
    tokio::select! {
        end = listen(&mut source, stdin, &handle, meter) => end,
        end = tell(&mut sink, running.output, form) => match end {
            Told::End(end) => end,
            Told::Cut(error) => ApiError::from(api.control.exec_cut(id, error).await).into(),
        },
    }
}

/// Waits for the first message, which names the command.
async fn first<S>(source: &mut S) -> Result<wire::SocketCommand, End>
where
    S: Stream<Item = Result<Message, Fault>> + Unpin,
{
    let message = async {
        loop {
            match source.next().await {
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                message => return message,
            }
        }
    };
    let seconds = START_WAIT.as_secs();
    match timeout(START_WAIT, message).await {
        Err(_) => {
            let message = format!("no `start` came in {seconds} seconds");
            Err(End::said(SocketOutput::Error { code: "timeout".to_owned(), message }))
        }
        Ok(Some(Ok(Message::Text(text)))) => match kind(&text)? {
            SocketKind::Start => Ok(wire::socket_start(parse_as(MESSAGE, text.as_bytes())?)?),
            SocketKind::Stdin | SocketKind::Eof | SocketKind::Resize | SocketKind::Signal => {
                Err(malformed("the first message must be a `start`, which says what to run").into())
            }
        },
        Ok(Some(Ok(Message::Binary(_)))) => {
            Err(malformed("the first message must be a `start`; binary frames are for what runs").into())
        }
        Ok(Some(Err(fault))) => Err(End::of_fault(&fault)),
        Ok(None | Some(Ok(_))) => Err(End::gone()),
    }
}

/// Returns the type of a message.
fn kind(text: &str) -> Result<SocketKind, ApiError> {
    #[derive(Deserialize)]
    struct Typed {
        #[serde(rename = "type")]
        kind: SocketKind,
    }
    parse_as::<Typed>(MESSAGE, text.as_bytes()).map(|typed| typed.kind)
}

/// Handles the client's messages, until it hangs up or sends one that makes no sense.
async fn listen<S>(source: &mut S, stdin: mpsc::Sender<Bytes>, handle: &Handle, meter: Meter<'_>) -> End
where
    S: Stream<Item = Result<Message, Fault>> + Unpin,
{
    let mut stdin = Some(stdin);
    loop {
        let message = match heard(source).await {
            Ok(message) => message,
            Err(end) => return end,
        };
        meter.1.restart();
        let taken = match message {
            Message::Text(text) => take(&text, &mut stdin, handle, meter.0).await,
            Message::Binary(bytes) => feed(bytes, stdin.as_ref(), meter.0).await,
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => Ok(()),
            Message::Close(_) => return End::gone(),
        };
        if let Err(error) = taken {
            return error.into();
        }
    }
}

/// Waits for the next message. Only this wait counts as silence of the client, not the wait for
/// a command that does not read its stdin.
async fn heard<S>(source: &mut S) -> Result<Message, End>
where
    S: Stream<Item = Result<Message, Fault>> + Unpin,
{
    match timeout(SILENCE_MAX, source.next()).await {
        Ok(Some(Ok(message))) => Ok(message),
        Ok(Some(Err(fault))) => Err(End::of_fault(&fault)),
        Ok(None) | Err(_) => Err(End::gone()),
    }
}

async fn take(
    text: &str,
    stdin: &mut Option<mpsc::Sender<Bytes>>,
    handle: &Handle,
    account: &Account,
) -> Result<(), ApiError> {
    let json = text.as_bytes();
    match kind(text)? {
        SocketKind::Start => {
            parse_as::<api::SocketStart>(MESSAGE, json)?;
            Err(malformed("a command runs already; open another WebSocket for another"))
        }
        SocketKind::Stdin => {
            let api::SocketStdin { kind: _, data } = parse_as(MESSAGE, json)?;
            feed(Bytes::from(data), stdin.as_ref(), account).await
        }
        SocketKind::Eof => {
            parse_as::<api::SocketEof>(MESSAGE, json)?;
            *stdin = None;
            Ok(())
        }
        SocketKind::Resize => {
            let api::SocketResize { kind: _, cols, rows } = parse_as(MESSAGE, json)?;
            Ok(handle.resize(wire::terminal_size(cols, rows)?).await?)
        }
        SocketKind::Signal => {
            let api::SocketSignal { kind: _, signal } = parse_as(MESSAGE, json)?;
            Ok(handle.signal(wire::signal(&signal)?).await?)
        }
    }
}

/// Passes stdin on at the speed of the command, counted until the command has read it. A client
/// that may hold no more waits as it does for a command that does not read.
async fn feed(mut bytes: Bytes, stdin: Option<&mpsc::Sender<Bytes>>, account: &Account) -> Result<(), ApiError> {
    let stdin = stdin.ok_or_else(|| malformed("stdin has ended with `eof`; nothing can follow"))?;
    if !bytes.is_empty() {
        if bytes.len() > SMALL_BYTES {
            bytes = held_with(bytes.clone(), account.reserve_within(bytes.len(), SILENCE_MAX).await?);
        }
        // A command that has closed its stdin needs no more of it.
        let _ = stdin.send(bytes).await;
    }
    Ok(())
}

/// Encoding of output.
#[derive(Debug, Clone, Copy)]
struct Form {
    binary: bool,
    timeout: Duration,
}

/// End of the output.
#[derive(Debug)]
enum Told {
    End(End),
    /// No exit: the box has ended, or its provider failed.
    Cut(providers::Error),
}

/// Sends what the command writes at the speed of the client, and pings it every [`PING_EVERY`].
async fn tell<S>(sink: &mut S, mut output: OutputStream, form: Form) -> Told
where
    S: Sink<Message> + Unpin,
{
    let mut pings = interval(PING_EVERY);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pings.reset();
    let (mut stdout, mut stderr) = (Text::default(), Text::default());
    // Output that has arrived and is not sent yet.
    let mut rest = (SOCKET_STDOUT, Bytes::new());
    loop {
        // `select!` polls at random: a client that is sent a lot is pinged, too.
        let message = tokio::select! {
            () = std::future::ready(()), if !rest.1.is_empty() => {
                let part = rest.1.split_to(form.bytes_max().min(rest.1.len()));
                form.piece(rest.0, if rest.0 == SOCKET_STDOUT { &mut stdout } else { &mut stderr }, &part)
            }
            event = output.next(), if rest.1.is_empty() => match event {
                Some(Ok(OutputEvent::Stdout(bytes))) => {
                    rest = (SOCKET_STDOUT, bytes);
                    continue;
                }
                Some(Ok(OutputEvent::Stderr(bytes))) => {
                    rest = (SOCKET_STDERR, bytes);
                    continue;
                }
                Some(Ok(OutputEvent::Exit(exit))) => {
                    let last = [form.rest(SOCKET_STDOUT, &mut stdout), form.rest(SOCKET_STDERR, &mut stderr)];
                    return exited(sink, form, last, exit).await;
                }
                Some(Err(error)) => return Told::Cut(error),
                None => return Told::Cut(providers::Error::Gone),
            },
            _ = pings.tick() => Some(Message::Ping(Bytes::new())),
        };
        if let Some(message) = message
            && sink.send(message).await.is_err()
        {
            return Told::End(End::gone());
        }
    }
}

async fn exited<S>(sink: &mut S, form: Form, last: [Option<Message>; 2], exit: ExitStatus) -> Told
where
    S: Sink<Message> + Unpin,
{
    let late = exit.timed_out.then(|| format!("{}{}\n", api::TIMED_OUT, wire::duration(form.timeout)));
    let late = late.and_then(|words| form.piece(SOCKET_STDERR, &mut Text::default(), words.as_bytes()));
    for message in last.into_iter().flatten().chain(late) {
        if sink.send(message).await.is_err() {
            return Told::End(End::gone());
        }
    }
    let ExitStatus { code: exit_code, timed_out, oom_killed, .. } = exit;
    Told::End(End::said(SocketOutput::Exit { exit_code, timed_out, oom_killed }))
}

impl Form {
    /// Returns the most output that one message may carry, in bytes.
    fn bytes_max(self) -> usize {
        if self.binary { BINARY_BYTES_MAX } else { TEXT_BYTES_MAX }
    }

    /// Returns a message with this output; `None` while a character is incomplete.
    fn piece(self, stream: u8, text: &mut Text, bytes: &[u8]) -> Option<Message> {
        if self.binary {
            let mut frame = BytesMut::with_capacity(1 + bytes.len());
            frame.put_u8(stream);
            frame.put_slice(bytes);
            return Some(Message::Binary(frame.freeze()));
        }
        written(stream, text.take(bytes))
    }

    /// Returns a message with the incomplete character held back.
    fn rest(self, stream: u8, text: &mut Text) -> Option<Message> {
        written(stream, text.end())
    }
}

fn written(stream: u8, data: String) -> Option<Message> {
    if data.is_empty() {
        return None;
    }
    let words = if stream == SOCKET_STDERR { SocketOutput::Stderr { data } } else { SocketOutput::Stdout { data } };
    Some(json(&words))
}

fn json(words: &SocketOutput) -> Message {
    Message::text(serde_json::to_string(words).expect("a message is JSON"))
}

/// Sends the last message, closes, and reads on for a while: a connection that is closed with
/// unread bytes may lose the last message.
async fn part<S>(socket: &mut WebSocketStream<S>, end: End)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    if let Some(words) = end.words
        && socket.send(json(&words)).await.is_err()
    {
        return;
    }
    if socket.close(Some(CloseFrame { code: end.code, reason: "".into() })).await.is_err() {
        return;
    }
    if end.is_garbled {
        let mut raw = ReaderStream::new(socket.get_mut());
        let mut left = GARBLED_BYTES_MAX;
        while let Some(Ok(piece)) = raw.next().await
            && piece.len() < left
        {
            left -= piece.len();
        }
        return;
    }
    // The client answers with its own close frame.
    while let Some(Ok(_)) = socket.next().await {}
}

#[cfg(test)]
mod test {
    use futures_util::stream;
    use tokio::time::Instant;

    use super::*;

    fn words(end: &End) -> (&str, &str) {
        match &end.words {
            Some(SocketOutput::Error { code, message }) => (code, message),
            other => panic!("{other:?}"),
        }
    }

    /// The margin covers a timer that fires a tick late.
    fn is_about(elapsed: Duration, expected: Duration) -> bool {
        elapsed >= expected && elapsed < expected + Duration::from_secs(1)
    }

    async fn refused(message: Message) -> End {
        first(&mut stream::iter([Ok(message)]).boxed()).await.unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_not_waited_for() {
        let began = Instant::now();
        let end = first(&mut stream::pending().boxed()).await.unwrap_err();
        assert_eq!(words(&end).0, "timeout");
        assert!(is_about(began.elapsed(), START_WAIT));
        let began = Instant::now();
        let end = heard(&mut stream::pending().boxed()).await.unwrap_err();
        assert!(end.words.is_none());
        assert!(is_about(began.elapsed(), SILENCE_MAX));
    }

    #[tokio::test(start_paused = true)]
    async fn pings_do_not_put_off_the_first_message() {
        let pings = stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            Some((Ok(Message::Ping(Bytes::new())), ()))
        });
        let began = Instant::now();
        assert_eq!(words(&first(&mut pings.boxed()).await.unwrap_err()).0, "timeout");
        assert!(is_about(began.elapsed(), START_WAIT));
    }

    #[tokio::test]
    async fn a_start_is_read_strictly() {
        for (text, named) in [
            ("", "the message: EOF"),
            ("[]", "the message: is not a JSON object"),
            ("{}", "missing field `type`"),
            (r#"{"type":"begin"}"#, "unknown variant `begin`"),
            (r#"{"type":"eof"}"#, "must be a `start`"),
            (r#"{"type":"start"}"#, "missing field `command`"),
            (r#"{"type":"start","command":""}"#, "`command` is empty"),
            (r#"{"type":"start","command":"a","stream":true}"#, "unknown field `stream`"),
            (r#"{"type":"start","command":"a","command":"b"}"#, "duplicate field `command`"),
            (r#"{"type":"start","type":"start","command":"b"}"#, "duplicate field `type`"),
            (r#"{"type":"start","command":"a"} {}"#, "trailing characters"),
            (r#"{"type":"start","command":"a","tty":1}"#, "`tty`: invalid type"),
            (r#"{"type":"start","command":"a","cols":80}"#, "ask for one with `tty`"),
            (r#"{"type":"start","command":"a","tty":true,"cols":0}"#, "at least 1"),
            (r#"{"type":"start","command":"a","tty":true,"rows":65536}"#, "`rows`: invalid value"),
            (r#"{"type":"start","command":"a","timeout":"soon"}"#, "`timeout`"),
        ] {
            let end = refused(Message::text(text)).await;
            let (code, message) = words(&end);
            assert!(code == "bad_request" && message.contains(named), "{text}: {message}");
        }
        assert_eq!(words(&refused(Message::binary(vec![1])).await).0, "bad_request");
        let text = r#"{"type":"start","command":"a","tty":true,"cols":132,"binary":true}"#;
        let command = first(&mut stream::iter([Ok(Message::text(text))]).boxed()).await.unwrap();
        assert_eq!(command.terminal.map(|size| (size.cols, size.rows)), Some((132, 24)));
        assert!(command.binary);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_sent_nothing_is_asked_whether_it_is_there() {
        let (mut sink, mut sent) = futures_channel();
        let form = Form { binary: false, timeout: Duration::from_secs(1) };
        let telling = tokio::time::timeout(
            3 * PING_EVERY + Duration::from_secs(1),
            tell(&mut sink, stream::pending().boxed(), form),
        );
        assert!(telling.await.is_err());
        drop(sink);
        let mut pings = 0;
        while let Some(message) = sent.recv().await {
            assert!(matches!(message, Message::Ping(_)));
            pings += 1;
        }
        assert_eq!(pings, 3);
    }

    #[tokio::test]
    async fn characters_are_not_cut_and_what_is_left_comes_before_the_exit() {
        let (mut sink, mut sent) = futures_channel();
        let piece = |bytes: &'static [u8]| Ok(OutputEvent::Stdout(Bytes::from_static(bytes)));
        let exit = ExitStatus { code: 124, timed_out: true, oom_killed: false, duration: Duration::ZERO };
        let events = [piece(b"a\xe2"), piece(b"\x82\xac"), piece(b"\xf0"), Ok(OutputEvent::Exit(exit))];
        let form = Form { binary: false, timeout: Duration::from_secs(2) };
        let told = tell(&mut sink, stream::iter(events).boxed(), form).await;
        drop(sink);
        let mut texts = Vec::new();
        while let Some(message) = sent.recv().await {
            texts.push(message.into_text().unwrap().to_string());
        }
        let expected = ["a", "€", "\u{fffd}"].map(|data| format!(r#"{{"type":"stdout","data":"{data}"}}"#));
        assert_eq!(texts[..3], expected);
        assert!(texts[3].starts_with(r#"{"type":"stderr","data":"tidebox: the command was killed"#), "{}", texts[3]);
        let Told::End(End { words: Some(words), .. }) = told else { panic!("{told:?}") };
        assert_eq!(serde_json::to_string(&words).unwrap(), r#"{"type":"exit","exit_code":124,"timed_out":true}"#);
    }

    /// Returns a sink that accepts every message, and a receiver of the messages.
    fn futures_channel() -> (impl Sink<Message> + Unpin, mpsc::Receiver<Message>) {
        let (sender, receiver) = mpsc::channel(64);
        let sink = futures_util::sink::unfold(sender, |sender: mpsc::Sender<Message>, message| async move {
            sender.send(message).await.map(|()| sender)
        });
        (Box::pin(sink), receiver)
    }
}
