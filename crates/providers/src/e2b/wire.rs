//! Messages of the data plane in the JSON of protobuf: fields with their default may be missing, and 64-bit numbers are
//! texts.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::TerminalSize;

/// Message without content.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Empty {}

/// Command of a process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Config {
    pub(super) cmd: String,
    pub(super) args: Vec<String>,
    #[serde(skip_deserializing)]
    pub(super) envs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Start {
    pub(super) process: Config,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pty: Option<Pty>,
    pub(super) tag: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stdin: Option<bool>,
}

/// Terminal of a process.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Pty {
    size: Size,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Size {
    cols: u16,
    rows: u16,
}

impl From<TerminalSize> for Pty {
    fn from(TerminalSize { cols, rows }: TerminalSize) -> Self {
        Pty { size: Size { cols, rows } }
    }
}

/// Process that a call is about, by the tag that it was started with.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Selector {
    pub(super) tag: String,
}

/// A call about one process, and nothing else.
#[derive(Debug, Clone, Serialize)]
pub(super) struct OfProcess {
    pub(super) process: Selector,
}

#[derive(Debug, Serialize)]
pub(super) struct SendInput {
    pub(super) process: Selector,
    pub(super) input: Input,
}

/// Input of a process, as base64.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Input {
    Stdin(String),
    Pty(String),
}

#[derive(Debug, Serialize)]
pub(super) struct SendSignal {
    pub(super) process: Selector,
    pub(super) signal: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct Update {
    pub(super) process: Selector,
    pub(super) pty: Pty,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Listed {
    #[serde(default)]
    pub(super) processes: Vec<Process>,
}

/// A process that lives.
#[derive(Debug, Deserialize)]
pub(super) struct Process {
    #[serde(default)]
    pub(super) config: Config,
    #[serde(default)]
    pub(super) pid: u32,
    #[serde(default)]
    pub(super) tag: Option<String>,
}

/// Message of the stream of a process. Kinds of events that are not known are nothing.
#[derive(Debug, Default, Deserialize)]
pub(super) struct EventMessage {
    #[serde(default)]
    pub(super) event: Event,
}

/// An event: at most one of the fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Event {
    pub(super) start: Option<Started>,
    pub(super) data: Option<Data>,
    pub(super) end: Option<End>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Started {
    #[serde(default)]
    pub(super) pid: u32,
}

/// Output, as base64: one of the fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Data {
    pub(super) stdout: Option<String>,
    pub(super) stderr: Option<String>,
    pub(super) pty: Option<String>,
}

/// End of a process.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct End {
    pub(super) exit_code: i32,
    pub(super) exited: bool,
    pub(super) status: String,
}

/// A call about a path.
#[derive(Debug, Serialize)]
pub(super) struct OfPath<'a> {
    pub(super) path: &'a str,
}

#[derive(Debug, Serialize)]
pub(super) struct ListDir<'a> {
    pub(super) path: &'a str,
    pub(super) depth: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct Move<'a> {
    pub(super) source: &'a str,
    pub(super) destination: &'a str,
}

#[derive(Debug, Deserialize)]
pub(super) struct OneEntry {
    pub(super) entry: Entry,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Entries {
    #[serde(default)]
    pub(super) entries: Vec<Entry>,
}

/// A file or directory.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Entry {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) path: String,
    #[serde(deserialize_with = "number")]
    pub(super) size: u64,
    pub(super) mode: u32,
    pub(super) owner: String,
    pub(super) group: String,
    pub(super) modified_time: String,
    pub(super) symlink_target: Option<String>,
    pub(super) is_symlink: bool,
}

impl Entry {
    pub(super) fn is_link(&self) -> bool {
        self.is_symlink || self.symlink_target.is_some() || self.kind == "FILE_TYPE_SYMLINK"
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == "FILE_TYPE_DIRECTORY"
    }
}

/// Reads a number that may be a text.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Number(u64),
        Text(String),
    }
    match Number::deserialize(deserializer)? {
        Number::Number(number) => Ok(number),
        Number::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

#[cfg(test)]
mod test {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_read_though_fields_are_missing_or_unknown() {
        let read = |event| serde_json::from_value::<EventMessage>(json!({"event": event, "more": 1})).unwrap().event;
        assert_eq!(read(json!({"start": {"pid": 7}})).start.unwrap().pid, 7);
        assert_eq!(read(json!({"data": {"stderr": "aGk="}})).data.unwrap().stderr.as_deref(), Some("aGk="));
        let end = read(json!({"end": {"status": "exit status 0", "exited": true}})).end.unwrap();
        assert_eq!((end.exit_code, end.exited), (0, true));
        for nothing in [json!({"keepalive": {}}), json!({"future": {}}), json!({})] {
            let event = read(nothing);
            assert!(event.start.is_none() && event.data.is_none() && event.end.is_none());
        }
    }

    #[test]
    fn sizes_are_read_as_texts_and_as_numbers() {
        for size in [json!("12"), json!(12)] {
            let entry: Entry = serde_json::from_value(json!({"name": "a", "size": size})).unwrap();
            assert_eq!(entry.size, 12);
        }
        assert!(serde_json::from_value::<Entry>(json!({"size": "many"})).is_err());
    }
}
