//! Description of the Engine, and whether it can hold boxes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use bollard::Docker as Client;
use bollard::errors::Error as ClientError;
use bollard::models::{SystemInfo, SystemInfoCgroupVersionEnum, SystemVersion};
use bollard::query_parameters::ListContainersOptionsBuilder;
use parking_lot::RwLock;

use super::config::DockerConfig;
use super::fault;
use super::labels::STORE_LABEL;

/// Oldest version of the API that is sufficient: Docker 20.10.
pub(super) const API_MIN: (u32, u32) = (1, 41);
/// Limit for one description, so that [`crate::Provider::health`] answers within a second.
const ASK_WAIT: Duration = Duration::from_millis(900);
/// Oldest safe runc: earlier ones can be made to write outside of a box (CVE-2025-31133 and
/// related).
const RUNC_MIN: [u32; 3] = [1, 2, 8];

/// First kernel with a limit on socket options for each network namespace.
const OPTIONS_KERNEL_MIN: [u32; 2] = [6, 7];

/// Description that an Engine gives of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct About {
    pub(super) version: String,
    /// Names of its OCI runtimes, sorted.
    pub(super) runtimes: Vec<String>,
    pub(super) default_runtime: String,
    /// Architecture of its machine, in Go's names: `amd64`, `arm64`.
    pub(super) arch: String,
    /// True if containers can have a limit on their own file system.
    pub(super) bounds_disk: bool,
    /// True for each limit that it holds: memory, processors, processes.
    pub(super) limits: [bool; 3],
    /// True for control groups of version 1, where a memory limit counts no buffers of sockets.
    pub(super) groups_v1: bool,
    /// True if its kernel has a limit on socket options for each network namespace.
    pub(super) bounds_options: bool,
    /// Folder of its containers, as seen on its machine.
    pub(super) root_dir: PathBuf,
    /// Number of this store's containers on it.
    pub(super) boxes: u32,
    /// Missing features, a sentence each, with advice.
    pub(super) missing: Vec<String>,
}

/// Last description of the Engine, and the reason why it cannot be used now.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) about: Option<About>,
    pub(super) error: Option<String>,
}

/// Cache of the last answer of an Engine.
#[derive(Debug, Default)]
pub(super) struct Engine {
    seen: RwLock<Seen>,
}

impl Engine {
    pub(super) fn seen(&self) -> Seen {
        self.seen.read().clone()
    }

    pub(super) fn about(&self) -> Option<About> {
        self.seen().about
    }

    /// Asks the Engine within a second. Returns the reason why no box can be made; `None` if
    /// boxes can be made.
    pub(super) async fn ask(&self, client: &Client, config: &DockerConfig, place: &str) -> Option<String> {
        let answer = tokio::time::timeout(ASK_WAIT, describe(client, config)).await;
        let answer = match answer {
            Ok(Ok(about)) => {
                let error = unfit(&about, config);
                Ok((about, error))
            }
            Ok(Err(error)) if fault::is_unreachable(&error) => {
                Err(format!("{}: {}", place, fault::unreachable(&error)))
            }
            Ok(Err(error)) => Err(format!("{place}: the Docker Engine does not report its state ({error})")),
            Err(_) => Err(format!("{place}: the Docker Engine takes longer than a second to answer")),
        };
        let mut seen = self.seen.write();
        match answer {
            Ok((about, error)) => *seen = Seen { about: Some(about), error },
            Err(error) => {
                seen.error = Some(format!(
                    "{error}. Check that it runs (`docker info`), that this user may use its socket, and that \
                     providers.docker.socket or DOCKER_HOST names it."
                ));
            }
        }
        seen.error.clone()
    }
}

async fn describe(client: &Client, config: &DockerConfig) -> Result<About, ClientError> {
    let filter = HashMap::from([("label", vec![format!("{STORE_LABEL}={}", config.store_id.as_str())])]);
    let options = ListContainersOptionsBuilder::default().all(true).filters(&filter).build();
    let (version, info, boxes) =
        tokio::try_join!(client.version(), client.info(), client.list_containers(Some(options)))?;
    Ok(about(&version, info, boxes.len()))
}

