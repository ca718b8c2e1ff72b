//! Commands that are controlled while they run, and commands with a terminal.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use providers::{Command, Control, Error, ExitStatus, OutputEvent, OutputStream, Signal, TerminalSize};
use tokio::sync::mpsc;

use super::case::{Case, case};
use super::subject::{Inside, Subject, argv, pieces, sh, soon};

const SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("a signal ends a command that does not handle it", signal_ends, Control),
        case!(
            "a signal reaches the command and its children, which may handle it",
            signal_is_handled,
            Control,
            Processes
        ),
        case!("a signal does not wait behind a stdin that is not read", signal_passes_stdin, Control, Processes, Stdin),
        case!("what is done to a command after its end is without effect", control_after_end, Control),
        case!("without a terminal there is nothing to resize", resize_without_terminal, Control),
        case!("a command with a terminal has it on all streams and controls it", is_terminal, Terminals),
        case!("a terminal has the size that it is given, and its command hears of another", size, Terminals),
        case!("what is typed is echoed and read in lines, and the end of stdin ends it", typing, Terminals),
        case!("Ctrl-C that is typed interrupts what is in the foreground", interrupt_key, Terminals),
        case!("a signal reaches what is in the foreground of the terminal", signal_in_terminal, Terminals),
        case!("a terminal gives all that is written, at the speed of the reader", terminal_output, Terminals),
        case!("at the deadline a command with a terminal is killed", terminal_timeout, Terminals),
        case!("dropping the output kills a command with a terminal", terminal_hang_up, Terminals),
        case!("children that hold the terminal do not hold up their command", terminal_background, Terminals),
        case!("a command with a terminal runs as the user that is named", terminal_user, Terminals, Users),
    ]
}

/// A running command under test.
struct Session {
    output: OutputStream,
    control: Arc<dyn Control>,
    stdin: mpsc::Sender<Bytes>,
    /// All output so far.
    seen: String,
}

impl Session {
    async fn begin(inside: &Inside, command: Command) -> Session {
        let (stdin, receiver) = mpsc::channel(1);
        let content = stream::unfold(receiver, |mut receiver: mpsc::Receiver<Bytes>| async move {
            Some((Ok(receiver.recv().await?), receiver))
        });
        let what = format!("{command:?}");
        let command = Command { stdin: Some(content.boxed()), ..command };
        let begun = inside.guest.exec_interactive(command).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        Session { output: begun.output, control: begun.control, stdin, seen: String::new() }
    }

    async fn next(&mut self) -> Option<ExitStatus> {
        match soon("output", self.output.next()).await.unwrap().unwrap() {
            OutputEvent::Stdout(bytes) | OutputEvent::Stderr(bytes) => {
                self.seen.push_str(std::str::from_utf8(&bytes).unwrap());
                None
            }
            OutputEvent::Exit(exit) => Some(exit),
        }
    }

    /// Reads until the output contains `text`.
    async fn until(&mut self, text: &str) {
        while !self.seen.contains(text) {
            let ended = self.next().await;
            assert!(ended.is_none(), "no {text:?} in {:?}", self.seen);
        }
    }

    /// Reads to the end and returns the exit code.
    async fn end(&mut self) -> i32 {
        loop {
            if let Some(exit) = self.next().await {
                return exit.code;
            }
        }
    }

    async fn signal(&mut self, name: &str) {
        soon("a signal", self.control.signal(Signal::named(name).unwrap())).await.unwrap();
    }

    async fn key(&mut self, bytes: &'static [u8]) {
        self.stdin.send(Bytes::from_static(bytes)).await.unwrap();
    }
}

/// Gives the command a terminal.
fn on_terminal(command: Command) -> Command {
    Command { terminal: Some(SIZE), ..command }
}

async fn signal_ends(subject: Subject) {
    let inside = subject.start().await;
    for (name, code) in [("TERM", 143), ("SIGKILL", 137), ("INT", 130)] {
        // Without a shell: one handles an interrupt, and some lose it while they start a child. A
        // command whose session has begun is past `execve`.
        let mut session = Session::begin(&inside, argv(&["sleep", "100"])).await;
        session.signal("CONT").await;
        session.signal(name).await;
        assert_eq!(session.end().await, code, "{name}");
    }
}

