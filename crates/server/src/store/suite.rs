//! What every engine must do: one suite, run on each.

mod pool;

use std::time::Duration;

use domain::{Caps, Denial, Metadata, OwnerId, Resources, SandboxId, State, StopReason, Timestamp};

use super::{Applied, Change, Sandbox, Store, Template, TemplateValues};
use crate::clock::{after, from_ms};

/// Runs every case. `open` opens the same store each time.
pub(super) async fn run(open: impl AsyncFn() -> Box<dyn Store>) {
    let store = open().await;
    let store = store.as_ref();
    what_was_admitted_is_read_back_as_it_was(store).await;
    caps_are_kept_whoever_comes_at_once(store).await;
    what_is_not_active_takes_no_place(store).await;
    the_rules_decide_on_the_state_that_is_stored(store).await;
    an_expired_sandbox_cannot_be_extended(store).await;
    a_reason_that_no_longer_holds_removes_nothing(store).await;
    what_is_due_comes_the_longest_over_first(store).await;
    a_step_of_the_clock_moves_only_what_is_alive(store).await;
    only_what_ended_long_ago_is_forgotten(store).await;
    the_list_is_newest_first_without_the_destroyed(store).await;
    templates_are_kept_by_name(store).await;
    pool::run(store).await;
    let id = store.id().clone();
    store.close().await;
    let reopened = open().await;
    assert_eq!(reopened.id(), &id, "a store keeps its name");
    assert!(!reopened.templates().await.unwrap().is_empty(), "a store keeps what it holds");
    reopened.close().await;
}

fn id(n: u8) -> SandboxId {
    SandboxId::from_entropy([n; 10])
}

fn start() -> Timestamp {
    from_ms(1_000_000)
}

fn sandbox(n: u8, owner: Option<&str>) -> Sandbox {
    Sandbox {
        id: id(n),
        state: State::Creating,
        provider: "mock".to_owned(),
        image: "host".to_owned(),
        resources: Resources { memory_mb: 512, vcpus: 2, disk_mb: 10, pids: 256 },
        metadata: Metadata::from([("k\"".to_owned(), "ü\n".to_owned())]),
        owner: owner.map(|owner| OwnerId::parse(owner).unwrap()),
        worker: "local".to_owned(),
        created_at: start(),
        expires_at: after(start(), Duration::from_secs(60)),
        ended_at: None,
        error: None,
    }
}

async fn admit(store: &dyn Store, sandbox: &Sandbox) {
    store.admit(sandbox, Caps::default()).await.unwrap().unwrap();
}

async fn state_after(store: &dyn Store, id: &SandboxId, change: Change) -> Option<State> {
    match store.apply(id, change).await.unwrap() {
        Applied::Done { sandbox, .. } => Some(sandbox.state),
        Applied::Refused(_) | Applied::Missing => None,
    }
}

fn requested() -> Change {
    Change::StopRequested { reason: StopReason::Requested, now: start() }
}

/// Leaves nothing active or listed behind.
async fn end(store: &dyn Store, ids: impl IntoIterator<Item = u8>) {
    for n in ids {
        store.apply(&id(n), requested()).await.unwrap();
        store.apply(&id(n), Change::Stopped { at: start() }).await.unwrap();
    }
}

async fn what_was_admitted_is_read_back_as_it_was(store: &dyn Store) {
    let new = sandbox(1, Some("alice"));
    admit(store, &new).await;
    assert_eq!(store.sandbox(&id(1)).await.unwrap(), Some(new));
    assert_eq!(store.sandbox(&id(99)).await.unwrap(), None);
    end(store, [1]).await;
}

