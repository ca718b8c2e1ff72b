//! Hierarchies of this host in which control groups can be made.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::controller::Controller;

/// Group that the server moves itself into, since in version 2 a group with members cannot limit
/// its children.
pub(super) const SERVER_LEAF: &str = "tidebox-server";
/// Number of times that all processes of a container are moved into one group. One that is forked
/// meanwhile stays behind until the next time.
const MOVES_MAX: usize = 16;
/// Mode of new groups. A user who could make groups below them would get a share of their limits.
const GROUP_MODE: u32 = 0o755;

/// Cause for which a group of version 2 cannot limit those below it.
const SHARED: &str = "it has other processes";

/// Mounted hierarchy with a controller that boxes need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    /// Group below which the server makes its own.
    pub(super) base: PathBuf,
    pub(super) v2: bool,
    pub(super) controllers: Vec<Controller>,
}

/// Returns every hierarchy with one of the controllers that boxes need.
pub(super) fn hierarchies(parent: Option<&str>) -> Vec<Hierarchy> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    from_tables(&mounts, &own, parent, listed_controllers)
}

/// Returns the hierarchies of version 1, and `top` for what they lack.
pub(super) fn hierarchies_at(mut top: Hierarchy) -> Vec<Hierarchy> {
    let mut all = hierarchies(None);
    all.retain(|hierarchy| !hierarchy.v2);
    top.controllers.retain(|controller| !all.iter().any(|other| other.controllers.contains(controller)));
    all.push(top);
    all
}

/// Returns the top of the hierarchy of version 2 as it is seen here; `None` if it has no controllers.
pub(super) fn top() -> Option<Hierarchy> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let points = mounts.lines().filter_map(fields).filter(|(_, _, kind, _)| *kind == "cgroup2");
    let mut usable = points.filter_map(|(_, point, _, _)| {
        let controllers = limits_in(&listed_controllers(Path::new(point)));
        (!controllers.is_empty()).then(|| Hierarchy { base: point.into(), v2: true, controllers })
    });
    usable.next()
}

/// Returns a mount of the hierarchy of version 1 with these controllers.
pub(super) fn mount_point(mounts: &str, controllers: &str) -> Option<String> {
    let mut found = mounts
        .lines()
        .filter_map(fields)
        .filter(|(_, _, kind, options)| *kind == "cgroup" && controllers.split(',').all(|name| lists(options, name)));
    found.next().map(|(_, point, _, _)| point.to_owned())
}

/// Returns whether `names`, separated by commas, has `name`.
pub(super) fn lists(names: &str, name: &str) -> bool {
    names.split(',').any(|other| other == name)
}

/// Reads the controllers of a group of version 2; empty if it has none.
fn listed_controllers(group: &Path) -> String {
    fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default()
}

/// Returns the controllers of limits that `cgroup.controllers` lists.
fn limits_in(listed: &str) -> Vec<Controller> {
    let mut controllers = Controller::LIMITS.to_vec();
    controllers.retain(|controller| listed.split_whitespace().any(|name| name == controller.as_str()));
    controllers
}

fn from_tables(
    mounts: &str,
    own: &str,
    parent: Option<&str>,
    v2_controllers: impl Fn(&Path) -> String,
) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mounts.lines() {
        let Some((root, point, kind, options)) = fields(line) else { continue };
        let v2 = kind == "cgroup2";
        if !v2 && kind != "cgroup" {
            continue;
        }
        let Some(own) = own_group(own, v2, options) else { continue };
        let base = base(point, root, parent.unwrap_or(own), v2 && parent.is_none());
        let mut controllers: Vec<Controller> = if v2 {
            limits_in(&v2_controllers(&base))
        } else {
            Controller::VERSION_1.into_iter().filter(|it| lists(options, it.as_str())).collect()
        };
        controllers.retain(|controller| !found.iter().any(|other| other.controllers.contains(controller)));
        if !controllers.is_empty() {
            found.push(Hierarchy { base, v2, controllers });
        }
    }
    found
}

/// Returns the root within the hierarchy, the mount point, the type, and the file system's
/// options.
fn fields(line: &str) -> Option<(&str, &str, &str, &str)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let mut system = system.split(' ');
    Some((mount.next()?, mount.next()?, system.next()?, system.nth(1)?))
}

/// Returns the server's own group in the hierarchy, from a line `<n>:<controllers>:<path>`;
/// version 2 names no controllers.
fn own_group<'a>(own: &'a str, v2: bool, options: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next()?;
        let path = parts.next()?;
        let ours = if v2 {
            controllers.is_empty()
        } else {
            !controllers.is_empty() && controllers.split(',').all(|name| lists(options, name))
        };
        ours.then_some(path)
    })
}

