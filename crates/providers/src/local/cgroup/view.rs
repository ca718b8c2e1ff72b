//! Hierarchies in which a box sees its own control group.

use std::fs;

use guest_protocol::GroupView;

use super::Cgroups;
use super::controller::Controller;

/// Controller that boxes have no group for, and that Java wants a mount of in version 1.
const CPUSET: &str = "cpuset";

impl Cgroups {
    /// Returns the hierarchies in which a box has a group with a limit or a count.
    pub(crate) fn views(&self) -> Vec<GroupView> {
        views(&fs::read_to_string("/proc/self/cgroup").unwrap_or_default(), |controller| {
            self.parents.iter().find(|parent| parent.has(controller)).map(|parent| parent.hierarchy.v2)
        })
    }
}

/// `version_2` tells whether the group for a controller is of version 2; `None` without a group.
fn views(own: &str, version_2: impl Fn(Controller) -> Option<bool>) -> Vec<GroupView> {
    let seen = [Controller::Memory, Controller::Cpu, Controller::CpuUsage, Controller::Pids];
    let mut views: Vec<GroupView> = Vec::new();
    for line in own.lines() {
        let Some(controllers) = line.split(':').nth(1).filter(|names| !names.is_empty()) else { continue };
        let has = |name: &str| controllers.split(',').any(|other| other == name);
        let is_own = seen.into_iter().any(|it| has(it.as_str()) && version_2(it) == Some(false));
        if is_own || has(CPUSET) {
            views.push(GroupView { controllers: controllers.to_owned(), covered: !is_own });
        }
    }
    if views.iter().any(|view| !view.covered) {
        return views;
    }
    let is_unified = seen.into_iter().any(|controller| version_2(controller) == Some(true));
    if is_unified { vec![GroupView::default()] } else { Vec::new() }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn groups_of_either_version_are_seen_and_none_of_others() {
        let own = "9:name=systemd:/\n8:pids:/\n6:freezer:/\n4:memory:/x\n3:cpuset:/\n1:cpu,cpuacct:/\n0::/\n";
        let seen = |own, v2: Option<bool>| -> Vec<(String, bool)> {
            views(own, |_| v2).into_iter().map(|view| (view.controllers, view.covered)).collect()
        };
        let version_1 = [("pids", false), ("memory", false), ("cpuset", true), ("cpu,cpuacct", false)];
        assert_eq!(seen(own, Some(false)), version_1.map(|(names, covered)| (names.to_owned(), covered)));
        assert_eq!(seen("0::/a\n", Some(true)), [(String::new(), false)]);
        assert_eq!(seen(own, Some(true)), [(String::new(), false)]);
        assert_eq!(seen(own, None), []);
    }
}
