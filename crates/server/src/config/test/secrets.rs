//! Secrets inline and in files, and the keys that must be there.

use super::*;

/// Returns a layers with `text` in the file `key` beside its configuration.
fn layers(text: impl AsRef<[u8]>) -> TestLayers {
    TestLayers::new().file("here/key", text)
}

impl TestLayers {
    /// Sets the key `name` to the path of the file `key`.
    fn naming(self, name: &str) -> TestLayers {
        let path = self.folder.path().join("here/key").display().to_string();
        self.env(&environment::variable(name), &path)
    }
}

#[test]
fn a_secret_is_read_from_its_file_without_the_end_of_its_line() {
    let key = |text: &str| layers(text).naming("auth.api_key_file").load().config.auth.api_key.unwrap();
    for text in ["s3cret", "s3cret\n", "s3cret\r\n"] {
        assert_eq!(key(text).expose(), "s3cret");
    }
    assert_eq!(key(&"x".repeat(1024)).expose().len(), 1024);
}

#[test]
fn every_secret_can_be_kept_in_a_file() {
    let of = |name: &str| {
        let layers = layers("s3cret\n").naming(name);
        let layers =
            if name.starts_with("workers") { layers.env("TIDEBOX_WORKERS_W1_URL", "https://w1.test") } else { layers };
        let layers = if name.starts_with("images") {
            layers.env("TIDEBOX_IMAGES_REGISTRIES_W1_USERNAME", "ada")
        } else {
            layers
        };
        layers.load().config
    };
    let secret = Some(Secret::new("s3cret".to_owned()));
    assert_eq!(of("auth.admin_api_key_file").auth.admin_api_key, secret);
    assert_eq!(of("auth.worker_token_file").auth.worker_token, secret);
    assert_eq!(of("auth.worker_signing_key_file").auth.worker_signing_key, secret);
    assert_eq!(of("providers.custom.api_key_file").providers.custom.api_key, secret);
    assert_eq!(of("workers.w1.api_key_file").workers["w1"].api_key, secret);
    let registries = of("images.registries.w1.password_file").images.registries;
    assert_eq!(registries["w1"].password, secret);
}

#[test]
fn a_password_inline_and_in_a_file_is_refused_under_any_spelling_of_the_registry() {
    let layers = TestLayers::new().file("secret", "from-file");
    let file = layers.folder.path().join("secret");
    let yaml = format!(
        "images: {{registries: {{docker.io: {{username: u, password: inline}}, index.docker.io: {{password_file: {}}}}}}}",
        file.display()
    );
    let faults = layers.here(&yaml).faults();
    assert!(
        faults.len() == 1 && faults[0].contains("is set, and so is `images.registries.docker.io.password`"),
        "{faults:?}"
    );
}

#[test]
fn a_secret_inline_and_in_a_file_is_refused_and_both_are_named() {
    for name in ["auth.api_key", "auth.admin_api_key", "auth.worker_token", "auth.worker_signing_key"] {
        let faults =
            layers("s3cret").naming(&format!("{name}_file")).env(&environment::variable(name), "inline").faults();
        let (file, inline) = (environment::variable(&format!("{name}_file")), environment::variable(name));
        assert_eq!(
            faults,
            [format!("{name}_file ({file}): is set, and so is `{name}` ({inline}); keep one of the two")]
        );
    }
}

