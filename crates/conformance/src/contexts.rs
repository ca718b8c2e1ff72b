//! Kernels of contexts, which the server runs as background processes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use kernels::{Decoder, Language, Marker, Message, Piece, Request};
use providers::{
    Attach, AttachFrom, Background, BackgroundStdin, Guest, ProcessAction, ProcessEvent, ProcessEvents, Signal,
};

use super::case::{Case, case};
use super::subject::{Subject, argv, pieces, soon};

const MARKER: [u8; 16] = [7; 16];

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("code in a kernel finds what earlier code made", keeps_state, Processes, Background, Notes, Bash),
        case!(
            "a signal interrupts code, and its kernel keeps its state",
            interrupts,
            Processes,
            Background,
            Notes,
            Bash
        ),
        case!(
            "a kernel accepts code of a later server",
            survives,
            Processes,
            Background,
            Notes,
            Bash,
            Reopen,
            KeptOutput
        ),
    ]
}

/// Kernel of Bash in a box, and a reader of its output.
struct Kernel {
    guest: Arc<dyn Guest>,
    process: u64,
    events: ProcessEvents,
    /// Decoders of stdout and of stderr.
    decoders: [Decoder; 2],
    position: u64,
    runs: u64,
}

impl Kernel {
    /// Starts a kernel, and waits until it accepts requests.
    async fn start(guest: &Arc<dyn Guest>) -> Self {
        let background = Background {
            is_paced: true,
            note: Some("a context".to_owned()),
            input: Bytes::from(kernels::start(Language::Bash, &Marker::new(MARKER))),
            stdin: BackgroundStdin::Open,
            ..Background::default()
        };
        let words = Language::Bash.command();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let started = soon("the start", guest.start_process(argv(&words), background)).await.unwrap();
        let mut kernel = Self::of(guest, started.process, 0).await;
        while !matches!(kernel.next().await, (_, Piece::Message(Message::Ready { .. }))) {}
        kernel
    }

    /// Follows the output of a kernel from a position on.
    async fn of(guest: &Arc<dyn Guest>, process: u64, position: u64) -> Self {
        let attach = Attach { from: AttachFrom::Position(position), follow: true, input: None };
        let events = soon("the output", guest.attach_process(process, attach)).await.unwrap();
        let decoders = [(); 2].map(|()| Decoder::new(&Marker::new(MARKER)));
        Self { guest: Arc::clone(guest), process, events, decoders, position, runs: 0 }
    }

    /// Returns the next piece of its output, and whether it came on stderr.
    async fn next(&mut self) -> (bool, Piece) {
        loop {
            for (index, decoder) in self.decoders.iter_mut().enumerate() {
                if let Some(piece) = decoder.next_piece().unwrap() {
                    return (index == 1, piece);
                }
            }
            let event = soon("output of the kernel", self.events.next()).await.expect("a kernel runs on").unwrap();
            let (index, bytes) = match event {
                ProcessEvent::Stdout(bytes) => (0, bytes),
                ProcessEvent::Stderr(bytes) => (1, bytes),
                ProcessEvent::Exit(exit) => panic!("the kernel ended: {exit:?}"),
                ProcessEvent::Position(_) | ProcessEvent::Screen(_) => continue,
            };
            self.position += bytes.len() as u64;
            self.decoders[index].push(&bytes);
        }
    }

    /// Sends code.
    async fn send(&mut self, code: &str) {
        self.runs += 1;
        let request = Request::Run { run: self.runs, code, env: &BTreeMap::new() };
        self.guest.process_input(self.process, pieces(&request.to_bytes()), false).await.unwrap();
    }

    /// Reads to the end of a run on both streams. Returns what the code wrote, and the names of its errors.
    async fn finish(&mut self) -> (String, Vec<String>) {
        let (mut written, mut errors, mut ended) = (Vec::new(), Vec::new(), [false; 2]);
        while ended != [true; 2] {
            let (is_stderr, piece) = self.next().await;
            match piece {
                Piece::Output(bytes) => written.extend_from_slice(&bytes),
                Piece::Message(Message::Error { name, .. }) => errors.push(name),
                Piece::Message(Message::End { run }) if run == self.runs => ended[usize::from(is_stderr)] = true,
                Piece::Message(_) | Piece::Dropped => {}
            }
        }
        (String::from_utf8(written).unwrap(), errors)
    }

    async fn run(&mut self, code: &str) -> (String, Vec<String>) {
        self.send(code).await;
        self.finish().await
    }

    /// Interrupts code until it ends.
    async fn interrupt(&mut self) -> (String, Vec<String>) {
        let interrupt = Signal::named("INT").unwrap();
        let (guest, process) = (Arc::clone(&self.guest), self.process);
        let again = async {
            loop {
                guest.control_process(process, ProcessAction::SignalCommand(interrupt)).await.unwrap();
                // As the server does: a program may lose a signal that comes while it starts.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            outcome = self.finish() => outcome,
            () = again => unreachable!("it repeats until the code ends"),
        }
    }
}

async fn keeps_state(subject: Subject) {
    let inside = subject.start().await;
    let mut kernel = Kernel::start(&inside.guest).await;
    assert_eq!(kernel.run("n=20; cd /tmp").await, (String::new(), vec![]));
    assert_eq!(kernel.run("echo $((2 * n + 1)) $PWD; echo ö >&2").await.0.len(), "41 /tmp\nö\n".len());
    let (_, errors) = kernel.run("(exit 3)").await;
    assert_eq!(errors, ["ExitStatus"]);
    let (text, errors) = kernel.run("seq 1 100000").await;
    assert_eq!((text.lines().count(), text.lines().last(), errors), (100_000, Some("100000"), vec![]));
}

async fn interrupts(subject: Subject) {
    let inside = subject.start().await;
    let mut kernel = Kernel::start(&inside.guest).await;
    kernel.run("n=20").await;
    for code in ["echo ready; while :; do :; done", "echo ready; sleep 1000"] {
        kernel.send(code).await;
        while !matches!(kernel.next().await, (false, Piece::Output(_))) {}
        let (_, errors) = kernel.interrupt().await;
        assert_eq!(errors.len(), 1, "{code}: {errors:?}");
        assert_eq!(kernel.run("echo $n").await.0, "20\n", "{code}");
    }
}

async fn survives(subject: Subject) {
    let inside = subject.start().await;
    let mut before = Kernel::start(&inside.guest).await;
    before.run("n=20").await;
    let second = subject.second().await;
    let guest = second.guest(&inside.id).await.unwrap();
    let mut after = Kernel::of(&guest, before.process, before.position).await;
    after.runs = before.runs;
    assert_eq!(after.run("echo $n").await.0, "20\n");
    let found = guest.processes().await.unwrap().into_iter().find(|found| found.process == before.process);
    assert_eq!(found.unwrap().note.as_deref(), Some("a context"));
    second.stop(&inside.id).await.unwrap();
}
