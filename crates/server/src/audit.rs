//! What of a request is written into the audit history, and how.

mod refusals;

use std::borrow::Cow;

pub use refusals::{Refusals, Seen, Source, Untold};

/// The longest path that is kept, in characters.
pub const PATH_CHARS_MAX: usize = 512;
/// The longest name of a client that is kept, in characters.
pub const AGENT_CHARS_MAX: usize = 256;
/// The action of a row that counts refused keys.
pub const KEY_REFUSED: &str = "key.refused";

const API: &str = "/api/v1/";
/// What is left out when it is read: a monitor asks for it every few seconds.
const FIGURES: [&str; 2] = ["metrics", "diagnostics"];
/// Groups whose changes are written down on their open routes too.
const OPEN_GROUPS: [&str; 3] = ["quotas", "templates", "images"];

/// What a request asks for, as far as the history is concerned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deed {
    /// Such as `quotas.update`.
    pub action: String,
    /// Whether it asks for a change.
    pub is_change: bool,
    /// Whether a success is left out.
    pub only_failures: bool,
}

/// What `method` on `path` is to the history: `None` if it is not written down.
#[must_use]
pub fn deed(method: &str, path: &str) -> Option<Deed> {
    let rest = path.strip_prefix(API)?;
    let is_change = !matches!(method, "GET" | "HEAD" | "OPTIONS");
    let (is_admin, rest) = match rest.strip_prefix("admin") {
        Some("") => (true, ""),
        Some(rest) if rest.starts_with('/') => (true, &rest[1..]),
        _ => (false, rest),
    };
    let mut parts = rest.split('/').filter(|part| !part.is_empty());
    let group = parts.next().unwrap_or("admin");
    let rest: Vec<&str> = parts.collect();
    if !is_admin {
        // To spawn from a template changes no template.
        let is_spawn = group == "templates" && rest.len() == 2;
        if !is_change || !OPEN_GROUPS.contains(&group) || is_spawn {
            return None;
        }
    }
    let verb: Cow<'_, str> = match (method, rest.as_slice()) {
        ("PUT" | "PATCH", _) => "update".into(),
        ("DELETE", _) => "delete".into(),
        (_, [.., last]) if is_word(last) && (is_change || rest.len() > 1 || is_fixed(last)) => (*last).into(),
        ("POST", _) => "create".into(),
        ("GET" | "HEAD", []) => "list".into(),
        ("GET" | "HEAD", _) => "get".into(),
        _ => method.to_ascii_lowercase().into(),
    };
    Some(Deed {
        action: bounded(&format!("{group}.{verb}"), 64),
        is_change,
        only_failures: !is_change && FIGURES.contains(&group),
    })
}

/// Whether a last segment of the API's own is an action or a view: `test`, `usage`.
fn is_word(segment: &str) -> bool {
    !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
}

/// Whether it stands where another request has a name.
fn is_fixed(segment: &str) -> bool {
    matches!(segment, "summary" | "prometheus")
}

/// The text with what cannot be seen, or would move a terminal's cursor, made
/// visible, and no longer than `chars_max`.
#[must_use]
pub fn bounded(text: &str, chars_max: usize) -> String {
    let mut kept = String::with_capacity(text.len().min(chars_max));
    for (count, c) in text.chars().enumerate() {
        if count == chars_max {
            kept.push('…');
            break;
        }
        if c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            kept.extend(c.escape_unicode());
        } else {
            kept.push(c);
        }
    }
    kept
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_admin_request_is_written_down_but_what_a_monitor_reads() {
        for (method, path, action, only_failures) in [
            ("GET", "/api/v1/admin/audit", "audit.list", false),
            ("GET", "/api/v1/admin/providers", "providers.list", false),
            ("GET", "/api/v1/admin/providers/native", "providers.get", false),
            ("POST", "/api/v1/admin/providers/test", "providers.test", false),
            ("GET", "/api/v1/admin/quotas/summary", "quotas.summary", false),
            ("GET", "/api/v1/admin/quotas/alice", "quotas.get", false),
            ("GET", "/api/v1/admin/quotas/alice/usage", "quotas.usage", false),
            ("PUT", "/api/v1/admin/quotas/alice", "quotas.update", false),
            ("DELETE", "/api/v1/admin/quotas/alice", "quotas.delete", false),
            ("POST", "/api/v1/admin/workers/w1/drain", "workers.drain", false),
            ("GET", "/api/v1/admin/metrics", "metrics.list", true),
            ("GET", "/api/v1/admin/metrics/prometheus", "metrics.prometheus", true),
            ("HEAD", "/api/v1/admin/diagnostics", "diagnostics.list", true),
            ("POST", "/api/v1/admin/diagnostics", "diagnostics.create", false),
            ("GET", "/api/v1/admin", "admin.list", false),
            ("GET", "/api/v1/admin/", "admin.list", false),
            ("BREW", "/api/v1/admin/pot", "pot.brew", false),
        ] {
            let deed = deed(method, path).unwrap_or_else(|| panic!("{method} {path} is not written down"));
            assert_eq!((deed.action.as_str(), deed.only_failures), (action, only_failures), "{method} {path}");
        }
    }

    #[test]
    fn of_the_open_routes_changes_of_quotas_templates_and_images_are_written_down() {
        for (method, path, action) in [
            ("POST", "/api/v1/templates", "templates.create"),
            ("PUT", "/api/v1/templates/py", "templates.update"),
            ("DELETE", "/api/v1/templates/py", "templates.delete"),
            ("PUT", "/api/v1/quotas/alice", "quotas.update"),
            ("DELETE", "/api/v1/quotas/alice", "quotas.delete"),
            ("POST", "/api/v1/images/pull", "images.pull"),
            ("POST", "/api/v1/images/import", "images.import"),
            ("POST", "/api/v1/images/prune", "images.prune"),
            ("DELETE", "/api/v1/images/localhost:5000/a/b:1", "images.delete"),
        ] {
            assert_eq!(deed(method, path).map(|deed| deed.action).as_deref(), Some(action), "{method} {path}");
        }
        for (method, path) in [
            ("GET", "/api/v1/templates"),
            ("GET", "/api/v1/images"),
            ("POST", "/api/v1/templates/py/spawn"),
            ("GET", "/api/v1/quotas/alice"),
            ("POST", "/api/v1/sandboxes"),
            ("GET", "/api/v1/administrator"),
            ("DELETE", "/api/v1/templatesx/py"),
            ("DELETE", "/templates/py"),
        ] {
            assert_eq!(deed(method, path), None, "{method} {path}");
        }
    }

    #[test]
    fn what_is_kept_of_a_callers_text_is_bounded_and_harmless() {
        assert_eq!(bounded("curl/8", 256), "curl/8");
        assert_eq!(bounded("a\u{1b}[2J\r\n\u{202e}b", 256), "a\\u{1b}[2J\\u{d}\\u{a}\\u{202e}b");
        assert_eq!(bounded(&"é".repeat(300), 256), format!("{}…", "é".repeat(256)));
    }
}