#[test]
fn a_file_that_holds_no_secret_is_refused_without_being_quoted() {
    for (text, words) in [
        (&b""[..], "`here/key` is empty; write the secret into it"),
        (b"\n", "is empty"),
        (b"two\n\n", "must consist of printable ASCII characters without spaces"),
        (b"hunter2 hunter2", "without spaces"),
        (b"\xff\xfe", "is not text"),
        (&[b'x'; 1025], "longer than the 1024 characters"),
        (&[b'x'; 5000], "longer than the 1024 characters"),
    ] {
        let faults = layers(text).naming("auth.api_key_file").faults();
        assert!(faults.len() == 1 && faults[0].contains(words), "{faults:?}");
        assert!(faults[0].starts_with("auth.api_key_file (TIDEBOX_AUTH_API_KEY_FILE): "), "{faults:?}");
        assert!(!faults[0].contains("hunter2"), "{faults:?}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_refused() {
    let missing = TestLayers::new().naming("auth.api_key_file").faults();
    assert!(missing.len() == 1 && missing[0].contains("`here/key` cannot be read: No such file"), "{missing:?}");
    let folder = TestLayers::new();
    std::fs::create_dir(folder.folder.path().join("here/key")).unwrap();
    let faults = folder.naming("auth.api_key_file").faults();
    assert!(faults.len() == 1 && faults[0].contains("is a folder"), "{faults:?}");
}

#[test]
fn authentication_without_a_key_is_refused() {
    check("auth: {enabled: true}", &["auth.enabled (@): needs a key; set `auth.api_key` or `auth.api_key_file`"]);
    // The admin key alone opens everything, but `auth.enabled` needs an API key all the same.
    check(
        "auth: {enabled: true, admin_api_key: a}",
        &["auth.enabled (@): needs a key; set `auth.api_key` or `auth.api_key_file`"],
    );
    check("auth: {enabled: true, api_key: a}", &[]);
    check("auth: {enabled: true, api_key: 5}", &["auth.api_key (@): must be a string in quotes"]);
    assert_eq!(layers("").naming("auth.api_key_file").env("TIDEBOX_AUTH_ENABLED", "true").faults().len(), 1);
    assert_eq!(
        layers("k").naming("auth.api_key_file").env("TIDEBOX_AUTH_ENABLED", "true").load().config.auth.api_key,
        Some(Secret::new("k".to_owned()))
    );
}

#[test]
fn groups_for_the_admin_alone_need_an_admin_key() {
    check(
        "auth: {admin_only: [quotas]}",
        &[
            "auth.admin_only (@): restricts routes to the admin key; set `auth.admin_api_key` or `auth.admin_api_key_file`",
        ],
    );
    check("auth: {admin_only: [quotas, metrics], admin_api_key: a}", &[]);
    check(
        "auth: {admin_only: [sandboxes], admin_api_key: a}",
        &[
            "auth.admin_only (@): must be quotas, templates, providers, workers, diagnostics, metrics or events, not `sandboxes`",
        ],
    );
}

#[test]
fn an_open_address_warns_only_while_no_key_is_asked_for() {
    assert!(
        TestLayers::new().here("server: {host: '::'}\nauth: {enabled: true, api_key: k}").load().warnings.is_empty()
    );
}

/// Secret that must never appear in a message.
const MARKER: &str = "hUnter2-9f8e7d6c5b4a";

/// Returns all that loading puts out: the warnings and the configuration, or the faults.
fn said(layers: &TestLayers) -> String {
    match load(&layers.inputs) {
        Ok(loaded) => format!("{:?} {loaded:?}", loaded.warnings),
        Err(faults) => faults.iter().map(|fault| format!("{fault} {fault:?}\n")).collect::<String>(),
    }
}

#[test]
fn a_secret_is_never_repeated_whatever_is_wrong_with_it_or_around_it() {
    for text in [
        // A secret in place of another value.
        "MARKER",
        "auth: MARKER",
        "auth: [MARKER]",
        "auth: {worker_tokens: MARKER}",
        "auth: {worker_tokens: [MARKER]}",
        "auth: {worker_tokens: {w1: [MARKER]}}",
        "auth: {worker_tokens: {'': MARKER}}",
        "auth: {worker_tokens: {'a b': MARKER}}",
        "auth: {api_key_file: MARKER}",
        "auth: {api_key_file: [MARKER]}",
        "auth: {worker_token_file: MARKER}",
        "auth: {worker_signing_key_file: MARKER}",
        "auth: {worker_revoked_token_ids: ['MARKER/+']}",
        "auth: {worker_signing_keys: MARKER}",
        "auth: {worker_signing_keys: [['MARKER']]}",
        "auth: {worker_signing_keys: ['MARKER x']}",
        "auth: {api_key: 'MARKER x'}",
        "auth: {api_key: {a: MARKER}}",
        "auth: {api_key: [MARKER]}",
        "auth: {api_kye: MARKER}",
        "auth: {api_key: MARKER, api_key: MARKER}",
        "auth: {api_key: MARKER, api_key_file: /nonexistent}",
        "workers: {w1: MARKER}",
        "workers: {w1: {url: 'https://u:MARKER@w1'}}",
        "workers: {w1: {url: 'https://w1?key=MARKER'}}",
        "workers: {local: {api_key: MARKER}}",
        "providers: {custom: {base_url: 'https://u:MARKER@w1'}}",
        "providers: {custom: {api_key_file: MARKER}}",
        "server: {cors_allowed_origins: ['https://u:MARKER@app.example.com']}",
        "database: {url: 'postgres://u:MARKER@db/x'}",
        "database: {url: 'sqlite://u:MARKER@db'}",
        "events: MARKER",
        // YAML that the parser refuses.
        "auth: {api_key: *MARKER}",
        "auth: {api_key: !MARKER x}",
        "auth: {api_key: !x MARKER}",
        "auth: {api_key: @MARKER}",
        "auth: {api_key: `MARKER`}",
        "auth: {api_key: %MARKER",
        "%MARKER\n---\na: 1",
        "auth:\n  api_key: \"MARKER\\q\"",
        "auth:\n  api_key: 'MARKER",
        "auth:\n  api_key: MARKER: x",
        "auth:\n  api_key: MARKER\n bad: 1",
        "auth:\n  api_key: |\n  MARKER",
        "auth:\n\tapi_key: MARKER",
        "auth: {api_key: &MARKER",
        "auth:\n  api_key: MARKER\n--- \n- x",
        "a: &a [MARKER, *a]",
        "? [MARKER]\n: 1",
    ] {
        let said = said(&TestLayers::new().here(&text.replace("MARKER", MARKER)));
        assert!(!said.contains(MARKER), "{text}: {said}");
    }
}

#[test]
fn a_secret_in_a_variable_is_never_repeated() {
    for (name, value) in [
        ("TIDEBOX_AUTH_API_KEY", "MARKER x"),
        ("TIDEBOX_AUTH_API_KEY", "MARKER"),
        ("TIDEBOX_AUTH_API_KYE", "MARKER"),
        ("TIDEBOX_AUTH_API_KEY_FILE", "MARKER"),
        ("TIDEBOX_AUTH_WORKER_TOKENS_LOCAL", "MARKER"),
        ("TIDEBOX_AUTH_WORKER_TOKENS_W1", "MARKER"),
        ("TIDEBOX_AUTH_WORKER_SIGNING_KEYS", "MARKER,MARKER x"),
        ("TIDEBOX_WORKERS_W1_URL", "http://u:MARKER@x"),
        ("TIDEBOX_WORKERS_W1_API_KEY", "MARKER"),
        ("TIDEBOX_API_KEY", "MARKER"),
    ] {
        let said = said(&TestLayers::new().env(name, &value.replace("MARKER", MARKER)));
        assert!(!said.contains(MARKER), "{name}={value}: {said}");
    }
}

#[test]
fn the_names_of_secret_keys_are_those_that_hold_secrets() {
    for key in keys::keys() {
        let mut config = Config::default();
        let held = |config: &Config| format!("{config:?}").matches("[hidden]").count();
        let texts = ["/abc", "abc", "https://abc"].map(|text| tree::Value::Bare(text.to_owned()));
        let holds = texts.iter().any(|text| config.set(&key.path("w1"), text, None).is_ok() && held(&config) > 0);
        assert_eq!(holds, key.kind.marks().is_secret, "{}", key.name);
        let last = key.name.trim_end_matches(".*").rsplit(['.', '_']).next().unwrap_or_default();
        // A number of keys is no key.
        let is_count = key.name.contains(".max_");
        let is_named_so = !is_count && ["key", "keys", "token", "tokens", "password"].contains(&last);
        assert_eq!(is_named_so, key.kind.marks().is_secret, "{}", key.name);
    }
}
