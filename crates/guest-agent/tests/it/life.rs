//! The agent itself: its version, its end, and what guests can see of it.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use guest_protocol::{Boot, Deadline, Hello, VERSION, VERSION_HEADER};
use http_body_util::{BodyExt, Full};
use hyper::StatusCode;
use serde_json::Value;

use crate::harness::{Agent, answer, eventually};

#[tokio::test]
async fn another_version_is_told_ours() {
    let mut agent = Agent::start().await;
    let hello: Hello = answer(agent.send("GET", "/hello", Full::default().boxed_unsync(), &[]).await).await.unwrap();
    assert_eq!(hello.protocol, VERSION);
    let headers = [(VERSION_HEADER, "999")];
    let response = agent.send("GET", "/hello", Full::default().boxed_unsync(), &headers).await;
    assert_eq!(response.status(), StatusCode::HTTP_VERSION_NOT_SUPPORTED);
    assert_eq!(response.headers()[VERSION_HEADER], VERSION.to_string().as_str());
    let response = agent.send("GET", "/nothing", Full::default().boxed_unsync(), &[]).await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND);
    agent.end().await;
}

#[tokio::test]
async fn the_box_ends_at_its_deadline_with_everything_in_it() {
    let mut agent = Agent::start_with(Boot { deadline_ms: 1500, ..Boot::default() }).await;
    agent.run("setsid sleep 1000 >/dev/null 2>&1 </dev/null & exit").await;
    // A process that is just executing shows no environment.
    eventually("it runs", || agent.alive().len() == 1).await;
    let started = Instant::now();
    agent.ended().await;
    assert!(started.elapsed() > Duration::from_millis(500));
}

#[tokio::test]
async fn a_deadline_can_be_moved() {
    let mut agent = Agent::start_with(Boot { deadline_ms: 1000, ..Boot::default() }).await;
    agent.ask::<Value>("/deadline", &Deadline { in_ms: u64::MAX }).await.unwrap();
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(1500) {
        assert_eq!(agent.run("sleep 0.2").await.code(), 0);
    }
    agent.end().await;
}

#[tokio::test]
async fn a_guest_cannot_look_into_the_agent_or_a_reaper() {
    let mut agent = Agent::start().await;
    let script = format!("for p in {} $PPID; do cat /proc/$p/mem; ls /proc/$p/fd; done", agent.pid());
    let exec =
        guest_protocol::Exec { user: Some("nobody".to_owned()), workdir: Some("/".to_owned()), ..agent.shell(&script) };
    let output = agent.exec(&exec).await;
    assert!(output.stdout.is_empty(), "{output:?}");
    assert_eq!(output.err().matches("denied").count(), 4, "{output:?}");
    agent.end().await;
}

#[tokio::test]
async fn the_watchdog_kills_the_largest_process_and_says_so() {
    let boot = Boot { deadline_ms: 600_000, soft_memory_mb: 150, ..Boot::default() };
    let mut agent = Agent::start_with(boot).await;
    let eat = |mb: u32| format!("import time\nx = bytearray({mb} << 20)\nprint('eaten', flush=True)\ntime.sleep(30)");
    let small = agent.command(&["python3", "-c", &eat(20)]);
    let mut small = agent.open(&small).await;
    small.until("eaten").await;
    let large = agent.command(&["python3", "-c", &eat(300)]);
    let exit = agent.exec(&large).await.end.unwrap();
    assert!(exit.oom_killed && exit.code == 137, "{exit:?}");
    let lines: Vec<String> = agent.ask("/console", &guest_protocol::Console { lines: 10 }).await.unwrap();
    assert!(lines.iter().any(|line| line.contains("killed its largest process")), "{lines:?}");
    assert_eq!(agent.alive().len(), 1);
    drop(small);
    agent.nothing_is_alive().await;
    agent.end().await;
}

#[tokio::test]
async fn kills_by_the_control_group_are_reported() {
    let mut events = tempfile::NamedTempFile::new().unwrap();
    writeln!(events, "oom 0\noom_kill 3").unwrap();
    let fd = std::fs::File::open(events.path()).unwrap();
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty()).unwrap();
    let boot = Boot { deadline_ms: 600_000, oom_events_fd: Some(fd.as_raw_fd()), ..Boot::default() };
    let mut agent = Agent::start_with(boot).await;
    assert!(!agent.run("true").await.end.unwrap().oom_killed);
    let script = format!("printf 'oom 0\\noom_kill 4\\n' > {}; exit 9", events.path().display());
    let exit = agent.run(&script).await.end.unwrap();
    assert!(exit.oom_killed && exit.code == 9);
    agent.end().await;
}
