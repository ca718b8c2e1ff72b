//! Pause and resume: store the intent, then stop the processes or let them go on. Where the two
//! differ after a crash, the box is put into the state of its row.

pub(super) mod activity;
pub(super) mod auto_pause;
pub(super) mod resume;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use domain::{Event, InvalidTransition, SandboxId, State, WorkerId};
use providers::{Chain, Pauses, Provider, Reclaimed};
use serde_json::json;
use tokio::sync::OwnedMutexGuard;

use super::conflict::Conflict;
use super::error::{Error, Result, provider_error};
use super::guest::access::runtime_error;
use super::keyed_lock::KeyedLock;
use super::policy::ORPHAN_GRACE;
use super::resource::Resource;
use super::service::Control;
use super::unavailable::Unavailable;
use super::workers::box_host::BoxHost;
use crate::events::EventType;
use store::clock;
use store::{Applied, Change, Sandbox};

/// A request to pause a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pause {
    /// True to pause it also while requests use it.
    pub force: bool,
    /// True to hand back its memory then.
    pub reclaim: bool,
    /// True to write it to disk then.
    pub to_disk: bool,
    /// Lifetime for which it is kept; `None` for what is left of the old one.
    pub keep: Option<Keep>,
}

/// Lifetime of a paused sandbox, from its pause on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    pub lifetime: Duration,
    /// True to pause it only if its old lifetime is over.
    pub only_if_over: bool,
}

/// Reason for a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// A caller asked for it.
    Requested,
    /// A caller asked for it, although requests may use the sandbox.
    Forced,
    /// The sandbox has not been used.
    Idle,
}

impl Control {
    /// Pauses a sandbox, and hands its memory back or writes it to disk if `how` says so. That goes on if
    /// the caller goes away, but for the memory. A sandbox that is paused already stays so.
    ///
    /// # Errors
    /// [`Error::NotSupported`] where the provider cannot do what is asked, and the sandbox stays as it
    /// was; [`Error::Conflict`] while it is made or removed, unless `force`, while requests use it, and
    /// if it goes on or ends while its memory is handed back.
    pub async fn pause(self: &Arc<Self>, id: &str, how: Pause) -> Result<(Sandbox, Option<Reclaimed>)> {
        if how.reclaim && how.to_disk {
            return Err(Error::Invalid(
                "`reclaim` and `to_disk` cannot be combined, because a sandbox on disk uses no memory; leave out one"
                    .to_owned(),
            ));
        }
        let (control, id) = (Arc::clone(self), id.to_owned());
        let why = if how.force { Why::Forced } else { Why::Requested };
        let pause = self.tasks.spawn(async move {
            let paused = control.pause_now(&id, why, how).await?;
            if how.to_disk {
                control.suspend(&paused.0).await?;
            }
            Ok(paused)
        });
        let paused: Result<(Sandbox, bool)> = pause.await.unwrap_or_else(|_| Err(Unavailable::ShuttingDown.into()));
        let (sandbox, was_paused) = paused?;
        if !how.reclaim {
            return Ok((sandbox, None));
        }
        let reclaimed = self.reclaim(&sandbox).await;
        // Another service has not said so before.
        if matches!(reclaimed, Err(Error::NotSupported(_))) && !was_paused {
            self.resume(sandbox.id.as_str()).await?;
        }
        reclaimed.map(|reclaimed| (sandbox, Some(reclaimed)))
    }

    /// Pauses a sandbox that no request uses. Connections out of it may be open.
    ///
    /// # Errors
    /// As [`Control::pause`].
    pub(super) async fn pause_unused(self: &Arc<Self>, id: &SandboxId) -> Result<Sandbox> {
        self.pause_now(id.as_str(), Why::Idle, Pause::default()).await.map(|(sandbox, _)| sandbox)
    }

