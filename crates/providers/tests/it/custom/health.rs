//! Health checks of services that do not work properly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::StreamExt;
use providers::custom::{Custom, CustomConfig, SecretString};
use providers::{Error, Provider};
use serde_json::{Value, json};

use crate::custom::fake_service::{FakeService, Reply};
use crate::custom::harness::{
    BOUND, argv, config, everything, failed, id, inside, is_inside, kind, patient, raw, soon, spec,
};

#[tokio::test]
async fn a_service_that_never_answers_is_given_up() {
    let service = FakeService::telling(|_| Some(Reply::Nothing));
    let custom = Custom::open(config(&service.url)).unwrap();
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
    let service = FakeService::telling(move |asked| {
        (is_silent.load(Ordering::SeqCst) && is_inside(asked)).then_some(Reply::Nothing)
    });
    patient(&service.url).start(&id(1), &spec()).await.unwrap();
    let custom = Custom::open(config(&service.url)).unwrap();
    // On a busy machine even a correct answer may be late.
    let guest = loop {
        if let Ok(guest) = custom.guest(&id(1)).await {
            break guest;
        }
    };
    silent.store(true, Ordering::SeqCst);
    for (call, kind) in everything(&guest).await {
        assert_eq!(kind, "NoAnswer", "{call}");
    }
}

#[tokio::test]
async fn nobody_listening_is_unavailable() {
    let url = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let custom = Custom::open(config(&url)).unwrap();
    let started = custom.start(&id(1), &spec()).await;
    assert!(matches!(&started, Err(Error::NotAsked(why)) if matches!(**why, Error::Unavailable(_))), "{started:?}");
    assert_eq!(kind(custom.stop(&id(1)).await), "Unavailable");
    assert_eq!(kind(custom.inventory().await), "Unavailable");
    assert_eq!(kind(custom.guest(&id(1)).await), "Unavailable");
    let error = custom.health().await.error.unwrap();
    assert!(error.contains("cannot be reached") && !error.contains("hunter2"), "{error}");
}

#[tokio::test]
async fn answers_that_make_no_sense_are_failures() {
    let unreadable: [fn() -> Reply; 9] = [
        || Reply::Raw(raw("200 OK", "application/json", "hello")),
        || Reply::Raw(raw("200 OK", "application/json", "{\"surprise\":1}")),
        || Reply::Raw(raw("200 OK", "application/json", "")),
        || Reply::Raw(raw("200 OK", "text/html", "<h1>Please log in</h1>")),
        || Reply::Raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n[".to_owned()),
        || Reply::Raw("HTTP/1.1 200 OK\r\n".to_owned()),
        || Reply::Raw("SSH-2.0-OpenSSH_9.9\r\n".to_owned()),
        || Reply::Raw(String::new()),
        || Reply::Raw(raw("500 Oops", "text/plain", "Traceback: password=hunter3")),
    ];
    for (n, tell) in unreadable.into_iter().enumerate() {
        let service = FakeService::telling(move |_| Some(tell()));
        let custom = patient(&service.url);
        failed("start", soon("start", custom.start(&id(1), &spec())).await);
        failed("stop", soon("stop", custom.stop(&id(1))).await);
        let text = failed("inventory", soon("inventory", custom.inventory()).await);
        assert!(!text.contains("hunter3"), "{text}");
        failed("guest", soon("guest", custom.guest(&id(1))).await);
        let health = custom.health().await.error.unwrap();
        assert!(!health.contains("hunter3"), "{health}");

        let (_service, _custom, guest) = inside(move |_| tell()).await;
        for (call, kind) in everything(&guest).await {
            assert_eq!(kind, "NoAnswer", "answer {n} to {call}");
        }
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = FakeService::telling(|_| None);
    let target = elsewhere.url.clone();
    for status in ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let target = target.clone();
        let answer = move || {
            Reply::Raw(format!("HTTP/1.1 {status}\r\nlocation: {target}/api/v1/sandboxes\r\ncontent-length: 0\r\n\r\n"))
        };
        let all = answer.clone();
        let service = FakeService::telling(move |_| Some(all()));
        let custom = patient(&service.url);
        failed("start", custom.start(&id(1), &spec()).await);
        failed("inventory", custom.inventory().await);
        let (_service, _custom, guest) = inside(move |_| answer()).await;
        for (call, kind) in everything(&guest).await {
            assert_eq!(kind, "NoAnswer", "{status} to {call}");
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
    let (service, _custom, guest) = inside(|asked| {
        Reply::Endless(match asked.line.split(['?', ' ']).next_back() {
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
    // The largest of these answers may have 32 MiB; the contents of buffers are added to that.
    let taken = service.endless_bytes();
    assert!(taken < 120 * 1024 * 1024, "{taken} bytes were taken");

    let service = FakeService::telling(|asked| (!asked.line.starts_with("GET")).then_some(Reply::Endless(JSON)));
    let custom = patient(&service.url);
    failed("start", soon("start", custom.start(&id(1), &spec())).await);
    assert!(service.endless_bytes() < 32 * 1024 * 1024, "{} bytes were taken", service.endless_bytes());
}

#[tokio::test]
async fn the_key_shows_nowhere() {
    let service =
        FakeService::telling(|_| Some(Reply::Json(401, json!({"code": "unauthorized", "message": "no hunter2"}))));
    let config = config(&service.url);
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
    let service = FakeService::telling(move |asked| match asked.line.as_str() {
        "GET /providers" => {
            Some(Reply::Json(200, json!([provider("good", true, true), provider("bad", false, false)])))
        }
        "GET /providers/good" => Some(Reply::Json(
            200,
            json!({"name": "good", "healthy": true, "default": true,
            "sandbox_count": 0, "health": provider("good", true, true), "config": {"runtime": "kvm",
            "network_mode": "none", "isolation": "vm", "limits": {"memory_mb": "hard"}}}),
        )),
        _ => None,
    });
    let health = async |name: Option<&str>| {
        let config = CustomConfig { remote_provider: name.map(str::to_owned), timeout: BOUND, ..config(&service.url) };
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
    let service = FakeService::telling(move |asked| {
        if asked.line.starts_with("GET /providers") {
            return Some(Reply::Json(401, json!({"code": "unauthorized", "message": "no"})));
        }
        (asked.line == "GET /ready").then(|| {
            if !is_ready.load(Ordering::SeqCst) {
                return Reply::Json(503, json!({"code": "unavailable", "message": "no provider is healthy"}));
            }
            let ready = json!({"status": "ready", "version": "0", "uptime": "1s", "ready_providers": 1,
                "total_providers": 1, "providers": []});
            Reply::Json(200, ready)
        })
    });
    let custom = patient(&service.url);
    assert_eq!(custom.health().await.error, None);
    ready.store(false, Ordering::SeqCst);
    let error = custom.health().await.error;
    assert!(error.as_deref().is_some_and(|error| error.contains("no provider is healthy")), "{error:?}");
}
