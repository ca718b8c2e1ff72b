//! What this host has, seen without a server.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use providers::StoreId;
use providers::native::{Native, NativeConfig};
use providers::{Isolation, LimitKind, Provider as _};
use tokio::time::timeout;

use super::{Finding, Level};

/// How long the attempt to make a box may take. It takes milliseconds where it
/// works, and a refusal is not slower; only a hung host is.
const PROBE_MAX: Duration = Duration::from_secs(20);

/// What each provider would find on this host. One function, so that there is
/// one place that knows where the facts come from.
pub async fn local_findings() -> Vec<Finding> {
    let mut findings = vec![kernel()];
    findings.extend(native().await);
    findings
}

fn kernel() -> Finding {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let machine = uname.machine().to_string_lossy();
    let user = if is_root() { "root".to_owned() } else { format!("user {}", rustix::process::geteuid().as_raw()) };
    Finding::ok("host", format!("Linux {release} on {machine}, as {user}"))
}

/// Makes a box and removes it again: what a list of settings only promises, this
/// shows.
async fn native() -> Vec<Finding> {
    let no_box = |reason: String| vec![Finding::lacking("native", Level::Missing, "no box can be made", reason)];
    // Other users of the box must be able to look through it, as through the
    // server's data folder.
    let folder = tempfile::Builder::new()
        .prefix("tidebox-doctor-")
        .permissions(std::fs::Permissions::from_mode(0o755))
        .tempdir();
    let folder = match folder {
        Ok(folder) => folder,
        Err(error) => return no_box(format!("a temporary folder is needed: {error}")),
    };
    // A store of its own, so that nothing of a server is taken for ours.
    let mut entropy = *b"doctor\0\0\0\0";
    entropy[6..].copy_from_slice(&std::process::id().to_le_bytes());
    let config = NativeConfig {
        data_dir: folder.path().to_owned(),
        store_id: StoreId::from_entropy(entropy),
        cgroup_parent: None,
        subids: None,
        images: None,
    };
    let native = match timeout(PROBE_MAX, Native::open(config)).await {
        Ok(Ok(native)) => native,
        Ok(Err(error)) => return no_box(error.to_string()),
        Err(_) => return no_box(format!("the attempt takes longer than {} seconds", PROBE_MAX.as_secs())),
    };
    let (facts, health) = (native.facts(), native.health().await);
    // It still cleans up, in a folder that is about to go.
    native.idle().await;
    match health.error {
        // What else is missing are attempts that failed for the same reason.
        Some(reason) => no_box(reason),
        None => {
            let more = |missing: &String| Finding::lacking("native", Level::Warn, "could do more", missing.clone());
            std::iter::once(Finding::ok("native", made(&facts))).chain(facts.missing.iter().map(more)).collect()
        }
    }
}

/// What the box was like.
fn made(facts: &providers::Facts) -> String {
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
    format!("a box was made: {runtime}, isolation {isolation}, network {network_mode}, limits {}", limits.join(", "))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod test {
    use super::{Level, local_findings};

    #[tokio::test]
    async fn what_is_missing_always_says_what_to_do() {
        let findings = local_findings().await;
        for area in ["host", "native"] {
            assert!(findings.iter().any(|finding| finding.area == area), "{area}");
        }
        for finding in findings {
            assert_eq!(finding.level == Level::Ok, finding.remedy.is_none(), "{finding:?}");
        }
    }
}
