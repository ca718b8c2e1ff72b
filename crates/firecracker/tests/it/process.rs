//! A real process of Firecracker.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use tokio::process::{Child, Command};

/// Variable with the path of a real Firecracker.
const BINARY: &str = "FIRECRACKER_BIN";
const START_WAIT: Duration = Duration::from_secs(30);

/// File with the words of the process, and of the guest's serial port.
pub(crate) const OUTPUT: &str = "output";

/// Returns the path of Firecracker; `None`, with a word about it, where there is none.
pub(crate) fn binary() -> Option<PathBuf> {
    let binary = std::env::var_os(BINARY).map(PathBuf::from);
    if binary.is_none() {
        fixtures::skip("firecracker", &format!("{BINARY} names no Firecracker"));
    }
    binary
}

/// A process in a folder of its own, killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) dir: TempDir,
}

impl Process {
    /// Starts Firecracker, where there is one.
    pub(crate) async fn start() -> Option<Process> {
        Some(Process::of(&binary()?).await)
    }

    /// Starts this program.
    pub(crate) async fn of(binary: &Path) -> Process {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new(binary);
        command.args(["--api-sock", "api.sock", "--id", "likeness", "--log-path", "log"]);
        command.current_dir(dir.path()).stdin(Stdio::null());
        let output = std::fs::File::create(dir.path().join(OUTPUT)).unwrap();
        command.stdout(output.try_clone().unwrap()).stderr(output);
        let process = Process { child: command.kill_on_drop(true).spawn().unwrap(), dir };
        let listens = async {
            while tokio::net::UnixStream::connect(process.socket()).await.is_err() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(START_WAIT, listens).await.unwrap();
        process
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
}
