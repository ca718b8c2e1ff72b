//! A real process of Firecracker.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::{Child, Command};

/// Variable with the path of a real Firecracker.
const BINARY: &str = "FIRECRACKER_BIN";
const START_WAIT: Duration = Duration::from_secs(30);

/// A process in a folder of its own, killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) dir: TempDir,
}

impl Process {
    /// Starts Firecracker; `None`, with a word about it, where there is none.
    pub(crate) async fn start() -> Option<Process> {
        let Some(binary) = std::env::var_os(BINARY).map(PathBuf::from) else {
            fixtures::skip("firecracker", &format!("{BINARY} names no Firecracker"));
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(binary);
        command.args(["--api-sock", "api.sock", "--id", "likeness", "--log-path", "log"]);
        command.current_dir(dir.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process { child: command.kill_on_drop(true).spawn().unwrap(), dir };
        let listens = async {
            while tokio::net::UnixStream::connect(process.socket()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(START_WAIT, listens).await.unwrap();
        Some(process)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
}
