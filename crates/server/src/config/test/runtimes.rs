//! Tests of the keys of images and providers.

use images::PullPolicy;

use super::*;

#[test]
fn a_registry_is_called_by_its_host_and_port() {
    let layers = TestLayers::new()
        .here(
            "images: {registries: {docker.io: {mirrors: ['mirror.test:5000']}, 'localhost:5000': {plain_http: true}}}",
        )
        .env("TIDEBOX_IMAGES_REGISTRIES_REG_EXAMPLE_COM__8443_USERNAME", "ada")
        .env("TIDEBOX_IMAGES_REGISTRIES_REG_EXAMPLE_COM__8443_PASSWORD", "s3cret");
    let loaded = layers.load();
    let registries = &loaded.config.images.registries;
    assert_eq!(registries["docker.io"].mirrors, ["mirror.test:5000"]);
    assert!(registries["localhost:5000"].plain_http);
    let login = &registries["reg.example.com:8443"];
    assert_eq!((login.username.as_deref(), login.password.as_ref().unwrap().expose()), (Some("ada"), "s3cret"));
    assert_eq!(registries.len(), 3);
    let shown = nested(&loaded.settings());
    assert!(!shown.contains("s3cret") && shown.contains("reg.example.com:8443"), "{shown}");
    let again = TestLayers::new().here(&shown.replace("[hidden]", "s3cret")).load();
    assert_eq!(again.config.images, loaded.config.images, "{shown}");
}

#[test]
fn a_registry_that_cannot_be_is_refused() {
    const SAID: &str = "does not name a registry; write its host, and its port if it has one, such as localhost:5000";
    for host in ["https://docker.io", "docker.io/library", "a b", "docker.io:", "docker.io:x", "docker.io:65536", ".io"]
    {
        let key = format!("images.registries.{host}.plain_http");
        check(&format!("images: {{registries: {{'{host}': {{plain_http: true}}}}}}"), &[&format!("{key} (@): {SAID}")]);
    }
    check(
        "images: {registries: {docker.io: {mirror: [a.test]}}}",
        &["images.registries.docker.io.mirror (@): is not a known key; did you mean `images.registries.*.mirrors`?"],
    );
    check(
        "images: {registries: {docker.io: {mirrors: ['https://a.test']}}}",
        &[
            "images.registries.docker.io.mirrors (@): must be a host and its port without a scheme, such as mirror.example.com:5000, not `https://a.test`",
        ],
    );
}

#[test]
fn half_a_login_is_refused() {
    check(
        "images: {registries: {a.test: {username: ada}}}",
        &["images.registries.a.test.username (@): needs `images.registries.a.test.password`; set both, or neither"],
    );
    check(
        "images: {registries: {a.test: {password: s3cret}}}",
        &["images.registries.a.test.password (@): needs `images.registries.a.test.username`; set both, or neither"],
    );
}

#[test]
fn the_store_waits_five_minutes_and_keeps_what_it_has() {
    let images = TestLayers::new().load().config.images;
    assert_eq!((images.pull, images.pull_timeout), (PullPolicy::Missing, Duration::from_secs(300)));
    assert_eq!((images.max_mb, images.max_image_mb, images.docker_config), (0, 32_768, None));
}

#[test]
fn the_logins_of_docker_are_used_where_they_are() {
    let layers = TestLayers::new().file("home/.docker/config.json", "{}");
    let found = layers.load().config.images.docker_config.unwrap();
    assert!(found.ends_with("home/.docker/config.json"), "{}", found.display());
    let layers = layers.env("TIDEBOX_IMAGES_DOCKER_CONFIG", "/etc/passwd");
    assert_eq!(layers.load().config.images.docker_config.as_deref(), Some(Path::new("/etc/passwd")));
}

#[test]
fn a_docker_engine_is_reached_by_path_or_by_address() {
    for (text, url) in [
        ("/run/docker.sock", "unix:///run/docker.sock"),
        ("unix:///run/docker.sock", "unix:///run/docker.sock"),
        ("tcp://engine.test:2376", "tcp://engine.test:2376"),
    ] {
        let config = TestLayers::new().env("TIDEBOX_PROVIDERS_DOCKER_SOCKET", text).load().config;
        assert_eq!(config.providers.docker.socket.as_deref(), Some(url));
    }
    for text in ["docker.sock", "http://engine.test", "tcp://", "tcp://a/b", "tcp://u:p@a"] {
        assert_eq!(TestLayers::new().env("TIDEBOX_PROVIDERS_DOCKER_SOCKET", text).faults().len(), 1, "{text}");
    }
    check(
        "providers: {docker: {tls: {cert_file: /etc/passwd}}}",
        &["providers.docker.tls.cert_file (@): needs `providers.docker.tls.key_file`; set both, or neither"],
    );
}

