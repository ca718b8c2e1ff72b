//! Percent-encoding of values in URLs.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::{Error, Result};

/// Characters that are encoded: all but RFC 3986's unreserved ones, so that none has a special
/// meaning in the URL.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes an id or a name as one path segment.
pub(crate) fn segment(name: &'static str, value: &str) -> Result<String> {
    // URL parsers resolve dot segments, encoded or not, so the request would go to another route.
    if value.is_empty() || value == "." || value == ".." {
        return Err(Error::Argument { name, reason: format!("`{value}` is not valid; it names nothing") });
    }
    Ok(encode(value))
}

/// Encodes the segments of an absolute file path, without the leading slash.
pub(crate) fn file_segments(path: &str) -> Result<String> {
    if !path.starts_with('/') {
        return Err(invalid_path(path, "is not absolute; start it with a slash, such as /workspace/file"));
    }
    if path.ends_with('/') {
        return Err(invalid_path(path, "names a directory; end it with a file name"));
    }
    let mut encoded = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        if part == "." || part == ".." {
            return Err(invalid_path(
                path,
                "contains a `.` or `..` segment, which URLs cannot carry; resolve it first",
            ));
        }
        encoded.push(encode(part));
    }
    Ok(encoded.join("/"))
}

fn invalid_path(path: &str, fault: &str) -> Error {
    Error::Argument { name: "the file path", reason: format!("`{path}` {fault}") }
}

/// Returns a query string with its question mark, or an empty string.
pub(crate) fn query(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        text.push(if text.is_empty() { '?' } else { '&' });
        text.push_str(&encode(name));
        text.push('=');
        text.push_str(&encode(value));
    }
    text
}

fn encode(value: &str) -> String {
    utf8_percent_encode(value, ENCODED).to_string()
}

#[cfg(test)]
mod test {
    use super::{file_segments, query, segment};

    #[test]
    fn file_paths_keep_every_character_they_have() {
        for (path, expected) in [
            ("/a", "a"),
            ("/a/b.txt", "a/b.txt"),
            ("//a///b", "a/b"),
            ("/list", "list"),
            ("/move/chmod", "move/chmod"),
            ("/with space", "with%20space"),
            ("/100%", "100%25"),
            ("/already%20encoded", "already%2520encoded"),
            ("/what?", "what%3F"),
            ("/a#b", "a%23b"),
            ("/a+b&c=d;e", "a%2Bb%26c%3Dd%3Be"),
            ("/back\\slash", "back%5Cslash"),
            ("/naïve/日本", "na%C3%AFve/%E6%97%A5%E6%9C%AC"),
            ("/line\nbreak", "line%0Abreak"),
            ("/...", "..."),
            ("/.hidden", ".hidden"),
            ("/~user", "~user"),
        ] {
            assert_eq!(file_segments(path).unwrap(), expected, "{path}");
        }
    }

    #[test]
    fn file_paths_that_a_url_cannot_carry_are_refused() {
        for path in ["", "a", "./a", "/", "/a/", "/a/../b", "/./a", "/a/.."] {
            assert!(file_segments(path).is_err(), "{path}");
        }
    }

    #[test]
    fn the_url_parser_leaves_encoded_paths_as_they_are() {
        for path in ["/with space", "/100%", "/what?", "/a#b", "/naïve", "/%2e%2e/x", "/a\\..\\b"] {
            let encoded = file_segments(path).unwrap();
            let url = reqwest::Url::parse(&format!("http://h/files/{encoded}")).unwrap();
            assert_eq!(url.path(), format!("/files/{encoded}"), "{path}");
            assert_eq!(url.query(), None);
        }
    }

    #[test]
    fn an_id_cannot_reach_another_route() {
        assert_eq!(segment("id", "sb-1/../../x").unwrap(), "sb-1%2F..%2F..%2Fx");
        assert_eq!(segment("id", "a b?c#d").unwrap(), "a%20b%3Fc%23d");
        for id in ["", ".", ".."] {
            assert!(segment("id", id).is_err(), "{id}");
        }
    }

    #[test]
    fn query_values_keep_every_character_they_have() {
        assert_eq!(query(&[]), "");
        assert_eq!(
            query(&[("path", "/a b&c=d#e?f%+"), ("recursive", "true")]),
            "?path=%2Fa%20b%26c%3Dd%23e%3Ff%25%2B&recursive=true"
        );
    }
}
