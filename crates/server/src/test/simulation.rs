//! A simulation: callers, a clock that is set, a provider that loses requests and replies, a
//! store that closes, and crashes. It checks the service's guarantees throughout.
//!
//! One seed is one history. The requests and the faults follow from the seed; the order of
//! concurrent requests is up to the machine. A seed that breaks a guarantee is printed:
//! `TIDEBOX_SIMULATION_SEED=17 cargo test -p server simulation` repeats it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::Poll;
use std::time::Duration;

use domain::{Caps, Metadata, OwnerId, Quota, SandboxId, SpawnOptions, State, Timestamp};
use futures_util::future::join_all;
use parking_lot::Mutex;
use providers::Provider;
use providers::mock::Mock;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::harness::{self, TestApp};
use crate::admission::QueuePolicy;
use crate::control::Error;
use crate::control::IdempotencyKey;
use crate::control::ListFilter;
use crate::control::Policy;
use crate::control::SharedBoxes;
use crate::control::SpawnRequest;
use crate::reconcile;
use store::clock::{Clock, after, from_ms};
use store::{PoolBounds, Sqlite, Store};

/// Number of histories of one run.
const SEEDS: u64 = 50;
/// Number of server lives in one history; all but the last end in a crash.
const LIVES: u64 = 3;
/// Number of rounds in one life.
const ROUNDS: u64 = 6;
/// Number of concurrent requests in a round.
const CROWD: usize = 8;
/// Deadline of a life, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);
const OWNERS: [&str; 3] = ["ann", "ben", "cas"];
/// Shared boxes of the histories with pool mode: fewer places than the caps allow.
const POOL: PoolBounds = PoolBounds { hosts_max: 2, places: 2 };
const CAPS: Caps = Caps { max_sandboxes: 6, max_sandboxes_per_owner: 4 };

/// The simulation's clock, which moves only when set.
#[derive(Debug)]
struct ManualClock {
    now_ms: AtomicI64,
    /// Step of the wall clock that the server has not noticed yet, in milliseconds.
    step_ms: AtomicI64,
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        from_ms(self.now_ms.load(Ordering::SeqCst))
    }

    fn step(&self) -> Option<i64> {
        Some(self.step_ms.load(Ordering::SeqCst)).filter(|step| *step != 0)
    }

    fn follow(&self, step_ms: i64) {
        self.step_ms.fetch_sub(step_ms, Ordering::SeqCst);
        self.now_ms.fetch_add(step_ms, Ordering::SeqCst);
    }
}

/// State that outlives a server: its disk, its boxes, the time, and the answers that callers
/// got.
struct World {
    dir: tempfile::TempDir,
    mock: Mock,
    /// True if sandboxes share boxes.
    pooled: bool,
    clock: Arc<ManualClock>,
    answers: Mutex<Answers>,
}

#[derive(Default)]
struct Answers {
    /// Sandboxes that a caller received and that no request has ended since, with their end.
    alive: BTreeMap<SandboxId, Timestamp>,
    /// Sandboxes that a request may have ended, or whose box ended by itself.
    ended: BTreeSet<SandboxId>,
    /// Sandboxes that a caller was notified are gone.
    gone: BTreeSet<SandboxId>,
    /// Sandboxes by idempotency key.
    keys: BTreeMap<String, SandboxId>,
}

impl Answers {
    fn note_end(&mut self, id: &SandboxId) {
        self.alive.remove(id);
        self.ended.insert(id.clone());
    }
}

impl World {
    fn database(&self) -> std::path::PathBuf {
        self.dir.path().join("store.db")
    }
}

/// One server, from start to crash.
struct Life {
    app: TestApp,
    store: Arc<dyn Store>,
    beats: bool,
}

impl Life {
    async fn begin(world: &World, queue: QueuePolicy, beats: bool) -> Self {
        let store: Arc<dyn Store> = Arc::new(open(&world.database()).await);
        let clock: Arc<dyn Clock> = world.clock.clone();
        let mut provider: Arc<dyn Provider> = Arc::new(world.mock.clone());
        if world.pooled {
            provider = Arc::new(SharedBoxes::new(provider, Arc::clone(&store), Arc::clone(&clock)));
        }
        let policy = Policy { caps: CAPS, queue, pool: world.pooled.then_some(POOL), ..harness::policy() };
        let builder = TestApp::builder().store(Arc::clone(&store)).clock(clock).provider(provider).policy(policy);
        let app = if beats { builder } else { builder.without_heartbeat() }.start().await;
        Self { store, app, beats }
    }

    /// Sends the server's own heartbeat, unless heartbeats are off in this life.
    async fn beat(&self) {
        if self.beats {
            // The store may be closed; the next heartbeat comes soon.
            let _ = self.app.control.beat_own().await;
        }
    }

