//! Capabilities of this host, probed by making a box.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use futures_util::StreamExt;
use rustix::io::Errno;

use crate::local::backend::Backend;
use crate::local::builder::try_box;
use crate::local::host_privileges;
use crate::local::launcher::LaunchError;
use crate::local::probe::{self, Probe};
use crate::{Chain, Command, Error, Facts, Guest, Isolation, LimitKind, OutputEvent, Result};

const COMMAND_WAIT: Duration = Duration::from_secs(10);
/// Limit for `proot --version`.
const VERSION_WAIT: Duration = Duration::from_secs(5);

/// Most important warning for an operator, listed first.
const NO_ISOLATION: &str = "PRoot isolates nothing: code in a box reaches the host's network, sees its processes, and \
    can easily escape from its files. Run only code that you trust, or enable native or docker.";
const OPEN_API: &str = "This server requires no key (`auth.enabled` is false): code in a PRoot box reaches its API \
    over the host's network, and with it every other box. Set auth.enabled and auth.api_key_file, or \
    providers.proot.enabled to false.";
/// Warning about memory that is not seen in the processes of a box.
const UNCOUNTED: &str = "Socket and pipe buffers do not count toward a box's limits: a provider with control groups \
    (native, docker) limits them.";
const ONE_USER: &str = "The server does not run as root: boxes run as the server's own user, and can read, change and \
    stop whatever that user can, including the server and other boxes. One box can use up whatever the kernel counts \
    per user (files watched by epoll, pages of pipes, descriptors on their way through sockets).";

const SHARED: &str = "Devices and terminals are the host's own: a box can use up all terminals, and its lock on \
    /dev/null affects the host.";

/// Makes a box and runs a program in it, in the first of these ways that works.
pub(super) async fn probe<B: Backend>(
    backend: &B,
    proot: &Path,
    ways: impl IntoIterator<Item = B::Capabilities, IntoIter: Send> + Send,
) -> Probe<B::Capabilities> {
    let version = match version(proot).await {
        Ok(version) => version,
        Err(error) => return Probe { error: Some(error), ..Probe::default() },
    };
    let mut probe = Probe { version: Some(version), ..Probe::default() };
    for way in ways {
        match try_box(backend, &probe::SIZE, way).await {
            Ok(_) => return Probe { can: Some(way), error: None, ..probe },
            Err(error) => {
                probe.error.get_or_insert_with(|| explain(&error, proot));
            }
        }
    }
    probe
}

pub(super) fn facts<C>(probe: &Probe<C>, has_ids: bool, api_is_open: bool) -> Facts {
    let mut missing = Vec::new();
    if api_is_open {
        missing.push(OPEN_API.to_owned());
    }
    missing.push(NO_ISOLATION.to_owned());
    if !has_ids {
        missing.push(ONE_USER.to_owned());
    }
    missing.push(SHARED.to_owned());
    missing.extend(host_privileges::missing());
    missing.push(UNCOUNTED.to_owned());
    missing.extend(probe.error.clone());
    let version = probe.version.as_deref().unwrap_or_default();
    Facts {
        isolation: Isolation::None,
        runtime: format!("proot {version}").trim_end().to_owned(),
        network_mode: "host".to_owned(),
        limits: ["memory_mb", "vcpus", "pids", "disk_mb"].map(|name| (name, LimitKind::Soft)).to_vec(),
        missing,
    }
}

/// Returns the version of the program, or the reason why it cannot be used.
async fn version(proot: &Path) -> Result<String, String> {
    let mut command = tokio::process::Command::new(proot);
    command.arg("--version").env_clear().kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let advice = "install PRoot (Debian: `apt install proot`) or set `providers.proot.binary`";
    let output = match tokio::time::timeout(VERSION_WAIT, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(format!("{} cannot be run ({error}): {advice}.", proot.display())),
        Err(_) => return Err(format!("{} did not print its version: {advice}.", proot.display())),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let is_proot = text.to_lowercase().contains("proot");
    let version = text.split_whitespace().find(|word| {
        let word = word.trim_start_matches('v');
        word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit())
    });
    version
        .filter(|_| is_proot)
        .map(|word| word.trim_start_matches('v').to_owned())
        .ok_or_else(|| format!("{} printed no version, so it is not PRoot: {advice}.", proot.display()))
}

/// Runs a program in a box.
pub(super) async fn run_true(guest: &dyn Guest) -> Result<()> {
    let command = Command {
        argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), "exit 0".to_owned()],
        env: BTreeMap::new(),
        workdir: None,
        user: None,
        timeout: COMMAND_WAIT,
        stdin: None,
        terminal: None,
    };
    let mut events = guest.exec(command).await?;
    let mut told = Vec::new();
    while let Some(event) = events.next().await {
        match event? {
            OutputEvent::Exit(exit) if exit.code == 0 => return Ok(()),
            OutputEvent::Exit(exit) => {
                let told = String::from_utf8_lossy(&told).into_owned();
                return Err(Error::failed("run a program", format!("exit code {}: {}", exit.code, told.trim())));
            }
            OutputEvent::Stdout(bytes) | OutputEvent::Stderr(bytes) => told.extend_from_slice(&bytes),
        }
    }
    Err(Error::failed("run a program", "it did not exit"))
}

/// Returns advice for an operator about a box that cannot be made.
fn explain(error: &Error, proot: &Path) -> String {
    let refused = if let Error::Failed { source, .. } = error { source.downcast_ref::<LaunchError>() } else { None };
    let advice = match refused {
        Some(LaunchError::Refused { step, errno }) if step == "execute PRoot" => {
            let cause = Errno::from_raw_os_error(*errno);
            return format!(
                "{} cannot be executed by the boxes' users ({cause}): make it and the folders above it readable for all.",
                proot.display()
            );
        }
        Some(_) => "see the log of the server",
        // The box started, but the agent did not answer or no program ran.
        None => {
            "the kernel must allow ptrace to this user (a container needs a seccomp profile that does), and the data folder must not be mounted noexec"
        }
    };
    format!("No box can be made with PRoot ({}): {advice}.", Chain(error))
}
