//! Reasons for which a configuration is refused.

use std::fmt::{self, Write as _};
use std::path::PathBuf;

/// Source of a configured value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Default that is built into the program.
    Default,
    /// Configuration file at this path.
    File(PathBuf),
    /// Environment variable of this name.
    Variable(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("built-in default"),
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Variable(name) => f.write_str(name),
        }
    }
}

/// A fault of the configuration. Its text is one line: the dotted key (if it is about one), the
/// source of the value, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The dotted key; empty when a whole file is at fault.
    pub key: String,
    /// Source of the value at fault.
    pub source: Source,
    /// Description of what is wrong, and of what would be right.
    pub message: String,
}

impl Fault {
    pub(super) fn new(key: impl Into<String>, source: Source, message: impl Into<String>) -> Fault {
        Fault { key: key.into(), source, message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = if self.key.is_empty() {
            format!("{}: {}", self.source, self.message)
        } else {
            format!("{} ({}): {}", self.key, self.source, self.message)
        };
        one_line(&line, f)
    }
}

impl std::error::Error for Fault {}

/// Writes `text` with its control characters escaped, so that an unusual key, file name or
/// parser message cannot break the line or control the terminal.
fn one_line(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for c in text.chars() {
        if c.is_control() { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
    }
    Ok(())
}
