//! Services that refuse, are away, are slow, or answer nonsense.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::StreamExt;
use providers::e2b::{E2b, E2bConfig, SecretString};
use providers::{Error, Provider};
use serde_json::json;

use crate::custom::fake_service::Reply;
use crate::custom::harness::{BOUND, argv, everything, failed, id, kind, raw, soon};
use crate::e2b::harness::{cloud, config, entered, hasty, is_inside, patient, refusal, rpc, spec};

/// Calls of `everything` that the service has no part in.
const NOT_ASKED: [&str; 2] = ["console", "set_deadline"];

#[tokio::test]
async fn a_service_that_never_answers_is_given_up() {
    let service = cloud(|_| Some(Reply::Nothing));
    let e2b = hasty(&service.url);
    failed("start", soon("start", e2b.start(&id(1), &spec())).await);
    failed("stop", soon("stop", e2b.stop(&id(1))).await);
    failed("inventory", soon("inventory", e2b.inventory()).await);
    failed("guest", soon("guest", e2b.guest(&id(1))).await);
    let began = Instant::now();
    assert!(e2b.health().await.error.is_some());
    assert!(began.elapsed() < BOUND);
}

#[tokio::test]
async fn a_service_that_falls_silent_later_is_given_up() {
    let silent = Arc::new(AtomicBool::new(false));
    let is_silent = Arc::clone(&silent);
    let service = cloud(move |asked| (is_silent.load(Ordering::SeqCst) && is_inside(asked)).then_some(Reply::Nothing));
    patient(&service.url).start(&id(1), &spec()).await.unwrap();
    let e2b = hasty(&service.url);
    // On a busy machine even a correct answer may be late.
    let guest = loop {
        if let Ok(guest) = e2b.guest(&id(1)).await {
            break guest;
        }
    };
    silent.store(true, Ordering::SeqCst);
    for (call, kind) in everything(&guest).await.into_iter().filter(|(call, _)| !NOT_ASKED.contains(call)) {
        assert_eq!(kind, "NoAnswer", "{call}");
    }
}

#[tokio::test]
async fn nobody_listening_is_unavailable() {
    let url = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let e2b = hasty(&url);
    let started = e2b.start(&id(1), &spec()).await;
    assert!(matches!(&started, Err(Error::NotAsked(why)) if matches!(**why, Error::Unavailable(_))), "{started:?}");
    for kind in [kind(e2b.stop(&id(1)).await), kind(e2b.inventory().await), kind(e2b.guest(&id(1)).await)] {
        assert_eq!(kind, "Unavailable");
    }
    let error = e2b.health().await.error.unwrap();
    assert!(error.contains("cannot be reached") && !error.contains("hunter2"), "{error}");
}

#[tokio::test]
async fn a_refusal_says_what_to_do() {
    for (status, expected, words) in [
        (400, "Invalid", "max 1h"),
        (401, "Unavailable", "providers.e2b.api_key"),
        (403, "Unavailable", "check the account"),
        (429, "Exhausted", "max 1h"),
        (503, "Unavailable", "busy"),
        (500, "Failed", ""),
        (418, "Failed", ""),
    ] {
        let service = cloud(move |asked| {
            (asked.line == "POST /v2/sandboxes").then(|| refusal(status, "max 1h for the key e2b_hunter3"))
        });
        let started = patient(&service.url).start(&id(1), &spec()).await;
        let text = started.as_ref().unwrap_err().to_string();
        assert!(kind(started) == expected && text.contains(words), "{status}: {text}");
        assert_eq!(service.boxes(), 0);
    }
    let limit = "HTTP/1.1 429 Too Many\r\ncontent-type: application/json\r\nretry-after: 17\r\ncontent-length: 33\r\n\
        connection: close\r\n\r\n{\"code\":429,\"message\":\"too many\"}";
    let service = cloud(move |asked| (asked.line == "POST /v2/sandboxes").then(|| Reply::Raw(limit.to_owned())));
    let Err(Error::Exhausted(text)) = patient(&service.url).start(&id(1), &spec()).await else { panic!("it started") };
    assert!(text.contains("too many") && text.contains("17 s"), "{text}");
}

