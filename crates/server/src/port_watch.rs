//! Watches of the ports of boxes. Each change that a box reports becomes an event.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{Bucket, Rate, SandboxId};
use futures_util::StreamExt;
use parking_lot::Mutex;
use providers::{Chain, PortChange, PortChanges};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::events::{EventType, Events};
use store::clock::Clock;

/// Most boxes that are asked at once.
const ASKED_MAX: usize = 16;
/// Pause before a box is asked again whose watch has ended.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// Most changes of one box that are read: twice what an agent reports. One that reports more is not
/// read on meanwhile.
const RATE: Rate =
    Rate { per_minute: NonZeroU32::new(240).expect("not 0"), burst: NonZeroU32::new(64).expect("not 0") };

/// Watches of the ports of all boxes of this server.
#[derive(Debug)]
pub struct PortWatch {
    interval: Duration,
    boxes: Mutex<HashMap<SandboxId, Watched>>,
    turns: Semaphore,
    events: Arc<Events>,
    clock: Arc<dyn Clock>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// State of the watch of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watched {
    /// A task watches it, or is about to.
    Now,
    /// Its provider cannot watch.
    Never,
}

/// Mark of a task that watches a box.
struct Mark<'a> {
    boxes: &'a Mutex<HashMap<SandboxId, Watched>>,
    id: &'a SandboxId,
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        let mut boxes = self.boxes.lock();
        if boxes.get(self.id) == Some(&Watched::Now) {
            boxes.remove(self.id);
        }
    }
}

impl PortWatch {
    /// Creates the service, without any box. An `interval` of zero watches none.
    #[must_use]
    pub fn new(interval: Duration, events: Arc<Events>, clock: Arc<dyn Clock>, stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            interval,
            boxes: Mutex::default(),
            turns: Semaphore::new(ASKED_MAX),
            events,
            clock,
            tasks: TaskTracker::new(),
            stop,
        })
    }

    /// Returns the time between two looks at the ports of a box; `None` if none is watched.
    #[must_use]
    pub fn interval(&self) -> Option<Duration> {
        Some(self.interval).filter(|interval| !interval.is_zero())
    }

    /// Returns those of these boxes that are to be watched and are not, and forgets all others.
    #[must_use]
    pub fn unwatched(&self, running: Vec<SandboxId>) -> Vec<SandboxId> {
        let mut boxes = self.boxes.lock();
        let set: HashSet<&SandboxId> = running.iter().collect();
        boxes.retain(|id, watched| *watched == Watched::Now || set.contains(id));
        running.into_iter().filter(|id| !boxes.contains_key(id)).collect()
    }

    /// Watches a box until its stream ends; `begin` asks for the stream.
    pub fn watch(
        self: &Arc<Self>,
        id: SandboxId,
        begin: impl Future<Output = providers::Result<PortChanges>> + Send + 'static,
    ) {
        self.boxes.lock().insert(id.clone(), Watched::Now);
        let this = Arc::clone(self);
        let stop = self.stop.clone();
        self.tasks.spawn(async move { stop.run_until_cancelled(this.run(&id, begin)).await });
    }

    async fn run(&self, id: &SandboxId, begin: impl Future<Output = providers::Result<PortChanges>>) {
        let _mark = Mark { boxes: &self.boxes, id };
        let asked = async {
            let _turn = self.turns.acquire().await;
            begin.await
        };
        let ended = match asked.await {
            Ok(changes) => self.publish(id, changes).await,
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            if matches!(error, providers::Error::NotSupported(_)) {
                self.boxes.lock().insert(id.clone(), Watched::Never);
                return;
            }
            tracing::debug!(%id, error = %Chain(&error), "cannot watch the ports of a box at the moment");
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }

    async fn publish(&self, id: &SandboxId, mut changes: PortChanges) -> providers::Result<()> {
        let started = Instant::now();
        let mut bucket = Bucket::full(RATE, Duration::ZERO);
        while let Some(change) = changes.next().await {
            let PortChange { is_open, port } = change?;
            while let Err(empty) = bucket.take(RATE, started.elapsed()) {
                tokio::time::sleep(empty.wait).await;
            }
            let mut data = json!({"port": port.port, "address": port.address.to_string()});
            if let Some(pid) = port.pid {
                data["pid"] = json!(pid);
            }
            if let Some(process) = port.process {
                data["process"] = json!(process);
            }
            let kind = if is_open { EventType::PortsOpened } else { EventType::PortsClosed };
            self.events.publish(kind, Some(id), self.clock.now(), data);
        }
        Ok(())
    }

    /// Waits until all watches have ended, after the stop token was cancelled.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}
