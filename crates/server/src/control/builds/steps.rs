//! Steps of a build, in its box.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use domain::{Limits, PrepareCommand, ProcessDefaults, Terms, base32};
use futures_util::StreamExt;
use providers::{ExitStatus, Guest, OutputEvent};
use store::Sandbox;

use super::archives::Archive;
use super::kept::Build;
use super::log::LogLevel;
use super::output::Lines;
use super::recipe::Step;
use super::scripts::{self, start_commands};
use crate::control::error::Error;
use crate::control::guest::access::runtime_error;
use crate::control::guest::exec::{ExecCommand, ExecRequest};
use crate::control::service::Control;
use crate::control::spawn::prepare::prepare;

/// Most bytes that are kept of what a script writes for the build.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Folder in the box under which archives are unpacked.
const UNPACKED_IN: &str = "/tmp";
const ROOT: &str = "root";

/// Failure of a part of a build.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    #[error(transparent)]
    Control(#[from] Error),
    /// The box or its provider failed.
    #[error("{0}")]
    Box(#[from] providers::Error),
    /// A command failed.
    #[error("failed to run command '{line}': exit status {code}")]
    Command { line: String, code: i32 },
    /// The box has no such user. The words are those that clients of E2B know.
    #[error("failed to run command '{line}': command failed: unauthenticated: invalid username: '{user}'")]
    User { line: String, user: String },
    /// The build took too long.
    #[error("the build did not end within an hour; put what takes long into an image")]
    TooLong,
    /// A step cannot be.
    #[error("{0}")]
    Step(String),
}

/// The box of a build, and what its next command begins with.
pub(super) struct Workshop<'a> {
    control: &'a Control,
    build: &'a Build,
    guest: Arc<dyn Guest>,
    defaults: ProcessDefaults,
    /// User for scripts of the build; `None` for the box's own, where it has no other.
    root: Option<String>,
    /// User of commands where none is named, as `root` is.
    user: Option<String>,
    end: Instant,
}

/// Command of a build.
struct Command<'a> {
    argv: Vec<String>,
    user: Option<&'a str>,
    workdir: Option<&'a str>,
    /// True to log its output.
    is_logged: bool,
}

impl<'a> Workshop<'a> {
    /// Opens the box; `user` is the user of commands where none is named, if the box has it.
    pub(super) async fn open(
        control: &'a Control,
        build: &'a Build,
        guest: Arc<dyn Guest>,
        defaults: ProcessDefaults,
        user: &str,
        end: Instant,
    ) -> Result<Self, Failed> {
        let account = async |name: &str| match guest.account(Some(name)).await {
            Ok(account) => Ok((!account.is_only).then(|| name.to_owned())),
            Err(providers::Error::Invalid(_)) => Ok(None),
            Err(error) => Err(error),
        };
        let (root, user) = (account(ROOT).await?, account(user).await?);
        Ok(Self { control, build, guest, defaults, root, user, end })
    }

    /// Takes a step.
    pub(super) async fn take(&mut self, step: &Step, archives: &BTreeMap<String, Arc<Archive>>) -> Result<(), Failed> {
        match step {
            Step::Run { line, user } => self.run_line(line, user.as_deref()).await,
            Step::Copy { archive, source, target, owner, mode } => {
                let archive = archives.get(archive).ok_or_else(|| Failed::Step("its files are missing".to_owned()))?;
                let place = Place { source, target, owner: owner.as_deref(), mode: mode.as_deref() };
                self.copy(archive, place).await
            }
            Step::Env(variables) => {
                for (name, value) in variables {
                    let value = self.script(scripts::EXPAND, &[value]).await?;
                    self.defaults.env.insert(name.clone(), value);
                }
                // No sandbox could start with it.
                let terms = Terms { defaults: self.defaults.clone(), ..Terms::default() };
                terms.check().map_err(|fault| Failed::Step(fault.to_string()))
            }
            Step::Workdir(path) => {
                let (owner, base) = (self.user_now().unwrap_or_default().to_owned(), self.base().await?);
                let made = self.script(scripts::MAKE_WORKDIR, &[path, &owner, &base]).await?;
                self.defaults.workdir = Some(made.trim_end_matches('\n').to_owned());
                Ok(())
            }
            Step::User(name) => {
                // A box that has one user only runs everything as that.
                if self.root.is_some() {
                    self.script(scripts::MAKE_USER, &[name]).await?;
                    self.defaults.user = Some(name.clone());
                }
                Ok(())
            }
        }
    }

