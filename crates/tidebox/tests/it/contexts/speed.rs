//! The time of a run, beside that of a command.

use std::time::{Duration, Instant};

use serde_json::json;

use super::run;
use crate::server::{NATIVE, TestServer};

/// Rounds, of which the median counts.
const ROUNDS: usize = 101;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_run_takes_little_more_than_a_command() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    run(&server, &id, "python", "1 + 1").await;
    server.output(&id, "true").await;
    let (mut runs, mut commands) = (Vec::new(), Vec::new());
    // By turns: the machine may be busy at times.
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let answer = server.post(&format!("/sandboxes/{id}/run"), json!({"code": "1 + 1"})).await;
        runs.push(start.elapsed());
        assert_eq!(answer.status, 200);
        let start = Instant::now();
        server.post(&format!("/sandboxes/{id}/exec"), json!({"command": "true"})).await.ok();
        commands.push(start.elapsed());
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[ROUNDS / 2]
    };
    let (run, command) = (median(&mut runs), median(&mut commands));
    println!("a run {run:?}, a command {command:?}");
    // Twice on an idle machine with a release build; here others run beside.
    assert!(run < 3 * command, "a run {run:?}, a command {command:?}");
}
