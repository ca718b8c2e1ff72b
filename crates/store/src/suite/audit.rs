//! Cases on the audit history and on event ids.

use std::time::{Duration, Instant};

use super::super::{AuditFilter, NewAuditEntry, Store};
use super::start;
use crate::clock::after;

fn entry(n: u64) -> NewAuditEntry {
    NewAuditEntry {
        created_at: after(start(), Duration::from_secs(n)),
        actor: "admin".to_owned(),
        action: "quotas.update".to_owned(),
        method: "PUT".to_owned(),
        path: format!("/api/v1/admin/quotas/{n}"),
        status: 200,
        duration_ms: n,
        request_id: format!("r-{n}"),
        remote_addr: Some("::1".to_owned()),
        user_agent: None,
        detail: Some("name=\"ü\"\n".to_owned()),
    }
}

/// Returns the ids of the rows that match a filter, newest first.
async fn found(store: &dyn Store, change: impl FnOnce(&mut AuditFilter)) -> Vec<u64> {
    let mut filter = AuditFilter::default();
    change(&mut filter);
    store.audit(&filter, None, 1000).await.unwrap().into_iter().map(|row| row.id).collect()
}

async fn clear(store: &dyn Store) {
    store.prune_audit(start(), 0).await.unwrap();
    assert!(found(store, |_| ()).await.is_empty());
}

pub(super) async fn ids_of_events_are_given_once_and_rise(store: &dyn Store) -> u64 {
    let mut end = 0;
    for count in [1, 1024, 7] {
        let block = store.reserve_event_ids(count).await.unwrap();
        assert!(block.start > 0 && block.start >= end && block.end - block.start == count, "{block:?} {end}");
        end = block.end;
    }
    let asked = (0..20).map(|_| store.reserve_event_ids(10));
    let mut blocks: Vec<_> = futures_util::future::join_all(asked).await.into_iter().map(Result::unwrap).collect();
    blocks.sort_by_key(|block| block.start);
    assert!(blocks.windows(2).all(|pair| pair[0].end == pair[1].start), "{blocks:?}");
    blocks[19].end
}

pub(super) async fn a_row_is_read_back_as_it_was_written(store: &dyn Store) {
    let id = store.insert_audit(&entry(1)).await.unwrap();
    let rows = store.audit(&AuditFilter::default(), None, 10).await.unwrap();
    assert_eq!((rows.len(), rows[0].id, &rows[0].entry), (1, id, &entry(1)));
    store.set_audit_detail(id, "count=7").await.unwrap();
    store.set_audit_detail(id + 1, "count=8").await.unwrap();
    let rows = store.audit(&AuditFilter::default(), None, 10).await.unwrap();
    assert_eq!((rows.len(), rows[0].entry.detail.as_deref()), (1, Some("count=7")));
    clear(store).await;
}

pub(super) async fn filters_take_every_text_literally(store: &dyn Store) {
    let mut ids = Vec::new();
    for path in ["/a%b", "/a_b", "/a\\b", "/axb", "/A%B", "/é[a]*?'"] {
        ids.push(store.insert_audit(&NewAuditEntry { path: path.to_owned(), ..entry(1) }).await.unwrap());
    }
    let paths = async |text: &str| found(store, |filter| filter.path = Some(text.to_owned())).await;
    assert_eq!(paths("a%b").await, [ids[0]]);
    assert_eq!(paths("%").await, [ids[4], ids[0]]);
    assert_eq!(paths("_").await, [ids[1]]);
    assert_eq!(paths("\\").await, [ids[2]]);
    assert_eq!(paths("[a]*?'").await, [ids[5]]);
    assert_eq!(paths("é").await, [ids[5]]);
    assert_eq!(paths("a.b").await, Vec::<u64>::new());
    clear(store).await;
}

