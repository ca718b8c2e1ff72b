//! Container of a box.

use std::collections::HashMap;
use std::fmt::Display;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum,
    HostConfigLogConfig, Mount, MountType, MountVolumeOptions, RestartPolicy, RestartPolicyNameEnum,
};
use domain::{SandboxId, SnapshotId, StoreId};
use guest_protocol::{AGENT_DIR, AGENT_PROGRAM, AGENT_RUN_DIR, Boot, Network};

use super::config::DockerConfig;
use super::image::Image;
use super::labels::{SANDBOX_LABEL, SNAPSHOT_LABEL, STORE_LABEL};
use crate::{Error, Result, Spec};

/// Capabilities for installing packages and for services with several users, which reach only the
/// box's own files and processes. The same as on `native`.
const CAPABILITIES: [&str; 8] =
    ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"];
/// Period of processor limits, in microseconds.
const CPU_PERIOD: i64 = 100_000;
/// OOM score adjustment of a box, the Engine's own default: programs of the box can rank their processes.
/// Commands have [`COMMAND_OOM_SCORE`].
const OOM_SCORE: i64 = 0;
/// The same of commands: the kernel ends one before the agent of its box, and before services of the
/// Engine's machine with as much memory.
const COMMAND_OOM_SCORE: i32 = 100;
/// Most bytes of options that one socket may hold, such as keys of signed connections, which no
/// control group counts. The same as on `native`.
const SOCKET_OPTION_BYTES_MAX: u32 = 8_192;
/// Mount options of the agent's own tmpfs, which holds a socket.
const RUN_DIR_OPTIONS: &str = "rw,noexec,nosuid,nodev,size=64k,mode=1777";
/// Folders in memory of a box with a read-only root: the first gets half of the memory, the
/// others an eighth each.
const WRITABLE: [&str; 4] = [WORKSPACE, "/tmp", "/var/tmp", "/run"];
/// Folder that commands start in, unless the image names another.
pub(super) const WORKSPACE: &str = "/workspace";

/// Returns the name of a box's container. It is unique, so that a second start finds the first.
pub(super) fn name(store: &StoreId, id: &SandboxId) -> String {
    format!("tidebox-{}-{id}", store.as_str())
}

/// Returns the snapshot that a box's container was made of.
pub(super) fn snapshot_of(container: &ContainerInspectResponse) -> Option<&str> {
    let label = container.config.as_ref()?.labels.as_ref()?.get(SNAPSHOT_LABEL)?;
    Some(label.as_str()).filter(|snapshot| !snapshot.is_empty())
}

/// Settings common to every box, checked once.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    capabilities: Vec<String>,
    security: Vec<String>,
}

impl Shape {
    /// Checks the configuration and reads the seccomp profile.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a setting that is not valid, naming its key.
    pub(super) fn new(config: &DockerConfig) -> Result<Shape> {
        let network = config.network_mode.as_str();
        if network.is_empty() || network == "host" || network.starts_with("container:") {
            return Err(Error::Invalid(format!(
                "providers.docker.network_mode is {network:?}, which would not isolate boxes from other networks; \
                 write none, bridge, or the name of an Engine network"
            )));
        }
        if let Some(path) = config.tmpfs.keys().find(|path| !path.starts_with('/') || path.starts_with(AGENT_DIR)) {
            return Err(Error::Invalid(format!(
                "providers.docker.tmpfs has {path:?}; write absolute paths outside of {AGENT_DIR}"
            )));
        }
        let mut security = vec!["no-new-privileges".to_owned()];
        if let Some(path) = &config.seccomp_profile {
            let text = std::fs::read_to_string(path).map_err(|error| unusable_profile(path, &error))?;
            let profile: serde_json::Value =
                serde_json::from_str(&text).map_err(|error| unusable_profile(path, &error))?;
            if !profile.is_object() {
                return Err(unusable_profile(path, &"it is not a JSON object"));
            }
            security.push(format!("seccomp={profile}"));
        }
        Ok(Shape { capabilities: capabilities(config)?, security })
    }
}

fn unusable_profile(path: &Path, reason: &dyn Display) -> Error {
    Error::Invalid(format!("providers.docker.seccomp_profile {} cannot be used: {reason}", path.display()))
}

/// Returns the limit of processes for a box that asks for `asked`.
fn pids(config: &DockerConfig, asked: u32) -> u32 {
    config.pids_limit.map_or(asked, |most| most.min(asked))
}

