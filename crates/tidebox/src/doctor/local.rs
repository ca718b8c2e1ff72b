//! What this host has, seen without a server.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use super::{Finding, Level};

/// What each provider would find on this host. One function, so that there is
/// one place that knows where the facts come from.
pub fn local_findings() -> Vec<Finding> {
    let mut findings = vec![kernel()];
    findings.extend(native());
    findings.push(docker());
    findings.push(firecracker());
    findings.push(proot());
    findings
}

fn kernel() -> Finding {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let machine = uname.machine().to_string_lossy();
    let user = if is_root() { "root".to_owned() } else { format!("user {}", rustix::process::geteuid().as_raw()) };
    Finding::ok("host", format!("Linux {release} on {machine}, as {user}"))
}

fn native() -> Vec<Finding> {
    let mut findings = Vec::new();
    // Both are absent where nothing forbids it.
    let setting = |name: &str| read(&format!("/proc/sys/{name}"));
    let forbidden = [
        ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
        ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or run the server as root",
        ),
    ]
    .into_iter()
    .filter(|(name, ..)| *name == "user/max_user_namespaces" || !is_root())
    .find(|(name, value, _)| setting(name).as_deref() == Some(*value));
    findings.push(match forbidden {
        None if Path::new("/proc/self/ns/user").exists() => Finding::ok("native", "user namespaces are allowed"),
        None => Finding::lacking(
            "native",
            Level::Missing,
            "this kernel has no user namespaces",
            "use a kernel with CONFIG_USER_NS",
        ),
        Some((name, value, remedy)) => Finding::lacking(
            "native",
            Level::Missing,
            format!("{name} is {value}, which forbids user namespaces"),
            remedy,
        ),
    });
    let overlay =
        read("/proc/filesystems").unwrap_or_default().lines().any(|line| line.trim_end().ends_with("overlay"));
    findings.push(if overlay {
        Finding::ok("native", "overlay file systems are there")
    } else {
        Finding::lacking("native", Level::Missing, "overlay file systems are not loaded", "modprobe overlay")
    });
    findings.push(limits());
    findings
}

fn limits() -> Finding {
    let unified = read("/sys/fs/cgroup/cgroup.controllers");
    let version = if unified.is_some() { "cgroup v2" } else { "cgroup v1" };
    let has = |controller: &str| match &unified {
        Some(controllers) => controllers.split_whitespace().any(|name| name == controller),
        None => Path::new("/sys/fs/cgroup").join(controller).is_dir(),
    };
    let lacking: Vec<_> = ["memory", "cpu", "pids"].into_iter().filter(|controller| !has(controller)).collect();
    if !lacking.is_empty() {
        return Finding::lacking(
            "native",
            Level::Warn,
            format!("{version} without {}: those limits are soft", lacking.join(", ")),
            "enable the controllers, such as by cgroup_enable=memory on the kernel's command line",
        );
    }
    if is_root() {
        Finding::ok("native", format!("{version} with memory, cpu and pids: hard limits"))
    } else {
        Finding::lacking(
            "native",
            Level::Warn,
            format!("{version}, not as root: limits may be soft"),
            "run the server as root, or delegate a cgroup to it (systemd: Delegate=yes)",
        )
    }
}

fn docker() -> Finding {
    let host = std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty());
    if let Some(host) = host.as_deref().filter(|host| !host.starts_with("unix://")) {
        return Finding::ok("docker", format!("DOCKER_HOST names {host}"));
    }
    let path = host.as_deref().and_then(|host| host.strip_prefix("unix://")).unwrap_or("/var/run/docker.sock");
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => Finding::ok("docker", format!("a socket at {path}")),
        _ => Finding::lacking(
            "docker",
            Level::Missing,
            format!("no socket at {path}"),
            "install and start Docker Engine, or name its socket by DOCKER_HOST",
        ),
    }
}

fn firecracker() -> Finding {
    let usable = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    match (usable, program("firecracker")) {
        (true, Some(path)) => Finding::ok("firecracker", format!("{} and /dev/kvm", path.display())),
        (false, _) => Finding::lacking(
            "firecracker",
            Level::Missing,
            "/dev/kvm cannot be used",
            "use a machine with hardware virtualisation, and give this user access to /dev/kvm",
        ),
        (true, None) => Finding::lacking(
            "firecracker",
            Level::Missing,
            "/dev/kvm is there, the program firecracker is not",
            "install firecracker, and configure a guest kernel",
        ),
    }
}

fn proot() -> Finding {
    match program("proot") {
        Some(path) => Finding::ok("proot", format!("{}; it isolates little", path.display())),
        None => Finding::lacking(
            "proot",
            Level::Missing,
            "the program proot is not installed",
            "apt-get install proot; it is only needed where native does not work",
        ),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
}

/// Where a program lies on `PATH`.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod test {
    use super::{Level, local_findings};

    #[test]
    fn what_is_missing_always_says_what_to_do() {
        let findings = local_findings();
        for area in ["host", "native", "docker", "firecracker", "proot"] {
            assert!(findings.iter().any(|finding| finding.area == area), "{area}");
        }
        for finding in findings {
            assert_eq!(finding.level == Level::Ok, finding.remedy.is_none(), "{finding:?}");
        }
    }
}
