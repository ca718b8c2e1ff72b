//! Tests of the layers together.

use std::path::Path;
use std::time::Duration;

use super::declare::{Key, Section as _};
use super::draft::Draft;
use super::inputs::files;
use super::*;

mod faults;
mod generated;
mod reader;
mod runtimes;
mod secrets;
mod show;
mod workers;

/// A folder with the files of a test.
struct TestLayers {
    folder: tempfile::TempDir,
    inputs: Inputs,
}

impl TestLayers {
    fn new() -> TestLayers {
        let folder = tempfile::tempdir().unwrap();
        let inputs = Inputs {
            config_file: None,
            of_machine: Some(folder.path().join("etc/tidebox/config.yaml")),
            home: Some(folder.path().join("home")),
            current_dir: folder.path().join("here"),
            env: Vec::new(),
            is_root: true,
        };
        std::fs::create_dir_all(folder.path().join("etc/tidebox")).unwrap();
        std::fs::create_dir_all(folder.path().join("home/.tidebox")).unwrap();
        std::fs::create_dir_all(folder.path().join("home/.docker")).unwrap();
        std::fs::create_dir_all(folder.path().join("here")).unwrap();
        TestLayers { folder, inputs }
    }

    fn of_machine(self, text: &str) -> TestLayers {
        self.file("etc/tidebox/config.yaml", text)
    }

    fn of_user(self, text: &str) -> TestLayers {
        self.file("home/.tidebox/config.yaml", text)
    }

    fn here(self, text: &str) -> TestLayers {
        self.file("here/tidebox.yaml", text)
    }

    fn file(self, name: &str, text: impl AsRef<[u8]>) -> TestLayers {
        std::fs::write(self.folder.path().join(name), text).unwrap();
        self
    }

    fn env(mut self, name: &str, value: &str) -> TestLayers {
        self.inputs.env.push((name.into(), value.into()));
        self
    }

    /// Loads a configuration without faults. Its files fit the schema, too.
    fn load(&self) -> Loaded {
        for (file, _) in files(&self.inputs) {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            assert_eq!(generated::misfits(&text), [""; 0], "{text}");
        }
        load(&self.inputs).unwrap_or_else(|faults| panic!("{faults:#?}"))
    }

    /// Returns the faults as lines, without the folder of the test.
    fn faults(&self) -> Vec<String> {
        let folder = format!("{}/", self.folder.path().display());
        let faults = load(&self.inputs).err().unwrap_or_default();
        faults.iter().map(|fault| fault.to_string().replace(&folder, "")).collect()
    }
}

/// Checks that `yaml` in `./tidebox.yaml` is refused with exactly these lines.
#[track_caller]
fn check(yaml: &str, expected: &[&str]) {
    let layers = TestLayers::new().here(yaml);
    let expected: Vec<_> = expected.iter().map(|line| line.replace('@', "here/tidebox.yaml")).collect();
    assert_eq!(layers.faults(), expected, "{yaml}");
}

/// Checks that the variable is refused with exactly this line.
#[track_caller]
fn check_env(name: &str, value: &str, expected: &str) {
    assert_eq!(TestLayers::new().env(name, value).faults(), [expected]);
}

