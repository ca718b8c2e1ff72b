//! Abilities of this host, found without a server.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use ::firecracker::guest_kernel::newest_installed;
use providers::docker::{Docker, DockerConfig};
use providers::firecracker::{DriveRate, Firecracker, FirecrackerConfig};
use providers::native::{Native, NativeConfig};
use providers::proot::{Proot, ProotConfig};
use providers::{Isolation, LimitKind, Provider, StoreId};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::finding::{Finding, Level};
use crate::firecracker::wanted::Wanted;

/// The longest attempt to make a box. It takes milliseconds if it works, and a refusal is not
/// slower; only a hung host is.
const PROBE_MAX: Duration = Duration::from_secs(20);
/// The longest boot of a machine where the configuration cannot be read.
const BOOT_MAX: Duration = Duration::from_secs(10);

/// Returns what each provider would find on this host. Only this function knows where the facts
/// come from.
pub async fn local_findings(wanted: &Wanted) -> Vec<Finding> {
    let mut findings = vec![kernel()];
    let (native, docker, firecracker, proot) = tokio::join!(native(), docker(), firecracker(wanted), proot());
    findings.extend([native, docker, firecracker, proot].into_iter().flatten());
    findings
}

fn kernel() -> Finding {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let machine = uname.machine().to_string_lossy();
    let user = if is_root() { "root".to_owned() } else { format!("user {}", rustix::process::geteuid().as_raw()) };
    Finding::ok("host", format!("Linux {release} on {machine}, as {user}"))
}

/// Makes a box and removes it again: settings alone do not show that a box can be made.
async fn native() -> Vec<Finding> {
    let folder = match folder() {
        Ok(folder) => folder,
        Err(reason) => return no_box("native", reason),
    };
    let config = NativeConfig {
        data_dir: folder.path().to_owned(),
        store_id: store_id(),
        cgroup_parent: None,
        subids: None,
        images: None,
        transparent_egress: false,
        fsync: false,
    };
    let opened = timeout(PROBE_MAX, Native::open(config)).await;
    of("native", "a box was made", PROBE_MAX, opened).await
}

/// Asks the Docker Engine that the environment names, or the usual one.
async fn docker() -> Vec<Finding> {
    let opened = timeout(PROBE_MAX, Docker::open(DockerConfig::new(store_id()))).await;
    of("docker", "a Docker Engine answers", PROBE_MAX, opened).await
}

/// Boots a machine and removes it again, with the configured kernel, or the newest one of this host that
/// has its modules.
async fn firecracker(wanted: &Wanted) -> Vec<Finding> {
    const NAME: &str = "firecracker";
    let folder = match folder() {
        Ok(folder) => folder,
        Err(reason) => return vec![Finding::lacking(NAME, Level::Missing, "no machine can be booted", reason)],
    };
    let boot_timeout = wanted.boot_timeout.unwrap_or(BOOT_MAX);
    let config = FirecrackerConfig {
        binary: wanted.firecracker.clone().unwrap_or_else(|| NAME.into()),
        kernel: wanted.kernel.clone().or_else(|| newest_installed().ok().flatten()),
        modules: wanted.modules.clone(),
        jailed: wanted.jail,
        jailer: wanted.jailer.clone().unwrap_or_else(|| "jailer".into()),
        boot_timeout,
        image_snapshots_mb: 0,
        drive_rate: DriveRate::default(),
        data_dir: folder.path().to_owned(),
        store_id: store_id(),
        cgroup_parent: None,
        subids: None,
        images: None,
    };
    // A boot that hangs is ended before.
    let longest = boot_timeout + PROBE_MAX;
    let opened = timeout(longest, Firecracker::open(config)).await;
    of(NAME, "a machine was booted", longest, opened).await
}

