//! Setting the deadlines of boxes of the warm pool after their spawns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{SandboxId, State};
use futures_util::{StreamExt, stream};
use providers::{Chain, Guest};

use crate::control::policy::ORPHAN_GRACE;
use crate::control::service::Control;
use crate::control::workers::inventory::within;
use store::clock;

/// Deadline of an agent for its answer.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Longest time that a deadline waits for spawns that follow each other.
const YIELD_MAX: Duration = Duration::from_secs(5);
/// Maximum number of agents that are asked at once.
const AT_ONCE: usize = 4;

impl Control {
    /// Has a box get its deadline once no spawns follow each other, at the end of the server at the latest.
    pub(in crate::control) fn set_deadline_later(self: &Arc<Self>, id: &SandboxId, guest: Arc<dyn Guest>) {
        if self.warm.deadlines.add(id.clone(), guest) {
            let control = Arc::clone(self);
            self.tasks.spawn(async move { control.set_late_deadlines().await });
        }
    }

    async fn set_late_deadlines(&self) {
        loop {
            let _ = tokio::time::timeout(YIELD_MAX, self.spawns_pass()).await;
            let next = self.warm.deadlines.next();
            if next.is_empty() {
                return;
            }
            let set = async |id: SandboxId| {
                let _turn = self.pauses.turns.take(&id).await;
                let _lifetime = self.pauses.lifetimes.take(&id).await;
                self.set_late_deadline(&id).await;
            };
            stream::iter(next).for_each_concurrent(AT_ONCE, set).await;
        }
    }

    /// Waits until no spawn is under way or likely to follow at once.
    async fn spawns_pass(&self) {
        loop {
            self.spawns.ended().await;
            match self.warm.pool.rest_of_all(Instant::now()) {
                Some(rest) => tokio::time::sleep(rest).await,
                None => return,
            }
        }
    }

    /// Has the box of a sandbox get the deadline that it waits for, if it does. The caller has the turn of
    /// the sandbox, and the lock of its lifetime.
    pub(in crate::control) async fn set_late_deadline(&self, id: &SandboxId) {
        let Some(guest) = self.warm.deadlines.of(id) else { return };
        // An extension may have come before this deadline was waited for.
        let row = self.store.sandbox(id).await.ok().flatten().filter(|row| row.state == State::Running);
        if let Some(row) = row {
            let left = clock::between(self.now(), row.expires_at) + ORPHAN_GRACE;
            if let Err(error) = within(ANSWER_WAIT, guest.set_deadline(left)).await {
                // It has ended, or is removed when its sandbox is.
                tracing::debug!(%id, error = %Chain(&error), "cannot set the deadline of a warm box");
            }
        }
        self.warm.deadlines.remove(id);
    }

    /// Forgets the deadline that the box of a sandbox waits for, since it gets another: from the return on
    /// the late one is set no more.
    pub(in crate::control) async fn forget_late_deadline(&self, id: &SandboxId) {
        if self.warm.deadlines.of(id).is_some() {
            let _turn = self.pauses.turns.take(id).await;
            self.warm.deadlines.remove(id);
        }
    }
}

#[cfg(test)]
mod test {
    use domain::SpawnOptions;
    use providers::mock::Mock;

    use super::*;
    use crate::control::Sandbox;
    use crate::control::SpawnRequest;
    use crate::control::policy::WarmEntry;
    use crate::test::harness::{TestApp, policy};
    use store::clock::{Clock, SteadyClock};

    const MINUTE: Duration = Duration::from_secs(60);

    /// A service that keeps one box ready.
    struct Pool {
        app: TestApp,
        mock: Mock,
    }

