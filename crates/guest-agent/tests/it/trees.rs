//! Commands that do not want to end.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::{Agent, Output, WAIT, children, children_in_state, eventually, signal};

/// Runs `script` until its deadline.
async fn overdue(agent: &mut Agent, script: &str) -> Output {
    let mut exec = agent.shell(script);
    exec.timeout_ms = 500;
    let started = Instant::now();
    let output = agent.exec(&exec).await;
    assert!(started.elapsed() < WAIT / 2);
    let exit = output.end.as_ref().unwrap();
    assert!(exit.timed_out && exit.code == 124, "{output:?}");
    agent.nothing_is_alive().await;
    output
}

#[tokio::test]
async fn at_the_deadline_everything_is_killed_and_what_was_written_stays() {
    let mut agent = Agent::start().await;
    let output = overdue(&mut agent, "echo before; sleep 1000").await;
    assert_eq!(output.out(), "before\n");
    agent.end().await;
}

#[tokio::test]
async fn a_daemon_does_not_survive_the_deadline() {
    let mut agent = Agent::start().await;
    let daemon = "setsid sh -c 'setsid sleep 1000 </dev/null >/dev/null 2>&1 & exit' & ";
    overdue(&mut agent, &format!("{daemon} {daemon} sleep 1000")).await;
    agent.end().await;
}

#[tokio::test]
async fn neither_ignored_signals_nor_being_stopped_help() {
    let mut agent = Agent::start().await;
    overdue(&mut agent, "trap '' TERM INT HUP; sleep 1000 & kill -STOP $!; while :; do :; done").await;
    overdue(&mut agent, "kill -STOP $$").await;
    agent.end().await;
}

#[tokio::test]
async fn a_fork_bomb_is_killed_while_it_goes_on() {
    let mut agent = Agent::start().await;
    // Each process starts another and ends, so that the tree never rests; it would go on for far
    // longer than the test.
    let script = r#"exec python3 -c '
import os, time
end = time.monotonic() + 15
if os.fork(): time.sleep(1000)
for _ in range(3): os.fork()
while time.monotonic() < end:
    if os.fork(): os._exit(0)
    os.setsid()
'"#;
    overdue(&mut agent, script).await;
    agent.end().await;
}

#[tokio::test]
async fn a_client_that_hangs_up_kills_its_command_and_no_other() {
    let mut agent = Agent::start().await;
    let other = guest_protocol::Exec { stdin: true, ..agent.shell("echo ready; read x") };
    let (stdin, mut other) = agent.open_with_stdin(&other).await;
    other.until("ready").await;
    let before = agent.alive();
    let exec = agent.shell("setsid sleep 1000 & echo ready; sleep 1000");
    let mut running = agent.open(&exec).await;
    running.until("ready").await;
    assert!(agent.alive().len() > before.len());
    drop(running);
    eventually("the command is gone", || agent.alive() == before).await;
    drop(stdin);
    assert_eq!(other.finish().await.code(), 1);
    agent.end().await;
}

#[tokio::test]
async fn a_background_child_goes_on_and_writes_to_the_console() {
    let mut agent = Agent::start().await;
    let output = agent.run("(sleep 0.5; echo to stdout; echo to stderr >&2; exec sleep 1000) & echo ok").await;
    assert_eq!((output.out(), output.code()), ("ok\n", 0));
    assert!(!agent.alive().is_empty());
    let started = Instant::now();
    loop {
        let lines: Vec<String> = agent.ask("/console", &guest_protocol::Console { lines: 10 }).await.unwrap();
        if lines.len() == 2 {
            assert!(lines.contains(&"to stdout".to_owned()) && lines.contains(&"to stderr".to_owned()), "{lines:?}");
            break;
        }
        assert!(started.elapsed() < WAIT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The process is a child of its reaper, not of the agent.
    assert_eq!(children(agent.pid()).len(), 1);
    agent.end().await;
}

#[tokio::test]
async fn an_exec_does_not_wait_long_for_children_that_hold_its_pipes() {
    let mut agent = Agent::start().await;
    let started = Instant::now();
    assert_eq!(agent.run("sleep 1000 & exit 7").await.code(), 7);
    let took = started.elapsed();
    assert!((Duration::from_millis(240)..Duration::from_secs(3)).contains(&took), "{took:?}");
    // A child that holds no pipe is not waited for at all.
    let output = agent.run("sleep 1000 >/dev/null 2>&1 </dev/null & exit 7").await;
    assert_eq!(output.code(), 7);
    agent.end().await;
}

#[tokio::test]
async fn a_command_that_closes_its_outputs_is_waited_for() {
    let mut agent = Agent::start().await;
    let output = agent.run("exec >&- 2>&-; sleep 0.6; exit 5").await;
    assert_eq!(output.code(), 5);
    assert!(output.end.unwrap().duration_us >= 600_000);
    agent.end().await;
}

#[tokio::test]
async fn killing_the_reaper_saves_nothing() {
    let mut agent = Agent::start().await;
    let exec = agent.shell("setsid sleep 1000 & (setsid sh -c 'sleep 1000 & wait' &); echo ready; sleep 1000");
    let mut running = agent.open(&exec).await;
    running.until("ready").await;
    let reapers = children(agent.pid());
    assert_eq!(reapers.len(), 1);
    signal(reapers[0], Signal::TERM);
    signal(reapers[0], Signal::HUP);
    assert_eq!(children(agent.pid()), reapers, "only what cannot be blocked ends a reaper");
    signal(reapers[0], Signal::KILL);
    assert_eq!(running.finish().await.code(), 137);
    agent.nothing_is_alive().await;
    assert_eq!(agent.run("echo still here").await.out(), "still here\n");
    eventually("nothing is a child", || children(agent.pid()).is_empty()).await;
    agent.end().await;
}

#[tokio::test]
async fn a_stopped_reaper_does_not_stop_the_deadline() {
    let mut agent = Agent::start().await;
    let mut exec = agent.shell("kill -STOP $PPID; echo ready; setsid sleep 1000 & sleep 1000");
    exec.timeout_ms = 500;
    let output = agent.exec(&exec).await;
    assert_eq!((output.out(), output.code()), ("ready\n", 124));
    agent.nothing_is_alive().await;
    agent.end().await;
}

#[tokio::test]
async fn orphans_are_reaped() {
    let mut agent = Agent::start().await;
    let script = "for i in 1 2 3 4 5 6 7 8; do (sleep 0.1 &); done; sleep 0.5; sleep 1000 >/dev/null 2>&1 & exit 0";
    assert_eq!(agent.run(script).await.code(), 0);
    let reaper = children(agent.pid())[0];
    eventually("one child is left", || children(reaper).len() == 1).await;
    assert!(children_in_state(reaper, 'Z').is_empty());
    agent.end().await;
}

#[tokio::test]
async fn many_commands_leave_nothing() {
    let mut agent = Agent::start().await;
    // The first command shows that the connection is open, which counts too.
    assert_eq!(agent.run("true").await.code(), 0);
    let pid = agent.pid();
    eventually("nothing is a child", || children(pid).is_empty()).await;
    let open = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let before = open();
    for _ in 0..5 {
        let mut running = Vec::new();
        let exec = agent.shell("echo $$; exit 4");
        for _ in 0..40 {
            running.push(agent.open(&exec).await);
        }
        for one in running {
            assert_eq!(one.finish().await.code(), 4);
        }
    }
    eventually("nothing is a child", || children(agent.pid()).is_empty()).await;
    eventually("no pipe is left open", || open() <= before).await;
    agent.end().await;
}