    /// Pauses a sandbox, if what is to follow can be done with it. Returns whether it was paused before.
    async fn pause_now(&self, id: &str, why: Why, how: Pause) -> Result<(Sandbox, bool)> {
        let sandbox = self.pausable(id).await?;
        let runtime = self.runtime_of(&sandbox).await?;
        let pauses = pauses_of(runtime.as_ref())?;
        if how.to_disk && !pauses.can_suspend() {
            return Err(Error::NotSupported(format!(
                "the provider `{}` cannot write sandboxes to disk; GET /api/v1/providers shows which providers have \
                 the capability `suspend`",
                sandbox.provider
            )));
        }
        if how.reclaim {
            pauses.check_reclaim(&sandbox.id).await.map_err(|error| self.pause_error(&sandbox, error))?;
        }
        let _turn = lock(&self.pauses.turns, &sandbox.id, why).await?;
        let _lifetime = lock(&self.pauses.lifetimes, &sandbox.id, why).await?;
        let sandbox = self.pausable(id).await?;
        if sandbox.state == State::Paused {
            return Ok((sandbox, true));
        }
        self.check_unused(&sandbox, why)?;
        // A paused box does not answer.
        self.set_late_deadline(&sandbox.id).await;
        let paused = self.pause_box(&sandbox, pauses, why, how.keep).await;
        if paused.is_err() && how.keep.is_some() {
            self.renew_deadline(&sandbox).await;
        }
        let paused = paused?;
        let reason = if why == Why::Idle { "idle" } else { "request" };
        let data = json!({"provider": sandbox.provider, "reason": reason});
        self.publish(EventType::SandboxPaused, Some(&sandbox.id), data);
        Ok((paused, false))
    }

    /// Stores that a sandbox is paused, and pauses its box. If the box cannot be paused, the sandbox is as it was, its
    /// lifetime included. The caller has the turn of the sandbox and the lock of its lifetime.
    async fn pause_box(&self, sandbox: &Sandbox, pauses: &dyn Pauses, why: Why, keep: Option<Keep>) -> Result<Sandbox> {
        let now = self.now();
        if keep.is_some_and(|keep| keep.only_if_over) && sandbox.expires_at > now {
            // It was extended meanwhile, as the store would say too.
            let refusal = InvalidTransition { from: sandbox.state, event: Event::Paused };
            return Err(Conflict::Transition(refusal).into());
        }
        let if_over_at = keep.filter(|keep| keep.only_if_over).map(|_| now);
        let until = keep.map(|keep| clock::after(now, keep.lifetime));
        if let Some(keep) = keep {
            // The box first, as for an extension.
            let guest = self.guest(sandbox).await?;
            let deadline = keep.lifetime + ORPHAN_GRACE;
            guest.set_deadline(deadline).await.map_err(|error| self.guest_error(sandbox, error))?;
        }
        let paused = self.changed(&sandbox.id, Change::Paused { until, if_over_at }).await?;
        // A request that has read the old state is counted by now, and one that follows waits for the turn.
        let done = match self.check_unused(sandbox, why) {
            Ok(()) => pauses.pause(&sandbox.id).await.map_err(|error| self.pause_error(sandbox, error)),
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            let until = until.map(|_| sandbox.expires_at);
            self.changed(&sandbox.id, Change::Resumed { until }).await?;
            return Err(error);
        }
        Ok(paused)
    }

    /// Gives the box of a running sandbox the deadline of its row again.
    async fn renew_deadline(&self, sandbox: &Sandbox) {
        let left = clock::between(self.now(), sandbox.expires_at) + ORPHAN_GRACE;
        let renewed = async {
            let guest = self.guest(sandbox).await?;
            guest.set_deadline(left).await.map_err(|error| self.guest_error(sandbox, error))
        };
        if let Err(error) = renewed.await {
            tracing::warn!(id = %sandbox.id, error = %Chain(&error), "cannot restore the deadline of a box");
        }
    }

    /// Returns whether a sandbox is paused and written to the disk of this server.
    pub fn is_on_disk(&self, sandbox: &Sandbox) -> bool {
        sandbox.state == State::Paused
            && !matches!(self.host_of(sandbox), BoxHost::Worker(_))
            && self
                .registry
                .get(&sandbox.provider)
                .is_some_and(|entry| entry.provider.pauses().is_some_and(|pauses| pauses.is_suspended(&sandbox.id)))
    }

    /// Writes a paused sandbox to disk.
    async fn suspend(&self, sandbox: &Sandbox) -> Result<()> {
        let runtime = self.runtime_of(sandbox).await?;
        // It does not go on meanwhile.
        let _turn = self.pauses.turns.take(&sandbox.id).await;
        if self.pausable(sandbox.id.as_str()).await?.state != State::Paused {
            return Err(Conflict::NotPaused { sandbox: sandbox.id.clone() }.into());
        }
        let pauses = pauses_of(runtime.as_ref())?;
        // A repeat needs no room, and ends what an earlier attempt has left of its process.
        let was_on_disk = pauses.is_suspended(&sandbox.id);
        let _room = if was_on_disk { None } else { self.keep_room(runtime.as_ref(), sandbox, false, true).await? };
        pauses.suspend(&sandbox.id).await.map_err(|error| self.pause_error(sandbox, error))?;
        if !was_on_disk {
            self.publish(EventType::SandboxSuspended, Some(&sandbox.id), json!({"provider": sandbox.provider}));
        }
        Ok(())
    }

