//! Processes that belong to no connection.

use bytes::Bytes;
use guest_protocol::frame::{Decoder, Kind, encode};
use guest_protocol::output::PROCESSES_ENDED_MAX;
use guest_protocol::{
    Action, Attach, AttachFrom, Control, Exec, Exit, Failure, FailureKind, ProcessInfo, ProcessInput, ProcessOnly,
    StartProcess, TerminalSize,
};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use tokio::sync::mpsc;

use crate::harness::{Agent, Pieces, RequestBody, answer, header, within};

fn start(exec: Exec) -> StartProcess {
    StartProcess {
        exec,
        input: String::new(),
        input_ends: false,
        name: None,
        linger_ms: None,
        lossless: false,
        paced: false,
        note: None,
    }
}

async fn begin(agent: &mut Agent, start: &StartProcess) -> Result<ProcessInfo, Failure> {
    within(agent.ask("/processes/start", start)).await
}

/// Starts a shell that reads its stdin.
async fn shell(agent: &mut Agent, script: &str) -> ProcessInfo {
    let mut exec = agent.shell(script);
    exec.stdin = true;
    begin(agent, &start(exec)).await.unwrap()
}

async fn list(agent: &mut Agent) -> Vec<ProcessInfo> {
    within(agent.ask("/processes", &())).await.unwrap()
}

/// A reader of a process's output.
struct Reader {
    body: Incoming,
    decoder: Decoder,
    /// Position of the next byte.
    position: u64,
    /// Number of bytes that were lost.
    lost: u64,
}

#[derive(Debug, PartialEq)]
enum Event {
    Screen(Bytes),
    Output(Kind, Bytes),
    Exit(Exit),
}

impl Reader {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                match frame.kind {
                    Kind::Position => {
                        let position = u64::from_be_bytes(frame.payload[..].try_into().unwrap());
                        if self.position != u64::MAX {
                            self.lost += position - self.position;
                        }
                        self.position = position;
                        continue;
                    }
                    Kind::Stdout | Kind::Stderr => {
                        self.position += frame.payload.len() as u64;
                        return Some(Event::Output(frame.kind, frame.payload));
                    }
                    Kind::Screen => return Some(Event::Screen(frame.payload)),
                    Kind::Exit => return Some(Event::Exit(serde_json::from_slice(&frame.payload).unwrap())),
                    kind @ (Kind::Start | Kind::Stdin | Kind::StdinEnd | Kind::Failure) => {
                        panic!("the agent sent {kind:?}")
                    }
                }
            }
            let piece = within(self.body.frame()).await?.unwrap();
            self.decoder.feed(piece.data_ref().unwrap());
        }
    }

    /// Reads to the end: what was written, and the exit.
    async fn rest(&mut self) -> (String, Option<Exit>) {
        let mut text = Vec::new();
        while let Some(event) = self.next().await {
            match event {
                Event::Output(_, bytes) => text.extend_from_slice(&bytes),
                Event::Exit(exit) => return (String::from_utf8(text).unwrap(), Some(exit)),
                Event::Screen(_) => panic!("a screen"),
            }
        }
        (String::from_utf8(text).unwrap(), None)
    }

    /// Reads until the output holds `text`.
    async fn until(&mut self, text: &str) -> String {
        let mut seen = String::new();
        while !seen.contains(text) {
            match self.next().await.unwrap() {
                Event::Output(_, bytes) => seen.push_str(&String::from_utf8_lossy(&bytes)),
                event @ (Event::Screen(_) | Event::Exit(_)) => panic!("{event:?} before {text:?}, after {seen:?}"),
            }
        }
        seen
    }
}

async fn open(agent: &mut Agent, attach: Attach, body: RequestBody) -> Result<Reader, Failure> {
    let (name, value) = header(&attach);
    let response = agent.send("POST", "/processes/attach", body, &[(name, &value)]).await;
    if !response.status().is_success() {
        return Err(answer::<serde_json::Value>(response).await.unwrap_err());
    }
    Ok(Reader { body: response.into_body(), decoder: Decoder::default(), position: u64::MAX, lost: 0 })
}