#[test]
fn what_a_container_gets_is_read() {
    let docker = TestLayers::new()
        .file("home/p.json", "{}")
        .here(
            "providers:\n  docker:\n    dropped_caps: [all]\n    added_caps: [CAP_CHOWN]\n    tmpfs: ['/tmp', '/run:size=64m,mode=1777']\n    user: 1000\n    seccomp_profile: ~/p.json\n    network_mode: bridge\n",
        )
        .load()
        .config
        .providers
        .docker;
    assert_eq!((docker.dropped_caps, docker.added_caps), (vec!["ALL".to_owned()], vec!["CHOWN".to_owned()]));
    assert_eq!(docker.tmpfs, ["/tmp", "/run:size=64m,mode=1777"]);
    assert_eq!((docker.user.as_deref(), docker.network_mode.as_str()), (Some("1000"), "bridge"));
    assert!(docker.seccomp_profile.unwrap().ends_with("home/p.json"));
    for (key, value) in [
        ("dropped_caps", "[net raw]"),
        ("tmpfs", "[tmp]"),
        ("tmpfs", "['/a/../b']"),
        ("user", "'a:b:c'"),
        ("seccomp_profile", "p.json"),
        ("network_mode", "'a b'"),
        ("network_mode", "host"),
        ("network_mode", "'container:db'"),
        ("seccomp_profile", "unconfined"),
        ("pids_limit", "0"),
    ] {
        let faults = TestLayers::new().here(&format!("providers: {{docker: {{{key}: {value}}}}}")).faults();
        assert_eq!(faults.len(), 1, "{key}: {value}");
        assert!(faults[0].starts_with(&format!("providers.docker.{key} ")), "{faults:?}");
    }
}

#[test]
fn dockers_own_registry_is_one_by_all_its_names() {
    let config = TestLayers::new()
        .here("images: {allowed_registries: [Index.Docker.IO], registries: {index.docker.io: {username: u, password: p}}}")
        .load()
        .config;
    assert_eq!(config.images.allowed_registries, ["docker.io"]);
    assert!(config.images.registries["docker.io"].username.is_some());
}

#[test]
fn a_file_that_is_not_there_is_a_fault_of_its_key() {
    for key in [
        "providers.docker.seccomp_profile",
        "providers.docker.tls.ca_file",
        "images.docker_config",
        "images.registries.localhost:5000.ca_file",
    ] {
        let (section, name) = key.rsplit_once('.').unwrap();
        let opened: String = section.split('.').map(|part| format!("{{\"{part}\": ")).collect();
        let closed = "}".repeat(section.split('.').count());
        let faults = TestLayers::new().here(&format!("{opened}{{{name}: /no/such/file}}{closed}")).faults();
        assert!(faults.iter().any(|fault| fault.starts_with(key) && fault.contains("No such file")), "{faults:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let fault = format!("names {}, which cannot be read: it is not a regular file", folder.path().display());
    check(
        &format!("images: {{docker_config: {}}}", folder.path().display()),
        &[&format!("images.docker_config (@): {fault}")],
    );
}

#[test]
fn settings_of_tls_for_what_speaks_without_are_refused() {
    let ca = tempfile::NamedTempFile::new().unwrap();
    let path = ca.path().display();
    check(
        &format!("images: {{registries: {{localhost: {{plain_http: true, ca_file: {path}}}}}}}"),
        &["images.registries.localhost.ca_file (@): is for TLS, but `plain_http` turns TLS off; remove one of the two"],
    );
    check(
        &format!("providers: {{docker: {{socket: /run/docker.sock, tls: {{ca_file: {path}}}}}}}"),
        &[
            "providers.docker.tls.ca_file (@): is for an Engine at tcp://, but `providers.docker.socket` is a Unix socket",
        ],
    );
}

#[test]
fn no_box_gets_all_capabilities() {
    let config = TestLayers::new().here("providers: {docker: {dropped_caps: [all]}}").load().config;
    assert_eq!(config.providers.docker.dropped_caps, ["ALL"]);
    let faults = TestLayers::new().here("providers: {docker: {added_caps: [ALL]}}").faults();
    assert!(faults.len() == 1 && faults[0].contains("would remove all isolation"), "{faults:?}");
}
