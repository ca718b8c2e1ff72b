//! Execution of scripts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::parse::{Body, Item, Joint, Part, Pipeline, Redirect, Script, Stage, Target, Word, parse};
use super::state::{Flow, PID, Run, Shell, complain};
use super::streams::{Halt, Io, Outlet, Sink, Source};
use super::{COMMANDS, builtins};
use crate::agent::check_command;
use crate::mock::boxed::Boxed;
use crate::{Command, Control, Error, ExitStatus, Interactive, OutputEvent, Result, Signal, TerminalSize};

/// The most pieces of output that wait for a reader. A command waits for room.
const PIECES_MAX: usize = 16;
/// The deepest nesting of shells in shells.
const DEPTH_MAX: usize = 16;
/// The most commands in the background of one request.
const BACKGROUND_MAX: usize = 256;
/// The longest line that `read` takes, in bytes.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// The longest wait for output of background processes after the main process has ended, the same
/// as in every box.
const DRAIN: Duration = Duration::from_millis(250);

/// A command that was started.
pub(in crate::mock) struct Running {
    pub(in crate::mock) interactive: Interactive,
    pub(in crate::mock) tasks: Tasks,
}

/// Tasks that carry out a command and its children.
pub(in crate::mock) struct Tasks {
    main: JoinHandle<()>,
    background: TaskTracker,
}

impl Tasks {
    /// Waits until all have ended, which those of a killed command do at once.
    pub(in crate::mock) async fn ended(self) {
        // It panics only if a command did.
        let _ = self.main.await;
        self.background.close();
        self.background.wait().await;
    }
}

/// Starts a command in a box.
pub(in crate::mock) fn start(inside: &Arc<Boxed>, command: Command) -> Result<Running> {
    check_command(&command.argv, &command.env)?;
    if command.terminal.is_some() {
        return Err(Error::NotSupported("the provider `mock` has no terminals; leave out `tty`".to_owned()));
    }
    let cwd = command.workdir.unwrap_or_else(|| "/workspace".to_owned());
    if !cwd.starts_with('/') || !inside.fs().is_dir(&cwd) {
        return Err(Error::Invalid(format!("the working directory {cwd} does not exist")));
    }
    let (events, receiver) = mpsc::channel(PIECES_MAX);
    let kill = inside.dead().child_token();
    let outlet = Outlet { events: events.clone(), ended: CancellationToken::new(), inside: Arc::clone(inside) };
    let run = Arc::new(Run {
        inside: Arc::clone(inside),
        outlet: Arc::new(outlet),
        kill: kill.clone(),
        background: TaskTracker::new(),
    });
    let shell = Shell { run, env: environment(command.env), cwd, args: Vec::new(), status: 0, depth: 0 };
    let (stdin, timeout) = (Source::stream(command.stdin), command.timeout);
    let argv = command.argv;
    let (end_by, ended_by) = oneshot::channel();
    let background = shell.run.background.clone();
    let main = inside.tasks().spawn(supervise(shell, argv, stdin, timeout, ended_by));
    let reader = Reader { receiver, dead: inside.dead().clone(), guard: kill.drop_guard() };
    let output = stream::unfold(Some(reader), |reader| async move { reader?.next().await }).boxed();
    let interactive = Interactive { output, control: Arc::new(Signals(Mutex::new(Some(end_by)))) };
    Ok(Running { interactive, tasks: Tasks { main, background } })
}

/// Delivery of signals to a command. Programs of a mock box handle no signal, so each has its
/// default effect.
#[derive(Debug)]
struct Signals(Mutex<Option<oneshot::Sender<Signal>>>);

#[async_trait]
impl Control for Signals {
    async fn resize(&self, _: TerminalSize) -> Result<()> {
        Err(Error::Invalid("the command has no terminal to resize".to_owned()))
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        match signal.name() {
            "CHLD" | "CONT" | "URG" | "WINCH" => Ok(()),
            "STOP" | "TSTP" | "TTIN" | "TTOU" => Err(Error::NotSupported(
                "the provider `mock` cannot stop a command; send a `signal` that ends it".to_owned(),
            )),
            _ => {
                let end_by = self.0.lock().take();
                // A command that has ended needs no signal.
                let _ = end_by.map(|end_by| end_by.send(signal));
                Ok(())
            }
        }
    }
}

fn environment(requested: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let usual = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOME", "/root"),
        ("LANG", "C.UTF-8"),
        ("TERM", "xterm"),
    ];
    let mut env: BTreeMap<String, String> =
        usual.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    env.extend(requested);
    env
}