pub(super) async fn filters_are_met_all_at_once(store: &dyn Store) {
    let one = store.insert_audit(&entry(1)).await.unwrap();
    let two = NewAuditEntry { actor: "worker:w1".to_owned(), status: 404, ..entry(2) };
    let two = store.insert_audit(&two).await.unwrap();
    let three = NewAuditEntry { action: "providers.test".to_owned(), method: "POST".to_owned(), ..entry(3) };
    let three = store.insert_audit(&three).await.unwrap();
    let at = |seconds| Some(after(start(), Duration::from_secs(seconds)));
    assert_eq!(found(store, |_| ()).await, [three, two, one]);
    assert_eq!(found(store, |f| f.actor = Some("admin".to_owned())).await, [three, one]);
    assert_eq!(found(store, |f| f.action = Some("quotas.update".to_owned())).await, [two, one]);
    assert_eq!(found(store, |f| f.method = Some("POST".to_owned())).await, [three]);
    assert_eq!(found(store, |f| f.status = Some(404)).await, [two]);
    assert_eq!(found(store, |f| f.since = at(2)).await, [three, two]);
    assert_eq!(found(store, |f| f.until = at(2)).await, [one]);
    let both = found(store, |f| (f.since, f.until, f.actor) = (at(1), at(3), Some("admin".to_owned()))).await;
    assert_eq!(both, [one]);
    clear(store).await;
}

pub(super) async fn a_page_stays_where_it_was_while_rows_come_and_go(store: &dyn Store) {
    let mut ids = Vec::new();
    for n in 0..10 {
        ids.push(store.insert_audit(&entry(n)).await.unwrap());
    }
    let filter = AuditFilter::default();
    let page = store.audit(&filter, Some(ids[7]), 3).await.unwrap();
    assert_eq!(page.iter().map(|row| row.id).collect::<Vec<_>>(), [ids[6], ids[5], ids[4]]);
    let newer = store.insert_audit(&entry(20)).await.unwrap();
    assert_eq!(store.prune_audit(after(start(), Duration::from_secs(2)), 100).await.unwrap(), 2);
    assert_eq!(store.prune_audit(start(), 4).await.unwrap(), 5);
    assert_eq!(found(store, |_| ()).await, [newer, ids[9], ids[8], ids[7]]);
    assert!(store.audit(&filter, Some(ids[7]), 3).await.unwrap().is_empty());
    clear(store).await;
    assert!(store.insert_audit(&entry(21)).await.unwrap() > newer, "an id comes once");
    clear(store).await;
}

pub(super) async fn a_flood_of_some_leaves_the_admin_its_half_and_the_other_way_round(store: &dyn Store) {
    let row = |n: u64, actor: &str| NewAuditEntry { actor: actor.to_owned(), ..entry(n) };
    for (flood, quiet) in [("api_key", "admin"), ("admin", "anonymous")] {
        let mut kept = Vec::new();
        for n in 0..4 {
            kept.push(store.insert_audit(&row(n, quiet)).await.unwrap());
        }
        for n in 4..40 {
            store.insert_audit(&row(n, flood)).await.unwrap();
        }
        assert_eq!(store.prune_audit(start(), 10).await.unwrap(), 30, "what the quiet leave free is used");
        let quiet_ones = async || {
            let mut ids = found(store, |f| f.actor = Some(quiet.to_owned())).await;
            ids.reverse();
            ids
        };
        assert_eq!(quiet_ones().await, kept);
        for n in 40..50 {
            kept.push(store.insert_audit(&row(n, quiet)).await.unwrap());
        }
        store.prune_audit(start(), 10).await.unwrap();
        assert_eq!(quiet_ones().await, kept[kept.len() - 5..], "of many, half are for certain");
        assert_eq!(found(store, |_| ()).await.len(), 10);
        clear(store).await;
    }
}

/// A page of a long history costs as much as one of a short history. The filter on a part of the
/// path is the exception, since it reads every row.
pub(super) async fn a_page_of_a_long_history_is_quick(store: &dyn Store) {
    for n in 0..2_000 {
        store.insert_audit(&entry(n)).await.unwrap();
    }
    let rare = NewAuditEntry { actor: "worker:w9".to_owned(), ..entry(0) };
    let rare = store.insert_audit(&rare).await.unwrap();
    let started = Instant::now();
    for _ in 0..50 {
        assert_eq!(found(store, |f| f.actor = Some("worker:w9".to_owned())).await, [rare]);
        assert_eq!(store.audit(&AuditFilter::default(), None, 10).await.unwrap().len(), 10);
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    clear(store).await;
}