async fn attach_with_input(agent: &mut Agent, attach: Attach) -> (mpsc::Sender<Bytes>, Reader) {
    let (sender, frames) = mpsc::channel(4);
    (sender, open(agent, attach, Pieces(frames).boxed_unsync()).await.unwrap())
}

async fn attach(agent: &mut Agent, process: u64, from: AttachFrom, follow: bool) -> Result<Reader, Failure> {
    open(agent, Attach { process, from, follow }, Empty::new().boxed_unsync()).await
}

async fn follow(agent: &mut Agent, process: u64, from: u64) -> Reader {
    attach(agent, process, AttachFrom::Position(from), true).await.unwrap()
}

async fn write(agent: &mut Agent, process: u64, text: &'static str, end: bool) -> Result<serde_json::Value, Failure> {
    let body = Full::new(Bytes::from(text)).boxed_unsync();
    let input = ProcessInput { process, end };
    let (name, value) = header(&input);
    answer(agent.send("POST", "/processes/input", body, &[(name, &value)]).await).await
}

async fn remove(agent: &mut Agent, process: u64) -> Result<serde_json::Value, Failure> {
    within(agent.ask("/processes/remove", &ProcessOnly { process })).await
}

#[tokio::test]
async fn a_process_goes_on_without_a_connection_and_keeps_all_its_output() {
    let mut agent = Agent::start().await;
    let process = shell(&mut agent, "read go; seq 1 5000; echo done >&2; exit 7").await;
    assert_eq!((process.name, process.exit, process.end, process.readers), (None, None, 0, 0));
    agent.reconnect().await;
    write(&mut agent, process.process, "go\n", false).await.unwrap();
    let mut reader = follow(&mut agent, process.process, 0).await;
    let (text, exit) = reader.rest().await;
    let expected: String = (1..=5000).map(|n| format!("{n}\n")).chain(["done\n".to_owned()]).collect();
    assert_eq!((text, exit.unwrap().code, reader.lost), (expected, 7, 0));
    let listed = &list(&mut agent).await[0];
    assert_eq!((listed.exit.as_ref().unwrap().code, listed.end, listed.pid), (7, reader.position, None));
    agent.end().await;
}

#[tokio::test]
async fn output_goes_on_at_any_position() {
    let mut agent = Agent::start().await;
    let process = shell(&mut agent, "echo one; echo two >&2; printf three; read end").await;
    let mut all = String::new();
    let mut reader = follow(&mut agent, process.process, 0).await;
    // The order between the streams is that in which they are read.
    while all.len() < 13 {
        let Some(Event::Output(_, bytes)) = reader.next().await else { panic!("the end after {all:?}") };
        all.push_str(str::from_utf8(&bytes).unwrap());
    }
    for from in 0..=all.len() {
        let mut reader = attach(&mut agent, process.process, AttachFrom::Position(from as u64), false).await.unwrap();
        assert_eq!(reader.rest().await, (all[from..].to_owned(), None));
        assert_eq!(reader.position, all.len() as u64);
    }
    let beyond = attach(&mut agent, process.process, AttachFrom::Position(14), false).await.err().unwrap();
    assert_eq!(beyond.kind, FailureKind::Invalid);
    assert!(beyond.message.contains("13 bytes so far"), "{}", beyond.message);
    let unknown = attach(&mut agent, 99, AttachFrom::Position(0), false).await.err().unwrap();
    assert_eq!(unknown.kind, FailureKind::NotFound);
    agent.end().await;
}

