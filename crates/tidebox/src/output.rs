//! Output: tables for people, the API's JSON for programs.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::failure::{Failure, Result};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Table for people.
    #[default]
    Table,
    /// JSON of the API, for programs.
    Json,
}

/// Printer of answers and errors.
#[derive(Debug, Clone, Copy)]
pub struct Output {
    pub format: Format,
}

impl Output {
    /// Prints `json` as it is, or what `table` makes of it.
    pub fn print<T: Serialize>(self, json: &T, table: impl FnOnce(&T) -> String) -> Result<()> {
        let mut text = match self.format {
            Format::Table => table(json),
            Format::Json => serde_json::to_string_pretty(json)
                .map_err(|error| Failure::new("protocol_error", format!("the response is not JSON: {error}")))?,
        };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        stdout(text.as_bytes())
    }

    /// Prints a failure on stderr, unless it has no message.
    pub fn complain(self, failure: &Failure) {
        let Some((code, message)) = failure.said() else { return };
        let line = match self.format {
            Format::Table => format!("error: {}", harmless(message)),
            Format::Json => serde_json::json!({ "code": code, "message": message }).to_string(),
        };
        note(&line);
    }

    /// Prints a line on stderr beside the answer, unless the format is JSON.
    pub fn remark(self, line: &str) {
        if self.format == Format::Table {
            note(line);
        }
    }
}

/// Writes bytes to stdout as they are.
pub fn stdout(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| Failure::stdout(&error))
}

/// Writes a line to stderr. A closed stderr is ignored: there is no other place to report it.
pub fn note(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Returns whether stderr is a terminal.
pub fn stderr_is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// Formats columns with a header. Cells come from servers and boxes: see [`harmless`].
pub fn table<R: IntoIterator<Item = String>>(header: &[&str], rows: impl IntoIterator<Item = R>) -> String {
    let mut table = Table::new();
    // No borders, no colours, no wrapping: one line per thing, for people and for `grep` alike.
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for row in rows {
        table.add_row(row.into_iter().map(|cell| harmless(&cell)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// Formats names and values, a pair per line.
pub fn pairs(pairs: impl IntoIterator<Item = (&'static str, String)>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    for (name, value) in pairs {
        table.add_row([name.to_owned(), harmless(&value)]);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// Returns the text with everything made visible that would move a terminal's cursor, change its
/// state, or reorder what is read.
pub fn harmless(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
        let reorders = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || reorders || matches!(c, '\u{2028}' | '\u{2029}') {
            let _ = write!(shown, "{}", c.escape_default());
        } else {
            shown.push(c);
        }
        shown
    })
}

#[cfg(test)]
mod test {
    use super::{harmless, pairs, table};

    #[test]
    fn nothing_reaches_the_terminal_but_text() {
        for (text, shown) in [
            ("plain, naïve, 日本", "plain, naïve, 日本"),
            ("\u{1b}[2Jgone", "\\u{1b}[2Jgone"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("two\nlines\r\tx", "two\\nlines\\r\\tx"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{202e}txt.exe", "\\u{202e}txt.exe"),
            ("\0\u{8}\u{7f}", "\\u{0}\\u{8}\\u{7f}"),
        ] {
            assert_eq!(harmless(text), shown);
        }
    }

    #[test]
    fn tables_are_columns_without_ornament() {
        let rows = [["sb-1".to_owned(), "a\nb".to_owned()], ["sb-22".to_owned(), String::new()]];
        assert_eq!(table(&["ID", "STATE"], rows), "ID     STATE\nsb-1   a\\nb\nsb-22");
        assert_eq!(pairs([("id", "x".to_owned()), ("state", "y".to_owned())]), "id     x\nstate  y");
    }
}
