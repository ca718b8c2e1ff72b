//! A line for every kind of fault.

use super::*;

#[test]
fn an_unknown_key_is_refused_with_the_nearest() {
    check("server: {prot: 1}", &["server.prot (@): is not a known key; did you mean `server.port`?"]);
    check("port: 1", &["port (@): is not a known key; did you mean `server.port`?"]);
    check("sevrer: {port: 1}", &["sevrer (@): is not a known key; did you mean `server`?"]);
    check("zzzzzzzzzzzzzzzz: 1", &["zzzzzzzzzzzzzzzz (@): is not a known key"]);
    check("server.port: 1", &["server.port (@): has a dot in its name; write each part as a separate section"]);
    check("<<: {server: {port: 1}}", &["<< (@): is not a known key"]);
    check("7: 1", &["7 (@): is not a known key"]);
}

#[test]
fn what_this_version_lacks_is_never_ignored() {
    const LINE: &str = "is not supported by this version of Tidebox; remove it";
    check(
        "events:\n  image: host\n  size: 2\n",
        &[&format!("events.image (@): {LINE}"), &format!("events.size (@): {LINE}")],
    );
    check("events:\n", &[&format!("events (@): {LINE}")]);
    check_env("TIDEBOX_EVENTS_SIZE", "1", &format!("events.size (TIDEBOX_EVENTS_SIZE): {LINE}"));
    check(
        "database: {url: 'postgres://u:hunter2@db/x'}",
        &[
            "database.url (@): PostgreSQL is not supported by this version of Tidebox; use sqlite:// and an absolute path, such as sqlite:///var/lib/tidebox/tidebox.db",
        ],
    );
}

#[test]
fn an_account_needs_a_key_and_its_domain_is_one() {
    let e2b = |keys: &str| format!("providers: {{e2b: {{{keys}}}}}");
    for fine in ["enabled: false", "enabled: auto", "enabled: true, api_key: k", "base_url: 'https://api.b.test'"] {
        check(&e2b(fine), &[]);
    }
    const NO_KEY: &str = "providers.e2b.enabled (@): needs the key of an account; set `providers.e2b.api_key` or \
                          `providers.e2b.api_key_file`";
    check(&e2b("enabled: true"), &[NO_KEY]);
    check(&e2b("templates: {'python:3.12': {template: py, memory_mb: 1024}, base: {vcpus: 2}}"), &[]);
    check(
        &e2b("templates: {'a b': {template: py}}"),
        &["providers.e2b.templates.a b.template (@): does not name an image; write it as a spawn does, such as \
           python:3.12"],
    );
    check(
        &e2b("domain: 'https://e2b.app'"),
        &["providers.e2b.domain (@): must be a domain, and a port if it needs one, such as boxes.example.com or \
           boxes.example.com:8443, not `https://e2b.app`"],
    );
    check(
        "providers: {default: e2b}",
        &["providers.default (@): names a provider that is not enabled; set `providers.e2b.enabled` to true"],
    );
    check("providers: {default: e2b, e2b: {enabled: true, api_key: k}}", &[]);
}

#[test]
fn firecracker_is_the_default_only_where_it_is_offered() {
    let kernel = tempfile::NamedTempFile::new().unwrap();
    let kernel = kernel.path().display();
    check(&format!("providers: {{default: firecracker, firecracker: {{kernel: {kernel}}}}}"), &[]);
    check("providers: {default: firecracker, firecracker: {enabled: true}}", &[]);
    check(
        "providers: {default: firecracker}",
        &["providers.default (@): names firecracker, which `providers.firecracker.enabled: auto` does not offer \
           without a guest kernel; set `providers.firecracker.kernel`"],
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
            "server.allowed_hosts (@): must be a host name without a scheme or port, such as boxes.example.com, not `a.test:80`",
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
        &[
            "providers.default (@): must be auto, native, docker, firecracker, proot, mock, e2b or custom (`providers.custom.name`)",
        ],
    );
    check(
        "providers: {default: proot}",
        &[
            "providers.default (@): names proot, which `providers.proot.enabled: auto` does not offer while no key is required; set `auth.enabled` to true, or `providers.proot.enabled` if you trust the code in its boxes with this server",
        ],
    );
    check("providers: {default: proot}\nauth: {enabled: true, api_key: k}", &[]);
    check("providers: {default: proot, proot: {enabled: true}}", &[]);
    check(
        "providers: {default: [native]}",
        &[
            "providers.default (@): must be auto, native, docker, firecracker, proot, mock, e2b or the name of custom, not a list",
        ],
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
            "providers.native.cgroup_parent (@): must be the path of a control group without . or .., such as tidebox.slice, not `a/../b`",
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
            "defaults.memory_mb (built-in default): 512 is above `defaults.max_memory_mb`, which is 511 (@); lower one or raise the other",
            "defaults.vcpus (@): 3 is above `defaults.max_vcpus`, which is 2 (@); lower one or raise the other",
        ],
    );
    check(
        "defaults: {max_disk_mb: all}",
        &["defaults.max_disk_mb (@): must be auto or a whole number from 1 to 16777216, not `all`"],
    );
    check(
        "defaults: {max_ttl: 10m}",
        &[
            "defaults.ttl (built-in default): 30m0s is above `defaults.max_ttl`, which is 10m0s (@); lower one or raise the other",
        ],
    );
    check(
        "defaults: {default_exec_timeout: 20m}",
        &[
            "defaults.default_exec_timeout (@): 20m0s is above `defaults.max_exec_timeout`, which is 10m0s (built-in default); lower one or raise the other",
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
            "providers.custom.enabled (@): needs the URL of a service; set `providers.custom.base_url`, for example to https://boxes.example.com",
        ],
    );
    check(
        "providers: {custom: {enabled: true, base_url: 'http://b', name: mock}}",
        &[
            "providers.custom.name (@): is the name of another provider; choose a name other than native, docker, firecracker, proot, mock, e2b",
        ],
    );
}

