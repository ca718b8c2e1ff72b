//! The layers together, and a line for every kind of fault.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

mod runtimes;
mod secrets;
mod show;
mod workers;

/// A folder with the files of a test.
struct Lab {
    folder: tempfile::TempDir,
    inputs: Inputs,
}

impl Lab {
    fn new() -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let inputs = Inputs {
            config_file: None,
            home: Some(folder.path().join("home")),
            current_dir: folder.path().join("here"),
            env: Vec::new(),
            is_root: true,
        };
        std::fs::create_dir_all(folder.path().join("home/.tidebox")).unwrap();
        std::fs::create_dir_all(folder.path().join("home/.docker")).unwrap();
        std::fs::create_dir_all(folder.path().join("here")).unwrap();
        Lab { folder, inputs }
    }

    fn of_user(self, text: &str) -> Lab {
        self.file("home/.tidebox/config.yaml", text)
    }

    fn here(self, text: &str) -> Lab {
        self.file("here/tidebox.yaml", text)
    }

    fn file(self, name: &str, text: impl AsRef<[u8]>) -> Lab {
        std::fs::write(self.folder.path().join(name), text).unwrap();
        self
    }

    fn env(mut self, name: &str, value: &str) -> Lab {
        self.inputs.env.push((name.into(), value.into()));
        self
    }

    fn load(&self) -> Loaded {
        load(&self.inputs).unwrap_or_else(|faults| panic!("{faults:#?}"))
    }

    /// The faults as lines, without the folder of the test.
    fn faults(&self) -> Vec<String> {
        let folder = format!("{}/", self.folder.path().display());
        let faults = load(&self.inputs).err().unwrap_or_default();
        faults.iter().map(|fault| fault.to_string().replace(&folder, "")).collect()
    }
}

/// `yaml` in `./tidebox.yaml` is refused with exactly these lines.
#[track_caller]
fn check(yaml: &str, expected: &[&str]) {
    let lab = Lab::new().here(yaml);
    let expected: Vec<_> = expected.iter().map(|line| line.replace('@', "here/tidebox.yaml")).collect();
    assert_eq!(lab.faults(), expected, "{yaml}");
}

/// The variable is refused with exactly this line.
#[track_caller]
fn check_env(name: &str, value: &str, expected: &str) {
    assert_eq!(Lab::new().env(name, value).faults(), [expected]);
}

#[test]
fn nothing_set_gives_the_defaults() {
    let loaded = Lab::new().load();
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
    assert_eq!(config.providers.native, Native { enabled: Enabled::Auto, subids: None, cgroup_parent: None });
    assert!(!config.providers.mock.enabled);
    assert!(loaded.warnings.is_empty() && loaded.sources.is_empty());
}

#[test]
fn an_ordinary_user_gets_a_folder_at_home() {
    let mut lab = Lab::new();
    lab.inputs.is_root = false;
    lab.inputs.home = Some("/home/ada".into());
    let config = lab.load().config;
    assert_eq!(config.data_dir, Path::new("/home/ada/.local/share/tidebox"));
    assert_eq!(config.database.path, Path::new("/home/ada/.local/share/tidebox/tidebox.db"));
    lab.inputs.home = None;
    assert_eq!(
        lab.faults(),
        ["data_dir (built-in default): cannot be derived, since HOME is not set; set it to a folder"]
    );
    assert_eq!(lab.env("TIDEBOX_DATA_DIR", "/srv").load().config.data_dir, Path::new("/srv"));
}

