//! A kernel on this machine, without a sandbox around it.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use kernels::{Decoder, Language, Marker, Message, Piece, Request};
use rustix::process::{Pid, Signal};
use serde_json::{Map, Value};

/// Longest wait for the next bytes of a kernel: only a kernel that hangs takes that long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Stream of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Stdout,
    Stderr,
}

/// Outcome of a request.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Number of runs of the kernel, with this one.
    pub count: u64,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Results, each with whether it is the value of the last expression.
    pub results: Vec<(bool, Map<String, Value>)>,
    /// Name, value and traceback.
    pub error: Option<(String, String, String)>,
    /// Start and matches.
    pub completions: Option<(usize, Vec<String>)>,
    /// True if the kernel ended before it had handled the request.
    pub has_died: bool,
}

impl Outcome {
    /// Returns stdout as text.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns stderr as text.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Returns the value of the last expression as text.
    pub fn value(&self) -> Option<&str> {
        let main = self.results.iter().find(|(is_main, _)| *is_main)?;
        main.1.get("text/plain")?.as_str()
    }

    /// Returns a representation of the first result that has it.
    pub fn shown(&self, mime: &str) -> Option<&Value> {
        self.results.iter().find_map(|(_, data)| data.get(mime))
    }
}

/// A running kernel. Dropping it kills all of its process group.
#[derive(Debug)]
pub struct Kernel {
    child: Child,
    stdin: ChildStdin,
    chunks: Receiver<(Stream, Vec<u8>)>,
    decoders: [Decoder; 2],
    /// Pieces that have been decoded and not looked at.
    pieces: VecDeque<(Stream, Piece)>,
    runs: u64,
    /// Interpreter with its version.
    pub version: String,
}

impl Kernel {
    /// Starts a kernel in a folder, with more variables; `None` where the machine has no interpreter.
    pub fn start(language: Language, folder: &Path, env: &[(&str, &str)]) -> Option<Self> {
        use std::os::unix::process::CommandExt as _;

        let marker = Marker::new([0x5a; 16]);
        let argv = language.command();
        // An agent resets signals too; a shell that starts a job in the background lets it ignore this one.
        let mut child = Command::new("env")
            .arg("--default-signal=INT")
            .args(&argv)
            .envs(env.iter().copied())
            .current_dir(folder)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts a shell");
        let mut stdin = child.stdin.take().expect("a pipe");
        let (sender, chunks) = sync_channel(4);
        read(Stream::Stdout, child.stdout.take().expect("a pipe"), sender.clone());
        read(Stream::Stderr, child.stderr.take().expect("a pipe"), sender);
        // A kernel that cannot start does not read it.
        let _ = stdin.write_all(&kernels::start(language, &marker)).and_then(|()| stdin.flush());
        let decoders = [Decoder::new(&marker), Decoder::new(&marker)];
        let mut kernel =
            Self { child, stdin, chunks, decoders, pieces: VecDeque::new(), runs: 0, version: String::new() };
        let mut output = Vec::new();
        loop {
            match kernel.piece(Instant::now() + PATIENCE) {
                Some((_, Piece::Message(Message::Ready { version }))) => {
                    kernel.version = version;
                    return Some(kernel);
                }
                Some((_, Piece::Output(bytes))) => output.extend_from_slice(&bytes),
                Some((_, piece)) => panic!("{piece:?} before the kernel was ready"),
                None => {
                    let code = kernel.child.wait().expect("ends").code();
                    let output = String::from_utf8_lossy(&output);
                    assert!(matches!(code, Some(126 | 127)), "{language} ended with {code:?}: {output}");
                    return None;
                }
            }
        }
    }

    /// Runs code to its end.
    pub fn run(&mut self, code: &str) -> Outcome {
        self.run_with(code, &[])
    }

    /// Runs code with variables of the environment to its end.
    pub fn run_with(&mut self, code: &str, env: &[(&str, &str)]) -> Outcome {
        self.begin(code, env);
        self.finish()
    }

    /// Sends code to run; [`Kernel::finish`] waits for its end.
    pub fn begin(&mut self, code: &str, env: &[(&str, &str)]) {
        self.runs += 1;
        let env: BTreeMap<_, _> = env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        // A kernel that has died does not read it.
        let _ = self.stdin.write_all(&Request::Run { run: self.runs, code, env: &env }.to_bytes());
    }

