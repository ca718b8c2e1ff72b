//! Shell scripts that builds run in boxes. They need nothing but a POSIX shell and the programs of `busybox`; values come
//! as arguments, so that no quoting is needed.

use std::time::Duration;

use domain::{PrepareCommand, ProcessDefaults};

/// Longest wait for the ready command.
const READY_WAIT: Duration = Duration::from_secs(300);

/// Runs the line `$1` in a login shell, as E2B does: Bash where there is one.
pub const LOGIN_SHELL: &str =
    "if [ -x /bin/bash ]; then exec /bin/bash -l -c \"$1\"; else exec /bin/sh -l -c \"$1\"; fi";

/// Runs the line `$1` in a login shell until it succeeds.
pub const UNTIL_READY: &str = "until if [ -x /bin/bash ]; then /bin/bash -l -c \"$1\"; else /bin/sh -l -c \"$1\"; fi; \
    do sleep 0.2; done";

/// Makes the user `$1`, unless there is one, with the first free number from 1000 and a home.
pub const MAKE_USER: &str = "id \"$1\" >/dev/null 2>&1 && exit 0; \
    n=1000; while grep -q \"^[^:]*:[^:]*:$n:\" /etc/passwd /etc/group; do n=$((n + 1)); done; \
    shell=/bin/bash; [ -x $shell ] || shell=/bin/sh; \
    for f in /etc/passwd /etc/group; do test -z \"$(tail -c 1 $f)\" || echo >>$f; done; \
    echo \"$1:x:$n:$n::/home/$1:$shell\" >>/etc/passwd && echo \"$1:x:$n:\" >>/etc/group && \
    mkdir -p \"/home/$1\" && chown $n:$n \"/home/$1\"";

/// Returns the command that makes a user in a box. Where none can be made, commands run as the own user of the box.
#[must_use]
pub fn user_if_possible(name: &str) -> PrepareCommand {
    PrepareCommand {
        command: "/bin/sh".to_owned(),
        args: ["-c".to_owned(), format!("({MAKE_USER}) || true"), "sh".to_owned(), name.to_owned()].into(),
        is_argv: true,
        ..PrepareCommand::default()
    }
}

/// Makes the directory `$1`, relative to `$3`, for the user `$2`, who also gets the parents that were missing. Writes its
/// absolute path.
pub const MAKE_WORKDIR: &str = "case \"$1\" in /*) d=$1 ;; *) d=$3/$1 ;; esac; \
    if [ ! -d \"$d\" ]; then \
      new=$d; while up=$(dirname \"$new\"); [ ! -d \"$up\" ]; do new=$up; done; \
      mkdir -p \"$d\" && { [ -z \"$2\" ] || chown -R \"$2\": \"$new\"; } || exit; \
    fi; cd \"$d\" && pwd";

/// Writes the value `$1` with its variables expanded, and no command in it run.
pub const EXPAND: &str =
    "v=$(printf '%s.' \"$1\" | sed 's/[\\\\\"`]/\\\\&/g; s/\\$(/\\\\$(/g'); v=${v%.}; eval \"printf %s \\\"$v\\\"\"";

/// Puts what is at `$1` to `$2`, relative to `$5`, for the owner `$3` with the mode `$4`. A file takes the place of a
/// file, or goes into a directory if `$2` ends with a slash; what is in a directory goes into the directory `$2`.
pub const COPY: &str = "case \"$2\" in /*) to=$2 ;; *) to=$5/$2 ;; esac; \
    if [ ! -e \"$1\" ] && [ ! -L \"$1\" ]; then echo \"the archive has no \\`$6\\`\" >&2; exit 1; fi; \
    [ -z \"$3\" ] || chown -R -h \"$3\" \"$1\" || exit; \
    if [ -n \"$4\" ] && [ ! -L \"$1\" ]; then chmod -R \"$4\" \"$1\" || exit; fi; \
    if [ -d \"$1\" ] && [ ! -L \"$1\" ]; then \
      mkdir -p \"$to\" && cp -a \"$1/.\" \"$to/\"; \
    else \
      case \"$to\" in */) mkdir -p \"$to\" ;; *) mkdir -p \"$(dirname \"$to\")\" ;; esac && mv -f \"$1\" \"$to\"; \
    fi";

/// Returns the commands that start what a template runs.
pub(super) fn start_commands(line: &str, ready: Option<&str>, defaults: &ProcessDefaults) -> Vec<PrepareCommand> {
    let shell = |script: &str, line: &str| PrepareCommand {
        command: "/bin/sh".to_owned(),
        args: ["-c", script, "sh", line].map(str::to_owned).into(),
        is_argv: true,
        env: defaults.env.clone(),
        workdir: defaults.workdir.clone(),
        user: defaults.user.clone(),
        ..PrepareCommand::default()
    };
    let start = PrepareCommand { background: true, name: Some("start".to_owned()), ..shell(LOGIN_SHELL, line) };
    let ready = ready.map(|line| PrepareCommand { timeout: Some(READY_WAIT), ..shell(UNTIL_READY, line) });
    std::iter::once(start).chain(ready).collect()
}