fn capabilities(config: &DockerConfig) -> Result<Vec<String>> {
    let added = capability_names("added_caps", &config.added_caps)?;
    let dropped = capability_names("dropped_caps", &config.dropped_caps)?;
    if let Some(all) = added.iter().find(|name| *name == "ALL") {
        return Err(Error::Invalid(format!(
            "providers.docker.added_caps has {all}, which removes all isolation; name the capabilities"
        )));
    }
    // A user other than root has none to begin with.
    let usual = CAPABILITIES.iter().filter(|_| config.user.is_empty()).map(|name| (*name).to_owned());
    let mut kept: Vec<String> = usual.chain(added).collect();
    kept.retain(|name| !dropped.contains(name) && !dropped.iter().any(|dropped| dropped == "ALL"));
    kept.sort();
    kept.dedup();
    Ok(kept)
}

/// Returns the names of capabilities under `key`, in capitals and without `CAP_`.
fn capability_names(key: &str, names: &[String]) -> Result<Vec<String>> {
    let mut short_names = Vec::with_capacity(names.len());
    for name in names {
        let short = name.trim().to_ascii_uppercase();
        let short = short.strip_prefix("CAP_").unwrap_or(&short);
        if short.is_empty() || !short.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_') {
            return Err(Error::Invalid(format!("providers.docker.{key} has {name:?}; write names such as NET_RAW")));
        }
        short_names.push(short.to_owned());
    }
    Ok(short_names)
}

/// Parts of a box besides its configuration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Made<'a> {
    pub(super) image: &'a Image,
    /// Name of the volume that holds the agent.
    pub(super) volume: &'a str,
    /// True if the kernel has a limit on socket options for each container.
    pub(super) bounds_options: bool,
    /// Mebibytes that the box may write; 0 for no bound.
    pub(super) disk_mb: u32,
}

/// Returns the request to create a container.
pub(super) fn body(
    config: &DockerConfig,
    shape: &Shape,
    id: &SandboxId,
    spec: &Spec,
    made: &Made<'_>,
) -> Result<ContainerCreateBody> {
    let image = made.image;
    let boot = serde_json::to_string(&boot(config, spec, image)).map_err(|error| Error::failed("make a box", error))?;
    let labels = [
        (STORE_LABEL, config.store_id.as_str()),
        (SANDBOX_LABEL, id.as_str()),
        (SNAPSHOT_LABEL, spec.snapshot.as_ref().map_or("", SnapshotId::as_str)),
    ];
    Ok(ContainerCreateBody {
        hostname: Some("tidebox".to_owned()),
        user: Some(if config.user.is_empty() { "0:0".to_owned() } else { config.user.clone() }),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        open_stdin: Some(true),
        // The box must outlive the attached client.
        stdin_once: Some(false),
        entrypoint: Some(vec![AGENT_PROGRAM.to_owned(), "stdio".to_owned(), boot]),
        cmd: Some(Vec::new()),
        // The image's own check would be run in the box by the Engine, again and again.
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        image: Some(image.id.clone()),
        working_dir: Some("/".to_owned()),
        labels: Some(labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()),
        host_config: Some(host(config, shape, spec, made)),
        ..ContainerCreateBody::default()
    })
}

fn host(config: &DockerConfig, shape: &Shape, spec: &Spec, made: &Made<'_>) -> HostConfig {
    let resources = &spec.resources;
    let memory = i64::from(resources.memory_mb) * 1024 * 1024;
    HostConfig {
        memory: Some(memory),
        // Memory and swap together: no swap.
        memory_swap: Some(memory),
        cpu_period: Some(CPU_PERIOD),
        cpu_quota: Some(i64::from(resources.vcpus) * CPU_PERIOD),
        pids_limit: Some(pids(config, resources.pids).into()),
        init: Some(false),
        oom_score_adj: Some(OOM_SCORE),
        // Any other driver would write the agent's output to the Engine's disk.
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        network_mode: Some(config.network_mode.clone()),
        restart_policy: Some(RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None }),
        ipc_mode: Some("private".to_owned()),
        // What is in `/dev/shm` counts as memory of the box. The same as on `native`.
        shm_size: Some(memory / 2),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(shape.capabilities.clone()),
        security_opt: Some(shape.security.clone()),
        readonly_rootfs: Some(config.read_only_rootfs),
        tmpfs: Some(tmpfs(config, resources.memory_mb)),
        mounts: Some(vec![agent_mount(made.volume, true)]),
        sysctls: made
            .bounds_options
            .then(|| HashMap::from([("net.core.optmem_max".to_owned(), SOCKET_OPTION_BYTES_MAX.to_string())])),
        runtime: (!config.runtime.is_empty()).then(|| config.runtime.clone()),
        storage_opt: (made.disk_mb > 0).then(|| HashMap::from([("size".to_owned(), format!("{}m", made.disk_mb))])),
        ..HostConfig::default()
    }
}

