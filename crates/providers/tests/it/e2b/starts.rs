//! Sandboxes that are made, found again and removed at a service that loses answers and returns wrong ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures_util::FutureExt as _;
use providers::e2b::{E2bConfig, Template};
use providers::{Error, Provider, Spec};
use serde_json::{Value, json};

use crate::custom::fake_service::{FakeService, Reply};
use crate::custom::harness::{BOUND, failed, id, kind, soon};
use crate::e2b::harness::{KEY, cloud, config, hasty, labels, open, patient, refusal, sandbox, spec};

#[tokio::test]
async fn a_start_is_named_so_that_the_service_knows_a_repeat_and_says_whose_it_is() {
    let service = cloud(|_| None);
    let e2b = patient(&service.url);
    e2b.start(&id(1), &Spec { metadata: [("team".into(), "blue".into())].into(), ..spec() }).await.unwrap();
    let asked = &service.asked("POST /v2/sandboxes")[0];
    assert_eq!(asked.headers["idempotency-key"], format!("ours-{}", id(1)));
    assert!(
        asked.headers["idempotency-key"]
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    );
    assert_eq!(asked.headers["x-api-key"], KEY);
    let body: Value = serde_json::from_slice(&asked.body).unwrap();
    assert_eq!((&body["templateID"], &body["timeout"]), (&json!("base"), &json!(60)));
    assert_eq!(body["allow_internet_access"], json!(false));
    assert_eq!(body["network"], json!({"allowPublicTraffic": false}), "its ports are for this server alone");
    let metadata = body["metadata"].as_object().unwrap();
    assert_eq!((&metadata["team"], &metadata["tidebox.e2b.id"]), (&json!("blue"), &json!(id(1).as_str())));
    assert_eq!(metadata["tidebox.e2b.store"], "ours");
    assert!(metadata["tidebox.e2b.server"].as_str().is_some_and(|server| !server.is_empty()));
    let listed = &service.asked("GET /v2/sandboxes?")[0].line;
    assert!(listed.contains("metadata=tidebox%25252Ee2b%25252Eid%3D"), "{listed}");
    // The token goes to the sandbox, and the key does not.
    let inside = &service.asked("POST /filesystem.Filesystem/MakeDir")[0];
    assert_eq!(inside.headers["x-access-token"], "token-far-1");
    assert!(!inside.headers.contains_key("x-api-key"));
}

/// Makes a service that makes the sandbox and loses the first `count` answers; once `keeps` is set, it cannot remove it.
fn losing(count: u32) -> (FakeService, Arc<AtomicBool>) {
    let (left, keeps) = (AtomicU32::new(count), Arc::new(AtomicBool::new(false)));
    let refuses = Arc::clone(&keeps);
    let made: std::sync::Mutex<Vec<Value>> = std::sync::Mutex::default();
    let service = cloud(move |asked| {
        let mut made = made.lock().unwrap();
        if asked.headers.contains_key("e2b-sandbox-id") {
            return (!made.is_empty()).then(|| match asked.line.contains("/health") {
                true => Reply::Empty(204),
                false => Reply::Json(409, json!({"code": "already_exists", "message": ""})),
            });
        }
        if asked.line == "POST /v2/sandboxes" && left.load(Ordering::SeqCst) > 0 {
            left.fetch_sub(1, Ordering::SeqCst);
            let body: Value = serde_json::from_slice(&asked.body).unwrap();
            made.push(sandbox("lost", body["metadata"].clone()));
            return Some(Reply::Raw("HTTP/1.1 201 Created\r\ncontent-type: application/json\r\n".to_owned()));
        }
        if asked.line == "DELETE /sandboxes/lost" {
            if refuses.load(Ordering::SeqCst) {
                return Some(refusal(500, "no"));
            }
            made.clear();
            return Some(Reply::Empty(204));
        }
        if asked.line == "GET /sandboxes/lost" {
            return made.first().map(|it| Reply::Json(200, it.clone()));
        }
        let lists = asked.line.starts_with("GET /v2/sandboxes?") && !made.is_empty();
        lists.then(|| Reply::Json(200, Value::Array(made.clone())))
    });
    (service, keeps)
}

