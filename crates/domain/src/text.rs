//! Rules for text that people read, compare and copy.

use icu_properties::props::{DefaultIgnorableCodePoint, GeneralCategory};
use icu_properties::{CodePointMapData, CodePointSetData};

/// Maximum length of an image's name, in bytes: a host, a repository of 255, a tag of 128, a
/// digest.
const IMAGE_BYTES_MAX: usize = 512;
/// Maximum length of a provider's name, in bytes.
const PROVIDER_BYTES_MAX: usize = 64;

/// Returns whether a character is invisible, moves the characters beside it, or has no common
/// meaning: two names that differ by it look alike.
pub(crate) fn is_hidden(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    let is_without_meaning = matches!(
        CodePointMapData::<GeneralCategory>::new().get(c),
        GeneralCategory::Control
            | GeneralCategory::Format
            | GeneralCategory::LineSeparator
            | GeneralCategory::ParagraphSeparator
            | GeneralCategory::PrivateUse
            | GeneralCategory::Surrogate
            | GeneralCategory::Unassigned
    );
    is_without_meaning || CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(c)
}

/// The rule that the name of an image or of a provider breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// An image's name that is empty, over 512 bytes, or has whitespace or invisible characters.
    #[error("`image` must be 1 to 512 bytes without whitespace or invisible characters")]
    Image,
    /// A provider's name that is empty, over 64 bytes, or has whitespace or invisible characters.
    #[error("`provider` must be 1 to 64 bytes without whitespace or invisible characters")]
    Provider,
}

impl InvalidName {
    /// Checks the name of an image before any provider sees it.
    ///
    /// # Errors
    /// [`InvalidName::Image`] if it is empty, too long, or has whitespace or invisible characters.
    pub fn check_image(name: &str) -> Result<(), Self> {
        if fits(name, IMAGE_BYTES_MAX) { Ok(()) } else { Err(Self::Image) }
    }

    /// Checks the name of a provider, which need not exist yet.
    ///
    /// # Errors
    /// [`InvalidName::Provider`] if it is empty, too long, or has whitespace or invisible
    /// characters.
    pub fn check_provider(name: &str) -> Result<(), Self> {
        if fits(name, PROVIDER_BYTES_MAX) { Ok(()) } else { Err(Self::Provider) }
    }
}

fn fits(name: &str, bytes_max: usize) -> bool {
    (1..=bytes_max).contains(&name.len()) && !name.chars().any(|c| c.is_whitespace() || is_hidden(c))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_hidden_and_letters_of_every_script_are_not() {
        for c in [
            '\0',
            '\u{7f}',
            '\u{85}',
            '\u{ad}',
            '\u{34f}',
            '\u{61c}',
            '\u{115f}',
            '\u{180e}',
            '\u{200b}',
            '\u{200d}',
            '\u{200e}',
            '\u{2028}',
            '\u{2029}',
            '\u{202e}',
            '\u{2060}',
            '\u{2066}',
            '\u{3164}',
            '\u{378}',
            '\u{e000}',
            '\u{fe0f}',
            '\u{feff}',
            '\u{ffa0}',
            '\u{fffe}',
            '\u{e0041}',
            '\u{e0100}',
            '\u{10fffd}',
            '\u{10ffff}',
        ] {
            assert!(is_hidden(c), "{c:?}");
        }
        for c in ['a', '~', 'ä', 'ß', 'Ω', '团', '한', 'ع', 'ह', 'ि', '\u{301}', '🦀', '½', '‑', '€'] {
            assert!(!is_hidden(c), "{c:?}");
        }
    }

    #[test]
    fn the_name_of_an_image_is_short_and_can_be_read() {
        for name in ["host", "python:3.12", "ghcr.io/a/b@sha256:0", &"x".repeat(512)] {
            assert_eq!(InvalidName::check_image(name), Ok(()), "{name}");
        }
        for name in ["", "a b", "a\u{202e}b", "a\nb", &"x".repeat(513)] {
            assert_eq!(InvalidName::check_image(name), Err(InvalidName::Image), "{name}");
        }
    }
}
