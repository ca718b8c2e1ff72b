//! One JSON object for a run of code.

use api::{RunLine, RunOutcome};
use serde::Serialize;
use serde_json::{Map, Value};

use super::run_end::RunEnd;

/// Most bytes that are kept of stdout, of stderr, and of the results, because all of it is held in memory.
const KEPT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Output and results of a run.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    context_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_count: Option<u64>,
    /// True if the interpreter had lost its state before the run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    state_lost: bool,
    stdout: String,
    stderr: String,
    results: Vec<RunResult>,
    error: Option<RunError>,
    outcome: Option<RunOutcome>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    restarted: bool,
    duration: String,
    /// True if output or results are missing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    #[serde(skip)]
    result_bytes: usize,
}

/// The value of the last expression, or something displayed.
#[derive(Debug, Serialize)]
struct RunResult {
    main: bool,
    data: Map<String, Value>,
}

#[derive(Debug, Serialize)]
struct RunError {
    name: String,
    value: String,
    traceback: String,
}

impl Report {
    /// Adds an event; returns the end of the run.
    pub fn add(&mut self, line: RunLine) -> Option<RunEnd> {
        match line {
            RunLine::Started { context_id, execution_count, state_lost } => {
                self.context_id = Some(context_id);
                self.execution_count = Some(execution_count);
                self.state_lost = state_lost;
            }
            RunLine::Stdout { text } => self.truncated |= !append(&mut self.stdout, &text),
            RunLine::Stderr { text } => self.truncated |= !append(&mut self.stderr, &text),
            RunLine::Result { main, data } => self.add_result(main, data),
            RunLine::Error { name, value, traceback } => self.error = Some(RunError { name, value, traceback }),
            RunLine::Dropped => self.truncated = true,
            RunLine::KeepAlive => {}
            RunLine::End { outcome, restarted, duration } => {
                self.outcome = Some(outcome);
                self.restarted = restarted;
                self.duration = duration;
                return Some(RunEnd { outcome, restarted });
            }
        }
        None
    }

    fn add_result(&mut self, main: bool, data: Map<String, Value>) {
        let bytes: usize = data.values().map(value_bytes).sum();
        if self.result_bytes + bytes > KEPT_BYTES_MAX {
            self.truncated = true;
            return;
        }
        self.result_bytes += bytes;
        self.results.push(RunResult { main, data });
    }
}

/// Appends as much of the text as may be kept; returns `false` if some is left out.
fn append(kept: &mut String, text: &str) -> bool {
    let room = KEPT_BYTES_MAX.saturating_sub(kept.len());
    let end = text.floor_char_boundary(room);
    kept.push_str(text.get(..end).unwrap_or_default());
    end == text.len()
}

fn value_bytes(value: &Value) -> usize {
    value.as_str().map_or_else(|| value.to_string().len(), str::len)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_run_is_one_object() {
        let mut report = Report::default();
        let data = serde_json::json!({"text/plain": "2"});
        let Value::Object(data) = data else { unreachable!() };
        for line in [
            RunLine::Started { context_id: "python".to_owned(), execution_count: 3, state_lost: false },
            RunLine::Stdout { text: "a".to_owned() },
            RunLine::Stdout { text: "b\n".to_owned() },
            RunLine::Stderr { text: "c\n".to_owned() },
            RunLine::Result { main: true, data },
        ] {
            assert_eq!(report.add(line), None);
        }
        let end = RunLine::End { outcome: RunOutcome::Ok, restarted: false, duration: "1s".to_owned() };
        assert_eq!(report.add(end), Some(RunEnd { outcome: RunOutcome::Ok, restarted: false }));
        assert_eq!(
            serde_json::to_value(&report).unwrap(),
            serde_json::json!({
                "context_id": "python", "execution_count": 3, "stdout": "ab\n", "stderr": "c\n",
                "results": [{"main": true, "data": {"text/plain": "2"}}], "error": null, "outcome": "ok",
                "duration": "1s",
            })
        );
    }

    #[test]
    fn output_without_end_is_cut_at_a_character() {
        let mut report = Report { stdout: "x".repeat(KEPT_BYTES_MAX - 1), ..Report::default() };
        report.add(RunLine::Stdout { text: "é".to_owned() });
        assert_eq!((report.stdout.len(), report.truncated), (KEPT_BYTES_MAX - 1, true));
    }
}
