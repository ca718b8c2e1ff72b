//! Recognition of code that needs more lines than were typed. The rules are approximate, because only an interpreter
//! can parse the code.

use api::CodeLanguage;

/// Returns `true` if the code needs more lines. Two empty lines at the end finish any code.
pub fn is_unfinished(language: CodeLanguage, code: &str) -> bool {
    if code.ends_with("\n\n") {
        return false;
    }
    if ends_with_backslash(code) {
        return true;
    }
    let outline = Outline::of(language, code);
    if outline.is_open {
        return true;
    }
    let lines = &outline.text;
    match language {
        CodeLanguage::Python => depth(lines) > 0 || is_within_block(lines),
        CodeLanguage::JavaScript | CodeLanguage::TypeScript | CodeLanguage::Java => depth(lines) > 0,
        CodeLanguage::R => depth(lines) > 0 || ends_with_any(lines, &["<-", "+", ",", "|>", "%>%", "~"]),
        CodeLanguage::Bash => bash_depth(lines) > 0 || ends_with_any(lines, &["|", "&&"]),
    }
}

fn ends_with_backslash(code: &str) -> bool {
    code.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

fn ends_with_any(text: &str, ends: &[&str]) -> bool {
    let text = text.trim_end();
    ends.iter().any(|end| text.ends_with(end))
}

/// Text that no bracket or keyword counts in: a string or a comment.
struct Quote {
    begin: &'static str,
    end: &'static str,
    /// True if it may have several lines. Another one that has no end is a mistake, which the interpreter reports.
    spans_lines: bool,
    /// True if a backslash takes the meaning of what follows.
    has_escapes: bool,
}

const fn string(mark: &'static str, spans_lines: bool) -> Quote {
    Quote { begin: mark, end: mark, spans_lines, has_escapes: true }
}

/// Longer marks come first.
const PYTHON: &[Quote] = &[string("\"\"\"", true), string("'''", true), string("\"", false), string("'", false)];
const JAVASCRIPT: &[Quote] = &[
    string("`", true),
    string("\"", false),
    string("'", false),
    Quote { begin: "/*", end: "*/", spans_lines: true, has_escapes: false },
];
const JAVA: &[Quote] = &[
    string("\"\"\"", true),
    string("\"", false),
    string("'", false),
    Quote { begin: "/*", end: "*/", spans_lines: true, has_escapes: false },
];
const BASH: &[Quote] = &[string("\"", true), Quote { begin: "'", end: "'", spans_lines: true, has_escapes: false }];
const R: &[Quote] = &[string("\"", true), string("'", true), string("`", true)];

/// Code without its comments and the content of its strings.
#[derive(Debug, PartialEq, Eq)]
struct Outline {
    text: String,
    /// True if a string, a comment or a here-document has no end.
    is_open: bool,
}

impl Outline {
    fn of(language: CodeLanguage, code: &str) -> Outline {
        let (quotes, comment) = match language {
            CodeLanguage::Python => (PYTHON, "#"),
            CodeLanguage::JavaScript | CodeLanguage::TypeScript => (JAVASCRIPT, "//"),
            CodeLanguage::R => (R, "#"),
            CodeLanguage::Java => (JAVA, "//"),
            CodeLanguage::Bash => match without_here_documents(code) {
                Some(code) => return Outline::scan(&code, BASH, "#", true),
                None => return Outline { text: String::new(), is_open: true },
            },
        };
        Outline::scan(code, quotes, comment, false)
    }

    /// Reads the code once. In bash `#` begins a comment only where a word begins.
    fn scan(code: &str, quotes: &[Quote], comment: &str, comments_begin_words: bool) -> Outline {
        let mut text = String::with_capacity(code.len());
        let mut rest = code;
        while let Some(first) = rest.chars().next() {
            if rest.starts_with(comment)
                && (!comments_begin_words || text.ends_with(char::is_whitespace) || text.is_empty())
            {
                rest = rest.find('\n').and_then(|end| rest.get(end..)).unwrap_or_default();
            } else if let Some(quote) = quotes.iter().find(|quote| rest.starts_with(quote.begin)) {
                let inside = rest.get(quote.begin.len()..).unwrap_or_default();
                match quote.after(inside) {
                    Some(after) => rest = after,
                    None => return Outline { text, is_open: true },
                }
                text.push('_');
            } else {
                text.push(first);
                rest = rest.get(first.len_utf8()..).unwrap_or_default();
                if first == '\\'
                    && let Some(escaped) = rest.chars().next()
                {
                    text.push('_');
                    rest = rest.get(escaped.len_utf8()..).unwrap_or_default();
                }
            }
        }
        Outline { text, is_open: false }
    }
}

impl Quote {
    /// Returns the code after the end of the quote; `None` if the end is missing.
    fn after<'a>(&self, inside: &'a str) -> Option<&'a str> {
        let mut rest = inside;
        while let Some(first) = rest.chars().next() {
            if let Some(after) = rest.strip_prefix(self.end) {
                return Some(after);
            }
            if first == '\n' && !self.spans_lines {
                return Some(rest);
            }
            let mut chars = rest.chars();
            chars.next();
            if first == '\\' && self.has_escapes {
                chars.next();
            }
            rest = chars.as_str();
        }
        if self.spans_lines { None } else { Some("") }
    }
}

