//! Tests of the queue with the real store.

use domain::{Capacity, Caps, Metadata, Places, Quota, Resources, State, StopReason, WorkerId};
use futures_util::future::join_all;
use tokio::task::JoinSet;

use super::*;
use crate::test::harness::open;
use store::clock::SteadyClock;
use store::workers::{Heartbeat, PlacementFilter};
use store::{Change, IdempotencyKey, PoolBounds, PoolPlace, Sqlite};

struct TestAdmission {
    dir: tempfile::TempDir,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    admission: Arc<Admission>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

fn owner(name: &str) -> OwnerId {
    OwnerId::parse(name).unwrap()
}

impl TestAdmission {
    async fn new(policy: QueuePolicy) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(&dir.path().join("store.db"), [7; 10]).await.unwrap());
        let clock: Arc<dyn Clock> = Arc::new(SteadyClock::start());
        let beat = Heartbeat {
            hostname: "h".to_owned(),
            status: None,
            providers: vec!["mock".to_owned()],
            capabilities: Vec::new(),
            capacity: Capacity::default(),
        };
        store.beat(&WorkerId::local(), &beat, clock.now()).await.unwrap();
        let events = Arc::new(Events::default());
        let stop = CancellationToken::new();
        let Opened { admission, task, mut abandoned } =
            Admission::open(Arc::clone(&store), Arc::clone(&clock), events, policy, stop.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(task);
        let (left_in, freed) = (Arc::clone(&store), Arc::downgrade(&admission));
        tasks.spawn(async move {
            while let Some(id) = abandoned.recv().await {
                let owner = left_in.sandbox(&id).await.unwrap().unwrap().owner;
                end(left_in.as_ref(), &id).await;
                if let Some(admission) = freed.upgrade() {
                    admission.freed(owner.as_ref());
                }
            }
        });
        Self { dir, store, clock, admission, stop, tasks }
    }

    async fn queueing() -> Self {
        Self::new(QueuePolicy { enabled: true, pool: false, timeout: Duration::from_secs(60), places: open(1000) })
            .await
    }

    fn new_sandbox(&self, caps: Caps, owner: Option<&str>) -> NewSandbox {
        let now = self.clock.now();
        let sandbox = Sandbox {
            id: SandboxId::from_entropy(rand::random()),
            state: State::Creating,
            provider: "mock".to_owned(),
            image: "host".to_owned(),
            resources: Resources { memory_mb: 64, vcpus: 1, disk_mb: 0, pids: 64 },
            metadata: Metadata::new(),
            owner: owner.map(self::owner),
            worker: WorkerId::local(),
            created_at: now,
            expires_at: now,
            ended_at: None,
            error: None,
            auto_pause: None,
            terms: None,
        };
        let stale_after = Duration::from_secs(3600);
        let placement = PlacementFilter { stale_after, lease_ttl: stale_after, here: true, reachable: [].into() };
        NewSandbox { egress: domain::SandboxEgress::default(), sandbox, caps, key: None, placement, pool: None }
    }

    async fn ask(&self, caps: Caps, owner: Option<&str>) -> Result<Sandbox, Refused> {
        let admitted = self.admission.admit(self.new_sandbox(caps, owner), Duration::from_secs(60)).await;
        admitted.map(|granted| granted.sandbox)
    }

    /// Asks and records the order: a spawn listed behind another in `asked` arrived behind it.
    async fn ask_in_turn(&self, caps: Caps, owner: &str, asked: &Mutex<Vec<SandboxId>>) -> Result<Sandbox, Refused> {
        let new = self.new_sandbox(caps, Some(owner));
        let id = new.sandbox.id.clone();
        let mut admitted = std::pin::pin!(self.admission.admit(new, Duration::from_secs(60)));
        let first = std::future::poll_fn(|context| {
            let mut asked = asked.lock();
            asked.push(id.clone());
            std::task::Poll::Ready(admitted.as_mut().poll(context))
        });
        let outcome = match first.await {
            std::task::Poll::Ready(outcome) => outcome,
            std::task::Poll::Pending => admitted.await,
        };
        outcome.map(|granted| granted.sandbox)
    }

