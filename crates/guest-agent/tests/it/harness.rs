//! An agent for each test, and the client that speaks to it.

use std::convert::Infallible;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use guest_protocol::frame::{Decoder, Kind, encode};
use guest_protocol::{Boot, Deadline, Defaults, Exec, Exit, Failure, Network, REQUEST_HEADER, VERSION, VERSION_HEADER};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The longest wait for a condition, on any machine.
pub const WAIT: Duration = Duration::from_secs(20);
/// Variable in the environment of every command of a test, by which leftover processes are found.
pub const MARK: &str = "TIDEBOX_TEST_MARK";
const HEADER_SET: &AsciiSet = &CONTROLS.add(b'%');

pub type RequestBody = UnsyncBoxBody<Bytes, Infallible>;

/// A running agent with one connection to it.
pub struct Agent {
    pub child: Child,
    /// The test's own folder.
    pub dir: TempDir,
    sender: SendRequest<RequestBody>,
    socket: PathBuf,
    tasks: JoinSet<()>,
}

impl Agent {
    pub async fn start() -> Agent {
        Agent::start_with(Boot { deadline_ms: 600_000, ..Boot::default() }).await
    }

    /// Starts an agent of a box with another network, whose programs do not learn of the proxy.
    pub async fn start_without_proxy() -> Agent {
        Agent::start_with(Boot { deadline_ms: 600_000, network: Network::Own, ..Boot::default() }).await
    }

    pub async fn start_with(boot: Boot) -> Agent {
        Agent::start_in(|_| boot).await
    }

