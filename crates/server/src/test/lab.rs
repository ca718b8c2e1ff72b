//! A service below HTTP, with providers of the test's own.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use domain::{Caps, Configured, Limits, Machine, Places, Resources, SandboxId, SizeRules, State, Timestamp};
use providers::mock::Mock;
use providers::{
    BoxDisk, DiskUsage, Error, Facts, Found, Guest, Health, ImageSource, KernelShare, Provider, Result, Spec, Started,
};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::admission::{Admission, Opened, QueuePolicy};
use crate::clock::{Clock, SteadyClock};
use crate::config::Leases;
use crate::control::{AuditBounds, Control, Policy};
use crate::events::Events;
use crate::registry::{Offer, Registry};
use crate::store::{Sqlite, Store};

/// Places in a queue that one owner may have all of.
pub(crate) fn open(places: usize) -> Places {
    Places { all: places, of_one: Some(places) }
}

/// Few rules, and none that a test on something else would meet.
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
        far_provider: None,
        queue: QueuePolicy { enabled: false, pool: false, timeout: seconds(30), places: open(10) },
        pool: None,
        image: None,
        output_bytes_max: 1 << 16,
        retention: seconds(3600),
        audit: AuditBounds { retention: seconds(3600), entries_max: 1000 },
        templates_max: 1000,
        quotas_max: 1000,
        reserve_disk_bytes: 0,
        reserve_inodes: 0,
        leases: Leases {
            ttl: seconds(120),
            grace: seconds(30),
            heartbeat_interval: seconds(30),
            stale_after: seconds(120),
        },
        has_workers: false,
    }
}

/// A service that runs until dropped.
pub(crate) struct Lab {
    pub(crate) control: Arc<Control>,
    _dir: tempfile::TempDir,
}

impl Lab {
    /// With these providers, the first of which is the default.
    pub(crate) async fn new(providers: Vec<Arc<dyn Provider>>, policy: Policy) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(&dir.path().join("store.db"), [7; 10]).await.unwrap());
        let clock: Arc<dyn Clock> = Arc::new(SteadyClock::start());
        let default = providers[0].name().to_owned();
        let providers = providers.into_iter().map(|provider| (provider, Offer::Always)).collect();
        let registry = Arc::new(Registry::assemble(providers, Some(&default), clock.as_ref()).await);
        let events = Arc::new(Events::default());
        let Opened { admission, task, abandoned, .. } =
            Admission::open(Arc::clone(&store), Arc::clone(&clock), Arc::clone(&events), policy.queue);
        let tasks = TaskTracker::new();
        tasks.spawn(task);
        let control = Control::assemble(store, registry, clock, policy, tasks.clone(), events, admission);
        tasks.spawn(Arc::clone(&control).remove_abandoned(abandoned));
        control.beat_own().await.unwrap();
        Self { control, _dir: dir }
    }

    /// The state of a sandbox, as stored.
    pub(crate) async fn state(&self, id: &SandboxId) -> State {
        self.control.store().sandbox(id).await.unwrap().unwrap().state
    }
}

/// A provider that does as the test says: boxes of a mock that can be heavy, and
/// that hang or fail.
#[derive(Debug)]
pub(crate) struct Puppet {
    name: &'static str,
    pub(crate) mock: Mock,
    hangs: AtomicBool,
    fails: AtomicBool,
    weights: Mutex<HashMap<SandboxId, DiskUsage>>,
    shares: Mutex<HashMap<SandboxId, u64>>,
    disk: Mutex<Option<BoxDisk>>,
    /// Whether what was removed is gone.
    is_idle: watch::Sender<bool>,
}

impl Puppet {
    pub(crate) fn new(name: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name,
            mock: Mock::new(|| Timestamp::UNIX_EPOCH),
            hangs: AtomicBool::new(false),
            fails: AtomicBool::new(false),
            weights: Mutex::default(),
            shares: Mutex::default(),
            disk: Mutex::default(),
            is_idle: watch::Sender::new(true),
        })
    }

    /// From now on it answers nothing that it is asked.
    pub(crate) fn hang(&self) {
        self.hangs.store(true, Ordering::SeqCst);
    }

    /// From now on it cannot say what it holds.
    pub(crate) fn fail(&self) {
        self.fails.store(true, Ordering::SeqCst);
    }

    /// What a box takes of the disk.
    pub(crate) fn weigh(&self, id: &SandboxId, usage: DiskUsage) {
        self.weights.lock().unwrap().insert(id.clone(), usage);
    }

    /// What a box takes of the kernel.
    pub(crate) fn burden(&self, id: &SandboxId, share: u64) {
        self.shares.lock().unwrap().insert(id.clone(), share);
    }

    /// From now on boxes lie on the disk of this folder.
    pub(crate) fn lie_on(&self, dir: &Path) {
        *self.disk.lock().unwrap() = Some(BoxDisk { dir: dir.to_owned(), holds_bounded: true });
    }

    /// From now on the files of boxes that were stopped stay for a while.
    pub(crate) fn keep_what_is_removed(&self) {
        self.is_idle.send_replace(false);
    }

    /// They are gone.
    pub(crate) fn let_go(&self) {
        self.is_idle.send_replace(true);
    }

    async fn answers(&self) {
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Provider for Puppet {
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
        self.mock.stop(id).await
    }

    async fn inventory(&self) -> Result<Vec<Found>> {
        self.answers().await;
        if self.fails.load(Ordering::SeqCst) {
            return Err(Error::failed("list the boxes", "the test asks for it"));
        }
        self.mock.inventory().await
    }

    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>> {
        self.answers().await;
        self.mock.guest(id).await
    }

    fn disk(&self) -> Option<BoxDisk> {
        self.disk.lock().unwrap().clone()
    }

    async fn disk_usage(&self, id: &SandboxId) -> Option<DiskUsage> {
        self.answers().await;
        self.weights.lock().unwrap().get(id).copied()
    }

    async fn kernel_usage(&self, id: &SandboxId, _: KernelShare) -> Option<u64> {
        self.answers().await;
        self.shares.lock().unwrap().get(id).copied()
    }

    async fn idle(&self) {
        let _ = self.is_idle.subscribe().wait_for(|idle| *idle).await;
    }
}