    /// Performs one random request of a caller.
    async fn act(&self, world: &World, mut dice: StdRng) {
        let owner = OWNERS[dice.random_range(0..OWNERS.len())];
        match dice.random_range(0..100) {
            0..=49 => self.spawn(world, owner, &mut dice).await,
            50..=69 => {
                let Some(id) = pick(world, &mut dice) else { return };
                // The outcome is unknown until the answer comes.
                world.answers.lock().note_end(&id);
                if self.app.control.destroy(id.as_str()).await.is_ok() {
                    world.answers.lock().gone.insert(id);
                }
            }
            70..=84 => {
                let Some(id) = pick(world, &mut dice) else { return };
                let ttl = Duration::from_secs(dice.random_range(1..120));
                // The lifetime may be shortened, with or without an answer.
                if let Some(end) = world.answers.lock().alive.get_mut(&id) {
                    *end = after(world.clock.now(), ttl).min(*end);
                }
                let _ = self.app.control.extend(id.as_str(), ttl).await;
            }
            85..=92 => {
                let quota = Quota { max_sandboxes: dice.random_range(0..4), ..Quota::default() };
                let _ = self.app.control.save_quota(&OwnerId::parse(owner).unwrap(), &quota).await;
            }
            93..=95 => {
                let _ = self.app.control.delete_quota(&OwnerId::parse(owner).unwrap()).await;
            }
            _ => {
                // A box ends by itself.
                if let Some(id) = pick(world, &mut dice) {
                    world.answers.lock().note_end(&id);
                    if dice.random_bool(0.5) { world.mock.vanish(&id) } else { world.mock.die(&id) }
                }
            }
        }
    }

    async fn spawn(&self, world: &World, owner: &str, dice: &mut StdRng) {
        let mut metadata = Metadata::new();
        match dice.random_range(0..10) {
            0 => drop(metadata.insert("mock.start_fail".to_owned(), "1".to_owned())),
            1 => drop(metadata.insert("mock.lose_reply".to_owned(), "1".to_owned())),
            2 => drop(metadata.insert("mock.stop_fail".to_owned(), "2".to_owned())),
            3 | 4 => drop(metadata.insert("mock.start_delay".to_owned(), "5ms".to_owned())),
            _ => {}
        }
        let key = dice.random_bool(0.3).then(|| format!("key-{}", dice.random_range(0..4)));
        let request = SpawnRequest {
            options: SpawnOptions {
                ttl: Some(Duration::from_secs(dice.random_range(1..120))),
                metadata,
                ..SpawnOptions::default()
            },
            owner: dice.random_bool(0.8).then(|| OwnerId::parse(owner).unwrap()),
            key: key.clone().map(|key| IdempotencyKey { key, request: "r".to_owned() }),
            ..SpawnRequest::default()
        };
        let owner = request.owner.clone();
        let spawning = self.app.control.spawn(request);
        let spawned = if dice.random_bool(0.2) {
            // The caller disconnects at some moment.
            match tokio::time::timeout(Duration::from_micros(dice.random_range(0..8000)), spawning).await {
                Ok(spawned) => spawned,
                Err(_) => return,
            }
        } else {
            spawning.await
        };
        match spawned {
            Ok(spawned) => {
                let id = spawned.sandbox.id;
                let mut answers = world.answers.lock();
                let end = spawned.sandbox.expires_at;
                if !answers.ended.contains(&id) {
                    // A repeated request may have been answered before its end was moved.
                    answers.alive.entry(id.clone()).and_modify(|known| *known = end.min(*known)).or_insert(end);
                }
                if let Some(key) = key {
                    let key = format!("{} {key}", owner.map(|owner| owner.to_string()).unwrap_or_default());
                    if let Some(before) = answers.keys.insert(key, id.clone()) {
                        let lives = answers.alive.get(&before).is_some_and(|end| *end > world.clock.now());
                        assert!(before == id || !lives, "one key gave {before} and {id}");
                    }
                }
            }
            Err(
                Error::LimitReached(_)
                | Error::Provider { .. }
                | Error::Conflict(_)
                | Error::Store(_)
                | Error::Unavailable(_),
            ) => {}
            Err(error) => panic!("a spawn that makes sense was answered with {error:?}"),
        }
    }

    /// Runs requests beside the reconciler, which runs more often than in production.
    async fn beside_the_reconciler<T>(&self, acting: impl Future<Output = T>) -> T {
        let reconciling = async {
            loop {
                tokio::time::sleep(Duration::from_millis(5)).await;
                self.beat().await;
                reconcile::settle(&self.app.control).await;
            }
        };
        tokio::select! {
            done = acting => done,
            () = reconciling => unreachable!("it goes on for ever"),
        }
    }

