//! Names of files as text: any bytes, in a form that the API can carry and take back.
//!
//! A byte that is no part of UTF-8 is `\x` and two digits, `\x80` to `\xff`. A backslash that would begin such
//! a form is itself `\x5c`, so that every text means one name. All other names are their own text.

use std::fmt::Write as _;

/// Returns the text of a name or a path.
#[must_use]
pub fn escaped(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        let valid = chunk.valid();
        for (at, character) in valid.char_indices() {
            let is_form = character == '\\' && byte_of(&valid.as_bytes()[at..]).is_some();
            if is_form { text.push_str("\\x5c") } else { text.push(character) }
        }
        for byte in chunk.invalid() {
            // A text takes all that is written to it.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Returns the name or the path that a text means.
#[must_use]
pub fn unescaped(text: &str) -> Vec<u8> {
    let mut name = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, others)) = rest.split_first() {
        if let Some(byte) = byte_of(rest) {
            name.push(byte);
            rest = &rest[FORM_BYTES..];
        } else {
            name.push(*first);
            rest = others;
        }
    }
    name
}

/// Length of the form of a byte.
const FORM_BYTES: usize = 4;

/// Returns the byte whose form `text` begins with.
fn byte_of(text: &[u8]) -> Option<u8> {
    let [b'\\', b'x', high, low, ..] = text else { return None };
    let byte = digit(*high)? << 4 | digit(*low)?;
    (byte >= 0x80 || byte == b'\\').then_some(byte)
}

fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_name_of_any_bytes_is_the_same_after_its_text() {
        for (name, text) in [
            (&b"plain"[..], "plain"),
            ("na\u{ef}ve \u{65e5}".as_bytes(), "na\u{ef}ve \u{65e5}"),
            (b"caf\xe9.txt", r"caf\xe9.txt"),
            (b"\xff\xfe", r"\xff\xfe"),
            (br"back\slash", r"back\slash"),
            (br"\x41 \x7f \xFF \x", r"\x41 \x7f \xFF \x"),
            (br"caf\xe9.txt", r"caf\x5cxe9.txt"),
            (br"\x5c", r"\x5cx5c"),
            (br"\x5cx5c", r"\x5cx5cx5c"),
            (b"\\\xe9", r"\\xe9"),
            (b"\\x\xe9", r"\x\xe9"),
            (b"\\x8\xe9", r"\x8\xe9"),
            (b"", ""),
        ] {
            assert_eq!(escaped(name), text);
            assert_eq!(unescaped(text), name, "{text}");
        }
    }

    #[test]
    fn no_two_names_have_one_text() {
        let alphabet = *b"\\x5ce9\xe9\x80/";
        // All names of up to five of these.
        let mut names = vec![Vec::new()];
        for _ in 0..5 {
            let longer = names.iter().flat_map(|name: &Vec<u8>| alphabet.map(|byte| [&name[..], &[byte]].concat()));
            names = longer.collect();
            for name in &names {
                assert_eq!(&unescaped(&escaped(name)), name, "{}", escaped(name));
            }
        }
    }
}
