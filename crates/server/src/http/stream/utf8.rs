//! Decoding of output to text.

/// Decoder of bytes to text that splits only between characters. Invalid UTF-8 becomes U+FFFD.
#[derive(Debug, Default)]
pub struct Text {
    /// Incomplete character at the end: at most 3 bytes.
    held: Vec<u8>,
}

impl Text {
    /// Returns the text that is complete with these bytes.
    pub fn take(&mut self, bytes: &[u8]) -> String {
        let joined;
        let bytes = if self.held.is_empty() {
            bytes
        } else {
            let mut held = std::mem::take(&mut self.held);
            held.extend_from_slice(bytes);
            joined = held;
            &joined
        };
        let whole = bytes.len() - incomplete_tail(bytes);
        self.held.extend_from_slice(&bytes[whole..]);
        String::from_utf8_lossy(&bytes[..whole]).into_owned()
    }

    /// Returns the number of bytes that are held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Returns the incomplete character held back, as U+FFFD.
    pub fn end(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// Returns the number of bytes at the end that begin a character which more bytes could complete.
fn incomplete_tail(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let tail = &bytes[bytes.len() - back..];
        if tail[0] & 0b1100_0000 == 0b1000_0000 {
            continue;
        }
        let is_begun = std::str::from_utf8(tail).is_err_and(|error| error.error_len().is_none());
        return if is_begun { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn text_cut_anywhere_comes_out_whole() {
        let text = "aé€😀\u{0}z";
        for at in 0..=text.len() {
            let mut decoder = Text::default();
            let mut got = decoder.take(&text.as_bytes()[..at]);
            got.push_str(&decoder.take(&text.as_bytes()[at..]));
            got.push_str(&decoder.end());
            assert_eq!(got, text, "cut at {at}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced_and_none_is_held_for_ever() {
        let mut decoder = Text::default();
        assert_eq!(decoder.take(b"a\xff\xfeb"), "a\u{fffd}\u{fffd}b");
        assert_eq!(decoder.take(b"\xf0\x9f"), "");
        assert_eq!(decoder.take(b"x"), "\u{fffd}x");
        assert_eq!(decoder.take(b"\xe2\x82"), "");
        assert_eq!(decoder.end(), "\u{fffd}");
    }
}