#[test]
fn nothing_set_gives_the_defaults() {
    let loaded = TestLayers::new().load();
    let config = &loaded.config;
    assert_eq!(config.server.host.to_string(), "127.0.0.1");
    assert_eq!(config.server.port, 7423);
    assert_eq!(config.server.preview_domain, "localhost");
    assert_eq!(config.server.allowed_hosts, [""; 0]);
    assert_eq!(config.data_dir, Path::new("/var/lib/tidebox"));
    assert_eq!(config.database.path, Path::new("/var/lib/tidebox/tidebox.db"));
    assert_eq!(config.defaults.image, None);
    assert_eq!(config.defaults.ttl, Duration::from_secs(1800));
    assert_eq!((config.defaults.memory_mb, config.defaults.vcpus, config.defaults.pids), (512, 1, 256));
    assert_eq!(config.defaults.max_ttl, Duration::from_secs(86_400));
    assert_eq!(config.defaults.default_exec_timeout, Duration::from_secs(60));
    assert_eq!(config.defaults.max_exec_timeout, Duration::from_secs(600));
    let defaults = &config.defaults;
    assert_eq!((defaults.max_memory_mb, defaults.max_vcpus, defaults.max_disk_mb), (None, None, None));
    assert_eq!((config.defaults.max_sandboxes, config.defaults.max_sandboxes_per_owner), (0, 0));
    assert_eq!((config.limits.max_output_bytes, config.limits.max_file_bytes), (8 << 20, 1 << 30));
    assert_eq!((config.limits.reserve_disk_mb, config.limits.reserve_inodes), (1024, 10_000));
    assert_eq!(config.limits.request_memory_mb, 256);
    assert_eq!((config.limits.max_templates, config.limits.max_quotas), (1_000, 10_000));
    assert_eq!((config.retention.max_failed, config.retention.max_failed_per_owner), (1_000, 100));
    assert_eq!((config.retention.max_destroyed, config.retention.max_destroyed_per_owner), (10_000, 1_000));
    assert_eq!(config.retention.destroyed, Duration::from_secs(86_400));
    assert_eq!(config.logging, Logging { level: Level::Info, format: Format::Auto });
    assert_eq!(config.providers.default, DefaultProvider::Auto);
    let native =
        Native { enabled: Enabled::Auto, subids: None, cgroup_parent: None, transparent_egress: false, fsync: false };
    assert_eq!(config.providers.native, native);
    assert!(!config.providers.mock.enabled);
    assert!(loaded.warnings.is_empty() && loaded.sources.is_empty());
}

#[test]
fn an_ordinary_user_gets_a_folder_at_home() {
    let mut layers = TestLayers::new();
    layers.inputs.is_root = false;
    layers.inputs.home = Some("/home/ada".into());
    let config = layers.load().config;
    assert_eq!(config.data_dir, Path::new("/home/ada/.local/share/tidebox"));
    assert_eq!(config.database.path, Path::new("/home/ada/.local/share/tidebox/tidebox.db"));
    layers.inputs.home = None;
    assert_eq!(
        layers.faults(),
        ["data_dir (built-in default): cannot be derived because HOME is not set; set it to a folder"]
    );
    assert_eq!(layers.env("TIDEBOX_DATA_DIR", "/srv").load().config.data_dir, Path::new("/srv"));
}

#[test]
fn a_stronger_layer_wins_and_the_others_still_count() {
    let layers = TestLayers::new()
        .of_user("server: {port: 1, preview_domain: one.test}\ndefaults: {vcpus: 2}\nlimits: {reserve_disk_mb: 5}\n")
        .here("server:\n  port: 2\ndefaults:\n  vcpus: 3\n")
        .env("TIDEBOX_DEFAULTS_VCPUS", "4");
    let loaded = layers.load();
    assert_eq!(loaded.config.server.port, 2);
    assert_eq!(loaded.config.server.preview_domain, "one.test");
    assert_eq!(loaded.config.defaults.vcpus, 4);
    assert_eq!(loaded.config.limits.reserve_disk_mb, 5);
    assert_eq!(loaded.sources["server.port"], Source::File(layers.inputs.current_dir.join("tidebox.yaml")));
    assert_eq!(loaded.sources["defaults.vcpus"], Source::Variable("TIDEBOX_DEFAULTS_VCPUS".to_owned()));
    assert!(!loaded.sources.contains_key("defaults.pids"));
}