/// Runs a command until it ends, reaches its deadline, or its reader is dropped.
async fn supervise(
    mut shell: Shell,
    argv: Vec<String>,
    stdin: Source,
    timeout: std::time::Duration,
    ended_by: oneshot::Receiver<Signal>,
) {
    let run = Arc::clone(&shell.run);
    let outlet = Arc::clone(&run.outlet);
    let io = Io { stdin, stdout: Sink::Stdout(Arc::clone(&outlet)), stderr: Sink::Stderr(Arc::clone(&outlet)) };
    let began = Instant::now();
    let main = async move { shell.command(&argv, io).await.code() };
    let signalled = async {
        match ended_by.await {
            Ok(signal) => signal,
            // The sender is dropped, so no signal can arrive.
            Err(_) => std::future::pending().await,
        }
    };
    let work = async {
        tokio::select! {
            code = main => Ended::Itself(code),
            signal = signalled => Ended::Signal(signal),
            () = tokio::time::sleep(timeout) => Ended::Deadline,
        }
    };
    let Some(ended) = run.kill.run_until_cancelled(work).await else { return };
    let duration = began.elapsed();
    if !matches!(ended, Ended::Itself(_)) {
        run.kill.cancel();
    } else {
        run.background.close();
        let _ = tokio::time::timeout(DRAIN, run.background.wait()).await;
    }
    outlet.ended.cancel();
    let timed_out = matches!(ended, Ended::Deadline);
    let code = match ended {
        Ended::Itself(code) => code,
        Ended::Signal(signal) => 128 + signal.number(),
        Ended::Deadline => 124,
    };
    let exit = OutputEvent::Exit(ExitStatus { code, timed_out, oom_killed: false, pids_exhausted: false, duration });
    // The reader may have been dropped.
    let _ = outlet.events.send(exit).await;
}

/// Cause of a command's end.
enum Ended {
    Itself(i32),
    Signal(Signal),
    Deadline,
}

/// The reading end of a command's output.
struct Reader {
    receiver: mpsc::Receiver<OutputEvent>,
    dead: CancellationToken,
    /// Guard that kills the command if the reader is dropped before the exit.
    guard: DropGuard,
}

impl Reader {
    async fn next(mut self) -> Option<(Result<OutputEvent>, Option<Reader>)> {
        match self.dead.run_until_cancelled(self.receiver.recv()).await.flatten() {
            Some(exit @ OutputEvent::Exit(_)) => {
                // Background children keep running.
                self.guard.disarm();
                Some((Ok(exit), None))
            }
            Some(event) => Some((Ok(event), Some(self))),
            None => Some((Err(Error::Gone), None)),
        }
    }
}

impl Shell {
    /// Runs the text of a script in a shell of its own.
    async fn text(&self, text: &str, args: Vec<String>, io: Io) -> Flow {
        if self.depth >= DEPTH_MAX {
            return complain(&io, "sh: too many nested shells", 2).await;
        }
        match parse(text) {
            Ok(script) => {
                let mut shell = Shell { args, depth: self.depth + 1, status: 0, ..self.clone() };
                Flow::Next(shell.script(&script, io).await.code())
            }
            Err(message) => complain(&io, &format!("sh: {message}"), 2).await,
        }
    }

    fn script<'a>(&'a mut self, script: &'a Script, io: Io) -> BoxFuture<'a, Flow> {
        async move {
            self.status = 0;
            for item in &script.items {
                if item.background {
                    self.detach(item.clone(), &io).await;
                } else if let Flow::Exit(code) = self.item(item, &io).await {
                    return Flow::Exit(code);
                }
            }
            Flow::Next(self.status)
        }
        .boxed()
    }

    /// Runs an item in the background.
    async fn detach(&mut self, item: Item, io: &Io) {
        self.status = 0;
        if self.run.background.len() >= BACKGROUND_MAX {
            self.status = complain(io, "sh: cannot fork: too many commands in the background", 2).await.code();
            return;
        }
        let (mut shell, run) = (self.clone(), Arc::clone(&self.run));
        let io = Io { stdin: Source::bytes(Bytes::new()), ..io.clone() };
        let kill = run.kill.clone();
        let work = async move {
            let _ = kill.run_until_cancelled(async move { shell.item(&item, &io).await }).await;
        };
        run.inside.tasks().spawn(run.background.track_future(work));
    }

    async fn item(&mut self, item: &Item, io: &Io) -> Flow {
        let mut flow = self.pipeline(&item.first, io).await;
        for (joint, pipeline) in &item.rest {
            let runs = matches!((flow, joint), (Flow::Next(0), Joint::And) | (Flow::Next(1..), Joint::Or));
            if runs {
                flow = self.pipeline(pipeline, io).await;
            }
        }
        flow
    }

