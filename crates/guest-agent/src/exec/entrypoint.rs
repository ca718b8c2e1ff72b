//! The image's entry point: a command without a client, whose output is the console.

use std::collections::BTreeMap;
use std::future::pending;
use std::rc::Rc;
use std::sync::Arc;

use guest_protocol::{Exec, Failure};
use tokio::task::{JoinSet, spawn_local};

use super::spawn::Report;
use super::streams::drain;
use super::{Command, GRACE, complaint, read_end};
use crate::agent::Agent;
use crate::failure::exhausted;
use crate::oom;

/// Starts the entry point, if the box has one. It has no deadline but the box's.
pub(crate) fn start(agent: &Rc<Agent>) {
    let Some(argv) = agent.boot.entrypoint.clone() else { return };
    let agent = Rc::clone(agent);
    spawn_local(async move {
        let line = match run(&agent, argv).await {
            Ok(end) => format!("tidebox: the entry point {end}"),
            Err(failure) => format!("tidebox: the entry point cannot be started: {}", failure.message),
        };
        agent.console.push(line);
    });
}

/// Runs until the main process has ended and returns how it did.
async fn run(agent: &Rc<Agent>, argv: Vec<String>) -> Result<String, Failure> {
    agent.settle();
    let permit = Arc::clone(&agent.execs).try_acquire_owned();
    let permit = permit.map_err(|_| exhausted("the sandbox runs the maximum number of commands"))?;
    let exec = Exec {
        argv,
        env: BTreeMap::new(),
        workdir: None,
        user: None,
        timeout_ms: u64::MAX,
        stdin: false,
        terminal: None,
    };
    let mut command = Command::start(agent, exec)?;
    let refused = command.begin(agent, pending()).await?;
    let Command { exec, reaper, oom_kills_before, stdout, stderr, report, .. } = command;
    // Children may hold the pipes for longer than the main process lives.
    let mut outputs = JoinSet::new();
    for pipe in [Some(stdout), stderr].into_iter().flatten() {
        let agent = Rc::clone(agent);
        outputs.spawn_local(async move { drain(pipe, &agent.console).await });
    }
    let end = read_end(&report, &reaper).await;
    // So that its last output comes before the agent's message.
    let all = async { while outputs.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(GRACE, all).await;
    spawn_local(async move {
        while outputs.join_next().await.is_some() {}
        // The descriptors count as those of a command until the pipes are closed.
        drop(permit);
    });
    if let Some((_, errno)) = refused {
        return Ok(format!("cannot be started: {}", complaint(&exec, errno)));
    }
    let by_memory = reaper.memory_killed.get() || oom::kills(agent.oom_events.as_ref()) > oom_kills_before;
    let why = if by_memory { "; the memory limit killed it or one of its children" } else { "" };
    Ok(match end {
        Some(Report::Exited(status)) if libc::WIFSIGNALED(status) => {
            format!("was killed by signal {}{why}", libc::WTERMSIG(status))
        }
        Some(Report::Exited(status)) => format!("exited with code {}{why}", libc::WEXITSTATUS(status)),
        // The reaper was killed, and with it every process below it.
        _ => "was killed from inside the sandbox".to_owned(),
    })
}
