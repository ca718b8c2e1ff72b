//! The configuration in effect as it is shown.

use super::*;

fn secret_keys() -> impl Iterator<Item = &'static Key> {
    keys::keys().iter().filter(|key| key.kind.marks().is_secret)
}

/// Returns a layers with a secret for every key that holds one.
fn with_secrets() -> TestLayers {
    let mut layers = TestLayers::new()
        .file("here/key", "s3cret-in-a-file")
        .env("TIDEBOX_WORKERS_W1_URL", "https://w1.test")
        .env("TIDEBOX_IMAGES_REGISTRIES_W1_USERNAME", "ada")
        .env("TIDEBOX_WORKERS_W2_URL", "https://w2.test");
    for key in secret_keys() {
        let name = key.name.replace('*', "w1");
        layers = layers.env(&environment::variable(&name), &format!("s3cret-{}", name.replace('_', "-")));
    }
    let path = layers.folder.path().join("here/key").display().to_string();
    layers.env("TIDEBOX_WORKERS_W2_API_KEY_FILE", &path)
}

#[track_caller]
fn shown<'a>(settings: &'a [Setting], key: &str) -> &'a Setting {
    settings.iter().find(|setting| setting.key == key).unwrap_or_else(|| panic!("{key} is not shown"))
}

#[test]
fn no_secret_is_shown() {
    let settings = with_secrets().load().settings();
    let text = nested(&settings);
    assert!(!text.contains("s3cret") && !format!("{settings:?}").contains("s3cret"), "{text}");
    for key in secret_keys() {
        let setting = shown(&settings, &key.name.replace('*', "w1"));
        assert!(setting.yaml().contains("[hidden]") && setting.value.to_string().contains("[hidden]"), "{setting:?}");
    }
    assert!(shown(&settings, "workers.w2.api_key_file").yaml().ends_with("here/key"));
}

#[test]
fn what_is_hidden_is_never_taken_for_a_secret() {
    let layers = with_secrets();
    let text = nested(&layers.load().settings());
    let faults = TestLayers::new().here(&text).faults();
    let secrets = secret_keys().count();
    assert_eq!(faults.len(), secrets, "{faults:#?}");
}

#[test]
fn every_key_is_shown_with_its_source() {
    let layers = TestLayers::new()
        .of_user("defaults: {vcpus: 3}\nauth: {worker_tokens: {w1: k}}")
        .env("TIDEBOX_SERVER_PORT", "80")
        .env("TIDEBOX_SERVER_ALLOWED_HOSTS", "a.test,b.test");
    let settings = layers.load().settings();
    for key in keys::keys().iter().filter(|key| !key.name.contains('*')) {
        shown(&settings, &key.name);
    }
    let file = Source::File(layers.folder.path().join("home/.tidebox/config.yaml"));
    let variable = |name: &str| Source::Variable(name.to_owned());
    for (key, yaml, source) in [
        ("server.port", "80", variable("TIDEBOX_SERVER_PORT")),
        ("server.allowed_hosts", "[a.test, b.test]", variable("TIDEBOX_SERVER_ALLOWED_HOSTS")),
        ("server.cors_allowed_origins", "[\"*\"]", Source::Default),
        ("defaults.vcpus", "3", file.clone()),
        ("defaults.ttl", "30m", Source::Default),
        ("defaults.image", "null", Source::Default),
        ("auth.enabled", "false", Source::Default),
        ("auth.worker_tokens.w1", "[hidden]", file),
        ("auth.worker_signing_keys", "[]", Source::Default),
        ("data_dir", "/var/lib/tidebox", Source::Default),
        ("database.url", "sqlite:///var/lib/tidebox/tidebox.db", Source::Default),
    ] {
        let setting = shown(&settings, key);
        assert_eq!((setting.yaml(), &setting.source), (yaml, &source), "{key}");
    }
}

#[test]
fn what_is_shown_is_a_configuration_that_means_the_same() {
    let layers = TestLayers::new()
        .of_user("data_dir: ~/x y\ndefaults: {ttl: 5m, image: 'a:b#c'}\nlimits: {max_output_bytes: 64KiB}")
        .here("workers: {w1: {url: 'https://w1.test', ca_file: '/etc/passwd'}, w-1: {url: 'http://[::1]:80'}}")
        .env("TIDEBOX_SERVER_HOST", "::1")
        .env("TIDEBOX_SERVER_TRUSTED_PROXIES", "10.0.0.0/8,::1")
        .env("TIDEBOX_PROVIDERS_NATIVE_SUBIDS", "200000:131072")
        .env("TIDEBOX_PROVIDERS_MOCK_ENABLED", "true")
        .env("TIDEBOX_DEFAULTS_DEFAULT_EXEC_TIMEOUT", "10s")
        .env("TIDEBOX_PROVIDERS_CUSTOM_NAME", "1e3")
        .env("TIDEBOX_AUTH_WORKER_REVOKED_TOKEN_IDS", "true,7,null");
    let loaded = layers.load();
    let text = nested(&loaded.settings());
    // The home directory is another one there.
    assert_eq!(TestLayers::new().here(&text).load().config, loaded.config, "{text}");
}
