//! `tidebox config`, as a process.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::*;

/// The configuration file that operators start from.
const PRODUCTION: &str = include_str!("../../../../../config/production.yaml");

/// Keys that cannot be guessed.
const KEYS: [(&str, &str); 4] = [
    ("api-key", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
    ("admin-key", "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752"),
    ("worker-token", "fd61a03af4f77d870fc21e05e7e80678095c92d808cfb3b5c279ee04c74aca13"),
    ("worker-signing-key", "a4e624d686e03ed2767c0abd85c14426b0b1157d2ce81d27bb4fe4f6f01d688a"),
];

/// A host that was set up as config/production.yaml says, below a folder.
struct Host {
    root: tempfile::TempDir,
}

impl Host {
    fn new() -> Host {
        let host = Host { root: tempfile::tempdir().expect("a folder") };
        for folder in ["etc/tidebox/tls", "var/lib/tidebox"] {
            std::fs::create_dir_all(host.path(folder)).expect("a folder");
            host.chmod(folder, 0o700);
        }
        for (name, key) in KEYS {
            host.write(&format!("etc/tidebox/{name}"), &format!("{key}\n"), 0o600);
        }
        let made = rcgen::generate_simple_self_signed(["boxes.example.com".to_owned()]).expect("a certificate");
        host.write("etc/tidebox/tls/fullchain.pem", &made.cert.pem(), 0o644);
        host.write("etc/tidebox/tls/key.pem", &made.signing_key.serialize_pem(), 0o600);
        let text = PRODUCTION.replace(" /etc/tidebox/", &format!(" {}/", host.path("etc/tidebox").display()));
        let text = text.replace(" /var/lib/tidebox", &format!(" {}", host.path("var/lib/tidebox").display()));
        host.write("tidebox.yaml", &text, 0o644);
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn write(&self, name: &str, text: &str, mode: u32) {
        std::fs::write(self.path(name), text).expect("written");
        self.chmod(name, mode);
    }

    fn chmod(&self, name: &str, mode: u32) {
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(mode)).expect("its mode");
    }

    /// Runs `tidebox config …` with these variables and returns its exit code and stdout.
    fn config(&self, args: &[&str], env: &[(&str, &str)]) -> (i32, String) {
        let file = self.path("tidebox.yaml");
        config(&file, args, env)
    }
}

fn config(file: &Path, args: &[&str], env: &[(&str, &str)]) -> (i32, String) {
    let args: Vec<&str> = ["config"]
        .into_iter()
        .chain(args.iter().copied())
        .chain(["--config", file.to_str().expect("a path")])
        .collect();
    let output = finish(tidebox("", &args).envs(env.iter().copied()).spawn().expect("it starts"));
    let (code, stderr) = end(&output);
    let stdout = String::from_utf8(output.stdout).expect("text");
    for (_, key) in KEYS {
        assert!(!stdout.contains(key) && !stderr.contains(key), "a key is shown: {stdout}{stderr}");
    }
    (code.expect("a code"), stdout)
}

#[test]
fn the_production_file_passes_the_production_lint() {
    let host = Host::new();
    let (code, text) = host.config(&["lint", "--production"], &[]);
    assert!(code == 0 && !text.is_empty(), "{text}");
    assert!(text.lines().all(|line| line.starts_with("pass  ")), "{text}");
}

#[test]
fn every_key_of_the_production_file_is_explained() {
    for (at, line) in PRODUCTION.lines().enumerate() {
        let is_key =
            line.trim_end().ends_with(|c| c != ':') && !line.trim_start().starts_with('#') && line.contains(": ");
        let above = PRODUCTION.lines().take(at).collect::<Vec<_>>();
        let explained = above.iter().rev().take(3).any(|line| line.trim_start().starts_with("# "));
        assert!(!is_key || explained, "line {}: {line}", at + 1);
    }
}

#[test]
fn what_production_forbids_fails_there_and_only_warns_elsewhere() {
    let host = Host::new();
    for (name, value, key) in [
        ("TIDEBOX_AUTH_ENABLED", "false", "auth.enabled"),
        ("TIDEBOX_AUTH_WORKER_TOKENS_W1", "changeme", "auth.worker_tokens.w1"),
        ("TIDEBOX_AUTH_WORKER_TOKENS_W1", KEYS[0].1, "auth.worker_tokens.w1"),
        ("TIDEBOX_SERVER_CORS_ALLOWED_ORIGINS", "*", "server.cors_allowed_origins"),
        ("TIDEBOX_SERVER_TRUSTED_PROXIES", "0.0.0.0/0", "server.trusted_proxies"),
        ("TIDEBOX_DEFAULTS_MAX_SANDBOXES", "0", "defaults.max_sandboxes"),
        ("TIDEBOX_DEFAULTS_MAX_SANDBOXES_PER_OWNER", "0", "defaults.max_sandboxes_per_owner"),
        ("TIDEBOX_PROVIDERS_MOCK_ENABLED", "true", "providers.mock.enabled"),
    ] {
        let (code, text) = host.config(&["lint", "--production"], &[(name, value)]);
        let line = format!("fail  {key}: ");
        assert!(code == 1 && text.lines().any(|it| it.starts_with(&line) && it.contains("; ")), "{name}: {text}");
        let (code, text) = host.config(&["lint"], &[(name, value)]);
        assert!(code == 0 && text.contains(&format!("warn  {key}: ")), "{name}: {text}");
    }
}

#[test]
fn files_that_others_can_use_fail_the_lint() {
    let host = Host::new();
    for (file, mode, key) in [
        ("etc/tidebox/api-key", 0o640, "auth.api_key_file"),
        ("etc/tidebox/admin-key", 0o604, "auth.admin_api_key_file"),
        ("etc/tidebox/tls/key.pem", 0o644, "server.tls.key_file"),
        ("var/lib/tidebox", 0o755, "data_dir"),
    ] {
        let right = if file.starts_with("var") { 0o700 } else { 0o600 };
        host.chmod(file, mode);
        let (code, text) = host.config(&["lint", "--production"], &[]);
        assert!(code == 1 && text.contains(&format!("fail  {key}: ")) && text.contains("; chmod "), "{text}");
        host.chmod(file, right);
        assert_eq!(host.config(&["lint", "--production"], &[]).0, 0);
    }
}

#[test]
fn a_configuration_with_faults_is_told_apart() {
    let host = Host::new();
    let env = [("TIDEBOX_SERVER_PORT", "many"), ("TIDEBOX_DEFAULTS_TTL", "48h")];
    let (code, text) = host.config(&["lint"], &env);
    assert_eq!(code, 2);
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("fail  server.port: (TIDEBOX_SERVER_PORT) must be a whole number"), "{text}");
    assert_eq!(host.config(&["show"], &env), (2, String::new()));
}

