//! Tables of cases, one per rule: failures, warnings and passes.

use std::path::PathBuf;

use super::super::{Inputs, load};
use super::*;

/// Three keys that pass the check of their strength.
const KEYS: [&str; 3] = [
    "9f86d081884c7d659a2feaa0c55ad0159f03b2c6",
    "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=",
    "k7Qz9LmX2vB4nR8tY1wP6sD3fG5hJ0cAe",
];

/// Returns `yaml` as root would load it from a file.
fn loaded(yaml: &str) -> Loaded {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tidebox.yaml");
    std::fs::write(&file, yaml).unwrap();
    let inputs = Inputs {
        config_file: Some(file),
        of_machine: None,
        home: None,
        current_dir: folder.path().to_owned(),
        env: Vec::new(),
        is_root: true,
    };
    load(&inputs).unwrap_or_else(|faults| panic!("{yaml}: {faults:#?}"))
}

/// Returns the findings about `key` under `yaml`, with `KEY0` to `KEY2` filled in.
fn about(yaml: &str, key: &str, production: bool) -> Vec<Finding> {
    let yaml = (0..3).fold(yaml.to_owned(), |yaml, at| yaml.replace(&format!("KEY{at}"), KEYS[at]));
    let mut findings = lint(&loaded(&yaml), &Modes::new(), production);
    for finding in &findings {
        assert!(KEYS.iter().all(|key| !format!("{finding:?}").contains(key)), "a key is shown: {finding:?}");
        assert_eq!(finding.verdict == Verdict::Pass, finding.remedy.is_empty(), "{finding:?}");
    }
    // Inline keys have a second finding, about the file that holds them.
    findings.retain(|finding| finding.key == key && !finding.message.contains("was not checked"));
    findings
}

/// Checks that the key gets this verdict in production, and never a failure elsewhere.
#[track_caller]
fn check(key: &str, cases: &[(&str, Verdict)]) {
    for (yaml, expected) in cases {
        let found = about(yaml, key, true);
        let worst = found.iter().map(|finding| finding.verdict).max_by_key(|verdict| *verdict as u8);
        assert_eq!(worst, Some(*expected), "{key} under {yaml}: {found:?}");
        let elsewhere = about(yaml, key, false);
        assert!(elsewhere.iter().all(|finding| finding.verdict != Verdict::Fail), "{elsewhere:?}");
    }
}

use Verdict::{Fail, Pass, Warn};

#[test]
fn authentication_is_asked_for() {
    check("auth.enabled", &[("", Fail), ("auth: {enabled: true, api_key: KEY0}", Pass)]);
}

#[test]
fn the_admin_has_a_key() {
    check(
        "auth.admin_api_key",
        &[
            ("auth: {enabled: true, api_key: KEY0}", Warn),
            ("auth: {admin_fallback_enabled: false}", Pass),
            ("auth: {admin_api_key: KEY0}", Pass),
        ],
    );
}

#[test]
fn every_key_of_the_server_is_long_and_random() {
    for (key, yaml) in [
        ("auth.api_key", "auth: {api_key: KEY}"),
        ("auth.admin_api_key", "auth: {admin_api_key: KEY}"),
        ("auth.worker_token", "auth: {worker_token: KEY}"),
        ("auth.worker_signing_key", "auth: {worker_signing_key: KEY}"),
        ("auth.worker_signing_keys[1]", "auth: {worker_signing_keys: [KEY0, KEY]}"),
        ("auth.worker_tokens.w1", "auth: {worker_tokens: {w1: KEY}}"),
    ] {
        let with = |text: &str| yaml.replace("KEY}", &format!("{text}}}")).replace("KEY]", &format!("{text}]"));
        check(
            key,
            &[
                (&with("k7Qz9LmX2vB4nR8tY1wP6sD3fG5hJ0c"), Fail),
                (&with("changeme-9f8e7d6c5b4a39281706f5e4d3c2b1a0"), Fail),
                (&with("KEY1"), Pass),
            ],
        );
    }
}

