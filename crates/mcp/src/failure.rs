//! Failures of a tool, as a model reads them.

use std::fmt;

use rmcp::model::ContentBlock;

/// Failure of a tool: what happened, and what to do next.
#[derive(Debug)]
pub(crate) struct Failure {
    content: Vec<ContentBlock>,
}

impl Failure {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self::with(vec![ContentBlock::text(text)])
    }

    /// Makes a failure that shows what was done until then.
    pub(crate) fn with(content: Vec<ContentBlock>) -> Self {
        Self { content }
    }

    pub(crate) fn into_content(self) -> Vec<ContentBlock> {
        self.content
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.content.iter().filter_map(ContentBlock::as_text).try_for_each(|text| f.write_str(&text.text))
    }
}

impl std::error::Error for Failure {}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Self {
        let next = match error.code() {
            "unavailable" | "internal" => "; try again",
            "no_space" => "; remove files, or use another sandbox",
            "connection_cut" | "timeout" => "; look at its effects before you repeat it",
            _ => "",
        };
        Self::new(format!("{error}{next}"))
    }
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;
