//! Mirrors: asked first, never trusted more, and skipped when they fail.

use images::{ImagesConfig, RegistryConfig};

use super::fake_registry::{FakeRegistry, Say};
use super::*;

fn mirrored(config: &mut ImagesConfig, registry: &str, mirrors: &[&str]) {
    let mirrors = mirrors.iter().map(|mirror| (*mirror).to_owned()).collect();
    let username = Some("me".to_owned());
    let password = Some("for-the-registry-alone".to_owned().into());
    let origin = RegistryConfig { mirrors, username, password, ..RegistryConfig::default() };
    config.registries.insert(registry.to_owned(), origin);
}

/// Makes a registry that requires a login.
fn private() -> FakeRegistry {
    FakeRegistry::telling(|asked| {
        let wants = vec!["www-authenticate: Basic realm=\"x\"".to_owned()];
        asked.header("authorization").is_empty().then(|| Say::Answer(401, wants, Vec::new()))
    })
}

#[tokio::test]
async fn a_mirror_is_asked_first_and_the_registry_not_at_all() {
    let (mirror, origin) = (FakeRegistry::good(), private());
    let image = small("mirrored");
    mirror.put(&image, "app", "1");
    let name = origin.put(&image, "app", "1");
    let store = TestStore::new();
    let images = store.open_with(|config| mirrored(config, origin.address(), &[mirror.address()]));
    images.take(&name).await.unwrap();
    assert_eq!((mirror.asked().len(), origin.asked().len()), (3, 0));
    assert_eq!(images.list().await.unwrap()[0].names, [name], "it keeps the name it was asked for by");
}

#[tokio::test]
async fn a_mirror_that_fails_or_lies_is_no_harm() {
    let image = large(300_000, 1);
    let mut liar = image.clone();
    liar.layers[0][600] ^= 1;
    let wrong = liar.blobs().remove(0);
    type Tell = Box<dyn Fn(&super::fake_registry::Asked) -> Option<Say> + Send + Sync>;
    let mirrors: Vec<(&str, Tell)> = vec![
        ("has nothing", Box::new(|_| Some(Say::Answer(404, Vec::new(), Vec::new())))),
        ("is broken", Box::new(|_| Some(Say::Answer(500, Vec::new(), Vec::new())))),
        (
            "requires a login",
            Box::new(|_| Some(Say::Answer(401, vec!["www-authenticate: Basic realm=\"x\"".to_owned()], Vec::new()))),
        ),
        ("sends rubbish", Box::new(|asked| asked.is_blob().then(|| Say::Body(b"rubbish".to_vec())))),
        ("sends another layer and breaks off", Box::new(move |asked| asked.is_blob().then_some(Say::Rubbish(5000)))),
        ("sends another layer", Box::new(move |asked| asked.is_blob().then(|| Say::Body(wrong.clone())))),
        ("breaks off", Box::new(|asked| asked.is_blob().then_some(Say::CutAfter(5000)))),
    ];
    for (what, tell) in mirrors {
        let (mirror, origin) = (FakeRegistry::telling(tell), private());
        mirror.put(&image, "app", "1");
        let name = origin.put(&image, "app", "1");
        let store = TestStore::new();
        let images = store.open_with(|config| mirrored(config, origin.address(), &[mirror.address()]));
        let held = images.take(&name).await.unwrap_or_else(|error| panic!("a mirror that {what}: {error}"));
        assert_eq!(held.digest(), image.digest());
        assert!(!mirror.asked().is_empty() && !origin.asked().is_empty(), "a mirror that {what}");
        for asked in mirror.asked() {
            assert_eq!(asked.header("authorization"), "", "the login is the registry's, not the mirror's");
        }
    }
}

#[tokio::test]
async fn a_mirror_that_is_down_is_passed_over() {
    let (mirror, origin) = (FakeRegistry::good(), private());
    let down = mirror.address().to_owned();
    drop(mirror);
    let name = origin.put(&small("x"), "app", "1");
    let store = TestStore::new();
    store.open_with(|config| mirrored(config, origin.address(), &[&down])).take(&name).await.unwrap();
}

#[tokio::test]
async fn the_registry_has_the_last_word() {
    let (mirror, origin) = (FakeRegistry::good(), FakeRegistry::good());
    let store = TestStore::new();
    let images = store.open_with(|config| mirrored(config, origin.address(), &[mirror.address()]));
    let name = format!("{}/app:1", origin.address());
    let text = invalid(images.take(&name).await);
    assert!(text.contains(&name) && text.contains("check the name"), "{text}");
    assert_eq!((mirror.asked().len(), origin.asked().len()), (1, 1));
}