    /// Returns all sandboxes that were ever admitted, in order of admission.
    async fn admitted(&self) -> Vec<SandboxId> {
        let path = self.dir.path().join("store.db");
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path).read_only(true);
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        let ids: Vec<String> =
            sqlx::query_scalar("SELECT id FROM sandboxes ORDER BY rowid").fetch_all(&pool).await.unwrap();
        pool.close().await;
        ids.iter().map(|id| SandboxId::parse(id).unwrap()).collect()
    }

    /// Ends a sandbox as the service would.
    async fn end(&self, sandbox: &Sandbox) {
        end(self.store.as_ref(), &sandbox.id).await;
        self.admission.freed(sandbox.owner.as_ref());
    }

    async fn until(&self, reached: impl Fn(QueueStats) -> bool) {
        let looking = async {
            while !reached(self.admission.stats()) {
                tokio::task::yield_now().await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(30), looking).await;
        assert!(waited.is_ok(), "{:?}", self.admission.stats());
    }

    async fn close(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
        self.store.close().await;
    }
}

async fn end(store: &dyn Store, id: &SandboxId) {
    let now = clock::from_ms(0);
    store.apply(id, Change::StopRequested { reason: StopReason::Requested, now }).await.unwrap();
    store.apply(id, Change::Stopped { at: now }).await.unwrap();
}

fn adds_up(stats: QueueStats) -> bool {
    stats.queued == stats.dequeued + stats.timed_out + stats.left + stats.depth
}

const ONE: Caps = Caps { max_sandboxes: 1, max_sandboxes_per_owner: 0 };
const ONE_EACH: Caps = Caps { max_sandboxes: 0, max_sandboxes_per_owner: 1 };

#[tokio::test]
async fn without_a_queue_a_full_server_refuses_at_once() {
    let server = TestAdmission::new(QueuePolicy {
        enabled: false,
        pool: false,
        timeout: Duration::from_secs(60),
        places: open(10),
    })
    .await;
    let held = server.ask(ONE, None).await.unwrap();
    let refused = server.ask(ONE, None).await.unwrap_err();
    assert!(matches!(refused, Refused::Denied(Denial::MaxSandboxes, room) if room.active.total == 1));
    server.end(&held).await;
    server.ask(ONE, None).await.unwrap();
    assert_eq!(server.admission.stats(), QueueStats::default());
    server.close().await;
}

#[tokio::test]
async fn who_waits_is_served_in_the_order_of_coming() {
    let server = TestAdmission::queueing().await;
    let mut held = server.ask(ONE, None).await.unwrap();
    let (server, order) = (Arc::new(server), Arc::new(Mutex::new(Vec::new())));
    let mut waiting = JoinSet::new();
    for n in 0..20u64 {
        let (asking, order) = (Arc::clone(&server), Arc::clone(&order));
        waiting.spawn(async move {
            let got = asking.ask(ONE, None).await.unwrap();
            order.lock().push(n);
            got
        });
        server.until(|stats| stats.depth == n + 1).await;
    }
    for _ in 0..20 {
        server.end(&held).await;
        held = waiting.join_next().await.unwrap().unwrap();
    }
    assert_eq!(*order.lock(), (0..20).collect::<Vec<_>>());
    let stats = server.admission.stats();
    assert_eq!((stats.queued, stats.dequeued, stats.depth), (20, 20, 0));
    assert!(stats.wait_max > Duration::ZERO && stats.wait_total >= stats.wait_max && adds_up(stats));
    Arc::into_inner(server).unwrap().close().await;
}

#[tokio::test]
async fn one_that_another_server_could_take_is_not_overtaken_by_those_behind_it() {
    let server = Arc::new(TestAdmission::queueing().await);
    let held = server.ask(ONE, None).await.unwrap();
    let mut first = server.new_sandbox(ONE, None);
    first.placement.reachable = [WorkerId::parse("worker").unwrap()].into();
    let id = first.sandbox.id.clone();
    let mut waiting = JoinSet::new();
    let asking = Arc::clone(&server);
    waiting.spawn(async move { asking.admission.admit(first, Duration::from_secs(60)).await.unwrap().sandbox });
    server.until(|stats| stats.depth == 1).await;
    for n in 2..5 {
        let asking = Arc::clone(&server);
        waiting.spawn(async move { asking.ask(ONE, None).await.unwrap() });
        server.until(|stats| stats.depth == n).await;
    }
    server.end(&held).await;
    let got = waiting.join_next().await.unwrap().unwrap();
    assert_eq!(got.id, id);
    waiting.shutdown().await;
    Arc::into_inner(server).unwrap().close().await;
}

