//! Parser of scripts.

use std::collections::BTreeMap;

/// Process id of every shell, the value of `$$`.
pub(super) const PID: &str = "2";

/// Operators between commands. An operator comes before those that it begins with.
const OPERATORS: [&str; 6] = ["&&", "||", "|", ";", "\n", "&"];
/// Operators of redirections, in the same order.
const REDIRECTIONS: [&str; 5] = ["2>&", "2>", ">&", ">>", ">"];

/// Commands joined by `|`, and the operator after them, which is empty at the end of the script.
pub(super) struct Pipeline {
    pub(super) stages: Vec<Stage>,
    pub(super) operator: &'static str,
}

/// One command with its redirections, each an operator and the word after it.
#[derive(PartialEq, Eq, Default)]
pub(super) struct Stage {
    pub(super) argv: Vec<String>,
    pub(super) redirects: Vec<(&'static str, String)>,
}

type Result<T> = std::result::Result<T, String>;

/// The rest of a script. Each pipeline is parsed when its turn comes, because its words have the
/// values of variables at that time.
pub(super) struct Script<'a> {
    rest: &'a str,
}

impl<'a> Script<'a> {
    pub(super) fn new(text: &'a str) -> Script<'a> {
        Script { rest: text }
    }

    /// Parses the next pipeline. Returns `None` at the end of the script.
    ///
    /// # Errors
    /// A message that says what cannot be parsed.
    pub(super) fn next(&mut self, env: &BTreeMap<String, String>) -> Result<Option<Pipeline>> {
        let mut stages = Vec::new();
        let mut stage = Stage::default();
        loop {
            self.skip_blanks();
            if let Some(operator) = self.take_one_of(&OPERATORS).or(self.rest.is_empty().then_some("")) {
                if stage != Stage::default() {
                    stages.push(std::mem::take(&mut stage));
                } else if !stages.is_empty() || !matches!(operator, "" | ";" | "\n") {
                    return Err(format!("syntax error: no command before `{operator}`"));
                }
                match operator {
                    "" if stages.is_empty() => return Ok(None),
                    "|" => {}
                    _ if stages.is_empty() => {}
                    _ => return Ok(Some(Pipeline { stages, operator })),
                }
            } else if let Some(redirection) = self.take_one_of(&REDIRECTIONS) {
                self.skip_blanks();
                stage.redirects.push((redirection, self.word(env)?));
            } else if let Some(group) = self.rest.strip_prefix('(').filter(|_| stage.argv.is_empty()) {
                let len = group_len(group).ok_or("syntax error: a parenthesis is not closed")?;
                stage.argv = ["sh", "-c", &group[..len]].map(str::to_owned).to_vec();
                self.rest = &group[len + 1..];
            } else {
                stage.argv.push(self.word(env)?);
            }
        }
    }

    /// Skips blanks and a comment.
    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
        if self.rest.starts_with('#') {
            self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..];
        }
    }

    fn take_one_of(&mut self, operators: &[&'static str]) -> Option<&'static str> {
        let operator = operators.iter().find(|operator| self.rest.starts_with(**operator))?;
        self.rest = &self.rest[operator.len()..];
        Some(operator)
    }

    fn take_char(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    /// Parses one word, with its quotes removed and its variables replaced. A value is not split.
    fn word(&mut self, env: &BTreeMap<String, String>) -> Result<String> {
        if self.rest.is_empty() || self.rest.starts_with(is_delimiter) {
            return Err(format!("syntax error near `{}`", self.rest.chars().take(1).collect::<String>()));
        }
        let mut word = String::new();
        let mut quote = None;
        while quote.is_some() || !self.rest.starts_with(is_delimiter) {
            match (quote, self.take_char()) {
                (None, None) => break,
                (Some(_), None) => return Err("syntax error: a quote is not closed".to_owned()),
                (None, Some(opening @ ('\'' | '"'))) => quote = Some(opening),
                (Some(open), Some(closing)) if open == closing => quote = None,
                (None | Some('"'), Some('$')) => self.variable(env, &mut word)?,
                (None | Some('"'), Some('`')) => return Err(unsupported("`")),
                (None, Some('\\')) => word.extend(self.take_char()),
                (Some('"'), Some('\\')) if self.rest.starts_with(['"', '\\', '$', '`']) => {
                    word.extend(self.take_char());
                }
                (_, Some(c)) => word.push(c),
            }
        }
        Ok(word)
    }

    /// Appends the value of the variable after a `$`.
    fn variable(&mut self, env: &BTreeMap<String, String>, word: &mut String) -> Result<()> {
        let after = self.rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let name = &self.rest[..self.rest.len() - after.len()];
        self.rest = after;
        match self.rest.chars().next() {
            _ if !name.is_empty() => word.extend(env.get(name).map(String::as_str)),
            Some('$') => {
                self.take_char();
                word.push_str(PID);
            }
            Some(c @ ('(' | '{' | '?' | '!' | '#' | '@' | '*')) => return Err(unsupported(&format!("${c}"))),
            _ => word.push('$'),
        }
        Ok(())
    }
}

fn is_delimiter(c: char) -> bool {
    " \t\n;&|<>()".contains(c)
}

fn unsupported(text: &str) -> String {
    format!("`{text}` is not supported in a mock box, which knows `$NAME` and `$$`")
}

/// Returns the length of the text up to the parenthesis that closes a group.
fn group_len(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut quote = None;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (None | Some('"'), '\\') => drop(chars.next()),
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (None, '(') => depth += 1,
            (None, ')') if depth == 0 => return Some(at),
            (None, ')') => depth -= 1,
            _ => {}
        }
    }
    None
}
