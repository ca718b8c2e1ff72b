//! Cases on templates.

use std::time::Duration;

use domain::{EgressEntry, EgressMode, EgressPolicy, OwnerId, PrepareCommand, SecretUse, SizeOptions, SpawnOptions};

use super::start;
use crate::clock::after;
use crate::{Inserted, Store, Template, TemplateBounds, TemplateCursor, TemplateFilter};

pub(super) async fn are_kept_by_name(store: &dyn Store) {
    let options = SpawnOptions {
        image: Some("host".to_owned()),
        ttl: Some(Duration::from_millis(1500)),
        size: SizeOptions { memory_mb: Some(u32::MAX), pids: Some(77), ..SizeOptions::default() },
        entrypoint: Some(true),
        egress: Some(EgressPolicy {
            mode: EgressMode::Open,
            deny: vec![EgressEntry::parse("a.example:1").unwrap()],
            secrets: vec![SecretUse::parse("key").unwrap()],
            ..EgressPolicy::default()
        }),
        auto_pause: Some(Duration::from_secs(60)),
        prepare: Some(vec![
            PrepareCommand { command: "true".to_owned(), ..PrepareCommand::default() },
            PrepareCommand {
                command: "python3".to_owned(),
                args: vec!["-i".to_owned()],
                is_argv: true,
                language: Some("python".to_owned()),
                env: [("A".to_owned(), "b".to_owned())].into(),
                workdir: Some("/tmp".to_owned()),
                user: Some("root".to_owned()),
                timeout: Some(Duration::from_millis(1500)),
                background: true,
                name: Some("python".to_owned()),
                stdin_open: true,
            },
        ]),
        ..SpawnOptions::default()
    };
    let template = |name: &str| Template {
        name: name.to_owned(),
        owner: None,
        options: options.clone(),
        built: None,
        created_at: start(),
        updated_at: start(),
    };
    let bounds = TemplateBounds { total: 2, per_owner: 2 };
    let all = &TemplateFilter::All;
    assert_eq!(store.insert_template(&template("b"), bounds).await.unwrap(), Inserted::Done);
    assert_eq!(store.insert_template(&template("a"), bounds).await.unwrap(), Inserted::Done);
    assert_eq!(store.insert_template(&template("a"), bounds).await.unwrap(), Inserted::Taken, "a name is taken once");
    assert_eq!(store.insert_template(&template("c"), bounds).await.unwrap(), Inserted::Full);
    assert_eq!(store.templates(all, None, 1).await.unwrap(), [template("a")]);
    assert_eq!(store.templates(all, Some(&cursor(&template("a"))), 9).await.unwrap(), [template("b")]);
    assert_eq!(store.template(None, "a").await.unwrap(), Some(template("a")));
    assert_eq!(store.templates(all, None, 9).await.unwrap(), [template("a"), template("b")]);
    let later = after(start(), Duration::from_secs(9));
    let updated = store.update_template(None, "a", &SpawnOptions::default(), later).await.unwrap().unwrap();
    assert_eq!((updated.options, updated.created_at, updated.updated_at), (SpawnOptions::default(), start(), later));
    assert_eq!(store.update_template(None, "c", &options, later).await.unwrap(), None);
    assert!(store.delete_template(None, "a").await.unwrap());
    assert!(!store.delete_template(None, "a").await.unwrap());
    assert_eq!(store.template(None, "a").await.unwrap(), None);
}

fn cursor(template: &Template) -> TemplateCursor {
    TemplateCursor { name: template.name.clone(), owner: template.owner.clone() }
}

pub(super) async fn have_owners_whose_names_do_not_meet(store: &dyn Store) {
    let [ann, bob] = ["ann", "bob"].map(|owner| OwnerId::parse(owner).unwrap());
    let template = |name: &str, owner: Option<&OwnerId>| Template {
        name: name.to_owned(),
        owner: owner.cloned(),
        options: SpawnOptions { image: owner.map(OwnerId::to_string), ..SpawnOptions::default() },
        built: None,
        created_at: start(),
        updated_at: start(),
    };
    let bounds = TemplateBounds { total: 99, per_owner: 2 };
    let (shared, of_ann, of_bob) = (template("o", None), template("o", Some(&ann)), template("o", Some(&bob)));
    let alone = template("p", Some(&bob));
    for new in [&of_ann, &shared, &of_bob, &alone] {
        assert_eq!(store.insert_template(new, bounds).await.unwrap(), Inserted::Done);
    }
    assert_eq!(store.insert_template(&of_ann, bounds).await.unwrap(), Inserted::Taken);
    let third = template("q", Some(&bob));
    assert_eq!(store.insert_template(&third, bounds).await.unwrap(), Inserted::FullOfOwner);

    for (owner, name, expected) in [
        (&ann, "o", Some(&of_ann)),
        (&bob, "o", Some(&of_bob)),
        (&OwnerId::parse("cyd").unwrap(), "o", Some(&shared)),
        (&ann, "p", None),
    ] {
        assert_eq!(store.usable_template(owner, name).await.unwrap().as_ref(), expected, "{owner} {name}");
    }
    assert_eq!(store.template(Some(&ann), "p").await.unwrap(), None);
    assert_eq!(store.template(None, "o").await.unwrap().as_ref(), Some(&shared));

    let listed = async |filter| store.templates(&filter, Some(&cursor(&template("n", None))), 9).await.unwrap();
    let every = [&shared, &of_ann, &of_bob, &alone].map(Clone::clone);
    assert_eq!(listed(TemplateFilter::All).await, every);
    assert_eq!(listed(TemplateFilter::Of(bob.clone())).await, [of_bob.clone(), alone.clone()]);
    assert_eq!(listed(TemplateFilter::UsableBy(ann.clone())).await, [shared.clone(), of_ann.clone()]);
    let mut in_parts = Vec::new();
    let mut position = cursor(&template("n", None));
    while let Some(next) = store.templates(&TemplateFilter::All, Some(&position), 1).await.unwrap().pop() {
        position = cursor(&next);
        in_parts.push(next);
    }
    assert_eq!(in_parts, every);

    let changed = store.update_template(Some(&ann), "o", &SpawnOptions::default(), start()).await.unwrap().unwrap();
    assert_eq!((changed.owner.as_ref(), changed.options.image), (Some(&ann), None));
    assert_eq!(store.template(Some(&bob), "o").await.unwrap(), Some(of_bob), "only one owner's changes");
    assert!(!store.delete_template(Some(&ann), "p").await.unwrap());
    assert!(store.delete_template(Some(&ann), "o").await.unwrap());
    assert_eq!(store.usable_template(&ann, "o").await.unwrap(), Some(shared));
}
