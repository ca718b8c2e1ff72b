//! Boxes that are made, found again and removed at a service that loses answers and returns wrong
//! ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use domain::{EgressEntry, EgressMode, EgressPolicy, SecretUse};
use futures_util::FutureExt as _;
use providers::custom::{Custom, CustomConfig};
use providers::{Error, Provider, Spec};
use serde_json::{Value, json};

use crate::custom::fake_service::{FakeService, Reply, sandbox};
use crate::custom::harness::{BOUND, config, everything, failed, id, kind, labels, patient, soon, spec};

#[tokio::test]
async fn a_list_that_goes_round_in_circles_is_left() {
    let service = FakeService::telling(|asked| {
        asked.line.starts_with("GET /sandboxes?").then(|| {
            let page = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-next-cursor: more\r\n\
                content-length: 2\r\nconnection: close\r\n\r\n[]";
            Reply::Raw(page.to_owned())
        })
    });
    let custom = Custom::open(config(&service.url)).unwrap();
    failed("inventory", soon("inventory", custom.inventory()).await);
}

#[tokio::test]
async fn a_service_that_does_not_know_the_filters_gives_the_plain_list() {
    let service = FakeService::telling(|asked| {
        asked
            .line
            .starts_with("GET /sandboxes?")
            .then(|| Reply::Json(400, json!({"code": "bad_request", "message": "unknown field `limit`"})))
    });
    let custom = patient(&service.url);
    custom.start(&id(1), &spec()).await.unwrap();
    let found = patient(&service.url).inventory().await.unwrap();
    assert!(found.len() == 1 && found[0].id == id(1) && found[0].alive, "{found:?}");
    // A server with another store sees none of these boxes, although the list has them.
    let other =
        Custom::open(CustomConfig { label: "theirs".to_owned(), timeout: BOUND, ..config(&service.url) }).unwrap();
    assert_eq!(other.inventory().await.unwrap(), []);
    assert_eq!(kind(other.guest(&id(1)).await), "Gone");
    other.stop(&id(1)).await.unwrap();
    assert_eq!(service.boxes(), 1);
    custom.stop(&id(1)).await.unwrap();
    assert_eq!(service.boxes(), 0);
}

#[tokio::test]
async fn a_sandbox_that_is_not_ours_is_neither_taken_nor_removed() {
    for metadata in [
        json!({}),
        json!({"tidebox.id": id(2).as_str(), "tidebox.store": "ours"}),
        json!({"tidebox.id": id(1).as_str(), "tidebox.store": "theirs"}),
    ] {
        let answer = metadata.clone();
        let service = FakeService::telling(move |asked| {
            asked.line.starts_with("POST /sandboxes").then(|| Reply::Json(201, sandbox("foreign", answer.clone())))
        });
        let custom = patient(&service.url);
        failed("start", custom.start(&id(1), &spec()).await);
        assert!(service.asked("DELETE /sandboxes/foreign").is_empty(), "{metadata}");
        assert_eq!(custom.inventory().await.unwrap(), []);
    }
    // A sandbox without this store's labels that later replaces a box is refused as well.
    let swapped = Arc::new(AtomicBool::new(false));
    let is_swapped = Arc::clone(&swapped);
    let service = FakeService::telling(move |asked| {
        (is_swapped.load(Ordering::SeqCst) && asked.line == "GET /sandboxes/far-1")
            .then(|| Reply::Json(200, sandbox("far-1", json!({}))))
    });
    let custom = patient(&service.url);
    custom.start(&id(1), &spec()).await.unwrap();
    swapped.store(true, Ordering::SeqCst);
    failed("guest", custom.guest(&id(1)).await);
}

#[tokio::test]
async fn a_start_says_where_the_service_was_certainly_not_asked_for_a_box() {
    let look: [fn() -> Reply; 4] = [
        || Reply::Nothing,
        || Reply::Raw(String::new()),
        || Reply::Json(503, json!({"code": "unavailable", "message": "stopping"})),
        || Reply::Json(401, json!({"code": "unauthorized", "message": "no"})),
    ];
    for tell in look {
        let service = FakeService::telling(move |asked| asked.line.starts_with("GET /sandboxes?").then(tell));
        let started = Custom::open(config(&service.url)).unwrap().start(&id(1), &spec()).await;
        assert_eq!(kind(started), "NotAsked", "the look that comes before failed");
        assert!(service.asked("POST /sandboxes").is_empty());
    }
    // A service that received the request may have carried it out, regardless of its answer.
    for tell in look {
        let service = FakeService::telling(move |asked| (asked.line == "POST /sandboxes").then(tell));
        let started = kind(Custom::open(config(&service.url)).unwrap().start(&id(1), &spec()).await);
        // On a busy machine even the search before the request may be late.
        assert!(started != "NotAsked" || service.asked("POST /sandboxes").is_empty(), "{started}");
    }
}

