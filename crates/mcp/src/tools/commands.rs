//! Tools that run something in a sandbox.

use std::time::Duration;

use api::{CodeLanguage, ExecRequest, RunLine, RunOutcome, RunRequest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use client::{Exit, ProcessEvent, ProcessOutput};
use rmcp::model::ContentBlock;
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};

use super::units::span;
use crate::arguments::{RunCode, RunCommand};
use crate::bounds::{ANSWER_AFTER, BASE64_CHARS_MAX};
use crate::call::{Call, Target};
use crate::failure::{Failure, Result};
use crate::text::{CHARS_MAX, HeadAndTail, Utf8};

/// Deadline of a command unless its call sets one.
const COMMAND_TIME: Duration = Duration::from_secs(600);
/// Most images of one run.
const IMAGES_MAX: usize = 8;
/// Representations of a value that are shown, in order of preference.
const IMAGE_TYPES: [&str; 2] = ["image/png", "image/jpeg"];

pub(super) async fn run_code(call: &Call, arguments: RunCode) -> Result<Vec<ContentBlock>> {
    let language = language(arguments.language.as_deref())?;
    let timeout = Some(span(arguments.timeout, ANSWER_AFTER)?);
    let target = call.target(arguments.sandbox).await?;
    let request = RunRequest { code: arguments.code, language: Some(language), timeout, ..RunRequest::default() };
    // Code of another call may run before it.
    let mut run = call.unless_cancelled(call.client.run_code(&target.id, None, &request)).await??;
    let mut shown = Shown::default();
    let mut end = None;
    // When the caller leaves, this future is dropped, and with it the run, which interrupts the code.
    while let Some(line) = call.unless_cancelled(run.next()).await?? {
        call.says(|| shown.output.last_line().to_owned());
        match line {
            RunLine::Started { state_lost: true, .. } => {
                shown.note("[the interpreter had ended: variables of earlier calls are gone]");
            }
            RunLine::Stdout { text } | RunLine::Stderr { text } => shown.output.push(&text),
            RunLine::Result { data, .. } => shown.result(&data),
            RunLine::Error { traceback, name, value } => {
                shown.error.push(&if traceback.is_empty() { format!("{name}: {value}") } else { traceback });
            }
            RunLine::Dropped => shown.note("[a result was too large to be shown]"),
            RunLine::End { outcome, restarted, .. } => end = Some((outcome, restarted)),
            RunLine::Started { .. } | RunLine::KeepAlive => {}
        }
    }
    let (outcome, restarted) = end.ok_or_else(|| Failure::new("the run has no end"))?;
    let lost = if restarted { " The interpreter was restarted: its variables are gone." } else { "" };
    let failure = match outcome {
        RunOutcome::Ok | RunOutcome::Error => None,
        RunOutcome::TimedOut => Some(format!(
            "[interrupted at the timeout; for longer work pass a larger `timeout`, or use run_command.{lost}]"
        )),
        RunOutcome::Interrupted => Some(format!("[interrupted.{lost}]")),
        RunOutcome::Died => {
            Some("[the interpreter ended, perhaps for want of memory: its variables are gone]".to_owned())
        }
    };
    // An exception is what the code did, as the exit code of a command is.
    let has_failed = !matches!(outcome, RunOutcome::Ok | RunOutcome::Error);
    shown.notes.extend(failure);
    let content = shown.into_content(&target);
    if has_failed { Err(Failure::with(content)) } else { Ok(content) }
}

fn language(name: Option<&str>) -> Result<CodeLanguage> {
    let name = name.unwrap_or("python");
    serde_json::from_value(Value::String(name.to_lowercase())).map_err(|_| {
        Failure::new(format!(
            "there is no language \"{name}\": use python, javascript, typescript, bash, r or java, or a program with \
             run_command"
        ))
    })
}

/// Output, values and images of a run of code.
#[derive(Debug, Default)]
struct Shown {
    output: HeadAndTail,
    /// Values, a line each.
    values: HeadAndTail,
    images: Vec<(String, &'static str)>,
    /// Characters of the images.
    image_chars: usize,
    error: HeadAndTail,
    notes: Vec<String>,
}

impl Shown {
    /// Notes something once.
    fn note(&mut self, note: &str) {
        if !self.notes.iter().any(|noted| noted == note) {
            self.notes.push(note.to_owned());
        }
    }

    fn result(&mut self, data: &Map<String, Value>) {
        let get = |kind: &str| data.get(kind).and_then(Value::as_str);
        let image = IMAGE_TYPES.into_iter().find_map(|kind| Some((get(kind)?, kind)));
        match image {
            Some(_) if self.images.len() >= IMAGES_MAX => self.note("[more images were left out]"),
            Some((image, kind)) => {
                // Interpreters break the lines of base64.
                let image: String = image.split_ascii_whitespace().collect();
                if self.image_chars + image.len() <= BASE64_CHARS_MAX && STANDARD.decode(&image).is_ok() {
                    self.image_chars += image.len();
                    self.images.push((image, kind));
                } else {
                    self.note("[an image was too large to be shown; save a smaller one]");
                }
            }
            None => {
                if let Some(value) = ["text/markdown", "text/plain", "text/html"].into_iter().find_map(get) {
                    self.values.push(value);
                    self.values.push("\n");
                }
            }
        }
    }