#[tokio::test]
async fn a_sandbox_whose_answer_was_lost_is_found_by_its_labels_and_removed() {
    let (service, _) = losing(1);
    let e2b = patient(&service.url);
    failed("start", e2b.start(&id(1), &spec()).await);
    assert_eq!(service.asked("DELETE /sandboxes/lost").len(), 1);
    assert_eq!(e2b.inventory().await.unwrap(), []);
    e2b.start(&id(1), &spec()).await.unwrap();
    assert_eq!(e2b.inventory().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_sandbox_whose_answer_was_lost_and_that_cannot_be_removed_is_found_by_the_repeat() {
    let (service, keeps) = losing(1);
    keeps.store(true, Ordering::SeqCst);
    let e2b = patient(&service.url);
    failed("start", e2b.start(&id(1), &spec()).await);
    let found = e2b.inventory().await.unwrap();
    assert!(found.len() == 1 && found[0].id == id(1), "{found:?}");
    e2b.start(&id(1), &spec()).await.unwrap();
    assert_eq!(service.asked("POST /v2/sandboxes").len(), 1, "a second sandbox was made");
    keeps.store(false, Ordering::SeqCst);
    e2b.stop(&id(1)).await.unwrap();
    assert_eq!(e2b.inventory().await.unwrap(), []);
}

#[tokio::test]
async fn a_key_that_names_a_sandbox_that_has_ended_does_not_stand_in_the_way() {
    for answer in [refusal(409, "it was used"), Reply::Json(201, sandbox("old", labels()))] {
        let answer = std::sync::Mutex::new(Some(answer));
        let service =
            cloud(move |asked| (asked.line == "POST /v2/sandboxes").then(|| answer.lock().unwrap().take()).flatten());
        let e2b = patient(&service.url);
        e2b.start(&id(1), &spec()).await.unwrap();
        let asked = service.asked("POST /v2/sandboxes");
        assert_eq!(asked.len(), 2);
        assert_ne!(asked[0].headers["idempotency-key"], asked[1].headers["idempotency-key"]);
    }
}

#[tokio::test]
async fn a_stop_right_after_a_start_that_was_dropped_leaves_no_sandbox() {
    let service = cloud(|_| None);
    let e2b = patient(&service.url);
    assert!(e2b.start(&id(1), &spec()).now_or_never().is_none());
    e2b.stop(&id(1)).await.unwrap();
    e2b.idle().await;
    assert_eq!(service.boxes(), 0);
}

#[tokio::test]
async fn a_start_says_where_the_service_was_certainly_not_asked_for_a_sandbox() {
    let look: [fn() -> Reply; 4] =
        [|| Reply::Nothing, || Reply::Raw(String::new()), || refusal(503, "stopping"), || refusal(401, "no")];
    for tell in look {
        let service = cloud(move |asked| asked.line.starts_with("GET /v2/sandboxes?").then(tell));
        assert_eq!(
            kind(hasty(&service.url).start(&id(1), &spec()).await),
            "NotAsked",
            "the look that comes before failed"
        );
        assert!(service.asked("POST /v2/sandboxes").is_empty());
    }
    // A service that received the request may have carried it out, regardless of its answer.
    for tell in look {
        let service = cloud(move |asked| (asked.line == "POST /v2/sandboxes").then(tell));
        let started = kind(hasty(&service.url).start(&id(1), &spec()).await);
        // On a busy machine even the search before the request may be late.
        assert!(started != "NotAsked" || service.asked("POST /v2/sandboxes").is_empty(), "{started}");
    }
}

#[tokio::test]
async fn a_list_is_read_page_by_page_and_one_that_goes_round_in_circles_is_left() {
    let page = |next: &str, boxes: &Value| {
        let body = boxes.to_string();
        Reply::Raw(format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{next}content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        ))
    };
    let service = cloud(move |asked| {
        let second = json!([sandbox("b", json!({"tidebox.e2b.id": id(2).as_str(), "tidebox.e2b.store": "ours"}))]);
        match asked.line.starts_with("GET /v2/sandboxes?") {
            true if asked.line.contains("nextToken=a%2Fb") => Some(page("", &second)),
            true => Some(page("x-next-token: a/b\r\n", &json!([sandbox("a", labels())]))),
            false => None,
        }
    });
    let found: Vec<_> = patient(&service.url).inventory().await.unwrap().into_iter().map(|found| found.id).collect();
    assert_eq!(found, [id(1), id(2)]);

    let service = cloud(move |asked| {
        asked.line.starts_with("GET /v2/sandboxes?").then(|| page("x-next-token: more\r\n", &json!([])))
    });
    failed("inventory", soon("inventory", hasty(&service.url).inventory()).await);
}

#[tokio::test]
async fn sandboxes_of_others_are_neither_listed_nor_removed_though_the_service_ignores_the_filter() {
    let service = cloud(|_| None);
    let e2b = patient(&service.url);
    e2b.start(&id(1), &spec()).await.unwrap();
    let foreign = json!({"tidebox.e2b.id": id(1).as_str(), "tidebox.e2b.store": "theirs"});
    service.state().boxes.extend([
        sandbox("foreign", foreign),
        sandbox("plain", json!({})),
        sandbox("none", Value::Null),
    ]);
    let found = patient(&service.url).inventory().await.unwrap();
    assert!(found.len() == 1 && found[0].id == id(1) && found[0].alive, "{found:?}");
    let other = open(E2bConfig { label: "another".to_owned(), timeout: BOUND, ..config(&service.url) });
    assert_eq!(other.inventory().await.unwrap(), []);
    assert_eq!(kind(other.guest(&id(1)).await), "Gone");
    other.stop(&id(1)).await.unwrap();
    assert_eq!(service.boxes(), 4);
    e2b.stop(&id(1)).await.unwrap();
    patient(&service.url).stop(&id(1)).await.unwrap();
    assert_eq!(service.boxes(), 3);
}

#[tokio::test]
async fn a_sandbox_that_is_not_ours_is_neither_taken_nor_removed() {
    for metadata in [json!({}), json!({"tidebox.e2b.id": id(2).as_str(), "tidebox.e2b.store": "ours"})] {
        let service = cloud(move |asked| match asked.line.as_str() {
            "POST /v2/sandboxes" => Some(Reply::Json(201, sandbox("foreign", json!({})))),
            "GET /sandboxes/foreign" => Some(Reply::Json(200, sandbox("foreign", metadata.clone()))),
            _ => None,
        });
        let e2b = patient(&service.url);
        failed("start", e2b.start(&id(1), &spec()).await);
        assert!(service.asked("DELETE /sandboxes/foreign").is_empty());
        assert_eq!(e2b.inventory().await.unwrap(), []);
    }
}

#[tokio::test]
async fn a_second_sandbox_of_a_box_is_removed_from_the_account() {
    let service = cloud(|_| None);
    let e2b = patient(&service.url);
    e2b.start(&id(1), &spec()).await.unwrap();
    let mut second = sandbox("second", labels());
    second["startedAt"] = json!("2025-01-01T00:00:00.000Z");
    service.state().boxes.push(second.clone());
    // The one that is known stays, whichever was first.
    assert_eq!(e2b.inventory().await.unwrap().len(), 1);
    assert_eq!(service.state().boxes[0]["sandboxID"], "far-1");
    assert_eq!(service.boxes(), 1);
    // Of two that nothing is known of, the first stays.
    service.state().boxes.push(second);
    assert_eq!(patient(&service.url).inventory().await.unwrap().len(), 1);
    assert_eq!(service.state().boxes[0]["sandboxID"], "second");
    assert_eq!(service.boxes(), 1);
}

#[tokio::test]
async fn a_box_that_a_late_list_lacks_is_alive_and_one_that_is_gone_is_not() {
    let service = cloud(|asked| asked.line.starts_with("GET /v2/sandboxes?").then(|| Reply::Json(200, json!([]))));
    let e2b = patient(&service.url);
    e2b.start(&id(1), &spec()).await.unwrap();
    let alive = async || {
        let found = e2b.inventory().await.unwrap();
        assert_eq!(found.len(), 1);
        found[0].alive
    };
    assert!(alive().await);
    service.state().boxes.clear();
    assert!(!alive().await);
    assert_eq!(kind(e2b.guest(&id(1)).await), "Gone");
    e2b.stop(&id(1)).await.unwrap();
    assert_eq!(e2b.inventory().await.unwrap(), []);
}

#[tokio::test]
async fn a_template_that_is_not_there_is_named() {
    let service = cloud(|asked| (asked.line == "POST /v2/sandboxes").then(|| refusal(404, "template 'py' not found")));
    let started = patient(&service.url).start(&id(1), &Spec { image: "py".to_owned(), ..spec() }).await;
    assert!(matches!(&started, Err(Error::Invalid(text)) if text.contains("`py`")), "{started:?}");
    assert_eq!(service.boxes(), 0);
}

#[tokio::test]
async fn a_sandbox_of_another_size_than_the_operator_says_is_refused_and_removed() {
    let service = cloud(|_| None);
    let template = Template { name: "base".to_owned(), memory_mb: Some(4096), ..Template::default() };
    let e2b =
        open(E2bConfig { templates: [("big".to_owned(), template)].into(), timeout: BOUND, ..config(&service.url) });
    let mut wanted = Spec { image: "big".to_owned(), ..spec() };
    wanted.resources.memory_mb = 4096;
    e2b.check(&wanted).unwrap();
    let started = e2b.start(&id(1), &wanted).await;
    assert!(matches!(&started, Err(Error::NotSupported(text)) if text.contains("`memory_mb`")), "{started:?}");
    assert_eq!(service.boxes(), 0);
}

#[tokio::test]
async fn a_paused_sandbox_is_alive_and_removed_as_any_other() {
    let service = cloud(|_| None);
    let e2b = patient(&service.url);
    e2b.start(&id(1), &spec()).await.unwrap();
    let pauses = e2b.pauses().unwrap();
    pauses.pause(&id(1)).await.unwrap();
    pauses.pause(&id(1)).await.unwrap();
    assert!(e2b.inventory().await.unwrap()[0].alive);
    assert_eq!(pauses.paused().await.unwrap(), [id(1)]);
    let asleep = e2b.guest(&id(1)).await.unwrap().stat("/f").await;
    assert!(matches!(&asleep, Err(Error::Unavailable(text)) if text.contains("paused")), "{asleep:?}");
    pauses.resume(&id(1)).await.unwrap();
    let asked: Value = serde_json::from_slice(&service.asked("POST /v2/sandboxes/far-1/connect")[0].body).unwrap();
    assert!(asked["timeout"].as_u64().is_some_and(|seconds| (30..=60).contains(&seconds)), "{asked}");
    pauses.resume(&id(1)).await.unwrap();
    assert_eq!(service.asked("POST /v2/sandboxes/far-1/connect").len(), 1, "it runs already");
    pauses.pause(&id(1)).await.unwrap();
    e2b.stop(&id(1)).await.unwrap();
    assert_eq!(service.boxes(), 0);
    assert_eq!(kind(pauses.resume(&id(1)).await), "Gone");
}