/// Returns the number of brackets that are open at the end.
fn depth(text: &str) -> usize {
    depth_after(0, text)
}

/// Returns the number of open brackets after a text that began with `depth` of them.
fn depth_after(depth: usize, text: &str) -> usize {
    text.chars().fold(depth, |depth, c| match c {
        '(' | '[' | '{' => depth + 1,
        ')' | ']' | '}' => depth.saturating_sub(1),
        _ => depth,
    })
}

/// Returns `true` within a block of Python or a cell of another language, which an empty line ends.
fn is_within_block(text: &str) -> bool {
    let mut depth = 0;
    let mut has_block = text.starts_with("%%");
    for line in text.split('\n') {
        depth = depth_after(depth, line);
        let line = line.trim();
        has_block |= depth == 0 && (line.ends_with(':') || line.starts_with('@'));
    }
    let ends_empty = text.rsplit_once('\n').is_some_and(|(_, last)| last.trim().is_empty());
    has_block && !ends_empty
}

/// Returns the number of compound commands of bash that are open at the end.
fn bash_depth(text: &str) -> usize {
    const OPENERS: [&str; 7] = ["if", "for", "while", "until", "select", "case", "{"];
    let mut open: Vec<&str> = Vec::new();
    let mut is_command_position = true;
    let spaced = text.replace([';', '\n'], " ; ").replace('(', " ( ").replace(')', " ) ");
    for word in spaced.split_whitespace() {
        match word {
            "(" => open.push(word),
            // Without its bracket it ends a pattern of `case`.
            ")" if open.last() == Some(&"(") => drop(open.pop()),
            "fi" | "done" | "esac" | "}" if is_command_position => drop(open.pop()),
            _ if is_command_position && OPENERS.contains(&word) => open.push(word),
            _ => {}
        }
        is_command_position = matches!(
            word,
            ";" | "(" | ")" | "{" | "&" | "&&" | "|" | "||" | "!" | "then" | "do" | "else" | "elif" | "time"
        );
    }
    open.len()
}

/// Returns bash code without the text of its here-documents; `None` if one has no end.
fn without_here_documents(code: &str) -> Option<String> {
    let mut kept = String::with_capacity(code.len());
    let mut lines = code.split('\n');
    while let Some(line) = lines.next() {
        if !kept.is_empty() {
            kept.push('\n');
        }
        kept.push_str(line);
        if let Some(mark) = here_document_mark(line) {
            lines.find(|line| line.trim_start_matches('\t') == mark)?;
        }
    }
    Some(kept)
}

