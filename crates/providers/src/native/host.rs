//! Capabilities of this host, probed by making boxes.

use std::time::Duration;

use domain::{Resources, SandboxId};
use rustix::io::Errno;

use super::builder::BoxBuilder;
use crate::local::cgroup::controller::Controller;
use crate::local::launcher::LaunchError;
use crate::local::powers;
use crate::{Chain, Error, Facts, Isolation, LimitKind, Result};

/// Size of a probe's box, which is small and ends by itself soon if the server does not end it.
const PROBE: Resources = Resources { memory_mb: 64, vcpus: 1, disk_mb: 0, pids: 16 };
const PROBE_DISK_MB: u32 = 16;
const PROBE_LIFETIME: Duration = Duration::from_secs(60);

/// Returns the id of a probe's box: all bits set, which random ids do not hit.
pub(super) fn probe_id() -> SandboxId {
    SandboxId::from_entropy([0xff; 10])
}

const SHARED_DEVICES: &str = "The server may not make device nodes: /dev/null and its like are the very files of the host in all boxes, so a lock that one box takes on them holds for all. Run the server as root with CAP_MKNOD.";
const SHARED_COUNTS: &str = "Boxes have no users of the host of their own: inotify instances and watches, message queues, waiting signals and timers of all boxes count for one user, and each box may take an eighth. Files watched by epoll, pages of pipes and descriptors on their way through sockets count for it as well, without a bound for one box: a box that takes them all makes pipes of others small, has them send no descriptors, and closes the server's API to new connections until the server has ended it. Run the server as root.";

/// Ways in which boxes can be made here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Capabilities {
    /// True if boxes have ids of their own, and layers mapped to them; else they run as one user.
    pub(super) privileged: bool,
    /// True if changes can lie in the data folder; else they lie in memory.
    pub(super) disk_upper: bool,
    /// True if image files can be mounted, so that the disk of a box can be bounded.
    pub(super) images: bool,
}

/// Result of a probe.
#[derive(Debug, Clone, Default)]
pub(super) struct Host {
    /// Capabilities; `None` if no box can be made.
    pub(super) can: Option<Capabilities>,
    /// Reason why no box can be made, with advice for the operator.
    pub(super) error: Option<String>,
    /// Missing features, a sentence each.
    pub(super) missing: Vec<String>,
}

impl Host {
    /// Makes boxes, from the most capable kind down, until one answers.
    pub(super) async fn probe(maker: &BoxBuilder) -> Host {
        let mut host = Host::default();
        let is_root = rustix::process::geteuid().is_root();
        for privileged in if is_root { &[true, false][..] } else { &[false] } {
            for disk_upper in [true, false] {
                let can = Capabilities { privileged: *privileged, disk_upper, images: false };
                match try_box(maker, &PROBE, can).await {
                    Ok(shares_devices) => {
                        host.missing.extend(shares_devices.then(|| SHARED_DEVICES.to_owned()));
                        host.settle(maker, can, is_root).await;
                        return host;
                    }
                    Err(error) => host.missing.push(explain(&error, can)),
                }
            }
        }
        host.error = Some(host.missing.first().cloned().unwrap_or_default());
        host
    }

    async fn settle(&mut self, maker: &BoxBuilder, can: Capabilities, is_root: bool) {
        let with_images = Capabilities { images: true, ..can };
        self.can = Some(can);
        if can.privileged {
            match try_box(maker, &Resources { disk_mb: PROBE_DISK_MB, ..PROBE }, with_images).await {
                Ok(_) => self.can = Some(with_images),
                Err(error) => self.missing.push(format!(
                    "Image files cannot be mounted ({}), so a disk limit is held in the box's memory: install e2fsprogs and allow loop devices.",
                    Chain(&error)
                )),
            }
        } else if !is_root {
            self.missing.push(
                "The server does not run as root: boxes have one user id only, the files of /usr appear as nobody's and those of an image all as root's, commands run as root whatever user an image names, and a disk limit is held in the box's memory."
                    .to_owned(),
            );
        }
        if !can.privileged {
            self.missing.push(SHARED_COUNTS.to_owned());
        }
        self.missing.extend(powers::missing().into_iter().map(str::to_owned));
        self.missing.extend(maker.cgroups.missing.iter().cloned());
    }

    pub(super) fn facts(&self, maker: &BoxBuilder) -> Facts {
        let kind = |controller| if maker.cgroups.has(controller) { LimitKind::Hard } else { LimitKind::Soft };
        let limits = vec![
            ("memory_mb", kind(Controller::Memory)),
            ("vcpus", kind(Controller::Cpu)),
            ("pids", kind(Controller::Pids)),
            ("disk_mb", LimitKind::Hard),
        ];
        Facts {
            isolation: Isolation::Container,
            runtime: "namespaces".to_owned(),
            network_mode: "loopback".to_owned(),
            limits,
            missing: self.missing.clone(),
        }
    }
}

/// Makes a box and removes it again. Returns whether its devices are those of the host.
async fn try_box(maker: &BoxBuilder, resources: &Resources, can: Capabilities) -> Result<bool> {
    let folder = maker.folders.of(&probe_id());
    let made = maker.make(&maker.a_box(&probe_id(), resources, PROBE_LIFETIME, can)).await;
    let process = made.as_ref().ok().map(|made| &made.process);
    maker.remove(&folder, process).await?;
    made.map(|made| made.shares_devices)
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
            "the kernel forbids user namespaces to this user: set the sysctls kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0 where they exist, or run the server as root".to_owned()
        }
        "map the user ids" | "map the group ids" => {
            "the server lacks the capabilities SETUID and SETGID, or the ids are not its to give".to_owned()
        }
        "map the ids of a layer" => "the kernel must be 5.19 or later, and the file system of /usr and of the data folder one that can be idmapped (ext4, xfs, btrfs)".to_owned(),
        "mount an overlay" if can.disk_upper => {
            "the file system of the data folder cannot carry the upper layer of an overlay, so changes lie in memory: move the data folder to ext4, xfs or btrfs".to_owned()
        }
        "mount an overlay" => "the kernel must be 5.11 or later and have overlayfs".to_owned(),
        "mount /proc" => "a container hides parts of /proc: start it with its /proc unmasked".to_owned(),
        _ => "the host's configuration forbids it".to_owned(),
    };
    format!("The kernel refused to {step} ({cause}): {advice}.")
}
