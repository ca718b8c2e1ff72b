//! Background processes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use providers::{
    Attach, AttachFrom, Background, BackgroundStdin, Command, Error, ExitStatus, Guest, ProcessAction, ProcessEvent,
    ProcessEvents, ProcessInfo, ProcessInput, Signal, TerminalSize,
};
use tokio::sync::mpsc;

use super::case::{Case, case};
use super::subject::{Subject, argv, eventually, pieces, sh, soon};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("a process in the background keeps its output and its exit", kept, Background),
        case!("a process is found by its process id", found_by_pid, Background),
        case!("output of a process is read on from any position", positions, Background),
        case!("a process in the background survives its server", survives, Background, Reopen, KeptOutput),
        case!("a name is that of one running process", names, Background),
        case!("the stdin of a process is written until it is ended", input, Background),
        case!("a process is ended by a signal, at its deadline, and with all below it by removal", ends, Background),
        case!("a process that is left ends after its linger", lingers, Background),
        case!("a slow reader learns what it missed", missed, Background),
        case!("a lossless process waits for its reader", waits, Background, Lossless),
        case!("what is no process is refused", refused, Background),
        case!("a terminal in the background shows itself to all who come", terminal, Background, Terminals),
    ]
}

fn open() -> Background {
    Background { stdin: BackgroundStdin::Open, ..Background::default() }
}

/// A reader of a process's output.
struct Reader {
    events: ProcessEvents,
    position: Option<u64>,
    lost: u64,
    screen: Vec<u8>,
    seen: Vec<u8>,
    exit: Option<ExitStatus>,
}

impl Reader {
    async fn open(guest: &Arc<dyn Guest>, process: u64, attach: Attach) -> Reader {
        let events = soon("the output", guest.attach_process(process, attach)).await.unwrap();
        Reader { events, position: None, lost: 0, screen: Vec::new(), seen: Vec::new(), exit: None }
    }

    async fn follow(guest: &Arc<dyn Guest>, process: u64, from: u64) -> Reader {
        Reader::open(guest, process, Attach { from: AttachFrom::Position(from), follow: true, input: None }).await
    }

    /// Takes the next event; `false` at the end.
    async fn next(&mut self) -> bool {
        let Some(event) = soon("output", self.events.next()).await else { return false };
        match event.unwrap() {
            ProcessEvent::Screen(bytes) => self.screen.extend_from_slice(&bytes),
            ProcessEvent::Position(position) => {
                self.lost += self.position.map_or(0, |before| position - before);
                self.position = Some(position);
            }
            ProcessEvent::Stdout(bytes) | ProcessEvent::Stderr(bytes) => {
                self.position = Some(self.position.expect("a position comes first") + bytes.len() as u64);
                self.seen.extend_from_slice(&bytes);
            }
            ProcessEvent::Exit(exit) => self.exit = Some(exit),
        }
        true
    }

    async fn until(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.seen).contains(text) {
            assert!(
                self.next().await && self.exit.is_none(),
                "no {text:?} in {:?}",
                String::from_utf8_lossy(&self.seen)
            );
        }
    }

    /// Reads to the end: all output, and the exit code if it has ended.
    async fn rest(mut self) -> (String, Option<i32>) {
        while self.next().await {}
        (String::from_utf8(self.seen).unwrap(), self.exit.map(|exit| exit.code))
    }
}

async fn start(guest: &Arc<dyn Guest>, command: Command, background: Background) -> ProcessInfo {
    soon("the start", guest.start_process(command, background)).await.unwrap()
}

async fn listed(guest: &Arc<dyn Guest>, process: u64) -> Option<ProcessInfo> {
    guest.processes().await.unwrap().into_iter().find(|listed| listed.process == process)
}

