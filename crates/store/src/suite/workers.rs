//! Cases on workers and leases.

use std::time::Duration;

use domain::{Capacity, Caps, LeaseRefused, WorkerId, WorkerStatus};

use super::super::workers::{Beat, Forgotten, Heartbeat, LeaseCounts, PlacementFilter, WORKERS_MAX, Worker};
use super::super::{Admitted, Change, NewSandbox, Store};
use super::{end, id, requested, sandbox, start, state_after};
use crate::clock::after;

const TTL: Duration = Duration::from_secs(100);

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

pub(crate) fn placement() -> PlacementFilter {
    PlacementFilter { stale_after: Duration::from_secs(1_000_000), lease_ttl: TTL, here: true, reachable: [].into() }
}

/// Registers the server itself as a worker.
pub(crate) async fn here(store: &dyn Store) {
    heard(store, "local", &Heartbeat { capacity: Capacity::default(), ..beat(None) }, 0).await;
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
    assert_eq!(names, ["local", "w0", "w1"]);
    assert_eq!(store.worker(&worker("w1")).await.unwrap(), Some(still));
    assert_eq!(store.forget_worker(&worker("w1")).await.unwrap(), Forgotten::Done);
    assert_eq!(store.forget_worker(&worker("w1")).await.unwrap(), Forgotten::Missing);
    assert_eq!(store.worker(&worker("w1")).await.unwrap(), None);
    store.forget_worker(&worker("w0")).await.unwrap();
}

async fn silence_is_noticed_once(store: &dyn Store) {
    heard(store, "w1", &beat(None), 10).await;
    heard(store, "local", &beat(None), 99).await;
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
    for n in 1..WORKERS_MAX {
        heard(store, &format!("w{n}"), &beat(None), 0).await;
    }
    // This server itself is the first.
    let one_more = store.beat(&worker("more"), &beat(None), start()).await.unwrap();
    assert_eq!(one_more, Beat::Full);
    heard(store, "w7", &beat(None), 1).await;
    for n in 1..WORKERS_MAX {
        store.forget_worker(&worker(&format!("w{n}"))).await.unwrap();
    }
}

/// Stores a sandbox on one of these workers. Returns the worker's name.
async fn admitted(store: &dyn Store, n: u8, owner: Option<&str>, here: bool, reachable: &[&str]) -> Option<String> {
    let reachable = reachable.iter().map(|name| worker(name)).collect();
    let placement = PlacementFilter { here, reachable, ..placement() };
    let new = NewSandbox {
        egress: domain::SandboxEgress::default(),
        sandbox: sandbox(n, owner),
        caps: Caps::default(),
        key: None,
        placement,
        pool: None,
    };
    match store.admit(&new).await.unwrap() {
        Admitted::Yes(worker) => Some(worker.to_string()),
        Admitted::NoWorker => None,
        Admitted::Denied(..) | Admitted::KeyTaken => panic!("there are no caps and no keys"),
    }
}

