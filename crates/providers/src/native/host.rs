//! Capabilities of this host, probed by making boxes.

use domain::Resources;
use rustix::io::Errno;

use super::capabilities::Capabilities;
use super::snapshot;
use crate::local::backend::Backend;
use crate::local::builder::try_box;
use crate::local::cgroup::Cgroups;
use crate::local::cgroup::controller::Controller;
use crate::local::cgroup::remedy;
use crate::local::host_privileges;
use crate::local::launcher::LaunchError;
use crate::local::probe::{self, Probe};
use crate::provider::TRANSPARENT;
use crate::{Chain, Error, Facts, Isolation, LimitKind};

/// Disk of the box that probes for image files.
const DISK_MB: u32 = 16;

const SHARED_DEVICES: &str = "The server may not make device nodes: /dev/null and its like are the host's own files in \
    all boxes, so a lock of one box on them affects all boxes";
const SHARED_COUNTS: &str = "Boxes do not have their own users on the host: inotify instances and watches, message \
    queues, waiting signals and timers of all boxes count for one user, and each box may use an eighth. Files watched \
    by epoll, pages of pipes and descriptors on their way through sockets count for that user as well, without a limit \
    for each box: a box that uses them all shrinks other boxes' pipes, keeps them from sending descriptors, and blocks \
    new connections to the server's API until the server ends it. Run the server as root.";
const NEVER_STOPPED: &str =
    "No control group can stop the processes of a box, so sandboxes cannot be paused and have no snapshots";

const NOT_TRANSPARENT: &str = "`providers.native.transparent_egress` needs a server that runs as root: run it as root, \
    or set the key to false, so that programs use the proxy of their box.";

/// Makes boxes, from the most capable kind down, until one answers.
pub(super) async fn probe<B>(backend: &B, cgroups: &Cgroups, transparent: bool) -> Probe<Capabilities>
where
    B: Backend<Capabilities = Capabilities>,
{
    let mut probe = Probe::default();
    let is_root = rustix::process::geteuid().is_root();
    if transparent && !is_root {
        probe.error = Some(NOT_TRANSPARENT.to_owned());
        return probe;
    }
    // Without privileges no network can be made to lead to the agent.
    let kinds = match (is_root, transparent) {
        (true, false) => &[true, false][..],
        (true, true) => &[true],
        (false, _) => &[false],
    };
    for privileged in kinds {
        for disk_upper in [true, false] {
            let can = Capabilities { privileged: *privileged, disk_upper, ..Capabilities::default() };
            match try_box(backend, &probe::SIZE, can).await {
                Ok(shares_devices) => {
                    probe.missing.extend(shares_devices.then(|| shared_devices(is_root)));
                    settle(&mut probe, backend, can, is_root).await;
                    probe.missing.extend(cgroups.missing.iter().cloned());
                    if !cgroups.can_freeze() {
                        probe.missing.push(format!("{NEVER_STOPPED}: {}.", remedy::of_missing_group()));
                    }
                    return probe;
                }
                Err(error) => probe.missing.push(explain(&error, can)),
            }
        }
    }
    probe.error = Some(probe.missing.first().cloned().unwrap_or_default());
    probe
}

fn shared_devices(is_root: bool) -> String {
    // A user may make none, whatever else it may.
    let way = if is_root { host_privileges::way_to("CAP_MKNOD") } else { "start the server as root".to_owned() };
    format!("{SHARED_DEVICES}: {way}.")
}

/// Completes a probe whose first box has answered.
async fn settle<B>(probe: &mut Probe<Capabilities>, backend: &B, can: Capabilities, is_root: bool)
where
    B: Backend<Capabilities = Capabilities>,
{
    let with_images = Capabilities { images: true, ..can };
    probe.can = Some(can);
    if can.privileged {
        match try_box(backend, &Resources { disk_mb: DISK_MB, ..probe::SIZE }, with_images).await {
            Ok(_) => probe.can = Some(with_images),
            Err(error) => probe.missing.push(format!(
                "Image files cannot be mounted ({}), so disk_mb counts against the box's memory: install e2fsprogs and \
                 allow loop devices.",
                Chain(&error)
            )),
        }
    } else if !is_root {
        probe.missing.push(
            "The server does not run as root: boxes have one user id only, files of /usr belong to nobody, files of an \
             image belong to root, commands run as root whatever user an image names, and disk_mb counts against the \
             box's memory."
                .to_owned(),
        );
    }
    let can = probe.can.unwrap_or(can);
    // Without privileges a snapshot is a copy.
    let obstacle = can.privileged.then(snapshot::obstacle).flatten();
    probe.can = Some(Capabilities { snapshots: obstacle.is_none() && (can.disk_upper || can.images), ..can });
    probe.missing.extend(obstacle);
    if !can.privileged {
        probe.missing.push(SHARED_COUNTS.to_owned());
    }
    probe.missing.extend(host_privileges::missing());
}

