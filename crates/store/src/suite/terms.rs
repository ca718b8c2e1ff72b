//! Cases on terms of sandboxes, and on the filters of fronts that list by them.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::{PortAccess, ProcessDefaults, State, Terms};

use super::{admit, end, id, listed, sandbox, start, state_after};
use crate::clock::after;
use crate::{Applied, Change, ListFilter, Sandbox, Store};

fn terms(made_of: &str) -> Terms {
    Terms {
        made_of: made_of.to_owned(),
        defaults: ProcessDefaults {
            env: BTreeMap::from([("A".to_owned(), "\u{fc}\n\"".to_owned())]),
            user: Some("ann".to_owned()),
            workdir: Some("/srv".to_owned()),
        },
        pauses_at_end: true,
        wakes: true,
        ports: PortAccess::Token,
        lifetime: Some(Duration::from_millis(90_500)),
    }
}

/// Returns a sandbox with terms.
fn of(n: u8, made_of: &str) -> Sandbox {
    Sandbox { terms: Some(Box::new(terms(made_of))), ..sandbox(n, None) }
}

/// Returns terms as the store returns them with a sandbox.
fn without_env(made_of: &str) -> Terms {
    let mut terms = terms(made_of);
    terms.defaults.env = BTreeMap::new();
    terms
}

pub(super) async fn are_kept_with_a_sandbox(store: &dyn Store) {
    // One that is given a box that is there runs from its admission on, and has its terms from then on.
    admit(store, &Sandbox { state: State::Running, ..of(244, "base") }).await;
    admit(store, &of(245, "base")).await;
    for n in [244, 245] {
        let stored = store.sandbox(&id(n)).await.unwrap().unwrap();
        assert_eq!(stored.terms.as_deref(), Some(&without_env("base")));
        assert_eq!(store.env(&id(n)).await.unwrap(), terms("base").defaults.env);
    }
    assert_eq!(store.env(&id(98)).await.unwrap(), BTreeMap::new());
    for row in store.sandboxes(&ListFilter::default(), start()).await.unwrap().sandboxes {
        assert!(row.terms.is_none_or(|terms| terms.defaults.env.is_empty()), "a list has no environment");
    }
    let Applied::Done { sandbox, .. } = store.apply(&id(245), Change::Started).await.unwrap() else {
        panic!("it starts");
    };
    assert_eq!(sandbox.terms.as_deref(), Some(&without_env("base")), "a change returns them too");
    assert_eq!(store.env(&id(245)).await.unwrap(), terms("base").defaults.env);
    end(store, 244..=245).await;
}

pub(super) async fn decide_what_the_end_of_a_lifetime_is(store: &dyn Store) {
    let new = of(246, "base");
    admit(store, &new).await;
    state_after(store, &id(246), Change::Started).await.unwrap();
    let late = after(new.expires_at, Duration::from_secs(1));
    assert!(!store.sandbox(&id(246)).await.unwrap().unwrap().has_expired(late), "it is to be paused");
    let next = after(late, Duration::from_secs(60));
    let extended = Change::Extended { expires_at: next, at_least: false, now: late };
    assert_eq!(state_after(store, &id(246), extended).await, Some(State::Running));
    let until = after(next, Duration::from_secs(60));
    let paused = Change::Paused { until: Some(until), if_over_at: Some(next) };
    assert_eq!(state_after(store, &id(246), paused).await, Some(State::Paused));
    let paused = store.sandbox(&id(246)).await.unwrap().unwrap();
    assert_eq!((paused.expires_at, paused.has_expired(next), paused.has_expired(until)), (until, false, true));
    end(store, [246]).await;
}

pub(super) async fn are_no_reason_to_pause_what_was_extended(store: &dyn Store) {
    let new = of(243, "base");
    admit(store, &new).await;
    state_after(store, &id(243), Change::Started).await.unwrap();
    let (end_of, seconds) = (new.expires_at, Duration::from_secs);
    let expires_at = async || store.sandbox(&id(243)).await.unwrap().unwrap().expires_at;
    let extend = |by, at_least| Change::Extended { expires_at: after(end_of, seconds(by)), at_least, now: start() };
    state_after(store, &id(243), extend(60, false)).await.unwrap();
    let pause = |at| Change::Paused { until: Some(after(end_of, seconds(900))), if_over_at: Some(at) };
    assert_eq!(state_after(store, &id(243), pause(end_of)).await, None, "it was extended meanwhile");
    assert_eq!(expires_at().await, after(end_of, seconds(60)));
    // The longer of two lifetimes counts, if that is what is asked for.
    for (change, expected) in [(extend(30, true), 60), (extend(90, true), 90), (extend(30, false), 30)] {
        assert_eq!(state_after(store, &id(243), change).await, Some(State::Running));
        assert_eq!(expires_at().await, after(end_of, seconds(expected)));
    }
    // What could not be paused has its old end again, and what is taken up may have a new one.
    assert_eq!(state_after(store, &id(243), pause(after(end_of, seconds(30)))).await, Some(State::Paused));
    let resumed = |until| Change::Resumed { until };
    let old = after(end_of, seconds(30));
    assert_eq!(state_after(store, &id(243), resumed(Some(old))).await, Some(State::Running));
    assert_eq!(expires_at().await, old);
    assert_eq!(state_after(store, &id(243), resumed(None)).await, Some(State::Running));
    assert_eq!(expires_at().await, old);
    end(store, [243]).await;
}

pub(super) async fn are_filters_of_the_list(store: &dyn Store) {
    for n in 247..=249 {
        let mut new = if n == 248 { of(n, "base") } else { sandbox(n, None) };
        new.created_at = after(start(), Duration::from_secs(u64::from(n)));
        admit(store, &new).await;
        state_after(store, &id(n), Change::Started).await.unwrap();
    }
    state_after(store, &id(249), Change::Paused { until: None, if_over_at: None }).await.unwrap();
    let all = ListFilter::default;
    let from = |n: u64| Some(after(start(), Duration::from_secs(n)));
    for (filter, expected) in [
        (ListFilter { oldest_first: true, ..all() }, &[247, 248, 249][..]),
        (ListFilter { made_of: Some("base".to_owned()), ..all() }, &[248]),
        (ListFilter { made_of: Some("other".to_owned()), ..all() }, &[]),
        (ListFilter { states: vec![State::Running, State::Paused], ..all() }, &[249, 248, 247]),
        (ListFilter { states: vec![State::Paused], ..all() }, &[249]),
        (ListFilter { created_from: from(248), ..all() }, &[249, 248]),
        (ListFilter { created_from: from(250), ..all() }, &[]),
    ] {
        let expected: Vec<_> = expected.iter().map(|n| id(*n)).collect();
        assert_eq!(listed(store, &filter).await, expected, "{filter:?}");
    }
    let first = ListFilter { oldest_first: true, limit: Some(2), ..all() };
    let page = store.sandboxes(&first, start()).await.unwrap();
    let rest = ListFilter { oldest_first: true, after: page.next, ..all() };
    assert_eq!(listed(store, &rest).await, [id(249)]);
    end(store, 247..=249).await;
}
