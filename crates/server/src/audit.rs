//! The audit history: the requests that are recorded, and the form of their rows.

mod refusals;

pub use refusals::{Refusals, Seen, Source, Untold};

/// Longest path that is kept, in characters.
pub const PATH_CHARS_MAX: usize = 512;
/// Longest user agent that is kept, in characters.
pub const AGENT_CHARS_MAX: usize = 256;
/// Action of a row that counts refused keys.
pub const KEY_REFUSED: &str = "key.refused";

/// Returns the action of a request below `/admin` that no route has: the first segment there,
/// and the method in the words of the other actions.
#[must_use]
pub fn unknown_action(method: &str, path: &str) -> String {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty()).skip_while(|segment| *segment != "admin");
    let group = segments.nth(1).unwrap_or("admin");
    let other = method.to_ascii_lowercase();
    let verb = match method {
        "GET" | "HEAD" => "list",
        "POST" => "create",
        "PUT" | "PATCH" => "update",
        "DELETE" => "delete",
        _ => &other,
    };
    bounded(&format!("{group}.{verb}"), 64)
}

/// Escapes control and invisible characters, including those that move a terminal's cursor, and
/// cuts the text after `chars_max` characters.
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
    fn the_action_of_an_unknown_request_follows_from_its_path_and_method() {
        for (method, path, action) in [
            ("GET", "/api/v1/admin/nothing", "nothing.list"),
            ("POST", "/api/v1/admin/workers/w1/drain", "workers.create"),
            ("DELETE", "/api/v1/admin/providers", "providers.delete"),
            ("GET", "/api/v1/admin", "admin.list"),
            ("GET", "/api/v1/admin/", "admin.list"),
            ("BREW", "/api/v1/admin/pot", "pot.brew"),
        ] {
            assert_eq!(unknown_action(method, path), action, "{method} {path}");
        }
    }

    #[test]
    fn what_is_kept_of_a_callers_text_is_bounded_and_harmless() {
        assert_eq!(bounded("curl/8", 256), "curl/8");
        assert_eq!(bounded("a\u{1b}[2J\r\n\u{202e}b", 256), "a\\u{1b}[2J\\u{d}\\u{a}\\u{202e}b");
        assert_eq!(bounded(&"é".repeat(300), 256), format!("{}…", "é".repeat(256)));
    }
}