#[tokio::test]
async fn a_start_that_names_what_the_service_does_not_have_says_so() {
    let words = "there is no provider `docker`; this server has `native`";
    let service = FakeService::telling(move |asked| {
        let missing = || Reply::Json(404, json!({"code": "not_found", "message": words}));
        (asked.line == "POST /sandboxes").then(missing)
    });
    let started = patient(&service.url).start(&id(1), &spec()).await;
    assert!(matches!(&started, Err(Error::Invalid(text)) if text.contains(words)), "{started:?}");
}

/// Makes a service that makes the box and loses the first `count` answers.
fn losing(count: u32) -> (FakeService, Arc<AtomicBool>) {
    let (left, keeps) = (AtomicU32::new(count), Arc::new(AtomicBool::new(false)));
    let refuses = Arc::clone(&keeps);
    let made: std::sync::Mutex<Vec<Value>> = std::sync::Mutex::default();
    let service = FakeService::telling(move |asked| {
        let mut made = made.lock().unwrap();
        if asked.line == "POST /sandboxes" && left.load(Ordering::SeqCst) > 0 {
            left.fetch_sub(1, Ordering::SeqCst);
            let body: Value = serde_json::from_slice(&asked.body).unwrap();
            made.push(sandbox("lost", body["metadata"].clone()));
            return Some(Reply::Raw("HTTP/1.1 201 Created\r\ncontent-type: application/json\r\n".to_owned()));
        }
        if asked.line == "DELETE /sandboxes/lost" {
            if refuses.load(Ordering::SeqCst) {
                return Some(Reply::Json(500, json!({"code": "provider_error", "message": "no"})));
            }
            made.clear();
            return Some(Reply::Json(200, json!({"status": "destroyed"})));
        }
        if asked.line == "GET /sandboxes/lost" {
            return made.first().map(|it| Reply::Json(200, it.clone()));
        }
        let lists = asked.line.starts_with("GET /sandboxes?") && !made.is_empty();
        lists.then(|| Reply::Json(200, Value::Array(made.clone())))
    });
    (service, keeps)
}

