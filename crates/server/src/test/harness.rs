//! A service below HTTP, with providers that a test controls.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::{
    Caps, Configured, Limits, Machine, Places, Resources, SandboxId, SizeRules, SnapshotId, State, Timestamp,
};
use parking_lot::Mutex;
use providers::mock::Mock;
use providers::{
    BoxDisk, BoxStats, DiskUsage, Error, Facts, Found, Guest, Health, ImageSource, KernelShare, Pauses, Provider,
    Reclaimed, Result, Snapshots, Spec, Started, Taken,
};
use tempfile::TempDir;
use tokio::sync::watch;

use crate::admission::QueuePolicy;
use crate::app::{App, Parts};
use crate::config::Leases;
use crate::control::Archives;
use crate::control::AuditBounds;
use crate::control::Control;
use crate::control::Policy;
use crate::provider_registry::{Offer, Registry};
use crate::run::settings;
use crate::secrets::SealingKey;
use store::clock::{Clock, SteadyClock};
use store::{SnapshotBounds, Sqlite, Store};

/// Returns bounds of a queue that one owner may fill.
pub(crate) fn open(places: usize) -> Places {
    Places { all: places, of_one: Some(places) }
}

/// Returns a policy with few limits, none of which a test on something else meets.
pub(crate) fn policy() -> Policy {
    let seconds = Duration::from_secs;
    Policy {
        limits: Limits {
            ttl_default: seconds(60),
            ttl_max: seconds(600),
            exec_timeout_default: seconds(10),
            exec_timeout_max: seconds(20),
        },
        caps: Caps::default(),
        resources: Resources { memory_mb: 64, vcpus: 1, disk_mb: 0, pids: 64 },
        sizes: SizeRules::new(Configured::default(), Machine { memory_mb: 1 << 30, cpus: 1024, disk_mb: 1 << 30 }),
        services: Vec::new(),
        queue: QueuePolicy { enabled: false, pool: false, timeout: seconds(30), places: open(10) },
        pool: None,
        image: None,
        output_bytes_max: 1 << 16,
        retention: seconds(3600),
        audit: AuditBounds { retention: seconds(3600), entries_max: 1000 },
        templates_max: 1000,
        keys_max: 10_000,
        snapshots: SnapshotBounds { count: 100, per_owner: 0, bytes: 0, left_bytes: 0 },
        quotas_max: 1000,
        reserve_disk_bytes: 0,
        reserve_inodes: 0,
        leases: Leases {
            ttl: seconds(120),
            grace: seconds(30),
            heartbeat_interval: seconds(30),
            stale_after: seconds(120),
        },
        allows_reverse: true,
        port_watch_interval: Duration::ZERO,
        has_workers: false,
        warm_pool: Vec::new(),
    }
}

/// A service without listener and reconciler, that runs until dropped.
pub(crate) struct TestApp {
    pub(crate) app: App,
    pub(crate) control: Arc<Control>,
    /// Folder of the store.
    pub(crate) dir: TempDir,
}

impl TestApp {
    pub(crate) fn builder() -> Builder {
        Builder {
            providers: Vec::new(),
            policy: policy(),
            clock: Arc::new(SteadyClock::start()),
            store: None,
            beats: true,
        }
    }

    /// Returns the stored state of a sandbox.
    pub(crate) async fn state(&self, id: &SandboxId) -> State {
        self.control.store().sandbox(id).await.unwrap().unwrap().state
    }
}

/// Parts of a [`TestApp`].
pub(crate) struct Builder {
    providers: Vec<Arc<dyn Provider>>,
    policy: Policy,
    clock: Arc<dyn Clock>,
    store: Option<Arc<dyn Store>>,
    beats: bool,
}

impl Builder {
    /// Adds a provider; the first one is the default.
    pub(crate) fn provider(mut self, provider: Arc<dyn Provider>) -> Self {
        self.providers.push(provider);
        self
    }

    pub(crate) fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    pub(crate) fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// Sets the store, which is empty otherwise.
    pub(crate) fn store(self, store: Arc<dyn Store>) -> Self {
        Self { store: Some(store), ..self }
    }

    /// Starts the service as a worker that is not known: no spawn is placed on it.
    pub(crate) fn without_heartbeat(self) -> Self {
        Self { beats: false, ..self }
    }

