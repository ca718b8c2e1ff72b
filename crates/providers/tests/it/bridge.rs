//! The conformance suite through the protocol between server and agent. The agent runs in this
//! process over a byte stream in memory, and its box is a mock one.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use conformance::{Need, Subject, run};
use domain::{Resources, SandboxId, Timestamp};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use guest_protocol::frame::{self, Decoder, Kind};
use guest_protocol::{FILE_HEADER, Failure, FailureKind, REQUEST_HEADER, VERSION};
use http::{HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, utf8_percent_encode};
use providers::agent::AgentGuest;
use providers::mock::Mock;
use providers::{
    ByteStream, Command, Error, Facts, FileInfo, Found, Guest, Health, ImageSource, OutputEvent, Provider, Result,
    Signal, Spec, Started,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const HEADER_SET: &AsciiSet = &CONTROLS.add(b'%');

type Body = StreamBody<BoxStream<'static, io::Result<Frame<Bytes>>>>;

fn body(pieces: impl futures_util::Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    StreamBody::new(pieces.map_ok(Frame::data).boxed())
}

fn json(value: &impl Serialize) -> Response<Body> {
    let bytes = serde_json::to_vec(value).expect("it serializes");
    Response::new(body(stream::iter([Ok(Bytes::from(bytes))])))
}

/// Returns a request's body as a stream, with the error if it breaks off.
fn content(body: Incoming) -> ByteStream {
    BodyStream::new(body)
        .map_ok(|frame| frame.into_data().unwrap_or_default())
        .map_err(|error| Error::failed("receive", error))
        .boxed()
}

/// Returns the stdin that the server sent, decoded from its frames.
fn stdin(body: Incoming, decoder: Decoder) -> ByteStream {
    stream::try_unfold((content(body), decoder), |(mut body, mut decoder)| async move {
        loop {
            match decoder.next_frame().expect("the server sends frames") {
                Some(frame) if frame.kind == Kind::Stdin => return Ok(Some((frame.payload, (body, decoder)))),
                Some(_) => return Ok(None),
                None => {}
            }
            match body.next().await {
                Some(piece) => decoder.feed(&piece?),
                None => return Ok(None),
            }
        }
    })
    .boxed()
}

fn wire(info: FileInfo) -> guest_protocol::FileInfo {
    guest_protocol::FileInfo {
        name: info.name,
        path: info.path,
        size: info.size,
        is_dir: info.is_dir,
        is_symlink: info.is_symlink,
        target: info.target,
        modified_ms: info.modified.as_millisecond(),
        mode: info.mode,
        owner: info.owner.unwrap_or_default(),
        group: info.group.unwrap_or_default(),
    }
}

/// An agent whose box is another guest.
#[derive(Clone)]
struct Agent {
    guest: Arc<dyn Guest>,
    /// Cancelled when the box has ended, which ends the connection.
    gone: CancellationToken,
}

impl Agent {
    async fn serve(self, io: tokio::io::DuplexStream) {
        let gone = self.gone.clone();
        let service = service_fn(move |request| {
            let answer: BoxFuture<'static, _> = Box::pin(self.clone().answer(request));
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(4096)
            .max_header_list_size(128 * 1024)
            .max_pending_accept_reset_streams(4096)
            .serve_connection(TokioIo::new(io), service);
        tokio::select! {
            _ = connection => {}
            () = gone.cancelled_owned() => {}
        }
    }

    async fn answer(self, request: Request<Incoming>) -> Response<Body> {
        let gone = self.gone.clone();
        match self.ask(request).await {
            Ok(response) => response,
            Err(error) => {
                let kind = match &error {
                    Error::Invalid(_) | Error::TooLarge(_) => FailureKind::Invalid,
                    Error::NotFound(_) => FailureKind::NotFound,
                    Error::NoSpace => FailureKind::NoSpace,
                    Error::Exhausted(_) => FailureKind::Exhausted,
                    Error::NotSupported(_) => FailureKind::NotSupported,
                    Error::Conflict(_)
                    | Error::Gone
                    | Error::NotAsked(_)
                    | Error::Full(_)
                    | Error::NoImage(_)
                    | Error::Unavailable(_)
                    | Error::NoAnswer { .. }
                    | Error::Failed { .. } => FailureKind::Internal,
                };
                if matches!(error, Error::Gone) {
                    gone.cancel();
                    std::future::pending::<()>().await;
                }
                let mut response = json(&Failure { kind, message: error.to_string() });
                *response.status_mut() = http::StatusCode::from_u16(kind.status()).expect("a status");
                response
            }
        }
    }

    async fn ask(self, request: Request<Incoming>) -> Result<Response<Body>> {
        async fn read<T: DeserializeOwned>(request: Request<Incoming>) -> T {
            let bytes = request.into_body().collect().await.expect("a body").to_bytes();
            serde_json::from_slice(&bytes).expect("a request")
        }
        fn header<T: DeserializeOwned>(request: &Request<Incoming>) -> T {
            let header = request.headers().get(REQUEST_HEADER).expect("a header");
            let json: Vec<u8> = percent_decode(header.as_bytes()).collect();
            serde_json::from_slice(&json).expect("a request")
        }
        let guest = self.guest.clone();
        let path = request.uri().path().to_owned();
        Ok(match (request.method().as_str(), path.as_str()) {
            ("GET", "/hello") => json(&guest_protocol::Hello { protocol: VERSION, version: "test".to_owned() }),
            ("POST", "/exec") => return self.exec(request.into_body()).await,
            ("GET", "/file") => {
                let asked: guest_protocol::ReadFile = header(&request);
                let file = guest.read_file(&asked.path, asked.offset, asked.length).await?;
                let info = serde_json::to_string(&wire(file.info)).expect("it serializes");
                let info = utf8_percent_encode(&info, HEADER_SET).to_string();
                let mut response = Response::new(body(file.bytes.map_err(io::Error::other)));
                response.headers_mut().insert(FILE_HEADER, HeaderValue::try_from(info).expect("a header"));
                response
            }
            ("PUT", "/file") => {
                let asked: guest_protocol::WriteFile = header(&request);
                guest.write_file(&asked.path, asked.mode, content(request.into_body())).await?;
                json(&HashMap::<(), ()>::new())
            }
            (_, "/files/delete") => {
                let asked: guest_protocol::Delete = read(request).await;
                json(&guest.delete(&asked.path, asked.recursive).await.map(|()| [0; 0])?)
            }
            (_, "/files/move") => {
                let asked: guest_protocol::Rename = read(request).await;
                json(&guest.rename(&asked.old_path, &asked.new_path).await.map(|()| [0; 0])?)
            }
            (_, "/files/chmod") => {
                let asked: guest_protocol::Chmod = read(request).await;
                json(&guest.chmod(&asked.path, asked.mode).await.map(|()| [0; 0])?)
            }
            (_, "/files/stat") => {
                let asked: guest_protocol::PathOnly = read(request).await;
                json(&wire(guest.stat(&asked.path).await?))
            }
            (_, "/files/list") => {
                let asked: guest_protocol::PathOnly = read(request).await;
                json(&guest.list(&asked.path).await?.into_iter().map(wire).collect::<Vec<_>>())
            }
            (_, "/files/glob") => {
                let asked: guest_protocol::Glob = read(request).await;
                json(&guest.glob(&asked.pattern).await?)
            }
            (_, "/console") => {
                let asked: guest_protocol::Console = read(request).await;
                json(&guest.console(asked.lines).await?)
            }
            (_, "/ports") => {
                let described = |it: providers::ListeningPort| {
                    let providers::ListeningPort { port, address, pid, process } = it;
                    guest_protocol::ListeningPort { port, address, pid, process }
                };
                json(&guest.ports().await?.into_iter().map(described).collect::<Vec<_>>())
            }
            (_, "/connect") => {
                let asked: guest_protocol::Connect = header(&request);
                let output = guest.connect(asked.port, content(request.into_body())).await?;
                Response::new(body(output.map_err(io::Error::other)))
            }
            (_, "/ports/watch") => {
                let asked: guest_protocol::WatchPorts = read(request).await;
                // No port of a mock box ever changes.
                let changes = guest.watch_ports(Duration::from_millis(asked.interval_ms)).await?;
                Response::new(body(changes.map(|change| panic!("{change:?}"))))
            }
            (_, "/listen") => {
                let asked: guest_protocol::Listen = read(request).await;
                // No process of a mock box connects, so there is nothing to accept or to refuse.
                let connections = guest.listen(asked.port).await?;
                Response::new(body(connections.map(|_| panic!("a connection"))))
            }
            (_, "/trust") => {
                let asked: guest_protocol::Trust = read(request).await;
                guest.trust(&asked.certificate).await?;
                json(&[0; 0])
            }
            (_, "/egress") => {
                // A mock box asks for nothing, so there is nothing to accept or to refuse.
                let rows = guest.egress().await?.map(|request| panic!("{request:?}"));
                Response::new(body(rows))
            }
            (_, "/deadline") => {
                let asked: guest_protocol::Deadline = read(request).await;
                guest.set_deadline(Duration::from_millis(asked.in_ms)).await?;
                json(&[0; 0])
            }
            (method, path) => panic!("there is no {method} {path}"),
        })
    }

    async fn exec(self, mut request: Incoming) -> Result<Response<Body>> {
        let mut decoder = Decoder::default();
        let start = loop {
            if let Some(frame) = decoder.next_frame().expect("the server sends frames") {
                break frame;
            }
            let piece = request.frame().await.expect("a start").expect("a start");
            decoder.feed(&piece.into_data().unwrap_or_default());
        };
        assert_eq!(start.kind, Kind::Start);
        let asked: guest_protocol::Exec = serde_json::from_slice(&start.payload).expect("a command");
        let command = Command {
            argv: asked.argv,
            env: asked.env,
            workdir: asked.workdir,
            user: asked.user,
            timeout: Duration::from_millis(asked.timeout_ms),
            stdin: asked.stdin.then(|| stdin(request, decoder)),
            terminal: None,
        };
        let gone = self.gone;
        let frames = self.guest.exec(command).await?.then(move |event| {
            let gone = gone.clone();
            async move {
                match event {
                    Ok(OutputEvent::Stdout(bytes)) => Ok(frame::encode(Kind::Stdout, &bytes)),
                    Ok(OutputEvent::Stderr(bytes)) => Ok(frame::encode(Kind::Stderr, &bytes)),
                    Ok(OutputEvent::Exit(exit)) => {
                        let exit = guest_protocol::Exit {
                            code: exit.code,
                            signal: exit.signal.map(Signal::number),
                            timed_out: exit.timed_out,
                            oom_killed: exit.oom_killed,
                            pids_exhausted: exit.pids_exhausted,
                            duration_us: u64::try_from(exit.duration.as_micros()).unwrap_or(u64::MAX),
                        };
                        Ok(frame::encode(Kind::Exit, &serde_json::to_vec(&exit).expect("it serializes")))
                    }
                    Err(error) => {
                        // The connection ends with the box, before anything else is sent.
                        gone.cancel();
                        std::future::pending::<()>().await;
                        Err(io::Error::other(error))
                    }
                }
            }
        });
        Ok(Response::new(body(frames)))
    }
}

/// A provider of mock boxes that are reached through the protocol.
#[derive(Debug)]
struct Bridge {
    mock: Mock,
    agents: Mutex<JoinSet<()>>,
}

#[async_trait]
impl Provider for Bridge {
    fn name(&self) -> &str {
        "bridge"
    }
    fn facts(&self) -> Facts {
        self.mock.facts()
    }
    async fn health(&self) -> Health {
        self.mock.health().await
    }
    fn default_image(&self) -> &str {
        self.mock.default_image()
    }
    fn images(&self) -> Option<&dyn ImageSource> {
        self.mock.images()
    }
    fn check(&self, spec: &Spec) -> Result<()> {
        self.mock.check(spec)
    }
    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<Started> {
        self.mock.start(id, spec).await
    }
    async fn stop(&self, id: &SandboxId) -> Result<()> {
        self.mock.stop(id).await
    }
    async fn inventory(&self) -> Result<Vec<Found>> {
        self.mock.inventory().await
    }
    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>> {
        let agent = Agent { guest: self.mock.guest(id).await?, gone: CancellationToken::new() };
        let (ours, theirs) = tokio::io::duplex(256 * 1024);
        self.agents.lock().expect("no task panicked").spawn(agent.serve(theirs));
        Ok(Arc::new(AgentGuest::connect(ours).await?))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_promise_is_kept_through_the_protocol() {
    let mock = Mock::new(|| Timestamp::UNIX_EPOCH);
    let killer = mock.clone();
    let spec = Spec {
        image: mock.default_image().to_owned(),
        resources: Resources { memory_mb: 256, vcpus: 1, disk_mb: 0, pids: 256 },
        entrypoint: false,
        metadata: Default::default(),
        lifetime: Duration::from_secs(600),
        trust: None,
        snapshot: None,
        is_copy: false,
        egress: Vec::new(),
        asker: None,
    };
    let bridge = Bridge { mock, agents: Mutex::default() };
    let subject = Subject::new(Arc::new(bridge), spec)
        .kill(move |id| {
            killer.die(&id);
            Box::pin(async {})
        })
        .without(Need::Processes, "a mock box runs no real program")
        .without(Need::Users, "a mock box has no users")
        .without(Need::Control, "the agent of these tests cannot control what runs")
        .without(Need::Terminals, "a mock box has no terminals")
        .without(Need::Background, "the agent of these tests has no processes in the background")
        .without(Need::Accounts, "the agent of these tests knows no users")
        .without(Need::Watchers, "mock watches no files")
        .without(Need::Images, "mock takes every image")
        .without(Need::Reopen, "mock boxes end with the process")
        .without(Need::Deadlines, "mock boxes end with the process");
    run(subject).await;
}
