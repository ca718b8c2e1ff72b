//! Cost of the kernel's work behind a spawn and an exec: the baseline that `tidebox bench` prints
//! beside its measurements.
//!
//! `bare spawn <count> <folder>` makes namespaces with an overlay of `/usr`, a `/proc` and an own
//! root, executes a static program that ends at once, and waits, `count` times. `bare exec <count>`
//! starts `/usr/bin/true` and waits. Both print one line of JSON:
//! `{"mode","count","p50_us","p95_us","p99_us"}`.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};

use crate::launch::{CloneFlags, Cloned, clone3, execute, wait_for};

/// Maximum count: more would only take longer.
const COUNT_MAX: usize = 100_000;
/// Argument with which [`execute`] runs this program, in a mode that ends at once.
const TRUE: &str = "true";

/// Runs `bare`; `args` are the arguments after it.
pub fn run(mut args: impl Iterator<Item = String>) -> ExitCode {
    let mode = args.next();
    let count = args.next();
    let folder = args.next();
    if mode.as_deref() == Some(TRUE) {
        return ExitCode::SUCCESS;
    }
    let count = count.and_then(|count| count.parse().ok()).filter(|count| (1..=COUNT_MAX).contains(count));
    let outcome = match (mode.as_deref(), count, folder) {
        (Some("spawn"), Some(count), Some(folder)) => measure(count, || spawn(&folder)).map(|times| ("spawn", times)),
        (Some("exec"), Some(count), None) => measure(count, exec).map(|times| ("exec", times)),
        _ => Err("usage: bare spawn <count> <folder> | bare exec <count>".to_owned()),
    };
    match outcome {
        Ok((mode, times)) => print(std::io::stdout(), &summary(mode, times)),
        Err(message) => {
            print(std::io::stderr(), &message);
            ExitCode::FAILURE
        }
    }
}

fn print(mut to: impl Write, line: &str) -> ExitCode {
    if writeln!(to, "{line}").is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn measure(count: usize, mut once: impl FnMut() -> Result<(), String>) -> Result<Vec<u128>, String> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        once()?;
        times.push(start.elapsed().as_micros());
    }
    times.sort_unstable();
    Ok(times)
}

/// Returns the line of JSON. `times` is sorted and not empty.
fn summary(mode: &str, times: Vec<u128>) -> String {
    let count = times.len();
    let [p50, p95, p99] = [50, 95, 99].map(|percent| percentile(&times, percent));
    format!(r#"{{"mode":"{mode}","count":{count},"p50_us":{p50},"p95_us":{p95},"p99_us":{p99}}}"#)
}

fn percentile(times: &[u128], percent: usize) -> u128 {
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

fn exec() -> Result<(), String> {
    let status = Command::new("/usr/bin/true").stdin(Stdio::null()).status().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("/usr/bin/true: {status}")) }
}

fn spawn(folder: &str) -> Result<(), String> {
    for part in ["upper", "work", "root"] {
        fs::create_dir_all(format!("{folder}/{part}")).map_err(|error| format!("{folder}: {error}"))?;
    }
    let program = File::open("/proc/self/exe").map_err(|error| format!("{folder}: {error}"))?;
    let rootless = !rustix::process::geteuid().is_root();
    let flags = if rootless { CloneFlags::BOX.and(CloneFlags::USER) } else { CloneFlags::BOX };
    let ids = rootless.then(|| (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()));
    match clone3(flags, libc::SIGCHLD, None).map_err(|errno| format!("clone3: {errno}"))? {
        Cloned::Child => {
            let errno = match enter(folder, ids) {
                Ok(()) => execute(&program, &[c"tidebox-agent".into(), c"bare".into(), c"true".into()], &[]),
                Err(errno) => errno,
            };
            // An exit code holds eight bits, and so do all errors that are possible here.
            std::process::exit(errno.raw_os_error())
        }
        Cloned::Parent(pid) => match wait_for(pid).map_err(|errno| format!("wait: {errno}"))? {
            0 => Ok(()),
            code => Err(format!("the box could not be made: {}", std::io::Error::from_raw_os_error(code))),
        },
    }
}

fn enter(folder: &str, ids: Option<(u32, u32)>) -> Result<(), Errno> {
    if let Some((uid, gid)) = ids {
        write("/proc/self/setgroups", "deny")?;
        write("/proc/self/uid_map", &format!("0 {uid} 1\n"))?;
        write("/proc/self/gid_map", &format!("0 {gid} 1\n"))?;
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let root = format!("{folder}/root");
    mount("tmpfs", root.as_str(), "tmpfs", MountFlags::empty(), c"mode=0755")?;
    for dir in ["usr", "proc"] {
        rustix::fs::mkdir(format!("{root}/{dir}"), rustix::fs::Mode::from_raw_mode(0o755))?;
    }
    let user = if ids.is_some() { ",userxattr" } else { "" };
    let options = CString::new(format!("lowerdir=/usr,upperdir={folder}/upper,workdir={folder}/work{user}"))
        .map_err(|_| Errno::INVAL)?;
    mount("overlay", format!("{root}/usr"), "overlay", MountFlags::empty(), options.as_c_str())?;
    mount("proc", format!("{root}/proc"), "proc", MountFlags::empty(), None)?;
    rustix::process::chdir(root.as_str())?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")
}

fn write(file: &str, text: &str) -> Result<(), Errno> {
    fs::write(file, text).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_summary_of_one_measurement_is_that_measurement() {
        assert_eq!(summary("exec", vec![7]), r#"{"mode":"exec","count":1,"p50_us":7,"p95_us":7,"p99_us":7}"#);
    }

    #[test]
    fn percentiles_come_from_the_sorted_times() {
        let line = summary("spawn", (1..=200).collect());
        assert_eq!(line, r#"{"mode":"spawn","count":200,"p50_us":101,"p95_us":191,"p99_us":199}"#);
    }
}
