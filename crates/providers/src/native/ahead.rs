//! Boxes that are made before anybody asks for one.
//!
//! Making a box is the kernel's work, and a caller waits for it. Where many
//! callers want the same, some boxes of `host` are made ahead, each to be taken
//! by one caller: it then gets its limits, its folder and its deadline, and is a
//! box like any other. Until then it runs nothing but its agent, which ends with
//! the connection that this server holds, and so with this server.
//!
//! How many are kept follows the demand: a caller who finds none doubles the
//! number, and each that nobody takes for a while makes it smaller by one.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domain::{Resources, SandboxId};
use guest_protocol::{CgroupDir, SoftLimits};
use tokio::sync::Mutex as AsyncMutex;

use super::Inner;
use super::host::Capabilities;
use super::maker::{Kind, Made, SHM_MB_MAX, What, shm_mb};
use super::record::BoxFolder;
use crate::agent::AgentGuest;
use crate::local::process::Process;
use crate::{Chain, Error, Guest, Phase, Result};

/// The most that are kept. An idle one takes about a megabyte, its share of the
/// kernel's tables included.
const READY_MAX: usize = 8;
/// One that nobody has taken for so long ends.
const AGE_MAX: Duration = Duration::from_secs(600);
/// How large `/dev/shm` is follows from it; all else is set when a box is taken.
const SIZE: Resources = Resources { memory_mb: 2 * SHM_MB_MAX, vcpus: 1, disk_mb: 0, pids: 16 };

/// The boxes that are ready, and how many there shall be.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    state: Mutex<State>,
    /// Held by whoever makes more.
    filling: AsyncMutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The oldest first, which is also taken first.
    ready: VecDeque<Ready>,
    wanted: usize,
    is_filling: bool,
    /// Boxes that are being made while their callers wait.
    awaited: usize,
}

/// A box that is nobody's.
#[derive(Debug)]
struct Ready {
    folder: BoxFolder,
    cgroups: Vec<CgroupDir>,
    can: Capabilities,
    process: Arc<Process>,
    guest: AgentGuest,
}

impl Ahead {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one, or notes that one was missing.
    fn take(&self) -> Option<Ready> {
        let mut state = self.state();
        let taken = state.ready.pop_front();
        if taken.is_none() {
            state.wanted = (state.wanted * 2).clamp(1, READY_MAX);
        }
        taken
    }

    /// Whether to begin making some.
    fn begins(&self, ids_are_scarce: bool) -> bool {
        !self.state().is_filling && self.goes_on(ids_are_scarce)
    }

    /// Whether to make another; if not, nobody makes any from here on.
    fn goes_on(&self, ids_are_scarce: bool) -> bool {
        let mut state = self.state();
        // Those whose callers wait come first.
        state.is_filling = state.ready.len() < state.wanted && state.awaited == 0 && !ids_are_scarce;
        state.is_filling
    }

    /// Says that a caller waits for a box, until dropped.
    fn awaited(&self) -> Awaited<'_> {
        self.state().awaited += 1;
        Awaited(self)
    }
}

struct Awaited<'a>(&'a Ahead);

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.0.state().awaited -= 1;
    }
}

impl Inner {
    /// Makes a box whose folder is not there yet: one that is ready, or a new one.
    /// On error, its folder wants removing.
    pub(super) async fn make_or_take(self: &Arc<Self>, what: &What<'_>) -> Result<Made> {
        let taken = if self.suits(what) { self.take_ready(what).await } else { None };
        let outcome = match taken {
            Some(taken) => Ok(taken),
            None => self.make_now(what).await,
        };
        self.make_ahead();
        outcome
    }

    /// Whether a box that was made ahead can be this one.
    fn suits(&self, what: &What<'_>) -> bool {
        let is_usual = matches!(what.kind, Kind::Box) && what.image.is_none() && what.resources.disk_mb == 0;
        is_usual
            && what.can.disk_upper
            && shm_mb(what.resources) == shm_mb(&SIZE)
            && self.maker.cgroups.soft(what.resources) == SoftLimits::default()
    }

    async fn make_now(&self, what: &What<'_>) -> Result<Made> {
        let _awaited = self.ahead.awaited();
        if self.ids_are_scarce() && self.give_up_ready().await {
            // Their ids are free once their files are gone.
            self.maker.removals.idle().await;
        }
        let made = self.maker.make(what).await?;
        self.reap(&made.process);
        Ok(made)
    }

    /// Takes the exit of a child of ours when it ends, so that no zombie stays.
    fn reap(&self, process: &Arc<Process>) {
        let process = Arc::clone(process);
        self.maker.tasks.spawn(async move { process.ended().await });
    }

    /// Whether boxes that are nobody's could be in the way of others.
    fn ids_are_scarce(&self) -> bool {
        self.maker.ids.free() <= 2 * READY_MAX
    }

