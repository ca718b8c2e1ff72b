//! Hierarchies in which a box sees its own control group.

use std::fs;

use guest_protocol::{CgroupDir, GroupView};

use super::controller::Controller;
use super::{Cgroups, tree};

/// Controller that boxes have no group for, and that Java wants a mount of in version 1.
const CPUSET: &str = "cpuset";

/// Hierarchies in which boxes see their own groups.
#[derive(Debug)]
pub(crate) struct Views(Vec<View>);

#[derive(Debug, PartialEq, Eq)]
struct View {
    controllers: String,
    shows: Shows,
}

#[derive(Debug, PartialEq, Eq)]
enum Shows {
    /// The group of the box with this position among its groups.
    Own(usize),
    /// Nothing of this directory.
    Covered(String),
}

impl Cgroups {
    /// Returns the hierarchies in which a box has a group with a limit or a count.
    pub(crate) fn views(&self) -> Views {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Views(views(&own, |it| self.group_with(it), |controllers| tree::mount_point(&mounts, controllers)))
    }

    /// Returns the position of a box's group for `controller`, and whether it is of version 2.
    fn group_with(&self, controller: Controller) -> Option<(usize, bool)> {
        let position = self.parents.iter().position(|parent| parent.has(controller))?;
        Some((position, self.parents[position].hierarchy.v2))
    }
}

impl Views {
    /// Returns what a box with these groups sees.
    pub(crate) fn of(&self, groups: &[CgroupDir]) -> Vec<GroupView> {
        self.0.iter().filter_map(|view| view.of(groups)).collect()
    }
}

impl View {
    /// Returns what a box with these groups sees; `None` if its own group is not among them.
    fn of(&self, groups: &[CgroupDir]) -> Option<GroupView> {
        let (dir, covered) = match &self.shows {
            Shows::Own(position) => (groups.get(*position)?.path.clone(), false),
            Shows::Covered(dir) => (dir.clone(), true),
        };
        Some(GroupView { controllers: self.controllers.clone(), dir, covered })
    }
}

/// `group_of` returns the position of the group for a controller, and whether it is of version 2.
/// `mount_point` returns a mount of the hierarchy with some controllers.
fn views(
    own: &str,
    group_of: impl Fn(Controller) -> Option<(usize, bool)>,
    mount_point: impl Fn(&str) -> Option<String>,
) -> Vec<View> {
    let seen = [Controller::Memory, Controller::Cpu, Controller::CpuUsage, Controller::Pids];
    let mut views: Vec<View> = Vec::new();
    for line in own.lines() {
        let Some(controllers) = line.split(':').nth(1).filter(|names| !names.is_empty()) else { continue };
        let groups = seen.into_iter().filter(|it| tree::lists(controllers, it.as_str())).filter_map(&group_of);
        let own = groups.filter(|(_, v2)| !v2).map(|(position, _)| Shows::Own(position)).next();
        let shows = own.or_else(|| {
            let covered = tree::lists(controllers, CPUSET).then(|| mount_point(controllers));
            covered.flatten().map(Shows::Covered)
        });
        if let Some(shows) = shows {
            views.push(View { controllers: controllers.to_owned(), shows });
        }
    }
    if views.iter().any(|view| matches!(view.shows, Shows::Own(_))) {
        return views;
    }
    let unified = seen.into_iter().filter_map(group_of).find(|(_, v2)| *v2);
    unified.map(|(position, _)| View { controllers: String::new(), shows: Shows::Own(position) }).into_iter().collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn groups_of_either_version_are_seen_and_none_of_others() {
        let own = "9:name=systemd:/\n8:pids:/\n6:freezer:/\n4:memory:/x\n3:cpuset:/\n1:cpu,cpuacct:/\n0::/\n";
        let groups = ["/m/box", "/p/box", "/c/box"].map(|path| CgroupDir { path: path.to_owned(), v2: false });
        let seen = |own, v2: Option<bool>| -> Vec<(String, String, bool)> {
            let order = [Controller::Memory, Controller::Pids];
            let position = |controller| order.iter().position(|it| *it == controller).unwrap_or(2);
            let views = views(own, |it| v2.map(|v2| (position(it), v2)), |names| Some(format!("/mounts/{names}")));
            let groups = Views(views).of(&groups).into_iter();
            groups.map(|GroupView { controllers, dir, covered }| (controllers, dir, covered)).collect()
        };
        let version_1 = [
            ("pids", "/p/box", false),
            ("memory", "/m/box", false),
            ("cpuset", "/mounts/cpuset", true),
            ("cpu,cpuacct", "/c/box", false),
        ];
        let expected = version_1.map(|(names, dir, covered)| (names.to_owned(), dir.to_owned(), covered));
        assert_eq!(seen(own, Some(false)), expected);
        assert_eq!(seen("0::/a\n", Some(true)), [(String::new(), "/m/box".to_owned(), false)]);
        assert_eq!(seen(own, Some(true)), [(String::new(), "/m/box".to_owned(), false)]);
        assert_eq!(seen(own, None), []);
    }
}