#[test]
fn a_file_that_is_no_configuration_is_refused() {
    check("[1, 2]", &["@: contains a list; write sections and keys"]);
    check("just words", &["@: contains a string; write sections and keys"]);
    let layers = TestLayers::new().here("server: [\n");
    let faults = layers.faults();
    assert!(faults.len() == 1 && faults[0].starts_with("here/tidebox.yaml: is not YAML: "), "{faults:?}");
    let layers = TestLayers::new().file("here/tidebox.yaml", b"\xff\xfe");
    assert_eq!(layers.faults(), ["here/tidebox.yaml: cannot be read: it is not UTF-8"]);
    let layers = TestLayers::new().here(&"# x\n".repeat(300_000));
    assert_eq!(layers.faults(), ["here/tidebox.yaml: cannot be read: it is larger than 1 MiB"]);
    let layers = TestLayers::new();
    std::fs::create_dir(layers.folder.path().join("here/tidebox.yaml")).unwrap();
    assert_eq!(layers.faults(), ["here/tidebox.yaml: cannot be read: Is a directory (os error 21)"]);
}

#[test]
fn all_faults_come_at_once_in_the_order_of_the_layers() {
    let layers = TestLayers::new()
        .of_user("server: {port: x, prot: 1}")
        .here("defaults: {max_ttl: 1m}\nevents: {size: 1}\nauth: {enabled: true}")
        .env("TIDEBOX_LOGGING_LEVEL", "loud");
    let keys: Vec<_> = load(&layers.inputs).unwrap_err().into_iter().map(|fault| fault.key).collect();
    assert_eq!(keys, ["server.port", "server.prot", "events.size", "logging.level", "defaults.ttl", "auth.enabled"]);
}

#[test]
fn a_fault_is_one_line_whatever_it_quotes() {
    for yaml in ["\"a\\nb\\e[31m\": 1", "server: {host: \"x\\ny\"}", "logging: {level: \"\\r\\n\"}", "data_dir: !tag x"]
    {
        let faults = TestLayers::new().here(yaml).faults();
        assert_eq!(faults.len(), 1, "{yaml}: {faults:?}");
        assert!(!faults[0].contains(char::is_control), "{faults:?}");
    }
}

#[test]
fn the_warm_pool_is_not_for_boxes_that_users_share() {
    check(
        "pool: {enabled: true}\nwarm_pool: {a: {count: 2}}\n",
        &["pool.enabled (@): cannot be true together with `warm_pool`, because several users share each box of \
           the pool; remove one of the two"],
    );
    check("warm_pool: {a: {count: 0}}\n", &["warm_pool.a.count (@): must be a whole number from 1 to 10000, not 0"]);
    check(
        "warm_pool: {a b: {count: 1}}\n",
        &["warm_pool.a b.count (@): has a name that is not 1 to 128 letters, digits, `.`, `_` or `-`"],
    );
}

#[test]
fn a_policy_on_egress_names_lists_that_exist_and_nothing_without_use() {
    let faults = |text: &str| TestLayers::new().here(text).faults();
    let owner = "egress: {lists: {a: {hosts: [a.example]}}, owners: {alice: {mode: allow-list, allow: ['@b']}}}";
    for (text, expected) in [
        ("egress: {mode: allow-list, allow: ['@a']}", "egress.allow: names `@a`, which is not in `egress.lists`"),
        ("egress: {deny: ['@a']}", "egress.deny: names `@a`, which is not in `egress.lists`"),
        (
            "egress: {default: {mode: open, allow: [a.example]}}",
            "egress.default.allow: has no effect with the mode `open`",
        ),
        (owner, "egress.owners.alice.allow: names `@b`, which is not in `egress.lists`"),
        ("egress: {allow: ['*.com']}", "egress.allow: must be a target such as pypi.org:443"),
        ("egress: {internal: ['@a']}", "egress.internal: must be a target such as pypi.org:443"),
        ("egress: {hosts: {10.0.0.1: [10.0.0.2]}}", "names an address; write the name of a host"),
        ("egress: {lists: {a b: {hosts: [a.example]}}}", "letters, digits"),
    ] {
        let faults = faults(text);
        let (key, words) = expected.split_once(": ").unwrap_or(("egress.", expected));
        let is_right = |fault: &String| fault.starts_with(key) && fault.contains(words);
        assert!(faults.len() == 1 && faults.iter().all(is_right), "{text}: {faults:?}");
    }
    let right = "egress: {mode: allow-list, allow: ['@a'], lists: {a: {hosts: ['*.a.example:443'], notes: ours}}, \
                 hosts: {Git.Internal: [10.0.0.1]}, internal: [10.0.0.1]}";
    let egress = TestLayers::new().here(right).load().config.egress;
    assert_eq!(egress.hosts.keys().collect::<Vec<_>>(), ["git.internal"]);
    assert_eq!(egress.targets_of_lists()["a"].len(), 1);
}