#[tokio::test]
async fn the_health_says_what_is_wrong() {
    for (reply, words) in [
        ((|| refusal(401, "no")) as fn() -> Reply, "providers.e2b.api_key"),
        (|| refusal(403, "blocked: unpaid"), "account"),
        (|| refusal(429, "slow down"), "slow down"),
        (|| Reply::Raw(raw("502 Bad Gateway", "text/html", "<h1>hunter3</h1>")), "see the log"),
        (|| Reply::Raw(raw("200 OK", "text/html", "<h1>hunter3</h1>")), "see the log"),
        (|| Reply::Json(200, json!({"sandboxes": []})), "see the log"),
    ] {
        let service = cloud(move |_| Some(reply()));
        let error = patient(&service.url).health().await.error.unwrap();
        assert!(error.contains(words) && !error.contains("hunter3"), "{error}");
    }
    let service = cloud(|_| None);
    assert_eq!(patient(&service.url).health().await.error, None);
}

#[tokio::test]
async fn answers_that_make_no_sense_are_failures() {
    let unreadable: [fn() -> Reply; 10] = [
        || Reply::Raw(raw("200 OK", "application/json", "hello")),
        || Reply::Raw(raw("200 OK", "application/json", "{\"surprise\":1}")),
        || Reply::Raw(raw("200 OK", "application/json", "")),
        || Reply::Raw(raw("200 OK", "text/html", "<h1>Please log in</h1>")),
        || Reply::Raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n[".to_owned()),
        || Reply::Raw("HTTP/1.1 200 OK\r\n".to_owned()),
        || Reply::Raw("SSH-2.0-OpenSSH_9.9\r\n".to_owned()),
        || Reply::Raw(String::new()),
        || Reply::Raw(raw("500 Oops", "text/plain", "Traceback: password=hunter3")),
        || Reply::Raw("HTTP/1.1 301 Moved\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n".to_owned()),
    ];
    for (n, tell) in unreadable.into_iter().enumerate() {
        let service = cloud(move |_| Some(tell()));
        let e2b = patient(&service.url);
        failed("start", soon("start", e2b.start(&id(1), &spec())).await);
        failed("stop", soon("stop", e2b.stop(&id(1))).await);
        let text = failed("inventory", soon("inventory", e2b.inventory()).await);
        assert!(!text.contains("hunter3"), "{text}");

        let (_service, _e2b, guest) = entered(move |_| tell()).await;
        let exec = async {
            let mut output = guest.exec(argv(&["true"])).await?;
            output.next().await.unwrap().map(drop)
        };
        for (call, result) in [
            ("exec", soon("exec", exec).await),
            ("stat", soon("stat", guest.stat("/f")).await.map(drop)),
            ("read", soon("read", guest.read_file("/f", 0, None)).await.map(drop)),
            ("write", soon("write", guest.write_file("/f", None, futures_util::stream::empty().boxed())).await),
        ] {
            assert_eq!(kind(result), "NoAnswer", "answer {n} to {call}");
        }
    }
}

#[tokio::test]
async fn names_that_cannot_be_are_not_used() {
    for id_of in ["../admin", "a/b", "a?b", "a.b", ""] {
        let service = cloud(move |asked| {
            (asked.line == "POST /v2/sandboxes").then(|| Reply::Json(201, json!({"sandboxID": id_of})))
        });
        failed("start", patient(&service.url).start(&id(1), &spec()).await);
        assert!(service.asked("GET /sandboxes/").is_empty() && service.asked("DELETE").is_empty(), "{id_of}");
    }
    let made = json!({"sandboxID": "far", "envdAccessToken": "a\r\nx-evil: 1"});
    let service = cloud(move |asked| (asked.line == "POST /v2/sandboxes").then(|| Reply::Json(201, made.clone())));
    failed("start", patient(&service.url).start(&id(1), &spec()).await);
}

#[tokio::test]
async fn endless_answers_are_read_to_a_bound() {
    const JSON: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n[\"";
    const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/connect+json\r\nconnection: close\r\n\r\n";
    let (service, _e2b, guest) =
        entered(|asked| Reply::Endless(if asked.line.contains("/Start") { STREAM } else { JSON })).await;
    failed("stat", soon("stat", guest.stat("/f")).await);
    failed("list", soon("list", guest.list("/")).await);
    failed("exec", soon("exec", guest.exec(argv(&["yes"]))).await);
    let taken = service.endless_bytes();
    assert!(taken < 120 * 1024 * 1024, "{taken} bytes were taken");

    let service = cloud(|asked| asked.line.starts_with("POST").then_some(Reply::Endless(JSON)));
    failed("start", soon("start", patient(&service.url).start(&id(1), &spec())).await);
    assert!(service.endless_bytes() < 32 * 1024 * 1024, "{} bytes were taken", service.endless_bytes());
}

#[tokio::test]
async fn a_box_that_is_gone_is_told_from_a_file_that_is_not_there() {
    let (service, _e2b, guest) = entered(|_| rpc(404, "not_found", "no such file")).await;
    assert_eq!(kind(guest.stat("/f").await), "NotFound");
    assert_eq!(kind(guest.list("/f").await), "NotFound");
    service.state().boxes.clear();
    let (_service, e2b, guest) = entered(|_| refusal(502, "The sandbox was not found")).await;
    assert_eq!(kind(guest.stat("/f").await), "Unavailable", "it is there");
    e2b.stop(&id(1)).await.unwrap();
    for (call, kind) in everything(&guest).await {
        assert_eq!(kind, "Gone", "{call}");
    }
}

#[tokio::test]
async fn limits_and_full_boxes_keep_their_meaning() {
    for (reply, expected) in [
        ((|| rpc(429, "resource_exhausted", "too much")) as fn() -> Reply, "Exhausted"),
        (|| rpc(500, "internal", "write: no space left on device"), "NoSpace"),
        (|| rpc(401, "unauthenticated", "no user"), "Invalid"),
        (|| rpc(501, "unimplemented", "no"), "NotSupported"),
        (|| rpc(500, "internal", "oops"), "Failed"),
        (|| refusal(401, "bad token"), "Unavailable"),
        (|| refusal(429, "too fast"), "Exhausted"),
    ] {
        let (_service, _e2b, guest) = entered(move |_| reply()).await;
        assert_eq!(kind(guest.stat("/f").await), expected);
        assert_eq!(kind(guest.rename("/f", "/g").await), expected);
    }
    let (_service, _e2b, guest) = entered(|asked| match asked.line.starts_with("POST /files") {
        true => refusal(507, "disk full"),
        false => rpc(404, "not_found", "no such file"),
    })
    .await;
    let content = futures_util::stream::iter([Ok("x".into())]).boxed();
    assert_eq!(kind(guest.write_file("/f", None, content).await), "NoSpace");
}

#[tokio::test]
async fn the_key_shows_nowhere() {
    let service = cloud(|_| Some(refusal(401, "no hunter2")));
    let config = config(&service.url);
    assert!(!format!("{config:?}").contains("hunter2"));
    let e2b = E2b::open(config, || domain::Timestamp::UNIX_EPOCH).unwrap();
    assert!(!format!("{e2b:?}").contains("hunter2"));
    let text = e2b.inventory().await.unwrap_err().to_string();
    assert!(text.contains("API key") && !text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn values_that_cannot_be_used_are_refused_at_once() {
    let url = |url: &str| E2bConfig { base_url: Some(url.to_owned()), ..config("http://h") };
    for config in [
        url("ftp://h"),
        url(""),
        url("http://user:secret@h"),
        E2bConfig { sandbox_url: Some("nonsense".to_owned()), ..config("http://h") },
        E2bConfig { api_key: SecretString::from("a\nb"), ..config("http://h") },
        E2bConfig { api_key: SecretString::from(" "), ..config("http://h") },
        E2bConfig { ca_file: Some("/nonexistent/ca.pem".into()), ..config("https://h") },
    ] {
        let what = format!("{config:?}");
        assert_eq!(kind(E2b::open(config, || domain::Timestamp::UNIX_EPOCH)), "Invalid", "{what}");
    }
}
