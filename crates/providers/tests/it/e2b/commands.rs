//! Output of commands, cut, broken and made up; input, and what is left by a caller who goes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream as streams};
use providers::{Command, Error, Guest, OutputEvent, Provider, Result};
use serde_json::{Value, json};

use crate::custom::fake_service::{FakeService, Received, Reply};
use crate::custom::harness::{argv, id, kind, soon};
use crate::e2b::harness::{broken, end, ended, entered, envelope, held, message, rpc, stream};

/// Runs a command, and returns its events.
async fn output(guest: &Arc<dyn Guest>) -> Vec<Result<OutputEvent>> {
    match soon("the start", guest.exec(argv(&["true"]))).await {
        Ok(output) => soon("the output", output.collect()).await,
        Err(error) => vec![Err(error)],
    }
}

fn begun() -> Vec<u8> {
    message(&json!({"start": {"pid": 7}}))
}

fn said(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    message(&json!({"data": {"stdout": base64::engine::general_purpose::STANDARD.encode(text)}}))
}

#[tokio::test]
async fn a_stream_is_the_output_of_a_command_and_its_end() {
    let keepalive = || message(&json!({"keepalive": {}}));
    let future = || message(&json!({"future": {"x": 1}}));
    let whole =
        move |_: &_| stream(&[begun(), keepalive(), said("out"), future(), message(&ended(3)), end(&json!({}))]);
    let (service, _e2b, guest) = entered(whole).await;
    let events = output(&guest).await;
    let [Ok(OutputEvent::Stdout(text)), Ok(OutputEvent::Exit(exit))] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&text[..], exit.code, exit.timed_out), (&b"out"[..], 3, false));
    let asked = &service.asked("POST /process.Process/Start")[0];
    assert_eq!(asked.headers["content-type"], "application/connect+json");
    assert_eq!(
        (asked.headers["connect-timeout-ms"].as_str(), asked.headers["authorization"].as_str()),
        ("5000", "Basic cm9vdDo=")
    );
    let body: Value = serde_json::from_slice(&asked.body[5..]).unwrap();
    assert_eq!(body["process"]["cmd"], "true");
    assert_eq!((&body["process"]["cwd"], &body["stdin"]), (&json!("/workspace"), &json!(false)));
    assert_eq!(
        (asked.body[0], u32::from_be_bytes(asked.body[1..5].try_into().unwrap())),
        (0, u32::try_from(asked.body.len() - 5).unwrap())
    );
}

#[tokio::test]
async fn a_stream_that_is_cut_or_made_up_is_a_failure_with_its_reason() {
    type Tell = fn() -> Reply;
    let bad: [(Tell, &str); 12] = [
        (|| broken(&[begun(), said("x")].concat()), ""),
        (|| broken(&begun()[..3]), ""),
        (|| stream(&[begun(), said("x")]), "without its last envelope"),
        (|| stream(&[begun(), said("x")[..9].to_vec()]), "within an envelope"),
        (|| stream(&[begun(), vec![0, 0xff, 0xff, 0xff, 0xff]]), "larger than"),
        (|| stream(&[begun(), envelope(1, b"{}")]), "compressed"),
        (|| stream(&[begun(), envelope(0x40, b"{}")]), "0x40"),
        (|| stream(&[begun(), envelope(0, b"hello")]), "unexpected JSON"),
        (|| stream(&[begun(), envelope(0, b"")]), "unexpected JSON"),
        (|| stream(&[said("x"), begun(), end(&json!({}))]), "begin with its start"),
        (|| stream(&[]), "without its last envelope"),
        (
            || {
                Reply::Raw(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}".to_owned(),
                )
            },
            "type",
        ),
    ];
    for (n, (tell, words)) in bad.into_iter().enumerate() {
        let (_service, _e2b, guest) = entered(move |asked| match asked.line.contains("/Start") {
            true => tell(),
            false => Reply::Json(200, json!({})),
        })
        .await;
        let events = output(&guest).await;
        let Some(Err(error @ Error::NoAnswer { .. })) = events.last() else { panic!("{n}: {events:?}") };
        let reason = std::error::Error::source(error).unwrap().to_string();
        assert!(reason.contains(words), "{n}: {reason}");
    }
    let nonsense = |_: &_| stream(&[begun(), message(&json!({"data": {"stdout": "a*b"}})), end(&json!({}))]);
    let (_service, _e2b, guest) = entered(nonsense).await;
    assert!(matches!(output(&guest).await.last(), Some(Err(Error::Failed { .. }))));
    let endless = |_: &_| stream(&[begun(), end(&json!({}))]);
    let (_service, _e2b, guest) = entered(endless).await;
    assert!(matches!(output(&guest).await.last(), Some(Err(Error::Failed { .. }))), "it has ended before its command");
}

