//! Messages of `process.Process` in the JSON of protobuf.

use std::collections::BTreeMap;

use base64_simd::STANDARD;
use serde::{Deserialize, Deserializer, Serialize};

use crate::http::e2b::proto_json::{number, optional_number, or_default};

/// Message without content.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Empty {}

/// Request to start a process.
#[derive(Debug, Deserialize)]
pub struct StartRequest {
    pub process: Option<Config>,
    pub pty: Option<Pty>,
    pub tag: Option<String>,
    /// True or absent for a stdin that can be written.
    pub stdin: Option<bool>,
}

/// Command of a process. The server keeps it with the process, for the list.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Config {
    #[serde(default, deserialize_with = "or_default")]
    pub cmd: String,
    #[serde(default, deserialize_with = "or_default")]
    pub args: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub envs: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Terminal of a process.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Pty {
    pub size: Option<Size>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Size {
    #[serde(default, deserialize_with = "number")]
    pub cols: u32,
    #[serde(default, deserialize_with = "number")]
    pub rows: u32,
}

/// Process that a request is about.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Selector {
    #[serde(default, deserialize_with = "optional_number")]
    pub pid: Option<u32>,
    pub tag: Option<String>,
}

/// Request that names a process, and nothing else.
#[derive(Debug, Deserialize)]
pub struct ProcessRequest {
    pub process: Option<Selector>,
}

#[derive(Debug, Deserialize)]
pub struct SendInputRequest {
    pub process: Option<Selector>,
    pub input: Option<Input>,
}

/// Input of a process: one of the two.
#[derive(Debug, Deserialize)]
pub struct Input {
    #[serde(default, deserialize_with = "optional_bytes")]
    pub stdin: Option<Vec<u8>>,
    #[serde(default, deserialize_with = "optional_bytes")]
    pub pty: Option<Vec<u8>>,
}

/// Message of a stream of input: one of the three.
#[derive(Debug, Deserialize)]
pub struct StreamInputRequest {
    pub start: Option<ProcessRequest>,
    pub data: Option<InputData>,
    pub keepalive: Option<Empty>,
}

#[derive(Debug, Deserialize)]
pub struct InputData {
    pub input: Option<Input>,
}

#[derive(Debug, Deserialize)]
pub struct SendSignalRequest {
    pub process: Option<Selector>,
    pub signal: Option<SignalName>,
}

/// Signal by its name or by the number of that name, as protobuf allows both.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum SignalName {
    Name(String),
    Number(i64),
}

#[derive(Debug, Deserialize)]
pub struct UpdateRequest {
    pub process: Option<Selector>,
    pub pty: Option<Pty>,
}

/// Answer with all processes that live.
#[derive(Debug, Serialize)]
pub struct ListResponse {
    pub processes: Vec<Process>,
}

/// A process that lives.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Process {
    pub config: Config,
    pub pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// Message of the stream of a process.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct EventMessage {
    pub event: Event,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Event {
    Start { pid: u32 },
    Data(Data),
    Keepalive {},
    End(End),
}

/// Output as base64.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Data {
    Stdout(String),
    Stderr(String),
    Pty(String),
}

/// End of a process.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct End {
    pub exit_code: i32,
    pub exited: bool,
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl From<Event> for EventMessage {
    fn from(event: Event) -> Self {
        Self { event }
    }
}

/// Reads base64 in either alphabet, with and without padding, as protobuf does.
fn optional_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<u8>>, D::Error> {
    let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
    let mut text = text.into_bytes();
    for byte in &mut text {
        *byte = match *byte {
            b'-' => b'+',
            b'_' => b'/',
            other => other,
        };
    }
    let bytes = base64_simd::forgiving_decode_to_vec(&text);
    bytes.map(Some).map_err(|_| serde::de::Error::custom("is not base64"))
}

/// Encodes output.
pub fn encoded(bytes: &[u8]) -> String {
    STANDARD.encode_to_string(bytes)
}

#[cfg(test)]
mod test {
    use serde_json::json;

    use super::*;

    #[test]
    fn input_may_be_written_in_any_way_that_protobuf_allows() {
        for (text, expected) in
            [("aGk=", &b"hi"[..]), ("aGk", b"hi"), ("-_8=", b"\xfb\xff"), ("+/8", b"\xfb\xff"), ("", b"")]
        {
            let input: Input = serde_json::from_value(json!({"stdin": text, "pty": null, "more": 1})).unwrap();
            assert_eq!((input.stdin.as_deref(), input.pty), (Some(expected), None), "{text}");
        }
        assert!(serde_json::from_value::<Input>(json!({"stdin": "a*b="})).is_err());
        for (value, expected) in [(json!({"pid": 7}), Some(7)), (json!({"pid": "7"}), Some(7)), (json!({}), None)] {
            assert_eq!(serde_json::from_value::<Selector>(value).unwrap().pid, expected);
        }
        for bad in [json!({"pid": -1}), json!({"pid": "x"}), json!({"pid": 1.5}), json!({"pid": 4294967296_u64})] {
            assert!(serde_json::from_value::<Selector>(bad.clone()).is_err(), "{bad}");
        }
        let config: Config = serde_json::from_value(json!({"cmd": "a", "args": null, "envs": null})).unwrap();
        assert_eq!(config, Config { cmd: "a".to_owned(), ..Config::default() });
    }

    #[test]
    fn events_have_the_names_of_protobuf() {
        let end = End { exit_code: -1, exited: false, status: "signal: killed".to_owned(), error: None };
        for (event, expected) in [
            (Event::Start { pid: 3 }, json!({"start": {"pid": 3}})),
            (Event::Data(Data::Pty(encoded(b"hi"))), json!({"data": {"pty": "aGk="}})),
            (Event::Keepalive {}, json!({"keepalive": {}})),
            (Event::End(end), json!({"end": {"exitCode": -1, "exited": false, "status": "signal: killed"}})),
        ] {
            assert_eq!(serde_json::to_value(EventMessage::from(event)).unwrap(), json!({"event": expected}));
        }
    }
}
