//! Real programs on terminals: over the WebSocket of a process, and by the command line at a terminal of
//! this machine.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::api::{ExecMode, ExecRequest};
use client::{Attached, Client, ProcessEvent};
use parking_lot::Mutex;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

use crate::server::{NATIVE, PATIENCE, TestServer, free_port};

const COLS: u16 = 80;
const ROWS: u16 = 24;

/// Screen of a terminal, shared with the thread that reads it.
type Screen = Arc<Mutex<vt100::Parser>>;

fn screen() -> Screen {
    let (rows, cols) = (ROWS.try_into().unwrap(), COLS.try_into().unwrap());
    Arc::new(Mutex::new(vt100::Parser::new(rows, cols, 0)))
}

/// A person at a terminal.
pub enum Person {
    /// The command line, at a terminal of this machine.
    CommandLine(CommandLine),
    /// A page over a WebSocket.
    Page(Box<Page>),
}

pub struct CommandLine {
    child: Child,
    terminal: File,
    screen: Screen,
}

pub struct Page {
    attached: Attached,
    screen: Screen,
    exit: Option<i32>,
}

/// Opens a terminal and starts the command line on it.
fn command_line(server: &TestServer, args: &[&str]) -> CommandLine {
    command_line_with(server, args, |_| {})
}

/// Does the same with further settings of the process.
pub fn command_line_with(server: &TestServer, args: &[&str], set: impl FnOnce(&mut Command)) -> CommandLine {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let theirs = File::from(ioctl_tiocgptpeer(&ours, flags).unwrap());
    tcsetwinsize(&ours, Winsize { ws_row: ROWS, ws_col: COLS, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let mut command = Command::new("setsid");
    command
        .args(["--ctty", "--wait", env!("CARGO_BIN_EXE_tidebox"), "--url", &server.url])
        .args(args)
        .env("TERM", "xterm-256color")
        .stdin(theirs.try_clone().unwrap())
        .stdout(theirs.try_clone().unwrap())
        .stderr(theirs);
    set(&mut command);
    let child = command.spawn().unwrap();
    let (terminal, screen) = (File::from(ours), screen());
    let (mut reader, shown) = (terminal.try_clone().unwrap(), Arc::clone(&screen));
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        // The end of the last process that has the terminal is an error here.
        while let Ok(len @ 1..) = reader.read(&mut buffer) {
            shown.lock().process(&buffer[..len]);
        }
    });
    CommandLine { child, terminal, screen }
}

/// Returns the mode of a terminal.
pub fn mode(terminal: &File) -> String {
    format!("{:?}", tcgetattr(terminal).unwrap())
}

impl CommandLine {
    /// Sends SIGTERM.
    pub fn terminate(&self) {
        // `setsid` has become the command line, unless it had to fork.
        let own = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
        let pid = children.split_whitespace().next().map_or(i32::try_from(own).unwrap(), |pid| pid.parse().unwrap());
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Returns the terminal.
    pub fn terminal(&self) -> File {
        self.terminal.try_clone().unwrap()
    }
}

impl Person {
    /// Starts `argv` on a terminal, under this name.
    async fn start(server: &TestServer, id: &str, by_command_line: bool, name: &str, argv: &[&str]) -> Person {
        if by_command_line {
            let args = [&["exec", id, "-it", "--name", name, "--"], argv].concat();
            return Person::CommandLine(command_line(server, &args));
        }
        let client = Client::new(&server.url, None, None).unwrap();
        let request = ExecRequest {
            command: argv[0].to_owned(),
            args: argv[1..].iter().map(|arg| (*arg).to_owned()).collect(),
            mode: ExecMode::Argv,
            name: Some(name.to_owned()),
            tty: true,
            ..ExecRequest::default()
        };
        client.start_process(id, request).await.unwrap();
        Person::come_back(server, id, false, name).await
    }

    /// Attaches to the process of this name.
    async fn come_back(server: &TestServer, id: &str, by_command_line: bool, name: &str) -> Person {
        if by_command_line {
            return Person::CommandLine(command_line(server, &["attach", id, name]));
        }
        let client = Client::new(&server.url, None, None).unwrap();
        let attached = client.attach_process(id, name, None, Some((COLS, ROWS))).await.unwrap();
        Person::Page(Box::new(Page { attached, screen: screen(), exit: None }))
    }