#[test]
fn a_stronger_layer_wins_and_the_others_still_count() {
    let lab = Lab::new()
        .of_user("server: {port: 1, preview_domain: one.test}\ndefaults: {vcpus: 2}\nlimits: {reserve_disk_mb: 5}\n")
        .here("server:\n  port: 2\ndefaults:\n  vcpus: 3\n")
        .env("TIDEBOX_DEFAULTS_VCPUS", "4");
    let loaded = lab.load();
    assert_eq!(loaded.config.server.port, 2);
    assert_eq!(loaded.config.server.preview_domain, "one.test");
    assert_eq!(loaded.config.defaults.vcpus, 4);
    assert_eq!(loaded.config.limits.reserve_disk_mb, 5);
    assert_eq!(loaded.sources["server.port"], Source::File(lab.inputs.current_dir.join("tidebox.yaml")));
    assert_eq!(loaded.sources["defaults.vcpus"], Source::Variable("TIDEBOX_DEFAULTS_VCPUS".to_owned()));
    assert!(!loaded.sources.contains_key("defaults.pids"));
}

#[test]
fn a_named_file_replaces_both_usual_ones() {
    let mut lab =
        Lab::new().of_user("server: {port: 1}").here("data_dir: /x").file("here/own.yaml", "defaults: {vcpus: 2}");
    lab.inputs.config_file = Some("own.yaml".into());
    let config = lab.load().config;
    assert_eq!((config.server.port, config.defaults.vcpus), (7423, 2));
    assert_eq!(config.data_dir, Path::new("/var/lib/tidebox"));
    lab.inputs.config_file = Some("missing.yaml".into());
    assert_eq!(lab.faults(), ["here/missing.yaml: cannot be read: No such file or directory (os error 2)"]);
}

#[test]
fn the_database_follows_the_data_folder_unless_it_is_set() {
    let config = Lab::new().here("data_dir: ~/boxes").load().config;
    assert!(config.data_dir.ends_with("home/boxes"));
    assert_eq!(config.database.path, config.data_dir.join("tidebox.db"));
    let config = Lab::new().here("database: {url: 'sqlite:///srv/t.db'}").load().config;
    assert_eq!(config.database.path, Path::new("/srv/t.db"));
    assert_eq!(config.data_dir, Path::new("/var/lib/tidebox"));
}

#[test]
fn every_key_can_be_set_by_its_variable() {
    for key in key::KEYS {
        let name = key.name.replace('*', "w1");
        let mut lab = Lab::new().env(&environment::variable(&name), &sample(key));
        if key.name.starts_with("workers.") {
            lab = lab.env("TIDEBOX_WORKERS_W1_URL", "https://w1.example.com:7423");
        }
        let mut loaded = lab.load();
        assert!(loaded.sources.contains_key(&name), "{name}: {:?}", loaded.warnings);
        clear_maps(&mut loaded.config);
        assert_eq!(loaded.config, Lab::new().load().config, "{name}");
    }
}

/// What a variable may say for the key without changing anything; of a map, a
/// sample.
fn sample(key: &key::Key) -> String {
    match (key.name, key.default) {
        ("auth.worker_tokens.*", _) => "token-of-w1",
        ("workers.*.url", _) => "https://w1.example.com:7423",
        ("images.registries.*.plain_http", _) => "false",
        (_, key::Default::Text(text) | key::Default::Derived(text)) => text,
        (_, key::Default::Unset) => "",
    }
    .to_owned()
}

fn clear_maps(config: &mut Config) {
    config.workers.clear();
    config.auth.worker_tokens.clear();
    config.images.registries.clear();
}

#[test]
fn entries_of_maps_have_a_variable_each() {
    let config = Lab::new()
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
    let config = Lab::new()
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
    let lab = Lab::new().of_user("defaults: {image: host}").here("defaults: {image: null}");
    assert_eq!(lab.load().config.defaults.image, None);
    check("server: {port: null}\n", &["server.port (@): must be a whole number from 0 to 65535, not nothing"]);
}

#[test]
fn an_unknown_variable_warns_and_names_the_nearest() {
    let loaded = Lab::new()
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
            "`TIDEBOX_SERVER_PROT` sets no key; did you mean TIDEBOX_SERVER_PORT (`server.port`)?",
            "`TIDEBOX_ZZZZZZZZZZZZZZZZZZZZ` sets no key",
        ]
    );
    assert_eq!(loaded.config, Lab::new().load().config);
}