/// Returns the mount of the volume that holds the agent.
pub(super) fn agent_mount(volume: &str, read_only: bool) -> Mount {
    Mount {
        target: Some(AGENT_DIR.to_owned()),
        source: Some(volume.to_owned()),
        typ: Some(MountType::VOLUME),
        read_only: Some(read_only),
        volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
        ..Mount::default()
    }
}

fn tmpfs(config: &DockerConfig, memory_mb: u32) -> HashMap<String, String> {
    let mut tmpfs: HashMap<String, String> = config.tmpfs.clone().into_iter().collect();
    for path in WRITABLE {
        // An agent that is not root cannot make a workspace in the root.
        let is_needed = config.read_only_rootfs || path == WORKSPACE && !config.user.is_empty();
        let size_mb = if path == WORKSPACE { memory_mb / 2 } else { memory_mb / 8 };
        if is_needed {
            tmpfs
                .entry(path.to_owned())
                .or_insert_with(|| format!("rw,exec,nosuid,nodev,mode=1777,size={}m", size_mb.max(1)));
        }
    }
    tmpfs.insert(AGENT_RUN_DIR.to_owned(), RUN_DIR_OPTIONS.to_owned());
    tmpfs
}

fn boot(config: &DockerConfig, spec: &Spec, image: &Image) -> Boot {
    let run = &image.run;
    Boot {
        listener_fd: -1,
        deadline_ms: u64::try_from(spec.lifetime.as_millis()).unwrap_or(u64::MAX),
        memory_mb: spec.resources.memory_mb,
        command_oom_score: Some(COMMAND_OOM_SCORE),
        single_user: !config.user.is_empty(),
        network: if config.network_mode == "none" { Network::Loopback } else { Network::Own },
        defaults: run.defaults.clone(),
        furnish: true,
        entrypoint: spec.entrypoint.then(|| run.entrypoint.clone()),
        trust: spec.trust.clone(),
        ..Boot::default()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn config() -> DockerConfig {
        DockerConfig::new(StoreId::from_entropy([1; 10]))
    }

    #[test]
    fn the_limit_of_processes_bounds_what_a_box_asks_for() {
        let mut config = config();
        assert_eq!(pids(&config, 256), 256);
        config.pids_limit = Some(100);
        assert_eq!((pids(&config, 256), pids(&config, 20)), (100, 20));
    }

    #[test]
    fn capabilities_are_added_and_dropped_by_either_name() {
        let mut config = config();
        assert_eq!(capabilities(&config).unwrap(), CAPABILITIES);
        config.added_caps = vec!["cap_net_raw".to_owned(), "SYS_PTRACE".to_owned(), "CHOWN".to_owned()];
        config.dropped_caps = vec!["CAP_KILL".to_owned(), "SYS_PTRACE".to_owned()];
        let kept = capabilities(&config).unwrap();
        assert!(kept.contains(&"NET_RAW".to_owned()) && kept.len() == 8, "{kept:?}");
        config.dropped_caps = vec!["ALL".to_owned()];
        assert!(capabilities(&config).unwrap().is_empty());
        config.added_caps = vec!["ALL".to_owned()];
        assert!(Shape::new(&config).unwrap_err().to_string().contains("added_caps"));
        config.added_caps = vec!["net raw".to_owned()];
        assert!(Shape::new(&config).is_err());
    }

    #[test]
    fn what_takes_a_wall_down_or_makes_no_sense_is_refused_by_key() {
        for network in ["host", "container:other", ""] {
            let refused = Shape::new(&DockerConfig { network_mode: network.to_owned(), ..config() }).unwrap_err();
            assert!(refused.to_string().contains("network_mode"), "{refused}");
        }
        for path in ["tmp", "/.tidebox/run"] {
            let tmpfs = [(path.to_owned(), String::new())].into();
            let refused = Shape::new(&DockerConfig { tmpfs, ..config() }).unwrap_err();
            assert!(refused.to_string().contains("tmpfs"), "{refused}");
        }
        let profile = tempfile::NamedTempFile::new().unwrap();
        for content in ["", "[]", "{"] {
            std::fs::write(profile.path(), content).unwrap();
            let seccomp_profile = Some(profile.path().to_owned());
            let refused = Shape::new(&DockerConfig { seccomp_profile, ..config() }).unwrap_err();
            assert!(refused.to_string().contains("seccomp_profile"), "{refused}");
        }
    }
}