#[test]
fn the_file_of_the_machine_counts_below_that_of_the_user_and_is_named() {
    let layers = TestLayers::new()
        .of_machine("server: {port: 1}\ndefaults: {vcpus: 2}\nlimits: {reserve_disk_mb: 5}")
        .of_user("server: {port: 3}");
    let loaded = layers.load();
    assert_eq!((loaded.config.server.port, loaded.config.defaults.vcpus), (3, 2));
    let file = layers.folder.path().join("etc/tidebox/config.yaml");
    assert_eq!(loaded.sources["limits.reserve_disk_mb"], Source::File(file));
    let faults = TestLayers::new().of_machine("server: {prot: 1}").faults();
    assert_eq!(faults, ["server.prot (etc/tidebox/config.yaml): is not a known key; did you mean `server.port`?"]);
}

#[test]
fn the_file_of_the_machine_is_in_etc_unless_a_variable_says_otherwise() {
    let inputs = Inputs::from_process(None);
    let usual = Some("/etc/tidebox/config.yaml".into());
    let named = std::env::var_os("TIDEBOX_SYSTEM_CONFIG").map(|path| (!path.is_empty()).then(|| path.into()));
    assert_eq!(inputs.of_machine, named.unwrap_or(usual));
    assert_eq!(TestLayers::new().env("TIDEBOX_SYSTEM_CONFIG", "/x").load().warnings, [""; 0]);
}

#[test]
fn a_named_file_replaces_all_usual_ones() {
    let mut layers = TestLayers::new()
        .of_machine("server: {port: 5}")
        .of_user("server: {port: 1}")
        .here("data_dir: /x")
        .file("here/own.yaml", "defaults: {vcpus: 2}");
    layers.inputs.config_file = Some("own.yaml".into());
    let config = layers.load().config;
    assert_eq!((config.server.port, config.defaults.vcpus), (7423, 2));
    assert_eq!(config.data_dir, Path::new("/var/lib/tidebox"));
    layers.inputs.config_file = Some("missing.yaml".into());
    assert_eq!(layers.faults(), ["here/missing.yaml: cannot be read: No such file or directory (os error 2)"]);
}

#[test]
fn the_database_follows_the_data_folder_unless_it_is_set() {
    let config = TestLayers::new().here("data_dir: ~/boxes").load().config;
    assert!(config.data_dir.ends_with("home/boxes"));
    assert_eq!(config.database.path, config.data_dir.join("tidebox.db"));
    let config = TestLayers::new().here("database: {url: 'sqlite:///srv/t.db'}").load().config;
    assert_eq!(config.database.path, Path::new("/srv/t.db"));
    assert_eq!(config.data_dir, Path::new("/var/lib/tidebox"));
}

#[test]
fn every_key_can_be_set_by_its_variable() {
    for key in keys::keys() {
        let name = key.name.replace('*', "w1");
        let mut layers = TestLayers::new().env(&environment::variable(&name), sample(key));
        if key.name.starts_with("workers.") {
            layers = layers.env("TIDEBOX_WORKERS_W1_URL", "https://w1.example.com:7423");
        }
        let mut loaded = layers.load();
        assert!(loaded.sources.contains_key(&name), "{name}: {:?}", loaded.warnings);
        clear_maps(&mut loaded.config);
        assert_eq!(loaded.config, TestLayers::new().load().config, "{name}");
    }
}

/// Returns a value that a variable may give the key without changing anything; of a map, a
/// sample.
fn sample(key: &Key) -> &'static str {
    match key.name.as_str() {
        "data_dir" => "/var/lib/tidebox",
        "database.url" => "sqlite:///var/lib/tidebox/tidebox.db",
        "auth.worker_tokens.*" => "token-of-w1",
        "workers.*.url" => "https://w1.example.com:7423",
        _ => key.default.unwrap_or_default(),
    }
}

fn clear_maps(config: &mut Config) {
    config.workers.clear();
    config.auth.worker_tokens.clear();
    config.images.registries.clear();
    config.egress.hosts.clear();
    config.egress.lists.clear();
    config.egress.owners.clear();
    config.warm_pool.clear();
    config.providers.e2b.templates.clear();
}

