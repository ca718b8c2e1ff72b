//! Cases on secrets, and on the authorities that serve them.

use std::time::Duration;

use domain::{Caps, OwnerId, SecretBinding, SecretForm, SecretName, Target};

use super::{end, id, new, sandbox, start};
use crate::clock::after;
use crate::{Change, NewSecret, Store};

pub(super) async fn are_kept_by_name(store: &dyn Store) {
    let name = |text: &str| SecretName::parse(text).unwrap();
    let binding = SecretBinding {
        hosts: vec![Target::parse("*.a.example:8443").unwrap(), Target::parse("b.example").unwrap()],
        header: "x-key".to_owned(),
        form: SecretForm::Basic("ann".to_owned()),
        owners: vec![OwnerId::parse("ann").unwrap()],
    };
    let new = |text, sealed: &[u8]| NewSecret { name: name(text), binding: binding.clone(), sealed: sealed.to_vec() };
    let first = store.save_secret(&new("b", b"one"), start(), 2).await.unwrap().unwrap();
    assert_eq!((&first.binding, &*first.sealed), (&binding, &b"one"[..]));
    let later = after(start(), Duration::from_secs(9));
    let second = store.save_secret(&new("b", b"two"), later, 2).await.unwrap().unwrap();
    assert_eq!((second.created_at, second.updated_at, &*second.sealed), (start(), later, &b"two"[..]));
    store.save_secret(&new("a", b""), start(), 2).await.unwrap().unwrap();
    assert_eq!(store.save_secret(&new("c", b""), start(), 2).await.unwrap(), None, "there are as many as there may be");
    assert_eq!(store.save_secret(&new("b", b"two"), later, 2).await.unwrap().as_ref(), Some(&second));
    assert_eq!(store.secret(&name("b")).await.unwrap(), Some(second.clone()));
    assert_eq!(store.secrets(Some(&name("a")), 9).await.unwrap(), [second]);
    assert_eq!(store.secrets(None, 1).await.unwrap()[0].name, name("a"));
    assert!(store.delete_secret(&name("b")).await.unwrap());
    assert!(!store.delete_secret(&name("b")).await.unwrap());
    assert_eq!(store.secret(&name("b")).await.unwrap(), None);
}

pub(super) async fn an_authority_is_kept_with_a_sandbox(store: &dyn Store) {
    store.admit(&new(sandbox(185, None), Caps::default())).await.unwrap();
    assert_eq!(store.authority(&id(185)).await.unwrap(), None);
    assert_eq!(store.set_authority(&id(185), b"first").await.unwrap(), Some(b"first".to_vec()));
    assert_eq!(
        store.set_authority(&id(185), b"second").await.unwrap(),
        Some(b"first".to_vec()),
        "it is never replaced"
    );
    assert_eq!(store.authority(&id(185)).await.unwrap(), Some(b"first".to_vec()));
    store.apply(&id(185), Change::Started).await.unwrap();
    end(store, 185..=185).await;
    assert_eq!(store.set_authority(&id(185), b"third").await.unwrap(), None, "it has ended");
    assert_eq!(store.set_authority(&id(199), b"third").await.unwrap(), None);
}
