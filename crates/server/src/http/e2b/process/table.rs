//! Processes of a sandbox, as E2B's SDKs see them.

use providers::{ExitStatus, PROCESS_NOTE_BYTES_MAX, ProcessInfo, Signal};
use serde::{Deserialize, Serialize};

use super::wire::{Config, End, Process, Selector};
use crate::control::Control;
use crate::http::error::{ApiError, RpcCode, rpc};

/// Longest tag of a process, in bytes.
pub const TAG_BYTES_MAX: usize = 256;

/// Note that the box keeps with a process of this front.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    #[serde(rename = "e2b")]
    config: Config,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
}

impl Note {
    /// Returns the note of a process. Of one that is too long for it, the list shows the beginning of the
    /// command.
    pub fn text(config: &Config, tag: Option<&str>) -> String {
        let tag = tag.map(str::to_owned);
        let whole = Note { config: config.clone(), tag };
        let without_envs = Config { envs: Default::default(), ..config.clone() };
        let shortened = Config { args: Vec::new(), cwd: None, ..without_envs.clone() };
        let shortest = Config::default();
        let shorter = [without_envs, shortened, shortest].map(|config| Note { config, ..whole.clone() });
        let texts = std::iter::once(whole.clone()).chain(shorter).filter_map(|note| serde_json::to_string(&note).ok());
        texts.into_iter().find(|text| text.len() <= PROCESS_NOTE_BYTES_MAX).unwrap_or_default()
    }

    fn of(info: &ProcessInfo) -> Option<Note> {
        serde_json::from_str(info.note.as_deref()?).ok()
    }
}

/// Returns the processes that live, by pid.
pub fn living(processes: &[ProcessInfo]) -> Vec<Process> {
    let shown = |info: &ProcessInfo| {
        let pid = info.pid?;
        let (config, tag) = match Note::of(info) {
            Some(Note { config, tag }) => (config, tag),
            // Of another front.
            None => (Config { cmd: info.command.clone(), ..Config::default() }, None),
        };
        Some(Process { config, pid, tag })
    };
    let mut shown: Vec<Process> = processes.iter().filter(|info| info.exit.is_none()).filter_map(shown).collect();
    shown.sort_by_key(|process| process.pid);
    shown
}

/// Returns the process of a sandbox that lives and is meant; of several, the one that was started last.
///
/// # Errors
/// `not_found` if there is none, `invalid_argument` for a selector that names nothing.
pub async fn living_one(control: &Control, id: &str, selector: Option<Selector>) -> Result<ProcessInfo, ApiError> {
    let meant = Meant::of(selector)?;
    meant.living(meant.candidates(control, id).await?)
}

/// Returns the process that is meant: one that lives, else the one that was started last.
///
/// # Errors
/// As [`living_one`].
pub async fn newest_one(control: &Control, id: &str, selector: Option<Selector>) -> Result<ProcessInfo, ApiError> {
    let meant = Meant::of(selector)?;
    meant.newest(meant.candidates(control, id).await?)
}

/// Process that a selector means.
enum Meant {
    Pid(u32),
    Tag(String),
}

impl Meant {
    fn of(selector: Option<Selector>) -> Result<Meant, ApiError> {
        match selector {
            Some(Selector { pid: Some(pid), .. }) => Ok(Meant::Pid(pid)),
            Some(Selector { tag: Some(tag), .. }) => Ok(Meant::Tag(tag)),
            _ => Err(rpc(RpcCode::InvalidArgument, "name the `process` by its `pid` or by its `tag`")),
        }
    }

    /// Returns the processes of a sandbox of which one may be meant.
    async fn candidates(&self, control: &Control, id: &str) -> Result<Vec<ProcessInfo>, ApiError> {
        let found = match self {
            Meant::Pid(pid) => control.processes_of_pid(id, *pid).await,
            // Only the notes of this server have tags.
            Meant::Tag(_) => control.processes(id).await,
        };
        Ok(found?)
    }

    fn living(&self, processes: Vec<ProcessInfo>) -> Result<ProcessInfo, ApiError> {
        let is_meant = |info: &ProcessInfo| info.exit.is_none() && self.is(info, info.pid);
        processes.into_iter().filter(is_meant).max_by_key(|info| info.process).ok_or_else(|| self.missing())
    }

    fn newest(&self, processes: Vec<ProcessInfo>) -> Result<ProcessInfo, ApiError> {
        let found = processes.into_iter().filter(|info| self.is(info, info.pid.or(info.ended_pid)));
        found.max_by_key(|info| (info.exit.is_none(), info.process)).ok_or_else(|| self.missing())
    }

    fn is(&self, info: &ProcessInfo, pid: Option<u32>) -> bool {
        match self {
            Meant::Pid(meant) => pid == Some(*meant),
            Meant::Tag(tag) => Note::of(info).is_some_and(|note| note.tag.as_ref() == Some(tag)),
        }
    }

    fn missing(&self) -> ApiError {
        let which = match self {
            Meant::Pid(pid) => format!("pid {pid}"),
            Meant::Tag(tag) => format!("tag `{tag}`"),
        };
        rpc(RpcCode::NotFound, format!("process with {which} not found in this sandbox"))
    }
}