    pub fn shown(&self) -> String {
        match self {
            Person::CommandLine(line) => line.screen.lock().screen().contents(),
            Person::Page(page) => page.screen.lock().screen().contents(),
        }
    }

    pub async fn keys(&mut self, keys: &str) {
        match self {
            Person::CommandLine(line) => line.terminal.write_all(keys.as_bytes()).unwrap(),
            Person::Page(page) => {
                page.attached.input.write(Bytes::copy_from_slice(keys.as_bytes())).await.unwrap();
            }
        }
    }

    async fn resize(&mut self, cols: u16, rows: u16) {
        let size = (rows.try_into().unwrap(), cols.try_into().unwrap());
        match self {
            Person::CommandLine(line) => {
                line.screen.lock().set_size(size.0, size.1);
                let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
                tcsetwinsize(&line.terminal, size).unwrap();
            }
            Person::Page(page) => {
                page.screen.lock().set_size(size.0, size.1);
                page.attached.input.resize(cols, rows).await.unwrap();
            }
        }
    }

    /// Waits for what comes next, or for a moment.
    async fn look(&mut self) {
        match self {
            Person::CommandLine(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            Person::Page(page) => {
                let next = tokio::time::timeout(Duration::from_millis(50), page.attached.events.next()).await;
                match next {
                    Err(_) => {}
                    Ok(Ok(Some(ProcessEvent::Screen(bytes) | ProcessEvent::Stdout(bytes)))) => {
                        page.screen.lock().process(&bytes);
                    }
                    Ok(Ok(Some(ProcessEvent::Exit(exit)))) => page.exit = Some(exit.code),
                    Ok(Ok(None)) => tokio::time::sleep(Duration::from_millis(10)).await,
                    Ok(other) => panic!("{other:?}"),
                }
            }
        }
    }

    /// Waits until the screen shows `text`.
    pub async fn until(&mut self, text: &str) {
        self.until_shown(text, |shown| shown.contains(text)).await;
    }

    pub async fn until_shown(&mut self, what: &str, is_there: impl Fn(&str) -> bool) {
        let begun = Instant::now();
        while !is_there(&self.shown()) {
            assert!(begun.elapsed() < PATIENCE, "no {what:?} on:\n{}", self.shown());
            self.look().await;
        }
    }

    /// Waits for the end and returns the exit code.
    pub async fn end(mut self) -> i32 {
        let begun = Instant::now();
        loop {
            match &mut self {
                Person::CommandLine(line) => {
                    if let Some(status) = line.child.try_wait().unwrap() {
                        return status.code().unwrap();
                    }
                }
                Person::Page(page) => {
                    if let Some(exit) = page.exit {
                        return exit;
                    }
                }
            }
            assert!(begun.elapsed() < PATIENCE, "no end of:\n{}", self.shown());
            self.look().await;
        }
    }

    /// Goes, without a word.
    fn go(self) {
        if let Person::CommandLine(mut line) = self {
            line.child.kill().unwrap();
            line.child.wait().unwrap();
        }
    }
}

async fn with_both(scenario: impl AsyncFn(&TestServer, &str, bool)) {
    let server = TestServer::start(NATIVE).await;
    for by_command_line in [false, true] {
        let id = server.spawn().await;
        scenario(&server, &id, by_command_line).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bash_has_its_keys_its_jobs_and_its_size() {
    with_both(async |server, id, by_command_line| {
        let argv = ["bash", "--norc", "--noprofile"];
        let mut person = Person::start(server, id, by_command_line, "bash", &argv).await;
        person.keys("PS1='> '; echo $((40+2)); stty size\n").await;
        person.until("42\n24 80\n>").await;
        // What is typed before the program runs would reach the shell.
        person.keys("clear; sh -c 'echo run''ning; exec sleep 1000'\n").await;
        person.until_shown("the program", |shown| shown.starts_with("running")).await;
        person.keys("\x03").await;
        person.until("^C\n>").await;
        person.keys("clear; sh -c 'echo walk''ing; exec sleep 999'\n").await;
        person.until_shown("the program", |shown| shown.starts_with("walking")).await;
        person.keys("\x1a").await;
        person.until("Stopped").await;
        // Bash may still take a job for stopped that is dead, and then neither waits for it nor exits.
        let gone = "while [ \"$(jobs -s)\" ]; do sleep 0.01; done";
        person.keys(&format!("clear; jobs; kill -9 %1; {gone}; echo no''thing\n")).await;
        person.until("nothing").await;
        person.resize(100, 30).await;
        // The command line hears of its new size by a signal, and may read the keys first.
        person.keys("until stty size | grep -q '^3''0 '; do sleep 0.01; done; stty size\n").await;
        person.until("30 100").await;
        person.keys("exit 7\n").await;
        assert_eq!(person.end().await, 7);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_is_talked_to() {
    with_both(async |server, id, by_command_line| {
        let mut person = Person::start(server, id, by_command_line, "python", &["python3", "-i"]).await;
        person.until(">>>").await;
        person.keys("x = 6\nprint('is', x * 7)\n").await;
        person.until("is 42").await;
        person.keys("import time\nwhile True: print('round', x + 1) or time.sleep(0.2)\n\n").await;
        // The kernel throws away what was typed before an interrupt and not read yet.
        person.until("round 7").await;
        person.keys("\x03").await;
        person.until("KeyboardInterrupt").await;
        person.keys("exit(5)\n").await;
        assert_eq!(person.end().await, 5);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vim_edits_a_file_on_a_screen_of_its_own() {
    if fixtures::found("vim", &[]).is_none() {
        return;
    }
    with_both(async |server, id, by_command_line| {
        let argv = ["vim", "-u", "NONE", "-N", "/workspace/notes"];
        let mut person = Person::start(server, id, by_command_line, "vim", &argv).await;
        person.until("~").await;
        person.keys("ifirst line\nsecond line\x1b").await;
        person.until("first line\nsecond line\n~").await;
        person.resize(60, 10).await;
        person.until_shown("ten rows", |shown| shown.lines().count() <= 10 && shown.starts_with("first line")).await;
        person.keys(":s/second/2nd/\n").await;
        person.until("2nd line").await;
        person.keys(":wq\n").await;
        assert_eq!(person.end().await, 0);
        assert_eq!(server.output(id, "cat /workspace/notes").await, "first line\n2nd line\n");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_draws_again_and_again() {
    with_both(async |server, id, by_command_line| {
        let mut person = Person::start(server, id, by_command_line, "top", &["top", "-d", "1"]).await;
        person.until("load average").await;
        person.until("PID").await;
        person.keys("q").await;
        assert_eq!(person.end().await, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tmux_runs_in_a_box() {
    if fixtures::found("tmux", &[]).is_none() {
        return;
    }
    with_both(async |server, id, by_command_line| {
        let line = "exec tmux -L box -f /dev/null new-session -s work 'PS1=\"> \" exec bash --norc' \
                    \\; set -g assume-paste-time 0";
        let mut person = Person::start(server, id, by_command_line, "tmux", &["bash", "-c", line]).await;
        person.until("[work]").await;
        person.keys("echo in-$((1+1))\n").await;
        person.until("in-2").await;
        person.keys("\x02%").await;
        person.until("│").await;
        person.keys("\x02d").await;
        assert_eq!(person.end().await, 0);
        assert!(server.output(id, "tmux -L box ls").await.starts_with("work: 1 windows"));
        server.output(id, "tmux -L box kill-server").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_outlives_its_client_and_the_server_and_shows_its_screen_again() {
    if fixtures::found("vim", &[]).is_none() {
        return;
    }
    let mut server = TestServer::start(&format!("{NATIVE} server.port={}", free_port())).await;
    for by_command_line in [false, true] {
        let id = server.spawn().await;
        let argv = ["vim", "-u", "NONE", "-N", "/workspace/notes"];
        let mut first = Person::start(&server, &id, by_command_line, "edit", &argv).await;
        first.until("~").await;
        first.keys("ikept text\x1b").await;
        first.until("kept text").await;
        first.go();
        server.kill();
        server.launch().await;
        let mut second = Person::come_back(&server, &id, by_command_line, "edit").await;
        second.until("kept text\n~").await;
        let mut third = Person::come_back(&server, &id, !by_command_line, "edit").await;
        third.until("kept text\n~").await;
        second.keys("A and more\x1b").await;
        second.until("kept text and more").await;
        third.until("kept text and more").await;
        third.go();
        second.keys(":wq\n").await;
        assert_eq!(second.end().await, 0);
        assert_eq!(server.output(&id, "cat /workspace/notes").await, "kept text and more\n");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_goes_on_where_its_line_broke() {
    let mut server = TestServer::start(&format!("{NATIVE} server.port={}", free_port())).await;
    let id = server.spawn().await;
    let mut person = Person::CommandLine(command_line(&server, &["shell", &id]));
    person.keys("PS1='> '; clear; echo be''fore\n").await;
    person.until("before").await;
    server.kill();
    server.launch().await;
    person.until("the connection broke").await;
    person.keys("clear; echo af''ter; exit 4\n").await;
    person.until("after").await;
    assert_eq!(person.end().await, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_program_leaves_what_the_terminal_shows() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    for args in [&["exec", "-it", &id, "echo", "one-line"][..], &["run", "-it", "host", "echo", "one-line"]] {
        let line = command_line(&server, args);
        line.screen.lock().process(b"$ what was there\r\n");
        let mut person = Person::CommandLine(line);
        person.until("$ what was there\none-line").await;
        assert_eq!(person.end().await, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn detach_keys_leave_and_the_terminal_is_restored() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let line = command_line(&server, &["shell", &id, "--name", "work"]);
    let terminal = line.terminal();
    let before = mode(&terminal);
    let mut person = Person::CommandLine(line);
    person.keys("PS1='> '; echo le''ft\n").await;
    person.until("left").await;
    assert_ne!(mode(&terminal), before, "it is raw meanwhile");
    person.keys("\x10\x11").await;
    person.until("tidebox attach").await;
    assert_eq!(person.end().await, 0);
    assert_eq!(mode(&terminal), before);
    let mut again = Person::CommandLine(command_line(&server, &["shell", &id, "--name", "work"]));
    again.until("left").await;
    let Person::CommandLine(line) = &again else { unreachable!() };
    // A supervisor ends the command line: the terminal is restored all the same, and the shell goes on.
    let terminal = line.terminal.try_clone().unwrap();
    line.terminate();
    assert_eq!(again.end().await, 143);
    assert_eq!(mode(&terminal), before);
    assert_eq!(server.get(&format!("/sandboxes/{id}/processes/work")).await.ok()["state"], "running");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_without_a_terminal_is_fed_as_it_comes() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidebox"))
        .args([
            "--url",
            &server.url,
            "exec",
            &id,
            "-i",
            "-c",
            "while read x; do echo got $x; done; echo end >&2; exit 6",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"one\n").unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut seen = [0; 8];
    stdout.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"got one\n", "before the end of stdin");
    stdin.write_all(b"two\n").unwrap();
    drop(stdin);
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "got two\n");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(6), &b"end\n"[..]));
    assert_eq!(server.get(&format!("/sandboxes/{id}/processes")).await.ok(), serde_json::json!([]));
    let run = |args: &[&str]| {
        let args = [&["--url", server.url.as_str()], args].concat();
        Command::new(env!("CARGO_BIN_EXE_tidebox")).args(args).stdin(Stdio::null()).output().unwrap()
    };
    let refused = run(&["exec", &id, "-it", "--", "true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("omit -t"), "{refused:?}");
    let started = run(&["exec", &id, "-d", "--name", "job", "-c", "echo up; exec sleep 1000"]);
    assert_eq!(std::str::from_utf8(&started.stdout).unwrap().trim().parse::<u64>().ok(), Some(2), "{started:?}");
    let listed = String::from_utf8(run(&["ps", &id]).stdout).unwrap();
    assert!(listed.contains("job") && listed.contains("running"), "{listed}");
    assert_eq!(run(&["kill", &id, "job"]).status.code(), Some(0));
    let followed = run(&["logs", &id, "-p", "job", "-f"]);
    assert_eq!((followed.status.code(), followed.stdout.as_slice()), (Some(0), &b"up\n"[..]));
    assert_eq!(run(&["attach", &id, "job"]).status.code(), Some(143));
    assert_eq!(run(&["kill", &id, "job", "--remove"]).status.code(), Some(0));
    assert_eq!(run(&["attach", &id, "job"]).status.code(), Some(125));
}
