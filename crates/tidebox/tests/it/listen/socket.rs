//! The Unix socket.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use tokio::net::UnixStream;

use super::{HEALTH, ask, is_health, refused_start, tcp};
use crate::server::{MOCK, TestServer};

struct Place {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        Self { _dir: dir, path }
    }

    async fn start(&self) -> TestServer {
        TestServer::start(&format!("{MOCK} server.unix_socket={}", self.path.display())).await
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).await.unwrap()
    }
}

#[tokio::test]
async fn the_socket_serves_beside_tcp_for_the_servers_user_alone() {
    let place = Place::new();
    let mut server = place.start().await;
    assert_eq!(std::fs::metadata(&place.path).unwrap().permissions().mode() & 0o7777, 0o600);
    is_health(&ask(place.connect().await, HEALTH.as_bytes()).await);
    is_health(&ask(tcp(&server).await, HEALTH.as_bytes()).await);
    assert_eq!(server.terminate(), Some(0));
    assert!(!place.path.exists(), "the socket goes with the server");
}

#[tokio::test]
async fn no_page_can_reach_the_socket_so_any_name_is_served_there() {
    let place = Place::new();
    let server = place.start().await;
    let foreign = HEALTH.replace("localhost", "evil.example");
    is_health(&ask(place.connect().await, foreign.as_bytes()).await);
    let refused = ask(tcp(&server).await, foreign.as_bytes()).await;
    assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
}

#[tokio::test]
async fn a_dead_servers_socket_is_replaced_and_a_live_ones_is_not() {
    let place = Place::new();
    let mut server = place.start().await;
    let path = place.path.to_str().unwrap();
    let (code, text) = refused_start(&[("server.unix_socket", path)]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("another server listens there") && text.contains("server.unix_socket"), "{text}");
    is_health(&ask(place.connect().await, HEALTH.as_bytes()).await);

    server.kill();
    assert!(place.path.exists(), "who is killed cleans nothing up");
    server.launch().await;
    assert_eq!(std::fs::metadata(&place.path).unwrap().permissions().mode() & 0o7777, 0o600);
    is_health(&ask(place.connect().await, HEALTH.as_bytes()).await);
}

#[test]
fn what_is_no_socket_is_not_replaced() {
    let place = Place::new();
    std::fs::write(&place.path, "precious").unwrap();
    let (code, text) = refused_start(&[("server.unix_socket", place.path.to_str().unwrap())]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("not a socket"), "{text}");
    assert_eq!(std::fs::read(&place.path).unwrap(), b"precious");
}

#[tokio::test]
async fn the_command_line_reaches_the_socket() {
    let place = Place::new();
    let _server = place.start().await;
    let url = format!("unix://{}", place.path.display());
    let listed = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidebox"));
        let spawned = command.args(["spawn"]).env_clear().env("TIDEBOX_URL", &url).output().unwrap();
        assert!(spawned.status.success(), "{}", String::from_utf8_lossy(&spawned.stderr));
        let id = String::from_utf8(spawned.stdout).unwrap().trim().to_owned();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidebox"));
        let output = command.args(["exec", &id, "--", "echo", "hello"]).env_clear().env("TIDEBOX_URL", &url).output();
        output.unwrap()
    });
    let output = listed.await.unwrap();
    assert_eq!(output.stdout, b"hello\n", "{}", String::from_utf8_lossy(&output.stderr));
}