    /// Checks the guarantees that hold at every moment.
    async fn check_always(&self) {
        let Ok(counts) = self.store.counts().await else { return };
        assert!(counts.active <= CAPS.max_sandboxes, "an extra sandbox: {counts:?}");
        let Ok(pool) = self.store.pool_counts().await else { return };
        assert!(pool.hosts <= POOL.hosts_max.into() && pool.slots <= (POOL.hosts_max * POOL.places).into(), "{pool:?}");
    }

    /// Checks the guarantees that hold once no request is under way and no fault is injected.
    async fn check_settled(&self, world: &World) {
        let mut rounds = 0;
        loop {
            reconcile::settle(&self.app.control).await;
            let unfinished = [State::Creating, State::Destroying].map(|state| self.store.in_state(state, None, 1000));
            let unfinished: usize =
                join_all(unfinished).await.into_iter().map(|page| page.unwrap().sandboxes.len()).sum();
            if unfinished == 0 && !self.app.control.is_busy() {
                break;
            }
            rounds += 1;
            assert!(rounds < 2000, "{unfinished} sandboxes are stuck");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        reconcile::settle(&self.app.control).await;

        let running = self.store.in_state(State::Running, None, 1000).await.unwrap().sandboxes;
        let rows: BTreeSet<SandboxId> = running.iter().map(|row| row.id.clone()).collect();
        let provider = Arc::clone(&self.app.control.registry().get("mock").unwrap().provider);
        let boxes: BTreeSet<SandboxId> =
            provider.inventory().await.unwrap().into_iter().map(|found| found.id).collect();
        assert_eq!(boxes, rows, "a box without a sandbox, or the other way round");
        if world.pooled {
            let counts = self.store.pool_counts().await.unwrap();
            assert_eq!(counts.slots, rows.len() as u64, "a place without a sandbox, or the other way round");
            let hosts: BTreeSet<SandboxId> =
                self.store.pool_hosts().await.unwrap().into_iter().map(|host| host.id).collect();
            let held: BTreeSet<SandboxId> =
                world.mock.inventory().await.unwrap().into_iter().map(|found| found.id).collect();
            assert_eq!(held, hosts, "a shared box without a row, or the other way round");
        }

        let counts = self.store.counts().await.unwrap();
        assert_eq!(counts.active, rows.len() as u64, "{counts:?}");
        for name in OWNERS {
            let owner = OwnerId::parse(name).unwrap();
            let of_owner = running.iter().filter(|row| row.owner.as_ref() == Some(&owner)).count();
            let room = self.store.room(Some(&owner), CAPS).await.unwrap();
            assert_eq!(room.active.owner, Some(of_owner as u64), "{name}");
        }
        let now = world.clock.now();
        let listed = self.app.control.sandboxes(&ListFilter::default()).await.unwrap().sandboxes;
        assert!(listed.iter().all(|row| row.state == State::Failed || row.expires_at > now));
        let answers = world.answers.lock();
        for id in &answers.gone {
            assert!(!rows.contains(id), "{id} was destroyed and came back");
        }
        for (id, end) in &answers.alive {
            assert!(*end <= now || rows.contains(id), "{id} was lost before its end");
        }
        let stats = self.app.control.queue_stats();
        assert_eq!(stats.depth, 0, "a spawn waits for ever");
        assert_eq!(stats.queued, stats.dequeued + stats.timed_out + stats.left, "{stats:?}");
    }
}

async fn open(path: &Path) -> Sqlite {
    Sqlite::open(path, [7; 10]).await.unwrap()
}

fn pick(world: &World, dice: &mut StdRng) -> Option<SandboxId> {
    let answers = world.answers.lock();
    let at = dice.random_range(0..answers.alive.len().max(1));
    answers.alive.keys().nth(at).cloned()
}

/// Advances the clock by a random time.
fn tick(world: &World, dice: &mut StdRng) {
    let seconds = if dice.random_bool(0.3) { dice.random_range(0..90) } else { 0 };
    world.clock.now_ms.fetch_add(seconds * 1000, Ordering::SeqCst);
}

/// Sets the wall clock; the ends of live sandboxes move with it.
async fn set_clock(world: &World, life: &Life, dice: &mut StdRng) {
    let step_ms = dice.random_range(-7200..7200) * 1000;
    world.clock.step_ms.store(step_ms, Ordering::SeqCst);
    reconcile::settle(&life.app.control).await;
    for end in world.answers.lock().alive.values_mut() {
        *end = from_ms(end.as_millisecond() + step_ms);
    }
}

fn history(seed: u64) {
    let mut dice = StdRng::seed_from_u64(seed);
    let clock = Arc::new(ManualClock { now_ms: AtomicI64::new(1_700_000_000_000), step_ms: AtomicI64::new(0) });
    let mock_clock = Arc::clone(&clock);
    let world = Arc::new(World {
        dir: tempfile::tempdir().unwrap(),
        mock: Mock::new(move || mock_clock.now()),
        pooled: seed % 3 == 2,
        clock,
        answers: Mutex::default(),
    });
    for number in 1..=LIVES {
        let queue = QueuePolicy {
            enabled: dice.random_bool(0.7),
            pool: dice.random_bool(0.5),
            timeout: Duration::from_millis(dice.random_range(1..40)),
            places: harness::open(dice.random_range(1..10)),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut own = StdRng::seed_from_u64(dice.random());
        let in_world = Arc::clone(&world);
        let beats = own.random_bool(0.85);
        let life = async {
            let server = Arc::new(Life::begin(&in_world, queue, beats).await);
            for _ in 0..ROUNDS {
                let crowd: Vec<StdRng> = (0..CROWD).map(|_| StdRng::seed_from_u64(own.random())).collect();
                let acting = crowd.into_iter().map(|dice| server.act(&in_world, dice));
                let crashes = number < LIVES && own.random_bool(0.1);
                if crashes {
                    // In the middle of the round.
                    let moment = Duration::from_micros(own.random_range(0..6000));
                    let _ = tokio::time::timeout(moment, join_all(acting)).await;
                    return;
                }
                server.beside_the_reconciler(join_all(acting)).await;
                server.check_always().await;
                tick(&in_world, &mut own);
                if own.random_bool(0.1) {
                    set_clock(&in_world, &server, &mut own).await;
                }
                if own.random_bool(0.1) {
                    // The store closes under the server, and comes back with the next life.
                    server.store.close().await;
                    let acting = (0..CROWD).map(|_| server.act(&in_world, StdRng::seed_from_u64(own.random())));
                    join_all(acting).await;
                    return;
                }
                server.check_always().await;
            }
        };
        let lived = runtime.block_on(async { tokio::time::timeout(PATIENCE, life).await });
        assert!(lived.is_ok(), "a request waits for ever");
        // Tasks under way end here, between any two of their steps.
        runtime.shutdown_timeout(Duration::from_secs(10));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let queue =
            QueuePolicy { enabled: true, pool: false, timeout: Duration::from_millis(20), places: harness::open(10) };
        let server = Life::begin(&world, queue, true).await;
        server.check_settled(&world).await;
        server.store.close().await;
    });
}

#[test]
fn fifty_histories_keep_the_promises() {
    let only = std::env::var("TIDEBOX_SIMULATION_SEED").ok().map(|seed| seed.parse().unwrap());
    let seeds = only.map_or(0..SEEDS, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| history(seed));
        assert!(outcome.is_ok(), "seed {seed} breaks a promise; TIDEBOX_SIMULATION_SEED={seed} repeats it");
    }
}

