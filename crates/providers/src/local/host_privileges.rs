//! Privileges that the server lacks for the isolation of its boxes.

use rustix::process::{Resource, geteuid, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

const LOWERS_SCORE: &str = "The server lacks CAP_SYS_RESOURCE: when memory runs out, processes of a box are killed \
    before the server, but they can undo that (oom_score_adj)";
const DUMPS_CORE: &str = "The server was started with a limit of 0 for core dumps, so the kernel passes the core dumps \
    of boxes to a host program if kernel.core_pattern names one. Start it with a limit of at least 1 (systemd: \
    LimitCORE=1).";

/// Returns what the server lacks, a sentence each.
pub(crate) fn missing() -> Vec<String> {
    let can_hold = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE));
    let has_no_core = getrlimit(Resource::Core).maximum == Some(0);
    let lowers = (!can_hold).then(|| format!("{LOWERS_SCORE}: {}.", way_to("CAP_SYS_RESOURCE")));
    lowers.into_iter().chain(has_no_core.then(|| DUMPS_CORE.to_owned())).collect()
}

/// Returns how the server gets a capability, without a full stop.
pub(crate) fn way_to(capability: &str) -> String {
    way_of(geteuid().is_root(), capability)
}

fn way_of(is_root: bool, capability: &str) -> String {
    let short = capability.strip_prefix("CAP_").unwrap_or(capability);
    if is_root {
        return format!(
            "in a container, start the container with --cap-add={short}; in a unit, add {capability} to its \
             CapabilityBoundingSet=, or leave out that setting; in a shell, `capsh --print` shows what it may have: \
             start the server from a login that has {capability}"
        );
    }
    let lower = short.to_ascii_lowercase();
    format!(
        "start the server as root, or give it the capability: in a unit with AmbientCapabilities={capability}; from a \
         shell with `sudo setpriv --reuid=$USER --regid=$(id -g) --init-groups --inh-caps=+{lower} \
         --ambient-caps=+{lower} tidebox serve`; in a container as its root with --cap-add={short}"
    )
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn root_is_told_where_its_capability_went_and_a_user_how_to_get_one() {
        let root = way_of(true, "CAP_SYS_RESOURCE");
        assert!(!root.contains("as root") && root.contains("--cap-add=SYS_RESOURCE"));
        let user = way_of(false, "CAP_SYS_RESOURCE");
        assert!(user.contains("as root") && user.contains("--ambient-caps=+sys_resource"));
        for text in [root, user] {
            assert!(text.contains("in a unit") && text.contains("in a container") && text.contains("shell"));
        }
    }
}
