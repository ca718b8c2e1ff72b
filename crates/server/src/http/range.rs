//! `Range` requests: one range of bytes. <https://www.rfc-editor.org/rfc/rfc9110#section-14>

use axum::http::{HeaderMap, header};

/// Range of a file, as requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// From this byte to the end.
    From(u64),
    /// From the first of these bytes to the second, both included.
    Between(u64, u64),
    /// The last `n` bytes.
    Last(u64),
}

/// Parses the `Range` header. Returns `None` if there is none, and where it may be ignored:
/// another unit, several ranges, or one that makes no sense.
pub fn wanted(headers: &HeaderMap) -> Option<Wanted> {
    let value = headers.get(header::RANGE)?.to_str().ok()?;
    let (first, last) = value.trim().strip_prefix("bytes=")?.trim().split_once('-')?;

    match (first, last) {
        ("", last) => number(last).map(Wanted::Last),
        (first, "") => number(first).map(Wanted::From),
        (first, last) => {
            let first = number(first)?;
            let last = number(last)?;
            (first <= last).then_some(Wanted::Between(first, last))
        }
    }
}

/// Parses digits; `parse` alone would accept a sign.
fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()))
}

impl Wanted {
    /// Returns the first byte and the length within a file of `size` bytes; `None` if the range
    /// lies outside it.
    pub fn within(self, size: u64) -> Option<(u64, u64)> {
        let (first, end) = match self {
            Wanted::From(first) => (first, size),
            Wanted::Between(first, last) => (first, last.saturating_add(1).min(size)),
            Wanted::Last(count) => (size.saturating_sub(count), size),
        };
        (first < end).then(|| (first, end - first))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[track_caller]
    fn check(value: &str, size: u64, expected: Option<Option<(u64, u64)>>) {
        let headers = HeaderMap::from_iter([(header::RANGE, value.parse().unwrap())]);
        assert_eq!(wanted(&headers).map(|wanted| wanted.within(size)), expected, "{value} of {size}");
    }

    #[test]
    fn one_range_is_cut_out_of_the_file() {
        check("bytes=0-0", 10, Some(Some((0, 1))));
        check("bytes=2-5", 10, Some(Some((2, 4))));
        check("bytes=2-99999999999999999999", 10, None);
        check("bytes=2-18446744073709551615", 10, Some(Some((2, 8))));
        check("bytes=7-", 10, Some(Some((7, 3))));
        check("bytes=-3", 10, Some(Some((7, 3))));
        check("bytes=-30", 10, Some(Some((0, 10))));
    }

    #[test]
    fn a_range_outside_the_file_is_told_apart_from_none() {
        check("bytes=10-", 10, Some(None));
        check("bytes=-0", 10, Some(None));
        check("bytes=0-", 0, Some(None));
    }

    #[test]
    fn what_makes_no_sense_is_ignored() {
        for value in
            ["", "bytes", "bytes=", "bytes=-", "bytes=5-2", "bytes=1-2,4-5", "lines=1-2", "bytes=+1-2", "bytes=a-b"]
        {
            check(value, 10, None);
        }
    }
}
