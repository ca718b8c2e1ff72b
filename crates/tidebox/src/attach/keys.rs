//! Keys by which a person leaves a program that goes on.

/// Keys, as the bytes that they type; none by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DetachKeys(Vec<u8>);

impl DetachKeys {
    /// Parses keys such as `ctrl-p,ctrl-q`, `ctrl-]` or `~,.`; nothing for none.
    pub fn parse(text: &str) -> Result<DetachKeys, String> {
        if text.is_empty() {
            return Ok(DetachKeys(Vec::new()));
        }
        let keys: Option<Vec<u8>> = text.split(',').map(key_byte).collect();
        keys.map(DetachKeys).ok_or_else(|| {
            "separate keys with commas; each is a character, or `ctrl-` followed by a letter or one of @[\\]^_"
                .to_owned()
        })
    }
}

/// Returns the byte that a key types; `None` for a name that is not supported.
fn key_byte(name: &str) -> Option<u8> {
    match (name.strip_prefix("ctrl-").map(str::as_bytes), name.as_bytes()) {
        (Some([letter @ (b'a'..=b'z' | b'@' | b'[' | b'\\' | b']' | b'^' | b'_')]), _) => Some(letter & 0x1f),
        (None, [key @ b' '..=b'~']) => Some(*key),
        _ => None,
    }
}

/// Finder of the keys in what is typed.
#[derive(Debug)]
pub struct KeyFilter {
    keys: DetachKeys,
    /// Number of the keys that were typed last, and are held back.
    typed: usize,
}

impl KeyFilter {
    pub fn new(keys: DetachKeys) -> KeyFilter {
        KeyFilter { keys, typed: 0 }
    }

    /// Returns what is to be passed on of `input`, and whether the keys were typed, which ends it.
    pub fn take(&mut self, input: &[u8]) -> (Vec<u8>, bool) {
        let keys = &self.keys.0;
        if keys.is_empty() {
            return (input.to_vec(), false);
        }
        let mut passed = Vec::with_capacity(input.len());
        for byte in input {
            if keys.get(self.typed) != Some(byte) {
                // Typed on: what was held back is input after all.
                passed.extend_from_slice(keys.get(..self.typed).unwrap_or_default());
                self.typed = 0;
            }
            if keys.get(self.typed) == Some(byte) {
                self.typed += 1;
                if self.typed == keys.len() {
                    self.typed = 0;
                    return (passed, true);
                }
            } else {
                passed.push(*byte);
            }
        }
        (passed, false)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written() {
        for (text, bytes) in [("ctrl-p,ctrl-q", &b"\x10\x11"[..]), ("ctrl-]", b"\x1d"), ("~,.", b"~."), ("", b"")] {
            assert_eq!(DetachKeys::parse(text).unwrap().0, bytes, "{text}");
        }
        for text in ["ctrl-", "ctrl-P", "ctrl-é", "é", ",", "ctrl-p,", "escape"] {
            assert!(DetachKeys::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn all_but_the_keys_is_passed_on_however_it_is_cut() {
        let typed = |keys: &str, text: &str, size: usize| {
            let mut filter = KeyFilter::new(DetachKeys::parse(keys).unwrap());
            let mut all = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                let (passed, is_end) = filter.take(piece);
                all.extend(passed);
                if is_end {
                    return (String::from_utf8(all).unwrap(), true);
                }
            }
            (String::from_utf8(all).unwrap(), false)
        };
        for size in 1..6 {
            assert_eq!(typed("ctrl-p,ctrl-q", "ab\x10\x11cd", size), ("ab".to_owned(), true));
            assert_eq!(typed("ctrl-p,ctrl-q", "a\x10b\x10\x10c\x11", size), ("a\x10b\x10\x10c\x11".to_owned(), false));
            assert_eq!(typed("ctrl-p,ctrl-q", "a\x10\x10\x11c", size), ("a\x10".to_owned(), true));
            assert_eq!(typed("", "a\x10\x11", size), ("a\x10\x11".to_owned(), false));
        }
    }
}