pub(super) async fn leases_follow_the_rules(store: &dyn Store) {
    let at = |seconds| after(start(), Duration::from_secs(seconds));
    let (w1, w2) = (worker("w1"), worker("w2"));
    heard(store, "w1", &beat(None), 0).await;
    assert_eq!(admitted(store, 210, None, false, &["w1"]).await.as_deref(), Some("w1"));
    assert_eq!(admitted(store, 211, None, true, &[]).await.as_deref(), Some("local"));
    let resource = id(210);
    let resource = resource.as_str();
    let renew = async |resource: &str, who: &WorkerId, seconds| {
        store.renew_lease(resource, who, at(seconds), TTL).await.unwrap()
    };
    let renewed = renew(resource, &w1, 50).await.unwrap();
    assert_eq!((renewed.generation, renewed.expires_at), (2, at(150)));
    assert_eq!(store.lease(resource).await.unwrap(), Some(renewed));
    assert_eq!(renew(resource, &w2, 51).await, Err(LeaseRefused::Held));
    assert_eq!(renew(resource, &w1, 150).await, Err(LeaseRefused::Expired));
    assert_eq!(renew("sb-never", &w1, 0).await, Err(LeaseRefused::Missing));
    assert_eq!(store.forget_worker(&w1).await.unwrap(), Forgotten::Busy(1));

    let counts = store.lease_counts(at(149)).await.unwrap();
    let by_holder = [("local".to_owned(), 1), ("w1".to_owned(), 1)].into();
    assert_eq!(counts, LeaseCounts { active: 1, expired: 1, by_holder });
    assert_eq!(store.renew_own_leases(at(100), at(999)).await.unwrap(), 0, "it does not end before that");
    assert_eq!(store.renew_own_leases(at(101), at(999)).await.unwrap(), 1);
    let own = store.lease(id(211).as_str()).await.unwrap().unwrap();
    assert_eq!((own.generation, own.expires_at), (2, at(999)));

    let lapsed = async |seconds| -> Vec<domain::SandboxId> {
        store.lapsed(at(seconds), 10).await.unwrap().into_iter().map(|sandbox| sandbox.id).collect()
    };
    assert_eq!(lapsed(149).await, []);
    assert_eq!(lapsed(9_999).await, [id(210)], "our own never lapse while we are there to renew them");
    assert_eq!(store.regrant_leases(at(100), at(160), at(300)).await.unwrap(), 0, "its holder was not heard since");
    heard(store, "w1", &beat(None), 155).await;
    assert_eq!(store.regrant_leases(at(150), at(160), at(300)).await.unwrap(), 0, "it is over for too long");
    assert_eq!(store.regrant_leases(at(149), at(160), at(300)).await.unwrap(), 1);
    let regranted = store.lease(resource).await.unwrap().unwrap();
    assert_eq!((regranted.holder.clone(), regranted.generation, regranted.expires_at), (w1.clone(), 3, at(300)));

    store.shift_times(-5_000).await.unwrap();
    assert_eq!(store.lease(resource).await.unwrap().unwrap().expires_at, at(295));
    assert_eq!(store.worker(&w1).await.unwrap().unwrap().last_heartbeat, at(150));

    state_after(store, &id(210), requested()).await.unwrap();
    assert_eq!(renew(resource, &w1, 200).await, Err(LeaseRefused::Expired), "it is no longer wanted");
    state_after(store, &id(210), Change::Stopped { at: start() }).await.unwrap();
    assert_eq!(renew(resource, &w1, 200).await, Err(LeaseRefused::Missing), "it was given back");
    state_after(store, &id(211), Change::Broke { error: "x".into(), at: start() }).await.unwrap();
    assert_eq!(store.lease_counts(at(0)).await.unwrap(), LeaseCounts::default());
    here(store).await;
    assert_eq!(store.forget_worker(&w1).await.unwrap(), Forgotten::Done);
}

pub(super) async fn a_sandbox_goes_where_the_rules_say(store: &dyn Store) {
    heard(store, "w1", &beat(None), 0).await;
    heard(store, "w2", &beat(None), 0).await;
    let all = ["w1", "w2"];
    let names = async |n| admitted(store, n, Some("hal"), true, &all).await;
    assert_eq!(names(220).await.as_deref(), Some("local"), "ties are broken by id");
    assert_eq!(names(221).await.as_deref(), Some("w1"));
    assert_eq!(names(222).await.as_deref(), Some("w2"));
    assert_eq!(store.sandbox(&id(222)).await.unwrap().unwrap().worker, worker("w2"));
    assert_eq!(store.lease(id(222).as_str()).await.unwrap().unwrap().holder, worker("w2"));
    assert_eq!(admitted(store, 223, None, false, &["w1"]).await.as_deref(), Some("w1"), "only where it may go");
    assert_eq!(admitted(store, 224, None, false, &[]).await, None, "who is not configured gets nothing");
    assert_eq!(admitted(store, 224, None, false, &["w1"]).await.as_deref(), Some("w1"));
    assert_eq!(admitted(store, 225, None, false, &["w1"]).await, None, "it is full");
    state_after(store, &id(224), Change::Broke { error: "x".into(), at: start() }).await.unwrap();
    assert_eq!(admitted(store, 225, None, false, &["w1"]).await.as_deref(), Some("w1"));

    let of_owner = Heartbeat { capacity: Capacity { max_sandboxes: 0, max_sandboxes_per_owner: 1 }, ..beat(None) };
    heard(store, "w2", &of_owner, 0).await;
    assert_eq!(admitted(store, 226, Some("hal"), false, &["w2"]).await, None, "hal has one there");
    assert_eq!(admitted(store, 226, Some("ida"), false, &["w2"]).await.as_deref(), Some("w2"));
    state_after(store, &id(222), Change::Broke { error: "x".into(), at: start() }).await.unwrap();
    assert_eq!(admitted(store, 227, Some("hal"), false, &["w2"]).await.as_deref(), Some("w2"));

    let place = async |seconds| {
        let placement = PlacementFilter { here: false, reachable: [worker("w1"), worker("w2")].into(), ..placement() };
        store.place("mock", None, after(start(), Duration::from_secs(seconds)), &placement).await.unwrap()
    };
    assert_eq!(place(0).await, (Some(worker("w2")), 1));
    assert_eq!(place(99_999_999).await, (None, 0), "silence");
    end(store, 220..=227).await;
    for name in all {
        assert_eq!(store.forget_worker(&worker(name)).await.unwrap(), Forgotten::Done);
    }
}

