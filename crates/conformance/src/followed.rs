//! Background processes that several readers follow.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use providers::{
    Attach, AttachFrom, Background, BackgroundStdin, Command, Error, ExitStatus, Guest, ProcessAction, ProcessEvent,
    ProcessEvents, ProcessInfo, Signal, TerminalSize,
};

use tokio::task::JoinSet;

use super::case::{Case, case};
use super::subject::{Subject, argv, eventually, pieces, sh, soon};

/// Output of a process that writes more than is kept of it.
const MUCH: u64 = 12_000_000;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("the pid of a process is one that the box knows", pids, Background, Processes, ExitDetails),
        case!("what the caller noted is kept with a process", notes, Background, Notes),
        case!("the end of a process names the signal", signals, Background, ExitDetails),
        case!(
            "a signal for the command itself reaches it behind its terminal",
            behind,
            Background,
            Terminals,
            ExitDetails
        ),
        case!("a paced process waits for each of its readers", paced, Background, Notes),
        case!("a paced process without readers goes on", left, Background, Notes),
        case!("what two callers write to one stdin is not mixed", not_mixed, Background, Stdin),
        case!(
            "a process that has ended is remembered for a while, however many end after it",
            remembered,
            Background,
            Notes
        ),
    ]
}

fn named(name: &str) -> Signal {
    Signal::named(name).unwrap()
}

fn paced_with_stdin() -> Background {
    Background { is_paced: true, stdin: BackgroundStdin::Open, ..Background::default() }
}

async fn start(guest: &Arc<dyn Guest>, command: Command, background: Background) -> ProcessInfo {
    soon("the start", guest.start_process(command, background)).await.unwrap()
}

async fn follow(guest: &Arc<dyn Guest>, process: u64, from: u64) -> ProcessEvents {
    let attach = Attach { from: AttachFrom::Position(from), follow: true, input: None };
    soon("the output", guest.attach_process(process, attach)).await.unwrap()
}

/// Reads to the end: number of bytes, and the exit.
async fn rest(mut events: ProcessEvents) -> (u64, ExitStatus) {
    let mut bytes = 0;
    while let Some(event) = soon("output", events.next()).await {
        match event.unwrap() {
            ProcessEvent::Stdout(piece) | ProcessEvent::Stderr(piece) => bytes += piece.len() as u64,
            ProcessEvent::Exit(exit) => return (bytes, exit),
            ProcessEvent::Screen(_) | ProcessEvent::Position(_) => {}
        }
    }
    panic!("no exit");
}

async fn listed(guest: &Arc<dyn Guest>, process: u64) -> Option<ProcessInfo> {
    guest.processes().await.unwrap().into_iter().find(|listed| listed.process == process)
}

async fn pids(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    let process = start(guest, argv(&["sleep", "100"]), Background::default()).await;
    let pid = process.pid.unwrap();
    assert_eq!(inside.sh(&format!("kill -0 {pid} && cat /proc/{pid}/comm")).await.text(), "sleep\n");
    inside.sh(&format!("kill -9 {pid}")).await;
    let (_, exit) = rest(follow(guest, process.process, 0).await).await;
    assert_eq!((exit.code, exit.signal), (137, Some(named("KILL"))));
    assert_ne!(inside.sh(&format!("kill -0 {pid}")).await.code(), 0, "it is not left behind");
    let ended = listed(guest, process.process).await.unwrap();
    assert_eq!((ended.pid, ended.ended_pid), (None, Some(pid)));
}

async fn notes(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    let with = |note: &str| Background { note: Some(note.to_owned()), ..paced_with_stdin() };
    let (long, longer) =
        ("x".repeat(providers::PROCESS_NOTE_BYTES_MAX), "x".repeat(providers::PROCESS_NOTE_BYTES_MAX + 1));
    let one = start(guest, sh("read end"), with("{\"ä\": 1}")).await;
    let other = start(guest, sh("read end"), with(&long)).await;
    assert!(one.is_stdin_open);
    assert_eq!(listed(guest, one.process).await.unwrap().note.as_deref(), Some("{\"ä\": 1}"));
    assert_eq!(listed(guest, other.process).await.unwrap().note, Some(long));
    assert!(matches!(guest.start_process(sh("true"), with(&longer)).await, Err(Error::Invalid(_))));
    for process in [&one, &other] {
        guest.process_input(process.process, pieces(b"\n"), true).await.unwrap();
        rest(follow(guest, process.process, 0).await).await;
    }
    let (one, other) = (listed(guest, one.process).await.unwrap(), listed(guest, other.process).await.unwrap());
    assert_eq!((one.note.is_some(), other.note, one.is_stdin_open), (true, None, false));
}