#[test]
fn no_two_keys_are_the_same() {
    check("auth.admin_api_key", &[("auth: {api_key: KEY0, admin_api_key: KEY0}", Fail)]);
    check("auth.worker_token", &[("auth: {api_key: KEY0, worker_token: KEY0}", Fail)]);
    check("auth.worker_signing_key", &[("auth: {worker_token: KEY0, worker_signing_key: KEY0}", Fail)]);
    check("auth.worker_signing_keys[0]", &[("auth: {admin_api_key: KEY0, worker_signing_keys: [KEY0]}", Fail)]);
    check("auth.worker_tokens.w2", &[("auth: {worker_tokens: {w1: KEY0, w2: KEY0}}", Fail)]);
    check("auth", &[("auth: {api_key: KEY0, admin_api_key: KEY1, worker_token: KEY2}", Pass)]);
}

#[test]
fn an_open_address_needs_a_key() {
    check(
        "server.host",
        &[
            ("server: {host: 0.0.0.0}", Fail),
            ("server: {host: '::'}", Fail),
            ("server: {host: 192.0.2.1}", Fail),
            ("", Pass),
            ("server: {host: 0.0.0.0}\nauth: {enabled: true, api_key: KEY0}", Pass),
        ],
    );
}

#[test]
fn a_network_wants_https() {
    check(
        "server.tls.cert_file",
        &[
            ("server: {host: 192.0.2.1}", Warn),
            ("", Pass),
            ("server: {host: 192.0.2.1, tls: {cert_file: /c, key_file: /k}}", Pass),
        ],
    );
}

#[test]
fn origins_are_listed() {
    check(
        "server.cors_allowed_origins",
        &[
            ("", Fail),
            ("server: {cors_allowed_origins: []}", Fail),
            ("server: {cors_allowed_origins: ['https://a.test', '*']}", Fail),
            ("server: {cors_allowed_origins: ['http://a.test']}", Warn),
            ("server: {cors_allowed_origins: ['https://a.test']}", Pass),
        ],
    );
}

#[test]
fn not_everybody_is_a_proxy() {
    check(
        "server.trusted_proxies",
        &[
            ("server: {trusted_proxies: [0.0.0.0/0]}", Fail),
            ("server: {trusted_proxies: [10.0.0.1, '::/0']}", Fail),
            ("server: {trusted_proxies: [128.0.0.0/1]}", Warn),
            ("server: {trusted_proxies: [10.0.0.0/8]}", Pass),
            ("", Pass),
        ],
    );
}

#[test]
fn sandboxes_are_capped() {
    for name in ["max_sandboxes", "max_sandboxes_per_owner"] {
        check(&format!("defaults.{name}"), &[("", Fail), (&format!("defaults: {{{name}: 5}}"), Pass)]);
    }
}

#[test]
fn sandboxes_end() {
    check("defaults.max_ttl", &[("defaults: {max_ttl: 169h}", Warn), ("defaults: {max_ttl: 168h}", Pass)]);
}

#[test]
fn the_test_double_is_not_offered() {
    check("providers.mock.enabled", &[("providers: {mock: {enabled: true}}", Fail), ("", Pass)]);
}

#[test]
fn what_isolates_little_is_not_offered() {
    check(
        "providers.proot.enabled",
        &[
            ("providers: {proot: {enabled: true}}", Fail),
            ("", Pass),
            ("auth: {enabled: true, api_key: KEY0}", Warn),
            ("providers: {proot: {enabled: false}}", Pass),
        ],
    );
}

