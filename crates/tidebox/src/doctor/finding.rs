//! Findings about the host and the server.

use serde::Serialize;

use crate::output::harmless;

/// Level of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Ok,
    /// Works, but could do more.
    Warn,
    Missing,
}

/// One finding about the host or the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Provider's name, or `host` or `server`.
    pub area: String,
    pub level: Level,
    pub fact: String,
    /// Change or installation that gives more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    /// Makes a finding without a defect.
    pub fn ok(area: &str, fact: impl Into<String>) -> Finding {
        Finding { area: area.to_owned(), level: Level::Ok, fact: fact.into(), remedy: None }
    }

    /// Makes a finding with a defect and its remedy.
    pub fn lacking(area: &str, level: Level, fact: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { area: area.to_owned(), level, fact: fact.into(), remedy: Some(remedy.into()) }
    }

    /// Returns all of it but whose finding it is.
    fn reason(&self) -> (Level, &str, Option<&str>) {
        (self.level, &self.fact, self.remedy.as_deref())
    }

    /// Returns whether it says the same as an earlier one, with a remedy, of any area.
    fn repeats(&self, earlier: &Finding) -> bool {
        self.remedy.is_some() && earlier.reason() == self.reason()
    }

    /// Formats it for people: a line, and one more for the remedy.
    pub fn shown(&self) -> String {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Warn => "warn",
            Level::Missing => "missing",
        };
        let mut text = format!("  {level:<8}{:<12}{}\n", harmless(&self.area), harmless(&self.fact));
        if let Some(remedy) = &self.remedy {
            text += &format!("  {:<20}-> {}\n", "", harmless(remedy));
        }
        text
    }
}

/// Formats findings for people. What several providers lack for one reason is said once.
pub fn list<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> String {
    let mut said: Vec<(&Finding, Vec<&str>)> = Vec::new();
    for finding in findings {
        match said.iter_mut().find(|(earlier, _)| finding.repeats(earlier)) {
            Some((earlier, others)) if earlier.area != finding.area => others.push(&finding.area),
            Some(_) => {}
            None => said.push((finding, Vec::new())),
        }
    }
    let shown = said.into_iter().map(|(finding, others)| match others.as_slice() {
        [] => finding.shown(),
        others => {
            let fact = format!("{} (also {})", finding.fact, others.join(", "));
            Finding { fact, ..finding.clone() }.shown()
        }
    });
    shown.collect()
}

#[cfg(test)]
mod test {
    use super::{Finding, Level, list};

    #[test]
    fn what_several_providers_lack_for_one_reason_is_said_once() {
        let lacks = |area: &str, remedy: &str| Finding::lacking(area, Level::Warn, "could do more", remedy);
        let findings = [
            Finding::ok("native", "a box was made"),
            lacks("native", "run as root"),
            lacks("native", "install e2fsprogs"),
            Finding::ok("firecracker", "a machine was booted"),
            lacks("firecracker", "run as root"),
        ];
        let text = list(&findings);
        assert_eq!(text.matches("run as root").count(), 1, "{text}");
        assert!(text.contains("native      could do more (also firecracker)\n"), "{text}");
        assert_eq!(text.lines().count(), 6, "{text}");
    }

    #[test]
    fn a_finding_is_a_line_and_its_remedy_another() {
        assert_eq!(Finding::ok("native", "healthy").shown(), "  ok      native      healthy\n");
        let finding = Finding::lacking("docker", Level::Missing, "no socket\u{1b}[2J", "start the Docker daemon");
        assert_eq!(
            finding.shown(),
            "  missing docker      no socket\\u{1b}[2J\n                      -> start the Docker daemon\n"
        );
    }
}