    impl Pool {
        async fn keeping_for(max_age: Duration) -> Self {
            let clock = SteadyClock::start();
            let mock = Mock::new(move || clock.now());
            let (name, options) = ("a".to_owned(), SpawnOptions::default());
            let entry = WarmEntry { name, template: None, options, count: 1, max_age, snapshot: false };
            let policy = crate::control::Policy { warm_pool: vec![entry], ..policy() };
            let app = TestApp::builder().provider(Arc::new(mock.clone())).policy(policy).start().await;
            app.control.keep_warm(0).await.unwrap();
            Self { app, mock }
        }

        /// Takes the box.
        async fn spawn(&self, ttl: Duration) -> Sandbox {
            let options = SpawnOptions { ttl: Some(ttl), ..SpawnOptions::default() };
            let spawned = self.app.control.spawn(SpawnRequest { options, ..SpawnRequest::default() }).await.unwrap();
            assert!(spawned.phases.iter().any(|phase| phase.name == "warm_box"), "{:?}", spawned.phases);
            spawned.sandbox
        }

        fn deadline(&self, id: &SandboxId) -> Duration {
            self.mock.deadline(id).unwrap()
        }

        /// Waits for all work that outlives its request.
        async fn finish(&self) {
            self.app.control.tasks().close();
            tokio::time::timeout(MINUTE, self.app.control.tasks().wait()).await.unwrap();
            assert!(self.app.control.warm.deadlines.next().is_empty());
        }
    }

    #[tokio::test]
    async fn a_box_gets_the_deadline_of_its_sandbox_after_the_spawn_and_has_a_later_one_before() {
        let pool = Pool::keeping_for(MINUTE * 5).await;
        let sandbox = pool.spawn(MINUTE / 2).await;
        assert_eq!(pool.deadline(&sandbox.id), MINUTE * 5 + MINUTE + ORPHAN_GRACE);
        pool.finish().await;
        let left = pool.deadline(&sandbox.id);
        assert!(left <= MINUTE / 2 + ORPHAN_GRACE && left > ORPHAN_GRACE, "{left:?}");
    }

    #[tokio::test]
    async fn one_that_would_end_before_its_sandbox_gets_it_before_the_answer() {
        let pool = Pool::keeping_for(MINUTE * 5).await;
        let sandbox = pool.spawn(MINUTE * 7).await;
        assert_eq!(pool.deadline(&sandbox.id), MINUTE * 7 + ORPHAN_GRACE);
        pool.finish().await;
        assert_eq!(pool.deadline(&sandbox.id), MINUTE * 7 + ORPHAN_GRACE);
    }

    #[tokio::test]
    async fn an_extension_that_comes_first_is_not_undone() {
        let pool = Pool::keeping_for(MINUTE * 5).await;
        let sandbox = pool.spawn(MINUTE / 2).await;
        pool.app.control.extend(sandbox.id.as_str(), MINUTE * 2).await.unwrap();
        pool.finish().await;
        assert_eq!(pool.deadline(&sandbox.id), MINUTE * 2 + ORPHAN_GRACE);
    }

    #[tokio::test]
    async fn a_sandbox_that_is_destroyed_first_leaves_nothing() {
        let pool = Pool::keeping_for(MINUTE * 5).await;
        let sandbox = pool.spawn(MINUTE / 2).await;
        pool.app.control.destroy(sandbox.id.as_str()).await.unwrap();
        pool.finish().await;
        assert_eq!(pool.mock.deadline(&sandbox.id), None);
    }

    #[tokio::test]
    async fn a_box_that_has_died_is_found_out_without_being_asked() {
        let pool = Pool::keeping_for(MINUTE * 5).await;
        let dead = pool.app.control.warm.pool.members().pop().unwrap();
        pool.mock.die(&dead);
        let sandbox = pool.spawn(MINUTE / 2).await;
        let figures = &pool.app.control.warm_figures()[0];
        assert_eq!((figures.hits, figures.misses, figures.replaced), (0, 1, 1));
        pool.finish().await;
        assert_eq!(pool.mock.deadline(&sandbox.id), None, "it was made for the sandbox, with its deadline");
    }
}
