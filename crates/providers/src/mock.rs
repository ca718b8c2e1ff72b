//! A provider in memory: a test double, and a way to try the service anywhere.
//!
//! A box is an in-memory file system and a small deterministic shell. It runs no real program,
//! enforces no limit and isolates nothing; its boxes and snapshots end with the process. A slot is a file
//! system of its own, and nothing else. Every image and every option is accepted.
//!
//! The shell knows `;`, `&&`, `||`, pipes, `( )`, background `&`, quotes, comments, the variables
//! `$NAME` and `$$`, the redirections `>`, `>>`, `2>`, `2>&1` and `>&2`, executable files that are
//! scripts, and the commands `cat`, `cd`, `echo`, `env`, `exit`, `false`, `head -c`, `kill`,
//! `ln -s`, `ls`, `mkdir`, `printenv`, `printf`, `pwd`, `read`, `rm`, `seq`, `setsid`, `sh -c`,
//! `sleep`, `touch`, `true`, `wc -c` and `yes`. It has what the tests use, and nothing else.
//!
//! Labels (`metadata`) of a box ask for faults and delays:
//!
//! | label | value | effect |
//! |---|---|---|
//! | `mock.start_delay` | duration | delay of a start |
//! | `mock.start_fail` | count | the first `count` starts of this box fail and leave nothing |
//! | `mock.lose_reply` | count | the first `count` starts make the box and then fail |
//! | `mock.stop_delay` | duration | delay of a stop |
//! | `mock.stop_fail` | count | the first `count` stops fail and leave the box |
//! | `mock.exec_delay` | duration | delay of a command's start |
//! | `mock.exec_fail` | count | the first `count` commands fail to start |
//! | `mock.file_delay` | duration | delay of a file operation |
//! | `mock.snapshot_delay` | duration | delay of a snapshot of this box |
//! | `mock.snapshot_fail` | count | the first `count` snapshots of this box fail and leave nothing |
//! | `mock.vanish_after` | duration | time after which the provider no longer holds the box |
//! | `mock.die_after` | duration | time after which the box's first process ends |
//! | `mock.health` | text | while the box is there, the provider is unhealthy for this reason |
//!
//! A duration is written as in the API (`200ms`, `1m30s`). Another `mock.` label
//! or a value that makes no sense is [`crate::Error::Invalid`].

mod boxed;
mod faults;
mod fs;
mod guest;
mod processes;
mod shell;
mod slots;
mod snapshots;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use domain::{SandboxId, SnapshotId, Timestamp};
use parking_lot::{Mutex, MutexGuard};
use tokio_util::task::TaskTracker;

use self::boxed::Boxed;
use self::faults::Faults;
use self::fs::FileSystem;
pub use self::fs::Now;
use self::guest::MockGuest;
use crate::{
    Error, Facts, Found, Guest, Health, ImageSource, Isolation, LimitKind, Phase, Provider, Result, Slots, Snapshots,
    Spec, Started,
};

/// Name of this provider.
pub const NAME: &str = "mock";
/// The most ids for which start attempts are remembered. Beyond it, all are forgotten.
const ATTEMPTS_MAX: usize = 10_000;

/// A provider in memory. Clones share their boxes.
#[derive(Clone)]
pub struct Mock {
    now: Now,
    state: Arc<Mutex<State>>,
    tasks: TaskTracker,
}

/// Parent of a box.
#[derive(Clone)]
enum Place {
    /// None: a box of its own.
    Top,
    /// The box that holds this slot.
    In(Arc<Boxed>),
}

impl Place {
    /// Passes the boxes or slots at this place to `work`.
    fn with<T>(&self, mock: &Mock, work: impl FnOnce(&mut BTreeMap<SandboxId, Arc<Boxed>>) -> T) -> Result<T> {
        match self {
            Place::Top => Ok(work(&mut mock.lock().boxes)),
            Place::In(host) if host.dead().is_cancelled() => Err(Error::Gone),
            Place::In(host) => match host.slots() {
                Some(mut slots) => Ok(work(&mut slots)),
                None => Err(Error::Invalid("the box was not made to hold slots".to_owned())),
            },
        }
    }
}

