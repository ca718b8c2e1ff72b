//! Privileges that the server lacks for the isolation of its boxes.

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

const LOWERS_SCORE: &str = "The server lacks CAP_SYS_RESOURCE: processes of a box are ended before the server when memory runs out, but can set that back (oom_score_adj). Run the server as root with CAP_SYS_RESOURCE.";
const DUMPS_CORE: &str = "The server was started with a limit of 0 for core dumps, at which the kernel gives those of boxes to a program of the host if kernel.core_pattern names one. Start it with a limit of at least 1 (systemd: LimitCORE=1).";

/// Returns what the server lacks, a sentence each.
pub(crate) fn missing() -> Vec<&'static str> {
    let can_hold = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE));
    let has_no_core = getrlimit(Resource::Core).maximum == Some(0);
    let lacks = [(!can_hold, LOWERS_SCORE), (has_no_core, DUMPS_CORE)];
    lacks.into_iter().filter(|(lacking, _)| *lacking).map(|(_, text)| text).collect()
}
