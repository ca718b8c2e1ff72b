//! Cases on templates.

use std::time::Duration;

use domain::{EgressEntry, EgressMode, EgressPolicy, PrepareCommand, SecretUse, SizeOptions, SpawnOptions};

use super::start;
use crate::clock::after;
use crate::{Inserted, Store, Template};

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
        options: options.clone(),
        created_at: start(),
        updated_at: start(),
    };
    assert_eq!(store.insert_template(&template("b"), 2).await.unwrap(), Inserted::Done);
    assert_eq!(store.insert_template(&template("a"), 2).await.unwrap(), Inserted::Done);
    assert_eq!(store.insert_template(&template("a"), 2).await.unwrap(), Inserted::Taken, "a name is taken once");
    assert_eq!(store.insert_template(&template("c"), 2).await.unwrap(), Inserted::Full);
    assert_eq!(store.templates(None, 1).await.unwrap(), [template("a")]);
    assert_eq!(store.templates(Some("a"), 9).await.unwrap(), [template("b")]);
    assert_eq!(store.template("a").await.unwrap(), Some(template("a")));
    assert_eq!(store.templates(None, 9).await.unwrap(), [template("a"), template("b")]);
    let later = after(start(), Duration::from_secs(9));
    let updated = store.update_template("a", &SpawnOptions::default(), later).await.unwrap().unwrap();
    assert_eq!((updated.options, updated.created_at, updated.updated_at), (SpawnOptions::default(), start(), later));
    assert_eq!(store.update_template("c", &options, later).await.unwrap(), None);
    assert!(store.delete_template("a").await.unwrap());
    assert!(!store.delete_template("a").await.unwrap());
    assert_eq!(store.template("a").await.unwrap(), None);
}