#[test]
fn an_open_address_and_a_missing_default_warn() {
    let warnings = Lab::new().here("server: {host: '::'}\nproviders: {native: {enabled: false}, docker: {enabled: false}, proot: {enabled: false}}").load().warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("a spawn must name its provider"));
    assert!(warnings[1].contains("`auth.enabled` is false"));
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest() {
    check("server: {prot: 1}", &["server.prot (@): is no key; did you mean `server.port`?"]);
    check("port: 1", &["port (@): is no key; did you mean `server.port`?"]);
    check("sevrer: {port: 1}", &["sevrer (@): is no key; did you mean `server`?"]);
    check("zzzzzzzzzzzzzzzz: 1", &["zzzzzzzzzzzzzzzz (@): is no key"]);
    check("server.port: 1", &["server.port (@): has a dot in its name; write each part as a section of its own"]);
    check("<<: {server: {port: 1}}", &["<< (@): is no key"]);
    check("7: 1", &["7 (@): is no key"]);
}

#[test]
fn what_this_version_lacks_is_never_ignored() {
    const LINE: &str = "is not supported by this version of Tidebox; remove it";
    check(
        "warm_pool:\n  image: host\n  size: 2\n",
        &[&format!("warm_pool.image (@): {LINE}"), &format!("warm_pool.size (@): {LINE}")],
    );
    check("warm_pool:\n", &[&format!("warm_pool (@): {LINE}")]);
    check("providers: {e2b: {enabled: auto}}", &[&format!("providers.e2b.enabled (@): {LINE}")]);
    check_env("TIDEBOX_WARM_POOL_SIZE", "1", &format!("warm_pool.size (TIDEBOX_WARM_POOL_SIZE): {LINE}"));
    check(
        "providers: {default: e2b}",
        &[
            "providers.default (@): e2b is not supported by this version of Tidebox; write auto, native, docker, proot, mock or the name of custom",
        ],
    );
    check(
        "database: {url: 'postgres://u:hunter2@db/x'}",
        &[
            "database.url (@): PostgreSQL is not supported by this version of Tidebox; use sqlite:// and an absolute path, such as sqlite:///var/lib/tidebox/tidebox.db",
        ],
    );
}

#[test]
fn a_wrong_type_is_told_what_would_be_right() {
    check("server: {port: many}", &["server.port (@): must be a whole number from 0 to 65535, not `many`"]);
    check("server: {port: '80'}", &["server.port (@): must be a whole number from 0 to 65535, not `80`"]);
    check("server: {port: 80.5}", &["server.port (@): must be a whole number from 0 to 65535, not 80.5"]);
    check("server: {port: 65536}", &["server.port (@): must be a whole number from 0 to 65535, not 65536"]);
    check("server: {port: -1}", &["server.port (@): must be a whole number from 0 to 65535, not -1"]);
    check("server: {port: [1]}", &["server.port (@): must be a whole number from 0 to 65535, not a list"]);
    check("server: {port: {a: 1}}", &["server.port (@): must be a whole number from 0 to 65535, not a section"]);
    check("server: 5", &["server (@): is a section, not a number; write its keys below it"]);
    check("server: {host: localhost}", &["server.host (@): must be an IP address, such as 127.0.0.1, not `localhost`"]);
    check("server: {allowed_hosts: a.test}", &["server.allowed_hosts (@): must be a list, not `a.test`"]);
    check(
        "server: {allowed_hosts: ['a.test:80']}",
        &[
            "server.allowed_hosts (@): must be a host name without scheme and port, such as boxes.example.com, not `a.test:80`",
        ],
    );
    check("data_dir: boxes", &["data_dir (@): must be an absolute path, not `boxes`"]);
    check("data_dir: ''", &["data_dir (@): must be an absolute path, not empty"]);
    check("defaults: {memory_mb: 15}", &["defaults.memory_mb (@): must be a whole number from 16 to 16777216, not 15"]);
    check(
        "limits: {max_output_bytes: 8MB}",
        &["limits.max_output_bytes (@): must be a size from 1 to 1GiB, such as 8MiB or 8388608, not `8MB`"],
    );
    check(
        "limits: {max_file_bytes: 99999999999TiB}",
        &["limits.max_file_bytes (@): must be a size from 1 to 16TiB, such as 8MiB or 8388608, not `99999999999TiB`"],
    );
    check(
        "database: {url: 'sqlite://t.db'}",
        &[
            "database.url (@): must be sqlite:// and an absolute path, such as sqlite:///var/lib/tidebox/tidebox.db, not `sqlite://t.db`",
        ],
    );
    check_env(
        "TIDEBOX_DEFAULTS_VCPUS",
        "",
        "defaults.vcpus (TIDEBOX_DEFAULTS_VCPUS): must be a whole number from 1 to 1024, not ``",
    );
}

