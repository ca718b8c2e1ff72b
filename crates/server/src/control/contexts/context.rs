//! Contexts, and the note with which a process keeps one.

use std::collections::BTreeMap;
use std::fmt;

use domain::{Timestamp, base32};
use kernels::{Language, Marker};
use providers::{PROCESS_NOTE_BYTES_MAX, ProcessInfo};
use serde::{Deserialize, Serialize};

use crate::control::error::{Error, Result};
use crate::control::resource::Resource;

/// Beginning of the names of the processes that contexts are.
const PROCESS: &str = "context-";
/// Longest id, in bytes, with which the name of its process is not too long.
const ID_BYTES_MAX: usize = 48;

/// Id of a context in its sandbox: the name of its language for the default context of that, else random.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(String);

impl ContextId {
    /// Returns the id of the default context of a language.
    pub fn default_of(language: Language) -> Self {
        Self(language.name().to_owned())
    }

    /// Makes an id of 50 random bits.
    pub(super) fn random() -> Self {
        let entropy: [u8; 10] = rand::random();
        Self(format!("ctx-{}", &base32(&entropy)[..10]))
    }

    /// Returns the id that a request names.
    ///
    /// # Errors
    /// [`Error::NotFound`] for what no context can have.
    pub fn named(text: &str) -> Result<Self> {
        let missing = || Error::NotFound(Resource::Context, text.chars().take(ID_BYTES_MAX).collect());
        Self::parse(text).ok_or_else(missing)
    }

    fn parse(text: &str) -> Option<Self> {
        let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        ((1..=ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_known)).then(|| Self(text.to_owned()))
    }

    /// Returns the name of its process.
    pub(super) fn process_name(&self) -> String {
        format!("{PROCESS}{self}")
    }
}

impl fmt::Display for ContextId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Options of a context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewContext {
    pub language: Language,
    /// Directory to start in; `None` for the default.
    pub workdir: Option<String>,
    /// User to run as; `None` for the default.
    pub user: Option<String>,
    /// Variables added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
}

impl NewContext {
    /// Returns the options of the default context of a language.
    pub fn of(language: Language) -> Self {
        Self { language, workdir: None, user: None, env: BTreeMap::new() }
    }
}

/// State of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextState {
    /// It waits for code.
    Idle,
    /// It runs code.
    Busy,
    /// Its interpreter has ended; the next run starts another.
    Ended,
}

/// A context of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    pub id: ContextId,
    pub options: NewContext,
    pub state: ContextState,
    /// Number of its process.
    pub process: u64,
    /// Time at which its interpreter was started, by the clock of the sandbox.
    pub started: Timestamp,
}

/// Process of a context, and what is needed to talk with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) context: Context,
    pub(super) marker: Marker,
    /// Position after the last byte of its output.
    pub(super) end: u64,
}

/// Note of the process of a context. The process keeps it, so that the server can forget it.
#[derive(Serialize, Deserialize)]
struct Note {
    language: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workdir: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
    marker: String,
}

/// Returns the note of the process of a context.
///
/// # Errors
/// [`Error::Invalid`] if the options are too long for it.
pub(super) fn note(options: &NewContext, marker: &Marker) -> Result<String> {
    let NewContext { language, workdir, user, env } = options.clone();
    let note = Note { language: language.name().to_owned(), workdir, user, env, marker: marker.to_string() };
    let text = serde_json::to_string(&note).expect("texts are JSON");
    if text.len() > PROCESS_NOTE_BYTES_MAX {
        let fault = format!(
            "`env`, `workdir` and `user` of a context have more than {PROCESS_NOTE_BYTES_MAX} bytes; set long variables \
             in the sandbox's `env`, or for each run"
        );
        return Err(Error::Invalid(fault));
    }
    Ok(text)
}

/// Returns the context that a process of a box is; `None` if it is none, whatever its name.
pub(super) fn of_process(process: &ProcessInfo) -> Option<Found> {
    let id = ContextId::parse(process.name.as_deref()?.strip_prefix(PROCESS)?)?;
    let note: Note = serde_json::from_str(process.note.as_deref()?).ok()?;
    let Note { language, workdir, user, env, marker } = note;
    let options = NewContext { language: language.parse().ok()?, workdir, user, env };
    let state = if process.exit.is_some() { ContextState::Ended } else { ContextState::Idle };
    let context = Context { id, options, state, process: process.process, started: process.started };
    Some(Found { context, marker: Marker::parse(&marker)?, end: process.end })
}

/// Returns the error for a context that is not there.
pub(super) fn no_context(id: &ContextId) -> Error {
    Error::NotFound(Resource::Context, id.to_string())
}

#[cfg(test)]
mod test {
    use super::*;

    fn process(name: &str, note: String) -> ProcessInfo {
        ProcessInfo {
            process: 7,
            name: Some(name.to_owned()),
            command: "sh".to_owned(),
            pid: Some(9),
            ended_pid: None,
            is_stdin_open: true,
            note: Some(note),
            terminal: None,
            started: Timestamp::UNIX_EPOCH,
            exit: None,
            first: 0,
            end: 12,
            readers: 0,
        }
    }

    #[test]
    fn a_process_is_the_context_that_its_note_says_and_no_other_process_is_one() {
        let marker = Marker::new([3; 16]);
        let env = BTreeMap::from([("A".to_owned(), "b".to_owned())]);
        let options = NewContext { workdir: Some("/tmp".to_owned()), env, ..NewContext::of(Language::R) };
        let note = note(&options, &marker).unwrap();
        let found = of_process(&process("context-r", note.clone())).unwrap();
        assert_eq!((found.context.id, found.context.options), (ContextId::default_of(Language::R), options));
        assert_eq!((found.marker, found.end, found.context.state), (marker, 12, ContextState::Idle));
        for (name, note) in [
            ("context-", note.clone()),
            ("context-A", note.clone()),
            ("r", note.clone()),
            ("context-r", note.replace("\"r\"", "\"perl\"")),
            ("context-r", note.replace("0303", "XY")),
            ("context-r", "{}".to_owned()),
            ("context-r", String::new()),
        ] {
            assert_eq!(of_process(&process(name, note)), None, "{name}");
        }
    }

    #[test]
    fn options_that_no_process_can_keep_are_refused() {
        let env = BTreeMap::from([("A".to_owned(), "x".repeat(PROCESS_NOTE_BYTES_MAX))]);
        let options = NewContext { env, ..NewContext::of(Language::Python) };
        assert!(note(&options, &Marker::new([0; 16])).unwrap_err().to_string().contains("for each run"));
    }

    #[test]
    fn the_id_of_a_context_is_part_of_a_process_name() {
        for id in [ContextId::default_of(Language::TypeScript), ContextId::random()] {
            assert_eq!(ContextId::parse(&id.to_string()), Some(id.clone()));
            assert_eq!(providers::process_name_fault(&id.process_name()), None);
        }
        for text in ["", "a/b", "A", "x y", &"a".repeat(ID_BYTES_MAX + 1)] {
            assert_eq!(ContextId::parse(text), None, "{text}");
        }
    }
}