pub(super) async fn a_sandbox_that_its_worker_never_heard_of_goes_to_another(store: &dyn Store) {
    let (w1, w2) = (worker("w1"), worker("w2"));
    heard(store, "w1", &beat(None), 0).await;
    heard(store, "w2", &beat(None), 0).await;
    let placement = |reachable: &[&str]| PlacementFilter {
        here: false,
        reachable: reachable.iter().map(|name| worker(name)).collect(),
        ..placement()
    };
    let anew = async |n: u8, from: &WorkerId, reachable: &[&str]| {
        let moved = store.place_anew(&id(n), from, start(), &placement(reachable)).await.unwrap();
        moved.map(|sandbox| sandbox.worker)
    };
    let chosen = async || store.place("mock", None, start(), &placement(&["w1", "w2"])).await.unwrap();
    assert_eq!(admitted(store, 240, Some("hal"), false, &["w1"]).await.as_deref(), Some("w1"));
    assert_eq!(anew(240, &w2, &["w1", "w2"]).await, None, "it is not there");
    heard(store, "w2", &beat(None), 0).await;
    assert_eq!(anew(240, &w1, &["w1"]).await, None, "there is no other worker");
    assert_eq!(chosen().await, (Some(w2.clone()), 1), "and `w1` gets no more");
    heard(store, "w1", &beat(None), 0).await;
    assert_eq!(chosen().await, (Some(w2.clone()), 2), "until it beats");

    assert_eq!(anew(240, &w1, &["w1", "w2"]).await, Some(w2.clone()));
    assert_eq!(store.sandbox(&id(240)).await.unwrap().unwrap().worker, w2);
    let lease = store.lease(id(240).as_str()).await.unwrap().unwrap();
    assert_eq!((lease.holder, lease.generation), (w2.clone(), 2));
    let by_worker = store.counts().await.unwrap().by_worker;
    assert_eq!(["w1", "w2"].map(|name| by_worker.get(name).copied().unwrap_or(0)), [0, 1]);
    let of_owner = Heartbeat { capacity: Capacity { max_sandboxes: 0, max_sandboxes_per_owner: 1 }, ..beat(None) };
    heard(store, "w1", &of_owner, 0).await;
    heard(store, "w2", &of_owner, 0).await;
    assert_eq!(admitted(store, 241, Some("hal"), false, &["w2"]).await, None, "hal has one there");
    assert_eq!(admitted(store, 241, Some("hal"), false, &["w1"]).await.as_deref(), Some("w1"), "and none here");

    state_after(store, &id(240), Change::Started).await.unwrap();
    heard(store, "w1", &beat(None), 0).await;
    assert_eq!(anew(240, &w2, &["w1", "w2"]).await, None, "one that runs stays where it is");
    state_after(store, &id(241), requested()).await.unwrap();
    assert_eq!(anew(241, &w1, &["w1", "w2"]).await, None, "nor does one go that is no longer wanted");
    end(store, [240, 241]).await;
    for name in [w1, w2] {
        assert_eq!(store.forget_worker(&name).await.unwrap(), Forgotten::Done);
    }
}

pub(super) async fn a_worker_remembers_what_it_was_told(store: &dyn Store) {
    assert_eq!(admitted(store, 230, None, true, &[]).await.as_deref(), Some("local"));
    let box_id = id(230);
    assert_eq!(store.held().await.unwrap(), []);
    assert!(store.see_generation(&box_id, 3).await.unwrap());
    assert!(store.see_generation(&box_id, 3).await.unwrap());
    assert!(!store.see_generation(&box_id, 2).await.unwrap(), "an older one");
    assert!(store.see_generation(&box_id, 5).await.unwrap());
    store.hold_until(&box_id, start()).await.unwrap();
    let held = store.held().await.unwrap();
    assert_eq!(
        held.iter().map(|(sandbox, until)| (&sandbox.id, *until)).collect::<Vec<_>>(),
        [(&box_id, Some(start()))]
    );
    assert_eq!(
        store.lease_expired(after(start(), Duration::from_secs(1)), 10).await.unwrap(),
        std::slice::from_ref(&box_id)
    );
    assert_eq!(store.lease_expired(crate::clock::from_ms(0), 10).await.unwrap(), []);
    assert!(store.see_generation(&id(239), 7).await.unwrap(), "one that is not there has seen nothing");
    store.hold_until(&id(239), start()).await.unwrap();
    assert_eq!(store.held().await.unwrap().len(), 1);
    assert!(!store.see_generation(&box_id, 4).await.unwrap(), "what was noted beside it changes nothing");
    end(store, [230]).await;
    assert_eq!(store.held().await.unwrap(), [], "what has ended is not held");
}
