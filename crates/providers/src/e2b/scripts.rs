//! Short commands for what the service has no call for: modes of files, signals, and the end of whole trees of
//! processes.

use std::time::Duration;

use super::fault::Fault;
use super::guest::{E2bGuest, WORKSPACE};
use super::http::SMALL_BYTES_MAX;
use super::wire::{Config, Empty, End, EventMessage, Listed, OfPath, Start};
use crate::{Error, Result};

/// User that may do everything in a sandbox.
const ROOT: &str = "root";
/// The longest run of a script.
const SCRIPT_MAX: Duration = Duration::from_secs(20);
/// The most output of a script that is kept, in bytes.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Exit code of [`SIGNAL`] once the signal was sent.
const SENT: i32 = 3;
/// Exit code of [`SIGNAL`] if the process is not there.
const ABSENT: i32 = 4;

/// Sends the signal `$2` to the process `$1`: to its group if it leads one, or to what is in the foreground of its
/// terminal, or to all its descendants. Descendants stop before they are killed, so that none starts another meanwhile.
const SIGNAL: &str = r#"
read -r l </proc/$1/stat || exit 4
if [ "$3" = tree ]; then
  t=" $1 "; n=1
  kill -s STOP $1
  while [ $n = 1 ]; do
    n=0
    for s in /proc/[0-9]*/stat; do
      read -r l <$s || continue
      p=${l%% *}; r=${l##*) }; r=${r#* }; q=${r%% *}
      case "$t" in *" $p "*) continue;; esac
      case "$t" in *" $q "*) kill -s STOP $p; t="$t$p "; n=1;; esac
    done
  done
  kill -s "$2" $t
  exit 3
fi
r=${l##*) }
set -- "$1" "$2" "$3" $r
g=$6
[ "$3" = foreground ] && [ "$9" -gt 1 ] && g=$9
if [ "$g" = "$1" ] || [ "$g" = "$9" ]; then kill -s "$2" -- "-$g"; else kill -s "$2" "$1"; fi
exit 3
"#;

/// Processes that a signal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aim {
    /// The process and its group, if it leads one.
    Group,
    /// The group in the foreground of its terminal.
    Foreground,
    /// The process and all its descendants.
    Tree,
}

impl Aim {
    fn word(self) -> &'static str {
        match self {
            Aim::Group => "group",
            Aim::Foreground => "foreground",
            Aim::Tree => "tree",
        }
    }
}

/// Outcome of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Signalled {
    Sent,
    /// The process is not there, or has no entry in `/proc`.
    Absent,
    /// The sandbox cannot run the script.
    Impossible,
}

/// Output and exit code of a script.
pub(super) struct Ran {
    pub(super) code: i32,
    pub(super) output: String,
}

/// Runs a short command as `user`, in the root directory. Reads both streams up to a bound.
pub(super) async fn run(guest: &E2bGuest, user: &str, argv: &[&str]) -> Result<Ran, Fault> {
    let (program, args) = argv.split_first().map_or(("", &[][..]), |(program, args)| (*program, args));
    let process = Config {
        cmd: program.to_owned(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        cwd: Some("/".to_owned()),
        ..Config::default()
    };
    let tag = format!("tidebox-s-{:016x}", rand::random::<u64>());
    let start = Start { process, pty: None, tag, stdin: Some(false) };
    let running = async {
        let method = "/process.Process/Start";
        let mut messages = guest.known.envd.stream::<EventMessage>(method, user, &start, Some(SCRIPT_MAX)).await?;
        let mut output = Vec::new();
        while let Some(message) = messages.next().await? {
            if let Some(data) = message.event.data {
                let text = data.stdout.or(data.stderr).unwrap_or_default();
                let bytes = base64_simd::forgiving_decode_to_vec(text.as_bytes()).unwrap_or_default();
                let room = OUTPUT_BYTES_MAX.saturating_sub(output.len());
                output.extend_from_slice(bytes.get(..room).unwrap_or(&bytes));
            }
            if let Some(End { exit_code, status, .. }) = message.event.end {
                let code = status.strip_prefix("exit status ").and_then(|code| code.parse().ok()).unwrap_or(exit_code);
                return Ok(Ran { code, output: String::from_utf8_lossy(&output).into_owned() });
            }
        }
        Err(Fault::Cut("the output of a script ended before it".to_owned()))
    };
    tokio::time::timeout(SCRIPT_MAX, running).await.unwrap_or(Err(Fault::Timeout(SCRIPT_MAX)))
}

/// Returns the process id of the process with this tag; `None` if it does not live.
async fn pid_of(guest: &E2bGuest, tag: &str) -> Result<Option<u32>, Fault> {
    let listed: Listed =
        guest.known.envd.unary("/process.Process/List", &Empty {}, super::http::LIST_BYTES_MAX).await?;
    Ok(listed.processes.into_iter().find(|process| process.tag.as_deref() == Some(tag)).map(|process| process.pid))
}

/// Sends a signal to the process with this tag.
pub(super) async fn signal(guest: &E2bGuest, tag: &str, signal: &str, aim: Aim) -> Result<Signalled> {
    const ACTION: &str = "send a signal";
    let sent = async {
        let Some(pid) = pid_of(guest, tag).await? else { return Ok(Signalled::Absent) };
        let argv = ["/bin/sh", "-c", SIGNAL, "sh", &pid.to_string(), signal, aim.word()];
        Ok(match run(guest, ROOT, &argv).await?.code {
            SENT => Signalled::Sent,
            ABSENT => Signalled::Absent,
            _ => Signalled::Impossible,
        })
    };
    guest.ask(ACTION, sent).await
}

/// Makes the working directory of commands, for the user of the box.
pub(super) async fn make_workspace(guest: &E2bGuest) -> Result<()> {
    const ACTION: &str = "make the working directory of a box";
    let envd = &guest.known.envd;
    let message = OfPath { path: WORKSPACE };
    let made = envd.unary_as::<serde_json::Value>(ROOT, "/filesystem.Filesystem/MakeDir", &message, SMALL_BYTES_MAX);
    match made.await {
        Ok(_) => {}
        Err(fault) if fault.is_code("already_exists") => return Ok(()),
        Err(fault) => return Err(guest.error(ACTION, fault).await),
    }
    let user = envd.user();
    if user == ROOT {
        return Ok(());
    }
    let changed = guest.ask(ACTION, run(guest, ROOT, &["chown", user, WORKSPACE])).await?;
    if changed.code == 0 {
        return Ok(());
    }
    let said = crate::service::words::words(changed.output.trim());
    Err(Error::Invalid(format!("the user `{user}` (`providers.e2b.user`) cannot own {WORKSPACE}: {said}")))
}