pub(super) fn facts(probe: &Probe<Capabilities>, cgroups: &Cgroups, transparent: bool) -> Facts {
    let limits = vec![
        ("memory_mb", limit_kind(cgroups, Controller::Memory)),
        ("vcpus", limit_kind(cgroups, Controller::Cpu)),
        ("pids", limit_kind(cgroups, Controller::Pids)),
        ("disk_mb", LimitKind::Hard),
    ];
    Facts {
        isolation: Isolation::Container,
        runtime: "namespaces".to_owned(),
        network_mode: if transparent { TRANSPARENT } else { "loopback" }.to_owned(),
        limits,
        missing: probe.missing.clone(),
    }
}

fn limit_kind(cgroups: &Cgroups, controller: Controller) -> LimitKind {
    if cgroups.has(controller) { LimitKind::Hard } else { LimitKind::Soft }
}

/// Returns advice for an operator about a box that cannot be made.
fn explain(error: &Error, can: Capabilities) -> String {
    let refused = if let Error::Failed { source, .. } = error { source.downcast_ref::<LaunchError>() } else { None };
    let Some(LaunchError::Refused { step, errno }) = refused else {
        return format!("No box can be made: {}.", Chain(error));
    };
    let cause = Errno::from_raw_os_error(*errno);
    let advice = match step.as_str() {
        "make namespaces" if cause == Errno::NOSPC => "raise the sysctl user.max_user_namespaces".to_owned(),
        "make namespaces" | "map the user id" | "give up groups" | "make a control group namespace" => {
            "the kernel does not let this user create user namespaces: set the sysctls \
             kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0 where they exist, \
             or run the server as root"
                .to_owned()
        }
        "map the user ids" | "map the group ids" => {
            format!(
                "the server lacks CAP_SETUID or CAP_SETGID, or may not assign the ids. For each of the two: {}",
                host_privileges::way_to("CAP_SETUID")
            )
        }
        "map the ids of a layer" => "the kernel must be 5.19 or later, and the file systems of /usr and of the data \
            folder must support idmapped mounts (ext4, xfs, btrfs)"
            .to_owned(),
        "mount an overlay" if can.disk_upper => {
            "the file system of the data folder cannot carry the upper layer of an overlay, so changes are kept in \
             memory: move the data folder to ext4, xfs or btrfs"
                .to_owned()
        }
        "mount an overlay" => "the kernel must be 5.11 or later and have overlayfs".to_owned(),
        "mount /proc" => "a container hides parts of /proc: start it with its /proc unmasked".to_owned(),
        "make all addresses local"
        | "make a map of sockets"
        | "load the rule of diverted connections"
        | "attach the rule of diverted connections" => divert_advice(cause).to_owned(),
        _ => "the host's configuration forbids it".to_owned(),
    };
    format!("The kernel refused to {step} ({cause}): {advice}.")
}

/// Returns advice about connections that cannot be led to the agent.
fn divert_advice(cause: Errno) -> &'static str {
    match cause {
        Errno::PERM | Errno::ACCESS => {
            "`providers.native.transparent_egress` needs the capabilities CAP_BPF and CAP_NET_ADMIN of the host, and a system call filter around the server that allows bpf: allow them, or set the key to false"
        }
        _ => {
            "`providers.native.transparent_egress` needs a kernel of 5.11 or later with CONFIG_BPF_SYSCALL: use one, or set the key to false"
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::local::launcher;

    #[test]
    fn a_refused_diversion_is_explained_by_its_key() {
        for step in ["make all addresses local", "make a map of sockets", "attach the rule of diverted connections"] {
            for (errno, words) in [(Errno::PERM, "CAP_BPF and CAP_NET_ADMIN"), (Errno::INVAL, "CONFIG_BPF_SYSCALL")] {
                let refused = LaunchError::Refused { step: step.to_owned(), errno: errno.raw_os_error() };
                let text = explain(&launcher::failed(refused), Capabilities::default());
                assert!(text.contains("`providers.native.transparent_egress`") && text.contains(words), "{text}");
            }
        }
    }
}
