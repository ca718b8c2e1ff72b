//! Cases on templates that builds made.

use std::time::Duration;

use domain::{BuildId, Built, OwnerId, PrepareCommand, ProcessDefaults, SandboxId, SnapshotId, SpawnOptions};

use super::snapshots::{FREE, id, snapshot};
use super::start;
use crate::clock::after;
use crate::{Inserted, NewSnapshot, Snapshot, SnapshotFilter, Store, Template, TemplateBounds, TemplateFilter};

const BOUNDS: TemplateBounds = TemplateBounds { total: 3, per_owner: 2 };

fn built(n: u8) -> Built {
    Built {
        build: BuildId::from_entropy([n; 16]),
        snapshot: id(n),
        defaults: ProcessDefaults {
            env: [("A".to_owned(), "b\n".to_owned())].into(),
            user: Some("ann".to_owned()),
            workdir: Some("/srv".to_owned()),
        },
        start: vec![PrepareCommand { command: "serve".to_owned(), background: true, ..PrepareCommand::default() }],
    }
}

fn template(name: &str, owner: Option<&OwnerId>, n: u8) -> Template {
    Template {
        name: name.to_owned(),
        owner: owner.cloned(),
        options: SpawnOptions::default(),
        built: Some(built(n)),
        created_at: start(),
        updated_at: start(),
    }
}

pub(super) async fn run(store: &dyn Store) {
    a_build_replaces_what_a_build_made_and_nothing_else(store).await;
    all_are_saved_or_none(store).await;
    files_that_no_template_starts_from_are_unused(store).await;
}

async fn clear(store: &dyn Store) {
    for template in store.templates(&TemplateFilter::All, None, 99).await.unwrap() {
        store.delete_template(template.owner.as_ref(), &template.name).await.unwrap();
    }
}

async fn save(store: &dyn Store, templates: &[Template]) -> Inserted {
    store.save_built(templates, BOUNDS).await.unwrap()
}

async fn a_build_replaces_what_a_build_made_and_nothing_else(store: &dyn Store) {
    let stored = Template { built: None, ..template("stored", None, 1) };
    store.insert_template(&stored, BOUNDS).await.unwrap();
    assert_eq!(save(store, &[template("stored", None, 1)]).await, Inserted::Taken);
    assert_eq!(save(store, &[template("app", None, 1), template("app:v1", None, 1)]).await, Inserted::Done);
    assert_eq!(store.template(None, "app:v1").await.unwrap(), Some(template("app:v1", None, 1)));
    assert_eq!(save(store, &[template("app", None, 2)]).await, Inserted::Done, "what replaces needs no room");
    let rows = store.built_templates(None, "app").await.unwrap();
    assert_eq!(rows, [template("app", None, 2), template("app:v1", None, 1)]);
    for name in ["ap", "stored", "app:v1:x"] {
        assert_eq!(store.built_templates(None, name).await.unwrap(), [], "{name}");
    }
    let later = after(start(), Duration::from_secs(1));
    let replaced = store.update_template(None, "app", &SpawnOptions::default(), later).await.unwrap().unwrap();
    assert_eq!(replaced.built, None, "options that are stored are all of a template");
    assert_eq!(store.delete_built(None, "app").await.unwrap(), 1);
    assert_eq!(store.built_templates(None, "app").await.unwrap(), []);
    clear(store).await;
}

async fn all_are_saved_or_none(store: &dyn Store) {
    let ann = OwnerId::parse("ann").unwrap();
    let of = |name: &str, owner| template(name, owner, 1);
    let three = ["a", "a:1", "a:2"].map(|name| of(name, Some(&ann)));
    assert_eq!(save(store, &three).await, Inserted::FullOfOwner);
    assert_eq!(store.built_templates(Some(&ann), "a").await.unwrap(), []);
    assert_eq!(save(store, &["b", "b:1", "b:2", "b:3"].map(|name| of(name, None))).await, Inserted::Full);
    assert_eq!(store.built_templates(None, "b").await.unwrap(), []);
    assert_eq!(save(store, &three[..2]).await, Inserted::Done);
    assert_eq!(save(store, &[of("a", None)]).await, Inserted::Done, "names of owners do not meet");
    assert_eq!(store.delete_built(None, "a").await.unwrap(), 1);
    assert_eq!(store.built_templates(Some(&ann), "a").await.unwrap().len(), 2);
    clear(store).await;
}

async fn files_that_no_template_starts_from_are_unused(store: &dyn Store) {
    let unused = async || -> Vec<SnapshotId> { store.unused_builds().await.unwrap() };
    for n in [1, 2, 3] {
        let new = Snapshot { is_of_template: n != 3, sandbox: SandboxId::from_entropy([n; 10]), ..snapshot(n) };
        assert_eq!(store.insert_snapshot(&new, FREE).await.unwrap(), NewSnapshot::Done);
        assert!(!unused().await.contains(&id(n)), "they are not ready");
        store.complete_snapshot(&id(n), 1, false, FREE).await.unwrap();
    }
    let without = SnapshotFilter { without_templates: true, ..SnapshotFilter::default() };
    let kept: Vec<_> = store.snapshots(&without, None, 99).await.unwrap().into_iter().map(|row| row.id).collect();
    assert_eq!(kept, [id(3)]);
    assert_eq!(unused().await, [id(1), id(2)]);
    save(store, &[template("app", None, 1), template("app:old", None, 2)]).await;
    assert_eq!(unused().await, []);
    save(store, &[template("app", None, 2)]).await;
    assert_eq!(unused().await, [id(1)]);
    clear(store).await;
    for n in [1, 2, 3] {
        store.begin_snapshot_removal(&id(n)).await.unwrap();
        store.delete_snapshot(&id(n)).await.unwrap();
    }
}