    async fn pipeline(&mut self, pipeline: &Pipeline, io: &Io) -> Flow {
        let flow = match &pipeline.stages[..] {
            [only] => self.stage(only, io.clone()).await,
            stages => {
                let mut running = Vec::with_capacity(stages.len());
                let mut stdin = io.stdin.clone();
                for (at, stage) in stages.iter().enumerate() {
                    let mut io = Io { stdin, ..io.clone() };
                    let (sender, receiver) = mpsc::channel(PIECES_MAX);
                    if at + 1 < stages.len() {
                        io.stdout = Sink::Pipe(sender);
                    }
                    stdin = Source::pipe(receiver);
                    let mut shell = self.clone();
                    running.push(async move { shell.stage(stage, io).await.code() });
                }
                drop(stdin);
                Flow::Next(join_all(running).await.last().copied().unwrap_or(0))
            }
        };
        let flow = match flow {
            Flow::Next(code) if pipeline.negated => Flow::Next(i32::from(code == 0)),
            Flow::Next(_) | Flow::Exit(_) => flow,
        };
        self.status = flow.code();
        flow
    }

    async fn stage(&mut self, stage: &Stage, mut io: Io) -> Flow {
        for redirect in &stage.redirects {
            if let Err(message) = self.redirect(redirect, &mut io) {
                return complain(&io, &format!("sh: {message}"), 2).await;
            }
        }
        match &stage.body {
            Body::Group(script) => Flow::Next(self.clone().script(script, io).await.code()),
            Body::Simple { assignments, words } => {
                let values: Vec<(String, String)> =
                    assignments.iter().map(|(name, word)| (name.clone(), self.expand(word).concat())).collect();
                let argv: Vec<String> = words.iter().flat_map(|word| self.expand(word)).collect();
                if argv.is_empty() {
                    self.env.extend(values);
                    Flow::Next(0)
                } else if values.is_empty() {
                    self.command(&argv, io).await
                } else {
                    let mut shell = self.clone();
                    shell.env.extend(values);
                    shell.command(&argv, io).await
                }
            }
        }
    }

    fn redirect(&self, redirect: &Redirect, io: &mut Io) -> std::result::Result<(), String> {
        let path = |word: &Word| self.absolute(&self.expand(word).concat());
        let sink = match &redirect.to {
            Target::Read(word) => {
                let path = path(word);
                let fs = self.run.inside.fs();
                io.stdin = if fs.is_null(&path) {
                    Source::bytes(Bytes::new())
                } else {
                    Source::bytes(fs.read(&path).map_err(|error| format!("cannot open {error}"))?.1)
                };
                return Ok(());
            }
            Target::Write(word) | Target::Append(word) => {
                let path = path(word);
                let mut fs = self.run.inside.fs();
                if fs.is_null(&path) {
                    Sink::Null
                } else {
                    let is_kept = matches!(redirect.to, Target::Append(_)) && fs.read(&path).is_ok();
                    if !is_kept {
                        fs.write(&path, None, b"").map_err(|error| format!("cannot create {error}"))?;
                    }
                    drop(fs);
                    Sink::File(Arc::clone(&self.run.inside), path)
                }
            }
            Target::Same(1) => io.stdout.clone(),
            Target::Same(_) => io.stderr.clone(),
        };
        match redirect.fd {
            1 => io.stdout = sink,
            2 => io.stderr = sink,
            _ => return Err("the descriptor cannot be written to".to_owned()),
        }
        Ok(())
    }

    /// Expands a word to zero or more words.
    fn expand(&self, word: &Word) -> Vec<String> {
        let mut words = Vec::new();
        let mut current: Option<String> = None;
        // Only quoted text may be empty and still make a word.
        let is_all_text = word.parts.iter().all(|part| matches!(part, Part::Text(_)));
        for part in &word.parts {
            match part {
                Part::Text(text) if text.is_empty() && !is_all_text => {}
                Part::Text(text) => current.get_or_insert_default().push_str(text),
                Part::Variable { name, quoted: true } => current.get_or_insert_default().push_str(&self.value(name)),
                Part::Variable { name, quoted: false } => {
                    let value = self.value(name);
                    if value.starts_with(char::is_whitespace) {
                        words.extend(current.take());
                    }
                    for (at, piece) in value.split_whitespace().enumerate() {
                        if at > 0 {
                            words.extend(current.take());
                        }
                        current.get_or_insert_default().push_str(piece);
                    }
                    if value.ends_with(char::is_whitespace) {
                        words.extend(current.take());
                    }
                }
            }
        }
        words.extend(current);
        words
    }