#[test]
fn no_container_gets_at_its_host() {
    let docker = |what: &str| format!("providers: {{docker: {{{what}}}}}");
    let of = |key: &str, cases: &[(&str, Verdict)]| {
        for (what, verdict) in cases {
            check(&format!("providers.docker.{key}"), &[(docker(what).as_str(), *verdict)]);
        }
    };
    of("network_mode", &[("network_mode: none", Pass), ("network_mode: bridge", Warn)]);
    of("added_caps", &[("added_caps: [CHOWN]", Pass), ("added_caps: [CAP_SYS_ADMIN]", Fail)]);
    of(
        "socket",
        &[
            ("pull: missing", Pass),
            ("socket: 'tcp://10.0.0.1:2375'", Fail),
            ("socket: 'tcp://127.0.0.1:2375'", Pass),
            ("socket: 'tcp://10.0.0.1:2376', tls: {ca_file: /etc/passwd}", Pass),
        ],
    );
    check("providers.docker.enabled", &[("providers: {docker: {enabled: false, network_mode: bridge}}", Pass)]);
}

#[test]
fn images_do_not_come_in_the_clear() {
    let yaml = "images: {registries: {10.0.0.1: {plain_http: true}, 'localhost:5000': {plain_http: true}, a.test: {}}}";
    let yaml = yaml.replace("a.test: {}", "a.test: {plain_http: false}");
    for (host, verdict) in [("10.0.0.1", Warn), ("localhost:5000", Pass), ("a.test", Pass)] {
        check(&format!("images.registries.{host}.plain_http"), &[(yaml.as_str(), verdict)]);
    }
}

#[test]
fn requests_are_limited() {
    check("rate_limit.enabled", &[("", Warn), ("rate_limit: {enabled: true, key_by: ip}", Pass)]);
    check("rate_limit.key_by", &[("rate_limit: {enabled: true}", Warn)]);
}

#[test]
fn the_audit_history_is_kept() {
    let key = "auth.admin_audit_retention";
    check(key, &[("auth: {admin_audit_retention: 1h}", Warn), ("", Pass)]);
    let key = "auth.admin_audit_max_entries";
    check(key, &[("auth: {admin_audit_max_entries: 9999}", Warn), ("", Pass)]);
}

#[test]
fn traces_and_logs_are_in_bounds() {
    check("retention.destroyed", &[("retention: {destroyed: 0s}", Warn), ("", Pass)]);
    check("logging.level", &[("logging: {level: trace}", Warn), ("logging: {level: debug}", Warn), ("", Pass)]);
    check("limits.reserve_disk_mb", &[("limits: {reserve_disk_mb: 0}", Warn), ("", Pass)]);
    check("limits.reserve_inodes", &[("limits: {reserve_inodes: 0}", Warn), ("", Pass)]);
}

#[test]
fn keys_for_others_do_not_go_in_the_clear() {
    check(
        "workers.w1.url",
        &[
            ("workers: {w1: {url: 'http://w1.test'}}", Warn),
            ("workers: {w1: {url: 'http://192.0.2.1:80/x'}}", Warn),
            ("workers: {w1: {url: 'http://127.0.0.1:80'}}", Pass),
            ("workers: {w1: {url: 'http://[::1]:80'}}", Pass),
            ("workers: {w1: {url: 'http://localhost:80'}}", Pass),
            ("workers: {w1: {url: 'https://w1.test'}}", Pass),
        ],
    );
    let plane = |url: &str| format!("worker: {{control_plane: '{url}'}}");
    check("worker.control_plane", &[(&plane("http://c.test"), Warn), (&plane("https://c.test"), Pass)]);
    let custom = |url: &str| format!("providers: {{custom: {{enabled: true, base_url: '{url}'}}}}");
    check("providers.custom.base_url", &[(&custom("http://b.test"), Warn), (&custom("https://b.test"), Pass)]);
    let e2b = |url: &str| {
        format!("providers: {{e2b: {{enabled: true, api_key: k, base_url: '{url}', sandbox_url: '{url}'}}}}")
    };
    for key in ["providers.e2b.base_url", "providers.e2b.sandbox_url"] {
        check(key, &[(&e2b("http://b.test"), Warn), (&e2b("https://b.test"), Pass)]);
    }
}

#[test]
fn proot_without_a_key_is_called_what_it_is() {
    let found = about("providers: {proot: {enabled: true}}", "providers.proot.enabled", true);
    assert!(found[0].message.contains("this API and every other box"), "{found:?}");
    check("configuration", &[("providers: {proot: {enabled: true}}", Warn)]);
}