#[tokio::test]
async fn a_process_that_prints_without_end_loses_its_oldest_output_and_says_how_much() {
    let mut agent = Agent::start().await;
    let process = shell(&mut agent, "read a; yes 0123456 | head -c 8000000; read b").await;
    let mut early = follow(&mut agent, process.process, 0).await;
    write(&mut agent, process.process, "a\n", false).await.unwrap();
    loop {
        let listed = &list(&mut agent).await[0];
        if listed.end == 8_000_000 {
            assert_eq!(listed.first, 8_000_000 - 1024 * 1024);
            break;
        }
        tokio::task::yield_now().await;
    }
    let mut late = follow(&mut agent, process.process, 5).await;
    write(&mut agent, process.process, "b\n", true).await.unwrap();
    let (text, exit) = late.rest().await;
    assert_eq!((text.len(), exit.unwrap().code), (1024 * 1024, 0));
    assert_eq!(late.lost, 8_000_000 - 1024 * 1024 - 5);
    assert_eq!(late.position, 8_000_000);
    let (text, _) = early.rest().await;
    assert_eq!(text.len() as u64 + early.lost, 8_000_000);
    agent.end().await;
}

#[tokio::test]
async fn a_lossless_process_waits_for_its_reader() {
    let mut agent = Agent::start().await;
    let exec = agent.shell("seq 1 1500000");
    let begun = StartProcess { lossless: true, ..start(exec) };
    let process = begin(&mut agent, &begun).await.unwrap();
    // It stops long before the end, which is at some 11 MB.
    let mut before = 0;
    let stopped = loop {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let end = list(&mut agent).await[0].end;
        if end == before && end > 0 {
            break end;
        }
        before = end;
    };
    assert!(stopped < 3 << 20, "{stopped}");
    let mut reader = follow(&mut agent, process.process, 0).await;
    let (text, exit) = reader.rest().await;
    assert_eq!((reader.lost, exit.unwrap().code), (0, 0));
    assert!(text == (1..=1_500_000).map(|n| format!("{n}\n")).collect::<String>());
    agent.end().await;
}

#[tokio::test]
async fn a_process_that_is_left_ends_after_its_linger_and_one_that_is_read_does_not() {
    let mut agent = Agent::start().await;
    let exec = agent.shell("echo up; read never");
    let lingering = StartProcess { linger_ms: Some(300), ..start(Exec { stdin: true, ..exec }) };
    let left = begin(&mut agent, &lingering).await.unwrap();
    let read = begin(&mut agent, &lingering).await.unwrap();
    let mut reader = follow(&mut agent, read.process, 0).await;
    reader.until("up").await;
    while list(&mut agent).await.iter().any(|process| process.process == left.process) {
        tokio::task::yield_now().await;
    }
    assert!(list(&mut agent).await[0].exit.is_none());
    drop(reader);
    while !list(&mut agent).await.is_empty() {
        tokio::task::yield_now().await;
    }
    agent.nothing_is_alive().await;
    agent.end().await;
}

#[tokio::test]
async fn removal_ends_the_whole_tree_and_tells_its_readers() {
    let mut agent = Agent::start().await;
    let process = shell(&mut agent, "setsid sleep 1000 & sleep 1000 & echo up; wait").await;
    let mut reader = follow(&mut agent, process.process, 0).await;
    reader.until("up").await;
    remove(&mut agent, process.process).await.unwrap();
    assert_eq!(reader.rest().await.1.unwrap().code, 137);
    agent.nothing_is_alive().await;
    assert!(list(&mut agent).await.is_empty());
    assert_eq!(remove(&mut agent, process.process).await.unwrap_err().kind, FailureKind::NotFound);
    agent.end().await;
}

#[tokio::test]
async fn names_are_unique_among_those_that_run() {
    let mut agent = Agent::start().await;
    let exec = Exec { stdin: true, ..agent.shell("read end") };
    let named = StartProcess { name: Some("web".to_owned()), ..start(exec) };
    let first = begin(&mut agent, &named).await.unwrap();
    assert_eq!(first.name.as_deref(), Some("web"));
    assert_eq!(begin(&mut agent, &named).await.unwrap_err().kind, FailureKind::Conflict);
    write(&mut agent, first.process, "", true).await.unwrap();
    follow(&mut agent, first.process, 0).await.rest().await;
    let second = begin(&mut agent, &named).await.unwrap();
    let listed: Vec<u64> = list(&mut agent).await.iter().map(|process| process.process).collect();
    assert_eq!(listed, [second.process], "an ended one gives its name up");
    for name in ["", "7", "a/b", "a b", "ä", &"x".repeat(65)] {
        let refused = begin(&mut agent, &StartProcess { name: Some(name.to_owned()), ..named.clone() }).await;
        assert_eq!(refused.unwrap_err().kind, FailureKind::Invalid, "{name:?}");
    }
    agent.end().await;
}

