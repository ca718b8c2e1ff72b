//! Test suite that every engine passes.

mod audit;
mod builds;
pub(super) mod kept;
mod keys;
mod pool;
mod secrets;
mod snapshots;
mod templates;
mod terms;
mod workers;

pub(crate) use workers::{here, placement};

use std::time::Duration;

use domain::{
    Caps, Denial, EgressEntry, EgressMode, EgressPolicy, Metadata, OwnerId, Quota, Resources, SandboxEgress, SandboxId,
    SecretUse, State, StopReason, Timestamp, WorkerId,
};

use super::admission::KEY_LIFETIME;
use super::{
    Admitted, Applied, Change, IdempotencyKey, ListFilter, NewSandbox, Page, QuotaSummary, Sandbox, Store,
    TemplateFilter,
};
use crate::clock::{after, from_ms};

/// Runs every case. `open` opens the same store each time.
pub(super) async fn run(open: impl AsyncFn() -> Box<dyn Store>) {
    let store = open().await;
    let store = store.as_ref();
    workers::here(store).await;
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
    sandboxes_in_a_state_are_read_in_pages_oldest_first(store).await;
    ids_are_those_of_the_worker_the_provider_and_the_states(store).await;
    what_has_expired_is_not_listed(store).await;
    filters_of_the_list_hold_together(store).await;
    a_list_in_parts_is_the_list(store).await;
    counts_are_what_counting_would_give(store).await;
    a_quota_overrides_the_global_cap_at_once(store).await;
    quotas_are_saved_whole(store).await;
    a_key_names_one_sandbox_of_one_owner_for_a_day(store).await;
    a_key_is_free_when_nobody_got_its_sandbox(store).await;
    policies_on_connections_are_kept_with_a_sandbox(store).await;
    builds::run(store).await;
    templates::are_kept_by_name(store).await;
    templates::have_owners_whose_names_do_not_meet(store).await;
    terms::are_kept_with_a_sandbox(store).await;
    terms::decide_what_the_end_of_a_lifetime_is(store).await;
    terms::are_no_reason_to_pause_what_was_extended(store).await;
    terms::are_filters_of_the_list(store).await;
    keys::run(store).await;
    secrets::are_kept_by_name(store).await;
    secrets::an_authority_is_kept_with_a_sandbox(store).await;
    snapshots::run(store).await;
    workers::run(store).await;
    workers::leases_follow_the_rules(store).await;
    workers::a_sandbox_goes_where_the_rules_say(store).await;
    workers::a_sandbox_that_its_worker_never_heard_of_goes_to_another(store).await;
    workers::a_worker_remembers_what_it_was_told(store).await;
    pool::run(store).await;
    audit::a_row_is_read_back_as_it_was_written(store).await;
    audit::filters_take_every_text_literally(store).await;
    audit::filters_are_met_all_at_once(store).await;
    audit::a_page_stays_where_it_was_while_rows_come_and_go(store).await;
    audit::a_flood_of_some_leaves_the_admin_its_half_and_the_other_way_round(store).await;
    audit::a_page_of_a_long_history_is_quick(store).await;
    let last_event_id = audit::ids_of_events_are_given_once_and_rise(store).await;
    store.check().await.expect("a store that is open is well");
    let id = store.id().clone();
    store.close().await;
    let reopened = open().await;
    assert_eq!(reopened.id(), &id, "a store keeps its name");
    assert!(
        !reopened.templates(&TemplateFilter::All, None, 9).await.unwrap().is_empty(),
        "a store keeps what it holds"
    );
    assert!(reopened.reserve_event_ids(1).await.unwrap().start >= last_event_id, "event ids rise across restarts");
    reopened.close().await;
}

fn id(n: u8) -> SandboxId {
    SandboxId::from_entropy([n; 10])
}

fn start() -> Timestamp {
    from_ms(1_000_000)
}

/// Returns a sandbox that is being created.
pub(super) fn sandbox(n: u8, owner: Option<&str>) -> Sandbox {
    Sandbox {
        id: id(n),
        state: State::Creating,
        provider: "mock".to_owned(),
        image: "host".to_owned(),
        resources: Resources { memory_mb: 512, vcpus: 2, disk_mb: 10, pids: 256 },
        metadata: Metadata::from([("k\"".to_owned(), "ü\n".to_owned())]),
        owner: owner.map(|owner| OwnerId::parse(owner).unwrap()),
        worker: WorkerId::local(),
        created_at: start(),
        expires_at: after(start(), Duration::from_secs(60)),
        ended_at: None,
        error: None,
        auto_pause: None,
        terms: None,
    }
}