    async fn start_in(boot: impl FnOnce(&str) -> Boot) -> Agent {
        // In memory, since some tests make thousands of files.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let mut boot = boot(dir.path().to_str().unwrap());
        let socket = dir.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        boot.listener_fd = 3;
        // A shell gives the socket its number: a descriptor that this process passed on by itself
        // would be inherited by the agents of all other tests too.
        let child = Command::new("/bin/sh")
            .args(["-c", r#"exec "$0" agent 3<&0 </dev/null"#])
            .arg(program())
            .env_clear()
            .env("TIDEBOX_AGENT", serde_json::to_string(&boot).unwrap())
            .stdin(std::os::fd::OwnedFd::from(listener))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut tasks = JoinSet::new();
        let sender = connect(&socket, &mut tasks).await;
        Agent { child, dir, sender, socket, tasks }
    }

    /// Starts an agent with the defaults and the entry point of an image; `image` is given the folder
    /// of the test.
    pub async fn start_image(image: impl FnOnce(&str) -> (Defaults, Option<Vec<String>>)) -> Agent {
        Agent::start_in(|dir| {
            let (defaults, entrypoint) = image(dir);
            Boot { deadline_ms: 600_000, defaults, entrypoint, ..Boot::default() }
        })
        .await
    }

    /// Opens a further connection to the agent.
    pub async fn connect(&mut self) -> SendRequest<RequestBody> {
        connect(&self.socket, &mut self.tasks).await
    }

    /// Replaces the connection, with all that runs on it.
    pub async fn reconnect(&mut self) {
        self.tasks.shutdown().await;
        self.sender = connect(&self.socket, &mut self.tasks).await;
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Returns a path in the folder of the test.
    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    pub fn command(&self, argv: &[&str]) -> Exec {
        let mut env = std::collections::BTreeMap::new();
        env.insert("PATH".to_owned(), "/usr/bin:/bin".to_owned());
        env.insert(MARK.to_owned(), self.mark());
        Exec {
            argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
            env,
            workdir: Some(self.dir.path().to_str().unwrap().to_owned()),
            user: None,
            timeout_ms: 60_000,
            stdin: false,
            terminal: None,
        }
    }

    pub fn shell(&self, script: &str) -> Exec {
        self.command(&["/bin/sh", "-c", script])
    }

    pub fn mark(&self) -> String {
        self.dir.path().to_str().unwrap().to_owned()
    }

    /// Starts a command and returns its stream; stdin ends at once.
    pub async fn open(&mut self, exec: &Exec) -> Running {
        let start = encode(Kind::Start, &serde_json::to_vec(exec).unwrap());
        self.open_with(Full::new(start).boxed_unsync()).await
    }

    /// Starts a command; the sender takes stdin.
    pub async fn open_with_stdin(&mut self, exec: &Exec) -> (mpsc::Sender<Bytes>, Running) {
        let (sender, receiver) = mpsc::channel(1);
        sender.send(encode(Kind::Start, &serde_json::to_vec(exec).unwrap())).await.unwrap();
        (sender, self.open_with(Pieces(receiver).boxed_unsync()).await)
    }

    pub async fn open_with(&mut self, body: RequestBody) -> Running {
        let response = self.send("POST", "/exec", body, &[]).await;
        if response.status() != StatusCode::OK {
            let refusal = answer::<serde_json::Value>(response).await.unwrap_err();
            return Running { body: None, refusal: Some(refusal), decoder: Decoder::default() };
        }
        Running { body: Some(response.into_body()), refusal: None, decoder: Decoder::default() }
    }

    /// Runs a command to its end.
    pub async fn exec(&mut self, exec: &Exec) -> Output {
        self.open(exec).await.finish().await
    }

    pub async fn run(&mut self, script: &str) -> Output {
        let exec = self.shell(script);
        self.exec(&exec).await
    }

    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        body: RequestBody,
        headers: &[(&str, &str)],
    ) -> Response<Incoming> {
        let mut request = Request::builder().method(method).uri(format!("http://box{path}"));
        if !headers.iter().any(|(name, _)| *name == VERSION_HEADER) {
            request = request.header(VERSION_HEADER, VERSION.to_string());
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        within(self.sender.send_request(request.body(body).unwrap())).await.unwrap()
    }

    /// Sends a JSON request and reads the JSON answer.
    pub async fn ask<T: DeserializeOwned>(&mut self, path: &str, request: &impl Serialize) -> Result<T, Failure> {
        let body = Full::new(Bytes::from(serde_json::to_vec(request).unwrap())).boxed_unsync();
        answer(self.send("POST", path, body, &[]).await).await
    }

    /// Ends the agent by its deadline and checks that nothing is left.
    pub async fn end(mut self) {
        let pid = self.pid();
        eventually("there is no zombie", || children_in_state(pid, 'Z').is_empty()).await;
        self.ask::<serde_json::Value>("/deadline", &Deadline { in_ms: 0 }).await.unwrap();
        self.ended().await;
    }

    /// Waits until the agent has ended and checks that nothing is left.
    pub async fn ended(&mut self) {
        eventually("the agent has ended", || self.child.try_wait().unwrap().is_some()).await;
        let left = self.alive();
        assert!(left.is_empty(), "left behind: {left:?}");
    }

    /// Returns the living commands of this test and their descendants.
    pub fn alive(&self) -> Vec<i32> {
        alive(&self.mark())
    }

    pub async fn nothing_is_alive(&self) {
        eventually("nothing is alive", || self.alive().is_empty()).await;
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Cleans up after a failed test.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        for _ in 0..100 {
            let left = self.alive();
            left.iter().for_each(|pid| signal(*pid, Signal::KILL));
            if left.is_empty() {
                break;
            }
        }
    }
}

/// Returns the path of the agent under test: the one that cargo has built beside these tests, or
/// the one in `TIDEBOX_TEST_AGENT`.
fn program() -> PathBuf {
    std::env::var_os("TIDEBOX_TEST_AGENT").map_or_else(|| env!("CARGO_BIN_EXE_guest-agent").into(), PathBuf::from)
}

async fn connect(socket: &Path, tasks: &mut JoinSet<()>) -> SendRequest<RequestBody> {
    let stream = UnixStream::connect(socket).await.unwrap();
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1024 * 1024)
        .initial_connection_window_size(16 * 1024 * 1024)
        .max_header_list_size(64 * 1024)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tasks.spawn(async move {
        let _ = connection.await;
    });
    sender
}

/// A body made of the bytes that are sent to a channel.
pub struct Pieces(pub mpsc::Receiver<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// Encodes a request as JSON in a header.
pub fn header(request: &impl Serialize) -> (&'static str, String) {
    (REQUEST_HEADER, utf8_percent_encode(&serde_json::to_string(request).unwrap(), HEADER_SET).to_string())
}

pub async fn answer<T: DeserializeOwned>(response: Response<Incoming>) -> Result<T, Failure> {
    let status = response.status();
    let bytes = within(response.into_body().collect()).await.unwrap().to_bytes();
    if status == StatusCode::OK {
        return Ok(serde_json::from_slice(&bytes).unwrap());
    }
    let failure: Failure = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(status.as_u16(), failure.kind.status());
    Err(failure)
}

/// The stream of a command. Dropping it hangs up.
pub struct Running {
    /// Frames of the command, if it was started.
    body: Option<Incoming>,
    /// Reason if the command was not started.
    refusal: Option<Failure>,
    decoder: Decoder,
}

/// Output and end of a command.
#[derive(Debug)]
pub struct Output {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub end: Result<Exit, Failure>,
    /// Number of frames of output.
    pub frames: usize,
}

impl Output {
    pub fn code(&self) -> i32 {
        self.end.as_ref().unwrap().code
    }

    pub fn out(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    pub fn err(&self) -> &str {
        std::str::from_utf8(&self.stderr).unwrap()
    }
}

impl Running {
    pub async fn next(&mut self) -> Option<(Kind, Bytes)> {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some((frame.kind, frame.payload));
            }
            let piece = self.body.as_mut()?.frame().await?.unwrap();
            self.decoder.feed(piece.data_ref().unwrap());
        }
    }

    pub async fn finish(mut self) -> Output {
        let end = Err(self.refusal.take().unwrap_or_else(no_end));
        let mut output = Output { stdout: Vec::new(), stderr: Vec::new(), end, frames: 0 };
        while let Some((kind, payload)) = within(self.next()).await {
            output.frames += 1;
            match kind {
                Kind::Stdout => output.stdout.extend_from_slice(&payload),
                Kind::Stderr => output.stderr.extend_from_slice(&payload),
                Kind::Exit => output.end = Ok(serde_json::from_slice(&payload).unwrap()),
                Kind::Failure => output.end = Err(serde_json::from_slice(&payload).unwrap()),
                Kind::Start | Kind::Stdin | Kind::StdinEnd | Kind::Screen | Kind::Position => {
                    panic!("the agent sent {kind:?}")
                }
            }
        }
        output
    }

    /// Reads until stdout holds `text`.
    pub async fn until(&mut self, text: &str) {
        let mut seen = String::new();
        while !seen.contains(text) {
            let (kind, payload) = within(self.next()).await.unwrap();
            assert_eq!(kind, Kind::Stdout, "{payload:?}");
            seen.push_str(std::str::from_utf8(&payload).unwrap());
        }
    }
}

fn no_end() -> Failure {
    Failure { kind: guest_protocol::FailureKind::Internal, message: "the stream ended without an end".to_owned() }
}

pub async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(WAIT, future).await.expect("it takes too long")
}

/// Polls until a condition holds; fails after [`WAIT`].
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < WAIT, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn signal(pid: i32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}

fn pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
}

/// Returns the state and parent of a process.
fn state(pid: i32) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Returns the children of `parent` in the state `wanted`.
pub fn children_in_state(parent: i32, wanted: char) -> Vec<i32> {
    pids().filter(|pid| state(*pid) == Some((wanted, parent))).collect()
}

pub fn children(parent: i32) -> Vec<i32> {
    pids().filter(|pid| state(*pid).is_some_and(|(_, of)| of == parent)).collect()
}

fn alive(mark: &str) -> Vec<i32> {
    let wanted = format!("{MARK}={mark}");
    let marked = |pid: &i32| {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
    };
    let lives = |pid: &i32| state(*pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'));
    pids().filter(marked).filter(lives).collect()
}
