//! A server in a process of its own, which a test kills.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use domain::{SandboxId, StoreId};
use providers::docker::{Docker, DockerConfig};

use crate::docker::harness::TestProvider;

/// Environment variable with the socket of the Engine.
const SOCKET: &str = "TIDEBOX_TEST_DOOMED_SOCKET";
/// Environment variable with the id of the server's store.
const STORE: &str = "TIDEBOX_TEST_DOOMED_STORE";
/// Start of the line that names the server's box.
const STARTED: &str = "started ";

pub(crate) struct Doomed {
    process: Child,
    /// The box that it has started.
    pub(crate) id: SandboxId,
}

impl Doomed {
    /// Runs the test `name` of `module` in a process of its own until it has called [`say_started`].
    pub(crate) fn start(module: &str, name: &str, provider: &TestProvider) -> Self {
        let mut process = fixtures::again(module, name)
            .env(SOCKET, &provider.config.socket)
            .env(STORE, provider.config.store_id.as_str())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let id = lines.find_map(|line| line.split_once(STARTED).map(|(_, id)| SandboxId::parse(id).unwrap()));
        Self { process, id: id.expect("it starts a box") }
    }

    pub(crate) fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// Returns the provider of a process that is going to be killed; `None` in any other process.
pub(crate) async fn provider() -> Option<Docker> {
    let (Ok(socket), Ok(store)) = (std::env::var(SOCKET), std::env::var(STORE)) else { return None };
    let config = DockerConfig { socket, ..DockerConfig::new(StoreId::parse(&store).unwrap()) };
    Some(Docker::open(config).await.unwrap())
}

#[expect(clippy::print_stdout, reason = "the test that started the process reads it")]
pub(crate) fn say_started(id: &SandboxId) {
    println!("{STARTED}{id}");
}
