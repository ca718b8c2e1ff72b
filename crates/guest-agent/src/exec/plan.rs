//! From a request to what the fork needs: checks, users, the search path.

use std::ffi::CString;

use guest_protocol::{Exec, Failure, PATH_BYTES_MAX};
use rustix::io::Errno;
use rustix::process::Rlimit;

use super::spawn::{Plan, Step};
use crate::failure::{Result, exhausted, internal, invalid, reason, refused};
use crate::users;

/// Where a program is looked for if the environment has no `PATH`.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The longest name of a file in any file system of Linux.
const NAME_BYTES_MAX: usize = 255;
/// More places to look at are an attack or a mistake.
const PATH_ENTRIES_MAX: usize = 1024;

/// Checks `exec` and prepares it.
///
/// # Errors
/// Invalid for what no kernel can execute and for users that the box does not have.
pub(super) fn plan(exec: &Exec, single_user: bool, descriptors: Rlimit) -> Result<Plan> {
    let program = exec.argv.first().filter(|program| !program.is_empty());
    let program = program.ok_or_else(|| invalid("the command is empty"))?;
    if !exec.workdir.starts_with('/') {
        return Err(invalid("the working directory must be an absolute path"));
    }
    if exec.workdir.len() > PATH_BYTES_MAX {
        return Err(invalid("the working directory is longer than 4096 bytes"));
    }
    let user = users::resolve(exec.user.as_deref(), single_user)?;
    let mut env = Vec::with_capacity(exec.env.len() + 1);
    for (name, value) in &exec.env {
        if name.is_empty() || name.contains('=') {
            return Err(invalid(format!("{name:?} cannot be the name of an environment variable")));
        }
        env.push(c_string(format!("{name}={value}"), "the environment")?);
    }
    if !exec.env.contains_key("HOME") {
        env.push(c_string(format!("HOME={}", user.home), "the environment")?);
    }
    let path = exec.env.get("PATH").map_or(PATH_DEFAULT, String::as_str);
    Ok(Plan {
        candidates: candidates(program, path),
        argv: exec.argv.iter().map(|arg| c_string(arg.as_str(), "an argument")).collect::<Result<_>>()?,
        env,
        workdir: c_string(exec.workdir.as_str(), "the working directory")?,
        ids: user.ids,
        descriptors,
    })
}

fn c_string(text: impl Into<Vec<u8>>, what: &str) -> Result<CString> {
    CString::new(text).map_err(|_| invalid(format!("{what} holds a NUL")))
}

/// What to try to execute, in this order. What cannot be a path is left out: it
/// does not exist.
fn candidates(program: &str, path: &str) -> Vec<CString> {
    if program.contains('/') {
        return CString::new(program).into_iter().collect();
    }
    if program.len() > NAME_BYTES_MAX {
        return Vec::new();
    }
    let places = path.split(':').filter(|place| place.len() < PATH_BYTES_MAX).take(PATH_ENTRIES_MAX);
    // An empty entry is the working directory, as in every shell.
    let programs = places.map(|place| format!("{}/{program}", if place.is_empty() { "." } else { place }));
    programs.filter_map(|candidate| CString::new(candidate).ok()).collect()
}

/// What a refusal before the execution means: an exit code, as a shell has it, or
/// a failure of the request.
///
/// # Errors
/// Everything but a program that is not there or cannot be executed.
pub(super) fn code_of_refusal(exec: &Exec, step: Step, errno: Errno) -> Result<i32> {
    Err(match (step, errno) {
        (_, Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => no_room(errno),
        (Step::Execute, Errno::TOOBIG) => {
            invalid("the arguments and the environment are larger than the kernel takes (2 MiB, 128 KiB for one)")
        }
        (Step::Execute, Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => return Ok(127),
        (Step::Execute, _) => return Ok(126),
        (Step::Workdir, errno) => invalid(format!("the working directory {}: {}", exec.workdir, reason(errno))),
        (Step::User, errno) => {
            let user = exec.user.as_deref().unwrap_or_default();
            invalid(format!("the box cannot run a command as {user:?}: {}", reason(errno)))
        }
        (Step::Fork | Step::Prepare, errno) => internal(format!("cannot start a command: {}", reason(errno))),
    })
}

/// The failure of a fork or of a pipe.
pub(super) fn no_room(errno: Errno) -> Failure {
    match errno {
        Errno::AGAIN => exhausted("the box has reached its limit of processes"),
        Errno::NOMEM => exhausted("the box has no memory left to start a process"),
        errno => refused("cannot start a command", errno),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_program_is_looked_for_where_a_shell_would_look() {
        let found = |program, path| {
            let all = candidates(program, path);
            all.into_iter().map(|c| c.into_string().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(found("ls", "/a:/b"), ["/a/ls", "/b/ls"]);
        assert_eq!(found("ls", ""), ["./ls"]);
        assert_eq!(found("./ls", "/a"), ["./ls"]);
        assert!(found(&"x".repeat(256), "/a").is_empty());
    }
}
