//! Memory limit where no control group enforces it.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::agent::Agent;
use crate::exec::processes::{Processes, resident_kb};

/// Interval of checks. A process that fills 1 GiB per second gets 150 MiB past the limit.
const PERIOD: Duration = Duration::from_millis(150);

/// Kills the largest process of a command whenever the box takes more than `limit_mb` mebibytes.
pub(crate) async fn run(agent: Rc<Agent>, limit_mb: u32) {
    loop {
        tokio::time::sleep(PERIOD).await;
        if !agent.reapers.is_empty() {
            check(&agent, u64::from(limit_mb) * 1024);
        }
    }
}

fn check(agent: &Agent, limit_kb: u64) {
    let processes = Processes::read();
    let own = processes.below(&[agent.pid]);
    let sizes: HashMap<i32, u64> =
        own.iter().chain([&agent.pid]).map(|pid| (*pid, resident_kb(*pid).unwrap_or(0))).collect();
    let total: u64 = sizes.values().sum();
    if total <= limit_kb {
        return;
    }
    let candidates = agent.reapers.all().into_iter().flat_map(|reaper| {
        let below = processes.below(&[reaper.pid]).into_iter();
        below.map(|pid| (sizes.get(&pid).copied().unwrap_or(0), pid, Rc::clone(&reaper))).collect::<Vec<_>>()
    });
    let Some((size_kb, pid, reaper)) = candidates.max_by_key(|(size_kb, ..)| *size_kb) else { return };
    reaper.memory_killed.set(true);
    if let Some(target) = Pid::from_raw(pid) {
        // A process that has just ended needs no signal.
        let _ = kill_process(target, Signal::KILL);
    }
    agent.console.push(format!(
        "tidebox: the box uses {} MiB, more than its limit of {}: killed its largest process, {pid} with {} MiB",
        total / 1024,
        limit_kb / 1024,
        size_kb / 1024,
    ));
}