fn base(point: &str, root: &str, group: &str, own_v2: bool) -> PathBuf {
    // In a container the hierarchy may be mounted from the server's own group on.
    let inside = group.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/')).unwrap_or(group);
    let base = Path::new(point).join(inside.trim_start_matches('/'));
    // A restarted server may already be in its leaf.
    if own_v2 && base.ends_with(SERVER_LEAF) { base.parent().unwrap_or(&base).to_owned() } else { base }
}

/// Enables limits on the children of `base`. In version 2 this requires that only children have
/// members, so the server moves into a leaf.
pub(super) fn delegate(base: &Path, controllers: &[Controller]) -> io::Result<()> {
    let Err(error) = enable(base, controllers) else { return Ok(()) };
    if error.kind() != io::ErrorKind::ResourceBusy {
        return Err(error);
    }
    let own = std::process::id().to_string();
    let leaf = base.join(SERVER_LEAF);
    if members(base)?.lines().all(|pid| pid == own) {
        make_dir_and_parents(&leaf)?;
        fs::write(leaf.join("cgroup.procs"), own)?;
        return enable(base, controllers);
    }
    if !is_top_of_container(base) {
        return Err(io::Error::other(SHARED));
    }
    make_dir_and_parents(&leaf)?;
    let mut outcome = Err(io::Error::other(SHARED));
    for _ in 0..MOVES_MAX {
        // Processes that this container cannot see are listed as 0, which would name this one.
        for pid in members(base)?.lines().filter(|pid| *pid != "0") {
            // A process that has ended meanwhile needs no other group.
            let _ = fs::write(leaf.join("cgroup.procs"), pid);
        }
        outcome = enable(base, controllers);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

pub(super) fn members(group: &Path) -> io::Result<String> {
    fs::read_to_string(group.join("cgroup.procs"))
}

/// Returns whether `base` is the highest group that a container sees, so that all of its members are
/// processes of the container. The top of the host has no type, and may have members.
fn is_top_of_container(base: &Path) -> bool {
    base.join("cgroup.type").exists() && top().is_some_and(|top| top.base == base)
}

/// Returns the group of the server below `base`, if it has moved into one.
pub(super) fn server_leaf(base: &Path) -> Option<PathBuf> {
    Some(base.join(SERVER_LEAF)).filter(|leaf| leaf.exists())
}

/// Makes a group that only its owner can change, independent of the umask.
pub(super) fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(GROUP_MODE).create(dir)
}

/// Makes a group and its missing parents, as [`make_dir`] does. An existing one stays as it is.
pub(super) fn make_dir_and_parents(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(GROUP_MODE).recursive(true).create(dir)
}

pub(super) fn enable(dir: &Path, controllers: &[Controller]) -> io::Result<()> {
    let wanted: Vec<String> = controllers.iter().map(|controller| format!("+{}", controller.as_str())).collect();
    fs::write(dir.join("cgroup.subtree_control"), wanted.join(" "))
}

#[cfg(test)]
mod test {
    use super::*;

    fn hierarchy(base: &str, v2: bool, controllers: &[Controller]) -> Hierarchy {
        Hierarchy { base: base.into(), v2, controllers: controllers.to_vec() }
    }

    #[test]
    fn version_1_groups_lie_below_our_own() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
            31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            32 23 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let own = "4:memory:/a/b\n2:cpu,cpuacct:/\n1:name=systemd:/x\n0::/y\n";
        let found = from_tables(mounts, own, None, |_| "hugetlb".to_owned());
        assert_eq!(
            found,
            [
                hierarchy("/sys/fs/cgroup/cpu", false, &[Controller::Cpu, Controller::CpuUsage]),
                hierarchy("/sys/fs/cgroup/memory/a/b", false, &[Controller::Memory]),
            ]
        );
    }

    #[test]
    fn version_2_groups_lie_beside_the_leaf_of_the_server() {
        let mounts = "32 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let all = |_: &Path| "cpuset cpu io memory pids".to_owned();
        for own in ["0::/system.slice/tidebox.service\n", "0::/system.slice/tidebox.service/tidebox-server\n"] {
            let found = from_tables(mounts, own, None, all);
            assert_eq!(found, [hierarchy("/sys/fs/cgroup/system.slice/tidebox.service", true, &Controller::LIMITS)]);
        }
        let found = from_tables(mounts, "0::/x\n", Some("/boxes"), all);
        assert_eq!(found, [hierarchy("/sys/fs/cgroup/boxes", true, &Controller::LIMITS)]);
    }

    #[test]
    fn a_hierarchy_mounted_from_our_own_group_on_is_understood() {
        let mounts = "32 23 0:28 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let found = from_tables(mounts, "0::/docker/abc\n", None, |_| "memory".to_owned());
        assert_eq!(found, [hierarchy("/sys/fs/cgroup", true, &[Controller::Memory])]);
    }
}
