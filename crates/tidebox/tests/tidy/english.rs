//! Words that no native engineer would write, in what people read: pages, help texts, and the
//! description of the API. `docs/develop/style.md` has what to write instead.

use super::{finds, report, sources};

/// Words and phrases, as whole words in lower case.
const TICS: [&str; 11] = [
    "anew",
    "in vain",
    "go on",
    "goes on",
    "gone on",
    "whom",
    "of its own",
    "of their own",
    "beside",
    "meanwhile",
    "so many",
];

/// Pages that quote the words, or that only those read who change the code.
const EXEMPT: [&str; 3] = ["docs/develop/style.md", "docs/develop/decisions/", "crates/tidebox/tests/"];

/// Words that no doc comment opens with. A type's opens with a noun, a function's with a verb.
const QUESTION_WORDS: [&str; 9] = ["How", "What", "Where", "Whether", "Which", "Who", "Whom", "Whose", "Why"];

/// Returns the question word that the doc comment in these lines opens with, if it has any.
fn question_word(comment: &str) -> Option<&'static str> {
    let first = comment.trim_start().strip_prefix("///")?.split_whitespace().next()?;
    QUESTION_WORDS.into_iter().find(|word| *word == first)
}

#[test]
fn no_doc_comment_opens_with_a_question_word() {
    let mut violations = Vec::new();
    let mut count = 0;
    for source in sources(&[".rs"]) {
        let mut is_inside = false;
        for (index, line) in source.text.lines().enumerate() {
            let is_doc = line.trim_start().starts_with("///");
            if is_doc && !is_inside {
                count += 1;
                if let Some(word) = question_word(line) {
                    violations.push(format!(
                        "{}:{}: opens with \"{word}\"; open with a noun or a verb",
                        source.path,
                        index + 1
                    ));
                }
            }
            is_inside = is_doc;
        }
    }
    assert!(count > 5000, "{count} comments are too few: the rule would hold of nothing");
    report(&violations);
}

#[test]
fn a_question_word_is_found_only_at_the_start() {
    assert_eq!(question_word("    /// What a box holds."), Some("What"));
    assert_eq!(question_word("/// Whatever it holds."), None);
    assert_eq!(question_word("/// Returns what a box holds."), None);
    assert_eq!(question_word("// What a box holds."), None);
}

/// Returns whether a line is read by users: all lines of a page or a help text, and of the description of
/// the API its texts.
fn is_text(path: &str, line: &str) -> bool {
    !path.ends_with(".json")
        || ["\"description\":", "\"summary\":"].iter().any(|key| line.trim_start().starts_with(key))
}

fn tic(line: &str) -> Option<&'static str> {
    let line = line.to_lowercase();
    TICS.into_iter().find(|tic| finds(&line, tic))
}

#[test]
fn pages_help_and_the_description_of_the_api_are_in_plain_english() {
    let mut violations = Vec::new();
    let mut count = 0;
    for source in sources(&[".md", ".snap", "openapi.json"]) {
        if EXEMPT.iter().any(|exempt| source.path.starts_with(exempt)) {
            continue;
        }
        count += 1;
        for (index, line) in source.text.lines().enumerate().filter(|(_, line)| is_text(&source.path, line)) {
            if let Some(tic) = tic(line) {
                let at = index + 1;
                violations.push(format!("{}:{at}: \"{tic}\"; docs/develop/style.md has better words", source.path));
            }
        }
    }
    assert!(count > 60, "{count} files are too few: the rule would hold of nothing");
    report(&violations);
}

#[test]
fn the_words_are_found_as_whole_words_in_any_case() {
    assert_eq!(tic("It Goes on."), Some("goes on"));
    assert_eq!(tic("a socket of its own"), Some("of its own"));
    assert_eq!(tic("Besides, the Anewton pages"), None);
}