async fn found_by_pid(subject: Subject) {
    let inside = subject.start().await;
    let mut pids = Vec::new();
    for _ in 0..2 {
        let process = start(&inside.guest, sh("read go"), open()).await;
        let pid = listed(&inside.guest, process.process).await.unwrap().pid.unwrap();
        pids.push((process.process, pid));
    }
    let of = async |pid| soon("the process", inside.guest.processes_of_pid(pid)).await.unwrap();
    for (number, pid) in &pids {
        let found = of(*pid).await;
        assert_eq!(found.iter().map(|process| process.process).collect::<Vec<_>>(), [*number]);
        assert_eq!(found[0].pid, Some(*pid));
    }
    for none in [i32::MAX as u32, u32::MAX] {
        assert_eq!(of(none).await, []);
    }
    let (ended, pid) = pids[0];
    inside.guest.process_input(ended, pieces(b""), true).await.unwrap();
    Reader::follow(&inside.guest, ended, 0).await.rest().await;
    // Those that do not say which process id one had find it no more.
    assert!(of(pid).await.iter().all(|process| process.process == ended && process.ended_pid == Some(pid)));
}

async fn kept(subject: Subject) {
    let inside = subject.start().await;
    let process = start(&inside.guest, sh("read go; seq 1 1000; echo over >&2; exit 7"), open()).await;
    assert_eq!((process.exit, process.end, process.terminal), (None, 0, None));
    assert!(listed(&inside.guest, process.process).await.unwrap().pid.is_some());
    inside.guest.process_input(process.process, pieces(b"go\n"), false).await.unwrap();
    let expected: String = (1..=1000).map(|n| format!("{n}\n")).collect();
    for _ in 0..2 {
        let (text, code) = Reader::follow(&inside.guest, process.process, 0).await.rest().await;
        assert_eq!(text.replace("over\n", ""), expected);
        assert_eq!((text.len(), code), (expected.len() + 5, Some(7)));
    }
    let ended = listed(&inside.guest, process.process).await.unwrap();
    assert_eq!((ended.exit.unwrap().code, ended.pid, ended.end), (7, None, expected.len() as u64 + 5));
    let missing = start(&inside.guest, argv(&["no-such-program"]), Background::default()).await;
    assert_eq!(Reader::follow(&inside.guest, missing.process, 0).await.rest().await.1, Some(127));
    assert!(missing.process > process.process);
}

async fn positions(subject: Subject) {
    let inside = subject.start().await;
    let process = start(&inside.guest, sh("printf 'héllo'; read more; printf 'wörld'; read end"), open()).await.process;
    Reader::follow(&inside.guest, process, 0).await.until("héllo").await;
    let mut behind = Reader::follow(&inside.guest, process, 3).await;
    inside.guest.process_input(process, pieces(b"\n"), false).await.unwrap();
    behind.until("wörld").await;
    assert_eq!((behind.seen.as_slice(), behind.position), ("llowörld".as_bytes(), Some(12)));
    for from in [0, 1, 6, 7, 12] {
        let attach = Attach { from: AttachFrom::Position(from), follow: false, input: None };
        let mut reader = Reader::open(&inside.guest, process, attach).await;
        while reader.next().await {}
        let all = "héllowörld".as_bytes();
        assert_eq!((reader.seen.as_slice(), reader.exit), (&all[usize::try_from(from).unwrap()..], None));
    }
}

async fn survives(subject: Subject) {
    let inside = subject.start().await;
    let process = start(&inside.guest, sh("echo first; read more; echo second"), open()).await.process;
    let mut before = Reader::follow(&inside.guest, process, 0).await;
    before.until("first").await;
    let second = subject.second().await;
    let guest = second.guest(&inside.id).await.unwrap();
    guest.process_input(process, pieces(b"\n"), false).await.unwrap();
    assert_eq!(Reader::follow(&guest, process, 6).await.rest().await, ("second\n".to_owned(), Some(0)));
    assert_eq!(before.rest().await, ("first\nsecond\n".to_owned(), Some(0)));
    second.stop(&inside.id).await.unwrap();
}