#[test]
fn a_bad_word_is_told_the_words() {
    check("logging: {level: loud}", &["logging.level (@): must be error, warn, info, debug or trace, not `loud`"]);
    check("logging: {format: true}", &["logging.format (@): must be auto, pretty or json, not true"]);
    check(
        "providers: {default: podman}",
        &["providers.default (@): must be auto, native, docker, proot, mock or custom (`providers.custom.name`)"],
    );
    check(
        "providers: {default: proot}",
        &[
            "providers.default (@): names proot, which `providers.proot.enabled: auto` does not offer while no key is asked for; set `auth.enabled` to true, or `providers.proot.enabled` if you trust the code in its boxes with this server",
        ],
    );
    check("providers: {default: proot}\nauth: {enabled: true, api_key: k}", &[]);
    check("providers: {default: proot, proot: {enabled: true}}", &[]);
    check(
        "providers: {default: [native]}",
        &["providers.default (@): must be auto, native, docker, proot, mock or the name of custom, not a list"],
    );
    check("providers: {native: {enabled: 1}}", &["providers.native.enabled (@): must be auto, true or false, not 1"]);
    check(
        "providers: {native: {subids: 0:65536}}",
        &[
            "providers.native.subids (@): must be first:count, such as 1000000:6553600, with first and count at least 65536 (a box takes 65536), not `0:65536`",
        ],
    );
    check(
        "providers: {native: {cgroup_parent: a/../b}}",
        &[
            "providers.native.cgroup_parent (@): must be the path of a control group without . and .., such as tidebox.slice, not `a/../b`",
        ],
    );
}

#[test]
fn a_bad_duration_is_told_why() {
    check(
        "defaults: {ttl: 5 minutes}",
        &[
            "defaults.ttl (@): `5 minutes` is not a duration; write numbers with units ms, s, m or h, such as 30s or 1h30m",
        ],
    );
    check("defaults: {ttl: -5s}", &["defaults.ttl (@): `-5s` is negative; durations cannot be negative"]);
    check("defaults: {ttl: 0s}", &["defaults.ttl (@): must be longer than zero, such as 30s, not `0s`"]);
    check("defaults: {ttl: 30}", &["defaults.ttl (@): must be a duration, such as 30s or 1h30m, not 30"]);
    check("retention: {destroyed: 0s}", &[]);
}

#[test]
fn a_key_given_twice_is_refused() {
    check("server: {port: 1}\nserver: {port: 2}", &["server (@): is given twice; keep one"]);
    check("server:\n  port: 1\n  port: 1\n", &["server.port (@): is given twice; keep one"]);
}