fn new(sandbox: Sandbox, caps: Caps) -> NewSandbox {
    NewSandbox {
        egress: SandboxEgress::default(),
        sandbox,
        caps,
        key: None,
        placement: workers::placement(),
        pool: None,
    }
}

async fn admit(store: &dyn Store, sandbox: &Sandbox) {
    assert_eq!(store.admit(&new(sandbox.clone(), Caps::default())).await.unwrap(), Admitted::Yes(WorkerId::local()));
}

/// Returns the reason for which an admission is denied.
async fn denial(store: &dyn Store, sandbox: Sandbox, caps: Caps) -> Option<Denial> {
    match store.admit(&new(sandbox, caps)).await.unwrap() {
        Admitted::Yes(_) => None,
        Admitted::Denied(denial, _) => Some(denial),
        Admitted::KeyTaken | Admitted::NoWorker => panic!("no key was given, and there is a worker"),
    }
}

async fn listed(store: &dyn Store, filter: &ListFilter) -> Vec<SandboxId> {
    let page = store.sandboxes(filter, start()).await.unwrap();
    page.sandboxes.into_iter().map(|sandbox| sandbox.id).collect()
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

/// Ends sandboxes, so that no active or listed one is left.
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
    let asked = (10..20).map(|n| denial(store, sandbox(n, Some("bob")), caps));
    let denied: Vec<Denial> = futures_util::future::join_all(asked).await.into_iter().flatten().collect();
    assert_eq!(denied, [Denial::MaxSandboxesPerOwner; 8]);
    assert_eq!(denial(store, sandbox(20, None), caps).await, None);
    assert_eq!(denial(store, sandbox(21, None), caps).await, Some(Denial::MaxSandboxes));
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.active, counts.by_provider["mock"], counts.by_worker["local"]), (3, 3, 3));
    assert_eq!(counts.by_state["creating"], 3);
    let bob = OwnerId::parse("bob").unwrap();
    let room = store.room(Some(&bob), caps).await.unwrap();
    assert_eq!((room.active.total, room.active.owner, room.caps), (3, Some(2), caps));
    end(store, 10..=21).await;
}

async fn what_is_not_active_takes_no_place(store: &dyn Store) {
    let caps = Caps { max_sandboxes: 1, max_sandboxes_per_owner: 0 };
    admit(store, &sandbox(30, None)).await;
    state_after(store, &id(30), Change::Broke { error: "x".into(), at: start() }).await.unwrap();
    assert_eq!(denial(store, sandbox(31, None), caps).await, None);
    state_after(store, &id(31), requested()).await.unwrap();
    assert_eq!(denial(store, sandbox(32, None), caps).await, Some(Denial::MaxSandboxes));
    state_after(store, &id(31), Change::Stopped { at: start() }).await.unwrap();
    assert_eq!(denial(store, sandbox(32, None), caps).await, None);
    end(store, 30..=32).await;
}

async fn the_rules_decide_on_the_state_that_is_stored(store: &dyn Store) {
    admit(store, &sandbox(40, None)).await;
    let later = after(start(), Duration::from_secs(600));
    let extended = Change::Extended { expires_at: later, at_least: false, now: start() };
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
    let later = after(new.expires_at, Duration::from_secs(60));
    let late = Change::Extended { expires_at: later, at_least: false, now: new.expires_at };
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
    assert_eq!(store.shift_times(-5_000).await.unwrap(), 1);
    let ends = async |n| store.sandbox(&id(n)).await.unwrap().unwrap().expires_at;
    assert_eq!(ends(70).await, after(start(), Duration::from_secs(55)));
    assert_eq!(ends(71).await, after(start(), Duration::from_secs(60)));
    end(store, [70]).await;
}

async fn only_what_ended_long_ago_is_forgotten(store: &dyn Store) {
    store.purge_ended(from_ms(i64::MAX), start()).await.unwrap();
    admit(store, &sandbox(80, None)).await;
    admit(store, &sandbox(81, None)).await;
    admit(store, &sandbox(82, None)).await;
    end(store, [80]).await;
    state_after(store, &id(81), Change::Broke { error: "x".into(), at: after(start(), Duration::from_secs(1)) }).await;
    assert_eq!(store.purge_ended(after(start(), Duration::from_secs(1)), start()).await.unwrap(), 1);
    assert_eq!(store.sandbox(&id(80)).await.unwrap(), None);
    assert_eq!(store.purge_ended(after(start(), Duration::from_secs(2)), start()).await.unwrap(), 1);
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
    assert_eq!(listed(store, &ListFilter::default()).await, [id(92), id(91), id(90)]);
    end(store, 90..=92).await;
}