#[tokio::test]
async fn a_box_whose_answer_was_lost_is_removed_again() {
    let (service, _) = losing(1);
    let custom = patient(&service.url);
    failed("start", custom.start(&id(1), &spec()).await);
    assert_eq!(service.asked("DELETE /sandboxes/lost").len(), 1);
    assert_eq!(custom.inventory().await.unwrap(), []);
    custom.start(&id(1), &spec()).await.unwrap();
    assert_eq!(custom.inventory().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_box_whose_answer_was_lost_and_that_cannot_be_removed_is_found_by_the_repeat() {
    let (service, keeps) = losing(1);
    keeps.store(true, Ordering::SeqCst);
    let custom = patient(&service.url);
    failed("start", custom.start(&id(1), &spec()).await);
    let found = custom.inventory().await.unwrap();
    assert!(found.len() == 1 && found[0].id == id(1), "{found:?}");
    custom.start(&id(1), &spec()).await.unwrap();
    assert_eq!(service.asked("POST /sandboxes").len(), 1, "a second box was made");
    keeps.store(false, Ordering::SeqCst);
    custom.stop(&id(1)).await.unwrap();
    assert_eq!(custom.inventory().await.unwrap(), []);
}

#[tokio::test]
async fn a_stop_right_after_a_start_that_was_dropped_leaves_no_box() {
    let service = FakeService::telling(|_| None);
    let custom = patient(&service.url);
    assert!(custom.start(&id(1), &spec()).now_or_never().is_none());
    custom.stop(&id(1)).await.unwrap();
    custom.idle().await;
    assert_eq!(service.boxes(), 0);
}

#[tokio::test]
async fn a_start_is_named_so_that_the_service_knows_a_repeat() {
    let service = FakeService::telling(|_| None);
    let custom = patient(&service.url);
    custom.start(&id(1), &Spec { metadata: [("team".into(), "blue".into())].into(), ..spec() }).await.unwrap();
    let asked = &service.asked("POST /sandboxes")[0];
    assert_eq!(asked.headers["idempotency-key"], format!("ours/{}", id(1)));
    assert_eq!(asked.headers["x-api-key"], "hunter2");
    let body: Value = serde_json::from_slice(&asked.body).unwrap();
    let expected = json!({"team": "blue", "tidebox.id": id(1).as_str(), "tidebox.store": "ours"});
    let egress = json!({"mode": "none"});
    let sent = json!({
        "memory_mb": 64, "vcpus": 1, "pids": 64, "ttl": "1m0s", "metadata": expected, "egress": egress
    });
    assert_eq!(body, sent);
}

#[tokio::test]
async fn one_policy_on_connections_is_passed_on_and_two_are_refused() {
    let service = FakeService::telling(|_| None);
    let custom = patient(&service.url);
    let policy = EgressPolicy {
        mode: EgressMode::AllowList,
        allow: vec![EgressEntry::parse("*.a.example:443").unwrap()],
        secrets: vec![SecretUse::parse("key@b.a.example").unwrap()],
        ..EgressPolicy::default()
    };
    let one = Spec { egress: vec![policy.clone()], ..spec() };
    custom.check(&one).unwrap();
    custom.start(&id(1), &one).await.unwrap();
    let body: Value = serde_json::from_slice(&service.asked("POST /sandboxes")[0].body).unwrap();
    assert_eq!(
        body["egress"],
        json!({"mode": "allow-list", "allow": ["*.a.example:443"], "secrets": ["key@b.a.example"]})
    );
    let two = Spec { egress: vec![policy.clone(), policy], ..spec() };
    assert!(matches!(custom.check(&two), Err(Error::NotSupported(_))));
}

#[tokio::test]
async fn the_image_size_and_provider_that_are_asked_for_are_passed_on() {
    let service = FakeService::telling(|_| None);
    let config = CustomConfig { remote_provider: Some("docker".to_owned()), timeout: BOUND, ..config(&service.url) };
    let custom = Custom::open(config).unwrap();
    let mut wanted = Spec { image: "debian".to_owned(), ..spec() };
    wanted.resources.disk_mb = 100;
    custom.start(&id(1), &wanted).await.unwrap();
    let body: Value = serde_json::from_slice(&service.asked("POST /sandboxes")[0].body).unwrap();
    assert_eq!(
        (&body["image"], &body["disk_mb"], &body["provider"]),
        (&json!("debian"), &json!(100), &json!("docker"))
    );
}

#[tokio::test]
async fn a_key_that_names_a_box_that_has_ended_does_not_stand_in_the_way() {
    for answer in [
        Reply::Json(409, json!({"code": "conflict", "message": "the sandbox has ended; use a new key"})),
        Reply::Json(201, {
            let mut ended = sandbox("old", labels(&id(1)));
            ended["state"] = json!("destroyed");
            ended
        }),
    ] {
        let answer = std::sync::Mutex::new(Some(answer));
        let service = FakeService::telling(move |asked| {
            (asked.line == "POST /sandboxes").then(|| answer.lock().unwrap().take()).flatten()
        });
        let custom = patient(&service.url);
        custom.start(&id(1), &spec()).await.unwrap();
        let asked = service.asked("POST /sandboxes");
        assert_eq!(asked.len(), 2);
        assert_ne!(asked[0].headers["idempotency-key"], asked[1].headers["idempotency-key"]);
    }
}

#[tokio::test]
async fn every_request_that_changes_something_carries_the_generation() {
    let service = FakeService::telling(|_| None);
    let custom = patient(&service.url);
    custom.set_generation(&id(1), 7);
    custom.start(&id(1), &spec()).await.unwrap();
    let guest = custom.guest(&id(1)).await.unwrap();
    everything(&guest).await;
    custom.set_generation(&id(1), 8);
    everything(&guest).await;
    custom.stop(&id(1)).await.unwrap();
    let generations = |line: &str| -> Vec<Option<String>> {
        service.asked(line).iter().map(|asked| asked.headers.get("x-lease-generation").cloned()).collect()
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
    // Another box carries no generation.
    custom.start(&id(2), &spec()).await.unwrap();
    assert_eq!(generations("POST /sandboxes").last().unwrap(), &None);
    assert!(!service.asked("DELETE /sandboxes/far-1").is_empty());
}

#[tokio::test]
async fn labels_that_leave_no_room_for_ours_are_refused() {
    let custom = Custom::open(config("http://127.0.0.1:9")).unwrap();
    let with = |count: u32| Spec { metadata: (0..count).map(|n| (n.to_string(), String::new())).collect(), ..spec() };
    custom.check(&with(62)).unwrap();
    let Err(Error::Invalid(text)) = custom.check(&with(63)) else { panic!("they are not refused") };
    assert!(text.contains("64") && text.contains("two"), "{text}");
}
