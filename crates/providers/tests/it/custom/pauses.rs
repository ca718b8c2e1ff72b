//! Pauses of a service that knows no memory to hand back, or makes something up.

use providers::custom::Custom;
use providers::{Error, Pauses, Provider, ReclaimedBy};
use serde_json::{Value, json};

use crate::custom::fake_service::{FakeService, Received, Reply, sandbox};
use crate::custom::harness::{failed, id, kind, labels, patient, spec};

/// Starts a box at a service that answers a pause with `tell`.
async fn paused(tell: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> (FakeService, Custom) {
    let service = FakeService::telling(move |asked| asked.line.ends_with("/pause").then(|| tell(asked)));
    let custom = patient(&service.url);
    custom.start(&id(1), &spec()).await.unwrap();
    (service, custom)
}

fn with_figures(reclaimed: &Value) -> Reply {
    let mut sandbox = sandbox("far-1", labels(&id(1)));
    sandbox["state"] = json!("paused");
    sandbox["reclaimed"] = reclaimed.clone();
    Reply::Json(200, sandbox)
}

#[tokio::test]
async fn an_older_service_is_not_asked_for_memory_unless_the_caller_is() {
    let (service, custom) = paused(|asked| {
        let body: Value = serde_json::from_slice(&asked.body).unwrap();
        if body.get("reclaim").is_some() {
            return Reply::Json(400, json!({"code": "bad_request", "message": "unknown field `reclaim`"}));
        }
        with_figures(&Value::Null)
    })
    .await;
    custom.pause(&id(1)).await.unwrap();
    assert_eq!(service.asked("POST /sandboxes/far-1/pause").len(), 1);
    assert!(!custom.can_reclaim(), "it has not said so");
    custom.check_reclaim(&id(1)).await.unwrap();
    let Err(Error::NotSupported(text)) = custom.reclaim(&id(1)).await else { panic!("it is not refused") };
    assert!(text.contains("`far`") && !text.contains("field"), "{text}");
}

#[tokio::test]
async fn figures_are_passed_on_and_nonsense_is_not() {
    let figures = json!({"memory_before_bytes": 9, "memory_after_bytes": 4, "by": "memory.reclaim"});
    let (_service, custom) = paused(move |_| with_figures(&figures)).await;
    let reclaimed = custom.reclaim(&id(1)).await.unwrap();
    assert_eq!((reclaimed.memory_before_bytes, reclaimed.memory_after_bytes), (9, 4));
    assert_eq!(reclaimed.by, ReclaimedBy::MemoryReclaim);

    let magic = json!({"memory_before_bytes": 9, "memory_after_bytes": 4, "by": "magic"});
    let (_service, custom) = paused(move |_| with_figures(&magic)).await;
    assert!(!failed("a reclaim", custom.reclaim(&id(1)).await).contains("magic"));
    let (_service, custom) = paused(|_| with_figures(&Value::Null)).await;
    assert_eq!(kind(custom.reclaim(&id(1)).await), "NotSupported");
    let (_service, custom) = paused(|_| with_figures(&json!({"memory_before_bytes": -1}))).await;
    failed("a reclaim", custom.reclaim(&id(1)).await);
}