async fn names(subject: Subject) {
    let inside = subject.start().await;
    let named = Background { name: Some("web.1".to_owned()), ..open() };
    let (one, two) = tokio::join!(
        inside.guest.start_process(sh("read end"), named.clone()),
        inside.guest.start_process(sh("read end"), named.clone()),
    );
    let [begun, refused] = if one.is_ok() { [one, two] } else { [two, one] };
    assert!(matches!(refused, Err(Error::Conflict(_))), "{refused:?}");
    let first = begun.unwrap();
    inside.guest.process_input(first.process, pieces(b""), true).await.unwrap();
    Reader::follow(&inside.guest, first.process, 0).await.rest().await;
    let second = start(&inside.guest, sh("true"), named).await;
    assert!(listed(&inside.guest, first.process).await.is_none(), "an ended process gives its name up");
    assert_eq!(second.name.as_deref(), Some("web.1"));
    for name in ["", "12", "a b", "../a", "é"] {
        let refused = Background { name: Some(name.to_owned()), ..Background::default() };
        let refused = inside.guest.start_process(sh("true"), refused).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{name:?}: {refused:?}");
    }
}

async fn input(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    let first = Background { input: Bytes::from_static(b"one "), ..open() };
    let process = start(guest, sh("cat; echo over"), first.clone()).await.process;
    guest.process_input(process, pieces(b"two "), false).await.unwrap();
    guest.process_input(process, pieces(b"three "), true).await.unwrap();
    assert_eq!(Reader::follow(guest, process, 0).await.rest().await.0, "one two three over\n");
    let late = guest.process_input(process, pieces(b"four"), false).await;
    assert!(matches!(late, Err(Error::Conflict(_))), "{late:?}");
    for background in [Background { stdin: BackgroundStdin::Ends, ..first }, Background::default()] {
        let expected = format!("{}over\n", std::str::from_utf8(&background.input).unwrap());
        let process = start(guest, sh("cat; echo over"), background).await.process;
        assert_eq!(Reader::follow(guest, process, 0).await.rest().await.0, expected);
    }
    // A reader's input, and its end.
    let process = start(guest, sh("cat; echo over"), open()).await.process;
    let sent = [ProcessInput::Bytes(Bytes::from_static(b"five ")), ProcessInput::End];
    let input = stream::iter(sent).chain(stream::pending()).boxed();
    let attach = Attach { from: AttachFrom::Position(0), follow: true, input: Some(input) };
    assert_eq!(Reader::open(guest, process, attach).await.rest().await.0, "five over\n");
}

async fn ends(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    let process = start(guest, argv(&["sleep", "100"]), Background::default()).await.process;
    guest.control_process(process, ProcessAction::Signal(Signal::named("TERM").unwrap())).await.unwrap();
    assert_eq!(Reader::follow(guest, process, 0).await.rest().await.1, Some(143));
    guest.control_process(process, ProcessAction::Signal(Signal::named("TERM").unwrap())).await.unwrap();
    let brief = Command { timeout: Duration::from_millis(300), ..sh("sleep 100") };
    let process = start(guest, brief, Background::default()).await.process;
    Reader::follow(guest, process, 0).await.rest().await;
    assert!(listed(guest, process).await.unwrap().exit.unwrap().timed_out);
    // A shell without loops can run this, too.
    let child = "sleep 0.1; echo x >> /workspace/alive; ".repeat(1000);
    let script = format!("({child}) & echo up; sleep 100");
    let process = start(guest, sh(&script), Background::default()).await.process;
    let mut reader = Reader::follow(guest, process, 0).await;
    reader.until("up").await;
    eventually("the child writes", || async { inside.exists("/workspace/alive").await }).await;
    soon("the removal", guest.remove_process(process)).await.unwrap();
    assert_eq!(reader.rest().await.1, Some(137));
    assert!(listed(guest, process).await.is_none());
    inside.guest.delete("/workspace/alive", false).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!inside.exists("/workspace/alive").await, "the child goes on");
}

async fn lingers(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    let lingering = Background { linger: Some(Duration::from_millis(500)), ..open() };
    let read = start(guest, sh("echo up; read end"), lingering.clone()).await.process;
    let mut reader = Reader::follow(guest, read, 0).await;
    reader.until("up").await;
    let left = start(guest, sh("read end"), lingering).await.process;
    eventually("the one without a reader is gone", || async { listed(guest, left).await.is_none() }).await;
    assert!(listed(guest, read).await.unwrap().exit.is_none());
    drop(reader);
    eventually("the other one is gone", || async { listed(guest, read).await.is_none() }).await;
}