    pub(crate) async fn start(self) -> TestApp {
        let Self { providers, policy, clock, store, beats } = self;
        let dir = tempfile::tempdir().unwrap();
        let store = match store {
            Some(store) => store,
            None => Arc::new(Sqlite::open(&dir.path().join("store.db"), [7; 10]).await.unwrap()),
        };
        let default = providers[0].name().to_owned();
        let providers = providers.into_iter().map(|provider| (provider, Offer::Always)).collect();
        let registry = Registry::assemble(providers, Some(&default), clock.as_ref()).await;
        let egress = settings::egress(&crate::config::Config::default(), 0);
        let sealing_key = SealingKey::new(&[7; 32]);
        let archives = Archives::new(dir.path().join("uploads"), 0);
        let app = App::compose(Parts { store, clock, registry, policy, egress, sealing_key, archives });
        if beats {
            app.enroll().await.unwrap();
        }
        TestApp { control: Arc::clone(&app.control), app, dir }
    }
}

/// A provider under a test's control: a mock whose boxes can have a usage, hang or fail.
#[derive(Debug)]
pub(crate) struct TestProvider {
    name: &'static str,
    pub(crate) mock: Mock,
    hangs: AtomicBool,
    fails: AtomicBool,
    holds_still: AtomicBool,
    refuses_pauses: AtomicBool,
    /// Boxes that only the next inventory has.
    removed: Mutex<Vec<Found>>,
    pub(crate) stopped: Mutex<Vec<SandboxId>>,
    disk_usages: Mutex<HashMap<SandboxId, DiskUsage>>,
    kernel_usages: Mutex<HashMap<SandboxId, u64>>,
    disk: Mutex<Option<BoxDisk>>,
    /// Paused boxes; `None` if boxes cannot be paused.
    paused: Mutex<Option<HashSet<SandboxId>>>,
    /// True if there are snapshots, which count as having the memory.
    keeps_memory: AtomicBool,
    /// Number of reclaims under way, all of which take until they are given up.
    pub(crate) reclaims: Arc<AtomicUsize>,
    /// True once the files of stopped boxes are removed.
    is_idle: watch::Sender<bool>,
}