/// Makes a box and removes it again.
async fn proot() -> Vec<Finding> {
    let folder = match folder() {
        Ok(folder) => folder,
        Err(reason) => return no_box("proot", reason),
    };
    let config = ProotConfig {
        binary: "proot".into(),
        // The provider keeps a folder beside this one.
        data_dir: folder.path().join("data"),
        store_id: store_id(),
        images: None,
        subids: None,
        api_is_open: false,
    };
    let opened = timeout(PROBE_MAX, Proot::open(config)).await;
    let mut findings = of("proot", "a box was made", PROBE_MAX, opened).await;
    if findings.iter().all(|finding| finding.level != Level::Missing) {
        findings.push(Finding::lacking(
            "proot",
            Level::Warn,
            "is enabled by default only if the server requires a key, because code in its boxes can reach the API",
            "set auth.enabled and auth.api_key_file; or, for code you trust, providers.proot.enabled: true",
        ));
    }
    findings
}

/// Returns the findings about a provider that was opened, or why it could not be.
async fn of(
    name: &str,
    seen: &str,
    longest: Duration,
    opened: std::result::Result<providers::Result<impl Provider>, Elapsed>,
) -> Vec<Finding> {
    let provider = match opened {
        Ok(Ok(provider)) => provider,
        Ok(Err(error)) => return no_box(name, error.to_string()),
        Err(_) => return no_box(name, format!("the attempt takes longer than {} seconds", longest.as_secs())),
    };
    let facts = provider.facts();
    let health = provider.health().await;
    // The provider may still clean up in a folder that is about to be removed.
    provider.idle().await;
    if let Some(reason) = health.error {
        // The other missing abilities are attempts that failed for the same reason.
        return no_box(name, reason);
    }
    let mut findings = vec![Finding::ok(name, format!("{seen}: {}", shape(&facts)))];
    for missing in &facts.missing {
        findings.push(Finding::lacking(name, Level::Warn, "could do more", missing.clone()));
    }
    findings
}

fn no_box(name: &str, reason: String) -> Vec<Finding> {
    vec![Finding::lacking(name, Level::Missing, "no box can be made", reason)]
}

/// Makes a temporary folder for the box. Other users of a box must be able to traverse it, as they
/// can the server's data folder.
fn folder() -> std::result::Result<tempfile::TempDir, String> {
    tempfile::Builder::new()
        .prefix("tidebox-doctor-")
        .permissions(std::fs::Permissions::from_mode(0o755))
        .tempdir()
        .map_err(|error| format!("cannot create a temporary folder: {error}"))
}

/// Returns the id of a store of its own, so that nothing of a server is taken for the doctor's.
fn store_id() -> StoreId {
    let mut entropy = *b"doctor\0\0\0\0";
    entropy[6..].copy_from_slice(&std::process::id().to_le_bytes());
    StoreId::from_entropy(entropy)
}

/// Describes the runtime, isolation, network and limits of a box.
fn shape(facts: &providers::Facts) -> String {
    let isolation = match facts.isolation {
        Isolation::Vm => "vm",
        Isolation::Container => "container",
        Isolation::None => "none",
    };
    let limits: Vec<_> = facts
        .limits
        .iter()
        .map(|(name, kind)| {
            let kind = match kind {
                LimitKind::Hard => "hard",
                LimitKind::Soft => "soft",
                LimitKind::None => "none",
            };
            format!("{name} {kind}")
        })
        .collect();
    let providers::Facts { runtime, network_mode, .. } = facts;
    format!("{runtime}, isolation {isolation}, network {network_mode}, limits {}", limits.join(", "))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod test {
    use super::{Level, Wanted, local_findings};

    #[tokio::test]
    async fn what_is_missing_always_says_what_to_do() {
        let findings = local_findings(&Wanted::default()).await;
        for area in ["host", "native", "docker", "proot"] {
            assert!(findings.iter().any(|finding| finding.area == area), "{area}");
        }
        for finding in findings {
            assert_eq!(finding.level == Level::Ok, finding.remedy.is_none(), "{finding:?}");
        }
    }
}