    /// Hands memory of a paused sandbox back to the system, until that is done or the sandbox is not
    /// paused any more: a request that needs it does not wait.
    async fn reclaim(&self, sandbox: &Sandbox) -> Result<Reclaimed> {
        let runtime = self.runtime_of(sandbox).await?;
        let reclaimed = tokio::select! {
            reclaimed = pauses_of(runtime.as_ref())?.reclaim(&sandbox.id) => reclaimed,
            ended = self.no_longer_paused(&sandbox.id) => return Err(ended),
        };
        let reclaimed = reclaimed.map_err(|error| self.pause_error(sandbox, error))?;
        let Reclaimed { memory_before_bytes, memory_after_bytes, by } = reclaimed;
        let data = json!({
            "provider": sandbox.provider, "by": by.as_str(),
            "memory_before_bytes": memory_before_bytes, "memory_after_bytes": memory_after_bytes,
        });
        self.publish(EventType::SandboxReclaimed, Some(&sandbox.id), data);
        Ok(reclaimed)
    }

    /// Waits until a sandbox is not paused any more, and returns what to say then.
    async fn no_longer_paused(&self, id: &SandboxId) -> Error {
        let mut wait = self.waiters.begin(id);
        let mut state = self.store.sandbox(id).await.map(|row| row.map(|row| row.state)).map_err(Error::from);
        loop {
            match state {
                Ok(Some(State::Paused)) => {}
                Ok(Some(_)) => {
                    return Conflict::NotPausedForReclaim { sandbox: id.clone() }.into();
                }
                Ok(None) => return Error::NotFound(Resource::Sandbox, id.to_string()),
                Err(error) => return error,
            }
            let next = wait.next(|| async { Ok(self.store.sandbox(id).await?) }).await;
            state = next.map(|row| row.map(|row| row.state));
        }
    }

    /// Returns a sandbox that is running or paused.
    pub(super) async fn pausable(&self, id: &str) -> Result<Sandbox> {
        let sandbox = self.visible(id).await?;
        if sandbox.state == State::Destroying {
            return Err(Conflict::BeingDestroyed { sandbox: id.to_owned() }.into());
        }
        self.living(id).await
    }

    fn check_unused(&self, sandbox: &Sandbox, why: Why) -> Result<()> {
        let mut uses = self.pauses.in_use.of(&sandbox.id);
        if why == Why::Requested && self.egress.counts_of(&sandbox.id).open > 0 {
            uses.push("connections out of it");
        }
        if why == Why::Forced || uses.is_empty() {
            return Ok(());
        }
        Err(Conflict::InUse { sandbox: sandbox.id.clone(), uses }.into())
    }

    async fn changed(&self, id: &SandboxId, change: Change) -> Result<Sandbox> {
        match self.apply(id, change).await? {
            Applied::Done { sandbox, .. } => Ok(*sandbox),
            Applied::Missing => Err(Error::NotFound(Resource::Sandbox, id.to_string())),
            Applied::Refused(refusal) => Err(Conflict::Transition(refusal).into()),
        }
    }

    fn pause_error(&self, sandbox: &Sandbox, error: providers::Error) -> Error {
        if matches!(error, providers::Error::Gone) {
            return self.guest_error(sandbox, error);
        }
        runtime_error(sandbox, error)
    }