async fn signal_is_handled(subject: Subject) {
    let inside = subject.start().await;
    // It ends after its child, of whose output nothing is waited for later.
    let script = "trap 'echo one; wait; exit 7' USR1; \
                  (trap 'echo two; exit' USR1; echo in the child; while :; do sleep 0.05; done) & \
                  echo here; while :; do sleep 0.05; done";
    let mut session = Session::begin(&inside, sh(script)).await;
    session.until("here").await;
    session.until("in the child").await;
    session.signal("USR1").await;
    assert_eq!(session.end().await, 7, "{}", session.seen);
    assert!(session.seen.contains("one") && session.seen.contains("two"), "{}", session.seen);
}

async fn signal_passes_stdin(subject: Subject) {
    let inside = subject.start().await;
    let stdin = Some(stream::repeat_with(|| Ok(Bytes::from_static(&[b'x'; 10_000]))).boxed());
    let command = Command { stdin, ..sh("echo ready; sleep 100") };
    let mut begun = inside.guest.exec_interactive(command).await.unwrap();
    assert_eq!(begun.output.next().await.unwrap().unwrap(), OutputEvent::Stdout("ready\n".into()));
    // Reads on, so that stdin is sent until its buffers are full.
    let _ = tokio::time::timeout(Duration::from_millis(200), begun.output.next()).await;
    begun.control.signal(Signal::named("TERM").unwrap()).await.unwrap();
    let OutputEvent::Exit(exit) = soon("the end", begun.output.next()).await.unwrap().unwrap() else { panic!() };
    assert_eq!(exit.code, 143);
}

async fn control_after_end(subject: Subject) {
    let inside = subject.start().await;
    let mut session = Session::begin(&inside, sh("exit 3")).await;
    assert_eq!(session.end().await, 3);
    session.signal("KILL").await;
    session.signal("TERM").await;
    assert_eq!(inside.sh("echo alive").await.text(), "alive\n");
}

async fn resize_without_terminal(subject: Subject) {
    let inside = subject.start().await;
    let mut session = Session::begin(&inside, sh("echo ready; sleep 100")).await;
    session.until("ready").await;
    let resized = session.control.resize(SIZE).await;
    assert!(matches!(resized, Err(Error::Invalid(_))), "{resized:?}");
    session.signal("TERM").await;
    assert_eq!(session.end().await, 143);
}

async fn is_terminal(subject: Subject) {
    let inside = subject.start().await;
    let script = "test -t 0 && test -t 1 && test -t 2 && echo yes > /dev/tty && echo $TERM; echo no >&2";
    let ran = soon("a terminal", inside.run(on_terminal(sh(script)))).await;
    assert_eq!((ran.code(), ran.text()), (0, "yes\r\nxterm-256color\r\nno\r\n"));
    assert!(ran.stderr.is_empty());
    let env = [("TERM".to_owned(), "dumb".to_owned())].into();
    let ran = inside.run(Command { env, ..on_terminal(argv(&["printenv", "TERM"])) }).await;
    assert_eq!(ran.text(), "dumb\r\n");
    // Each command has a terminal of its own, and none is left.
    let name = "readlink /proc/self/fd/0";
    let ran = inside.run(on_terminal(sh(name))).await;
    assert!(ran.text().starts_with("/dev/pts/"), "{ran:?}");
    assert_eq!(inside.sh("test -t 0").await.code(), 1);
    assert_eq!(inside.run(on_terminal(argv(&["no-such-program"]))).await.code(), 127);
}

async fn size(subject: Subject) {
    let inside = subject.start().await;
    let script = "trap 'stty size' WINCH; stty size; echo ready; while :; do sleep 0.05; done";
    let mut session = Session::begin(&inside, on_terminal(sh(script))).await;
    session.until("ready").await;
    assert!(session.seen.starts_with("24 80\r\n"), "{}", session.seen);
    // The `stty` of busybox accepts no other sizes.
    for (cols, rows) in [(132, 50), (2, 2), (29_999, 29_999)] {
        session.control.resize(TerminalSize { cols, rows }).await.unwrap();
        session.until(&format!("\r\n{rows} {cols}\r\n")).await;
    }
    session.signal("KILL").await;
    session.end().await;
}

async fn typing(subject: Subject) {
    let inside = subject.start().await;
    for (typed, shown) in [("hello\n", "hello\r\nhello\r\n"), ("no newline", "no newlineno newline"), ("", "")] {
        let command = Command { stdin: Some(pieces(typed.as_bytes())), ..on_terminal(argv(&["cat"])) };
        let ran = soon("what is typed", inside.run(command)).await;
        assert_eq!((ran.code(), ran.text()), (0, shown), "{typed:?}");
    }
    let ran = soon("nothing typed", inside.run(on_terminal(argv(&["cat"])))).await;
    assert_eq!((ran.code(), ran.text()), (0, ""));
    // Whole characters are deleted, not single bytes.
    let mut session = Session::begin(&inside, on_terminal(sh("read line; echo \"<$line>\""))).await;
    session.key("aé\u{7f}b\n".as_bytes()).await;
    assert_eq!(session.end().await, 0);
    assert!(session.seen.contains("<ab>"), "{:?}", session.seen);
}

