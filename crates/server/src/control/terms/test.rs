//! Ends of lifetimes under terms, and lifetimes that several set at once.

use domain::{SpawnOptions, Terms, Timestamp};

use super::*;
use crate::control::SpawnRequest;
use crate::control::policy::ORPHAN_GRACE;
use crate::test::harness::{TestApp, TestProvider};
use store::clock;

const MINUTE: Duration = Duration::from_secs(60);
/// Lifetime of a sandbox that was put away: the maximum.
const PUT_AWAY: Duration = Duration::from_secs(600);
/// The longest that a step of a test takes.
const SLACK: Duration = Duration::from_secs(30);

/// A service with one sandbox, which lives for a minute, is paused then, and wakes for a request.
struct One {
    app: TestApp,
    provider: Arc<TestProvider>,
    id: SandboxId,
}

impl One {
    async fn start() -> Self {
        let provider = TestProvider::new("mock");
        provider.allow_pauses();
        let app = TestApp::builder().provider(provider.clone()).start().await;
        let terms = Some(Terms { pauses_at_end: true, wakes: true, ..Terms::default() });
        let options = SpawnOptions { ttl: Some(MINUTE), ..SpawnOptions::default() };
        let spawned = app.control.spawn(SpawnRequest { options, terms, ..SpawnRequest::default() }).await.unwrap();
        Self { app, provider, id: spawned.sandbox.id }
    }

    fn control(&self) -> &Arc<Control> {
        &self.app.control
    }

    /// Lets the lifetime end.
    fn expire(&self) {
        self.control().clock().follow(i64::try_from(MINUTE.as_millis()).unwrap() + 1);
    }

    async fn expires_at(&self) -> Timestamp {
        self.control().store().sandbox(&self.id).await.unwrap().unwrap().expires_at
    }

    /// Checks that the sandbox ends in this time, and its box a little later.
    #[track_caller]
    fn ends_in(&self, row: Timestamp, expected: Duration) {
        let left = clock::between(self.control().now(), row);
        assert!(left <= expected && left + SLACK > expected, "{left:?} instead of {expected:?}");
        let deadline = self.provider.mock.deadline(&self.id).unwrap();
        let late = expected + ORPHAN_GRACE;
        assert!(deadline <= late && deadline + SLACK > late, "{deadline:?} instead of {late:?}");
    }

    /// Waits for all work that outlives its request.
    async fn finish(&self) {
        self.control().tasks().close();
        tokio::time::timeout(MINUTE, self.control().tasks().wait()).await.unwrap();
        assert!(self.control().ending.lock().is_empty());
    }
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_paused_at_its_end_is_destroyed() {
    let one = One::start().await;
    one.provider.refuse_pauses();
    one.expire();
    assert!(one.control().pause_at_end(&one.id).await.unwrap());
    one.finish().await;
    assert_eq!(one.app.state(&one.id).await, State::Destroyed);
}

#[tokio::test]
async fn a_sandbox_that_is_extended_before_its_turn_is_not_paused() {
    let one = One::start().await;
    one.expire();
    let turn = one.control().pauses.turns.take(&one.id).await;
    assert!(one.control().pause_at_end(&one.id).await.unwrap());
    for _ in 0..100 {
        // So that the pause waits for its turn by now.
        tokio::task::yield_now().await;
    }
    let extended = one.control().extend(one.id.as_str(), MINUTE * 2).await.unwrap();
    drop(turn);
    one.finish().await;
    assert_eq!((one.app.state(&one.id).await, one.expires_at().await), (State::Running, extended.expires_at));
    one.ends_in(extended.expires_at, MINUTE * 2);
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_paused_keeps_the_lifetime_that_it_had() {
    let one = One::start().await;
    let before = one.expires_at().await;
    one.provider.refuse_pauses();
    one.control().put_away(one.id.as_str()).await.unwrap_err();
    assert_eq!((one.app.state(&one.id).await, one.expires_at().await), (State::Running, before));
    one.ends_in(before, MINUTE);
}

#[tokio::test]
async fn a_request_resumes_a_sandbox_for_the_lifetime_that_was_agreed() {
    let one = One::start().await;
    assert!(one.control().put_away(one.id.as_str()).await.unwrap());
    let kept = one.expires_at().await;
    one.ends_in(kept, PUT_AWAY);
    one.provider.hold_still(true);
    one.control().stat_file(one.id.as_str(), "/").await.unwrap_err();
    assert_eq!((one.app.state(&one.id).await, one.expires_at().await), (State::Paused, kept), "it does not wake");
    one.provider.hold_still(false);
    one.control().stat_file(one.id.as_str(), "/").await.unwrap();
    assert_eq!(one.app.state(&one.id).await, State::Running);
    one.ends_in(one.expires_at().await, MINUTE);
}

#[tokio::test]
async fn connecting_never_shortens_whoever_comes_in_between() {
    let one = One::start().await;
    let found = one.control().sandbox(one.id.as_str()).await.unwrap();
    // Another caller comes after this one has looked.
    one.control().extend(one.id.as_str(), MINUTE * 5).await.unwrap();
    one.control().set_lifetime(&found, MINUTE * 2, true).await.unwrap();
    one.ends_in(one.expires_at().await, MINUTE * 5);
    let reopened = one.control().reopen(one.id.as_str(), MINUTE * 2).await.unwrap();
    assert!(!reopened.was_paused);
    one.ends_in(one.expires_at().await, MINUTE * 5);
    // A pause ends the lifetime, and the next one is as long as the caller says.
    one.control().put_away(one.id.as_str()).await.unwrap();
    assert!(one.control().reopen(one.id.as_str(), MINUTE * 2).await.unwrap().was_paused);
    one.ends_in(one.expires_at().await, MINUTE * 2);
}

#[tokio::test]
async fn pruning_pauses_what_is_to_be_paused() {
    let one = One::start().await;
    one.expire();
    assert_eq!(one.control().prune(None).await.unwrap(), 0);
    one.finish().await;
    assert_eq!(one.app.state(&one.id).await, State::Paused);
}

#[tokio::test]
async fn a_panic_leaves_no_mark() {
    let one = One::start().await;
    let ending = Ending::begin(one.control(), &one.id).unwrap();
    assert!(Ending::begin(one.control(), &one.id).is_none());
    let paused = one.control().tasks().spawn(async move {
        let _ending = ending;
        panic!("as a provider may");
    });
    paused.await.unwrap_err();
    assert!(Ending::begin(one.control(), &one.id).is_some());
}
