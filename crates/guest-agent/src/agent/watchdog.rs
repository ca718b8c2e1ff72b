//! Holds the memory limit where no control group does: kills the largest
//! process when all of them together take more than the box may.

use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Pid, Signal, getpid, kill_process};

use super::{Agent, children};

/// Between two looks. A process can take some hundred mebibytes meanwhile,
/// which is why this limit is called soft.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Looks until the box ends.
pub(crate) async fn run(agent: Rc<Agent>, limit_mb: u32) {
    let limit_kib = u64::from(limit_mb) * 1024;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let us = getpid();
        let sizes: Vec<(Pid, u64)> = children::table()
            .into_iter()
            .filter(|process| process.pid != us)
            .filter_map(|process| Some((process.pid, own_kib(process.pid)?)))
            .collect();
        let total: u64 = sizes.iter().map(|(_, kib)| kib).sum();
        if total <= limit_kib {
            continue;
        }
        let Some((largest, kib)) = sizes.into_iter().max_by_key(|(_, kib)| *kib) else { continue };
        if kill_process(largest, Signal::KILL).is_ok() {
            agent.oom.add_own();
            let line = format!(
                "tidebox: killed process {} of {} MiB: the limit is {limit_mb} MiB",
                largest.as_raw_nonzero(),
                kib >> 10
            );
            agent.console.push(line.as_bytes());
        }
    }
}

/// What a process has for itself, in kibibytes: anonymous and shared memory,
/// not files, which the kernel can drop.
fn own_kib(pid: Pid) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_ascii_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    Some(field("RssAnon:") + field("RssShmem:"))
}
