//! The session of a WebSocket: one command from its start to its end, or one process as long as the client
//! is there.

use std::time::Duration;

use api::{SOCKET_SCREEN, SOCKET_STDERR, SOCKET_STDOUT, SocketKind, SocketOutput};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::BoxStream;
use futures_util::{Sink, SinkExt, Stream, StreamExt, stream};
use providers::{ExitStatus, ProcessEvent, ProcessEvents, ProcessInput, STREAM_BYTES_MAX};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error as Fault, Message};

use crate::budget::Reservation;
use crate::control::AttachedProcess;
use crate::control::Handle;
use crate::control::InteractiveExec;
use crate::control::InteractiveInput;
use crate::http::api::output::{of_command, timed_out};
use crate::http::api::wire;
use crate::http::error::{ApiError, malformed};
use crate::http::state::Api;
use crate::http::stream::utf8::Text;
use crate::http::stream::websocket::{BUFFER_BYTES, End, Inflow, Life, MESSAGE, Session, heard, json, kind, pings};
use crate::http::strict_json::parse_as;

/// Time that a client may take to send its first message.
const START_WAIT: Duration = Duration::from_secs(10);

/// Largest piece of output in one text message, in bytes: escaping may make it six times as long.
const TEXT_BYTES_MAX: usize = 16 * 1024;
/// Largest piece of output in one binary message, in bytes: sent as it is.
const BINARY_BYTES_MAX: usize = 64 * 1024;
/// Memory held by every socket: output that waits in the box's connection for a client that
/// does not read, the two copies of a message that is sent, and the read buffers.
pub(super) const SOCKET_BYTES: usize = STREAM_BYTES_MAX + 2 * 6 * TEXT_BYTES_MAX + 4 * BUFFER_BYTES;

/// Runs one command for the client on `io`.
pub(super) async fn run(api: Api, id: String, io: impl AsyncRead + AsyncWrite + Unpin, life: Life, held: Reservation) {
    let mut session = Session::on(io, held).await;
    let inflow = session.inflow();
    let end = tokio::select! {
        end = converse(&api, &id, &mut session.socket, &inflow) => end,
        end = life.over("the command was killed") => end,
    };
    session.end(end).await;
}

async fn converse<S>(api: &Api, id: &str, socket: &mut WebSocketStream<S>, inflow: &Inflow) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let command = match first(socket).await {
        Ok(command) => command,
        Err(end) => return end,
    };
    inflow.restart();
    let (stdin, content) = input();
    let content = content.map(|input| match input {
        ProcessInput::Bytes(bytes) => Some(Ok(bytes)),
        ProcessInput::End => None,
    });
    let content = content.take_while(|bytes| std::future::ready(bytes.is_some())).filter_map(std::future::ready);
    let input = InteractiveInput { stdin: content.boxed(), terminal: command.terminal };
    let begun = match api.control.exec_interactive(id, command.request, input).await {
        Ok(begun) => begun,
        Err(error) => return ApiError::from(error).into(),
    };
    let InteractiveExec { running, handle } = begun;
    let form = Form { binary: command.binary, timeout: Some(running.timeout), position: None };
    exchange(api, id, socket, Exchange { stdin, handle, output: of_command(running.output), form }, inflow).await
}

/// Lets the client read a process, and send it input.
pub(super) async fn attach(
    api: Api,
    id: String,
    io: impl AsyncRead + AsyncWrite + Unpin,
    life: Life,
    held: Reservation,
    view: View,
) {
    let mut session = Session::on(io, held).await;
    let inflow = session.inflow();
    let View { process: AttachedProcess { output, handle }, stdin, binary } = view;
    let form = Form { binary, timeout: None, position: Some(0) };
    let exchange = exchange(&api, &id, &mut session.socket, Exchange { stdin, handle, output, form }, &inflow);
    let end = tokio::select! {
        end = exchange => end,
        end = life.over("the process keeps running") => end,
    };
    session.end(end).await;
}

/// A process that a client looks at.
pub(super) struct View {
    pub(super) process: AttachedProcess,
    /// Sender of the client's input.
    pub(super) stdin: mpsc::Sender<ProcessInput>,
    /// True if output is sent as binary messages.
    pub(super) binary: bool,
}

