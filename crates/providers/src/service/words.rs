//! Texts of another service.

/// The longest text of another service that reaches a caller, in characters.
const WORDS_CHARS_MAX: usize = 300;

/// Makes an untrusted text one line of at most [`WORDS_CHARS_MAX`] characters.
pub(crate) fn words(text: &str) -> String {
    let mut words: String = text.chars().take(WORDS_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if words.len() < text.len() {
        words.push('…');
    }
    words
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn words_are_on_one_line_and_bounded() {
        assert_eq!(words("a\nb\u{1b}[2Jc"), "a b [2Jc");
        let long = words(&"ä".repeat(1000));
        assert_eq!(long.chars().count(), WORDS_CHARS_MAX + 1);
    }
}
