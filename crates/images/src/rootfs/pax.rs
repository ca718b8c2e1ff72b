//! Records of pax headers, and maps of sparse files.
//!
//! Records are read by their stated length and not by lines: a value may contain any byte,
//! including a line end, as that of a file's capabilities often does.

use std::collections::BTreeMap;

use crate::error::{Error, Result, refuse};

/// Most parts of one sparse file.
const PARTS_MAX: usize = 65_536;
/// Most extended attributes of one file.
const XATTRS_MAX: usize = 256;

/// Part of a sparse file that has content; the bytes between parts are zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// Values of a pax header for the member after it.
#[derive(Debug, Default)]
pub(super) struct Pax {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) mtime: Option<(i64, u32)>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) sparse: Sparse,
}

/// Description of a sparse file, in one of the three ways of GNU tar.
#[derive(Debug, Default)]
pub(super) struct Sparse {
    pub(super) name: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    /// Map of versions 0.0 and 0.1.
    pub(super) parts: Option<Vec<Part>>,
    /// True in version 1.0, where the map comes before the content.
    pub(super) inside: bool,
}

impl Pax {
    /// Reads the records in `text`.
    pub(super) fn parse(mut text: &[u8]) -> Result<Self> {
        let mut pax = Pax::default();
        let mut pairs: Vec<u64> = Vec::new();
        let mut major = 0;
        let mut minor = 0;
        // Sorted, so that equal files have equal attributes.
        let mut xattrs: BTreeMap<&[u8], &[u8]> = BTreeMap::new();
        while !text.is_empty() {
            let (key, value, rest) = record(text).ok_or_else(|| refuse("a pax header is malformed"))?;
            text = rest;
            match key {
                b"path" => pax.path = Some(value.to_vec()),
                b"linkpath" => pax.link = Some(value.to_vec()),
                b"size" => pax.size = Some(decimal(value)?),
                b"uid" => pax.uid = Some(decimal(value)?),
                b"gid" => pax.gid = Some(decimal(value)?),
                b"mtime" => pax.mtime = Some(seconds(value)?),
                b"GNU.sparse.name" => pax.sparse.name = Some(value.to_vec()),
                b"GNU.sparse.size" | b"GNU.sparse.realsize" => pax.sparse.size = Some(decimal(value)?),
                b"GNU.sparse.major" => major = decimal(value)?,
                b"GNU.sparse.minor" => minor = decimal(value)?,
                b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => pairs.push(decimal(value)?),
                b"GNU.sparse.map" if !value.is_empty() => {
                    for number in value.split(|byte| *byte == b',') {
                        pairs.push(decimal(number)?);
                    }
                }
                _ => {
                    if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                        xattrs.insert(name, value);
                        if xattrs.len() > XATTRS_MAX {
                            return Err(refuse(format!("a file has more than {XATTRS_MAX} attributes")));
                        }
                    }
                }
            }
            if pairs.len() > 2 * PARTS_MAX {
                return Err(refuse("a sparse file has too many parts"));
            }
        }
        pax.sparse.inside = (major, minor) == (1, 0);
        if major > 1 || (major == 1 && minor > 0) {
            return Err(refuse("a sparse file has an unknown format version"));
        }
        if !pax.sparse.inside && pax.sparse.size.is_some() {
            if !pairs.len().is_multiple_of(2) {
                return Err(malformed_map());
            }
            let parts = pairs.chunks(2).map(|pair| Part { offset: pair[0], length: pair[1] });
            pax.sparse.parts = Some(parts.collect());
        }
        pax.xattrs = xattrs.into_iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        Ok(pax)
    }
}

/// Refuses a map with more than [`PARTS_MAX`] parts; their values are not checked.
pub(super) fn bounded(parts: usize) -> Result<()> {
    if parts > PARTS_MAX { Err(refuse("a sparse file has too many parts")) } else { Ok(()) }
}

/// Checks that parts are in order and within the file, and returns the bytes that they hold.
pub(super) fn check(parts: &[Part], size: u64) -> Result<u64> {
    bounded(parts.len())?;
    let mut end = 0;
    let mut held = 0_u64;
    for part in parts {
        if part.offset < end {
            return Err(malformed_map());
        }
        end = part.offset.checked_add(part.length).filter(|end| *end <= size).ok_or_else(malformed_map)?;
        held += part.length;
    }
    Ok(held)
}

fn malformed_map() -> Error {
    refuse("the map of a sparse file is malformed")
}

/// Parser of a map before the content, block by block: decimal numbers, one to a line, of which
/// the first is the number of parts.
#[derive(Debug, Default)]
pub(super) struct MapInside {
    /// Digits of a line that continues in the next block.
    line: Vec<u8>,
    numbers: Vec<u64>,
}

impl MapInside {
    /// Adds a block; returns the parts once it has all of them. Padding of the last block is not
    /// checked.
    pub(super) fn add(&mut self, block: &[u8]) -> Result<Option<Vec<Part>>> {
        for piece in block.split_inclusive(|byte| *byte == b'\n') {
            let Some(end) = piece.strip_suffix(b"\n") else {
                self.line.extend_from_slice(piece);
                break;
            };
            self.line.extend_from_slice(end);
            self.numbers.push(decimal(&self.line)?);
            self.line.clear();
            let count = self.numbers[0];
            if count > PARTS_MAX as u64 {
                return Err(refuse("a sparse file has too many parts"));
            }
            if self.numbers.len() as u64 == 1 + 2 * count {
                let pairs = self.numbers[1..].chunks(2);
                return Ok(Some(pairs.map(|pair| Part { offset: pair[0], length: pair[1] }).collect()));
            }
        }
        Ok(None)
    }
}