/// Makes a way for input. One piece waits here, and one in the task that passes it on.
pub(super) fn input() -> (mpsc::Sender<ProcessInput>, BoxStream<'static, ProcessInput>) {
    let (stdin, content) = mpsc::channel(1);
    let content = stream::unfold(content, |mut content| async move { Some((content.recv().await?, content)) });
    (stdin, content.boxed())
}

/// Both directions of an exchange with the client.
struct Exchange {
    stdin: mpsc::Sender<ProcessInput>,
    handle: Handle,
    output: ProcessEvents,
    form: Form,
}

async fn exchange<S>(
    api: &Api,
    id: &str,
    socket: &mut WebSocketStream<S>,
    Exchange { stdin, handle, output, form }: Exchange,
    inflow: &Inflow,
) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut sink, mut source) = socket.split();
    tokio::select! {
        end = listen(&mut source, stdin, &handle, inflow) => end,
        end = tell(&mut sink, output, form) => match end {
            Told::End(end) => end,
            Told::Cut(error) => ApiError::from(api.control.cut(id, error).await).into(),
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
            let message = format!("no `start` arrived within {seconds} seconds");
            Err(End::said(SocketOutput::Error { code: "timeout".to_owned(), message }))
        }
        Ok(Some(Ok(Message::Text(text)))) => match kind(&text)? {
            SocketKind::Start => Ok(wire::socket_start(parse_as(MESSAGE, text.as_bytes())?)?),
            SocketKind::Stdin | SocketKind::Eof | SocketKind::Resize | SocketKind::Signal => {
                Err(malformed("the first message must be a `start` with the command to run").into())
            }
        },
        Ok(Some(Ok(Message::Binary(_)))) => {
            Err(malformed("the first message must be a `start`; binary frames are for a running command").into())
        }
        Ok(Some(Err(fault))) => Err(End::of_fault(&fault)),
        Ok(None | Some(Ok(_))) => Err(End::silent()),
    }
}

/// Handles the client's messages, until it disconnects or sends one that makes no sense.
async fn listen<S>(source: &mut S, stdin: mpsc::Sender<ProcessInput>, handle: &Handle, inflow: &Inflow) -> End
where
    S: Stream<Item = Result<Message, Fault>> + Unpin,
{
    let mut stdin = Some(stdin);
    loop {
        let message = match heard(source).await {
            Ok(message) => message,
            Err(end) => return end,
        };
        inflow.restart();
        let taken = match message {
            Message::Text(text) => take(&text, &mut stdin, handle, inflow).await,
            Message::Binary(bytes) => feed(bytes, stdin.as_ref(), inflow).await,
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => Ok(()),
            Message::Close(_) => return End::silent(),
        };
        if let Err(error) = taken {
            return error.into();
        }
    }
}