#[test]
fn entries_of_maps_have_a_variable_each() {
    let config = TestLayers::new()
        .env("TIDEBOX_AUTH_WORKER_TOKENS_W1", "one")
        .env("TIDEBOX_AUTH_WORKER_TOKENS_GPU_2", "two")
        .env("TIDEBOX_AUTH_WORKER_TOKEN", "shared")
        .env("TIDEBOX_WORKERS_W1_URL", "https://w1.test/")
        .env("TIDEBOX_WORKERS_W1_API_KEY", "three")
        .load()
        .config;
    assert_eq!(config.auth.worker_tokens["w1"].expose(), "one");
    assert_eq!(config.auth.worker_tokens["gpu_2"].expose(), "two");
    assert_eq!(config.auth.worker_token.unwrap().expose(), "shared");
    assert_eq!(config.workers["w1"].url, "https://w1.test");
    assert_eq!(config.workers["w1"].api_key.as_ref().unwrap().expose(), "three");
}

#[test]
fn variables_are_read_by_the_type_of_their_key() {
    let config = TestLayers::new()
        .env("TIDEBOX_SERVER_ALLOWED_HOSTS", "A.example, b.example,::1")
        .env("TIDEBOX_LIMITS_MAX_OUTPUT_BYTES", "64KiB")
        .env("TIDEBOX_LIMITS_MAX_FILE_BYTES", "4096")
        .env("TIDEBOX_DEFAULTS_MAX_EXEC_TIMEOUT", "1h30m")
        .env("TIDEBOX_PROVIDERS_MOCK_ENABLED", "true")
        .env("TIDEBOX_PROVIDERS_DEFAULT", "mock")
        .env("TIDEBOX_PROVIDERS_NATIVE_SUBIDS", "200000:131072")
        .env("TIDEBOX_DEFAULTS_IMAGE", "host")
        .load()
        .config;
    assert_eq!(config.server.allowed_hosts, ["a.example", "b.example", "::1"]);
    assert_eq!((config.limits.max_output_bytes, config.limits.max_file_bytes), (65_536, 4096));
    assert_eq!(config.defaults.max_exec_timeout, Duration::from_secs(5400));
    assert!(config.providers.mock.enabled);
    assert_eq!(config.providers.default, DefaultProvider::Named("mock".to_owned()));
    assert_eq!(config.providers.native.subids, Some((200_000, 131_072)));
    assert_eq!(config.defaults.image.as_deref(), Some("host"));
}

#[test]
fn null_takes_back_what_a_weaker_layer_set() {
    let layers = TestLayers::new().of_user("defaults: {image: host}").here("defaults: {image: null}");
    assert_eq!(layers.load().config.defaults.image, None);
    check("server: {port: null}\n", &["server.port (@): must be a whole number from 0 to 65535, not nothing"]);
}

#[test]
fn an_unknown_variable_warns_and_names_the_nearest() {
    let loaded = TestLayers::new()
        .env("TIDEBOX_SERVER_PROT", "1")
        .env("TIDEBOX_ZZZZZZZZZZZZZZZZZZZZ", "1")
        .env("TIDEBOX_URL", "http://localhost")
        .env("TIDEBOX_API_KEY", "x")
        .env("TIDEBOX_USER_ID", "x")
        .env("OTHER_SERVER_PORT", "x")
        .load();
    assert_eq!(
        loaded.warnings,
        [
            "`TIDEBOX_SERVER_PROT` does not set any key; did you mean TIDEBOX_SERVER_PORT (`server.port`)?",
            "`TIDEBOX_ZZZZZZZZZZZZZZZZZZZZ` does not set any key",
        ]
    );
    assert_eq!(loaded.config, TestLayers::new().load().config);
}

#[test]
fn an_open_address_and_a_missing_default_warn() {
    let warnings = TestLayers::new().here("server: {host: '::'}\nproviders: {native: {enabled: false}, docker: {enabled: false}, proot: {enabled: false}}").load().warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("a spawn must name its provider"));
    assert!(warnings[1].contains("`auth.enabled` is false"));
}