    /// Pauses the boxes of a runtime whose rows are paused, and lets those go on whose rows are running.
    pub(super) async fn settle_pauses(
        &self,
        runtime: &dyn Provider,
        name: &str,
        worker: &WorkerId,
        provider: Option<&str>,
    ) -> Result<()> {
        let Some(pauses) = runtime.pauses() else { return Ok(()) };
        let rows = self.store.ids_in(&[State::Paused], worker, provider).await?;
        let rows: HashSet<SandboxId> = rows.into_iter().collect();
        let found = pauses.paused().await.map_err(|error| provider_error(name, error))?;
        let found: HashSet<SandboxId> = found.into_iter().collect();
        for id in rows.symmetric_difference(&found) {
            // What has its turn, such as a snapshot, may take minutes, and leaves both as they should be.
            let Some(_turn) = self.pauses.turns.try_take(id) else { continue };
            // A request that has had its turn since the first look has changed both.
            let state = self.store.sandbox(id).await?.map(|row| row.state);
            let is_paused = pauses.paused().await.map_err(|error| provider_error(name, error))?.contains(id);
            let (action, settled) = match (state, is_paused) {
                (Some(State::Paused), false) => ("paused_again", pauses.pause(id).await),
                (Some(State::Running), true) => ("resumed", self.resume_box(pauses, id, None).await),
                _ => continue,
            };
            match settled {
                Ok(()) => self.publish_action(action, Some(id), json!({"provider": name})),
                // A box that is gone is ended by the comparison that follows.
                Err(error) => {
                    tracing::debug!(%id, %error, "cannot bring a box into its recorded state; retrying later")
                }
            }
        }
        Ok(())
    }
}

/// Takes a lock of a sandbox. One that is idle is not waited for: all others that are idle would wait as well.
async fn lock(locks: &KeyedLock, id: &SandboxId, why: Why) -> Result<OwnedMutexGuard<()>> {
    if why != Why::Idle {
        return Ok(locks.take(id).await);
    }
    locks.try_take(id).ok_or_else(|| Conflict::Changing { sandbox: id.to_string() }.into())
}

pub(super) fn pauses_of(runtime: &dyn Provider) -> Result<&dyn Pauses> {
    runtime.pauses().ok_or_else(|| {
        Error::NotSupported(format!(
            "the provider `{}` cannot pause sandboxes here; `docker` and `firecracker` can, and so can `native` where \
             its control groups can be frozen and sandboxes do not share boxes",
            runtime.name()
        ))
    })
}

#[cfg(test)]
mod test {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::control::IdempotencyKey;
    use crate::control::SpawnRequest;
    use crate::test::harness::{TestApp, TestProvider};
    use domain::SandboxEgress;
    use tokio_util::task::TaskTracker;

    const RECLAIM: Pause = Pause { force: false, reclaim: true, to_disk: false, keep: None };
    /// The longest wait for what happens at once.
    const SOON: Duration = Duration::from_secs(30);

    async fn app() -> (TestApp, Arc<TestProvider>, SandboxId) {
        let provider = TestProvider::new("mock");
        provider.allow_pauses();
        let app = TestApp::builder().provider(provider.clone()).start().await;
        let id = app.control.spawn(SpawnRequest::default()).await.unwrap().sandbox.id;
        (app, provider, id)
    }