async fn caps_are_kept_whoever_comes_at_once(store: &dyn Store) {
    let caps = Caps { max_sandboxes: 3, max_sandboxes_per_owner: 2 };
    let wanted: Vec<Sandbox> = (10..20).map(|n| sandbox(n, Some("bob"))).collect();
    let asked = wanted.iter().map(|new| store.admit(new, caps));
    let got = futures_util::future::join_all(asked).await;
    let denied: Vec<Denial> = got.into_iter().filter_map(|got| got.unwrap().err()).collect();
    assert_eq!(denied, [Denial::MaxSandboxesPerOwner; 8]);
    store.admit(&sandbox(20, None), caps).await.unwrap().unwrap();
    assert_eq!(store.admit(&sandbox(21, None), caps).await.unwrap(), Err(Denial::MaxSandboxes));
    assert_eq!(store.active_count("mock").await.unwrap(), 3);
    assert_eq!(store.active_count("native").await.unwrap(), 0);
    end(store, 10..=21).await;
}

async fn what_is_not_active_takes_no_place(store: &dyn Store) {
    let caps = Caps { max_sandboxes: 1, max_sandboxes_per_owner: 0 };
    admit(store, &sandbox(30, None)).await;
    state_after(store, &id(30), Change::Broke { error: "x".into(), at: start() }).await.unwrap();
    store.admit(&sandbox(31, None), caps).await.unwrap().unwrap();
    state_after(store, &id(31), requested()).await.unwrap();
    assert_eq!(store.admit(&sandbox(32, None), caps).await.unwrap(), Err(Denial::MaxSandboxes));
    state_after(store, &id(31), Change::Stopped { at: start() }).await.unwrap();
    store.admit(&sandbox(32, None), caps).await.unwrap().unwrap();
    end(store, 30..=32).await;
}

async fn the_rules_decide_on_the_state_that_is_stored(store: &dyn Store) {
    admit(store, &sandbox(40, None)).await;
    let later = after(start(), Duration::from_secs(600));
    let extended = Change::Extended { expires_at: later, now: start() };
    assert_eq!(state_after(store, &id(40), extended.clone()).await, None, "not while creating");
    assert_eq!(state_after(store, &id(40), Change::Started).await, Some(State::Running));
    assert_eq!(state_after(store, &id(40), extended.clone()).await, Some(State::Running));
    assert_eq!(store.sandbox(&id(40)).await.unwrap().unwrap().expires_at, later);
    assert_eq!(state_after(store, &id(40), requested()).await, Some(State::Destroying));
    assert_eq!(state_after(store, &id(40), extended).await, None, "not once it is being removed");
    assert_eq!(state_after(store, &id(40), Change::Stopped { at: start() }).await, Some(State::Destroyed));
    assert_eq!(state_after(store, &id(40), requested()).await, Some(State::Destroyed));
    assert_eq!(store.apply(&id(98), requested()).await.unwrap(), Applied::Missing);
}

async fn an_expired_sandbox_cannot_be_extended(store: &dyn Store) {
    let new = sandbox(50, None);
    admit(store, &new).await;
    state_after(store, &id(50), Change::Started).await.unwrap();
    let late = Change::Extended { expires_at: after(new.expires_at, Duration::from_secs(60)), now: new.expires_at };
    assert_eq!(store.apply(&id(50), late).await.unwrap(), Applied::Missing);
    assert_eq!(store.sandbox(&id(50)).await.unwrap().unwrap().expires_at, new.expires_at);
    end(store, [50]).await;
}

async fn a_reason_that_no_longer_holds_removes_nothing(store: &dyn Store) {
    let new = sandbox(55, None);
    admit(store, &new).await;
    state_after(store, &id(55), Change::Started).await.unwrap();
    let because = |reason, now| Change::StopRequested { reason, now };
    assert_eq!(state_after(store, &id(55), because(StopReason::Expired, start())).await, None, "it was extended");
    assert_eq!(state_after(store, &id(55), because(StopReason::Unfinished, start())).await, None, "it was finished");
    let over = because(StopReason::Expired, new.expires_at);
    assert_eq!(state_after(store, &id(55), over).await, Some(State::Destroying));
    end(store, [55]).await;
}