async fn sandboxes_in_a_state_are_read_in_pages_oldest_first(store: &dyn Store) {
    for (n, seconds) in [(186, 7), (187, 5), (188, 7), (189, 6), (190, 7)] {
        let mut new = sandbox(n, None);
        new.created_at = after(start(), Duration::from_secs(seconds));
        admit(store, &new).await;
    }
    end(store, [189]).await;
    let mut pages = Vec::new();
    let mut position = None;
    loop {
        let page = store.in_state(State::Creating, position, 2).await.unwrap();
        pages.push(page.sandboxes.into_iter().map(|sandbox| sandbox.id).collect::<Vec<_>>());
        // What was read may change its state before the next page.
        end(store, [187, 186]).await;
        position = page.next;
        if position.is_none() {
            break;
        }
    }
    assert_eq!(pages, [vec![id(187), id(186)], vec![id(188), id(190)]]);
    let all = store.in_state(State::Destroyed, None, 1000).await.unwrap();
    assert!(all.next.is_none() && all.sandboxes.len() >= 3);
    assert_eq!(store.in_state(State::Paused, None, 1).await.unwrap(), Page::default());
    end(store, [188, 190]).await;
}

async fn ids_are_those_of_the_worker_the_provider_and_the_states(store: &dyn Store) {
    for n in 191..=194 {
        admit(store, &sandbox(n, None)).await;
    }
    let paused = [Change::Started, Change::Paused { until: None, if_over_at: None }];
    for (n, changes) in [(192, &paused[..1]), (193, &paused[..])] {
        for change in changes {
            state_after(store, &id(n), change.clone()).await.unwrap();
        }
    }
    end(store, [194]).await;
    let with_box = [State::Creating, State::Running, State::Paused];
    for (states, worker, provider, expected) in [
        (&with_box[..], "local", None, &[191, 192, 193][..]),
        (&with_box, "local", Some("mock"), &[191, 192, 193]),
        (&with_box[1..], "local", Some("mock"), &[192, 193]),
        (&[State::Paused], "local", None, &[193]),
        (&with_box, "local", Some("native"), &[]),
        (&with_box, "w", None, &[]),
    ] {
        let mut found = store.ids_in(states, &WorkerId::parse(worker).unwrap(), provider).await.unwrap();
        found.sort_unstable();
        let expected: Vec<SandboxId> = expected.iter().map(|n| id(*n)).collect();
        assert_eq!(found, expected, "{states:?} {worker} {provider:?}");
    }
    end(store, 191..=193).await;
}

async fn what_has_expired_is_not_listed(store: &dyn Store) {
    admit(store, &sandbox(100, None)).await;
    admit(store, &sandbox(101, None)).await;
    state_after(store, &id(101), Change::Broke { error: "x".into(), at: start() }).await.unwrap();
    let late = store.sandboxes(&ListFilter::default(), after(start(), Duration::from_secs(60))).await.unwrap();
    let ids: Vec<_> = late.sandboxes.into_iter().map(|sandbox| sandbox.id).collect();
    assert_eq!(ids, [id(101)], "a failed one is listed with its reason");
    end(store, 100..=101).await;
    assert_eq!(store.sandbox(&id(101)).await.unwrap().unwrap().state, State::Destroyed);
}

async fn filters_of_the_list_hold_together(store: &dyn Store) {
    let carol = OwnerId::parse("carol").unwrap();
    let labelled = |n, owner, label: &str| {
        let mut new = sandbox(n, owner);
        new.metadata.insert("a.b".to_owned(), label.to_owned());
        new
    };
    admit(store, &labelled(110, Some("carol"), "1")).await;
    admit(store, &labelled(111, Some("carol"), "2")).await;
    admit(store, &labelled(112, None, "1")).await;
    state_after(store, &id(111), Change::Started).await.unwrap();
    let all = ListFilter::default;
    let of_carol = ListFilter { owner: Some(carol.clone()), ..all() };
    assert_eq!(listed(store, &of_carol).await, [id(111), id(110)]);
    assert_eq!(listed(store, &ListFilter { state: Some(State::Creating), ..of_carol }).await, [id(110)]);
    let label = |value: &str| Metadata::from([("a.b".to_owned(), value.to_owned())]);
    assert_eq!(listed(store, &ListFilter { metadata: label("1"), ..all() }).await, [id(112), id(110)]);
    let of_carol = ListFilter { metadata: label("1"), owner: Some(carol), ..all() };
    assert_eq!(listed(store, &of_carol).await, [id(110)]);
    assert_eq!(listed(store, &ListFilter { metadata: label("%"), ..all() }).await, []);
    assert_eq!(listed(store, &ListFilter { provider: Some("native".to_owned()), ..all() }).await, []);
    end(store, 110..=112).await;
}

