//! Lines of the answer to a run.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::control::{Control, DIED, Outcome, RunEnd, Stream};
use crate::http::stream::run_lines::{Form, Line};

/// Fields of a result, and the MIME types that they are for.
const FIELDS: [(&str, &str); 12] = [
    ("text", "text/plain"),
    ("html", "text/html"),
    ("markdown", "text/markdown"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpeg", "image/jpeg"),
    ("pdf", "application/pdf"),
    ("latex", "text/latex"),
    ("json", "application/json"),
    ("javascript", "application/javascript"),
    ("data", "application/vnd.tidebox.frame+json"),
    ("chart", "application/vnd.tidebox.chart+json"),
];
/// Name of the error of an interpreter that ended.
const UNEXPECTED_END: &str = "UnexpectedEndOfExecution";

/// Form of E2B's packages.
pub struct Lines {
    /// Clock of the server.
    control: Arc<Control>,
}

impl Lines {
    pub fn new(control: &Arc<Control>) -> Self {
        Self { control: Arc::clone(control) }
    }

    fn output(&self, stream: &str, text: String) -> Value {
        let at = self.control.now();
        json!({"type": stream, "text": text, "timestamp": format!("{at:.6}")})
    }
}

impl Form for Lines {
    const KEEP_ALIVE: Duration = Duration::from_secs(5);

    fn line(&self, line: Line) -> Option<String> {
        let value = match line {
            Line::Started { count, .. } => json!({"type": "number_of_executions", "execution_count": count}),
            Line::Output(Stream::Stdout, text) => self.output("stdout", text),
            Line::Output(Stream::Stderr, text) => self.output("stderr", text),
            Line::Result { is_main, data } => result(is_main, data),
            Line::Error { name, value, traceback } => {
                let name = if name == DIED { UNEXPECTED_END.to_owned() } else { name };
                json!({"type": "error", "name": name, "value": value, "traceback": traceback})
            }
            Line::Dropped => {
                let text = "a result was left out: this caller holds too much of the server's memory\n";
                self.output("stderr", text.to_owned())
            }
            Line::KeepAlive => json!({"type": "keepalive"}),
            Line::End(end) => return Some(last(end)),
        };
        Some(value.to_string())
    }

    fn cut(&self, error: &providers::Error) -> Option<Vec<Line>> {
        tracing::debug!(error = %providers::Chain(error), "the stream of a run was interrupted");
        // The packages ask for the health of the sandbox then.
        None
    }
}

/// Returns the last line or lines of a run.
fn last(end: RunEnd) -> String {
    let over = json!({"type": "end_of_execution"});
    if end.outcome != Outcome::TimedOut {
        return over.to_string();
    }
    let value = "the code ran longer than the sandbox's commands may; run it in the background";
    let error = json!({"type": "error", "name": "TimeoutError", "value": value, "traceback": ""});
    format!("{error}\n{over}")
}

/// Returns the line of a result.
fn result(is_main: bool, mut data: Map<String, Value>) -> Value {
    let mut line = Map::from_iter([("type".to_owned(), json!("result"))]);
    for (field, mime) in FIELDS {
        if let Some(value) = data.remove(mime) {
            line.insert(field.to_owned(), if field == "text" { without_quotes(value) } else { value });
        }
    }
    if is_main {
        line.insert("is_main_result".to_owned(), json!(true));
    }
    line.insert("extra".to_owned(), Value::Object(data));
    Value::Object(line)
}

/// Returns the text of a value without the quotes around that of a string.
fn without_quotes(value: Value) -> Value {
    let Some(text) = value.as_str() else { return value };
    let inner = ["'", "\""].iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote));
    inner.map_or(value.clone(), |inner| json!(inner))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_result_has_a_field_for_each_known_type_and_the_others_are_extra() {
        let data = json!({
            "text/plain": "'it''s'",
            "image/png": "aGk=",
            "application/vnd.tidebox.chart+json": {"type": "line"},
            "application/x-custom": 1,
        });
        let Value::Object(data) = data else { unreachable!() };
        assert_eq!(
            result(true, data),
            json!({
                "type": "result", "text": "it''s", "png": "aGk=", "chart": {"type": "line"}, "is_main_result": true,
                "extra": {"application/x-custom": 1},
            })
        );
        assert_eq!(result(false, Map::new()), json!({"type": "result", "extra": {}}));
    }

    #[test]
    fn only_a_pair_of_quotes_is_taken_away() {
        for (text, expected) in [("'a'", "a"), ("\"it's\"", "it's"), ("'", "'"), ("'a", "'a"), ("a", "a"), ("''", "")] {
            assert_eq!(without_quotes(json!(text)), json!(expected), "{text}");
        }
    }
}