    /// Returns the user of commands that name none; `None` where the box has no other than its own.
    fn user_now(&self) -> Option<&str> {
        self.root.as_ref()?;
        self.defaults.user.as_deref().or(self.user.as_deref())
    }

    /// Returns the folder that relative paths begin at.
    async fn base(&self) -> Result<String, Failed> {
        if let Some(workdir) = &self.defaults.workdir {
            return Ok(workdir.clone());
        }
        Ok(self.guest.account(self.user_now()).await?.home)
    }

    async fn run_line(&self, line: &str, user: Option<&str>) -> Result<(), Failed> {
        let user = user.filter(|_| self.root.is_some());
        if let Some(user) = user
            && matches!(self.guest.account(Some(user)).await, Err(providers::Error::Invalid(_)))
        {
            return Err(Failed::User { line: line.to_owned(), user: user.to_owned() });
        }
        let user = user.or_else(|| self.user_now());
        let workdir = self.base().await?;
        let argv = ["/bin/sh", "-c", scripts::LOGIN_SHELL, "sh", line].map(str::to_owned).into();
        let command = Command { argv, user, workdir: Some(&workdir), is_logged: true };
        let (exit, _) = self.run(command).await?;
        if exit.code == 0 { Ok(()) } else { Err(Failed::Command { line: line.to_owned(), code: exit.code }) }
    }

    /// Runs a script of the build as the root of the box, and returns what it writes.
    async fn script(&self, script: &str, arguments: &[&str]) -> Result<String, Failed> {
        let argv = ["/bin/sh", "-c", script, "sh"].iter().chain(arguments).map(|part| (*part).to_owned()).collect();
        let command = Command { argv, user: self.root.as_deref(), workdir: Some("/"), is_logged: false };
        let (exit, written) = self.run(command).await?;
        if exit.code == 0 {
            return Ok(written.answer());
        }
        Err(Failed::Step(written.fault(exit.code)))
    }

    async fn copy(&self, archive: &Arc<Archive>, place: Place<'_>) -> Result<(), Failed> {
        let unpacked = format!("{UNPACKED_IN}/.build-{}", base32(&rand::random::<[u8; 10]>()));
        let copied = async {
            self.guest.unpack(&unpacked, archive.bytes()).await?;
            let Place { source, target, owner, mode } = place;
            let root = place_in_archive(source)?;
            let of_user = self.user_now().map(|user| format!("{user}:"));
            let owner = owner.map(|owner| if owner.contains(':') { owner.to_owned() } else { format!("{owner}:") });
            let owner = owner.or(of_user).filter(|_| self.root.is_some()).unwrap_or_default();
            let (from, base) = (format!("{unpacked}/{root}"), self.base().await?);
            self.script(scripts::COPY, &[&from, target, &owner, mode.unwrap_or_default(), &base, source]).await
        };
        let copied = copied.await;
        // It would be in the template.
        self.script("rm -rf \"$1\"", &[&unpacked]).await?;
        copied.map(drop)
    }