#[tokio::test]
async fn an_owner_at_its_cap_does_not_hold_up_others_and_wakes_on_its_own_room() {
    let server = Arc::new(TestAdmission::queueing().await);
    let held = server.ask(ONE_EACH, Some("alice")).await.unwrap();
    let mut waiting = JoinSet::new();
    for n in 1..=3 {
        let asking = Arc::clone(&server);
        waiting.spawn(async move { asking.ask(ONE_EACH, Some("alice")).await.unwrap() });
        server.until(|stats| stats.depth == n).await;
    }
    let bob = server.ask(ONE_EACH, Some("bob")).await.unwrap();
    // A place of another owner does not help alice.
    server.end(&bob).await;
    server.ask(ONE_EACH, Some("bob")).await.unwrap();
    assert_eq!(server.admission.stats().depth, 3);
    server.end(&held).await;
    waiting.join_next().await.unwrap().unwrap();
    assert_eq!(server.admission.stats().depth, 2);
    // A raised quota admits the other two at once.
    let quota = Quota { max_sandboxes: 3, ..Quota::default() };
    server.store.save_quota(&owner("alice"), &quota, server.clock.now(), 10).await.unwrap();
    server.admission.quota_changed(&owner("alice"));
    waiting.join_next().await.unwrap().unwrap();
    waiting.join_next().await.unwrap().unwrap();
    Arc::into_inner(server).unwrap().close().await;
}

#[tokio::test]
async fn a_full_pool_of_one_size_does_not_hold_up_who_wants_another_size() {
    let server = TestAdmission::new(QueuePolicy {
        enabled: false,
        pool: true,
        timeout: Duration::from_secs(60),
        places: open(10),
    })
    .await;
    let server = Arc::new(server);
    let of_size = |memory_mb: u32, owner: &str| {
        let mut new = server.new_sandbox(Caps::default(), Some(owner));
        new.sandbox.resources.memory_mb = memory_mb;
        let bounds = PoolBounds { hosts_max: 2, places: 2 };
        new.pool = Some(PoolPlace { bounds, new_host: SandboxId::from_entropy(rand::random()) });
        new
    };
    let admit =
        async |new: NewSandbox| server.admission.admit(new, Duration::from_secs(60)).await.map(|got| got.sandbox);
    let held = admit(of_size(512, "a")).await.unwrap();
    admit(of_size(512, "b")).await.unwrap();
    admit(of_size(256, "c")).await.unwrap();
    let mut waiting = JoinSet::new();
    for (n, name) in ["d", "e"].into_iter().enumerate() {
        let (asking, new) = (Arc::clone(&server), of_size(512, name));
        waiting.spawn(async move { asking.admission.admit(new, Duration::from_secs(60)).await.unwrap().sandbox });
        server.until(|stats| stats.depth == n as u64 + 1).await;
    }
    // Another owner, and then one of the waiting owners.
    let other = admit(of_size(256, "d")).await.unwrap();
    assert_eq!(server.admission.stats().depth, 2);
    // A place of another size does not help them.
    server.store.leave(&other.id).await.unwrap();
    server.end(&other).await;
    admit(of_size(256, "f")).await.unwrap();
    assert_eq!(server.admission.stats().depth, 2);
    server.store.leave(&held.id).await.unwrap();
    server.end(&held).await;
    let first = waiting.join_next().await.unwrap().unwrap();
    assert_eq!(first.owner, Some(owner("d")), "in the order of coming");
    assert!(adds_up(server.admission.stats()));
    waiting.shutdown().await;
    server.until(|stats| stats.depth == 0).await;
    Arc::into_inner(server).unwrap().close().await;
}

#[tokio::test]
async fn who_waited_long_enough_is_told_so_and_only_then() {
    let server = TestAdmission::new(QueuePolicy {
        enabled: true,
        pool: false,
        timeout: Duration::from_millis(200),
        places: open(10),
    })
    .await;
    let held = server.ask(ONE, None).await.unwrap();
    let started = Instant::now();
    let refused = server.ask(ONE, None).await.unwrap_err();
    assert!(matches!(refused, Refused::TimedOut(Denial::MaxSandboxes, _)), "{refused:?}");
    assert!(started.elapsed() >= Duration::from_millis(200));
    let stats = server.admission.stats();
    assert_eq!((stats.timed_out, stats.depth), (1, 0));
    server.end(&held).await;
    server.ask(ONE, None).await.unwrap();
    server.close().await;
}