async fn what_is_due_comes_the_longest_over_first(store: &dyn Store) {
    for (n, seconds) in [(60, 30), (61, 10), (62, 20)] {
        let mut new = sandbox(n, None);
        new.expires_at = after(start(), Duration::from_secs(seconds));
        admit(store, &new).await;
    }
    let at = |seconds| after(start(), Duration::from_secs(seconds));
    assert_eq!(store.due(at(9), 10).await.unwrap(), []);
    assert_eq!(store.due(at(20), 10).await.unwrap(), [id(61), id(62)]);
    assert_eq!(store.due(at(99), 1).await.unwrap(), [id(61)]);
    end(store, 60..=62).await;
    assert_eq!(store.due(at(99), 10).await.unwrap(), [], "what is being removed is not due again");
}

async fn a_step_of_the_clock_moves_only_what_is_alive(store: &dyn Store) {
    admit(store, &sandbox(70, None)).await;
    admit(store, &sandbox(71, None)).await;
    end(store, [71]).await;
    assert_eq!(store.shift_expiry(-5_000).await.unwrap(), 1);
    let ends = async |n| store.sandbox(&id(n)).await.unwrap().unwrap().expires_at;
    assert_eq!(ends(70).await, after(start(), Duration::from_secs(55)));
    assert_eq!(ends(71).await, after(start(), Duration::from_secs(60)));
    end(store, [70]).await;
}

async fn only_what_ended_long_ago_is_forgotten(store: &dyn Store) {
    store.purge_ended(from_ms(i64::MAX)).await.unwrap();
    admit(store, &sandbox(80, None)).await;
    admit(store, &sandbox(81, None)).await;
    admit(store, &sandbox(82, None)).await;
    end(store, [80]).await;
    state_after(store, &id(81), Change::Broke { error: "x".into(), at: after(start(), Duration::from_secs(1)) }).await;
    assert_eq!(store.purge_ended(after(start(), Duration::from_secs(1))).await.unwrap(), 1);
    assert_eq!(store.sandbox(&id(80)).await.unwrap(), None);
    assert_eq!(store.purge_ended(after(start(), Duration::from_secs(2))).await.unwrap(), 1);
    assert!(store.sandbox(&id(82)).await.unwrap().is_some(), "what is alive is kept");
    end(store, [82]).await;
}

async fn the_list_is_newest_first_without_the_destroyed(store: &dyn Store) {
    for (n, seconds) in [(90, 5), (91, 7), (92, 7), (93, 6)] {
        let mut new = sandbox(n, None);
        new.created_at = after(start(), Duration::from_secs(seconds));
        admit(store, &new).await;
    }
    end(store, [93]).await;
    let listed: Vec<SandboxId> = store.sandboxes().await.unwrap().into_iter().map(|sandbox| sandbox.id).collect();
    assert_eq!(listed, [id(92), id(91), id(90)]);
    let oldest = store.in_state(State::Creating, 1).await.unwrap();
    assert_eq!(oldest.into_iter().map(|sandbox| sandbox.id).collect::<Vec<_>>(), [id(90)]);
    end(store, 90..=92).await;
}

async fn templates_are_kept_by_name(store: &dyn Store) {
    let values = TemplateValues {
        image: Some("host".to_owned()),
        ttl: Some(Duration::from_millis(1500)),
        memory_mb: Some(u32::MAX),
        ..TemplateValues::default()
    };
    let template = |name: &str| Template {
        name: name.to_owned(),
        values: values.clone(),
        created_at: start(),
        updated_at: start(),
    };
    assert!(store.insert_template(&template("b")).await.unwrap());
    assert!(store.insert_template(&template("a")).await.unwrap());
    assert!(!store.insert_template(&template("a")).await.unwrap(), "a name is taken once");
    assert_eq!(store.template("a").await.unwrap(), Some(template("a")));
    assert_eq!(store.templates().await.unwrap(), [template("a"), template("b")]);
    let later = after(start(), Duration::from_secs(9));
    let updated = store.update_template("a", &TemplateValues::default(), later).await.unwrap().unwrap();
    assert_eq!((updated.values, updated.created_at, updated.updated_at), (TemplateValues::default(), start(), later));
    assert_eq!(store.update_template("c", &values, later).await.unwrap(), None);
    assert!(store.delete_template("a").await.unwrap());
    assert!(!store.delete_template("a").await.unwrap());
    assert_eq!(store.template("a").await.unwrap(), None);
}