/// Splits off the first record: `<length> <key>=<value>\n`, where the length counts all of it.
fn record(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = text.iter().take(20).position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&text[..space]).ok()?.parse().ok()?;
    let body = text.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|byte| *byte == b'=')?;
    (equals > 0).then(|| (&body[..equals], &body[equals + 1..], &text[length..]))
}

fn decimal(value: &[u8]) -> Result<u64> {
    std::str::from_utf8(value)
        .ok()
        .filter(|text| !text.starts_with('+'))
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| refuse("a pax header has an invalid number"))
}

fn invalid_time() -> Error {
    refuse("a pax header has an invalid time")
}

/// Parses a decimal fraction into seconds and nanoseconds. The nanoseconds count forward from the
/// second before it, below zero too.
fn seconds(value: &[u8]) -> Result<(i64, u32)> {
    let text = std::str::from_utf8(value).map_err(|_| invalid_time())?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let second: i64 = whole.parse().map_err(|_| invalid_time())?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid_time());
    }
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let nanos: u32 = digits.parse().map_err(|_| invalid_time())?;
    if whole.starts_with('-') && nanos > 0 {
        return Ok((second.checked_sub(1).ok_or_else(invalid_time)?, 1_000_000_000 - nanos));
    }
    Ok((second, nanos))
}

#[cfg(test)]
mod test {
    use super::*;

    fn record_of(key: &str, value: &[u8]) -> Vec<u8> {
        let body = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
        let mut length = body.len();
        while length != body.len() + length.to_string().len() {
            length = body.len() + length.to_string().len();
        }
        [length.to_string().as_bytes(), &body].concat()
    }

    #[test]
    fn a_value_may_hold_the_end_of_a_line() {
        let text = [record_of("SCHILY.xattr.user.a", b"x\n12 path=evil\n"), record_of("path", b"good")].concat();
        let pax = Pax::parse(&text).unwrap();
        assert_eq!(pax.path.as_deref(), Some(&b"good"[..]));
        assert_eq!(pax.xattrs, [(b"user.a".to_vec(), b"x\n12 path=evil\n".to_vec())]);
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        for text in [
            "5 a=b\n",
            "7 a=b\n",
            "99999999999999999999 a=b\n",
            "6 a=b\n6 a=b",
            "6 =ab\n",
            " 6 a=b\n",
            "-6 a=b\n",
            "0 \n",
            "1 ",
            "6 abb\n",
            "18446744073709551615 a=b\n",
        ] {
            assert!(Pax::parse(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(Pax::parse(b"6 a=b\n").is_ok());
    }

    #[test]
    fn of_equal_attributes_the_last_counts_and_too_many_are_refused() {
        let many = |count: usize| -> Vec<u8> {
            (0..count).flat_map(|number| record_of(&format!("SCHILY.xattr.user.{number:03}"), b"x")).collect()
        };
        let twice = [many(XATTRS_MAX), record_of("SCHILY.xattr.user.000", b"y")].concat();
        let xattrs = Pax::parse(&twice).unwrap().xattrs;
        assert_eq!(xattrs.len(), XATTRS_MAX);
        assert_eq!(xattrs[0], (b"user.000".to_vec(), b"y".to_vec()));
        assert!(xattrs.is_sorted());
        assert!(Pax::parse(&many(XATTRS_MAX + 1)).is_err());
    }

    #[test]
    fn times_are_exact_to_the_nanosecond() {
        for (text, expected) in [
            ("0", (0, 0)),
            ("12", (12, 0)),
            ("12.5", (12, 500_000_000)),
            ("12.0000000019", (12, 1)),
            ("-1", (-1, 0)),
            ("-1.25", (-2, 750_000_000)),
            ("-0.5", (-1, 500_000_000)),
        ] {
            assert_eq!(seconds(text.as_bytes()).unwrap(), expected, "{text}");
        }
        for text in ["", ".5", "1.x", "1.-5", "x", "1e9", "99999999999999999999"] {
            assert!(seconds(text.as_bytes()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn maps_of_sparse_files_are_checked() {
        let part = |offset, length| Part { offset, length };
        assert_eq!(check(&[part(0, 2), part(5, 1)], 10).unwrap(), 3);
        assert!(check(&[part(0, 2), part(1, 1)], 10).is_err(), "overlapping");
        assert!(check(&[part(9, 2)], 10).is_err(), "beyond the end");
        assert!(check(&[part(u64::MAX, 2)], u64::MAX).is_err(), "beyond every number");
        let mut map = MapInside::default();
        assert_eq!(map.add(b"2\n0\n").unwrap(), None);
        assert_eq!(map.add(b"7\n1").unwrap(), None);
        assert_eq!(map.add(b"2\n3\nrest").unwrap(), Some(vec![part(0, 7), part(12, 3)]));
        assert_eq!(MapInside::default().add(b"0\n").unwrap(), Some(Vec::new()));
        assert!(MapInside::default().add(b"99999999\n").is_err());
        assert!(MapInside::default().add(b"x\n").is_err());
    }
}