async fn take(
    text: &str,
    stdin: &mut Option<mpsc::Sender<ProcessInput>>,
    handle: &Handle,
    inflow: &Inflow,
) -> Result<(), ApiError> {
    let json = text.as_bytes();
    match kind(text)? {
        SocketKind::Start => {
            parse_as::<api::SocketStart>(MESSAGE, json)?;
            Err(malformed("a command is already running; open another WebSocket for the next one"))
        }
        SocketKind::Stdin => {
            let api::SocketStdin { kind: _, data } = parse_as(MESSAGE, json)?;
            feed(Bytes::from(data), stdin.as_ref(), inflow).await
        }
        SocketKind::Eof => {
            parse_as::<api::SocketEof>(MESSAGE, json)?;
            if let Some(stdin) = stdin.take() {
                // A command that has ended needs no end of its stdin.
                let _ = stdin.send(ProcessInput::End).await;
            }
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

/// Passes stdin on at the speed of the command.
async fn feed(bytes: Bytes, stdin: Option<&mpsc::Sender<ProcessInput>>, inflow: &Inflow) -> Result<(), ApiError> {
    let stdin = stdin.ok_or_else(|| malformed("stdin has ended with `eof`; nothing can follow"))?;
    if !bytes.is_empty() {
        // A command that has closed its stdin needs no more of it.
        let _ = stdin.send(ProcessInput::Bytes(inflow.counted(bytes).await?)).await;
    }
    Ok(())
}

/// Encoding of output.
#[derive(Debug, Clone, Copy)]
struct Form {
    binary: bool,
    /// Deadline of the command, for the message when it passes.
    timeout: Option<Duration>,
    /// Position after the output that was sent; `None` for a command, whose output has none.
    position: Option<u64>,
}

/// End of the output.
#[derive(Debug)]
enum Told {
    End(End),
    /// No exit: the box has ended, or its provider failed.
    Cut(providers::Error),
}

/// Sends what the command writes at the speed of the client, and pings it.
async fn tell<S>(sink: &mut S, mut output: ProcessEvents, mut form: Form) -> Told
where
    S: Sink<Message> + Unpin,
{
    let mut pings = pings();
    let mut stdout = Text::default();
    let mut stderr = Text::default();
    let mut screen = Text::default();
    // Message that follows the output.
    let mut after = None;
    // Output that has arrived and is not sent yet.
    let mut rest = (SOCKET_STDOUT, Bytes::new());
    loop {
        // `select!` polls at random: a client that is sent a lot is pinged, too.
        let message = tokio::select! {
            () = std::future::ready(()), if !rest.1.is_empty() => {
                let part = rest.1.split_to(form.bytes_max().min(rest.1.len()));
                let text = match rest.0 {
                    SOCKET_STDOUT => &mut stdout,
                    SOCKET_STDERR => &mut stderr,
                    _ => &mut screen,
                };
                let message = form.piece(rest.0, text, &part);
                if rest.0 != SOCKET_SCREEN {
                    form.position = form.position.map(|position| position + part.len() as u64);
                }
                if !form.binary && rest.1.is_empty() && let Some(seq) = form.position {
                    // Before a character that is not complete.
                    after = Some(json(&SocketOutput::Position { seq: seq - text.held() as u64 }));
                }
                message
            }
            () = std::future::ready(()), if rest.1.is_empty() && after.is_some() => after.take(),
            event = output.next(), if rest.1.is_empty() && after.is_none() => match event {
                Some(Ok(ProcessEvent::Screen(bytes))) => {
                    rest = (SOCKET_SCREEN, bytes);
                    continue;
                }
                Some(Ok(ProcessEvent::Position(seq))) => {
                    form.position = Some(seq);
                    Some(json(&SocketOutput::Position { seq }))
                }
                Some(Ok(ProcessEvent::Stdout(bytes))) => {
                    rest = (SOCKET_STDOUT, bytes);
                    continue;
                }
                Some(Ok(ProcessEvent::Stderr(bytes))) => {
                    rest = (SOCKET_STDERR, bytes);
                    continue;
                }
                Some(Ok(ProcessEvent::Exit(exit))) => {
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
            return Told::End(End::silent());
        }
    }
}

async fn exited<S>(sink: &mut S, form: Form, last: [Option<Message>; 2], exit: ExitStatus) -> Told
where
    S: Sink<Message> + Unpin,
{
    let late = timed_out(&exit, form.timeout);
    let late = late.and_then(|words| form.piece(SOCKET_STDERR, &mut Text::default(), words.as_bytes()));
    for message in last.into_iter().flatten().chain(late) {
        if sink.send(message).await.is_err() {
            return Told::End(End::silent());
        }
    }
    let ExitStatus { code: exit_code, timed_out, oom_killed, pids_exhausted, .. } = exit;
    Told::End(End::said(SocketOutput::Exit { exit_code, timed_out, oom_killed, pids_exhausted }))
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
    Some(json(&match stream {
        SOCKET_STDERR => SocketOutput::Stderr { data },
        SOCKET_SCREEN => SocketOutput::Screen { data },
        _ => SocketOutput::Stdout { data },
    }))
}

#[cfg(test)]
mod test {
    use futures_util::stream;
    use tokio::time::Instant;

    use super::*;
    use crate::http::stream::websocket::PING_EVERY;

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
        let form = Form { binary: false, timeout: Some(Duration::from_secs(1)), position: None };
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
        let piece = |bytes: &'static [u8]| Ok(ProcessEvent::Stdout(Bytes::from_static(bytes)));
        let exit = ExitStatus {
            code: 124,
            timed_out: true,
            oom_killed: false,
            signal: None,
            pids_exhausted: false,
            duration: Duration::ZERO,
        };
        let events = [piece(b"a\xe2"), piece(b"\x82\xac"), piece(b"\xf0"), Ok(ProcessEvent::Exit(exit))];
        let form = Form { binary: false, timeout: Some(Duration::from_secs(2)), position: None };
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