    async fn take_ready(&self, what: &What<'_>) -> Option<Made> {
        while let Some(ready) = self.ahead.take() {
            match self.hand_over(&ready, what).await {
                Ok(phases) => return Some(Made { process: ready.process, guest: ready.guest, phases }),
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "a box that was made ahead is of no use");
                    let folder = if what.folder.exists() { &what.folder } else { &ready.folder };
                    self.discard(folder, &ready.process).await;
                }
            }
        }
        None
    }

    /// Makes a box that is nobody's the box of `what`.
    async fn hand_over(&self, ready: &Ready, what: &What<'_>) -> Result<Vec<Phase>> {
        const ACTION: &str = "take a box that was made ahead";
        let begin = Instant::now();
        if ready.can != what.can || ready.process.has_ended() {
            return Err(Error::Gone);
        }
        let failed = |error: std::io::Error| Error::failed(ACTION, error);
        // Before it is anybody's, so that nothing of a caller runs without.
        self.maker.cgroups.limit(&ready.cgroups, what.resources).map_err(failed)?;
        std::fs::rename(ready.folder.path(), what.folder.path()).map_err(failed)?;
        let took = begin.elapsed();
        ready.guest.set_deadline(what.lifetime).await?;
        let agent = begin.elapsed().saturating_sub(took);
        Ok(vec![Phase { name: "box", took }, Phase { name: "agent", took: agent }])
    }

    async fn discard(&self, folder: &BoxFolder, process: &Process) {
        if let Err(error) = self.maker.remove(folder, Some(process)).await {
            tracing::warn!(error = %Chain(&error), "a box that was made ahead cannot be removed; the next start tries again");
        }
    }

    /// Makes boxes in the background until there are as many as are wanted.
    fn make_ahead(self: &Arc<Self>) {
        if !self.ahead.begins(self.ids_are_scarce()) {
            return;
        }
        let inner = Arc::clone(self);
        self.maker.tasks.spawn(async move {
            let _filling = inner.ahead.filling.lock().await;
            while inner.ahead.goes_on(inner.ids_are_scarce()) {
                if let Err(error) = inner.make_one().await {
                    tracing::debug!(error = %Chain(&error), "cannot make a box ahead");
                    let mut state = inner.ahead.state();
                    (state.wanted, state.is_filling) = (0, false);
                    return;
                }
            }
        });
    }

    async fn make_one(self: &Arc<Self>) -> Result<()> {
        let Some(can) = self.host().0.can else { return Err(Error::Gone) };
        let id = SandboxId::from_entropy(rand::random());
        let folder = self.maker.folders.ahead_of(&id);
        let usual = self.maker.a_box(&id, &SIZE, AGE_MAX, can);
        let what = What { kind: Kind::Ahead, folder, ..usual };
        let made = match self.maker.make(&what).await {
            Ok(made) => made,
            Err(error) => {
                self.maker.remove(&what.folder, None).await?;
                return Err(error);
            }
        };
        let Made { process, guest, .. } = made;
        let (weak, ended) = (Arc::downgrade(self), Arc::clone(&process));
        let What { folder, cgroups, .. } = what;
        self.ahead.state().ready.push_back(Ready { folder, cgroups, can, process, guest });
        self.maker.tasks.spawn(async move {
            ended.ended().await;
            if let Some(inner) = weak.upgrade() {
                inner.forget_ready(&ended).await;
            }
        });
        Ok(())
    }

    /// Removes what nobody has taken, if this is one.
    async fn forget_ready(&self, process: &Arc<Process>) {
        let forgotten = {
            let mut state = self.ahead.state();
            let place = state.ready.iter().position(|ready| Arc::ptr_eq(&ready.process, process));
            state.wanted = state.wanted.saturating_sub(usize::from(place.is_some()));
            place.and_then(|place| state.ready.remove(place))
        };
        if let Some(ready) = forgotten {
            self.discard(&ready.folder, process).await;
        }
    }

    /// Ends and removes all that nobody has taken. Tells whether there were any.
    pub(super) async fn give_up_ready(&self) -> bool {
        self.ahead.state().wanted = 0;
        let _filling = self.ahead.filling.lock().await;
        let given_up = std::mem::take(&mut self.ahead.state().ready);
        for ready in &given_up {
            self.discard(&ready.folder, &ready.process).await;
        }
        !given_up.is_empty()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn each_caller_who_finds_none_doubles_their_number_up_to_a_bound() {
        let ahead = Ahead::default();
        assert!(!ahead.begins(false), "nobody has asked for one");
        let mut wanted = Vec::new();
        for _ in 0..5 {
            assert!(ahead.take().is_none());
            wanted.push(ahead.state().wanted);
        }
        assert_eq!(wanted, [1, 2, 4, READY_MAX, READY_MAX]);
    }

    #[test]
    fn none_is_made_while_a_caller_waits_or_ids_are_scarce_or_somebody_makes_them() {
        let ahead = Ahead::default();
        assert!(ahead.take().is_none());
        let awaited = ahead.awaited();
        assert!(!ahead.begins(false));
        drop(awaited);
        assert!(!ahead.begins(true));
        assert!(ahead.begins(false));
        assert!(!ahead.begins(false), "one task makes them");
        assert!(ahead.goes_on(false));
        let _awaited = ahead.awaited();
        assert!(!ahead.goes_on(false));
    }
}