#[derive(Default)]
struct State {
    boxes: BTreeMap<SandboxId, Arc<Boxed>>,
    /// Numbers of start attempts, by box that does not exist yet.
    attempts: BTreeMap<SandboxId, u32>,
    snapshots: BTreeMap<SnapshotId, Arc<FileSystem>>,
    health: Option<String>,
}

impl fmt::Debug for Mock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mock").field("boxes", &self.lock().boxes.len()).finish_non_exhaustive()
    }
}

impl Mock {
    /// Makes a provider without boxes. Files get their times from `now`.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Mock {
        Mock { now: Arc::new(now), state: Arc::default(), tasks: TaskTracker::new() }
    }

    /// Makes the provider unhealthy for a reason, or healthy again.
    pub fn set_health(&self, error: Option<String>) {
        self.lock().health = error;
    }

    /// Removes a box or a slot behind the provider's back.
    pub fn vanish(&self, id: &SandboxId) {
        let hosts: Vec<Arc<Boxed>> = self.lock().boxes.values().cloned().collect();
        let slot = hosts.iter().find_map(|host| host.slots()?.remove(id));
        let gone = self.lock().boxes.remove(id).or(slot);
        if let Some(gone) = gone {
            gone.kill();
        }
    }

    /// Ends the first process of a box or a slot behind the provider's back.
    pub fn die(&self, id: &SandboxId) {
        let hosts: Vec<Arc<Boxed>> = self.lock().boxes.values().cloned().collect();
        let slot = || hosts.iter().find_map(|host| host.slots()?.get(id).cloned());
        if let Some(found) = self.find(id).or_else(slot) {
            found.kill();
        }
    }

    /// Returns the deadline that a box was last given after its start.
    #[must_use]
    pub fn deadline(&self, id: &SandboxId) -> Option<Duration> {
        *self.find(id)?.deadline()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn find(&self, id: &SandboxId) -> Option<Arc<Boxed>> {
        self.lock().boxes.get(id).cloned()
    }

    /// Counts a start of this box, and returns the number of starts before it.
    fn count_attempt(&self, id: &SandboxId) -> u32 {
        let mut state = self.lock();
        if state.attempts.len() >= ATTEMPTS_MAX {
            state.attempts.clear();
        }
        let attempts = state.attempts.entry(id.clone()).or_default();
        *attempts += 1;
        *attempts - 1
    }

    /// Starts a box or a slot, with the faults that its labels request.
    async fn start_in(
        &self,
        place: &Place,
        id: &SandboxId,
        spec: &Spec,
        make: impl FnOnce(Boxed) -> Boxed + Send,
    ) -> Result<Started> {
        let began = tokio::time::Instant::now();
        let faults = Faults::parse(&spec.metadata)?;
        if let Some(delay) = faults.start_delay {
            tokio::time::sleep(delay).await;
        }
        let runs = |found: Option<&Arc<Boxed>>| found.is_some_and(|found| !found.dead().is_cancelled());
        if !place.with(self, |boxes| runs(boxes.get(id)))? {
            let attempt = self.count_attempt(id);
            if attempt < faults.start_fail {
                return Err(Error::failed("start a box", "requested by the label mock.start_fail"));
            }
            let files = spec.snapshot.as_ref().map(|snapshot| self.files_of(snapshot)).transpose()?;
            let made = Boxed::new(spec, files.as_deref(), faults.clone(), Arc::clone(&self.now), self.tasks.clone())?;
            let made = Arc::new(make(made));
            let is_first = place.with(self, |boxes| {
                let is_first = !runs(boxes.get(id));
                if is_first {
                    boxes.insert(id.clone(), Arc::clone(&made));
                }
                is_first
            })?;
            if is_first {
                self.schedule_end(place, id, &made, &faults);
            }
            if attempt < faults.lose_reply {
                return Err(Error::failed("start a box", "requested by the label mock.lose_reply"));
            }
        }
        self.lock().attempts.remove(id);
        Ok(Started { phases: vec![Phase { name: "box", took: began.elapsed() }] })
    }

    /// Ends and removes a box or a slot, with the faults that its labels request.
    async fn stop_in(&self, place: &Place, id: &SandboxId) -> Result<()> {
        let Ok(Some(found)) = place.with(self, |boxes| boxes.get(id).cloned()) else {
            self.lock().attempts.remove(id);
            return Ok(());
        };
        if let Some(delay) = found.faults().stop_delay {
            tokio::time::sleep(delay).await;
        }
        if found.is_stop_refused() {
            return Err(Error::failed("stop a box", "requested by the label mock.stop_fail"));
        }
        found.kill();
        place.with(self, |boxes| {
            // Another box may have been made under this id meanwhile.
            if boxes.get(id).is_some_and(|current| Arc::ptr_eq(current, &found)) {
                boxes.remove(id);
            }
        })?;
        self.lock().attempts.remove(id);
        Ok(())
    }

    /// Schedules the end of a box that its labels request.
    fn schedule_end(&self, place: &Place, id: &SandboxId, made: &Arc<Boxed>, faults: &Faults) {
        for (after, vanishes) in [(faults.vanish_after, true), (faults.die_after, false)] {
            let Some(after) = after else { continue };
            let (mock, place, id, made) = (self.clone(), place.clone(), id.clone(), Arc::clone(made));
            self.tasks.spawn(async move {
                if made.dead().run_until_cancelled(tokio::time::sleep(after)).await.is_some() {
                    made.kill();
                    if vanishes {
                        // The slot is gone already if its box has ended.
                        let _ = place.with(&mock, |boxes| boxes.remove(&id));
                    }
                }
            });
        }
    }
}

