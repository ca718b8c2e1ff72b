//! Bytes in and out of commands.

use std::time::{Duration, Instant};

use bytes::Bytes;
use guest_protocol::frame::{Kind, encode};

use crate::harness::{Agent, within};

const MIB: usize = 1024 * 1024;

/// Makes bytes in which every cut or swap shows.
fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn rss_kb(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn stdin_goes_through_a_command_byte_for_byte() {
    let mut agent = Agent::start().await;
    let sent = pattern(64 * MIB + 12_345);
    let mut exec = agent.command(&["cat"]);
    exec.stdin = true;
    let (stdin, running) = agent.open_with_stdin(&exec).await;
    let bytes = Bytes::from(sent.clone());
    let feeding = async move {
        for piece in bytes.chunks(700_001) {
            stdin.send(encode(Kind::Stdin, piece)).await.unwrap();
        }
    };
    let (_, output) = within(async { tokio::join!(feeding, running.finish()) }).await;
    assert_eq!(output.code(), 0);
    assert!(output.stdout == sent);
    agent.end().await;
}

#[tokio::test]
async fn a_reader_that_stops_reading_stops_only_its_own_command() {
    let mut agent = Agent::start().await;
    let flood = agent.shell("yes | head -c 1000000000; echo done >&2");
    let mut stopped = agent.open(&flood).await;
    stopped.until("y").await;
    let file = agent.path("data");
    let sent = pattern(100 * MIB);
    std::fs::write(&file, &sent).unwrap();
    let exec = agent.command(&["cat", &file]);
    let output = agent.exec(&exec).await;
    assert!(output.stdout == sent);
    let rss = rss_kb(agent.pid());
    assert!(rss < 16 * 1024, "{rss} KiB");
    // A client that stopped reading may continue.
    let mut len = 2;
    while let Some((kind, payload)) = within(stopped.next()).await {
        if kind == Kind::Exit {
            break;
        }
        assert!(matches!(kind, Kind::Stdout | Kind::Stderr));
        len += payload.len();
        if len > 300 * MIB {
            break;
        }
    }
    assert!(len > 300 * MIB);
    let rss = rss_kb(agent.pid());
    assert!(rss < 16 * 1024, "{rss} KiB");
    drop(stopped);
    agent.nothing_is_alive().await;
    agent.end().await;
}

#[tokio::test]
async fn the_last_bytes_reach_a_slow_reader_though_a_child_holds_the_pipe() {
    let mut agent = Agent::start().await;
    let exec = agent.shell("sleep 1000 & head -c 60000 /dev/zero; head -c 60000 /dev/zero >&2");
    let running = agent.open(&exec).await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    let output = running.finish().await;
    assert_eq!((output.stdout.len(), output.stderr.len(), output.code()), (60_000, 60_000, 0));
    agent.end().await;
}

#[tokio::test]
async fn a_stalled_reader_does_not_stop_the_deadline() {
    let mut agent = Agent::start().await;
    let mut exec = agent.shell("yes");
    exec.timeout_ms = 500;
    let mut running = agent.open(&exec).await;
    running.until("y").await;
    agent.nothing_is_alive().await;
    let output = running.finish().await;
    assert_eq!(output.code(), 124);
    assert!(output.stdout.iter().all(|byte| matches!(byte, b'y' | b'\n')));
    agent.end().await;
}

#[tokio::test]
async fn small_writes_come_soon_and_together() {
    let mut agent = Agent::start().await;
    let exec = guest_protocol::Exec { stdin: true, ..agent.shell("echo first; read x") };
    let (stdin, mut running) = agent.open_with_stdin(&exec).await;
    let started = Instant::now();
    running.until("first").await;
    assert!(started.elapsed() < Duration::from_secs(5));
    drop(stdin);
    running.finish().await;
    let output = agent.run("i=0; while [ $i -lt 10000 ]; do echo line $i; i=$((i+1)); done").await;
    let expected: String = (0..10_000).map(|i| format!("line {i}\n")).collect();
    assert_eq!(output.out(), expected);
    assert!(output.frames < 1000, "{} frames", output.frames);
    let script = "import os\nfor _ in range(20000): os.write(1, b'x')";
    let exec = agent.command(&["python3", "-c", script]);
    let output = agent.exec(&exec).await;
    assert_eq!(output.stdout, vec![b'x'; 20_000]);
    assert!(output.frames < 1000, "{} frames", output.frames);
    agent.end().await;
}

#[tokio::test]
async fn stdin_ends_with_its_frame_with_the_body_and_without_either() {
    let mut agent = Agent::start().await;
    let mut exec = agent.shell("cat; echo end");
    exec.stdin = true;
    let (stdin, running) = agent.open_with_stdin(&exec).await;
    stdin.send(encode(Kind::Stdin, b"one")).await.unwrap();
    stdin.send(encode(Kind::StdinEnd, b"")).await.unwrap();
    // Input after its end is dropped.
    stdin.send(encode(Kind::Stdin, b"two")).await.unwrap();
    assert_eq!(running.finish().await.out(), "oneend\n");
    let (stdin, running) = agent.open_with_stdin(&exec).await;
    stdin.send(encode(Kind::Stdin, b"three")).await.unwrap();
    drop(stdin);
    assert_eq!(running.finish().await.out(), "threeend\n");
    exec.stdin = false;
    assert_eq!(agent.exec(&exec).await.out(), "end\n");
    agent.end().await;
}

#[tokio::test]
async fn a_command_that_does_not_read_its_stdin_is_no_error() {
    let mut agent = Agent::start().await;
    let mut exec = agent.shell("exec <&-; sleep 0.2; echo ok");
    exec.stdin = true;
    let (stdin, running) = agent.open_with_stdin(&exec).await;
    let feeding = async {
        for _ in 0..64 {
            if stdin.send(encode(Kind::Stdin, &vec![0; MIB])).await.is_err() {
                break;
            }
        }
    };
    let (output, ()) = within(async { tokio::join!(running.finish(), feeding) }).await;
    assert_eq!((output.out(), output.code()), ("ok\n", 0));
    agent.end().await;
}

#[tokio::test]
async fn memory_is_given_back_after_a_burst() {
    let mut agent = Agent::start().await;
    let exec = agent.shell("head -c 3000000 /dev/zero");
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let one = agent.open(&exec).await;
        running.spawn(one.finish());
    }
    for output in within(running.join_all()).await {
        assert_eq!(output.stdout.len(), 3_000_000);
    }
    let pid = agent.pid();
    crate::harness::eventually("the memory is given back", || rss_kb(pid) < 3 * 1024).await;
    agent.end().await;
}