impl TestProvider {
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name,
            mock: Mock::new(|| Timestamp::UNIX_EPOCH),
            hangs: AtomicBool::new(false),
            fails: AtomicBool::new(false),
            holds_still: AtomicBool::new(false),
            refuses_pauses: AtomicBool::new(false),
            removed: Mutex::default(),
            stopped: Mutex::default(),
            disk_usages: Mutex::default(),
            kernel_usages: Mutex::default(),
            disk: Mutex::default(),
            paused: Mutex::default(),
            keeps_memory: AtomicBool::new(false),
            reclaims: Arc::default(),
            is_idle: watch::Sender::new(true),
        })
    }

    /// Lets all later calls hang.
    pub(crate) fn hang(&self) {
        self.hangs.store(true, Ordering::SeqCst);
    }

    /// Lets all later inventories fail.
    pub(crate) fn fail(&self) {
        self.fails.store(true, Ordering::SeqCst);
    }

    /// Lets paused boxes not go on, or lets them again.
    pub(crate) fn hold_still(&self, holds: bool) {
        self.holds_still.store(holds, Ordering::SeqCst);
    }

    /// Lets all later pauses fail.
    pub(crate) fn refuse_pauses(&self) {
        self.refuses_pauses.store(true, Ordering::SeqCst);
    }

    /// Adds a box to the next inventory, as if it were removed right after it.
    pub(crate) fn remove_after_inventory(&self, id: &SandboxId) {
        self.removed.lock().push(Found { id: id.clone(), alive: true });
    }

    /// Lets boxes be paused. Their memory is never handed back: [`Self::fail`] says so at once, and otherwise
    /// it takes until it is given up.
    pub(crate) fn allow_pauses(&self) {
        *self.paused.lock() = Some(HashSet::new());
    }

    /// Lets snapshots be taken, which count as having the memory, and have the files alone.
    pub(crate) fn keep_memory(&self) {
        self.keeps_memory.store(true, Ordering::SeqCst);
    }

    /// Sets a box's disk usage.
    pub(crate) fn set_disk_usage(&self, id: &SandboxId, usage: DiskUsage) {
        self.disk_usages.lock().insert(id.clone(), usage);
    }

    /// Sets a box's usage of a kernel resource.
    pub(crate) fn set_kernel_usage(&self, id: &SandboxId, share: u64) {
        self.kernel_usages.lock().insert(id.clone(), share);
    }

    /// Places all boxes on the disk of this folder.
    pub(crate) fn set_disk_dir(&self, dir: &Path) {
        *self.disk.lock() =
            Some(BoxDisk { dir: dir.to_owned(), holds_bounded: true, copies_image: false, copies_snapshot: false });
    }

    /// Keeps the files of stopped boxes until [`Self::finish_removals`].
    pub(crate) fn hold_removals(&self) {
        self.is_idle.send_replace(false);
    }

    /// Reports the files of stopped boxes as removed.
    pub(crate) fn finish_removals(&self) {
        self.is_idle.send_replace(true);
    }

    async fn answers(&self) {
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Provider for TestProvider {
    fn name(&self) -> &str {
        self.name
    }

    fn facts(&self) -> Facts {
        self.mock.facts()
    }

    async fn health(&self) -> Health {
        self.answers().await;
        self.mock.health().await
    }

    fn default_image(&self) -> &str {
        self.mock.default_image()
    }

    fn images(&self) -> Option<&dyn ImageSource> {
        self.mock.images()
    }

    fn check(&self, spec: &Spec) -> Result<()> {
        self.mock.check(spec)
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<Started> {
        self.answers().await;
        self.mock.start(id, spec).await
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        self.answers().await;
        self.stopped.lock().push(id.clone());
        self.mock.stop(id).await
    }

    async fn inventory(&self) -> Result<Vec<Found>> {
        self.answers().await;
        if self.fails.load(Ordering::SeqCst) {
            return Err(Error::failed("list the boxes", "the test asks for it"));
        }
        let mut found = self.mock.inventory().await?;
        found.append(&mut self.removed.lock());
        Ok(found)
    }

    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>> {
        self.answers().await;
        self.mock.guest(id).await
    }

    fn pauses(&self) -> Option<&dyn Pauses> {
        self.paused.lock().is_some().then_some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.keeps_memory.load(Ordering::SeqCst).then_some(self)
    }

    fn disk(&self) -> Option<BoxDisk> {
        self.disk.lock().clone()
    }

    async fn disk_usage(&self, id: &SandboxId) -> Option<DiskUsage> {
        self.answers().await;
        self.disk_usages.lock().get(id).copied()
    }

    async fn kernel_usage(&self, id: &SandboxId, _: KernelShare) -> Option<u64> {
        self.answers().await;
        self.kernel_usages.lock().get(id).copied()
    }

    async fn stats(&self, ids: &[SandboxId]) -> Result<Vec<BoxStats>> {
        self.answers().await;
        self.mock.stats(ids).await
    }

    async fn idle(&self) {
        let _ = self.is_idle.subscribe().wait_for(|idle| *idle).await;
    }
}

#[async_trait]
impl Snapshots for TestProvider {
    async fn take(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<Taken> {
        let taken = Snapshots::take(&self.mock, id, snapshot).await?;
        Ok(Taken { has_memory: true, ..taken })
    }

    fn has_memory(&self) -> bool {
        true
    }

    async fn remove(&self, snapshot: &SnapshotId) -> Result<()> {
        Snapshots::remove(&self.mock, snapshot).await
    }

    async fn list(&self) -> Result<Vec<SnapshotId>> {
        Snapshots::list(&self.mock).await
    }
}

#[async_trait]
impl Pauses for TestProvider {
    async fn pause(&self, id: &SandboxId) -> Result<()> {
        if self.refuses_pauses.load(Ordering::SeqCst) {
            return Err(Error::failed("pause a box", "the test asks for it"));
        }
        self.paused.lock().get_or_insert_default().insert(id.clone());
        Ok(())
    }

    async fn resume(&self, id: &SandboxId) -> Result<()> {
        if self.holds_still.load(Ordering::SeqCst) {
            return Err(Error::failed("resume a box", "it stands still"));
        }
        self.paused.lock().get_or_insert_default().remove(id);
        Ok(())
    }

    async fn paused(&self) -> Result<Vec<SandboxId>> {
        Ok(self.paused.lock().iter().flatten().cloned().collect())
    }

    fn can_reclaim(&self) -> bool {
        true
    }

    async fn check_reclaim(&self, _: &SandboxId) -> Result<()> {
        Ok(())
    }

    async fn reclaim(&self, _: &SandboxId) -> Result<Reclaimed> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(Error::NotSupported("the service behind it cannot".to_owned()));
        }
        self.reclaims.fetch_add(1, Ordering::SeqCst);
        let _end = Countdown(Arc::clone(&self.reclaims));
        std::future::pending().await
    }
}

/// Counts one less when it is dropped.
struct Countdown(Arc<AtomicUsize>);

impl Drop for Countdown {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
