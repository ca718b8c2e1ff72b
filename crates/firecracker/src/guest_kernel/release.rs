//! Releases of kernels, such as `6.1.0-56-amd64`.

use std::cmp::Ordering;

/// Maximum length, `__NEW_UTS_LEN` of Linux.
const RELEASE_LEN_MAX: usize = 64;

/// Returns the release with which `text` begins, up to a blank. One that could not be the name of a
/// folder is none.
pub(super) fn leading(text: &[u8]) -> Option<&str> {
    let end = text.iter().take(RELEASE_LEN_MAX + 1).position(|byte| matches!(byte, b' ' | b'\n' | 0))?;
    let release = std::str::from_utf8(&text[..end]).ok()?;
    (release.starts_with(|first: char| first.is_ascii_digit()) && release.bytes().all(is_fine)).then_some(release)
}

fn is_fine(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-_+~".contains(&byte)
}

/// Compares releases: numbers in them by their value.
pub(super) fn compare(one: &str, other: &str) -> Ordering {
    let mut one = one.as_bytes();
    let mut other = other.as_bytes();
    loop {
        let (Some(&first), Some(&second)) = (one.first(), other.first()) else {
            return one.len().cmp(&other.len());
        };
        if first.is_ascii_digit() && second.is_ascii_digit() {
            let (number, rest) = leading_number(one);
            let (other_number, other_rest) = leading_number(other);
            // Without leading zeros the longer one is the larger.
            let order = number.len().cmp(&other_number.len()).then(number.cmp(other_number));
            if order.is_ne() {
                return order;
            }
            (one, other) = (rest, other_rest);
        } else if first == second {
            (one, other) = (&one[1..], &other[1..]);
        } else {
            return first.cmp(&second);
        }
    }
}

/// Splits off the digits at the beginning, without leading zeros.
fn leading_number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let zeros = text[..end].iter().position(|byte| *byte != b'0').unwrap_or(end);
    (&text[zeros..end], &text[end..])
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_release_ends_at_a_blank_and_names_a_folder() {
        for (text, release) in [
            ("6.1.0-56-amd64 (debian-kernel@lists.debian.org) #1 SMP", Some("6.1.0-56-amd64")),
            ("6.12.117+deb13-amd64\0", Some("6.12.117+deb13-amd64")),
            ("6.8.0-rc1_x~y\n", Some("6.8.0-rc1_x~y")),
            ("6.1.0", None),
            ("", None),
            (" 6.1", None),
            ("../../etc \0", None),
            ("6/../../etc \0", None),
            ("%s (%s) ", None),
            ("6.1\u{e9} ", None),
        ] {
            assert_eq!(leading(text.as_bytes()), release, "{text:?}");
        }
        assert_eq!(leading(format!("6{} ", "1".repeat(63)).as_bytes()).map(str::len), Some(64));
        assert_eq!(leading(format!("6{} ", "1".repeat(64)).as_bytes()), None);
    }

    #[test]
    fn releases_are_compared_by_their_numbers() {
        let ascending = [
            "5.10.0-9-amd64",
            "5.10.0-10-amd64",
            "6.1.0-9-amd64",
            "6.1.0-56-amd64",
            "6.1.0-56-amd64-more",
            "6.12.0",
            "6.12.117+deb13-amd64",
        ];
        for (index, one) in ascending.iter().enumerate() {
            for (other_index, other) in ascending.iter().enumerate() {
                assert_eq!(compare(one, other), index.cmp(&other_index), "{one} {other}");
            }
        }
        assert_eq!(compare("6.01", "6.1"), Ordering::Equal);
    }
}
