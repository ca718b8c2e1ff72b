//! The time that the kernel alone takes for the same work.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use tempfile::TempDir;
use tokio::task::spawn_blocking;

use super::samples::Percentiles;

/// Bytes per read and write of a copy: the size of a pipe.
const COPY_CHUNK_BYTES: usize = 64 * 1024;
const MEGABYTE: f64 = 1e6;

/// Runner of the agent's `bare` mode, which does with system calls alone what a spawn and an exec
/// need.
#[derive(Debug)]
pub struct Baseline {
    program: OwnedFd,
    folder: TempDir,
    failure: Option<String>,
}

impl Baseline {
    /// Prepares the program; boxes are made below `folder`.
    pub fn new(folder: &Path) -> std::io::Result<Baseline> {
        // In memory, so that a temporary folder mounted `noexec` does not matter.
        let program = match memfd_create("tidebox-bare", MemfdFlags::CLOEXEC | MemfdFlags::EXEC) {
            // Kernels before 6.3 do not know the flag, and need none.
            Err(Errno::INVAL) => memfd_create("tidebox-bare", MemfdFlags::CLOEXEC)?,
            other => other?,
        };
        let mut file = std::fs::File::from(program);
        file.write_all(&providers::agent_program())?;
        // A file that is open for writing cannot be executed.
        let program = std::fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into();
        let folder = tempfile::Builder::new().prefix("tidebox-bench-").tempdir_in(folder)?;
        Ok(Baseline { program, folder, failure: None })
    }

    /// Makes `count` bare boxes one after the other; `None` if this host cannot.
    pub async fn spawn(&mut self, count: usize) -> Option<Percentiles> {
        let folder = self.folder.path().as_os_str().to_owned();
        self.run(vec!["spawn".into(), count.to_string().into(), folder]).await
    }

    /// Starts `count` bare processes one after the other; `None` if this host cannot.
    pub async fn exec(&mut self, count: usize) -> Option<Percentiles> {
        self.run(vec!["exec".into(), count.to_string().into()]).await
    }

    /// Returns the reason if figures are missing.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    async fn run(&mut self, args: Vec<std::ffi::OsString>) -> Option<Percentiles> {
        if self.failure.is_some() {
            return None;
        }
        let mut command = Command::new(format!("/proc/self/fd/{}", self.program.as_raw_fd()));
        command.arg("bare").args(args).stdin(Stdio::null());
        let outcome =
            spawn_blocking(move || percentiles(&mut command)).await.unwrap_or_else(|error| Err(error.to_string()));
        outcome.map_err(|reason| self.failure = Some(reason)).ok()
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        // The kernel makes it without any permission, and removing it reads it.
        let work = self.folder.path().join("work/work");
        let _ = std::fs::set_permissions(work, std::fs::Permissions::from_mode(0o700));
    }
}

fn percentiles(command: &mut Command) -> Result<Percentiles, String> {
    let output = command.output().map_err(|error| format!("it cannot be started: {error}"))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} ({})", reason.trim(), output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("its output cannot be parsed: {error}"))
}

/// Measures a pipe between two threads, in megabytes per second.
pub async fn pipe_rate(bytes: u64) -> std::io::Result<f64> {
    let (reader, writer) = std::io::pipe()?;
    copy_rate(bytes, std::fs::File::from(OwnedFd::from(reader)), std::fs::File::from(OwnedFd::from(writer))).await
}

/// Measures a pair of stream sockets between two threads, in megabytes per second.
pub async fn socket_rate(bytes: u64) -> std::io::Result<f64> {
    let (reader, writer) = UnixStream::pair()?;
    copy_rate(bytes, std::fs::File::from(OwnedFd::from(reader)), std::fs::File::from(OwnedFd::from(writer))).await
}

async fn copy_rate(bytes: u64, mut reader: std::fs::File, mut writer: std::fs::File) -> std::io::Result<f64> {
    let start = Instant::now();
    let writing = spawn_blocking(move || {
        let chunk = [0; COPY_CHUNK_BYTES];
        let mut left = bytes;
        while left > 0 {
            let size = usize::try_from(left).unwrap_or(usize::MAX).min(chunk.len());
            writer.write_all(&chunk[..size])?;
            left -= size as u64;
        }
        Ok::<_, std::io::Error>(())
    });
    let reading = spawn_blocking(move || {
        let mut chunk = [0; COPY_CHUNK_BYTES];
        while reader.read(&mut chunk)? > 0 {}
        Ok::<_, std::io::Error>(())
    });
    reading.await??;
    writing.await??;
    Ok(rate(bytes, start))
}

/// Returns the megabytes per second since `start`.
pub fn rate(bytes: u64, start: Instant) -> f64 {
    bytes as f64 / MEGABYTE / start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod test {
    use super::{Baseline, pipe_rate, socket_rate};

    #[tokio::test]
    async fn copies_arrive_whole() {
        for bytes in [0, 1, 65_537, 1 << 20] {
            assert!(pipe_rate(bytes).await.unwrap() >= 0.0);
            assert!(socket_rate(bytes).await.unwrap() >= 0.0);
        }
    }

    #[tokio::test]
    async fn bare_processes_are_measured_and_nothing_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let mut baseline = Baseline::new(folder.path()).unwrap();
        let exec = baseline.exec(3).await;
        assert!(exec.is_some_and(|exec| exec.p50_us > 0 && exec.p50_us <= exec.p99_us), "{:?}", baseline.failure());
        // A host may forbid this; then it must say why.
        assert_ne!(baseline.spawn(2).await.is_some(), baseline.failure().is_some());
        drop(baseline);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
