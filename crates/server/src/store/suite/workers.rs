//! Workers and leases.

use std::time::Duration;

use domain::{Capacity, WorkerId, WorkerStatus};

use super::super::Store;
use super::super::workers::{Beat, Forgotten, Heartbeat, WORKERS_MAX, Worker};
use super::start;
use crate::clock::after;

fn worker(name: &str) -> WorkerId {
    WorkerId::parse(name).unwrap()
}

fn beat(status: Option<WorkerStatus>) -> Heartbeat {
    Heartbeat {
        hostname: "h".to_owned(),
        status,
        providers: vec!["mock".to_owned()],
        capabilities: vec!["spawn".to_owned()],
        capacity: Capacity { max_sandboxes: 3, max_sandboxes_per_owner: u64::MAX >> 1 },
    }
}

async fn heard(store: &dyn Store, name: &str, beat: &Heartbeat, seconds: u64) -> (Worker, bool) {
    match store.beat(&worker(name), beat, after(start(), Duration::from_secs(seconds))).await.unwrap() {
        Beat::Heard { worker, is_news } => (*worker, is_news),
        Beat::Full => panic!("there is room"),
    }
}

pub(super) async fn run(store: &dyn Store) {
    a_worker_is_kept_as_it_was_heard(store).await;
    silence_is_noticed_once(store).await;
    there_are_only_so_many_workers(store).await;
}

async fn a_worker_is_kept_as_it_was_heard(store: &dyn Store) {
    let (first, is_news) = heard(store, "w1", &beat(None), 0).await;
    assert!(is_news);
    assert_eq!((first.status, first.created_at, first.updated_at), (WorkerStatus::Online, start(), start()));
    let (same, is_news) = heard(store, "w1", &beat(None), 5).await;
    assert!(!is_news);
    assert_eq!(same, Worker { last_heartbeat: after(start(), Duration::from_secs(5)), ..first.clone() });
    let (draining, _) = heard(store, "w1", &beat(Some(WorkerStatus::Draining)), 6).await;
    assert_eq!(draining.updated_at, draining.last_heartbeat, "something changed");
    let (still, _) = heard(store, "w1", &beat(None), 7).await;
    assert_eq!(still.status, WorkerStatus::Draining, "who says nothing of it goes on draining");
    heard(store, "w0", &beat(Some(WorkerStatus::Unhealthy)), 7).await;
    let names: Vec<String> = store.workers().await.unwrap().into_iter().map(|worker| worker.id.to_string()).collect();
    assert_eq!(names, ["w0", "w1"]);
    assert_eq!(store.worker(&worker("w1")).await.unwrap(), Some(still));
    assert_eq!(store.forget_worker(&worker("w1")).await.unwrap(), Forgotten::Done);
    assert_eq!(store.forget_worker(&worker("w1")).await.unwrap(), Forgotten::Missing);
    assert_eq!(store.worker(&worker("w1")).await.unwrap(), None);
    store.forget_worker(&worker("w0")).await.unwrap();
}

async fn silence_is_noticed_once(store: &dyn Store) {
    heard(store, "w1", &beat(None), 10).await;
    let at = |seconds| after(start(), Duration::from_secs(seconds));
    assert_eq!(store.newly_stale(at(9)).await.unwrap(), []);
    assert_eq!(store.newly_stale(at(10)).await.unwrap(), [worker("w1")]);
    assert_eq!(store.newly_stale(at(11)).await.unwrap(), []);
    let (_, is_news) = heard(store, "w1", &beat(None), 12).await;
    assert!(is_news, "it is back");
    assert_eq!(store.newly_stale(at(12)).await.unwrap(), [worker("w1")]);
    store.forget_worker(&worker("w1")).await.unwrap();
}

async fn there_are_only_so_many_workers(store: &dyn Store) {
    for n in 0..WORKERS_MAX {
        heard(store, &format!("w{n}"), &beat(None), 0).await;
    }
    let one_more = store.beat(&worker("more"), &beat(None), start()).await.unwrap();
    assert_eq!(one_more, Beat::Full);
    heard(store, "w7", &beat(None), 1).await;
    for n in 0..WORKERS_MAX {
        store.forget_worker(&worker(&format!("w{n}"))).await.unwrap();
    }
}
