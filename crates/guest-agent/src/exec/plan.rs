//! Preparation of a command for the fork: checks, users, the search path.

use std::ffi::CString;

use std::collections::BTreeMap;

use guest_protocol::{Boot, Exec, Failure, PATH_BYTES_MAX};
use rustix::io::Errno;
use rustix::process::Rlimit;

use super::spawn::{Plan, Step};
use crate::failure::{Result, exhausted, internal, invalid, reason, refused};
use crate::users::{self, User};

/// Variables that every process needs, besides `HOME`, which depends on the user.
const ENV: [(&str, &str); 3] =
    [("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("LANG", "C.UTF-8"), ("TERM", "xterm")];
/// Variables with the name of the user that a request names.
const USER_NAMES: [&str; 2] = ["USER", "LOGNAME"];
/// Type of a command's terminal, unless the request or the image sets it.
const TERMINAL: (&str, &str) = ("TERM", "xterm-256color");
/// Value of `oom_score_adj` that commands start with unless the box says another: the highest that the
/// kernel accepts.
const OOM_SCORE: i32 = 1000;
/// Directory of a command if neither the request nor the image names one.
const WORKDIR: &str = "/workspace";
/// Longest name of a file in any file system of Linux.
const NAME_BYTES_MAX: usize = 255;
/// Maximum number of directories in `PATH` that are tried; more are an attack or a mistake.
const PATH_ENTRIES_MAX: usize = 1024;

/// Checks `exec` and prepares it. Afterwards `exec` contains the working directory and the user
/// that it left to the image.
///
/// # Errors
/// Invalid if no kernel can execute it, or for users that the box does not have.
pub(super) fn plan(
    exec: &mut Exec,
    boot: &Boot,
    proxy: &[(&'static str, String)],
    descriptors: Rlimit,
) -> Result<Plan> {
    let program = exec.argv.first().filter(|program| !program.is_empty());
    let program = program.ok_or_else(|| invalid("the command is empty"))?;
    let workdir = exec.workdir.take().unwrap_or_else(|| default_workdir(boot).to_owned());
    if !workdir.starts_with('/') {
        return Err(invalid("the working directory must be an absolute path"));
    }
    if workdir.len() > PATH_BYTES_MAX {
        return Err(invalid("the working directory is longer than 4096 bytes"));
    }
    let user = users::resolve(exec.user.as_deref(), boot)?;
    let all = environment(&exec.env, boot, proxy, &user, exec.terminal.is_some());
    let mut env = Vec::with_capacity(all.len());
    for (name, value) in &all {
        if name.is_empty() || name.contains('=') {
            return Err(invalid(format!("{name:?} cannot be the name of an environment variable")));
        }
        env.push(c_string(format!("{name}={value}"), "the environment")?);
    }
    let plan = Plan {
        candidates: candidates(program, all.get("PATH").copied().unwrap_or_default()),
        argv: exec.argv.iter().map(|arg| c_string(arg.as_str(), "an argument")).collect::<Result<_>>()?,
        env,
        workdir: c_string(workdir.as_str(), "the working directory")?,
        ids: user.ids,
        oom_score: c_string(boot.command_oom_score.unwrap_or(OOM_SCORE).to_string(), "the score")?,
        descriptors,
    };
    exec.workdir = Some(workdir);
    exec.user = exec.user.take().or_else(|| users::of_image(boot).map(str::to_owned));
    Ok(plan)
}

/// Returns the image's directory, or [`WORKDIR`] if that is absent, empty or `/`.
pub(crate) fn default_workdir(boot: &Boot) -> &str {
    boot.defaults.workdir.as_deref().filter(|dir| !matches!(*dir, "" | "/")).unwrap_or(WORKDIR)
}

/// Returns the request's variables, over the image's, over those that every process needs and those
/// of the proxy. One of the proxy is left out if another spelling of it is set: of two spellings, some
/// programs read the one and some the other.
fn environment<'a>(
    asked: &'a BTreeMap<String, String>,
    boot: &'a Boot,
    proxy: &'a [(&'static str, String)],
    user: &'a User,
    has_terminal: bool,
) -> BTreeMap<&'a str, &'a str> {
    let needed = ENV.into_iter().chain(has_terminal.then_some(TERMINAL)).chain([("HOME", user.home.as_str())]);
    // As after a login: programs that look for the name of a user do not expect it of an image.
    let names = user.asked.iter().flat_map(|name| USER_NAMES.map(|variable| (variable, name.as_str())));
    let proxy = proxy
        .iter()
        .filter(|(name, _)| !asked.keys().chain(boot.defaults.env.keys()).any(|set| set.eq_ignore_ascii_case(name)))
        .map(|(name, value)| (*name, value.as_str()));
    // Of two with the same name the later one stays.
    needed.chain(names).chain(proxy).chain(pairs(&boot.defaults.env)).chain(pairs(asked)).collect()
}

fn pairs(map: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    map.iter().map(|(name, value)| (name.as_str(), value.as_str()))
}

fn c_string(text: impl Into<Vec<u8>>, what: &str) -> Result<CString> {
    CString::new(text).map_err(|_| invalid(format!("{what} contains a NUL")))
}

/// Returns the paths to try to execute, in this order. Texts that cannot be a path are left out: no
/// such file exists.
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

/// Maps a refusal before the execution to an exit code, as a shell has it, or to a failure of the
/// request.
///
/// # Errors
/// Every refusal except that a program does not exist or cannot be executed.
pub(super) fn code_of_refusal(exec: &Exec, step: Step, errno: Errno) -> Result<i32> {
    Err(match (step, errno) {
        (_, Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE) => no_room(errno),
        (Step::Execute, Errno::TOOBIG) => {
            invalid("the arguments and the environment are larger than the kernel allows (2 MiB, 128 KiB for one)")
        }
        (Step::Execute, Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => return Ok(127),
        (Step::Execute, _) => return Ok(126),
        (Step::Workdir, errno) => {
            let workdir = exec.workdir.as_deref().unwrap_or_default();
            invalid(format!("the working directory {workdir}: {}", reason(errno)))
        }
        (Step::User, errno) => {
            let user = exec.user.as_deref().unwrap_or_default();
            invalid(format!("the box cannot run a command as {user:?}: {}", reason(errno)))
        }
        (Step::Fork | Step::Prepare, errno) => internal(format!("cannot start a command: {}", reason(errno))),
    })
}

/// Returns the failure of a fork or of a pipe.
pub(super) fn no_room(errno: Errno) -> Failure {
    match errno {
        Errno::AGAIN => exhausted("the sandbox has reached its process limit"),
        Errno::NOMEM => exhausted("the sandbox has no memory left to start a process"),
        errno => refused("cannot start a command", errno),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn ann(asked: Option<&str>) -> User {
        User { ids: None, home: "/home/ann".to_owned(), asked: asked.map(str::to_owned) }
    }

    #[test]
    fn a_user_that_is_asked_for_is_named_in_the_environment() {
        let asked = BTreeMap::from([("LOGNAME".to_owned(), "other".to_owned())]);
        let (boot, user) = (Boot::default(), ann(Some("ann")));
        let env = environment(&asked, &boot, &[], &user, false);
        assert_eq!((env["USER"], env["LOGNAME"]), ("ann", "other"));
    }

    #[test]
    fn the_request_wins_over_the_image_and_the_image_over_what_every_process_needs() {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let (mut boot, user) = (Boot::default(), ann(None));
        boot.defaults.env = map(&[("PATH", "/opt/bin"), ("A", "image"), ("B", "image")]);
        let asked = map(&[("B", "request"), ("TERM", "dumb")]);
        let env = environment(&asked, &boot, &[], &user, false);
        let expected = [
            ("A", "image"),
            ("B", "request"),
            ("HOME", "/home/ann"),
            ("LANG", "C.UTF-8"),
            ("PATH", "/opt/bin"),
            ("TERM", "dumb"),
        ];
        assert_eq!(env.into_iter().collect::<Vec<_>>(), expected);
        let asked = map(&[("HOME", "/here")]);
        assert_eq!(environment(&asked, &boot, &[], &user, false)["HOME"], "/here");
        assert_eq!(environment(&asked, &boot, &[], &user, true)["TERM"], "xterm-256color");
        let asked = map(&[("TERM", "dumb")]);
        assert_eq!(environment(&asked, &boot, &[], &user, true)["TERM"], "dumb");
    }

    #[test]
    fn a_variable_of_the_proxy_gives_way_to_any_spelling_of_it() {
        let proxy = [("HTTP_PROXY", "ours".to_owned()), ("http_proxy", "ours".to_owned()), ("A", "ours".to_owned())];
        let mut boot = Boot::default();
        let user = ann(None);
        let of = |asked: &[(&str, &str)], boot: &Boot| {
            let asked = asked.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            let env = environment(&asked, boot, &proxy, &user, false);
            ["HTTP_PROXY", "http_proxy", "A"].map(|name| env.get(name).map(|value| (*value).to_owned()))
        };
        let ours = Some("ours".to_owned());
        assert_eq!(of(&[], &boot), [ours.clone(), ours.clone(), ours.clone()]);
        assert_eq!(of(&[("HTTP_PROXY", "")], &boot), [Some(String::new()), None, ours.clone()]);
        boot.defaults.env.insert("http_proxy".to_owned(), "image".to_owned());
        assert_eq!(of(&[], &boot), [None, Some("image".to_owned()), ours]);
    }

    #[test]
    fn the_directory_of_an_image_counts_unless_it_says_nothing() {
        let of = |workdir: Option<&str>| {
            let mut boot = Boot::default();
            boot.defaults.workdir = workdir.map(str::to_owned);
            default_workdir(&boot).to_owned()
        };
        assert_eq!(of(Some("/srv/app")), "/srv/app");
        for nothing in [None, Some(""), Some("/")] {
            assert_eq!(of(nothing), "/workspace");
        }
    }

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