#[tokio::test]
async fn an_output_that_breaks_off_with_the_sandbox_says_that_it_is_gone() {
    let (service, _e2b, guest) = entered(|_| broken(&[begun(), said("x")].concat())).await;
    service.state().boxes.clear();
    let events = output(&guest).await;
    assert!(matches!(&events[..], [Ok(_), Err(Error::Gone)]), "{events:?}");
}

#[tokio::test]
async fn an_error_of_a_start_is_the_error_that_it_means() {
    for (code, text, expected) in [
        ("invalid_argument", "cwd '/no' does not exist", "Invalid"),
        ("unauthenticated", "invalid username", "Invalid"),
        ("resource_exhausted", "too many", "Exhausted"),
        ("internal", "oops", "Failed"),
    ] {
        let error = json!({"error": {"code": code, "message": text}});
        let (_service, _e2b, guest) = entered(move |_| stream(&[end(&error)])).await;
        assert_eq!(kind(guest.exec(argv(&["true"])).await), expected, "{code}");
    }
    let missing =
        json!({"error": {"code": "invalid_argument", "message": "exec: \"x\": executable file not found in $PATH"}});
    let (_service, _e2b, guest) = entered(move |_| stream(&[end(&missing)])).await;
    let events = output(&guest).await;
    let [Ok(OutputEvent::Stderr(text)), Ok(OutputEvent::Exit(exit))] = &events[..] else { panic!("{events:?}") };
    assert!(exit.code == 127 && text.ends_with(b"\n"), "{text:?}");
}

#[tokio::test]
async fn a_deadline_that_the_service_keeps_is_an_exit() {
    let error = json!({"error": {"code": "deadline_exceeded", "message": "too late"}});
    let (_service, _e2b, guest) = entered(move |asked| match asked.line.contains("/Start") {
        true => stream(&[begun(), said("x"), end(&error)]),
        false => Reply::Json(200, json!({"processes": []})),
    })
    .await;
    let events = output(&guest).await;
    let [Ok(OutputEvent::Stdout(_)), Ok(OutputEvent::Exit(exit))] = &events[..] else { panic!("{events:?}") };
    assert_eq!((exit.code, exit.timed_out), (124, true));
}

/// Waits until the service has received a request, and returns all like it.
async fn received(service: &FakeService, line: &str) -> Vec<Received> {
    let asked = async {
        while service.asked(line).is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        service.asked(line)
    };
    soon(line, asked).await
}

