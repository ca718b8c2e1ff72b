//! Tests of the guest over a byte stream, with agents that lie, flood, stall and die.

mod egress;
mod listen;
mod ports;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, stream};
use guest_protocol::frame::{self, Kind};
use guest_protocol::{FILE_HEADER, VERSION, VERSION_HEADER};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use providers::agent::AgentGuest;
use providers::{Command, Error, Guest, OutputEvent};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

type Body = StreamBody<BoxStream<'static, io::Result<Frame<Bytes>>>>;
type Answer = BoxFuture<'static, Response<Body>>;

fn body(pieces: impl futures_util::Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    StreamBody::new(pieces.map(|piece| piece.map(Frame::data)).boxed())
}

fn pieces(pieces: Vec<Bytes>) -> Body {
    body(stream::iter(pieces.into_iter().map(Ok)))
}

fn text(text: &str) -> Response<Body> {
    Response::new(pieces(vec![Bytes::copy_from_slice(text.as_bytes())]))
}

fn hello() -> Response<Body> {
    text(&format!(r#"{{"protocol":{VERSION},"version":"test"}}"#))
}

/// Task of an agent. Dropping it cuts the connection.
struct Agent(JoinSet<()>);

/// Connects to an agent that answers every request with `answer`.
async fn connect(
    answer: impl Fn(Request<Incoming>) -> Answer + Clone + Send + 'static,
) -> (providers::Result<AgentGuest>, Agent) {
    let (ours, theirs) = tokio::io::duplex(256 * 1024);
    let mut agent = JoinSet::new();
    agent.spawn(async move {
        let service = service_fn(move |request| {
            let answer = answer(request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(1024)
            .serve_connection(TokioIo::new(theirs), service)
            .await;
    });
    (AgentGuest::connect(ours).await, Agent(agent))
}

/// Connects to an agent that answers `/hello` correctly and every other request with
/// `answer`.
async fn guest(answer: impl Fn(Request<Incoming>) -> Answer + Clone + Send + 'static) -> (Arc<AgentGuest>, Agent) {
    let (guest, agent) = connect(move |request| match request.uri().path() {
        "/hello" => async { hello() }.boxed(),
        _ => answer(request),
    })
    .await;
    (Arc::new(guest.expect("the agent answers")), agent)
}

/// Runs a command whose agent sends `frames` and then ends the stream, and returns all
/// events.
async fn exec_gives(frames: Vec<Bytes>) -> Vec<providers::Result<OutputEvent>> {
    let (guest, _agent) = guest(move |_| {
        let frames = frames.clone();
        async move { Response::new(pieces(frames)) }.boxed()
    })
    .await;
    guest.exec(command()).await.expect("the agent answers").collect().await
}

fn command() -> Command {
    Command {
        argv: vec!["true".to_owned()],
        env: BTreeMap::new(),
        workdir: None,
        user: None,
        timeout: Duration::from_secs(60),
        stdin: None,
        terminal: None,
    }
}

fn is_failed<T>(result: &providers::Result<T>) -> bool {
    matches!(result, Err(Error::Failed { .. }))
}

#[tokio::test]
async fn an_agent_of_another_version_is_named() {
    let (guest, _agent) = connect(|_| async { text(r#"{"protocol":999,"version":"9"}"#) }.boxed()).await;
    let Err(Error::Unavailable(message)) = guest else { panic!("{guest:?}") };
    assert!(message.contains("999"), "{message}");

    let (guest, _agent) = connect(|_| {
        async {
            let mut response = text("");
            *response.status_mut() = http::StatusCode::HTTP_VERSION_NOT_SUPPORTED;
            response.headers_mut().insert(VERSION_HEADER, 7.into());
            response
        }
        .boxed()
    })
    .await;
    assert!(matches!(&guest, Err(Error::Unavailable(message)) if message.contains('7')), "{guest:?}");
}

#[tokio::test]
async fn what_does_not_speak_http2_is_no_agent() {
    use tokio::io::AsyncWriteExt;
    let (ours, mut theirs) = tokio::io::duplex(1024);
    theirs.write_all(b"SSH-2.0-OpenSSH_9.9\r\n and much more than a frame head").await.unwrap();
    assert!(AgentGuest::connect(ours).await.is_err());
    let (ours, theirs) = tokio::io::duplex(1024);
    drop(theirs);
    assert!(matches!(AgentGuest::connect(ours).await, Err(Error::Gone)));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_says_nothing_is_not_waited_for_for_ever() {
    let (ours, _theirs) = tokio::io::duplex(1024);
    assert!(is_failed(&AgentGuest::connect(ours).await));

    let (guest, _agent) = guest(|_| std::future::pending().boxed()).await;
    assert!(is_failed(&guest.stat("/a").await));
    assert!(is_failed(&guest.glob("/*").await));
    assert!(is_failed(&guest.read_file("/a", 0, None).await.map(|_| ())));
    assert!(is_failed(&guest.exec(command()).await.map(|_| ())));
    assert!(is_failed(&guest.write_file("/a", None, stream::empty().boxed()).await));
    // The request failed, not the connection.
    assert!(!guest.is_closed());
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_takes_no_content_is_not_waited_for_for_ever() {
    let (guest, _agent) = guest(|request| {
        async move {
            // Held, so that the window never opens.
            std::future::pending::<()>().await;
            drop(request);
            text("{}")
        }
        .boxed()
    })
    .await;
    let endless = stream::repeat_with(|| Ok(Bytes::from_static(&[7; 65536])));
    assert!(is_failed(&guest.write_file("/a", None, endless.boxed()).await));
}

#[tokio::test(start_paused = true)]
async fn a_content_that_is_slow_is_not_cut_off() {
    let (guest, _agent) = guest(|request| {
        async move {
            let received = request.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(received, "abc");
            text("{}")
        }
        .boxed()
    })
    .await;
    let slow = stream::iter(["a", "b", "c"]).then(|piece| async move {
        tokio::time::sleep(Duration::from_secs(1000)).await;
        Ok(Bytes::from(piece))
    });
    guest.write_file("/a", None, slow.boxed()).await.unwrap();
}

#[tokio::test]
async fn the_fault_of_a_content_reaches_the_caller() {
    let (guest, _agent) = guest(|request| {
        async move {
            assert!(request.into_body().collect().await.is_err());
            text("{}")
        }
        .boxed()
    })
    .await;
    let broken = stream::iter([Ok(Bytes::from("a")), Err(Error::Invalid("my own".to_owned()))]);
    let result = guest.write_file("/a", None, broken.boxed()).await;
    assert!(matches!(&result, Err(Error::Invalid(message)) if message == "my own"), "{result:?}");
}

#[tokio::test]
async fn answers_that_are_huge_or_endless_are_cut() {
    let (guest, _agent) = guest(|_| {
        let endless = stream::repeat_with(|| Ok(Bytes::from_static(&[b' '; 65536])));
        async { Response::new(body(endless)) }.boxed()
    })
    .await;
    assert!(is_failed(&guest.list("/").await));
    assert!(is_failed(&guest.stat("/").await));
    assert!(!guest.is_closed());
}

#[tokio::test]
async fn answers_that_make_no_sense_fail_the_request() {
    let file = |more: &str| {
        format!(r#"{{"name":"a","path":"/a","size":1,"is_dir":false,"is_symlink":false,"modified_ms":0,{more}}}"#)
    };
    for answer in [
        String::new(),
        "null".to_owned(),
        "[".repeat(100_000),
        r#"{"name":"a"}"#.to_owned(),
        file(r#""mode":65535"#),
        file(r#""mode":-1"#),
        file(r#""mode":420,"mode":420"#),
    ] {
        let sent = answer.clone();
        let (guest, _agent) = guest(move |_| {
            let sent = sent.clone();
            async move { text(&sent) }.boxed()
        })
        .await;
        assert!(is_failed(&guest.stat("/a").await), "{answer}");
        assert!(is_failed(&guest.list("/").await), "{answer}");
        assert!(is_failed(&guest.glob("/*").await), "{answer}");
        assert!(is_failed(&guest.console(5).await), "{answer}");
    }
}

#[tokio::test]
async fn more_than_was_asked_for_is_not_given() {
    let (console, _agent) = guest(|_| async { text(r#"["a","b","c"]"#) }.boxed()).await;
    assert_eq!(console.console(2).await.unwrap(), ["b", "c"]);

    let paths: Vec<String> = (0..=10_000).map(|n| format!("/{n}")).collect();
    let paths = serde_json::to_string(&paths).unwrap();
    let (glob, _agent) = guest(move |_| {
        let paths = paths.clone();
        async move { text(&paths) }.boxed()
    })
    .await;
    assert!(is_failed(&glob.glob("/*").await));

    let (read, _agent) = guest(|_| {
        let endless = stream::repeat_with(|| Ok(Bytes::from_static(&[7; 1000])));
        let mut response = Response::new(body(endless));
        let info =
            r#"{"name":"a","path":"/a","size":2500,"is_dir":false,"is_symlink":false,"modified_ms":0,"mode":420}"#;
        response.headers_mut().insert(FILE_HEADER, info.parse().unwrap());
        async { response }.boxed()
    })
    .await;
    for (offset, length, expected) in [(0, None, 2500), (500, None, 2000), (0, Some(1500), 1500), (9999, None, 0)] {
        let content = read.read_file("/a", offset, length).await.unwrap();
        let sizes: Vec<usize> = content.bytes.map(|piece| piece.unwrap().len()).collect().await;
        assert_eq!(sizes.iter().sum::<usize>(), expected);
    }
}

#[tokio::test]
async fn each_kind_of_failure_becomes_its_error() {
    type Expected = fn(&Error) -> bool;
    let cases: [(&str, Expected); 6] = [
        ("invalid", |error| matches!(error, Error::Invalid(message) if message == "no\u{fffd}[31m")),
        ("not_found", |error| matches!(error, Error::NotFound(_))),
        ("no_space", |error| matches!(error, Error::NoSpace)),
        ("exhausted", |error| matches!(error, Error::Exhausted(_))),
        ("not_supported", |error| matches!(error, Error::NotSupported(_))),
        ("internal", |error| matches!(error, Error::Failed { .. })),
    ];
    for (kind, expected) in cases {
        let (guest, _agent) = guest(move |_| {
            let mut response = text(&format!(r#"{{"kind":"{kind}","message":"no\u001b[31m"}}"#));
            *response.status_mut() = http::StatusCode::BAD_REQUEST;
            async { response }.boxed()
        })
        .await;
        let error = guest.chmod("/a", 0o644).await.unwrap_err();
        assert!(expected(&error), "{kind}: {error:?}");
        let error = guest.exec(command()).await.map(|_| ()).unwrap_err();
        assert!(expected(&error), "{kind}: {error:?}");
    }
}

#[tokio::test]
async fn output_without_an_exit_ends_with_an_error() {
    let events = exec_gives(vec![frame::encode(Kind::Stdout, b"a")]).await;
    assert!(matches!(&events[..], [Ok(OutputEvent::Stdout(_)), Err(Error::Failed { .. })]), "{events:?}");
    let events = exec_gives(vec![]).await;
    assert!(matches!(&events[..], [Err(Error::Failed { .. })]), "{events:?}");
}

#[tokio::test]
async fn frames_that_make_no_sense_end_the_output() {
    for bad in [&[99, 0, 0, 0, 1, 0][..], &[17, 255, 255, 255, 255], &frame::encode(Kind::Exit, b"what?")] {
        let events = exec_gives(vec![Bytes::copy_from_slice(bad), frame::encode(Kind::Stdout, b"a")]).await;
        assert!(matches!(&events[..], [Err(Error::Failed { .. })]), "{events:?}");
    }
}

#[tokio::test]
async fn nothing_follows_an_exit() {
    let exit = frame::encode(Kind::Exit, br#"{"code":0,"duration_us":1}"#);
    let events = exec_gives(vec![exit.clone(), frame::encode(Kind::Stdout, b"a"), exit]).await;
    assert!(matches!(&events[..], [Ok(OutputEvent::Exit(_))]), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_command_whose_agent_forgets_its_deadline_has_timed_out_all_the_same() {
    let silent = guest(|_| async { Response::new(body(stream::pending())) }.boxed()).await;
    let trickling = guest(|_| {
        let trickle = stream::repeat_with(|| Ok(frame::encode(Kind::Stdout, b"."))).then(|piece| async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            piece
        });
        async { Response::new(body(trickle)) }.boxed()
    })
    .await;
    for (guest, _agent) in [silent, trickling] {
        let begun = tokio::time::Instant::now();
        let events = guest.exec(command()).await.unwrap();
        let last = events.fold(None, |_, event| async { Some(event) }).await.unwrap();
        let Ok(OutputEvent::Exit(exit)) = &last else { panic!("{last:?}") };
        assert!(exit.timed_out && exit.code == 124, "{exit:?}");
        // The deadline of 60 s and the grace of 10 s.
        assert!((69..=71).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_ends_every_stream_at_once() {
    let (guest, agent) = guest(|request| {
        let first = stream::iter([Ok(frame::encode(Kind::Stdout, b"a"))]);
        async move {
            drop(request);
            Response::new(body(first.chain(stream::pending())))
        }
        .boxed()
    })
    .await;
    let mut output = guest.exec(command()).await.unwrap();
    assert!(matches!(output.next().await, Some(Ok(OutputEvent::Stdout(_)))));
    drop(agent);
    let next = tokio::time::timeout(Duration::from_secs(5), output.next()).await.unwrap();
    assert!(matches!(next, Some(Err(Error::Gone))), "{next:?}");
    assert!(output.next().await.is_none());
    assert!(guest.is_closed());
    assert!(matches!(guest.stat("/a").await, Err(Error::Gone)));
    assert!(matches!(guest.exec(command()).await.map(|_| ()), Err(Error::Gone)));
}

#[tokio::test]
async fn dropping_the_output_resets_the_stream() {
    let dropped = Arc::new(Notify::new());
    let notify = Arc::clone(&dropped);
    struct OnDrop(Arc<Notify>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.notify_one();
        }
    }
    let (guest, _agent) = guest(move |_| {
        let guard = OnDrop(Arc::clone(&notify));
        let output = stream::unfold(guard, |guard| async {
            tokio::task::yield_now().await;
            Some((Ok(frame::encode(Kind::Stdout, &[7; 4096])), guard))
        });
        async { Response::new(body(output)) }.boxed()
    })
    .await;
    let mut output = guest.exec(command()).await.unwrap();
    assert!(output.next().await.unwrap().is_ok());
    drop(output);
    tokio::time::timeout(Duration::from_secs(5), dropped.notified()).await.unwrap();
    assert!(!guest.is_closed());
}

#[tokio::test]
async fn readers_that_have_stopped_hold_up_nobody_else() {
    let (guest, _agent) = guest(|request| {
        let endless = stream::repeat_with(|| Ok(frame::encode(Kind::Stdout, &[7; 65536])));
        let response = if request.uri().path() == "/exec" { Response::new(body(endless)) } else { text("[]") };
        async { response }.boxed()
    })
    .await;
    let mut stopped = Vec::new();
    for _ in 0..50 {
        let mut output = guest.exec(command()).await.unwrap();
        assert!(output.next().await.unwrap().is_ok());
        stopped.push(output);
    }
    tokio::time::timeout(Duration::from_secs(20), guest.glob("/*")).await.unwrap().unwrap();
}

#[tokio::test]
async fn stdin_is_taken_at_the_speed_of_the_command() {
    let (asked, mut asks) = mpsc::channel(100_000);
    let (guest, _agent) = guest(|request| {
        async move {
            let held = stream::unfold(request, |request| async {
                std::future::pending::<()>().await;
                Some((Ok(Bytes::new()), request))
            });
            Response::new(body(held))
        }
        .boxed()
    })
    .await;
    let stdin = stream::repeat_with(move || {
        let _ = asked.try_send(());
        Ok(Bytes::from_static(&[7; 65536]))
    });
    let mut output = guest.exec(Command { stdin: Some(stdin.boxed()), ..command() }).await.unwrap();
    let mut reader = JoinSet::new();
    reader.spawn(async move { output.next().await });
    // The window is full when no more content is requested.
    let mut pieces = 0;
    while let Ok(Some(())) = tokio::time::timeout(Duration::from_millis(300), asks.recv()).await {
        pieces += 1;
    }
    assert!((1..200).contains(&pieces), "{pieces} pieces");
    // Dropping the output also drops the stdin.
    drop(reader);
    assert!(tokio::time::timeout(Duration::from_secs(5), asks.recv()).await.unwrap().is_none());
}

#[tokio::test]
async fn more_commands_than_a_box_may_have_are_refused() {
    let (guest, _agent) = guest(|_| async { Response::new(body(stream::pending())) }.boxed()).await;
    let mut running = Vec::new();
    let refused = loop {
        match guest.exec(command()).await {
            Ok(output) => running.push(output),
            Err(error) => break error,
        }
        assert!(running.len() <= 512);
    };
    assert!(matches!(refused, Error::Exhausted(_)), "{refused:?}");
    running.pop();
    assert!(guest.exec(command()).await.is_ok());
}

#[tokio::test]
async fn dropping_the_guest_closes_the_stream() {
    let (guest, mut agent) = guest(|_| async { text("{}") }.boxed()).await;
    drop(guest);
    tokio::time::timeout(Duration::from_secs(5), agent.0.join_next()).await.unwrap();
}