/// Returns the word that ends the here-document which begins in a line.
fn here_document_mark(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("<<")?;
    // A here-string, or a shift of bits.
    if after.starts_with('<') || before.contains("((") {
        return None;
    }
    let after = after.strip_prefix('-').unwrap_or(after).trim_start();
    let after = after.trim_start_matches(['\'', '"', '\\']);
    let end = after.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(after.len());
    after.get(..end).filter(|mark| !mark.is_empty())
}

#[cfg(test)]
mod test {
    use super::*;

    #[track_caller]
    fn check(language: CodeLanguage, finished: &[&str], unfinished: &[&str]) {
        for code in finished {
            assert!(!is_unfinished(language, code), "finished: {code:?}");
        }
        for code in unfinished {
            assert!(is_unfinished(language, code), "unfinished: {code:?}");
        }
    }

    #[test]
    fn python_continues_in_blocks_brackets_and_long_strings() {
        check(
            CodeLanguage::Python,
            &[
                "",
                "x = 1",
                "x = {1: 2}",
                "if x: y",
                "if x:\n    y\n",
                "def f(a,\n      b):\n    return a\n",
                "f(1,\n  2)",
                "print('(')",
                "print(\"it's\")",
                "x = 1  # (",
                "'''a\nb'''",
                "'unterminated",
                "x)",
                "d = {\n  1:\n    2}",
                "lambda: 0",
                "x[1:]",
                "for x in y:\n    for z in x:\n        z\n",
                r"r'\'",
                "f(\n\n",
            ],
            &[
                "if x:",
                "if x:  # why",
                "if x:\n    y",
                "if x:\n    y\nelse:",
                "def f(a,\n      b):",
                "def f(a,",
                "@decorator",
                "%%bash",
                "%%bash\nls",
                "@decorator\ndef f(): pass",
                "'''a\nb",
                "x = [1,",
                "x = 1 + \\",
                "class A:\n    x = 1\n\n    def f(self):",
            ],
        );
    }

    #[test]
    fn javascript_continues_in_brackets_templates_and_comments() {
        check(
            CodeLanguage::JavaScript,
            &["1", "f({a: 1})", "`a${b}c`", "'{'", "x // {", "/* { */ 1", "function f() {\n  return 1\n}", "f(\n\n"],
            &["function f() {", "[1,", "`a", "/* a", "f('a',", "x = `\n${y}"],
        );
    }

    #[test]
    fn java_continues_in_brackets_text_blocks_and_comments() {
        check(
            CodeLanguage::Java,
            &["1", "f(a[0]);", "'{'", "x // {", "/* { */ 1", "int f() {\n  return 1;\n}", "\"\"\"\n  a\"\n  \"\"\""],
            &["int f() {", "List.of(1,", "/* a", "\"\"\"\n  a\"", "class A {\n  int x;"],
        );
    }

    #[test]
    fn bash_continues_in_compound_commands_strings_and_documents() {
        check(
            CodeLanguage::Bash,
            &[
                "ls",
                "echo if",
                "if a; then b; fi",
                "for x in a b; do echo $x; done",
                "f() {\n echo\n}",
                "case x in a) b;; esac",
                "echo 'a\nb'",
                "echo \\\\",
                "cat <<EOF\nit's\nEOF",
                "cat <<-'E'\n\tx\n\tE",
                "cat <<<x",
                "echo ${#x} $#",
                "ls # if (",
                "(cd /; ls)",
                "x=$((1 << 2))",
            ],
            &[
                "if a; then",
                "for x in a b",
                "while true; do\n  ls",
                "f() {",
                "case x in\na) b;;",
                "echo 'a",
                "echo \"a",
                "echo a \\",
                "cat <<EOF\nx",
                "ls |",
                "ls &&",
                "(cd /",
            ],
        );
    }

    #[test]
    fn r_continues_in_brackets_strings_and_after_operators() {
        check(
            CodeLanguage::R,
            &["1", "x <- 1", "f(1)", "x # (", "'(' "],
            &["f(", "function(x) {", "x <-", "1 +", "x |>", "x %>%", "'a"],
        );
    }
}
