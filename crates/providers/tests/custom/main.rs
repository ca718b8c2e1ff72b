//! The provider `custom` against services that answer badly, late, without end,
//! or not at all: each time the error has a type, the wait and the memory have
//! a bound, and nothing is left.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod rogue;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use domain::{Resources, SandboxId};
use futures_util::{StreamExt, stream};
use providers::custom::{Custom, CustomConfig, SecretString};
use providers::{Command, Error, Guest, OutputEvent, Provider, Result, Spec};
use serde_json::{Value, json};

use rogue::{Asked, Rogue, Say, sandbox};

/// How long an answer may take in these tests.
const TIMEOUT: Duration = Duration::from_millis(700);
/// No call may take longer, on a machine however busy.
const BOUND: Duration = Duration::from_secs(20);

fn config(url: &str) -> CustomConfig {
    CustomConfig {
        name: "far".to_owned(),
        base_url: url.to_owned(),
        api_key: Some(SecretString::from("hunter2")),
        ca_file: None,
        timeout: TIMEOUT,
        remote_provider: None,
        label: "ours".to_owned(),
    }
}

fn patient(url: &str) -> Custom {
    Custom::open(CustomConfig { timeout: BOUND, ..config(url) }).unwrap()
}

fn id(n: u8) -> SandboxId {
    SandboxId::from_entropy([n; 10])
}

fn labels(id: &SandboxId) -> Value {
    json!({"tidebox.id": id.as_str(), "tidebox.store": "ours"})
}

fn spec() -> Spec {
    Spec {
        image: "default".to_owned(),
        resources: Resources { memory_mb: 64, vcpus: 1, disk_mb: 0, pids: 64 },
        entrypoint: false,
        metadata: Default::default(),
        lifetime: Duration::from_secs(60),
    }
}

fn argv(argv: &[&str]) -> Command {
    Command {
        argv: argv.iter().map(|&arg| arg.to_owned()).collect(),
        env: Default::default(),
        workdir: None,
        user: None,
        timeout: Duration::from_secs(5),
        stdin: None,
    }
}

/// Waits for what must end by itself.
async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, work).await.unwrap_or_else(|_| panic!("took too long: {what}"))
}

#[track_caller]
fn failed<T>(what: &str, result: Result<T>) -> String {
    match result {
        Err(error @ Error::Failed { .. }) => error.to_string(),
        Err(error) => panic!("{what}: {error:?}"),
        Ok(_) => panic!("{what} succeeded"),
    }
}

/// The kind of an error.
fn kind<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => "Ok".to_owned(),
        Err(error) => format!("{error:?}").split(['(', ' ']).next().unwrap_or_default().to_owned(),
    }
}

/// Every call that a guest takes, and what comes of it.
async fn everything(guest: &Arc<dyn Guest>) -> Vec<(&'static str, String)> {
    let content = || stream::iter([Ok(Bytes::from_static(b"content"))]).boxed();
    let large = || stream::repeat_with(|| Ok(Bytes::from_static(&[7; 100_000]))).take(30).boxed();
    let to_the_end = async {
        let mut output = guest.exec(argv(&["true"])).await?;
        loop {
            match output.next().await {
                Some(Ok(OutputEvent::Exit(_))) => return Ok(()),
                Some(event) => event.map(|_| ())?,
                None => panic!("an output without an end"),
            }
        }
    };
    let whole = async {
        let mut bytes = guest.read_file("/f", 0, None).await?.bytes;
        while let Some(piece) = bytes.next().await {
            piece?;
        }
        Ok(())
    };
    vec![
        ("exec", kind(soon("exec", to_the_end).await)),
        ("read", kind(soon("read", whole).await)),
        ("read a part", kind(soon("read a part", guest.read_file("/f", 1, Some(5))).await)),
        ("write", kind(soon("write", guest.write_file("/f", None, content())).await)),
        ("write much", kind(soon("write much", guest.write_file("/f", Some(0o600), large())).await)),
        ("delete", kind(soon("delete", guest.delete("/f", true)).await)),
        ("list", kind(soon("list", guest.list("/")).await)),
        ("stat", kind(soon("stat", guest.stat("/f")).await)),
        ("rename", kind(soon("rename", guest.rename("/f", "/g")).await)),
        ("chmod", kind(soon("chmod", guest.chmod("/f", 0o600)).await)),
        ("glob", kind(soon("glob", guest.glob("/*")).await)),
        ("console", kind(soon("console", guest.console(5)).await)),
        ("set_deadline", kind(soon("set_deadline", guest.set_deadline(Duration::from_secs(9))).await)),
    ]
}