    fn value(&self, name: &str) -> String {
        match name {
            "?" => self.status.to_string(),
            "$" => PID.to_owned(),
            "#" => self.args.len().saturating_sub(1).to_string(),
            digit if digit.starts_with(|c: char| c.is_ascii_digit()) => {
                digit.parse::<usize>().ok().and_then(|at| self.args.get(at).cloned()).unwrap_or_default()
            }
            name => self.env.get(name).cloned().unwrap_or_default(),
        }
    }

    fn command<'a>(&'a mut self, argv: &'a [String], io: Io) -> BoxFuture<'a, Flow> {
        async move {
            let Some((program, args)) = argv.split_first() else { return Flow::Next(0) };
            let name = match self.find(program) {
                Found::Command(name) => name,
                Found::Script(text) => return self.text(&text, argv.to_vec(), io).await,
                Found::Forbidden => return complain(&io, &format!("sh: {program}: Permission denied"), 126).await,
                Found::Nothing => return complain(&io, &format!("sh: {program}: not found"), 127).await,
            };
            match (name.as_str(), args) {
                ("exit", []) => Flow::Exit(self.status),
                ("exit", [code, ..]) => match code.parse::<u8>() {
                    Ok(code) => Flow::Exit(i32::from(code)),
                    Err(_) => complain(&io, &format!("exit: {code}: not a number"), 2).await,
                },
                ("cd", _) => self.change_directory(args, &io).await,
                ("read", _) => self.read(args, &io).await,
                ("setsid", [_, ..]) => self.command(args, io).await,
                ("sh", [flag, text, rest @ ..]) if flag == "-c" => {
                    let args = if rest.is_empty() { vec![program.clone()] } else { rest.to_vec() };
                    self.text(text, args, io).await
                }
                ("sh", [path, ..]) => {
                    let read = self.run.inside.fs().read(&self.absolute(path));
                    match read {
                        Ok((_, text)) => self.text(&String::from_utf8_lossy(&text), args.to_vec(), io).await,
                        Err(error) => complain(&io, &format!("sh: {error}"), 127).await,
                    }
                }
                ("kill", _) => builtins::kill(args, &io).await,
                (name, args) => match builtins::run(name, args, self, &io).await {
                    Ok(code) => Flow::Next(code),
                    Err(Halt::Broken) => Flow::Next(128 + 13),
                    Err(Halt::Full) => complain(&io, &format!("{name}: no space left on device"), 1).await,
                },
            }
        }
        .boxed()
    }

    async fn change_directory(&mut self, args: &[String], io: &Io) -> Flow {
        let path = self.absolute(args.first().map_or("/root", String::as_str));
        if !self.run.inside.fs().is_dir(&path) {
            return complain(io, &format!("cd: can't cd to {path}"), 2).await;
        }
        self.cwd = path;
        Flow::Next(0)
    }

    /// Implements `read`: sets a variable to the next line of stdin, and fails at the end.
    async fn read(&mut self, args: &[String], io: &Io) -> Flow {
        let (is_raw, name) = match args {
            [name] if name != "-r" => (false, name),
            [flag, name] if flag == "-r" => (true, name),
            _ => return complain(io, "usage: read [-r] NAME", 2).await,
        };
        let mut line = Vec::new();
        let mut is_whole = false;
        // No more than the line: what follows is for the next command.
        while let Some(byte) = io.stdin.read(1).await {
            match &byte[..] {
                b"\n" => {
                    is_whole = true;
                    break;
                }
                b"\\" if !is_raw => match io.stdin.read(1).await {
                    Some(next) if next[..] != b"\n"[..] => line.extend_from_slice(&next),
                    _ => {}
                },
                byte if line.len() < LINE_BYTES_MAX => line.extend_from_slice(byte),
                _ => return complain(io, "read: the line is too long", 2).await,
            }
        }
        self.env.insert(name.clone(), String::from_utf8_lossy(&line).trim_matches([' ', '\t']).to_owned());
        Flow::Next(i32::from(!is_whole))
    }

    fn find(&self, program: &str) -> Found {
        let name = program.strip_prefix("/usr/bin/").or_else(|| program.strip_prefix("/bin/")).unwrap_or(program);
        if COMMANDS.contains(&name) {
            return Found::Command(name.to_owned());
        }
        if !program.contains('/') {
            return Found::Nothing;
        }
        match self.run.inside.fs().read(&self.absolute(program)) {
            Ok((info, text)) if info.mode & 0o111 != 0 => Found::Script(String::from_utf8_lossy(&text).into_owned()),
            Ok(_) | Err(Error::Invalid(_)) => Found::Forbidden,
            Err(_) => Found::Nothing,
        }
    }
}

enum Found {
    Command(String),
    Script(String),
    Forbidden,
    Nothing,
}
