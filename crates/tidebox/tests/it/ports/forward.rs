//! `tidebox ports` and `tidebox forward`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{serving, start};
use crate::cli::tidebox;
use crate::server::{NATIVE, PATIENCE, TestServer};

/// A running `tidebox forward`.
pub(super) struct Forward {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Forward {
    fn start(server: &TestServer, arguments: &[&str]) -> Self {
        Self::at(&server.url, arguments)
    }

    /// Starts it for the server at this URL.
    pub(super) fn at(url: &str, arguments: &[&str]) -> Self {
        // Tests that run in a script's background ignore SIGINT, and the processes they start would too.
        let mut command = Command::new("env");
        command.args(["--default-signal=INT,TERM", env!("CARGO_BIN_EXE_tidebox"), "forward"]).args(arguments);
        command.env_clear().env("TIDEBOX_URL", url).env("PATH", "/usr/bin:/bin");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// Reads the next mapping, and connects to its address here.
    fn connect(&mut self, expected: &str) -> TcpStream {
        let line = self.line();
        let (address, rest) = line.split_once(" -> ").unwrap_or_else(|| panic!("{line}"));
        assert_eq!(rest.trim(), expected);
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Waits for the end, and returns the exit code and stderr.
    pub(super) fn end(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (self.child.wait().unwrap().code(), text)
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test]
async fn a_service_in_a_sandbox_answers_at_a_port_of_this_machine() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    server.write(&id, "/tmp/site/index.html", "hello from the box").await;
    start(&server, &id, "exec python3 -m http.server --directory /tmp/site 3000", 3000).await;
    blocking(move || {
        let listed = tidebox(&server, &["ports", &id], b"");
        let text = String::from_utf8(listed.stdout).unwrap();
        let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(lines.next().unwrap(), ["PORT", "ADDRESS", "PID", "PROCESS"]);
        assert_eq!(lines.next().unwrap()[..2], ["3000", "0.0.0.0"], "{text}");
        let listed = tidebox(&server, &["ports", &id, "--output", "json"], b"");
        assert_eq!(serde_json::from_slice::<Value>(&listed.stdout).unwrap()[0]["port"], 3000);

        let mut forward = Forward::start(&server, &[&id, "0:3000", "0:3001"]);
        let mut stream = forward.connect(&format!("port 3000 of {id}"));
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200 OK") && answer.ends_with("hello from the box"), "{answer}");
        // Nothing listens there: the connection ends, and the others go on.
        let mut refused = forward.connect(&format!("port 3001 of {id}"));
        assert!(matches!(refused.read(&mut [0; 1]), Ok(0) | Err(_)));
        forward.interrupt();
        let (code, said) = forward.end();
        assert_eq!(code, Some(130), "{said}");
        assert!(said.lines().count() == 1 && said.contains("nothing listens on port 3001"), "{said}");
    })
    .await;
}

#[tokio::test]
async fn what_is_sent_through_it_is_the_same_at_the_other_end_and_so_are_the_ends() {
    let server = TestServer::start(NATIVE).await;
    let id = serving(&server, "echo", 3000).await;
    blocking(move || {
        let mut forward = Forward::start(&server, &["--output", "json", &id, "0:3000"]);
        let mapping: Value = serde_json::from_str(&forward.line()).unwrap();
        assert_eq!((&mapping["port"], &mapping["sandbox_id"]), (&3000.into(), &id.as_str().into()));
        let address = mapping["address"].as_str().unwrap().to_owned();
        let both = [3_000_000, 5].map(|length| {
            let address = address.clone();
            std::thread::spawn(move || {
                let bytes: Vec<u8> = (0..=255).cycle().take(length).collect();
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let (mut writer, sent) = (stream.try_clone().unwrap(), bytes.clone());
                let writing = std::thread::spawn(move || {
                    writer.write_all(&sent).unwrap();
                    writer.shutdown(Shutdown::Write).unwrap();
                });
                let mut echoed = Vec::new();
                stream.read_to_end(&mut echoed).unwrap();
                writing.join().unwrap();
                assert!(echoed == bytes, "{} of {length} bytes", echoed.len());
            })
        });
        for thread in both {
            thread.join().unwrap();
        }
        forward.interrupt();
        assert_eq!(forward.end(), (Some(130), String::new()));
    })
    .await;
}

#[tokio::test]
async fn it_ends_with_the_sandbox_and_begins_with_none_that_is_not_there() {
    let server = TestServer::start(NATIVE).await;
    let id = serving(&server, "echo", 3000).await;
    let (server, forward) = blocking(move || {
        let mut forward = Forward::start(&server, &[&id, "0:3000"]);
        drop(forward.connect(&format!("port 3000 of {id}")));
        assert!(tidebox(&server, &["destroy", &id], b"").status.success());
        (server, forward)
    })
    .await;
    blocking(move || {
        let (code, said) = forward.end();
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("has ended"), "{said}");
        let none = tidebox(&server, &["forward", "sb-aaaaaaaaaaaaaaaa", "0:80"], b"");
        assert_eq!((none.status.code(), none.stdout.len()), (Some(1), 0), "{none:?}");
        for wrong in [&["forward", "sb-1"][..], &["forward", "sb-1", "0"], &["forward", "sb-1", "http"]] {
            assert_eq!(tidebox(&server, wrong, b"").status.code(), Some(2), "{wrong:?}");
        }
    })
    .await;
}