/// Returns the end of a process.
pub fn end(exit: &ExitStatus) -> End {
    // The deadline kills.
    let signal = exit.signal.or_else(|| Signal::named("KILL").filter(|_| exit.timed_out));
    if let Some(signal) = signal {
        let status = format!("signal: {}", signal.words());
        return End { exit_code: -1, exited: false, error: Some(status.clone()), status };
    }
    let status = format!("exit status {}", exit.code);
    End { exit_code: exit.code, exited: true, error: (exit.code != 0).then(|| status.clone()), status }
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use providers::TerminalSize;

    use super::*;

    fn exit(code: i32, signal: Option<&str>, timed_out: bool) -> ExitStatus {
        let signal = signal.map(|name| Signal::named(name).unwrap());
        ExitStatus { code, signal, timed_out, oom_killed: false, pids_exhausted: false, duration: Duration::ZERO }
    }

    fn info(process: u64, pid: u32, has_ended: bool, note: Option<String>) -> ProcessInfo {
        ProcessInfo {
            process,
            name: None,
            command: "sleep 9".to_owned(),
            pid: (!has_ended).then_some(pid),
            ended_pid: has_ended.then_some(pid),
            is_stdin_open: false,
            note,
            terminal: None::<TerminalSize>,
            started: domain::Timestamp::UNIX_EPOCH,
            exit: has_ended.then(|| exit(0, None, false)),
            first: 0,
            end: 0,
            readers: 0,
        }
    }

    fn pid(pid: u32) -> Option<Selector> {
        Some(Selector { pid: Some(pid), tag: None })
    }

    #[test]
    fn ends_are_told_as_clients_know_them() {
        for (status, code, exited, words, error) in [
            (exit(0, None, false), 0, true, "exit status 0", None),
            (exit(3, None, false), 3, true, "exit status 3", Some("exit status 3")),
            (exit(137, None, false), 137, true, "exit status 137", Some("exit status 137")),
            (exit(137, Some("KILL"), false), -1, false, "signal: killed", Some("signal: killed")),
            (exit(143, Some("TERM"), false), -1, false, "signal: terminated", Some("signal: terminated")),
            (exit(159, Some("SYS"), false), -1, false, "signal: signal 31", Some("signal: signal 31")),
            (exit(124, None, true), -1, false, "signal: killed", Some("signal: killed")),
        ] {
            let end = end(&status);
            assert_eq!((end.exit_code, end.exited, end.status.as_str()), (code, exited, words));
            assert_eq!(end.error.as_deref(), error);
        }
    }

    #[test]
    fn a_pid_means_the_process_that_lives_else_the_last_one() {
        let all = || vec![info(1, 7, true, None), info(2, 8, false, None), info(3, 7, true, None)];
        let newest_one = |all, selector| Meant::of(selector)?.newest(all);
        let living_one = |all, selector| Meant::of(selector)?.living(all);
        assert_eq!(newest_one(all(), pid(7)).unwrap().process, 3);
        assert_eq!(living_one(all(), pid(7)).unwrap_err().rpc_code().0, RpcCode::NotFound);
        assert_eq!(living_one(all(), pid(8)).unwrap().process, 2);
        let reused = [all(), vec![info(4, 7, false, None), info(5, 9, true, None)]].concat();
        assert_eq!(newest_one(reused, pid(7)).unwrap().process, 4);
        assert_eq!(newest_one(all(), pid(9)).unwrap_err().rpc_code().0, RpcCode::NotFound);
        for nothing in [None, Some(Selector::default())] {
            assert_eq!(newest_one(all(), nothing).unwrap_err().rpc_code().0, RpcCode::InvalidArgument);
        }
    }

    #[test]
    fn a_process_is_listed_as_it_was_started() {
        let config = Config { cmd: "a".to_owned(), args: vec!["b".to_owned()], ..Config::default() };
        let note = Note::text(&config, Some("t"));
        let all = vec![info(1, 9, false, Some(note)), info(2, 8, false, None), info(3, 7, true, None)];
        let shown = living(&all);
        assert_eq!((shown[0].pid, shown[0].config.cmd.as_str()), (8, "sleep 9"));
        assert_eq!(shown[1], Process { config, pid: 9, tag: Some("t".to_owned()) });
        assert_eq!(shown.len(), 2);
    }

    #[test]
    fn a_tag_of_several_means_the_one_that_was_started_last() {
        let note = |tag| Some(Note::text(&Config::default(), Some(tag)));
        let all = vec![info(1, 9, false, note("t")), info(2, 8, false, note("t")), info(3, 7, false, note("u"))];
        let meant = Meant::of(Some(Selector { pid: None, tag: Some("t".to_owned()) })).unwrap();
        assert_eq!(meant.living(all.clone()).unwrap().process, 2);
        assert_eq!(meant.newest(all).unwrap().process, 2);
    }

    #[test]
    fn a_note_that_is_too_long_leaves_out_what_matters_least() {
        let long = |bytes: usize| "x".repeat(bytes);
        let config = Config {
            cmd: "a".to_owned(),
            args: vec![long(100)],
            envs: [("A".to_owned(), long(PROCESS_NOTE_BYTES_MAX))].into(),
            cwd: None,
        };
        let note: Note = serde_json::from_str(&Note::text(&config, Some("t"))).unwrap();
        assert_eq!((note.config.args.len(), note.config.envs.len(), note.tag.as_deref()), (1, 0, Some("t")));
        let config = Config { args: vec![long(PROCESS_NOTE_BYTES_MAX)], ..config };
        let note: Note = serde_json::from_str(&Note::text(&config, None)).unwrap();
        assert_eq!((note.config.cmd.as_str(), note.config.args.len()), ("a", 0));
        let config = Config { cmd: long(PROCESS_NOTE_BYTES_MAX), ..config };
        assert_eq!(serde_json::from_str::<Note>(&Note::text(&config, None)).unwrap().config, Config::default());
    }
}
