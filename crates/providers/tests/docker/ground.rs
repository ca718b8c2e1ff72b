//! One Engine for all tests of this program, and providers and boxes on it.
//! Whatever happens to a test, no box stays.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use domain::{Resources, SandboxId, StoreId};
use fixtures::Engine;
use fixtures::suite::{FULL, SCRATCH};
use futures_util::StreamExt;
use providers::docker::{Docker, DockerConfig};
use providers::{Command, ExitStatus, Guest, OutputEvent, Provider, Spec};

/// The longest wait for what must come true.
const EVENTUALLY: Duration = Duration::from_secs(90);
/// An image with busybox, a user and little else.
pub(crate) const IMAGE: &str = "test/busybox:1";
/// The same, with all that an image can say of running it.
pub(crate) const SPEAKING: &str = "test/speaking:1";
/// An image without a shell, or anything else.
pub(crate) const EMPTY: &str = "test/empty:1";
static NEXT: AtomicU32 = AtomicU32::new(0);

fn entropy() -> [u8; 10] {
    let mut entropy = [9; 10];
    entropy[..4].copy_from_slice(&std::process::id().to_be_bytes());
    entropy[6..].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    entropy
}

pub(crate) fn new_id() -> SandboxId {
    SandboxId::from_entropy(entropy())
}

pub(crate) fn new_store() -> StoreId {
    StoreId::from_entropy(entropy())
}

/// The Engine of this program, which ends with it. `None` if there can be none here.
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

/// Gives an Engine the images of these tests.
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

/// A root file system as small ones are, of nothing but busybox.
fn busybox_root() -> Vec<u8> {
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
    // Which Debian's busybox lacks.
    let printenv = b"#!/bin/sh\nenv | grep \"^$1=\" | cut -d= -f2-\nenv | grep -q \"^$1=\"\n";
    add(&mut archive, tar::EntryType::Regular, "bin/printenv", 0o755, printenv);
    let passwd =
        "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000:Ann:/home/ann:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n";
    add(&mut archive, tar::EntryType::Regular, "etc/passwd", 0o644, passwd.as_bytes());
    add(&mut archive, tar::EntryType::Regular, "etc/group", 0o644, b"root:x:0:\nann:x:1000:\nnogroup:x:65534:\n");
    archive.into_inner().unwrap()
}

pub(crate) fn spec() -> Spec {
    Spec {
        image: IMAGE.to_owned(),
        resources: Resources { memory_mb: 256, vcpus: 1, disk_mb: 0, pids: 64 },
        entrypoint: false,
        metadata: BTreeMap::new(),
        lifetime: Duration::from_secs(600),
    }
}

/// A provider with a store of its own.
pub(crate) struct Ground {
    pub(crate) engine: &'static Engine,
    pub(crate) docker: Docker,
    pub(crate) config: DockerConfig,
}

impl Ground {
    /// `None` where there can be no Engine.
    pub(crate) async fn new() -> Option<Ground> {
        Ground::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut DockerConfig)) -> Option<Ground> {
        let engine = engine()?;
        let mut config =
            DockerConfig { socket: engine.socket().display().to_string(), ..DockerConfig::new(new_store()) };
        change(&mut config);
        let docker = Docker::open(config.clone()).await.unwrap();
        assert_eq!(docker.health().await.error, None);
        Some(Ground { engine, docker, config })
    }

    /// The provider as a later server opens it.
    pub(crate) async fn reopen(&self) -> Docker {
        Docker::open(self.config.clone()).await.unwrap()
    }

    pub(crate) async fn start(&self) -> Inside {
        self.start_with(spec()).await
    }

    pub(crate) async fn start_with(&self, spec: Spec) -> Inside {
        let id = new_id();
        let started = self.docker.start(&id, &spec).await;
        started.unwrap_or_else(|error| panic!("a box starts: {}", chain(&error)));
        Inside { docker: self.docker.clone(), id }
    }

    /// The name of a box's container.
    pub(crate) fn container(&self, id: &SandboxId) -> String {
        format!("tidebox-{}-{id}", self.config.store_id.as_str())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let config = self.config.clone();
        // The runtime of the test may be standing still, so this needs a provider
        // and a runtime of its own.
        let stopped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let docker = Docker::open(config).await.unwrap();
                for found in docker.inventory().await.unwrap() {
                    docker.stop(&found.id).await.unwrap();
                }
            });
        });
        let stopped = stopped.join();
        if !std::thread::panicking() {
            stopped.expect("every box can be stopped");
        }
    }
}

pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

/// A box that runs.
pub(crate) struct Inside {
    docker: Docker,
    pub(crate) id: SandboxId,
}

/// What a command wrote, and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) exit: ExitStatus,
}

pub(crate) fn command(argv: &[&str]) -> Command {
    Command {
        argv: argv.iter().map(|&arg| arg.to_owned()).collect(),
        env: BTreeMap::new(),
        workdir: None,
        user: None,
        timeout: Duration::from_secs(60),
        stdin: None,
        terminal: None,
    }
}

impl Inside {
    /// A box that somebody else started.
    pub(crate) fn of(docker: &Docker, id: SandboxId) -> Inside {
        Inside { docker: docker.clone(), id }
    }

    pub(crate) async fn guest(&self) -> Arc<dyn Guest> {
        self.docker.guest(&self.id).await.unwrap_or_else(|error| panic!("the box answers: {}", chain(&error)))
    }

    /// Runs a command line to its end.
    pub(crate) async fn sh(&self, script: &str) -> Ran {
        self.run(command(&["/bin/sh", "-c", script])).await
    }

    pub(crate) async fn run(&self, command: Command) -> Ran {
        let what = format!("{command:?}");
        let guest = self.guest().await;
        let mut events = guest.exec(command).await.unwrap_or_else(|error| panic!("{what}: {}", chain(&error)));
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(event) = events.next().await {
            match event.unwrap_or_else(|error| panic!("{what}: {}", chain(&error))) {
                OutputEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
                OutputEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
                OutputEvent::Exit(exit) => {
                    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                    return Ran { stdout: text(stdout), stderr: text(stderr), exit };
                }
            }
        }
        panic!("{what}: the output ended without an exit");
    }

    /// What a command line writes that must succeed.
    pub(crate) async fn text(&self, script: &str) -> String {
        let ran = self.sh(script).await;
        assert_eq!(ran.exit.code, 0, "{script}: {ran:?}");
        ran.stdout
    }

    /// Runs a command line that must fail.
    pub(crate) async fn refuses(&self, script: &str) {
        let ran = self.sh(script).await;
        assert!(ran.exit.code != 0 && ran.exit.code != 127, "{script}: {ran:?}");
    }
}

/// Waits until `condition` holds.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(EVENTUALLY, wait).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}