#[tokio::test]
async fn a_full_queue_sends_the_newest_away() {
    let server = Arc::new(
        TestAdmission::new(QueuePolicy {
            enabled: true,
            pool: false,
            timeout: Duration::from_secs(60),
            places: open(2),
        })
        .await,
    );
    let held = server.ask(ONE_EACH, Some("alice")).await.unwrap();
    let mut waiting = JoinSet::new();
    for n in 1..=2 {
        let asking = Arc::clone(&server);
        waiting.spawn(async move { asking.ask(ONE_EACH, Some("alice")).await });
        server.until(|stats| stats.depth == n).await;
    }
    let refused = server.ask(ONE_EACH, Some("alice")).await.unwrap_err();
    assert!(matches!(refused, Refused::QueueFull(Denial::MaxSandboxesPerOwner, room) if room.caps == ONE_EACH));
    // A spawn that finds room needs no place in the queue.
    server.ask(ONE_EACH, Some("bob")).await.unwrap();
    server.end(&held).await;
    waiting.join_next().await.unwrap().unwrap().unwrap();
    assert!(adds_up(server.admission.stats()));
    waiting.shutdown().await;
    Arc::into_inner(server).unwrap().close().await;
}

#[tokio::test]
async fn an_owner_at_its_cap_leaves_places_in_the_queue_to_others() {
    let policy = QueuePolicy {
        enabled: true,
        pool: false,
        timeout: Duration::from_secs(60),
        places: Places { all: 8, of_one: None },
    };
    let server = Arc::new(TestAdmission::new(policy).await);
    let holds = server.ask(ONE_EACH, Some("greedy")).await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..20 {
        let server = Arc::clone(&server);
        waiting.spawn(async move { server.ask(ONE_EACH, Some("greedy")).await.map(|_| ()) });
    }
    for _ in 0..16 {
        let refused = waiting.join_next().await.unwrap().unwrap().unwrap_err();
        assert!(matches!(refused, Refused::ShareFull(Denial::MaxSandboxesPerOwner, _, 4)), "{refused:?}");
    }
    // Another owner at its cap can wait too, and so can spawns without an owner.
    server.ask(ONE_EACH, Some("modest")).await.unwrap();
    let other = Arc::clone(&server);
    waiting.spawn(async move { other.ask(ONE_EACH, Some("modest")).await.map(|_| ()) });
    server.until(|stats| stats.depth == 5).await;
    // The owner can use a queue place again once it is free.
    server.end(&holds).await;
    server.until(|stats| stats.depth == 4).await;
    let again = Arc::clone(&server);
    waiting.spawn(async move { again.ask(ONE_EACH, Some("greedy")).await.map(|_| ()) });
    server.until(|stats| stats.depth == 5).await;
    waiting.shutdown().await;
    server.until(|stats| stats.depth == 0 && adds_up(stats)).await;
    Arc::into_inner(server).unwrap().close().await;
}

#[tokio::test]
async fn who_goes_away_leaves_the_queue_and_holds_no_place() {
    let server = Arc::new(TestAdmission::queueing().await);
    let held = server.ask(ONE, None).await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..200 {
        let asking = Arc::clone(&server);
        waiting.spawn(async move { asking.ask(ONE, Some("crowd")).await });
    }
    server.until(|stats| stats.depth == 200).await;
    // All disconnect at once, at the moment that a place comes free.
    waiting.abort_all();
    server.end(&held).await;
    while waiting.join_next().await.is_some() {}
    server.until(|stats| stats.depth == 0).await;
    let last = server.ask(ONE, None).await.unwrap();
    assert_eq!(server.store.counts().await.unwrap().active, 1);
    assert!(adds_up(server.admission.stats()), "{:?}", server.admission.stats());
    server.end(&last).await;
    Arc::into_inner(server).unwrap().close().await;
}

#[tokio::test]
async fn who_comes_as_the_one_ahead_leaves_waits_in_its_stead() {
    let server = TestAdmission::queueing().await;
    let held = server.ask(ONE_EACH, Some("alice")).await.unwrap();
    let mut ahead = Box::pin(server.ask(ONE_EACH, Some("alice")));
    tokio::select! {
        _ = &mut ahead => panic!("there is no room"),
        () = server.until(|stats| stats.depth == 1) => {}
    }
    // Both messages reach the task before it runs.
    let mut behind = Box::pin(server.ask(ONE_EACH, Some("alice")));
    assert!(futures_util::poll!(&mut behind).is_pending());
    drop(ahead);
    server.until(|stats| stats.queued == 2 && stats.depth == 1).await;
    server.end(&held).await;
    behind.await.unwrap();
    assert!(adds_up(server.admission.stats()));
    server.close().await;
}