async fn interrupt_key(subject: Subject) {
    let inside = subject.start().await;
    let script = "trap 'echo caught' INT; echo ready; sleep 100; echo after; exit 5";
    let mut session = Session::begin(&inside, on_terminal(sh(script))).await;
    session.until("ready").await;
    // The shell may not have started `sleep` yet; then a later interrupt ends it.
    while !session.seen.contains("after") {
        session.key(b"\x03").await;
        let _ = tokio::time::timeout(Duration::from_millis(200), session.until("after")).await;
    }
    assert_eq!(session.end().await, 5);
    assert!(session.seen.contains("caught"), "{}", session.seen);
    let mut session = Session::begin(&inside, on_terminal(argv(&["cat"]))).await;
    session.key(b"x\n").await;
    session.until("x\r\nx\r\n").await;
    session.key(b"\x03").await;
    assert_eq!(session.end().await, 130);
}

async fn signal_in_terminal(subject: Subject) {
    let inside = subject.start().await;
    // With job control, the foreground process has a group of its own.
    let script = "set -m; echo ready; sh -c 'echo inner; sleep 100'; echo \"ended $?\"; exit 6";
    let mut session = Session::begin(&inside, on_terminal(sh(script))).await;
    session.until("inner").await;
    session.signal("TERM").await;
    assert_eq!(session.end().await, 6, "{}", session.seen);
    assert!(session.seen.contains("ended 143"), "{}", session.seen);
}

async fn terminal_output(subject: Subject) {
    let inside = subject.start().await;
    let expected: String = (1..=200_000).map(|number| format!("{number}\r\n")).collect();
    let ran = soon("much output", inside.run(on_terminal(argv(&["seq", "1", "200000"])))).await;
    assert!(ran.text() == expected, "{} bytes instead of {}", ran.stdout.len(), expected.len());
    // A reader that has stopped stops the writer, and a signal still reaches it.
    let mut session = Session::begin(&inside, on_terminal(sh("echo ready; yes > /dev/tty; echo never"))).await;
    session.until("ready").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    session.signal("KILL").await;
    assert_eq!(session.end().await, 137);
    let many = 32 * 1024 * 1024;
    assert!(session.seen.len() < many, "{} bytes were written to a reader that had stopped", session.seen.len());
}

async fn terminal_timeout(subject: Subject) {
    let inside = subject.start().await;
    let script = "trap '' INT TERM HUP; echo before; while :; do sleep 1; done";
    let command = Command { timeout: Duration::from_secs(1), ..on_terminal(sh(script)) };
    let ran = soon("a command past its deadline", inside.run(command)).await;
    assert_eq!((ran.code(), ran.exit.timed_out, ran.text()), (124, true, "before\r\n"));
}

async fn terminal_hang_up(subject: Subject) {
    let inside = subject.start().await;
    let script = "trap '' HUP; echo begun; sleep 1; echo x > /tmp/late";
    let mut session = Session::begin(&inside, on_terminal(sh(script))).await;
    session.until("begun").await;
    drop(session);
    assert_eq!(inside.sh("sleep 1.5").await.code(), 0);
    assert!(!inside.exists("/tmp/late").await, "the command went on");
}

async fn terminal_background(subject: Subject) {
    let inside = subject.start().await;
    let script = "(trap '' HUP; sleep 0.7; echo x > /tmp/after; sleep 100) & sleep 0.1; echo ok; exit 4";
    let ran = soon("the main process", inside.run(on_terminal(sh(script)))).await;
    assert_eq!((ran.code(), ran.text()), (4, "ok\r\n"));
    super::subject::eventually("the child goes on", || inside.exists("/tmp/after")).await;
}

async fn terminal_user(subject: Subject) {
    let inside = subject.start().await;
    let script = "id -u; echo written > $(readlink /proc/self/fd/0)";
    let ran = inside.run(Command { user: Some("1000".to_owned()), ..on_terminal(sh(script)) }).await;
    assert_eq!((ran.code(), ran.text()), (0, "1000\r\nwritten\r\n"));
}