async fn a_list_in_parts_is_the_list(store: &dyn Store) {
    // Several of the same millisecond, to test their order.
    for n in 120..127 {
        admit(store, &sandbox(n, None)).await;
    }
    let whole = listed(store, &ListFilter::default()).await;
    assert_eq!(whole.len(), 7);
    for limit in 1..=8 {
        let (mut parts, mut after) = (Vec::new(), None);
        loop {
            let filter = ListFilter { limit: Some(limit), after, ..ListFilter::default() };
            let page = store.sandboxes(&filter, start()).await.unwrap();
            assert!(page.sandboxes.len() <= limit as usize);
            parts.extend(page.sandboxes.into_iter().map(|sandbox| sandbox.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(parts, whole, "in parts of {limit}");
    }
    // Rows inserted in between do not move the later pages.
    let first = ListFilter { limit: Some(3), ..ListFilter::default() };
    let page = store.sandboxes(&first, start()).await.unwrap();
    admit(store, &sandbox(127, None)).await;
    let rest = listed(store, &ListFilter { after: page.next, ..ListFilter::default() }).await;
    assert_eq!(rest, whole[3..]);
    end(store, 120..=127).await;
}

async fn counts_are_what_counting_would_give(store: &dyn Store) {
    let before = store.counts().await.unwrap();
    assert_eq!(before.active, 0);
    // All paths through the states.
    for n in 130..142 {
        admit(store, &sandbox(n, (n % 2 == 0).then_some("dave"))).await;
        let steps = [
            vec![],
            vec![Change::Started],
            vec![Change::Broke { error: "x".into(), at: start() }],
            vec![Change::Started, Change::Broke { error: "x".into(), at: start() }, requested()],
            vec![requested()],
            vec![Change::Started, requested(), requested(), Change::Stopped { at: start() }, requested()],
        ];
        for step in &steps[usize::from(n % 6)] {
            store.apply(&id(n), step.clone()).await.unwrap();
        }
        let (mut active, mut of_dave) = (0, 0);
        for other in 130..=n {
            let row = store.sandbox(&id(other)).await.unwrap().unwrap();
            active += u64::from(row.state.is_active());
            of_dave += u64::from(row.state.is_active() && row.owner.is_some());
        }
        let counts = store.counts().await.unwrap();
        assert_eq!((counts.active, counts.by_provider.get("mock").copied().unwrap_or(0)), (active, active));
        let dave = OwnerId::parse("dave").unwrap();
        assert_eq!(store.room(Some(&dave), Caps::default()).await.unwrap().active.owner, Some(of_dave));
    }
    end(store, 130..142).await;
    let after = store.counts().await.unwrap();
    assert_eq!((after.active, after.by_provider.len(), after.by_worker.len()), (0, 0, 0));
    assert_eq!(after.by_state.keys().collect::<Vec<_>>(), ["destroyed"]);
    assert_eq!(after.by_state["destroyed"], before.by_state["destroyed"] + 12);
}

async fn a_quota_overrides_the_global_cap_at_once(store: &dyn Store) {
    let caps = Caps { max_sandboxes: 0, max_sandboxes_per_owner: 1 };
    let erin = OwnerId::parse("erin").unwrap();
    let two = Quota { max_sandboxes: 2, ..Quota::default() };
    assert_eq!(denial(store, sandbox(150, Some("erin")), caps).await, None);
    assert_eq!(denial(store, sandbox(151, Some("erin")), caps).await, Some(Denial::MaxSandboxesPerOwner));
    store.save_quota(&erin, &two, start(), 2).await.unwrap();
    assert_eq!(denial(store, sandbox(151, Some("erin")), caps).await, None);
    assert_eq!(denial(store, sandbox(152, Some("erin")), caps).await, Some(Denial::MaxSandboxesPerOwner));
    assert_eq!(denial(store, sandbox(152, Some("erin")), Caps::default()).await, Some(Denial::MaxSandboxesPerOwner));
    store.save_quota(&erin, &Quota::default(), start(), 2).await.unwrap();
    assert_eq!(denial(store, sandbox(152, Some("erin")), caps).await, Some(Denial::MaxSandboxesPerOwner));
    assert!(store.delete_quota(&erin).await.unwrap());
    end(store, 150..=152).await;
}

async fn quotas_are_saved_whole(store: &dyn Store) {
    let frank = OwnerId::parse("frank").unwrap();
    let quota = |max_sandboxes, ttl, exec| Quota {
        max_sandboxes,
        max_ttl: Duration::from_secs(ttl),
        max_exec_timeout: Duration::from_secs(exec),
        max_memory_mb: ttl as u32 * 3,
        max_vcpus: ttl as u32 * 2,
        max_disk_mb: exec as u32,
    };
    assert_eq!(store.quota(&frank).await.unwrap(), None);
    assert!(!store.delete_quota(&frank).await.unwrap());
    let saved = store.save_quota(&frank, &quota(3, 60, 0), start(), 2).await.unwrap().unwrap();
    assert_eq!((saved.quota, saved.created_at, saved.updated_at), (quota(3, 60, 0), start(), start()));
    let later = after(start(), Duration::from_secs(1));
    let saved = store.save_quota(&frank, &quota(0, 0, 9), later, 2).await.unwrap().unwrap();
    assert_eq!((saved.quota, saved.created_at, saved.updated_at), (quota(0, 0, 9), start(), later));
    assert_eq!(store.quota(&frank).await.unwrap(), Some(saved.clone()));
    store.save_quota(&OwnerId::parse("zoë").unwrap(), &quota(1, 1, 0), start(), 2).await.unwrap();
    let third = OwnerId::parse("x").unwrap();
    assert_eq!(store.save_quota(&third, &quota(1, 1, 0), start(), 2).await.unwrap(), None, "there are two");
    assert!(store.save_quota(&frank, &quota(0, 0, 9), later, 2).await.unwrap().is_some(), "it is no new one");
    assert_eq!(store.quotas(None, 1).await.unwrap().len(), 1);
    assert_eq!(store.quotas(Some(&frank), 9).await.unwrap()[0].owner.as_str(), "zoë");
    let owners: Vec<String> = store.quotas(None, 9).await.unwrap().iter().map(|own| own.owner.to_string()).collect();
    assert_eq!(owners, ["frank", "zoë"]);
    let summary = store.quota_summary().await.unwrap();
    assert_eq!((summary.total, summary.with_max_sandboxes), (2, 1));
    assert_eq!((summary.with_max_ttl, summary.with_max_exec_timeout), (1, 1));
    for own in store.quotas(None, 9).await.unwrap() {
        assert!(store.delete_quota(&own.owner).await.unwrap());
    }
    assert_eq!(store.quota_summary().await.unwrap(), QuotaSummary::default());
}

async fn a_key_names_one_sandbox_of_one_owner_for_a_day(store: &dyn Store) {
    let keyed = |n, owner, request: &str, at| {
        let mut sandbox = sandbox(n, owner);
        sandbox.created_at = at;
        let key = IdempotencyKey { key: "k".to_owned(), request: request.to_owned() };
        NewSandbox {
            egress: SandboxEgress::default(),
            sandbox,
            caps: Caps::default(),
            key: Some(key),
            placement: workers::placement(),
            pool: None,
        }
    };
    let gina = OwnerId::parse("gina").unwrap();
    let day = after(start(), KEY_LIFETIME);
    assert_eq!(store.admit(&keyed(160, Some("gina"), "r", start())).await.unwrap(), Admitted::Yes(WorkerId::local()));
    assert_eq!(store.admit(&keyed(161, Some("gina"), "r", start())).await.unwrap(), Admitted::KeyTaken);
    assert_eq!(store.sandbox(&id(161)).await.unwrap(), None);
    assert_eq!(store.keyed(Some(&gina), "k", start()).await.unwrap(), Some(("r".to_owned(), id(160))));
    assert_eq!(store.keyed(None, "k", start()).await.unwrap(), None, "owners have keys of their own");
    assert_eq!(store.admit(&keyed(162, None, "s", start())).await.unwrap(), Admitted::Yes(WorkerId::local()));
    assert_eq!(store.keyed(Some(&gina), "k", day).await.unwrap(), None, "it is free after a day");
    assert_eq!(store.admit(&keyed(163, Some("gina"), "t", day)).await.unwrap(), Admitted::Yes(WorkerId::local()));
    assert_eq!(store.keyed(Some(&gina), "k", day).await.unwrap(), Some(("t".to_owned(), id(163))));
    end(store, 160..=163).await;
    assert!(store.keyed(Some(&gina), "k", day).await.unwrap().is_some(), "its caller had received it");
    store.purge_ended(from_ms(0), after(day, KEY_LIFETIME)).await.unwrap();
    assert_eq!(store.keyed(Some(&gina), "k", day).await.unwrap(), None, "old ones are forgotten");
}

async fn a_key_is_free_when_nobody_got_its_sandbox(store: &dyn Store) {
    let because = |reason| Change::StopRequested { reason, now: start() };
    let ends = [
        Change::Broke { error: "x".into(), at: start() },
        because(StopReason::Abandoned),
        because(StopReason::Unfinished),
    ];
    for (n, end) in (170..).zip(ends) {
        let key = IdempotencyKey { key: "again".to_owned(), request: "r".to_owned() };
        let new = NewSandbox {
            egress: SandboxEgress::default(),
            sandbox: sandbox(n, None),
            caps: Caps::default(),
            key: Some(key),
            placement: workers::placement(),
            pool: None,
        };
        assert_eq!(store.admit(&new).await.unwrap(), Admitted::Yes(WorkerId::local()));
        store.apply(&id(n), end).await.unwrap();
        assert_eq!(store.keyed(None, "again", start()).await.unwrap(), None);
    }
    end(store, 170..=172).await;
}

async fn policies_on_connections_are_kept_with_a_sandbox(store: &dyn Store) {
    let policy = |mode, allow: &[&str]| EgressPolicy {
        mode,
        allow: allow.iter().map(|text| EgressEntry::parse(text).unwrap()).collect(),
        secrets: vec![SecretUse::parse("key@a.example").unwrap()],
        ..EgressPolicy::default()
    };
    let template = policy(EgressMode::AllowList, &["*.a.example:443", "@packages"]);
    let egress = SandboxEgress { template: Some(template.clone()), own: policy(EgressMode::Open, &[]) };
    let with =
        |n, egress: &SandboxEgress| NewSandbox { egress: egress.clone(), ..new(sandbox(n, None), Caps::default()) };
    for (n, egress) in [(180, &egress), (181, &SandboxEgress::default())] {
        assert_eq!(store.admit(&with(n, egress)).await.unwrap(), Admitted::Yes(WorkerId::local()));
        assert_eq!(store.egress(&id(n)).await.unwrap().as_ref(), Some(egress));
    }
    assert_eq!(store.with_egress(&WorkerId::local()).await.unwrap(), [], "not while they are being made");
    for n in [180, 181] {
        store.apply(&id(n), Change::Started).await.unwrap();
    }
    assert_eq!(store.with_egress(&WorkerId::local()).await.unwrap(), [(id(180), None)]);
    assert_eq!(store.with_egress(&WorkerId::parse("w1").unwrap()).await.unwrap(), []);
    let own = policy(EgressMode::AllowList, &["10.0.0.0/8:5432"]);
    let after = SandboxEgress { template: Some(template), own: own.clone() };
    assert_eq!(store.set_egress(&id(180), own.clone()).await.unwrap(), Some(after.clone()));
    assert_eq!(store.egress(&id(180)).await.unwrap(), Some(after));
    assert_eq!(store.egress_bytes(&id(180)).await.unwrap(), 0);
    store.set_egress_bytes(&[(id(180), 1 << 40), (id(199), 7)]).await.unwrap();
    assert_eq!(store.egress_bytes(&id(180)).await.unwrap(), 1 << 40);
    assert_eq!(store.egress_bytes(&id(199)).await.unwrap(), 0);
    store.set_egress(&id(181), own.clone()).await.unwrap();
    assert_eq!(store.with_egress(&WorkerId::local()).await.unwrap().len(), 2);
    store.set_egress(&id(181), EgressPolicy::default()).await.unwrap();
    assert_eq!(store.with_egress(&WorkerId::local()).await.unwrap().len(), 1);
    end(store, 180..=181).await;
    assert_eq!(store.with_egress(&WorkerId::local()).await.unwrap(), []);
    assert_eq!(store.set_egress(&id(180), own).await.unwrap(), None, "it has ended");
    assert_eq!(store.egress(&id(199)).await.unwrap(), None);
}