async fn missed(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    let script = "read go; yes 0123456 | head -c 6000000";
    let process = start(guest, sh(script), open()).await.process;
    guest.process_input(process, pieces(b"\n"), true).await.unwrap();
    eventually("it has ended", || async { listed(guest, process).await.unwrap().exit.is_some() }).await;
    let mut late = Reader::follow(guest, process, 100).await;
    while late.next().await {}
    assert!(late.lost > 0 && late.seen.len() < 6_000_000);
    assert_eq!((100 + late.lost + late.seen.len() as u64, late.position), (6_000_000, Some(6_000_000)));
}

async fn waits(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    let script = "read go; yes 0123456 | head -c 6000000";
    let lossless = Background { is_lossless: true, ..open() };
    let process = start(guest, sh(script), lossless).await.process;
    guest.process_input(process, pieces(b"\n"), true).await.unwrap();
    let mut reader = Reader::follow(guest, process, 0).await;
    while reader.next().await {}
    assert_eq!((reader.lost, reader.seen.len(), reader.exit.unwrap().code), (0, 6_000_000, 0));
}

async fn refused(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    let attach = |from| Attach { from: AttachFrom::Position(from), follow: false, input: None };
    assert!(matches!(guest.attach_process(77, attach(0)).await.err(), Some(Error::NotFound(_))));
    assert!(matches!(guest.remove_process(77).await, Err(Error::NotFound(_))));
    assert!(matches!(guest.process_input(77, pieces(b"x"), false).await, Err(Error::NotFound(_))));
    let process = start(guest, sh("read end"), open()).await.process;
    assert!(matches!(guest.attach_process(process, attach(1)).await.err(), Some(Error::Invalid(_))));
    let resize = ProcessAction::Resize(TerminalSize { cols: 10, rows: 10 });
    assert!(matches!(guest.control_process(process, resize).await, Err(Error::Invalid(_))));
    let nowhere = Command { workdir: Some("/nowhere".to_owned()), ..sh("true") };
    assert!(matches!(guest.start_process(nowhere, Background::default()).await, Err(Error::Invalid(_))));
}

async fn terminal(subject: Subject) {
    let inside = subject.start().await;
    let guest = &inside.guest;
    let size = TerminalSize { cols: 60, rows: 12 };
    let command = Command { terminal: Some(size), ..argv(&["/bin/sh", "-i"]) };
    let process = start(guest, command, open()).await.process;
    let look = || async {
        let (keys, input) = mpsc::channel(4);
        let input = stream::unfold(input, |mut input: mpsc::Receiver<&'static [u8]>| async move {
            Some((ProcessInput::Bytes(Bytes::from_static(input.recv().await?)), input))
        });
        let attach = Attach { from: AttachFrom::Screen, follow: true, input: Some(input.boxed()) };
        (keys, Reader::open(guest, process, attach).await)
    };
    let (keys, mut first) = look().await;
    keys.send(b"echo $((40 + 2)); stty size\n").await.unwrap();
    first.until("12 60").await;
    let (other_keys, mut second) = look().await;
    second.next().await;
    assert!(String::from_utf8_lossy(&second.screen).contains("42"), "{:?}", second.screen);
    keys.send(b"echo by-$((1 + 1))\n").await.unwrap();
    first.until("by-2").await;
    second.until("by-2").await;
    // The input of the second stays open while its output is dropped.
    drop((first, second, keys));
    eventually("both are gone", || async { listed(guest, process).await.unwrap().readers == 0 }).await;
    let wide = TerminalSize { cols: 70, rows: 20 };
    guest.control_process(process, ProcessAction::Resize(wide)).await.unwrap();
    assert_eq!(listed(guest, process).await.unwrap().terminal, Some(wide));
    let (keys, mut third) = look().await;
    third.next().await;
    assert!(String::from_utf8_lossy(&third.screen).contains("by-2"), "{:?}", third.screen);
    keys.send(b"stty size; exit 3\n").await.unwrap();
    third.until("20 70").await;
    assert_eq!(third.rest().await.1, Some(3));
    drop(other_keys);
}