#[tokio::test]
async fn a_server_that_stops_tells_those_who_wait() {
    let server = Arc::new(TestAdmission::queueing().await);
    server.ask(ONE, None).await.unwrap();
    let asking = Arc::clone(&server);
    let mut waiting = JoinSet::new();
    waiting.spawn(async move { asking.ask(ONE, None).await });
    server.until(|stats| stats.depth == 1).await;
    server.stop.cancel();
    assert!(matches!(waiting.join_next().await.unwrap().unwrap(), Err(Refused::Closed)));
    assert!(matches!(server.ask(ONE, None).await, Err(Refused::Closed)));
    Arc::into_inner(server).unwrap().close().await;
}

#[tokio::test]
async fn two_with_one_key_are_one_sandbox() {
    let server = TestAdmission::queueing().await;
    let keyed = || {
        let key = IdempotencyKey { key: "k".to_owned(), request: "r".to_owned() };
        NewSandbox { key: Some(key), ..server.new_sandbox(Caps::default(), Some("alice")) }
    };
    let both = [keyed(), keyed()].map(|new| server.admission.admit(new, Duration::from_secs(60)));
    let outcomes = join_all(both).await;
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 1);
    assert!(outcomes.iter().any(|outcome| matches!(outcome, Err(Refused::KeyTaken))));
    server.close().await;
}

/// A load test of the whole queue: clients of five owners spawn, hold a sandbox for a moment and
/// end it, disconnect, or see their quota change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_clients_against_a_cap_of_ten_never_make_an_eleventh() {
    let server = Arc::new(TestAdmission::queueing().await);
    let caps = Caps { max_sandboxes: 10, max_sandboxes_per_owner: 4 };
    let asked: Arc<[Mutex<Vec<SandboxId>>; 5]> = Arc::default();
    let served = Arc::new(AtomicU64::new(0));
    // The clients find the server full.
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(server.ask(caps, None).await.unwrap());
    }
    let mut clients = JoinSet::new();
    for n in 0..200u64 {
        let (server, asked, served) = (Arc::clone(&server), Arc::clone(&asked), Arc::clone(&served));
        clients.spawn(async move {
            let name = format!("owner-{}", n % 5);
            for _ in 0..5 {
                let asking = server.ask_in_turn(caps, &name, &asked[usize::try_from(n % 5).unwrap()]);
                let got = if n % 7 == 0 {
                    // One in seven gives up after a short while.
                    tokio::time::timeout(Duration::from_millis(n % 40), asking).await.ok()
                } else {
                    Some(asking.await)
                };
                let Some(got) = got else { continue };
                let sandbox = got.unwrap();
                let counts = server.store.counts().await.unwrap();
                assert!(counts.active <= 10, "{counts:?}");
                // Long enough that all ten places are taken.
                tokio::time::sleep(Duration::from_millis(2 + n % 5)).await;
                served.fetch_add(1, Ordering::Relaxed);
                server.end(&sandbox).await;
            }
        });
    }
    server.until(|stats| stats.depth >= 100).await;
    for sandbox in &held {
        server.end(sandbox).await;
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    server.until(|stats| stats.depth == 0).await;
    let stats = server.admission.stats();
    assert!(adds_up(stats) && stats.queued > 0, "{stats:?}");
    let patient = served.load(Ordering::Relaxed);
    assert!(patient >= 5 * (200 - 200 / 7 - 1), "no waiting client is forgotten: {patient}");
    // A caller that disconnected just as it was admitted gives the place back.
    let empty = async {
        while server.store.counts().await.unwrap().active > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), empty).await.expect("no place is lost");
    let admitted = server.admitted().await;
    for (owner, asked) in asked.iter().enumerate() {
        let mut asked = asked.lock().clone();
        let of_owner: Vec<&SandboxId> = admitted.iter().filter(|id| asked.contains(id)).collect();
        asked.retain(|id| admitted.contains(id));
        assert!(asked.len() > 50 && of_owner == asked.iter().collect::<Vec<_>>(), "the order of owner {owner}");
    }
    Arc::into_inner(server).unwrap().close().await;
}