    async fn until_it_reclaims(provider: &TestProvider) {
        let begun = async {
            while provider.reclaims.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(SOON, begun).await.expect("it begins");
    }

    #[tokio::test]
    async fn a_provider_that_says_late_that_it_cannot_leaves_the_sandbox_as_it_was() {
        let (app, provider, id) = app().await;
        provider.fail();
        assert!(matches!(app.control.pause(id.as_str(), RECLAIM).await, Err(Error::NotSupported(_))));
        assert_eq!(app.state(&id).await, State::Running);
        assert_eq!(provider.paused().await.unwrap(), []);
        app.control.pause(id.as_str(), Pause::default()).await.unwrap();
        assert!(matches!(app.control.pause(id.as_str(), RECLAIM).await, Err(Error::NotSupported(_))));
        assert_eq!(app.state(&id).await, State::Paused, "it was paused before");
    }

    #[tokio::test]
    async fn a_box_that_cannot_go_on_stays_paused_and_the_next_request_tries_again() {
        let (app, provider, id) = app().await;
        app.control.pause(id.as_str(), Pause::default()).await.unwrap();
        provider.hold_still(true);
        let listed = async || app.control.stat_file(id.as_str(), "/").await;
        for _ in 0..2 {
            let refused = listed().await;
            assert!(matches!(&refused, Err(Error::Provider { action: "resume a box", .. })), "{refused:?}");
            assert_eq!(app.state(&id).await, State::Paused);
        }
        provider.hold_still(false);
        listed().await.unwrap();
        assert_eq!(app.state(&id).await, State::Running);
        // A server that was killed has left its row so.
        app.control.pause(id.as_str(), Pause::default()).await.unwrap();
        app.control.changed(&id, Change::Resumed { until: None }).await.unwrap();
        provider.hold_still(true);
        let settle =
            async || app.control.settle_pauses(provider.as_ref(), "mock", &WorkerId::local(), Some("mock")).await;
        settle().await.unwrap();
        assert_eq!(app.state(&id).await, State::Paused);
    }

    #[tokio::test]
    async fn what_takes_minutes_for_one_sandbox_holds_up_no_look_at_the_others() {
        let (app, provider, id) = app().await;
        let other = app.control.spawn(SpawnRequest::default()).await.unwrap().sandbox.id;
        // As during a snapshot, for which the box of a running sandbox stands still.
        let turn = app.control.pauses.turns.take(&id).await;
        for paused in [&id, &other] {
            provider.pause(paused).await.unwrap();
        }
        let settle =
            async || app.control.settle_pauses(provider.as_ref(), "mock", &WorkerId::local(), Some("mock")).await;
        let looks = async {
            settle().await.unwrap();
            assert!(matches!(app.control.pause_unused(&id).await, Err(Error::Conflict(_))));
        };
        tokio::time::timeout(SOON, looks).await.expect("it does not wait");
        assert_eq!(provider.paused().await.unwrap(), std::slice::from_ref(&id));
        drop(turn);
        settle().await.unwrap();
        assert_eq!(provider.paused().await.unwrap(), []);
    }

    #[tokio::test]
    async fn a_repeated_spawn_answers_at_once_with_a_sandbox_that_is_paused_by_now() {
        let (app, _, _) = app().await;
        let key = IdempotencyKey { key: "a".to_owned(), request: "b".to_owned() };
        let spawn =
            async || app.control.spawn(SpawnRequest { key: Some(key.clone()), ..SpawnRequest::default() }).await;
        let id = spawn().await.unwrap().sandbox.id;
        app.control.pause(id.as_str(), Pause::default()).await.unwrap();
        let again = tokio::time::timeout(SOON, spawn()).await.expect("it does not wait").unwrap().sandbox;
        assert_eq!((again.id, again.state), (id, State::Paused));
    }

    #[tokio::test]
    async fn the_connections_of_a_sandbox_on_disk_are_counted_on() {
        let (app, _, id) = app().await;
        app.control.pause(id.as_str(), Pause::default()).await.unwrap();
        app.control.egress.update(&id, None, &SandboxEgress::default());
        let none = HashSet::new();
        app.control.serve_all_egress().await.unwrap();
        assert_eq!(app.control.egress.unserved(&none), std::slice::from_ref(&id));
        app.control.destroy(id.as_str()).await.unwrap();
        app.control.serve_all_egress().await.unwrap();
        assert_eq!(app.control.egress.unserved(&none), []);
    }

    #[tokio::test]
    async fn a_resume_and_a_removal_end_what_hands_back_memory_and_do_not_wait_for_it() {
        for removes in [false, true] {
            let (app, provider, id) = app().await;
            let (control, paused) = (Arc::clone(&app.control), id.clone());
            let pause = TaskTracker::new().spawn(async move { control.pause(paused.as_str(), RECLAIM).await });
            until_it_reclaims(&provider).await;
            assert_eq!(app.state(&id).await, State::Paused);
            let changed = async {
                match removes {
                    false => drop(app.control.resume(id.as_str()).await.unwrap()),
                    true => app.control.destroy(id.as_str()).await.unwrap(),
                }
            };
            tokio::time::timeout(SOON, changed).await.expect("it does not wait");
            let ended = tokio::time::timeout(SOON, pause).await.expect("it ends").unwrap();
            assert!(matches!(&ended, Err(Error::Conflict(Conflict::NotPausedForReclaim { .. }))), "{ended:?}");
            assert_eq!(provider.reclaims.load(Ordering::SeqCst), 0);
        }
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_ends_what_hands_back_memory_and_not_the_pause() {
        let (app, provider, id) = app().await;
        let (control, paused) = (Arc::clone(&app.control), id.clone());
        let pause = TaskTracker::new().spawn(async move { control.pause(paused.as_str(), RECLAIM).await });
        until_it_reclaims(&provider).await;
        pause.abort();
        assert!(pause.await.is_err_and(|error| error.is_cancelled()));
        assert_eq!(provider.reclaims.load(Ordering::SeqCst), 0);
        assert_eq!(app.state(&id).await, State::Paused);
    }
}
