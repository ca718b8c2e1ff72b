//! The line editor of the REPL.

use std::path::PathBuf;
use std::time::Duration;

use api::CodeLanguage;
use client::Client;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Helper};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::history;
use super::unfinished::is_unfinished;
use crate::code::language_name;
use crate::failure::{Failure, Result};
use crate::output::{harmless, note, stdout};
use crate::signals::Signals;

/// The longest wait for completions. They may have to wait for code that another client runs.
const COMPLETE_MAX: Duration = Duration::from_secs(3);
/// Most completions that are offered.
const OFFERED_MAX: usize = 1000;
/// Number of entries in the history.
const ENTRIES_MAX: usize = 2000;
/// Indentation that Tab inserts at the start of a line.
const INDENT: &str = "    ";
/// Exit code that stands for Ctrl-C.
pub const INTERRUPTED: u8 = 130;
/// Ends the mode in which a terminal marks what is pasted.
const END_MARKED_PASTING: &[u8] = b"\x1b[?2004l";

/// Input of a person.
#[derive(Debug)]
pub enum Typed {
    Code(String),
    /// Ctrl-C: the person wants another prompt.
    Cleared,
    /// Ctrl-D, or the terminal is gone.
    End,
    /// A signal ends this process, with this exit code.
    Signal(u8),
}

/// Interpreter that completes code.
#[derive(Debug, Clone)]
pub struct Kernel {
    pub client: Client,
    pub id: String,
    pub context_id: String,
    pub language: CodeLanguage,
}

type Editor = rustyline::Editor<Kernel, FileHistory>;

/// Reader of code from the terminal, with a history.
#[derive(Debug)]
pub struct Reader {
    /// Absent while a thread reads.
    editor: Option<Editor>,
    history: Option<PathBuf>,
    prompt: String,
    _terminal: TerminalMode,
}

impl Reader {
    /// Prepares the terminal and the history of the language.
    pub fn new(kernel: Kernel) -> Result<Reader> {
        let _terminal = TerminalMode::of_stdin()?;
        let prompt = format!("{}> ", language_name(kernel.language));
        let history = history::file(language_name(kernel.language), |name| std::env::var_os(name));
        let config = Config::builder().completion_type(CompletionType::List).tab_stop(4);
        let config = config.max_history_size(ENTRIES_MAX).map_err(unusable)?.build();
        let mut editor = Editor::with_config(config).map_err(unusable)?;
        editor.set_helper(Some(kernel));
        if let Some(file) = &history {
            // The first session has none.
            let _ = editor.load_history(file);
            if let Err(error) = history::make_folder(file) {
                note(&format!("tidebox: no history is kept, because its folder cannot be made: {error}"));
            }
        }
        Ok(Reader { editor: Some(editor), history, prompt, _terminal })
    }

    /// Reads code to its last line.
    pub async fn read(&mut self, signals: &mut Signals) -> Result<Typed> {
        let Some(mut editor) = self.editor.take() else { return Ok(Typed::End) };
        let (prompt, history) = (self.prompt.clone(), self.history.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let typed = editor.readline(&prompt);
            if let Ok(code) = &typed
                && !code.trim().is_empty()
                && editor.add_history_entry(code.trim_end()).unwrap_or(false)
                && let Some(file) = &history
            {
                // Without it, the next session has a shorter history.
                let _ = editor.append_history(file);
            }
            (editor, typed)
        });
        tokio::pin!(reading);
        loop {
            tokio::select! {
                exit = signals.next() => {
                    // At the prompt, Ctrl-C is a key. A signal is left of a run that ended first.
                    if exit != INTERRUPTED {
                        return Ok(Typed::Signal(exit));
                    }
                }
                read = &mut reading => {
                    let (editor, typed) = read.map_err(|_| Failure::new("io_error", "the line editor failed"))?;
                    self.editor = Some(editor);
                    return typed_code(typed);
                }
            }
        }
    }
}

fn typed_code(typed: rustyline::Result<String>) -> Result<Typed> {
    match typed {
        Ok(code) => Ok(Typed::Code(code)),
        Err(ReadlineError::Interrupted) => Ok(Typed::Cleared),
        Err(ReadlineError::Eof) => Ok(Typed::End),
        Err(error) => Err(unusable(error)),
    }
}

fn unusable(error: ReadlineError) -> Failure {
    Failure::new("io_error", format!("the terminal cannot be used: {error}"))
}

/// The mode that the terminal had at first. Dropping it restores the mode, because a signal may end the process while
/// the editor has another one.
#[derive(Debug)]
struct TerminalMode(Termios);

impl TerminalMode {
    fn of_stdin() -> Result<TerminalMode> {
        let mode = tcgetattr(std::io::stdin());
        mode.map(TerminalMode).map_err(|errno| Failure::io("the terminal cannot be used", &errno.into()))
    }
}

impl Drop for TerminalMode {
    fn drop(&mut self) {
        // A terminal that is gone needs no mode.
        let _ = stdout(END_MARKED_PASTING);
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.0);
    }
}

impl Helper for Kernel {}

impl Hinter for Kernel {
    type Hint = String;
}

impl Highlighter for Kernel {}

impl Validator for Kernel {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let is_unfinished = is_unfinished(self.language, context.input());
        Ok(if is_unfinished { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Completer for Kernel {
    type Candidate = String;

    fn complete(&self, line: &str, pos: usize, _: &rustyline::Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let before = line.get(..pos).unwrap_or_default();
        if before.rsplit('\n').next().is_none_or(|line| line.trim().is_empty()) {
            return Ok((pos, vec![INDENT.to_owned()]));
        }
        let asked = self.client.complete_code(&self.id, &self.context_id, line, before.chars().count());
        let answer = Handle::current().block_on(async { timeout(COMPLETE_MAX, asked).await });
        Ok(match answer {
            Ok(Ok(completions)) => offered(before, completions),
            Ok(Err(_)) | Err(_) => (pos, Vec::new()),
        })
    }
}

/// Converts completions to what the editor takes: the byte at which they begin, and texts that are safe to show.
fn offered(before: &str, completions: api::Completions) -> (usize, Vec<String>) {
    let api::Completions { start, matches } = completions;
    let begin = before.char_indices().map(|(index, _)| index).nth(start).unwrap_or(before.len());
    let is_safe = |text: &String| harmless(text) == *text;
    (begin, matches.into_iter().filter(is_safe).take(OFFERED_MAX).collect())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn completions_begin_at_a_character_and_do_not_move_the_cursor() {
        let completions = |start, matches: &[&str]| api::Completions {
            start,
            matches: matches.iter().map(|text| (*text).to_owned()).collect(),
        };
        let (begin, matches) = offered("é.up", completions(2, &["upper", "\u{1b}[2J"]));
        assert_eq!((begin, matches), ("é.".len(), vec!["upper".to_owned()]));
        assert_eq!(offered("ab", completions(9, &[])).0, 2);
    }
}
