//! A log that cannot be written: it costs lines, and nothing else.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::server::{PATIENCE, free_port, http_client};

/// Longest answer of a server that waits for nothing.
const PROMPT: Duration = Duration::from_secs(10);

/// A server with this stderr.
struct Logging {
    process: Child,
    url: String,
    http: reqwest::Client,
    _data: tempfile::TempDir,
}

impl Logging {
    async fn start(stderr: impl Into<Stdio>) -> Logging {
        let (data, port) = (tempfile::tempdir().unwrap(), free_port());
        let binary = std::env::var("TIDEBOX_TEST_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_tidebox").to_owned());
        let process = Command::new(binary)
            .arg("serve")
            .env_clear()
            .env("HOME", data.path())
            .env("TIDEBOX_DATA_DIR", data.path().join("data"))
            .env("TIDEBOX_SERVER_PORT", port.to_string())
            .env("TIDEBOX_LOGGING_LEVEL", "debug")
            .env("TIDEBOX_LOGGING_FORMAT", "json")
            .env("TIDEBOX_PROVIDERS_MOCK_ENABLED", "true")
            .env("TIDEBOX_PROVIDERS_DEFAULT", "mock")
            .env("TIDEBOX_PROVIDERS_NATIVE_ENABLED", "false")
            .env("TIDEBOX_PROVIDERS_DOCKER_ENABLED", "false")
            .env("TIDEBOX_PROVIDERS_PROOT_ENABLED", "false")
            .current_dir(data.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let http = http_client().timeout(PROMPT).build().unwrap();
        let mut server = Logging { process, url: format!("http://127.0.0.1:{port}/api/v1"), http, _data: data };
        let deadline = Instant::now() + PATIENCE;
        while server.http.get(format!("{}/live", server.url)).send().await.is_err() {
            assert!(Instant::now() < deadline, "the server does not answer");
            assert_eq!(server.process.try_wait().unwrap(), None, "the server has ended");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        server
    }

    /// Sends a request whose line in the log is long.
    async fn ask(&mut self) {
        let answer = self.http.get(format!("{}/{}", self.url, "x".repeat(4000))).send().await;
        assert!(answer.is_ok(), "{answer:?}, {:?}", self.process.try_wait());
    }

    async fn lines_dropped(&self) -> u64 {
        let answer: Value =
            self.http.get(format!("{}/diagnostics", self.url)).send().await.unwrap().json().await.unwrap();
        answer["process"]["log_lines_dropped"].as_u64().unwrap()
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn a_log_that_cannot_be_written_costs_its_lines_and_ends_nothing() {
    let (gone, ours) = UnixStream::pair().unwrap();
    drop(gone);
    let full: File = OpenOptions::new().write(true).open("/dev/full").unwrap();
    for stderr in [std::os::fd::OwnedFd::from(ours), full.into()] {
        let mut server = Logging::start(stderr).await;
        for _ in 0..3 {
            server.ask().await;
        }
        assert!(server.lines_dropped().await > 3);
        let metrics = server.http.get(format!("{}/metrics/prometheus", server.url)).send().await.unwrap();
        let metrics = metrics.text().await.unwrap();
        let line = metrics.lines().find(|line| line.starts_with("tidebox_log_lines_dropped_total ")).unwrap();
        assert!(line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() > 3.0, "{line}");
    }
}

#[tokio::test]
async fn requests_do_not_wait_for_a_log_that_nobody_reads_and_a_line_tells_what_was_lost() {
    let (reader, stderr) = std::io::pipe().unwrap();
    let mut server = Logging::start(stderr).await;
    while server.lines_dropped().await == 0 {
        server.ask().await;
    }
    let dropped = server.lines_dropped().await;
    let told = tokio::task::spawn_blocking(move || {
        let lines = BufReader::new(reader).lines().map_while(Result::ok);
        let lines = lines.map(|line| serde_json::from_str::<Value>(&line).unwrap_or_else(|_| panic!("{line}")));
        let mut about = lines.filter(|line| line["message"].as_str().is_some_and(|it| it.contains("were dropped")));
        about.next().unwrap()["lines"].as_u64().unwrap()
    });
    let told = tokio::time::timeout(PATIENCE, told).await.expect("a line tells").unwrap();
    assert!(told >= dropped, "{told} of {dropped}");
}