fn about(version: &SystemVersion, info: SystemInfo, boxes: usize) -> About {
    let mut runtimes: Vec<String> = info.runtimes.unwrap_or_default().into_keys().collect();
    // Names for the shim of a runtime that is listed too.
    runtimes.retain(|name| !name.starts_with("io.containerd."));
    runtimes.sort();
    let status = info.driver_status.unwrap_or_default();
    let backing = status.iter().find_map(|pair| match pair.as_slice() {
        [key, value] if key == "Backing Filesystem" => Some(value.as_str()),
        _ => None,
    });
    let bounds_disk = match info.driver.as_deref() {
        Some("btrfs" | "zfs" | "devicemapper") => true,
        Some("overlay2") => backing == Some("xfs"),
        _ => false,
    };
    let api = version.api_version.as_deref().unwrap_or_default();
    let limits = [info.memory_limit, info.cpu_cfs_quota, info.pids_limit].map(|limit| limit.unwrap_or(true));
    let names = ["memory_mb", "vcpus", "pids"];
    let mut missing: Vec<String> = limits
        .iter()
        .zip(names)
        .filter(|(held, _)| !**held)
        .map(|(_, name)| format!("The kernel of the Docker Engine does not enforce {name}; enable that control group."))
        .collect();
    if !is_at_least(api, &[API_MIN.0, API_MIN.1]) {
        missing.push(format!(
            "The Docker Engine has API version {api}, but 1.41 is needed; install Docker 20.10 or later."
        ));
    }
    let components = version.components.iter().flatten();
    let runc = components.filter(|part| part.name == "runc").map(|part| part.version.as_str()).next();
    if let Some(runc) = runc.filter(|version| !is_at_least(version, &RUNC_MIN)) {
        missing.push(format!(
            "runc {runc} of the Docker Engine has known escapes; install 1.2.8 or later, or a distribution's version \
             with the fixes."
        ));
    }
    let bounds_options = info.kernel_version.is_some_and(|version| is_at_least(&version, &OPTIONS_KERNEL_MIN));
    let groups_v1 = info.cgroup_version == Some(SystemInfoCgroupVersionEnum::_1);
    About {
        version: version.version.clone().unwrap_or_default(),
        runtimes,
        default_runtime: info.default_runtime.unwrap_or_default(),
        arch: version.arch.clone().unwrap_or_default(),
        bounds_disk,
        limits,
        groups_v1,
        bounds_options,
        root_dir: info.docker_root_dir.unwrap_or_default().into(),
        boxes: u32::try_from(boxes).unwrap_or(u32::MAX),
        missing,
    }
}

/// Returns whether the numbers that `version` begins with are `least` or later.
fn is_at_least(version: &str, least: &[u32]) -> bool {
    let numbers = version.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let numbers: Vec<u32> = numbers.take(least.len()).collect();
    numbers.as_slice() >= least
}

/// Returns the architecture of this machine, in Go's names.
pub(super) fn own_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Returns the reason why no box can be made there, with advice; `None` if boxes can be made.
fn unfit(about: &About, config: &DockerConfig) -> Option<String> {
    if about.arch != own_arch() {
        return Some(format!(
            "The machine of the Docker Engine is {}, but the agent of this Tidebox is for {}; use an Engine on {}.",
            about.arch,
            own_arch(),
            own_arch()
        ));
    }
    if !config.runtime.is_empty() && !about.runtimes.contains(&config.runtime) {
        return Some(format!(
            "The Docker Engine has no runtime {:?}; it has {}. Add it to the Engine's daemon.json, or change \
             providers.docker.runtime.",
            config.runtime,
            about.runtimes.join(", ")
        ));
    }
    about.missing.iter().find(|lack| lack.contains("1.41")).cloned()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        for (version, is_enough) in
            [("1.2.8", true), ("1.2.10", true), ("1.3.0-rc.1", true), ("1.1.5+ds1", false), ("1.2", false), ("", false)]
        {
            assert_eq!(is_at_least(version, &RUNC_MIN), is_enough, "{version}");
        }
        assert!(is_at_least("1.41", &[1, 41]) && is_at_least("1.100", &[1, 41]) && !is_at_least("1.9", &[1, 41]));
    }

    #[test]
    fn an_engine_that_is_too_old_or_lacks_the_runtime_is_said_to() {
        let mut config = DockerConfig::new(domain::StoreId::from_entropy([1; 10]));
        let version = |api: &str| SystemVersion {
            api_version: Some(api.to_owned()),
            arch: Some(own_arch().to_owned()),
            ..SystemVersion::default()
        };
        assert_eq!(unfit(&about(&version("1.41"), SystemInfo::default(), 0), &config), None);
        let old = unfit(&about(&version("1.40"), SystemInfo::default(), 0), &config).unwrap();
        assert!(old.contains("20.10"), "{old}");
        config.runtime = "kata".to_owned();
        let lacking = unfit(&about(&version("1.44"), SystemInfo::default(), 0), &config).unwrap();
        assert!(lacking.contains("kata") && lacking.contains("providers.docker.runtime"), "{lacking}");
    }
}
