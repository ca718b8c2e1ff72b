//! Strength of keys: whether one could be guessed. docs/operate/production.md states the same rules.

use std::collections::BTreeMap;

/// Length of the shortest key, in bytes: that of 16 random bytes in hexadecimal.
const BYTES_MIN: usize = 32;

/// Fewest different characters of a random key: 32 random hexadecimal digits have fewer once in
/// ten million times.
const DIFFERENT_MIN: usize = 8;

/// Least information of a key, in bits, by how often each character occurs.
const BITS_MIN: f64 = 90.0;

/// Number of words from which a phrase is as good as a key.
const WORDS_MIN: usize = 6;

/// Words that no random key has, anywhere in it.
const WORDS: &[&str] = &[
    "apikey",
    "changeit",
    "changeme",
    "default",
    "example",
    "insecure",
    "letmein",
    "password",
    "passw0rd",
    "placeholder",
    "production",
    "qwerty",
    "replace",
    "sample",
    "secret",
    "staging",
    "tidebox",
    "yourkey",
];

/// Words that count only at the beginning or between separators, since a random
/// key may have them by chance.
const SHORT_WORDS: &[&str] = &["admin", "demo", "dummy", "fake", "test", "tests", "testing", "todo", "token"];

/// Returns why `key` could be guessed, in words that do not repeat it; `None` if no rule
/// objects.
pub(super) fn weakness(key: &str) -> Option<&'static str> {
    let lower = key.to_ascii_lowercase();
    let letters: String = lower.chars().filter(char::is_ascii_alphanumeric).collect();
    let has_word = WORDS.iter().any(|word| letters.contains(word));
    if has_word || SHORT_WORDS.iter().any(|word| stands_alone(&lower, word)) {
        Some("contains a placeholder, such as changeme, example, secret or test")
    } else if key.len() < BYTES_MIN {
        Some("is shorter than 32 bytes")
    } else if repeats(key.as_bytes()) {
        Some("repeats itself")
    } else if counts(key).len() < DIFFERENT_MIN {
        Some("has fewer than 8 different characters")
    } else if is_sequence(key.as_bytes()) {
        Some("follows the alphabet")
    } else if is_words(key) {
        Some("consists of a few words")
    } else if bits(key) < BITS_MIN {
        Some("is too regular to be random")
    } else {
        None
    }
}

/// Returns whether `word` is at the beginning of `key`, or between separators, perhaps with digits
/// after it.
fn stands_alone(key: &str, word: &str) -> bool {
    let begins = key.strip_prefix(word).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphabetic()));
    let mut parts = key.split(|c: char| !c.is_ascii_alphanumeric());
    begins || parts.any(|part| part.trim_end_matches(|c: char| c.is_ascii_digit()) == word)
}

/// Returns whether it is a shorter text twice or more.
fn repeats(key: &[u8]) -> bool {
    (1..=key.len() / 2).any(|period| key.iter().zip(&key[period..]).all(|(a, b)| a == b))
}

/// Returns whether at least half of the characters equal the one before, or are its neighbour in
/// the alphabet.
fn is_sequence(key: &[u8]) -> bool {
    let near = key.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) <= 1).count();
    near * 2 >= key.len()
}

/// Returns whether it is fewer than six words: letters alone, split at other characters or
/// between a small letter and a capital.
fn is_words(key: &str) -> bool {
    if !key.bytes().all(|byte| byte.is_ascii_alphabetic() || b"-_. ".contains(&byte)) {
        return false;
    }
    let parts = key.split(|c: char| !c.is_ascii_alphabetic()).filter(|part| !part.is_empty());
    let words: usize = parts
        .map(|part| {
            1 + part.as_bytes().windows(2).filter(|p| p[0].is_ascii_lowercase() && p[1].is_ascii_uppercase()).count()
        })
        .sum();
    words < WORDS_MIN
}

fn counts(key: &str) -> BTreeMap<char, f64> {
    let mut counts = BTreeMap::new();
    for c in key.chars() {
        *counts.entry(c).or_insert(0.0) += 1.0;
    }
    counts
}

/// Returns Shannon's entropy of the characters, times their number.
fn bits(key: &str) -> f64 {
    let counts = counts(key);
    let all: f64 = counts.values().sum();
    counts.values().map(|count| -count * (count / all).log2()).sum()
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::weakness;

    #[test]
    fn what_could_be_guessed_is_told_why() {
        for (key, why) in [
            ("", "shorter"),
            ("k7Qz9LmX2vB4nR8tY1wP6sD3fG5hJ0c", "shorter than 32 bytes"),
            ("changeme-changeme-changeme-changeme", "contains a placeholder"),
            ("CHANGE_ME_9f8e7d6c5b4a39281706f5e4d3c2b1a0", "contains a placeholder"),
            ("example-9f8e7d6c5b4a39281706f5e4d3c2b1a0", "contains a placeholder"),
            ("my-Secret-9f8e7d6c5b4a39281706f5e4d3c2b1", "contains a placeholder"),
            ("test-9f8e7d6c5b4a39281706f5e4d3c2b1a0xyz", "contains a placeholder"),
            ("your-key-9f8e7d6c5b4a39281706f5e4d3c2b1a0", "contains a placeholder"),
            ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "repeats itself"),
            ("k7Qz9LmX2vB4k7Qz9LmX2vB4k7Qz9LmX2vB4k7Qz", "repeats itself"),
            ("0110100110010110100101100110100101101001", "fewer than 8 different"),
            ("abcdefghijklmnopqrstuvwxyz0123456789", "follows the alphabet"),
            ("correct-horse-battery-staple-forever", "a few words"),
            ("CorrectHorseBatteryStapleForevermore", "a few words"),
            ("thequickbrownfoxjumpsoverthelazydog", "a few words"),
            ("aaaaaa1bbbbbb2cccccc3dddddd4aaaaaa1b2", "follows the alphabet"),
            ("a1a1a1a1a2a1a3a1a4a1a5a1a6a1a7a1a8a1", "too regular"),
        ] {
            let found = weakness(key);
            assert!(found.is_some_and(|found| found.contains(why)), "{key}: {found:?}");
        }
    }

    #[test]
    fn what_is_random_or_a_long_phrase_passes() {
        for key in [
            "9f86d081884c7d659a2feaa0c55ad015",
            "k7Qz9LmX2vB4nR8tY1wP6sD3fG5hJ0cA",
            "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=",
            "0f3b8c1e-6a2d-4f79-b5c8-92d7e4a1f360",
            "cobalt-ferry-mantle-oxygen-ribbon-walnut-zephyr",
        ] {
            assert_eq!(weakness(key), None, "{key}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn random_keys_pass(hexadecimal in "[0-9a-f]{48}", letters in "[A-Za-z0-9_-]{43}") {
            prop_assert_eq!(weakness(&hexadecimal), None);
            prop_assert_eq!(weakness(&letters), None);
        }

        #[test]
        fn no_key_makes_it_panic(key in "[ -~]{0,1024}") {
            let _ = weakness(&key);
        }
    }
}