/// Answers a start with `tell`, and other calls as a service without processes.
fn starting(tell: impl Fn() -> Reply + Send + Sync + 'static) -> impl Fn(&Received) -> Reply + Send + Sync + 'static {
    move |asked| if asked.line.contains("/Start") { tell() } else { Reply::Json(200, json!({"processes": []})) }
}

#[tokio::test]
async fn a_command_whose_caller_has_gone_is_killed_also_before_its_start_was_heard_of() {
    for first in [begun(), Vec::new()] {
        let (service, e2b, guest) = entered(starting(move || held(&first))).await;
        let running = async {
            let _output = guest.exec(argv(&["sleep", "100"])).await;
            std::future::pending::<()>().await;
        };
        assert!(tokio::time::timeout(Duration::from_millis(300), running).await.is_err());
        let killed: Value =
            serde_json::from_slice(&received(&service, "POST /process.Process/SendSignal").await[0].body).unwrap();
        let begun: Value = serde_json::from_slice(&service.asked("POST /process.Process/Start")[0].body[5..]).unwrap();
        assert_eq!((&killed["process"]["tag"], &killed["signal"]), (&begun["tag"], &json!("SIGNAL_SIGKILL")));
        e2b.stop(&id(1)).await.unwrap();
        e2b.idle().await;
    }
}

#[tokio::test]
async fn input_is_sent_in_order_and_its_end_after_it() {
    let (service, _e2b, guest) = entered(starting(|| held(&begun()))).await;
    let pieces = ["one", "two", "three"].map(|piece| Ok(Bytes::from_static(piece.as_bytes())));
    let command = Command { stdin: Some(streams::iter(pieces).boxed()), ..argv(&["cat"]) };
    let _output = soon("the start", guest.exec(command)).await.unwrap();
    received(&service, "POST /process.Process/CloseStdin").await;
    let sent = service.asked("POST /process.Process/");
    let paths: Vec<&str> = sent.iter().map(|it| it.line.rsplit('/').next().unwrap()).collect();
    assert_eq!(paths, ["Start", "SendInput", "SendInput", "SendInput", "CloseStdin"]);
    let text = |it: &Received| serde_json::from_slice::<Value>(&it.body).unwrap()["input"]["stdin"].clone();
    assert_eq!(sent[1..4].iter().map(text).collect::<Vec<_>>(), ["b25l", "dHdv", "dGhyZWU="]);
}

#[tokio::test]
async fn what_no_call_can_express_is_refused_by_name() {
    let (service, _e2b, guest) = entered(|_| rpc(500, "internal", "it was asked")).await;
    let user = Command { user: Some("1000:1001".to_owned()), ..argv(&["true"]) };
    let Err(Error::NotSupported(text)) = guest.exec(user).await.map(drop) else { panic!("it ran") };
    assert!(text.contains("`user`"), "{text}");
    let before = service.asked("POST /").len();
    for (call, result) in [
        ("archive", guest.archive("/d").await.map(drop)),
        ("watch", guest.watch("/d", true).await.map(drop)),
        ("console", guest.console(5).await.map(drop)),
        ("listen", guest.listen(80).await.map(drop)),
        ("egress", guest.egress().await.map(drop)),
        ("trust", guest.trust("x").await),
    ] {
        assert!(matches!(&result, Err(Error::NotSupported(_))), "{call}: {result:?}");
    }
    assert_eq!(service.asked("POST /").len(), before);
    for command in [argv(&[]), argv(&[""]), argv(&["a\0"]), Command { workdir: Some("tmp".to_owned()), ..argv(&["a"]) }]
    {
        assert_eq!(kind(guest.exec(command).await), "Invalid");
    }
}

#[tokio::test]
async fn a_file_that_a_cut_write_leaves_after_its_removal_is_removed_too() {
    let (service, _e2b, guest) = entered(|asked| match asked.line.contains("/filesystem.Filesystem/Stat") {
        true => rpc(404, "not_found", "no such file"),
        false => Reply::Json(200, json!({})),
    })
    .await;
    let content =
        streams::iter([Ok(Bytes::from_static(b"begin")), Err(Error::Invalid("the content broke".to_owned()))]);
    assert_eq!(kind(soon("the write", guest.write_file("/f", None, content.boxed())).await), "Invalid");
    let removals = || service.asked("POST /filesystem.Filesystem/Remove").len();
    let again = async {
        while removals() < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("another removal", again).await;
}