#[test]
fn programs_get_findings_and_settings_as_json() {
    let host = Host::new();
    let (_, text) = host.config(&["lint", "--output", "json"], &[("TIDEBOX_AUTH_ENABLED", "false")]);
    let found: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let auth = found.as_array().expect("a list").iter().find(|it| it["key"] == "auth.enabled").expect("a finding");
    assert_eq!(auth["verdict"], "warn");
    assert!(auth["message"].is_string() && auth["remedy"].is_string());

    let (code, text) = host.config(&["show", "--output", "json"], &[("TIDEBOX_SERVER_PORT", "80")]);
    assert_eq!(code, 0);
    let shown: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let of = |key: &str| shown.as_array().expect("a list").iter().find(|it| it["key"] == key).expect("a key").clone();
    assert_eq!(of("server.port")["value"], 80);
    assert_eq!(of("server.port")["source"], serde_json::json!({"layer": "variable", "name": "TIDEBOX_SERVER_PORT"}));
    let file = host.path("tidebox.yaml");
    assert_eq!(of("auth.enabled")["source"], serde_json::json!({"layer": "file", "path": file}));
    assert_eq!(
        of("defaults.image"),
        serde_json::json!({"key": "defaults.image", "value": null, "source": {"layer": "default"}})
    );
}

#[test]
fn what_is_shown_can_be_read_back_and_has_no_secret() {
    let host = Host::new();
    let (code, text) = host.config(&["show"], &[("TIDEBOX_SERVER_PORT", "80")]);
    assert_eq!(code, 0);
    assert!(text.contains("  port: 80  # TIDEBOX_SERVER_PORT\n"), "{text}");
    assert!(text.contains("  max_output_bytes: 8MiB  # built-in default\n"), "{text}");
    host.write("again.yaml", &text, 0o600);
    let without_sources = |text: &str| {
        text.lines().map(|line| line.split("  # ").next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    let (code, again) = config(&host.path("again.yaml"), &["show"], &[]);
    assert_eq!((code, without_sources(&again)), (0, without_sources(&text)));
    let inline = [("TIDEBOX_WORKERS_W1_URL", "https://w1.test"), ("TIDEBOX_WORKERS_W1_API_KEY", KEYS[0].1)];
    let (_, text) = host.config(&["show"], &inline);
    assert!(text.contains("    api_key: [hidden]  # TIDEBOX_WORKERS_W1_API_KEY\n"), "{text}");
}

#[test]
fn the_schema_for_editors_is_printed() {
    let output = finish(tidebox("", &["config", "schema"]).spawn().expect("it starts"));
    assert_eq!(String::from_utf8(output.stdout).expect("text"), include_str!("../../../../../config/schema.json"));
}
