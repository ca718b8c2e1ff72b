//! Execution of scripts.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};

use super::builtins;
use super::parse::{PID, Pipeline, Script, Stage};
use super::state::{Halt, Shell};
use super::streams::{Io, Sink, Source, complain};
use crate::Error;

/// The deepest nesting of shells in shells.
const DEPTH_MAX: usize = 16;
/// The most commands in the background of one request.
const BACKGROUND_MAX: usize = 256;
/// The longest line that `read` takes, in bytes.
const LINE_BYTES_MAX: usize = 64 * 1024;

impl Shell {
    /// Runs one command, and returns its exit code.
    pub(super) fn command<'a>(&'a mut self, argv: &'a [String], io: Io) -> BoxFuture<'a, i32> {
        async move {
            let Some((program, args)) = argv.split_first() else { return 0 };
            let words: Vec<&str> = args.iter().map(String::as_str).collect();
            let name = ["/usr/bin/", "/bin/"].iter().find_map(|dir| program.strip_prefix(dir));
            let name = name.unwrap_or(program);
            match (name, &words[..]) {
                ("cd", [path]) => self.change_directory(path, &io).await,
                ("exit", [code]) => self.exit(code.parse::<u8>().map_or(2, i32::from)),
                ("kill", [signal, PID]) => match signal.trim_start_matches('-').parse() {
                    Ok(number @ 1..=64) => self.exit(128 + number),
                    _ => complain(&io, &format!("kill: {signal} is not the number of a signal"), 2).await,
                },
                ("read", [name]) => self.read(name, &io).await,
                ("setsid", [_, ..]) => self.command(args, io).await,
                ("sh" | "bash", ["-c", script, ..] | ["-l", "-c", script, ..]) => self.script(script, io).await,
                _ => match builtins::run(name, &words, self, &io).await {
                    Some(Ok(code)) => code,
                    Some(Err(Halt::Broken)) => 128 + 13,
                    Some(Err(Halt::Full)) => complain(&io, &format!("{name}: no space left on device"), 1).await,
                    None => self.file(program, io).await,
                },
            }
        }
        .boxed()
    }

    /// Runs a script in its own shell.
    async fn script(&self, text: &str, io: Io) -> i32 {
        if self.depth >= DEPTH_MAX {
            return complain(&io, "sh: too many nested shells", 2).await;
        }
        let mut shell = Shell { depth: self.depth + 1, ..self.clone() };
        let mut script = Script::new(text);
        let mut code = 0;
        let mut before = "";
        while !shell.has_exited {
            let Pipeline { stages, operator } = match script.next(&shell.env) {
                Ok(Some(pipeline)) => pipeline,
                Ok(None) => break,
                Err(message) => return complain(&io, &format!("sh: {message}"), 2).await,
            };
            let is_skipped = matches!((before, code), ("&&", 1..) | ("||", 0));
            before = operator;
            if is_skipped {
                continue;
            }
            code = match operator {
                "&" => shell.detach(stages, &io).await,
                _ => shell.pipeline(&stages, &io).await,
            };
        }
        code
    }

    /// Runs a pipeline in the background.
    async fn detach(&self, stages: Vec<Stage>, io: &Io) -> i32 {
        if self.run.background.len() >= BACKGROUND_MAX {
            return complain(io, "sh: cannot fork: too many commands in the background", 2).await;
        }
        let mut shell = self.clone();
        let io = Io { stdin: Source::bytes(Bytes::new()), ..io.clone() };
        let kill = self.run.kill.clone();
        let work = async move {
            let _ = kill.run_until_cancelled(shell.pipeline(&stages, &io)).await;
        };
        self.run.inside.tasks().spawn(self.run.background.track_future(work));
        0
    }

    async fn pipeline(&mut self, stages: &[Stage], io: &Io) -> i32 {
        let Some((last, before)) = stages.split_last() else { return 0 };
        if before.is_empty() {
            return self.stage(last, io.clone()).await;
        }
        let mut running = Vec::with_capacity(stages.len());
        let mut stdin = io.stdin.clone();
        for stage in before {
            let (stdout, next) = Source::pipe();
            running.push((self.clone(), stage, Io { stdin, stdout, stderr: io.stderr.clone() }));
            stdin = next;
        }
        running.push((self.clone(), last, Io { stdin, ..io.clone() }));
        let running = running.into_iter().map(async |(mut shell, stage, io)| shell.stage(stage, io).await);
        join_all(running).await.pop().unwrap_or(0)
    }

    async fn stage(&mut self, stage: &Stage, mut io: Io) -> i32 {
        for (operator, word) in &stage.redirects {
            if let Err(message) = self.redirect(operator, word, &mut io) {
                return complain(&io, &format!("sh: {message}"), 2).await;
            }
        }
        self.command(&stage.argv, io).await
    }

    fn redirect(&self, operator: &str, word: &str, io: &mut Io) -> Result<(), String> {
        match (operator, word) {
            ("2>&", "1") => io.stderr = io.stdout.clone(),
            (">&", "2") => io.stdout = io.stderr.clone(),
            ("2>&" | ">&", _) => return Err(format!("syntax error: `{operator}{word}`")),
            _ => {
                let path = self.absolute(word);
                let mut fs = self.run.inside.fs();
                if !fs.is_null(&path) && (operator != ">>" || fs.read(&path).is_err()) {
                    fs.write(&path, None, b"").map_err(|error| format!("cannot create {error}"))?;
                }
                let sink = Sink::File(Arc::clone(&self.run), path);
                *(if operator == "2>" { &mut io.stderr } else { &mut io.stdout }) = sink;
            }
        }
        Ok(())
    }

    fn exit(&mut self, code: i32) -> i32 {
        self.has_exited = true;
        code
    }

    async fn change_directory(&mut self, path: &str, io: &Io) -> i32 {
        let path = self.absolute(path);
        if !self.run.inside.fs().is_dir(&path) {
            return complain(io, &format!("cd: can't cd to {path}"), 2).await;
        }
        self.cwd = path;
        0
    }

    /// Sets a variable to the next line of stdin, and fails at the end.
    async fn read(&mut self, name: &str, io: &Io) -> i32 {
        let mut line = Vec::new();
        let mut code = 1;
        // One byte at a time, because what follows the line is for the next command.
        while code == 1 && line.len() < LINE_BYTES_MAX {
            match io.stdin.read(1).await.as_deref() {
                Some(b"\n") => code = 0,
                Some(byte) => line.extend_from_slice(byte),
                None => break,
            }
        }
        self.env.insert(name.to_owned(), String::from_utf8_lossy(&line).trim().to_owned());
        code
    }

    /// Runs a file as a script.
    async fn file(&self, program: &str, io: Io) -> i32 {
        let path = if program.contains('/') { self.absolute(program) } else { String::new() };
        let read = if path.is_empty() { Err(Error::Gone) } else { self.run.inside.fs().read(&path) };
        match read {
            Ok((info, text)) if info.mode & 0o111 != 0 => self.script(&String::from_utf8_lossy(&text), io).await,
            Ok(_) | Err(Error::Invalid(_)) => complain(&io, &format!("sh: {program}: Permission denied"), 126).await,
            Err(_) => complain(&io, &format!("sh: {program}: not found"), 127).await,
        }
    }
}
