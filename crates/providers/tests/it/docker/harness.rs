//! One Engine for all tests of this program, with providers and boxes on it. All boxes are
//! removed even if a test fails.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use domain::SandboxId;
use fixtures::Engine;
use fixtures::suite::{FULL, SCRATCH};
use providers::docker::{Docker, DockerConfig};
use providers::{Chain, Command, Guest, Provider, Result, Spec};

use crate::test_box::{self, BoxAccess, Ran, spec_of, stop_all};
pub(crate) use crate::test_box::{command, new_id, new_store};

/// An image with busybox, a user and little else.
pub(crate) const IMAGE: &str = "test/busybox:1";
/// The same image with every setting for running it.
pub(crate) const SPEAKING: &str = "test/speaking:1";
/// An image without a shell, or anything else.
pub(crate) const EMPTY: &str = "test/empty:1";
/// Returns the Engine of this program, which ends with it, or `None` if none can run here.
pub(crate) fn engine() -> Option<&'static Engine> {
    static ENGINE: OnceLock<Option<Engine>> = OnceLock::new();
    ENGINE
        .get_or_init(|| {
            let engine = Engine::start()?;
            furnish(&engine);
            Some(engine)
        })
        .as_ref()
}

/// Imports the images of these tests into an Engine.
pub(crate) fn furnish(engine: &Engine) {
    let root = busybox_root();
    engine.import(IMAGE, &root, &[]);
    let words = [
        "ENV GREETING=hello",
        "ENV PATH=/opt/bin:/bin",
        "USER ann",
        "WORKDIR /srv/app",
        r#"ENTRYPOINT ["/bin/sh", "-c", "echo entry as $(id -un) in $(pwd); sleep 1000"]"#,
        r#"HEALTHCHECK --interval=1s CMD touch /tmp/checked"#,
        "VOLUME /data",
    ];
    engine.import(SPEAKING, &root, &words);
    for (name, image) in [(FULL, fixtures::suite::full()), (SCRATCH, fixtures::suite::scratch())] {
        engine.load(name, &image.expect("there is a busybox, of which the others are made"));
    }
    let mut empty = tar::Builder::new(Vec::new());
    add(&mut empty, tar::EntryType::Directory, "etc", 0o755, &[]);
    engine.import(EMPTY, &empty.into_inner().unwrap(), &[]);
}

fn add(archive: &mut tar::Builder<Vec<u8>>, kind: tar::EntryType, path: &str, mode: u32, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(content.len() as u64);
    archive.append_data(&mut header, path, content).unwrap();
}

/// Makes a small root file system that contains only busybox.
pub(crate) fn busybox_root() -> Vec<u8> {
    let busybox = fixtures::found("busybox", &[PathBuf::from("/bin/busybox")]).expect("busybox-static is here");
    let mut archive = tar::Builder::new(Vec::new());
    for (dir, mode) in [("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777), ("home/ann", 0o755)] {
        add(&mut archive, tar::EntryType::Directory, dir, mode, &[]);
    }
    add(&mut archive, tar::EntryType::Regular, "bin/busybox", 0o4755, &std::fs::read(&busybox).unwrap());
    let listed = std::process::Command::new(&busybox).arg("--list").output().unwrap();
    for applet in String::from_utf8(listed.stdout).unwrap().lines().filter(|applet| *applet != "busybox") {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_mode(0o777);
        header.set_size(0);
        archive.append_link(&mut header, format!("bin/{applet}"), "busybox").unwrap();
    }
    // The suite changes, removes and moves these.
    for (path, text) in
        [("etc/issue", "old\n"), ("etc/profile", "umask 022\n"), ("etc/shells", "/bin/sh\n"), ("var/spool/old", "")]
    {
        add(&mut archive, tar::EntryType::Regular, path, 0o644, text.as_bytes());
    }
    // Debian's busybox has no `printenv`.
    let printenv = b"#!/bin/sh\nenv | grep \"^$1=\" | cut -d= -f2-\nenv | grep -q \"^$1=\"\n";
    add(&mut archive, tar::EntryType::Regular, "bin/printenv", 0o755, printenv);
    let passwd =
        "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000:Ann:/home/ann:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n";
    add(&mut archive, tar::EntryType::Regular, "etc/passwd", 0o644, passwd.as_bytes());
    add(&mut archive, tar::EntryType::Regular, "etc/group", 0o644, b"root:x:0:\nann:x:1000:\nnogroup:x:65534:\n");
    archive.into_inner().unwrap()
}

pub(crate) fn spec() -> Spec {
    spec_of(IMAGE)
}

/// A provider with a store of its own.
pub(crate) struct TestProvider {
    pub(crate) engine: &'static Engine,
    pub(crate) docker: Docker,
    pub(crate) config: DockerConfig,
}

impl TestProvider {
    /// Returns `None` if no Engine can run here.
    pub(crate) async fn new() -> Option<TestProvider> {
        TestProvider::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut DockerConfig)) -> Option<TestProvider> {
        let engine = engine()?;
        let mut config =
            DockerConfig { socket: engine.socket().display().to_string(), ..DockerConfig::new(new_store()) };
        change(&mut config);
        let docker = Docker::open(config.clone()).await.unwrap();
        assert_eq!(docker.health().await.error, None);
        Some(TestProvider { engine, docker, config })
    }

    /// Opens the provider as a later server does.
    pub(crate) async fn reopen(&self) -> Docker {
        Docker::open(self.config.clone()).await.unwrap()
    }

    pub(crate) async fn start(&self) -> TestBox {
        self.start_with(spec()).await
    }

    pub(crate) async fn start_with(&self, spec: Spec) -> TestBox {
        let id = new_id();
        let started = self.docker.start(&id, &spec).await;
        started.unwrap_or_else(|error| panic!("a box starts: {}", Chain(&error)));
        TestBox::of(&self.docker, id)
    }

    /// Returns the name of a box's container.
    pub(crate) fn container(&self, id: &SandboxId) -> String {
        format!("tidebox-{}-{id}", self.config.store_id.as_str())
    }
}

impl Drop for TestProvider {
    fn drop(&mut self) {
        stop_all(Docker::open(self.config.clone()));
    }
}

impl BoxAccess for Docker {
    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>> {
        Provider::guest(self, id).await
    }
}

pub(crate) type TestBox = test_box::TestBox<Docker>;

impl TestBox {
    /// Refers to a box that was started elsewhere.
    pub(crate) fn of(docker: &Docker, id: SandboxId) -> TestBox {
        TestBox { place: docker.clone(), id }
    }

    pub(crate) async fn run(&self, command: Command) -> Ran {
        self.finish(command).await
    }
}
