//! Tests of the soft stage; the hard one needs a process of its own.

use std::sync::atomic::{AtomicBool, Ordering};

use domain::Caps;
use providers::Provider;

use super::*;
use crate::admission::QueuePolicy;
use crate::control::Error;
use crate::control::Pause;
use crate::control::Policy;
use crate::control::SpawnRequest;
use crate::test::harness::{self, TestApp, TestProvider};

const LEAVES_BOXES: Shutdown = Shutdown { destroy_all: false };

#[tokio::test]
async fn a_spawn_that_waits_for_room_is_refused_at_once() {
    let policy = Policy {
        caps: Caps { max_sandboxes: 1, ..Caps::default() },
        queue: QueuePolicy { enabled: true, ..harness::policy().queue },
        ..harness::policy()
    };
    let TestApp { app, control, dir: _dir } =
        TestApp::builder().provider(TestProvider::new("mock")).policy(policy).start().await;
    control.spawn(SpawnRequest::default()).await.unwrap();
    let shutdown = async {
        while control.queue_stats().depth == 0 {
            tokio::task::yield_now().await;
        }
        LEAVES_BOXES.soft(app).await;
    };
    let (refused, ()) = tokio::join!(control.spawn(SpawnRequest::default()), shutdown);
    assert!(matches!(&refused, Err(Error::Unavailable(_))), "{refused:?}");
}

#[tokio::test]
async fn work_that_outlives_its_request_ends_before_the_store_closes() {
    let TestApp { app, control, dir: _dir } = TestApp::builder().provider(TestProvider::new("mock")).start().await;
    let is_stored = Arc::new(AtomicBool::new(false));
    let (working, done) = (Arc::clone(&control), Arc::clone(&is_stored));
    control.tasks().spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        done.store(working.store().counts().await.is_ok(), Ordering::SeqCst);
    });
    LEAVES_BOXES.soft(app).await;
    assert!(is_stored.load(Ordering::SeqCst));
    assert!(control.store().counts().await.is_err(), "the store is closed");
}

#[tokio::test]
async fn boxes_are_removed_only_where_they_are_not_to_outlive_the_server() {
    for destroy_all in [false, true] {
        let provider = TestProvider::new("mock");
        provider.allow_pauses();
        let TestApp { app, control, dir: _dir } = TestApp::builder().provider(provider.clone()).start().await;
        control.spawn(SpawnRequest::default()).await.unwrap();
        let paused = control.spawn(SpawnRequest::default()).await.unwrap().sandbox.id;
        control.pause(paused.as_str(), Pause::default()).await.unwrap();
        Shutdown { destroy_all }.soft(app).await;
        assert_eq!(provider.mock.inventory().await.unwrap().len(), if destroy_all { 0 } else { 2 });
    }
}