    /// Asks for the completions of code before its character `cursor`.
    pub fn complete(&mut self, code: &str, cursor: usize) -> Outcome {
        self.runs += 1;
        let request = Request::Complete { run: self.runs, code, cursor };
        self.stdin.write_all(&request.to_bytes()).expect("the kernel reads");
        self.finish()
    }

    /// Waits until the code has written a text to stdout, which [`Kernel::finish`] returns as well.
    pub fn wait_for(&mut self, text: &str) {
        let (mut seen, mut pieces) = (Vec::new(), VecDeque::new());
        while !String::from_utf8_lossy(&seen).contains(text) {
            let piece = self.piece(Instant::now() + PATIENCE).expect("the kernel lives");
            if let (Stream::Stdout, Piece::Output(bytes)) = &piece {
                seen.extend_from_slice(bytes);
            }
            pieces.push_back(piece);
        }
        pieces.append(&mut self.pieces);
        self.pieces = pieces;
    }

    /// Waits for the end of the last request.
    pub fn finish(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        // Output before the beginning belongs to no run.
        let (mut has_begun, mut has_ended) = ([false; 2], [false; 2]);
        while has_ended != [true; 2] {
            let Some((stream, piece)) = self.piece(Instant::now() + PATIENCE) else {
                outcome.has_died = true;
                return outcome;
            };
            match piece {
                Piece::Output(bytes) => match stream {
                    Stream::Stdout => outcome.stdout.extend_from_slice(&bytes),
                    Stream::Stderr => outcome.stderr.extend_from_slice(&bytes),
                },
                Piece::Message(Message::Begin { run, count }) if run == self.runs => {
                    outcome.count = count;
                    has_begun[stream as usize] = true;
                    match stream {
                        Stream::Stdout => outcome.stdout.clear(),
                        Stream::Stderr => outcome.stderr.clear(),
                    }
                }
                Piece::Message(Message::End { run }) if run == self.runs => has_ended[stream as usize] = true,
                Piece::Message(Message::Result { run, main, data }) if run == self.runs => {
                    outcome.results.push((main, data));
                }
                Piece::Message(Message::Error { run, name, value, traceback }) if run == self.runs => {
                    assert!(outcome.error.is_none(), "a second error");
                    outcome.error = Some((name, value, traceback));
                }
                Piece::Message(Message::Completions { run, start, matches }) if run == self.runs => {
                    outcome.completions = Some((start, matches));
                }
                Piece::Dropped => panic!("nothing was dropped"),
                Piece::Message(message) => panic!("unexpected in run {}: {message:?}", self.runs),
            }
        }
        assert_eq!(has_begun, [true; 2], "each stream says where the run begins");
        outcome
    }

    /// Interrupts the code every second until its end, as the server does, and waits for that.
    pub fn interrupt_to_end(&mut self) -> Outcome {
        let pid = self.pid();
        let (ended, wait) = sync_channel::<()>(0);
        let interrupts = std::thread::spawn(move || {
            loop {
                // It may have ended.
                let _ = rustix::process::kill_process_group(pid, Signal::INT);
                if wait.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        let outcome = self.finish();
        drop(ended);
        interrupts.join().expect("it ends");
        outcome
    }

    /// Interrupts the code once.
    pub fn interrupt(&self) {
        rustix::process::kill_process_group(self.pid(), Signal::INT).expect("the group is there");
    }

    /// Waits until the kernel has ended.
    pub fn wait(&mut self) {
        self.child.wait().expect("a child of this process");
    }

    /// Returns the process id of the kernel.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns the next piece; `None` if the kernel has ended.
    fn piece(&mut self, until: Instant) -> Option<(Stream, Piece)> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Some(piece);
            }
            match self.chunks.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((stream, bytes)) => {
                    let decoder = &mut self.decoders[stream as usize];
                    decoder.push(&bytes);
                    while let Some(piece) = decoder.next_piece().expect("a driver writes no nonsense") {
                        self.pieces.push_back((stream, piece));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => panic!("the kernel wrote nothing for {PATIENCE:?}"),
            }
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // It may have ended.
        let _ = rustix::process::kill_process_group(self.pid(), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Reads a stream to its end, in a thread.
fn read(stream: Stream, mut pipe: impl std::io::Read + Send + 'static, chunks: SyncSender<(Stream, Vec<u8>)>) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65536];
        while let Ok(count) = pipe.read(&mut buffer) {
            if count == 0 || chunks.send((stream, buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    });
}