#[test]
fn templates_and_quotas_are_the_administrators_where_users_share_boxes() {
    let closed = |groups: &str| {
        format!(
            "pool: {{enabled: true}}\nauth: {{enabled: true, api_key: KEY0, admin_api_key: KEY1, admin_only: [{groups}]}}"
        )
    };
    check(
        "auth.admin_only",
        &[
            ("pool: {enabled: true}", Fail),
            (&closed("templates"), Fail),
            (&closed("quotas"), Fail),
            (&closed("quotas, metrics, templates"), Pass),
        ],
    );
    assert!(about("", "auth.admin_only", true).is_empty(), "without pool mode all share them on purpose");
    let found = about(&closed("templates"), "auth.admin_only", true);
    assert!(found[0].message.contains("quotas") && !found[0].message.contains("templates"), "{found:?}");
}

#[test]
fn what_loading_warns_about_is_a_finding() {
    let yaml = "providers: {native: {enabled: false}, docker: {enabled: false}, proot: {enabled: false}}";
    check("configuration", &[(yaml, Warn)]);
}

/// Checks the verdict about `key` when every file that is named has `mode`.
#[track_caller]
fn check_mode(yaml: &str, key: &str, mode: Result<u32, String>, expected: Verdict) {
    let loaded = loaded(yaml);
    let paths = private_files(&loaded).into_iter().map(|(_, path)| path).chain(private_places(&loaded.config));
    let modes: Modes = paths.map(|path: PathBuf| (path, mode.clone())).collect();
    let findings = lint(&loaded, &modes, true);
    let found = findings.iter().rfind(|finding| finding.key == key);
    assert_eq!(found.map(|finding| finding.verdict), Some(expected), "{key} {mode:?}: {findings:#?}");
}

#[test]
fn files_with_secrets_are_for_their_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, KEYS[0]).unwrap();
    let path = file.display();
    for (key, yaml) in [
        ("auth.api_key_file", format!("auth: {{api_key_file: '{path}'}}")),
        ("auth.admin_api_key_file", format!("auth: {{admin_api_key_file: '{path}'}}")),
        ("auth.worker_token_file", format!("auth: {{worker_token_file: '{path}'}}")),
        ("auth.worker_signing_key_file", format!("auth: {{worker_signing_key_file: '{path}'}}")),
        ("providers.custom.api_key_file", format!("providers: {{custom: {{api_key_file: '{path}'}}}}")),
        ("workers.w1.api_key_file", format!("workers: {{w1: {{url: 'https://a', api_key_file: '{path}'}}}}")),
        ("worker.token_file", format!("worker: {{token_file: '{path}'}}")),
        ("server.tls.key_file", format!("server: {{tls: {{cert_file: '{path}', key_file: '{path}'}}}}")),
        // The configuration file itself holds these.
        ("auth.worker_tokens.w1", format!("auth: {{worker_tokens: {{w1: '{}'}}}}", KEYS[0])),
        ("auth.api_key", format!("auth: {{api_key: '{}'}}", KEYS[0])),
        ("data_dir", String::new()),
        ("database.url", "database: {url: 'sqlite:///elsewhere/t.db'}".to_owned()),
    ] {
        for bit in [0o040, 0o020, 0o010, 0o004, 0o002, 0o001] {
            check_mode(&yaml, key, Ok(0o700 | bit), Fail);
        }
        check_mode(&yaml, key, Ok(0o600), Pass);
        let expected = if key.starts_with("data") { Pass } else { Fail };
        check_mode(&yaml, key, Err("No such file".to_owned()), expected);
    }
}

#[test]
fn the_modes_are_those_of_the_files() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, KEYS[0]).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let data = folder.path().join("none");
    let loaded = loaded(&format!("data_dir: '{}'\nauth: {{api_key_file: '{}'}}", data.display(), file.display()));
    let modes = modes(&loaded);
    assert_eq!(modes[&file], Ok(0o640));
    assert!(modes[&data].is_err());
}