#[test]
fn values_that_contradict_each_other_are_refused() {
    check(
        "defaults: {max_memory_mb: 511, vcpus: 3, max_vcpus: 2}",
        &[
            "defaults.memory_mb (built-in default): 512 is above `defaults.max_memory_mb`, which is 511 (@); lower the one or raise the other",
            "defaults.vcpus (@): 3 is above `defaults.max_vcpus`, which is 2 (@); lower the one or raise the other",
        ],
    );
    check(
        "defaults: {max_disk_mb: all}",
        &["defaults.max_disk_mb (@): must be auto or a whole number from 1 to 16777216, not `all`"],
    );
    check(
        "defaults: {max_ttl: 10m}",
        &[
            "defaults.ttl (built-in default): 30m0s is above `defaults.max_ttl`, which is 10m0s (@); lower the one or raise the other",
        ],
    );
    check(
        "defaults: {default_exec_timeout: 20m}",
        &[
            "defaults.default_exec_timeout (@): 20m0s is above `defaults.max_exec_timeout`, which is 10m0s (built-in default); lower the one or raise the other",
        ],
    );
    check(
        "providers: {default: mock}",
        &["providers.default (@): names a provider that is not enabled; set `providers.mock.enabled` to true"],
    );
    check(
        "providers: {default: mock, mock: {enabled: auto}}",
        &["providers.default (@): names a provider that is not enabled; set `providers.mock.enabled` to true"],
    );
    check(
        "providers: {default: native, native: {enabled: false}}",
        &["providers.default (@): names a provider that is not enabled; set `providers.native.enabled` to true"],
    );
    check(
        "providers: {default: far, custom: {name: far}}",
        &["providers.default (@): names a provider that is not enabled; set `providers.custom.enabled` to true"],
    );
    check(
        "providers: {custom: {enabled: true}}",
        &[
            "providers.custom.enabled (@): needs a service to speak to; set `providers.custom.base_url`, such as https://boxes.example.com",
        ],
    );
    check(
        "providers: {custom: {enabled: true, base_url: 'http://b', name: mock}}",
        &[
            "providers.custom.name (@): is the name of another provider; choose one beside native, docker, firecracker, proot, mock, e2b",
        ],
    );
}

#[test]
fn a_file_that_is_no_configuration_is_refused() {
    check("[1, 2]", &["@: holds a list; write sections and keys"]);
    check("just words", &["@: holds a text; write sections and keys"]);
    let lab = Lab::new().here("server: [\n");
    let faults = lab.faults();
    assert!(faults.len() == 1 && faults[0].starts_with("here/tidebox.yaml: is not YAML: "), "{faults:?}");
    let lab = Lab::new().file("here/tidebox.yaml", b"\xff\xfe");
    assert_eq!(lab.faults(), ["here/tidebox.yaml: cannot be read: it is not UTF-8"]);
    let lab = Lab::new().here(&"# x\n".repeat(300_000));
    assert_eq!(lab.faults(), ["here/tidebox.yaml: cannot be read: it is larger than 1 MiB"]);
    let lab = Lab::new();
    std::fs::create_dir(lab.folder.path().join("here/tidebox.yaml")).unwrap();
    assert_eq!(lab.faults(), ["here/tidebox.yaml: cannot be read: Is a directory (os error 21)"]);
}

#[test]
fn all_faults_come_at_once_in_the_order_of_the_layers() {
    let lab = Lab::new()
        .of_user("server: {port: x, prot: 1}")
        .here("defaults: {max_ttl: 1m}\nwarm_pool: {size: 1}\nauth: {enabled: true}")
        .env("TIDEBOX_LOGGING_LEVEL", "loud");
    let keys: Vec<_> = load(&lab.inputs).unwrap_err().into_iter().map(|fault| fault.key).collect();
    assert_eq!(keys, ["server.port", "server.prot", "warm_pool.size", "logging.level", "defaults.ttl", "auth.enabled"]);
}

#[test]
fn a_fault_is_one_line_whatever_it_quotes() {
    for yaml in ["\"a\\nb\\e[31m\": 1", "server: {host: \"x\\ny\"}", "logging: {level: \"\\r\\n\"}", "data_dir: !tag x"]
    {
        let faults = Lab::new().here(yaml).faults();
        assert_eq!(faults.len(), 1, "{yaml}: {faults:?}");
        assert!(!faults[0].contains(char::is_control), "{faults:?}");
    }
}