/// Polls a future at most `most` times; a wake after that is ignored.
async fn polls<T>(future: impl Future<Output = T>, most: usize) -> Option<T> {
    let (mut future, mut left) = (std::pin::pin!(future), most);
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

#[tokio::test]
async fn who_hangs_up_at_whatever_step_of_a_spawn_leaves_nothing_even_without_the_reconciler() {
    let clock = Arc::new(ManualClock { now_ms: AtomicI64::new(1_700_000_000_000), step_ms: AtomicI64::new(0) });
    let mock_clock = Arc::clone(&clock);
    let world = World {
        dir: tempfile::tempdir().unwrap(),
        mock: Mock::new(move || mock_clock.now()),
        pooled: false,
        clock,
        answers: Mutex::default(),
    };
    let queue = QueuePolicy { enabled: false, pool: false, timeout: PATIENCE, places: harness::open(1) };
    let life = Life::begin(&world, queue, true).await;
    for most in 1.. {
        // As a control plane asks, so that the lease is stored too.
        let spawning = life.app.control.spawn(SpawnRequest { generation: Some(1), ..SpawnRequest::default() });
        if let Some(spawned) = polls(spawning, most).await {
            spawned.unwrap();
            // The store may answer within the first poll.
            assert!(most >= 2, "a spawn waits to be made");
            break;
        }
        let settled = async {
            while life.app.control.is_busy() || life.store.counts().await.unwrap().active > 0 {
                tokio::task::yield_now().await;
            }
        };
        let settled = tokio::time::timeout(PATIENCE, settled).await;
        assert!(settled.is_ok(), "hung up after {most} polls: {:?}", life.store.counts().await.unwrap());
        assert_eq!(world.mock.inventory().await.unwrap(), [], "hung up after {most} polls");
    }
    life.store.close().await;
}
