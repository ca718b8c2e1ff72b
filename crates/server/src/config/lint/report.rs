//! Findings, and the report that collects them.

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No reason for a change.
    Pass,
    /// Advice; no failure even in production.
    Warn,
    /// Not fit for production.
    Fail,
}

impl Verdict {
    /// Returns the name as it is printed.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
        }
    }
}

/// Result of one rule for one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Severity of the finding.
    pub verdict: Verdict,
    /// Dotted name of the key.
    pub key: String,
    /// Description of the finding, without any secret.
    pub message: String,
    /// Suggested change; empty if there is none.
    pub remedy: String,
}

/// Findings of one run, in the order of the rules.
pub(super) struct Report {
    pub(super) findings: Vec<Finding>,
    /// Verdict for a failure: a warning outside production.
    pub(super) worst: Verdict,
}

impl Report {
    fn say(&mut self, verdict: Verdict, key: impl Into<String>, message: impl Into<String>, remedy: impl Into<String>) {
        self.findings.push(Finding { verdict, key: key.into(), message: message.into(), remedy: remedy.into() });
    }

    pub(super) fn pass(&mut self, key: impl Into<String>, message: impl Into<String>) {
        self.say(Verdict::Pass, key, message, "");
    }

    pub(super) fn warn(&mut self, key: impl Into<String>, message: impl Into<String>, remedy: impl Into<String>) {
        self.say(Verdict::Warn, key, message, remedy);
    }

    pub(super) fn fail(&mut self, key: impl Into<String>, message: impl Into<String>, remedy: impl Into<String>) {
        self.say(self.worst, key, message, remedy);
    }
}
