//! Output and results of code, for people.

use std::io::IsTerminal as _;

use api::{RunLine, RunOutcome};
use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt as _;

use super::images::{Image, Images, Shown};
use super::run_end::RunEnd;
use crate::failure::{Failure, Result};
use crate::output::note;

/// Representations of a result that are text, in order of preference.
const TEXT_TYPES: [&str; 3] = ["text/plain", "text/markdown", "text/latex"];

/// Printer of what code writes and returns. As with a command, its text is printed unchanged.
#[derive(Debug)]
pub struct Display {
    images: Images,
    /// True if stderr ends up on the same screen as stdout.
    shares_screen: bool,
    /// True if the last line of stdout has no end yet.
    is_within_line: bool,
    /// True if the code has failed and said how.
    has_failed: bool,
}

impl Display {
    pub fn new(images: Images) -> Display {
        let shares_screen = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        Display { images, shares_screen, is_within_line: false, has_failed: false }
    }

    /// Prepares for the next run.
    pub fn begin_run(&mut self) {
        self.images.begin_run();
        self.has_failed = false;
    }

    /// Prints an event; returns the end of the run.
    pub async fn show(&mut self, line: RunLine) -> Result<Option<RunEnd>> {
        match line {
            RunLine::Started { state_lost, .. } => {
                if state_lost {
                    note("tidebox: the interpreter had ended; another was started, without its state");
                }
            }
            RunLine::Stdout { text } => self.write(&text).await?,
            RunLine::Stderr { text } => self.complain(&text).await,
            RunLine::Result { data, .. } => self.result(&data).await?,
            RunLine::Error { name, value, traceback } => {
                self.has_failed = true;
                self.end_line().await?;
                let text = if traceback.is_empty() { format!("{name}: {value}") } else { traceback };
                self.complain(&with_line_end(text)).await;
            }
            RunLine::Dropped => note("tidebox: the server dropped a result, because too many wait to be read"),
            RunLine::KeepAlive => {}
            RunLine::End { outcome, restarted, .. } => {
                let end = RunEnd { outcome, restarted };
                if let Some(remark) = remark(end, self.has_failed) {
                    self.end_line().await?;
                    note(&format!("tidebox: {remark}"));
                }
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    /// Ends a line that the code has left open.
    pub async fn end_line(&mut self) -> Result<()> {
        if self.is_within_line { self.write("\n").await } else { Ok(()) }
    }

    async fn result(&mut self, data: &Map<String, Value>) -> Result<()> {
        self.end_line().await?;
        let Some(image) = Image::of(data) else { return self.text(data).await };
        match tokio::task::block_in_place(|| self.images.show(&image)) {
            Ok(Shown::InTerminal(sequence, file)) => {
                self.write(&sequence).await?;
                if let Some(file) = file {
                    note(&format!("tidebox: {} saved in {}", image.description(), file.display()));
                }
                return Ok(());
            }
            Ok(Shown::Saved(file)) => note(&format!("tidebox: {} saved in {}", image.description(), file.display())),
            Ok(Shown::Nowhere) => {
                note(&format!("tidebox: {} not shown; save it with --images DIR", image.description()));
            }
            Ok(Shown::TooMany) => {
                note(&format!("tidebox: {} not saved; the code displays too many images", image.description()));
            }
            Err(error) => note(&format!("tidebox: {} cannot be saved: {error}", image.description())),
        }
        self.text(data).await
    }

    async fn text(&mut self, data: &Map<String, Value>) -> Result<()> {
        let text = TEXT_TYPES.iter().find_map(|mime| data.get(*mime)?.as_str());
        match text {
            Some(text) => self.write(&with_line_end(text.to_owned())).await,
            None if Image::of(data).is_some() => Ok(()),
            None => {
                let types: Vec<&str> = data.keys().map(String::as_str).collect();
                let types = crate::output::harmless(&types.join(", "));
                note(&format!("tidebox: a result without text ({types}) not shown; use --output json"));
                Ok(())
            }
        }
    }

    async fn write(&mut self, text: &str) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.is_within_line = !text.ends_with('\n');
        let mut stdout = tokio::io::stdout();
        // Flushed each time, because tokio's own buffer would keep the last bytes.
        let written = async { stdout.write_all(text.as_bytes()).await.and(stdout.flush().await) }.await;
        written.map_err(|error| Failure::stdout(&error))
    }

    /// Writes to stderr. A closed stderr must not end the code's stdout.
    async fn complain(&mut self, text: &str) {
        if self.shares_screen && !text.is_empty() {
            self.is_within_line = !text.ends_with('\n');
        }
        let mut stderr = tokio::io::stderr();
        let _ = async { stderr.write_all(text.as_bytes()).await.and(stderr.flush().await) }.await;
    }
}

fn with_line_end(mut text: String) -> String {
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Returns what to say of the end of a run, where its output does not say it.
fn remark(end: RunEnd, has_failed: bool) -> Option<&'static str> {
    match (end.outcome, end.restarted) {
        (RunOutcome::TimedOut, false) => Some("the deadline interrupted the code"),
        (RunOutcome::TimedOut, true) => {
            Some("the deadline passed and the code ignored the interrupt; the interpreter was restarted")
        }
        (RunOutcome::Ok | RunOutcome::Error | RunOutcome::Interrupted | RunOutcome::Died, true) => {
            Some("the interpreter was restarted; its state is lost")
        }
        (RunOutcome::Interrupted, false) if !has_failed => Some("interrupted"),
        (RunOutcome::Died, false) if !has_failed => Some("the interpreter ended; its state is lost"),
        (RunOutcome::Error, false) if !has_failed => Some("the code failed"),
        (RunOutcome::Ok | RunOutcome::Error | RunOutcome::Interrupted | RunOutcome::Died, false) => None,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_end_that_the_output_does_not_explain_is_explained() {
        let end = |outcome, restarted| RunEnd { outcome, restarted };
        assert_eq!(remark(end(RunOutcome::Ok, false), false), None);
        assert_eq!(remark(end(RunOutcome::Error, false), true), None);
        assert_eq!(remark(end(RunOutcome::Interrupted, false), true), None);
        assert_eq!(remark(end(RunOutcome::Interrupted, false), false), Some("interrupted"));
        assert!(remark(end(RunOutcome::TimedOut, true), true).unwrap().contains("restarted"));
        assert!(remark(end(RunOutcome::TimedOut, false), true).unwrap().contains("interrupted"));
    }
}