#[tokio::test]
async fn many_processes_print_without_end_and_the_agent_answers() {
    let mut agent =
        Agent::start_with(guest_protocol::Boot { deadline_ms: 600_000, memory_mb: 64, ..Default::default() }).await;
    let exec = agent.command(&["yes", "0123456789012345678901234567890123456789"]);
    for _ in 0..48 {
        begin(&mut agent, &start(exec.clone())).await.unwrap();
    }
    while !list(&mut agent).await.iter().all(|process| process.end > 0) {
        tokio::task::yield_now().await;
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    let kb: u64 = line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kb < 24 * 1024, "{line}");
    assert_eq!(agent.run("echo here").await.out(), "here\n");
    for process in list(&mut agent).await {
        remove(&mut agent, process.process).await.unwrap();
    }
    agent.nothing_is_alive().await;
    agent.end().await;
}

#[tokio::test]
async fn those_that_have_just_ended_are_remembered_up_to_a_bound() {
    let mut agent = Agent::start().await;
    let exec = agent.command(&["echo", "hi"]);
    let running = shell(&mut agent, "read end").await;
    let mut newest = 0;
    for _ in 0..PROCESSES_ENDED_MAX + 6 {
        newest = begin(&mut agent, &start(exec.clone())).await.unwrap().process;
        assert_eq!(follow(&mut agent, newest, 0).await.rest().await.0, "hi\n");
    }
    let listed: Vec<u64> = list(&mut agent).await.iter().map(|listed| listed.process).collect();
    let remembered = newest - (PROCESSES_ENDED_MAX as u64 - 1)..=newest;
    assert_eq!(listed, [running.process].into_iter().chain(remembered).collect::<Vec<_>>());
    agent.end().await;
}

#[tokio::test]
async fn stdin_that_is_not_open_is_refused_and_its_end_is_an_end() {
    let mut agent = Agent::start().await;
    let exec = agent.shell("cat; echo over");
    let closed = begin(&mut agent, &start(exec.clone())).await.unwrap();
    assert_eq!(follow(&mut agent, closed.process, 0).await.rest().await.0, "over\n");
    assert_eq!(write(&mut agent, closed.process, "x", false).await.unwrap_err().kind, FailureKind::Conflict);
    let open = begin(&mut agent, &start(Exec { stdin: true, ..exec.clone() })).await.unwrap();
    write(&mut agent, open.process, "one ", false).await.unwrap();
    let at_once =
        StartProcess { input: "b25jZSA=".to_owned(), input_ends: true, ..start(Exec { stdin: true, ..exec }) };
    let at_once = begin(&mut agent, &at_once).await.unwrap();
    assert_eq!(follow(&mut agent, at_once.process, 0).await.rest().await.0, "once over\n");
    assert_eq!(write(&mut agent, at_once.process, "x", false).await.unwrap_err().kind, FailureKind::Conflict);
    write(&mut agent, open.process, "two ", true).await.unwrap();
    assert_eq!(follow(&mut agent, open.process, 0).await.rest().await.0, "one two over\n");
    assert_eq!(write(&mut agent, 99, "x", false).await.unwrap_err().kind, FailureKind::NotFound);
    agent.end().await;
}