async fn signals(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    for name in ["KILL", "TERM"] {
        let process = start(guest, argv(&["sleep", "100"]), Background::default()).await.process;
        guest.control_process(process, ProcessAction::SignalCommand(named(name))).await.unwrap();
        let (_, exit) = rest(follow(guest, process, 0).await).await;
        assert_eq!((exit.code, exit.signal), (128 + named(name).number(), Some(named(name))));
    }
    let process = start(guest, sh("exit 137"), Background::default()).await.process;
    let (_, exit) = rest(follow(guest, process, 0).await).await;
    assert_eq!((exit.code, exit.signal), (137, None));
}

async fn behind(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    let command = Command { terminal: Some(TerminalSize { cols: 80, rows: 24 }), ..argv(&["/bin/sh", "-i"]) };
    let process = start(guest, command, paced_with_stdin()).await.process;
    guest.process_input(process, pieces(b"sleep 100; echo over\n"), false).await.unwrap();
    let pid = listed(guest, process).await.unwrap().pid.unwrap();
    // The shell waits for what is in the foreground, in a group of its own.
    let foreground = format!("set -- $(cat /proc/{pid}/stat); [ \"$8\" != {pid} ]");
    eventually("the command is in the foreground", || async { inside.sh(&foreground).await.code() == 0 }).await;
    guest.control_process(process, ProcessAction::SignalCommand(named("KILL"))).await.unwrap();
    let (_, exit) = rest(follow(guest, process, 0).await).await;
    assert_eq!((exit.code, exit.signal), (137, Some(named("KILL"))));
}

async fn paced(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    let script = format!("read go; yes 0123456 | head -c {MUCH}");
    let process = start(guest, sh(&script), paced_with_stdin()).await.process;
    // Both are there before the first byte: output that one has read is not kept for another that comes later.
    let mut slow = follow(guest, process, 0).await;
    let mut quick = JoinSet::new();
    quick.spawn(rest(follow(guest, process, 0).await));
    guest.process_input(process, pieces(b"\n"), true).await.unwrap();
    // Stands still for a moment, in which the other one would be far ahead.
    slow.next().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(quick.try_join_next().is_none(), "one reader is left behind");
    assert_eq!(rest(slow).await.0, MUCH);
    assert_eq!(quick.join_next().await.unwrap().unwrap().0, MUCH);
}

async fn left(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    let script = format!("read go; yes 0123456 | head -c {MUCH}; exit 5");
    let process = start(guest, sh(&script), paced_with_stdin()).await.process;
    let mut reader = follow(guest, process, 0).await;
    guest.process_input(process, pieces(b"\n"), true).await.unwrap();
    reader.next().await;
    drop(reader);
    let has_ended = || async { listed(guest, process).await.unwrap().exit.is_some_and(|exit| exit.code == 5) };
    eventually("it ends without readers", has_ended).await;
}

async fn not_mixed(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    const EACH: usize = 300_000;
    let open = Background { stdin: BackgroundStdin::Open, ..Background::default() };
    let process = start(guest, sh("cat > all"), open).await.process;
    let letters = [b'a', b'b', b'c'];
    let written = letters.map(|letter| {
        let content = vec![letter; EACH];
        async move { guest.process_input(process, pieces(&content), false).await.unwrap() }
    });
    join_all(written).await;
    guest.process_input(process, pieces(b""), true).await.unwrap();
    rest(follow(guest, process, 0).await).await;
    let all = Bytes::from(inside.read("/workspace/all").await);
    assert_eq!(all.len(), letters.len() * EACH);
    let mut whole: Vec<u8> = all.chunks(EACH).map(|part| part[0]).collect();
    assert!(all.chunks(EACH).all(|part| part.iter().all(|byte| *byte == part[0])), "mixed");
    whole.sort_unstable();
    assert_eq!(whole, letters);
}

async fn remembered(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    let first = start(guest, sh("exit 9"), Background::default()).await.process;
    rest(follow(guest, first, 0).await).await;
    for _ in 0..100 {
        let process = start(guest, argv(&["true"]), Background::default()).await.process;
        rest(follow(guest, process, 0).await).await;
    }
    assert_eq!(listed(guest, first).await.unwrap().exit.unwrap().code, 9);
}