    async fn run(&self, command: Command<'_>) -> Result<(ExitStatus, Written), Failed> {
        let left = self.end.checked_duration_since(Instant::now()).ok_or(Failed::TooLong)?;
        let Command { argv, user, workdir, is_logged } = command;
        let request = ExecRequest {
            command: ExecCommand::Argv(argv),
            env: self.defaults.env.clone(),
            env_secret: BTreeMap::new(),
            workdir: workdir.map(str::to_owned),
            user: user.map(str::to_owned),
            timeout: None,
            stdin: None,
        };
        let mut output = self.guest.exec(request.command(left, ProcessDefaults::default(), [])).await?;
        let mut written = Written::default();
        let log = |text: &str| {
            if is_logged {
                self.build.log(self.control.now(), LogLevel::Debug, text);
            }
        };
        while let Some(event) = output.next().await {
            match event? {
                OutputEvent::Stdout(piece) => {
                    written.stdout(&piece);
                    written.lines.take(&piece, log);
                }
                OutputEvent::Stderr(piece) => {
                    written.stderr(&piece);
                    written.faults.take(&piece, log);
                }
                OutputEvent::Exit(exit) => {
                    written.lines.end(log);
                    written.faults.end(log);
                    return if exit.timed_out { Err(Failed::TooLong) } else { Ok((exit, written)) };
                }
            }
        }
        Err(providers::Error::Gone.into())
    }

    /// Returns the commands that start what the template runs.
    pub(super) fn start_commands(&self, line: &str, ready: Option<&str>) -> Result<Vec<PrepareCommand>, Failed> {
        let defaults = ProcessDefaults { user: self.user_now().map(str::to_owned), ..self.defaults.clone() };
        let commands = start_commands(line, ready, &defaults);
        PrepareCommand::check(&commands).map_err(|fault| Failed::Step(fault.to_string()))?;
        Ok(commands)
    }

    /// Runs the commands that start what the template runs.
    pub(super) async fn prepare(
        &self,
        sandbox: &Sandbox,
        commands: &[PrepareCommand],
        limits: &Limits,
    ) -> Result<(), Failed> {
        let failed = |error| runtime_error(sandbox, error);
        Ok(prepare(&self.guest, commands, limits, failed).await?)
    }

    /// Returns the defaults of the processes of the template's sandboxes.
    pub(super) fn into_defaults(self) -> ProcessDefaults {
        self.defaults
    }
}

/// Place of the files of a copy.
#[derive(Clone, Copy)]
struct Place<'a> {
    source: &'a str,
    target: &'a str,
    owner: Option<&'a str>,
    mode: Option<&'a str>,
}

/// Returns the path in an archive of what a source names: of a pattern, the folder before its first part with a
/// wildcard, because the archive has nothing else below it.
fn place_in_archive(source: &str) -> Result<String, Failed> {
    let parts = source.split('/').filter(|part| !matches!(*part, "" | "."));
    let plain: Vec<_> = parts.take_while(|part| !part.contains(['*', '?', '[', '{'])).collect();
    if source.starts_with('/') || plain.contains(&"..") {
        let fault = format!("the source `{source}` must be a path below the folder of the template");
        return Err(Failed::Step(fault));
    }
    Ok(if plain.is_empty() { ".".to_owned() } else { plain.join("/") })
}

/// Beginning of what a command has written.
#[derive(Debug, Default)]
struct Written {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    lines: Lines,
    faults: Lines,
}

impl Written {
    fn stdout(&mut self, piece: &[u8]) {
        keep(&mut self.stdout, piece);
    }

    fn stderr(&mut self, piece: &[u8]) {
        keep(&mut self.stderr, piece);
    }

    fn answer(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    fn fault(&self, code: i32) -> String {
        let text = String::from_utf8_lossy(&self.stderr).trim().to_owned();
        if text.is_empty() { format!("it failed with status {code}") } else { text }
    }
}

fn keep(kept: &mut Vec<u8>, piece: &[u8]) {
    let room = ANSWER_BYTES_MAX.saturating_sub(kept.len());
    kept.extend_from_slice(&piece[..piece.len().min(room)]);
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_pattern_means_the_folder_that_it_is_in() {
        for (source, expected) in [
            ("a.txt", Some("a.txt")),
            ("./src/", Some("src")),
            ("src/a/../b", None),
            ("*.py", Some(".")),
            ("src/*.py", Some("src")),
            ("src/**/x.py", Some("src")),
            ("a{b,c}/d", Some(".")),
            (".", Some(".")),
            ("../x", None),
            ("/etc/passwd", None),
        ] {
            assert_eq!(place_in_archive(source).ok().as_deref(), expected, "{source}");
        }
    }
}