#[tokio::test]
async fn a_terminal_is_given_back_to_a_second_client_and_two_may_watch() {
    let mut agent = Agent::start().await;
    let exec = Exec { terminal: Some(TerminalSize { cols: 40, rows: 10 }), ..agent.command(&["/bin/sh", "-i"]) };
    let named = StartProcess { name: Some("tty".to_owned()), ..start(exec) };
    let process = begin(&mut agent, &named).await.unwrap().process;
    let wanted = Attach { process, from: AttachFrom::Screen, follow: true };
    let (input, mut first) = attach_with_input(&mut agent, wanted).await;
    assert!(matches!(first.next().await, Some(Event::Screen(_))));
    input.send(encode(Kind::Stdin, b"PS1='> '; echo $((40 + 2))\n")).await.unwrap();
    // The shell's first prompt may come behind the echo of the line.
    first.until("42\r\n> ").await;
    let (other, mut second) = attach_with_input(&mut agent, wanted).await;
    let Some(Event::Screen(drawn)) = second.next().await else { panic!("no screen") };
    assert!(String::from_utf8_lossy(&drawn).contains("42"), "{drawn:?}");
    assert_eq!(list(&mut agent).await[0].readers, 2);
    input.send(encode(Kind::Stdin, b"echo both\n")).await.unwrap();
    first.until("\nboth\r\n").await;
    second.until("\nboth\r\n").await;
    drop((input, first, other, second));
    while list(&mut agent).await[0].readers > 0 {
        tokio::task::yield_now().await;
    }
    let control = Control { command: process, action: Action::Resize(TerminalSize { cols: 50, rows: 20 }) };
    agent.ask::<serde_json::Value>("/exec/control", &control).await.unwrap();
    assert_eq!(list(&mut agent).await[0].terminal, Some(TerminalSize { cols: 50, rows: 20 }));
    let (input, mut third) = attach_with_input(&mut agent, wanted).await;
    let Some(Event::Screen(drawn)) = third.next().await else { panic!("no screen") };
    assert!(String::from_utf8_lossy(&drawn).contains("both"), "{drawn:?}");
    input.send(encode(Kind::Stdin, b"stty size; exit 3\n")).await.unwrap();
    third.until("20 50").await;
    assert_eq!(third.rest().await.1.unwrap().code, 3);
    agent.end().await;
}

#[tokio::test]
async fn a_program_that_cannot_be_started_says_so_as_for_any_command() {
    let mut agent = Agent::start().await;
    let exec = agent.command(&["no-such-program"]);
    let process = begin(&mut agent, &start(exec)).await.unwrap();
    let (text, exit) = follow(&mut agent, process.process, 0).await.rest().await;
    assert_eq!(exit.unwrap().code, 127);
    assert!(text.contains("not found"), "{text}");
    let nowhere = Exec { workdir: Some("/nowhere".to_owned()), ..agent.command(&["true"]) };
    assert_eq!(begin(&mut agent, &start(nowhere)).await.unwrap_err().kind, FailureKind::Invalid);
    let mut late = agent.shell("echo begun; sleep 1000");
    late.timeout_ms = 300;
    let process = begin(&mut agent, &start(late)).await.unwrap();
    let (text, exit) = follow(&mut agent, process.process, 0).await.rest().await;
    assert_eq!((text.as_str(), exit.unwrap().timed_out), ("begun\n", true));
    assert_eq!(list(&mut agent).await.len(), 2);
    agent.end().await;
}

#[tokio::test]
async fn characters_are_whole_between_the_streams() {
    let mut agent = Agent::start().await;
    let script = r"printf '\342'; printf E >&2; printf '\202\254'; printf '\303'; sleep 0.3; printf F >&2";
    let process = shell(&mut agent, script).await;
    let mut reader = follow(&mut agent, process.process, 0).await;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = reader.next().await {
        if let Event::Output(kind, bytes) = event {
            if kind == Kind::Stdout { &mut stdout } else { &mut stderr }.push(bytes);
        }
    }
    // The last byte begins a character that is never completed.
    assert_eq!(stdout.concat(), b"\xe2\x82\xac\xc3");
    assert_eq!(stderr.concat(), b"EF");
    assert!(stdout.iter().any(|piece| piece.starts_with("€".as_bytes())), "{stdout:?}");
    agent.end().await;
}
