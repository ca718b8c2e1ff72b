//! systemd, asked for a scope that the server may divide.
//!
//! A scope with `Delegate=yes` is what systemd offers to a process that it has not started. It is
//! asked over D-Bus by `busctl`, which is a part of systemd.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use domain::StoreId;

use super::tree;

/// Time for systemd to answer, and then to move the server.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Pause between two looks at what is waited for.
const LOOK_PAUSE: Duration = Duration::from_millis(2);
/// Most bytes of a refusal that are kept.
const REFUSAL_BYTES_MAX: u64 = 512;
/// Bus name, object and interface of systemd.
const MANAGER: [&str; 3] =
    ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"];

/// Returns whether systemd runs this host.
pub(super) fn is_running() -> bool {
    Path::new("/run/systemd/system").exists()
}

/// Moves this process into the scope of its store, which is made if it does not exist. The scope
/// exists for as long as a box of the store does.
pub(super) fn give_scope(store: &StoreId) -> io::Result<()> {
    let scope = format!("tidebox-{}.scope", store.as_str());
    let pid = std::process::id().to_string();
    if let Err(refusal) = call(&new_scope(&scope, &pid)) {
        // Boxes of an earlier server keep it.
        let subgroup = format!("/{}", tree::SERVER_LEAF);
        let joined = call(&["AttachProcessesToUnit", "ssau", &scope, &subgroup, "1", &pid]);
        joined.map_err(|_| refusal)?;
    }
    let deadline = Instant::now() + ANSWER_WAIT;
    // systemd answers before it has moved the process.
    while !fs::read_to_string("/proc/self/cgroup")?.contains(&scope) {
        if Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it has not moved the server"));
        }
        sleep(LOOK_PAUSE);
    }
    Ok(())
}

/// Returns the method that makes a scope, with its arguments. Each box has a limit on its processes,
/// so systemd's usual one for all of them together would only hold boxes of a full server back.
fn new_scope<'a>(scope: &'a str, pid: &'a str) -> Vec<&'a str> {
    let mut words = vec!["StartTransientUnit", "ssa(sv)a(sa(sv))", scope, "fail", "5"];
    words.extend(["Description", "s", "Tidebox and its sandboxes"]);
    words.extend(["Delegate", "b", "true"]);
    words.extend(["TasksMax", "t", "18446744073709551615"]);
    words.extend(["CollectMode", "s", "inactive-or-failed"]);
    words.extend(["PIDs", "au", "1", pid]);
    words.push("0");
    words
}

/// Calls a method of the manager of this user, for root of the host.
fn call(method: &[&str]) -> io::Result<()> {
    let user = rustix::process::geteuid();
    let mut busctl = Command::new("busctl");
    busctl.arg(if user.is_root() { "--system" } else { "--user" });
    busctl.arg(format!("--timeout={}", ANSWER_WAIT.as_secs())).arg("call").args(MANAGER).args(method);
    // Unset by `su` and `sudo`.
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        busctl.env("XDG_RUNTIME_DIR", format!("/run/user/{}", user.as_raw()));
    }
    let mut child = busctl.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let deadline = Instant::now() + 2 * ANSWER_WAIT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"));
        }
        sleep(LOOK_PAUSE);
    };
    if status.success() {
        return Ok(());
    }
    let mut refusal = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        stderr.take(REFUSAL_BYTES_MAX).read_to_end(&mut refusal)?;
    }
    Err(io::Error::other(String::from_utf8_lossy(&refusal).trim().to_owned()))
}