#[test]
fn the_example_file_names_every_key_once_with_its_default() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/example.yaml");
    if std::env::var_os("TIDEBOX_UPDATE_EXAMPLE").is_some() {
        std::fs::write(path, example()).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap();
    assert_eq!(
        committed,
        example(),
        "config/example.yaml differs from the table of keys; TIDEBOX_UPDATE_EXAMPLE=1 writes it anew"
    );
    let enabled: String = committed.lines().map(|line| format!("{}\n", uncommented(line))).collect();
    let mut loaded = Lab::new().here(&enabled).load();
    let set: BTreeSet<_> = loaded.sources.keys().cloned().collect();
    assert_eq!(set, key::KEYS.iter().map(|key| key.name.replace('*', "w1")).collect());
    clear_maps(&mut loaded.config);
    assert_eq!(loaded.config, Lab::new().load().config);
    assert_eq!(Lab::new().here(&committed).load().sources.len(), 0, "as it is, it sets nothing");
}

/// A key's line starts with `#`, one of prose with `# `.
fn uncommented(line: &str) -> String {
    match line.trim_start().strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase()) => line.replacen('#', "", 1),
        _ => line.to_owned(),
    }
}

/// What `config/example.yaml` must be.
fn example() -> String {
    let mut text = "# Every key of Tidebox with its default. Copy it to ./tidebox.yaml or\n\
                    # ~/.tidebox/config.yaml and take the # away before what you change. Of maps\n\
                    # there is a sample entry, w1. docs/configuration.md tells about layers,\n\
                    # variables and faults.\n"
        .to_owned();
    let settings = Lab::new().load().settings();
    let mut open: Vec<&str> = Vec::new();
    for key in key::KEYS {
        let mut sections: Vec<_> = key.name.split('.').map(|part| if part == "*" { "w1" } else { part }).collect();
        let name = sections.pop().unwrap();
        let shared = open.iter().zip(&sections).take_while(|(a, b)| a == b).count();
        if shared == 0 {
            text.push('\n');
        }
        for (depth, section) in sections.iter().enumerate().skip(shared) {
            let mark = if *section == "w1" { "#" } else { "" };
            writeln!(text, "{}{mark}{section}:", "  ".repeat(depth)).unwrap();
        }
        let indent = "  ".repeat(sections.len());
        for line in key.doc {
            writeln!(text, "{indent}# {line}").unwrap();
        }
        let shown = settings.iter().find(|setting| setting.key == key.name).map(|setting| setting.yaml().to_owned());
        let value = shown.unwrap_or_else(|| match sample(key) {
            text if text.is_empty() => "null".to_owned(),
            text => text,
        });
        writeln!(text, "{indent}#{name}: {value}").unwrap();
        open = sections;
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_text_makes_the_reader_panic(text in "[\\PC\\n\\t&*:{}\\[\\]#!|>'\"-]{0,80}") {
        read_text(&text);
    }

    #[test]
    fn no_value_of_a_known_key_makes_the_reader_panic(
        key in 0..key::KEYS.len(),
        value in "(\\PC{0,30}|-?[0-9]{1,45}(\\.[0-9]{1,5})?(MiB|s|m|h)?|[\\[\\]{}0-9a-z, :.]{0,20})",
    ) {
        let name = key::KEYS[key].name;
        let mut text = String::new();
        let parts: Vec<_> = name.split('.').collect();
        for (depth, part) in parts.iter().enumerate() {
            write!(text, "\n{}{part}:", "  ".repeat(depth)).unwrap();
        }
        read_text(&format!("{text} {value}\n"));
        let mut draft = Draft::new(&inputs_without_files());
        environment::apply(&[(environment::variable(name).into(), value.into())], &mut draft);
        check::finish(&mut draft);
    }
}

fn inputs_without_files() -> Inputs {
    Inputs { config_file: None, home: None, current_dir: "/nonexistent".into(), env: Vec::new(), is_root: true }
}

fn read_text(text: &str) {
    let mut draft = Draft::new(&inputs_without_files());
    file::apply_text(text, &Source::Default, &mut draft);
    check::finish(&mut draft);
    for fault in draft.faults {
        assert!(!fault.to_string().contains(char::is_control), "{fault}");
    }
}
