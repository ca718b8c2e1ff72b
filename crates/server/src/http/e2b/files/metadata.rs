//! Metadata of files, which clients send as headers and boxes keep as extended attributes.

use axum::http::HeaderMap;
use providers::{XATTRS_BYTES_MAX, Xattrs};

use crate::http::error::{Result, malformed};

/// Beginning of the names of the attributes, as in E2B's boxes: programs there set them too.
pub const PREFIX: &str = "user.e2b.";
/// Beginning of the names of the headers.
const HEADER: &str = "x-metadata-";
/// Longest key, in bytes: the kernel allows 255 for the name of an attribute.
const KEY_BYTES_MAX: usize = 255 - PREFIX.len();

/// Reads the metadata that a request sends, by keys in lower case.
///
/// # Errors
/// If a key or a value cannot be kept, or they are too large together.
pub fn sent(headers: &HeaderMap) -> Result<Xattrs> {
    let mut metadata = Xattrs::new();
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(HEADER) else { continue };
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(malformed(format!("a key of metadata must have 1 to {KEY_BYTES_MAX} characters")));
        }
        let text = value.to_str().ok().filter(|text| text.bytes().all(|byte| matches!(byte, b' '..=b'~')));
        let text = text.ok_or_else(|| malformed(format!("the metadata `{key}` must be printable ASCII")))?;
        if metadata.insert(key.to_owned(), text.to_owned()).is_some() {
            return Err(malformed(format!("the metadata `{key}` is given twice")));
        }
    }
    let bytes: usize = metadata.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > XATTRS_BYTES_MAX {
        return Err(malformed(format!("the metadata of a file may take {XATTRS_BYTES_MAX} bytes in all")));
    }
    Ok(metadata)
}

#[cfg(test)]
mod test {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn read(pairs: &[(&str, &[u8])]) -> Result<Xattrs, String> {
        let pair = |(name, value): &(&str, &[u8])| {
            (HeaderName::try_from(*name).unwrap(), HeaderValue::from_bytes(value).unwrap())
        };
        let mut headers = HeaderMap::new();
        for (name, value) in pairs.iter().map(pair) {
            headers.append(name, value);
        }
        sent(&headers).map_err(|error| error.message())
    }

    #[test]
    fn keys_come_from_the_names_of_headers_in_lower_case() {
        let read = read(&[("X-Metadata-Author", b"me ~"), ("x-metadata-b", b""), ("x-other", b"\xff")]).unwrap();
        let expected = [("author", "me ~"), ("b", "")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(read, expected.into());
    }

    #[test]
    fn what_cannot_be_kept_is_refused_by_name() {
        let long = format!("x-metadata-{}", "k".repeat(KEY_BYTES_MAX + 1));
        let large = vec![b'v'; XATTRS_BYTES_MAX];
        for (pairs, words) in [
            (&[("x-metadata-", &b"v"[..])][..], "key"),
            (&[(long.as_str(), b"v")], "key"),
            (&[("x-metadata-k", b"\xc3\xa4")], "`k`"),
            (&[("x-metadata-k", b"a\tb")], "`k`"),
            (&[("x-metadata-k", b"a"), ("x-metadata-k", b"b")], "`k` is given twice"),
            (&[("x-metadata-k", large.as_slice())], "4096 bytes"),
        ] {
            let fault = read(pairs).unwrap_err();
            assert!(fault.contains(words), "{fault}");
        }
        let exact = vec![b'v'; XATTRS_BYTES_MAX - 1];
        read(&[("x-metadata-k", &exact)]).unwrap();
    }
}
