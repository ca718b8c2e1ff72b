//! States of a sandbox, and the transitions between them.

use std::fmt;

/// The state of a sandbox.
///
/// ```text
/// Creating ──▶ Running ──▶ Destroying ──▶ Destroyed
///     │  │         │            ▲             ▲
///     │  └─────────┼────────────┘             │
///     └────────────┴──▶ Failed ───────────────┘
/// ```
///
/// `Running` goes to `Paused` and back, and `Paused` to wherever else `Running` goes.
///
/// `Creating` is stored before a provider is asked for a box and `Destroying`
/// before it is asked to remove one, so a crash between the two leaves a row
/// that a reconciler finishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// The provider is being asked for a box, or is about to be.
    Creating,
    /// The box is up and answers its provider.
    Running,
    /// The processes of the box are stopped where they are, or are about to be.
    Paused,
    /// The provider is being asked to remove the box, or is about to be.
    Destroying,
    /// The box is gone; only the row is left.
    Destroyed,
    /// A fault ended it; the reason is kept. It counts towards no limit.
    Failed,
}

/// An event in the life of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// The provider made the box.
    Started,
    /// A new lifetime was set.
    Extended,
    /// Its processes are to stop where they are.
    Paused,
    /// Its processes are to go on.
    Resumed,
    /// Its removal was requested, by a caller or by the service.
    StopRequested,
    /// The provider reports that nothing of it is left.
    Stopped,
    /// It could not be made, or a fault that the caller should see ended it.
    Broke,
}

/// The reason for removing a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// A caller requested it.
    Requested,
    /// The lifetime is over.
    Expired,
    /// The provider no longer has the box.
    Vanished,
    /// The caller of its spawn disconnected before the answer.
    Abandoned,
    /// The process that was making it died.
    Unfinished,
}

impl StopReason {
    /// Returns whether the reason still holds for a sandbox in `state`, whose lifetime is over if
    /// `is_over`. A removal is decided first and applied later; in between, the lifetime may be
    /// extended, or the box be finished.
    #[must_use]
    pub fn holds(self, state: State, is_over: bool) -> bool {
        match self {
            StopReason::Requested | StopReason::Vanished | StopReason::Abandoned => true,
            StopReason::Expired => is_over,
            StopReason::Unfinished => state == State::Creating,
        }
    }
}

/// An event that the state of the sandbox does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sandbox that is {from} does not allow {event:?}")]
pub struct InvalidTransition {
    /// State that the event met.
    pub from: State,
    /// Event that was refused.
    pub event: Event,
}

impl State {
    /// All states, in the order of their life.
    pub const ALL: [State; 6] =
        [State::Creating, State::Running, State::Paused, State::Destroying, State::Destroyed, State::Failed];

    /// Returns the state after `event`. The store, the service and the tests all call this
    /// function.
    ///
    /// # Errors
    /// [`InvalidTransition`] for an event that cannot happen in this state.
    pub fn after(self, event: Event) -> Result<State, InvalidTransition> {
        use {Event as E, State as S};
        match (self, event) {
            (S::Creating, E::Started) | (S::Running, E::Extended) | (S::Running | S::Paused, E::Resumed) => {
                Ok(S::Running)
            }
            (S::Running | S::Paused, E::Paused) => Ok(S::Paused),
            // Destroy is idempotent.
            (S::Creating | S::Running | S::Paused | S::Destroying, E::StopRequested) => Ok(S::Destroying),
            // A failed sandbox holds no place, and must not take one again while it is removed.
            (S::Failed | S::Destroyed, E::StopRequested) | (S::Destroying | S::Destroyed, E::Stopped) => {
                Ok(S::Destroyed)
            }
            (S::Creating | S::Running | S::Paused, E::Broke) => Ok(S::Failed),
            (from, event) => Err(InvalidTransition { from, event }),
        }
    }

    /// Returns whether a sandbox in this state counts towards the caps.
    #[must_use]
    pub fn is_active(self) -> bool {
        matches!(self, State::Creating | State::Running | State::Paused | State::Destroying)
    }

    /// Returns the state's name in the API and in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            State::Creating => "creating",
            State::Running => "running",
            State::Paused => "paused",
            State::Destroying => "destroying",
            State::Destroyed => "destroyed",
            State::Failed => "failed",
        }
    }

    /// Reads a name that [`State::as_str`] wrote; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[track_caller]
    fn check(from: State, event: Event, expected: Option<State>) {
        assert_eq!(from.after(event).ok(), expected, "{from} {event:?}");
    }

    #[test]
    fn destroy_is_idempotent() {
        check(State::Running, Event::StopRequested, Some(State::Destroying));
        check(State::Destroying, Event::StopRequested, Some(State::Destroying));
        check(State::Destroyed, Event::StopRequested, Some(State::Destroyed));
        check(State::Destroyed, Event::Stopped, Some(State::Destroyed));
    }

    #[test]
    fn what_is_destroyed_never_comes_back() {
        for event in [Event::Started, Event::Extended, Event::Paused, Event::Resumed, Event::Broke] {
            check(State::Destroyed, event, None);
            check(State::Destroying, event, None);
        }
    }

    #[test]
    fn a_failed_sandbox_can_be_deleted_and_nothing_else() {
        check(State::Failed, Event::StopRequested, Some(State::Destroyed));
        check(State::Failed, Event::Started, None);
        check(State::Failed, Event::Extended, None);
    }

    #[test]
    fn what_counts_no_longer_never_counts_again() {
        use Event as E;
        for from in State::ALL.into_iter().filter(|state| !state.is_active()) {
            for event in [E::Started, E::Extended, E::Paused, E::Resumed, E::StopRequested, E::Stopped, E::Broke] {
                assert!(!from.after(event).is_ok_and(State::is_active), "{from} {event:?}");
            }
        }
    }

    #[test]
    fn a_reason_that_no_longer_holds_removes_nothing() {
        assert!(!StopReason::Expired.holds(State::Running, false));
        assert!(StopReason::Expired.holds(State::Running, true));
        assert!(!StopReason::Unfinished.holds(State::Running, true));
        assert!(StopReason::Unfinished.holds(State::Creating, false));
        assert!(StopReason::Requested.holds(State::Running, false));
    }

    #[test]
    fn only_a_running_sandbox_can_be_extended() {
        for state in State::ALL {
            assert_eq!(state.after(Event::Extended).is_ok(), state == State::Running);
        }
    }

    #[test]
    fn only_what_runs_is_paused_and_what_is_paused_still_ends() {
        for state in State::ALL {
            let may = matches!(state, State::Running | State::Paused);
            check(state, Event::Paused, may.then_some(State::Paused));
            check(state, Event::Resumed, may.then_some(State::Running));
        }
        check(State::Paused, Event::StopRequested, Some(State::Destroying));
        check(State::Paused, Event::Broke, Some(State::Failed));
        check(State::Paused, Event::Started, None);
        assert!(State::Paused.is_active());
    }

    #[test]
    fn every_state_has_a_word_of_its_own() {
        for state in State::ALL {
            assert_eq!(State::parse(state.as_str()), Some(state));
        }
        assert_eq!(State::parse("asleep"), None);
    }
}
