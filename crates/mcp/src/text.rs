//! Text of bounded length for a model.

/// Most characters of output in an answer: what a model reads at once.
pub(crate) const CHARS_MAX: usize = 16_000;
/// Characters of the beginning in a text that is cut in the middle; the end says more.
const HEAD_CHARS: usize = 4_000;

/// Text whose middle is left out once it is long.
#[derive(Debug, Default)]
pub(crate) struct HeadAndTail {
    head: String,
    /// Characters of the head, of which counting would take as long as the text.
    head_chars: usize,
    tail: String,
    /// Bytes between head and tail.
    left_out: usize,
}

impl HeadAndTail {
    pub(crate) fn push(&mut self, text: &str) {
        let room = HEAD_CHARS - self.head_chars;
        let split = text.char_indices().nth(room).map_or(text.len(), |(index, _)| index);
        let (head, tail) = text.split_at(if self.tail.is_empty() { split } else { 0 });
        self.head.push_str(head);
        self.head_chars += head.chars().count();
        self.tail.push_str(tail);
        const TAIL_BYTES: usize = CHARS_MAX - HEAD_CHARS;
        if self.tail.len() > 2 * TAIL_BYTES {
            let cut = self.tail.ceil_char_boundary(self.tail.len() - TAIL_BYTES);
            self.tail.drain(..cut);
            self.left_out += cut;
        }
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.left_out > 0 || self.tail.len() > CHARS_MAX - HEAD_CHARS
    }

    /// Returns the last line, for a person who waits.
    pub(crate) fn last_line(&self) -> &str {
        let text = if self.tail.is_empty() { &self.head } else { &self.tail };
        text.trim_end().lines().next_back().unwrap_or_default()
    }

    /// Returns the text, with a remark where its middle is missing.
    pub(crate) fn into_text(mut self, remark: &str) -> String {
        if !self.is_cut() {
            return self.head + &self.tail;
        }
        let cut = self.tail.ceil_char_boundary(self.tail.len().saturating_sub(CHARS_MAX - HEAD_CHARS));
        self.left_out += cut;
        format!("{}\n[{} bytes left out{remark}]\n{}", self.head, self.left_out, &self.tail[cut..])
    }
}

/// Decoder of UTF-8 that comes in pieces.
#[derive(Debug, Default)]
pub(crate) struct Utf8 {
    /// Beginning of a character.
    rest: Vec<u8>,
}

impl Utf8 {
    /// Returns the text of the bytes; what is no UTF-8 becomes U+FFFD.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> String {
        self.rest.extend_from_slice(bytes);
        let incomplete = match self.rest.utf8_chunks().last() {
            Some(last) if is_beginning(last.invalid()) => last.invalid().len(),
            _ => 0,
        };
        let rest = self.rest.split_off(self.rest.len() - incomplete);
        String::from_utf8_lossy(&std::mem::replace(&mut self.rest, rest)).into_owned()
    }

    /// Returns the number of bytes that were taken and not yet returned.
    pub(crate) fn held_bytes(&self) -> usize {
        self.rest.len()
    }
}

/// Returns whether more bytes could complete a character.
fn is_beginning(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_short_text_stays_whole() {
        let mut text = HeadAndTail::default();
        for _ in 0..CHARS_MAX / 10 {
            text.push("0123456789");
        }
        assert!(!text.is_cut());
        assert_eq!(text.into_text("").len(), CHARS_MAX);
    }

    #[test]
    fn a_long_text_keeps_its_beginning_and_its_end() {
        let mut text = HeadAndTail::default();
        for number in 0..100_000 {
            text.push(&format!("ä{number}\n"));
        }
        assert_eq!(text.last_line(), "ä99999");
        assert!(text.is_cut() && text.tail.len() < 3 * CHARS_MAX);
        let text = text.into_text("; read them");
        assert!(text.starts_with("ä0\nä1\n") && text.ends_with("ä99998\nä99999\n"), "{text}");
        assert!(text.chars().count() < CHARS_MAX + 100 && text.contains(" bytes left out; read them]\n"));
    }

    #[test]
    fn characters_are_put_together_and_what_is_none_is_replaced() {
        let mut decoder = Utf8::default();
        assert_eq!((decoder.push(b"a\xc3"), decoder.held_bytes()), ("a".to_owned(), 1));
        assert_eq!((decoder.push(b"\xa4b"), decoder.held_bytes()), ("äb".to_owned(), 0));
        assert_eq!(decoder.push(b"\xff\xfec\xf0\x9f\x98"), "\u{fffd}\u{fffd}c");
        assert_eq!(decoder.push(b"\x80"), "😀");
    }
}