    fn into_content(self, target: &Target) -> Vec<ContentBlock> {
        let remark = "; write what is long to a file, and use read_file";
        let texts = [self.output, self.values, self.error].map(|text| text.into_text(remark));
        let mut parts: Vec<&str> = texts.iter().map(|text| text.trim_end_matches('\n')).collect();
        parts.extend(self.notes.iter().map(String::as_str));
        parts.retain(|part| !part.is_empty());
        if parts.is_empty() && self.images.is_empty() {
            parts.push("[no output]");
        }
        let mut content = if parts.is_empty() { Vec::new() } else { target.text(parts.join("\n")) };
        content.extend(self.images.into_iter().map(|(image, kind)| ContentBlock::image(image, kind)));
        content
    }
}

pub(super) async fn run_command(call: &Call, arguments: RunCommand) -> Result<Vec<ContentBlock>> {
    let target = call.target(arguments.sandbox).await?;
    match (arguments.command, arguments.process) {
        (Some(command), None) => {
            if arguments.position.is_some() {
                return Err(Failure::new("`position` is for a `process`"));
            }
            let timeout = Some(span(arguments.timeout, COMMAND_TIME)?);
            let request = ExecRequest { command, workdir: arguments.workdir, timeout, ..ExecRequest::default() };
            start(call, &target, request).await
        }
        (None, Some(process)) => read_on(call, &target, process, arguments.position.unwrap_or(0)).await,
        _ => Err(Failure::new("pass either `command`, to start one, or `process`, to read on")),
    }
}

/// Starts a command and waits for its end. When the caller leaves meanwhile, it is killed.
pub(super) async fn start(call: &Call, target: &Target, request: ExecRequest) -> Result<Vec<ContentBlock>> {
    let answer_at = Instant::now() + ANSWER_AFTER;
    let started = call.client.start_process(&target.id, request).await?;
    let process = started.process_id;
    let name = process.to_string();
    let output = call.client.process_output(&target.id, &name, 0, true).await?;
    let mut following = Following::new(output, 0);
    match call.unless_cancelled(following.until(call, answer_at, None)).await {
        Ok(followed) => followed?,
        Err(left) => {
            let _ = call.client.remove_process(&target.id, &name).await;
            return Err(left);
        }
    }
    following.into_content(target, process, 0)
}

/// Reads the output of a process on.
async fn read_on(call: &Call, target: &Target, process: u64, position: u64) -> Result<Vec<ContentBlock>> {
    let answer_at = Instant::now() + ANSWER_AFTER;
    let output = call.client.process_output(&target.id, &process.to_string(), position, true).await?;
    let mut following = Following::new(output, position);
    call.unless_cancelled(following.until(call, answer_at, Some(CHARS_MAX))).await??;
    following.into_content(target, process, position)
}

/// Output of a process that is followed.
struct Following {
    output: ProcessOutput,
    decoder: Utf8,
    text: HeadAndTail,
    chars: usize,
    /// Position after what was taken.
    position: u64,
    exit: Option<Exit>,
}

impl Following {
    fn new(output: ProcessOutput, position: u64) -> Self {
        Self { output, decoder: Utf8::default(), text: HeadAndTail::default(), chars: 0, position, exit: None }
    }

    /// Reads until the process ends, the time comes, or so many characters were read.
    async fn until(&mut self, call: &Call, at: Instant, chars_max: Option<usize>) -> Result<()> {
        while chars_max.is_none_or(|max| self.chars < max) {
            let Ok(event) = timeout_at(at, self.output.next()).await else { break };
            match event? {
                Some(ProcessEvent::Stdout(bytes) | ProcessEvent::Stderr(bytes)) => {
                    self.position += bytes.len() as u64;
                    let text = self.decoder.push(&bytes);
                    self.chars += text.chars().count();
                    self.text.push(&text);
                }
                Some(ProcessEvent::Gap(bytes)) => {
                    self.position += bytes;
                    self.text.push(&format!("\n[{bytes} bytes are no longer kept]\n"));
                }
                Some(ProcessEvent::Exit(exit)) => self.exit = Some(exit),
                Some(ProcessEvent::Screen(_)) => {}
                None => break,
            }
            call.says(|| self.text.last_line().to_owned());
        }
        Ok(())
    }

    fn into_content(self, target: &Target, process: u64, from: u64) -> Result<Vec<ContentBlock>> {
        let position = self.position - self.decoder.held_bytes() as u64;
        let state = match &self.exit {
            None => format!(
                "[it runs on; to read on: run_command with `process`: {process}, `position`: {position}; to end it: \
                 kill it with a command]"
            ),
            Some(exit) => exit_note(exit),
        };
        let remark = format!("; to read them: run_command with `process`: {process}, `position`: {from}");
        let text = self.text.into_text(&remark);
        let separator = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let content = target.text(format!("{text}{separator}{state}"));
        let has_failed = self.exit.is_some_and(|exit| exit.timed_out || exit.oom_killed);
        if has_failed { Err(Failure::with(content)) } else { Ok(content) }
    }
}

fn exit_note(exit: &Exit) -> String {
    let why = if exit.timed_out {
        ": the timeout ended it; pass a larger `timeout`"
    } else if exit.oom_killed {
        ": the sandbox is out of memory; create_sandbox with more `memory_mb`"
    } else if exit.pids_exhausted {
        ": the sandbox has too many processes"
    } else {
        ""
    };
    format!("[exit code {}{why}]", exit.code)
}