#[async_trait]
impl Provider for Mock {
    fn name(&self) -> &str {
        NAME
    }

    fn facts(&self) -> Facts {
        Facts {
            isolation: Isolation::None,
            runtime: "memory".to_owned(),
            network_mode: "none".to_owned(),
            limits: ["memory_mb", "vcpus", "pids", "disk_mb"].map(|limit| (limit, LimitKind::None)).to_vec(),
            missing: Vec::new(),
        }
    }

    async fn health(&self) -> Health {
        let state = self.lock();
        let of_a_box = || state.boxes.values().find_map(|made| made.faults().health.clone());
        Health { error: state.health.clone().or_else(of_a_box) }
    }

    fn default_image(&self) -> &str {
        "mock"
    }

    /// Returns `None`: every image name is accepted, and no image exists.
    fn images(&self) -> Option<&dyn ImageSource> {
        None
    }

    fn check(&self, spec: &Spec) -> Result<()> {
        Faults::parse(&spec.metadata).map(|_| ())
    }

    async fn start(&self, id: &SandboxId, spec: &Spec) -> Result<Started> {
        self.start_in(&Place::Top, id, spec, |made| made).await
    }

    async fn stop(&self, id: &SandboxId) -> Result<()> {
        self.stop_in(&Place::Top, id).await
    }

    fn slots(&self) -> Option<&dyn Slots> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    async fn inventory(&self) -> Result<Vec<Found>> {
        let state = self.lock();
        Ok(state.boxes.iter().map(|(id, made)| Found { id: id.clone(), alive: !made.dead().is_cancelled() }).collect())
    }

    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>> {
        match self.find(id) {
            Some(found) if !found.dead().is_cancelled() => Ok(Arc::new(MockGuest::new(found))),
            _ => Err(Error::Gone),
        }
    }

    fn runs(&self, id: &SandboxId) -> Option<bool> {
        Some(self.find(id).is_some_and(|found| !found.dead().is_cancelled()))
    }
}