/// Whether the request is for the inside of a sandbox.
fn is_inside(asked: &Asked) -> bool {
    ["/exec", "/files", "/logs", "/extend"].iter().any(|part| asked.line.contains(part))
}

/// A box at a service that does so with every request for its inside.
async fn inside(tell: impl Fn(&Asked) -> Say + Send + Sync + 'static) -> (Rogue, Custom, Arc<dyn Guest>) {
    let rogue = Rogue::telling(move |asked| is_inside(asked).then(|| tell(asked)));
    let custom = patient(&rogue.url);
    custom.start(&id(1), &spec()).await.unwrap();
    let guest = custom.guest(&id(1)).await.unwrap();
    (rogue, custom, guest)
}

fn raw(status: &str, content_type: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn a_service_that_never_answers_is_given_up() {
    let rogue = Rogue::telling(|_| Some(Say::Nothing));
    let custom = Custom::open(config(&rogue.url)).unwrap();
    failed("start", soon("start", custom.start(&id(1), &spec())).await);
    failed("stop", soon("stop", custom.stop(&id(1))).await);
    failed("inventory", soon("inventory", custom.inventory()).await);
    failed("guest", soon("guest", custom.guest(&id(1))).await);
    let began = Instant::now();
    assert!(custom.health().await.error.is_some());
    assert!(began.elapsed() < BOUND);
}

#[tokio::test]
async fn a_service_that_falls_silent_later_is_given_up() {
    let silent = Arc::new(AtomicBool::new(false));
    let is_silent = Arc::clone(&silent);
    let rogue =
        Rogue::telling(move |asked| (is_silent.load(Ordering::SeqCst) && is_inside(asked)).then_some(Say::Nothing));
    patient(&rogue.url).start(&id(1), &spec()).await.unwrap();
    let custom = Custom::open(config(&rogue.url)).unwrap();
    // On a busy machine even a good answer may be late.
    let guest = loop {
        if let Ok(guest) = custom.guest(&id(1)).await {
            break guest;
        }
    };
    silent.store(true, Ordering::SeqCst);
    for (call, kind) in everything(&guest).await {
        assert_eq!(kind, "Failed", "{call}");
    }
}

#[tokio::test]
async fn nobody_listening_is_unavailable() {
    let url = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let custom = Custom::open(config(&url)).unwrap();
    assert_eq!(kind(custom.start(&id(1), &spec()).await), "Unavailable");
    assert_eq!(kind(custom.stop(&id(1)).await), "Unavailable");
    assert_eq!(kind(custom.inventory().await), "Unavailable");
    assert_eq!(kind(custom.guest(&id(1)).await), "Unavailable");
    let error = custom.health().await.error.unwrap();
    assert!(error.contains("cannot be reached") && !error.contains("hunter2"), "{error}");
}

#[tokio::test]
async fn answers_that_make_no_sense_are_failures() {
    let unreadable: [fn() -> Say; 9] = [
        || Say::Raw(raw("200 OK", "application/json", "hello")),
        || Say::Raw(raw("200 OK", "application/json", "{\"surprise\":1}")),
        || Say::Raw(raw("200 OK", "application/json", "")),
        || Say::Raw(raw("200 OK", "text/html", "<h1>Please log in</h1>")),
        || Say::Raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n[".to_owned()),
        || Say::Raw("HTTP/1.1 200 OK\r\n".to_owned()),
        || Say::Raw("SSH-2.0-OpenSSH_9.9\r\n".to_owned()),
        || Say::Raw(String::new()),
        || Say::Raw(raw("500 Oops", "text/plain", "Traceback: password=hunter3")),
    ];
    for (n, tell) in unreadable.into_iter().enumerate() {
        let rogue = Rogue::telling(move |_| Some(tell()));
        let custom = patient(&rogue.url);
        failed("start", soon("start", custom.start(&id(1), &spec())).await);
        failed("stop", soon("stop", custom.stop(&id(1))).await);
        let text = failed("inventory", soon("inventory", custom.inventory()).await);
        assert!(!text.contains("hunter3"), "{text}");
        failed("guest", soon("guest", custom.guest(&id(1))).await);
        let health = custom.health().await.error.unwrap();
        assert!(!health.contains("hunter3"), "{health}");

        let (_rogue, _custom, guest) = inside(move |_| tell()).await;
        for (call, kind) in everything(&guest).await {
            assert_eq!(kind, "Failed", "answer {n} to {call}");
        }
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Rogue::telling(|_| None);
    let target = elsewhere.url.clone();
    for status in ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let target = target.clone();
        let answer = move || {
            Say::Raw(format!("HTTP/1.1 {status}\r\nlocation: {target}/api/v1/sandboxes\r\ncontent-length: 0\r\n\r\n"))
        };
        let all = answer.clone();
        let rogue = Rogue::telling(move |_| Some(all()));
        let custom = patient(&rogue.url);
        failed("start", custom.start(&id(1), &spec()).await);
        failed("inventory", custom.inventory().await);
        let (_rogue, _custom, guest) = inside(move |_| answer()).await;
        for (call, kind) in everything(&guest).await {
            assert_eq!(kind, "Failed", "{status} to {call}");
        }
    }
    assert!(elsewhere.asked("").is_empty(), "the key went to {:?}", elsewhere.asked(""));
}

#[tokio::test]
async fn endless_answers_are_read_to_a_bound() {
    const JSON: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n[\"";
    const LINES: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\r\n";
    const PART: &str = "HTTP/1.1 206 Partial Content\r\ncontent-type: application/octet-stream\r\n\
        content-range: bytes 1-5/100\r\nx-file-mode: 0644\r\nx-file-modified: 2026-01-01T00:00:00Z\r\n\
        connection: close\r\n\r\n";
    let (rogue, _custom, guest) = inside(|asked| {
        Say::Endless(match asked.line.split(['?', ' ']).next_back() {
            _ if asked.line.contains("/exec") => LINES,
            _ if asked.headers.contains_key("range") => PART,
            _ => JSON,
        })
    })
    .await;
    failed("stat", soon("stat", guest.stat("/f")).await);
    failed("list", soon("list", guest.list("/")).await);
    failed("chmod", soon("chmod", guest.chmod("/f", 0o600)).await);
    let mut output = soon("exec", guest.exec(argv(&["yes"]))).await.unwrap();
    failed("exec", soon("output", output.next()).await.unwrap());
    let mut part = soon("read", guest.read_file("/f", 1, Some(5))).await.unwrap().bytes;
    failed("read", soon("a part", part.next()).await.unwrap());
    assert!(soon("the end", part.next()).await.is_none());
    drop((output, part));
    // The largest of these answers may have 32 MiB; what is in the pipes comes on top.
    let taken = rogue.endless_bytes();
    assert!(taken < 120 * 1024 * 1024, "{taken} bytes were taken");

    let rogue = Rogue::telling(|asked| (!asked.line.starts_with("GET")).then_some(Say::Endless(JSON)));
    let custom = patient(&rogue.url);
    failed("start", soon("start", custom.start(&id(1), &spec())).await);
    assert!(rogue.endless_bytes() < 32 * 1024 * 1024, "{} bytes were taken", rogue.endless_bytes());
}

#[tokio::test]
async fn a_list_that_goes_round_in_circles_is_left() {
    let rogue = Rogue::telling(|asked| {
        asked.line.starts_with("GET /sandboxes?").then(|| {
            let page = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-next-cursor: more\r\n\
                content-length: 2\r\nconnection: close\r\n\r\n[]";
            Say::Raw(page.to_owned())
        })
    });
    let custom = Custom::open(config(&rogue.url)).unwrap();
    failed("inventory", soon("inventory", custom.inventory()).await);
}

#[tokio::test]
async fn a_service_that_does_not_know_the_filters_gives_the_plain_list() {
    let rogue = Rogue::telling(|asked| {
        asked
            .line
            .starts_with("GET /sandboxes?")
            .then(|| Say::Json(400, json!({"code": "bad_request", "message": "unknown field `limit`"})))
    });
    let custom = patient(&rogue.url);
    custom.start(&id(1), &spec()).await.unwrap();
    let found = patient(&rogue.url).inventory().await.unwrap();
    assert!(found.len() == 1 && found[0].id == id(1) && found[0].alive, "{found:?}");
    // And boxes of others, which this list has too, are none of ours.
    let other =
        Custom::open(CustomConfig { label: "theirs".to_owned(), timeout: BOUND, ..config(&rogue.url) }).unwrap();
    assert_eq!(other.inventory().await.unwrap(), []);
    assert_eq!(kind(other.guest(&id(1)).await), "Gone");
    other.stop(&id(1)).await.unwrap();
    assert_eq!(rogue.boxes(), 1);
    custom.stop(&id(1)).await.unwrap();
    assert_eq!(rogue.boxes(), 0);
}

#[tokio::test]
async fn a_sandbox_that_is_not_ours_is_neither_taken_nor_removed() {
    for metadata in [
        json!({}),
        json!({"tidebox.id": id(2).as_str(), "tidebox.store": "ours"}),
        json!({"tidebox.id": id(1).as_str(), "tidebox.store": "theirs"}),
    ] {
        let answer = metadata.clone();
        let rogue = Rogue::telling(move |asked| {
            asked.line.starts_with("POST /sandboxes").then(|| Say::Json(201, sandbox("foreign", answer.clone())))
        });
        let custom = patient(&rogue.url);
        failed("start", custom.start(&id(1), &spec()).await);
        assert!(rogue.asked("DELETE /sandboxes/foreign").is_empty(), "{metadata}");
        assert_eq!(custom.inventory().await.unwrap(), []);
    }
    // Nor one that takes the place of ours later.
    let swapped = Arc::new(AtomicBool::new(false));
    let is_swapped = Arc::clone(&swapped);
    let rogue = Rogue::telling(move |asked| {
        (is_swapped.load(Ordering::SeqCst) && asked.line == "GET /sandboxes/far-1")
            .then(|| Say::Json(200, sandbox("far-1", json!({}))))
    });
    let custom = patient(&rogue.url);
    custom.start(&id(1), &spec()).await.unwrap();
    swapped.store(true, Ordering::SeqCst);
    failed("guest", custom.guest(&id(1)).await);
}

/// Makes the box, and loses the answer.
fn losing(count: u32) -> (Rogue, Arc<AtomicBool>) {
    let (left, keeps) = (AtomicU32::new(count), Arc::new(AtomicBool::new(false)));
    let refuses = Arc::clone(&keeps);
    let made: std::sync::Mutex<Vec<Value>> = std::sync::Mutex::default();
    let rogue = Rogue::telling(move |asked| {
        let mut made = made.lock().unwrap();
        if asked.line == "POST /sandboxes" && left.load(Ordering::SeqCst) > 0 {
            left.fetch_sub(1, Ordering::SeqCst);
            let body: Value = serde_json::from_slice(&asked.body).unwrap();
            made.push(sandbox("lost", body["metadata"].clone()));
            return Some(Say::Raw("HTTP/1.1 201 Created\r\ncontent-type: application/json\r\n".to_owned()));
        }
        if asked.line == "DELETE /sandboxes/lost" {
            if refuses.load(Ordering::SeqCst) {
                return Some(Say::Json(500, json!({"code": "provider_error", "message": "no"})));
            }
            made.clear();
            return Some(Say::Json(200, json!({"status": "destroyed"})));
        }
        if asked.line == "GET /sandboxes/lost" {
            return made.first().map(|it| Say::Json(200, it.clone()));
        }
        let lists = asked.line.starts_with("GET /sandboxes?") && !made.is_empty();
        lists.then(|| Say::Json(200, Value::Array(made.clone())))
    });
    (rogue, keeps)
}

#[tokio::test]
async fn a_box_whose_answer_was_lost_is_removed_again() {
    let (rogue, _) = losing(1);
    let custom = patient(&rogue.url);
    failed("start", custom.start(&id(1), &spec()).await);
    assert_eq!(rogue.asked("DELETE /sandboxes/lost").len(), 1);
    assert_eq!(custom.inventory().await.unwrap(), []);
    custom.start(&id(1), &spec()).await.unwrap();
    assert_eq!(custom.inventory().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_box_whose_answer_was_lost_and_that_cannot_be_removed_is_found_by_the_repeat() {
    let (rogue, keeps) = losing(1);
    keeps.store(true, Ordering::SeqCst);
    let custom = patient(&rogue.url);
    failed("start", custom.start(&id(1), &spec()).await);
    let found = custom.inventory().await.unwrap();
    assert!(found.len() == 1 && found[0].id == id(1), "{found:?}");
    custom.start(&id(1), &spec()).await.unwrap();
    assert_eq!(rogue.asked("POST /sandboxes").len(), 1, "a second box was made");
    keeps.store(false, Ordering::SeqCst);
    custom.stop(&id(1)).await.unwrap();
    assert_eq!(custom.inventory().await.unwrap(), []);
}

#[tokio::test]
async fn a_start_is_named_so_that_the_service_knows_a_repeat() {
    let rogue = Rogue::telling(|_| None);
    let custom = patient(&rogue.url);
    custom.start(&id(1), &Spec { metadata: [("team".into(), "blue".into())].into(), ..spec() }).await.unwrap();
    let asked = &rogue.asked("POST /sandboxes")[0];
    assert_eq!(asked.headers["idempotency-key"], format!("ours/{}", id(1)));
    assert_eq!(asked.headers["x-api-key"], "hunter2");
    let body: Value = serde_json::from_slice(&asked.body).unwrap();
    let expected = json!({"team": "blue", "tidebox.id": id(1).as_str(), "tidebox.store": "ours"});
    assert_eq!(body, json!({"memory_mb": 64, "vcpus": 1, "ttl": "1m0s", "metadata": expected}));
}

#[tokio::test]
async fn the_image_size_and_provider_that_are_asked_for_are_passed_on() {
    let rogue = Rogue::telling(|_| None);
    let config = CustomConfig { remote_provider: Some("docker".to_owned()), timeout: BOUND, ..config(&rogue.url) };
    let custom = Custom::open(config).unwrap();
    let mut wanted = Spec { image: "debian".to_owned(), ..spec() };
    wanted.resources.disk_mb = 100;
    custom.start(&id(1), &wanted).await.unwrap();
    let body: Value = serde_json::from_slice(&rogue.asked("POST /sandboxes")[0].body).unwrap();
    assert_eq!(
        (&body["image"], &body["disk_mb"], &body["provider"]),
        (&json!("debian"), &json!(100), &json!("docker"))
    );
}

#[tokio::test]
async fn a_key_that_names_a_box_that_has_ended_does_not_stand_in_the_way() {
    for answer in [
        Say::Json(409, json!({"code": "conflict", "message": "the sandbox has ended; use a new key"})),
        Say::Json(201, {
            let mut ended = sandbox("old", labels(&id(1)));
            ended["state"] = json!("destroyed");
            ended
        }),
    ] {
        let answer = std::sync::Mutex::new(Some(answer));
        let rogue = Rogue::telling(move |asked| {
            (asked.line == "POST /sandboxes").then(|| answer.lock().unwrap().take()).flatten()
        });
        let custom = patient(&rogue.url);
        custom.start(&id(1), &spec()).await.unwrap();
        let asked = rogue.asked("POST /sandboxes");
        assert_eq!(asked.len(), 2);
        assert_ne!(asked[0].headers["idempotency-key"], asked[1].headers["idempotency-key"]);
    }
}

#[tokio::test]
async fn every_request_that_changes_something_carries_the_generation() {
    let rogue = Rogue::telling(|_| None);
    let custom = patient(&rogue.url);
    custom.set_generation(&id(1), 7);
    custom.start(&id(1), &spec()).await.unwrap();
    let guest = custom.guest(&id(1)).await.unwrap();
    everything(&guest).await;
    custom.set_generation(&id(1), 8);
    everything(&guest).await;
    custom.stop(&id(1)).await.unwrap();
    let generations = |line: &str| -> Vec<Option<String>> {
        rogue.asked(line).iter().map(|asked| asked.headers.get("x-lease-generation").cloned()).collect()
    };
    let (seven, eight) = (Some("7".to_owned()), Some("8".to_owned()));
    assert_eq!(generations("POST /sandboxes")[0], seven);
    for line in ["POST /sandboxes/far-1/exec", "PUT /sandboxes/far-1/files", "POST /sandboxes/far-1/extend"] {
        assert_eq!(generations(line), [seven.clone(), eight.clone()], "{line}");
    }
    let others = ["POST /sandboxes/far-1/files", "DELETE /sandboxes/far-1"];
    for line in others {
        let sent = generations(line);
        assert!(!sent.is_empty() && sent.iter().all(|it| *it == seven || *it == eight), "{line}: {sent:?}");
    }
    // Another box has no part in it.
    custom.start(&id(2), &spec()).await.unwrap();
    assert_eq!(generations("POST /sandboxes").last().unwrap(), &None);
    assert!(!rogue.asked("DELETE /sandboxes/far-1").is_empty());
}

#[tokio::test]
async fn a_stale_generation_is_a_conflict_and_not_gone() {
    let refuse = |_: &Asked| Say::Json(409, json!({"code": "conflict", "message": "generation 9 is current"}));
    let (_rogue, custom, guest) = inside(refuse).await;
    custom.set_generation(&id(1), 8);
    for (call, kind) in everything(&guest).await {
        assert_eq!(kind, "Conflict", "{call}");
    }
    let Err(Error::Conflict(text)) = guest.chmod("/f", 0o600).await else { panic!("no conflict") };
    assert!(text.contains("generation 9 is current"), "{text}");

    let rogue = Rogue::telling(move |asked| {
        asked.line.starts_with("DELETE").then(|| Say::Json(409, json!({"code": "conflict", "message": "stale"})))
    });
    let custom = patient(&rogue.url);
    custom.start(&id(1), &spec()).await.unwrap();
    custom.set_generation(&id(1), 1);
    assert_eq!(kind(custom.stop(&id(1)).await), "Conflict");
    assert_eq!(rogue.boxes(), 1);
}

#[tokio::test]
async fn a_box_that_is_gone_is_told_from_a_file_that_is_not_there() {
    let missing = |_: &Asked| Say::Json(404, json!({"code": "not_found", "message": "nothing here"}));
    let (_rogue, custom, guest) = inside(missing).await;
    for (call, kind) in everything(&guest).await {
        let of_a_path = !["exec", "glob", "console", "set_deadline"].contains(&call);
        assert_eq!(kind, if of_a_path { "NotFound" } else { "Gone" }, "{call}");
    }
    custom.stop(&id(1)).await.unwrap();
    for (call, kind) in everything(&guest).await {
        assert_eq!(kind, "Gone", "{call}");
    }
}

#[tokio::test]
async fn limits_and_full_boxes_keep_their_meaning() {
    for (status, code, expected) in [
        (429, "resource_limit", "Exhausted"),
        (507, "no_space", "NoSpace"),
        (400, "not_supported", "NotSupported"),
        (413, "payload_too_large", "Invalid"),
        (503, "unavailable", "Unavailable"),
        (401, "unauthorized", "Unavailable"),
        (500, "provider_error", "Failed"),
    ] {
        let answer = move |_: &Asked| Say::Json(status, json!({"code": code, "message": "max 5m0s"}));
        let (_rogue, _custom, guest) = inside(answer).await;
        for (call, kind) in everything(&guest).await {
            assert_eq!(kind, expected, "{code} to {call}");
        }
        let rogue = Rogue::telling(move |asked| {
            (asked.line == "POST /sandboxes").then(|| Say::Json(status, json!({"code": code, "message": "max 5m0s"})))
        });
        let started = patient(&rogue.url).start(&id(1), &spec()).await;
        assert_eq!(kind(started), expected, "{code} to a start");
    }
}

fn lines(lines: &[&str]) -> Say {
    let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
    Say::Raw(format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    ))
}

/// A line on stderr, as the API writes it.
fn stderr(text: &str) -> String {
    use base64::Engine as _;
    json!({"stream": "stderr", "data": base64::engine::general_purpose::STANDARD.encode(text)}).to_string()
}

async fn output(guest: &Arc<dyn Guest>) -> Vec<Result<OutputEvent>> {
    soon("the output", guest.exec(argv(&["true"])).await.unwrap().collect()).await
}

#[tokio::test]
async fn the_services_own_words_are_not_the_commands() {
    // A box that ends is an error, and not a line on stderr.
    let (_rogue, _custom, guest) = inside(|_| lines(&[&stderr("mine\n"), &stderr(api::SANDBOX_ENDED)])).await;
    let events = output(&guest).await;
    assert!(matches!(&events[..], [Ok(OutputEvent::Stderr(_)), Err(Error::Gone)]), "{events:?}");

    let (_rogue, _custom, guest) = inside(|_| lines(&[&stderr(api::PROVIDER_FAILED)])).await;
    let events = output(&guest).await;
    assert!(matches!(&events[..], [Err(Error::Failed { .. })]), "{events:?}");

    let (_rogue, _custom, guest) = inside(|_| {
        let told = stderr(&format!("{}5s\n", api::TIMED_OUT));
        lines(&[&told, r#"{"stream":"exit","data":"124","timed_out":true}"#])
    })
    .await;
    let events = output(&guest).await;
    assert!(matches!(&events[..], [Ok(OutputEvent::Exit(exit))] if exit.timed_out), "{events:?}");

    // A command that writes the same words keeps them.
    let (_rogue, _custom, guest) = inside(|_| {
        let words = stderr(api::SANDBOX_ENDED);
        lines(&[&words, &words, r#"{"stream":"stdout","data":"eA=="}"#, &words, r#"{"stream":"exit","data":"0"}"#])
    })
    .await;
    let events: Vec<_> = output(&guest).await.into_iter().map(Result::unwrap).collect();
    let words = || OutputEvent::Stderr(Bytes::from_static(api::SANDBOX_ENDED.as_bytes()));
    assert_eq!(events[..4], [words(), words(), OutputEvent::Stdout(Bytes::from_static(b"x")), words()]);
    assert!(matches!(events[4], OutputEvent::Exit(exit) if exit.code == 0) && events.len() == 5);
}

#[tokio::test]
async fn an_output_that_breaks_off_is_a_failure_unless_the_box_has_gone() {
    let (_rogue, custom, guest) = inside(|_| lines(&[r#"{"stream":"stdout","data":"eA=="}"#])).await;
    let events = output(&guest).await;
    assert!(matches!(&events[..], [Ok(_), Err(Error::Failed { .. })]), "{events:?}");
    custom.stop(&id(1)).await.unwrap();
    let events = output(&guest).await;
    assert!(matches!(&events[..], [Ok(_), Err(Error::Gone)]), "{events:?}");
}

#[tokio::test]
async fn a_stdin_that_is_too_large_is_refused_before_anything_runs() {
    let (rogue, _custom, guest) = inside(|_| lines(&[])).await;
    let endless = stream::repeat_with(|| Ok(Bytes::from_static(&[7; 10_000]))).boxed();
    let command = Command { stdin: Some(endless), ..argv(&["cat"]) };
    let Err(Error::Invalid(text)) = guest.exec(command).await.map(|_| ()) else { panic!("it is not refused") };
    assert!(text.contains("1048576 bytes"), "{text}");
    let silent =
        Command { stdin: Some(stream::pending().boxed()), timeout: Duration::from_millis(50), ..argv(&["cat"]) };
    assert_eq!(kind(soon("a stdin that never ends", guest.exec(silent)).await), "Invalid");
    assert!(rogue.asked("POST /sandboxes/far-1/exec").is_empty());
}

#[tokio::test]
async fn labels_that_leave_no_room_for_ours_are_refused() {
    let custom = Custom::open(config("http://127.0.0.1:9")).unwrap();
    let with = |count: u32| Spec { metadata: (0..count).map(|n| (n.to_string(), String::new())).collect(), ..spec() };
    custom.check(&with(62)).unwrap();
    let Err(Error::Invalid(text)) = custom.check(&with(63)) else { panic!("they are not refused") };
    assert!(text.contains("64") && text.contains("two"), "{text}");
}

#[tokio::test]
async fn the_key_shows_nowhere() {
    let rogue = Rogue::telling(|_| Some(Say::Json(401, json!({"code": "unauthorized", "message": "no hunter2"}))));
    let config = config(&rogue.url);
    assert!(!format!("{config:?}").contains("hunter2"));
    let custom = Custom::open(config).unwrap();
    assert!(!format!("{custom:?}").contains("hunter2"));
    let health = custom.health().await.error.unwrap();
    assert!(health.contains("API key") && !health.contains("hunter2"), "{health}");
    let text = custom.inventory().await.unwrap_err().to_string();
    assert!(!text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn values_that_cannot_be_used_are_refused_at_once() {
    for config in [
        config("ftp://h"),
        config(""),
        config("http://user:secret@h"),
        CustomConfig { api_key: Some(SecretString::from("a\nb")), ..config("http://h") },
        CustomConfig { ca_file: Some("/nonexistent/ca.pem".into()), ..config("https://h") },
    ] {
        let what = format!("{config:?}");
        assert_eq!(kind(Custom::open(config)), "Invalid", "{what}");
    }
}

#[tokio::test]
async fn the_health_is_that_of_the_provider_over_there() {
    let provider = |name: &str, healthy: bool, default: bool| {
        json!({"name": name, "healthy": healthy, "default": default, "latency_ms": 1,
            "last_checked": "2026-01-01T00:00:00Z", "capabilities": [], "error": if healthy { Value::Null } else { json!("no kvm") }})
    };
    let rogue = Rogue::telling(move |asked| match asked.line.as_str() {
        "GET /providers" => Some(Say::Json(200, json!([provider("good", true, true), provider("bad", false, false)]))),
        "GET /providers/good" => Some(Say::Json(
            200,
            json!({"name": "good", "healthy": true, "default": true,
            "sandbox_count": 0, "health": provider("good", true, true), "config": {"runtime": "kvm",
            "network_mode": "none", "isolation": "vm", "limits": {"memory_mb": "hard"}}}),
        )),
        _ => None,
    });
    let health = async |name: Option<&str>| {
        let config = CustomConfig { remote_provider: name.map(str::to_owned), timeout: BOUND, ..config(&rogue.url) };
        let custom = Custom::open(config).unwrap();
        (custom.health().await.error, providers::capabilities(&custom).contains(&"microvm"))
    };
    assert_eq!(health(None).await, (None, true));
    assert_eq!(health(Some("good")).await, (None, true));
    let (error, _) = health(Some("bad")).await;
    assert!(error.as_deref().is_some_and(|error| error.contains("no kvm")), "{error:?}");
    let (error, _) = health(Some("none")).await;
    assert!(error.as_deref().is_some_and(|error| error.contains("`none`")), "{error:?}");
}

#[tokio::test]
async fn providers_that_only_administrators_see_do_not_make_it_unhealthy() {
    let ready = Arc::new(AtomicBool::new(true));
    let is_ready = Arc::clone(&ready);
    let rogue = Rogue::telling(move |asked| {
        if asked.line.starts_with("GET /providers") {
            return Some(Say::Json(401, json!({"code": "unauthorized", "message": "no"})));
        }
        (asked.line == "GET /ready").then(|| {
            let (status, word) = if is_ready.load(Ordering::SeqCst) { (200, "ready") } else { (503, "unavailable") };
            Say::Json(
                status,
                json!({"status": word, "version": "0", "uptime": "1s", "ready_providers": 0,
                "total_providers": 1, "providers": []}),
            )
        })
    });
    let custom = patient(&rogue.url);
    assert_eq!(custom.health().await.error, None);
    ready.store(false, Ordering::SeqCst);
    assert!(custom.health().await.error.is_some());
}
