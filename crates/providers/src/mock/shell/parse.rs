//! Parser of scripts.

use std::collections::VecDeque;

/// The deepest nesting of `( )`, so that no text overflows the stack.
const DEPTH_MAX: usize = 64;

/// Commands one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) items: Vec<Item>,
}

/// Pipelines joined by `&&` and `||`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) first: Pipeline,
    pub(super) rest: Vec<(Joint, Pipeline)>,
    pub(super) background: bool,
}

/// Condition for running the next pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Joint {
    /// Run after a success.
    And,
    /// Run after a failure.
    Or,
}

/// Commands joined by `|`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pipeline {
    pub(super) negated: bool,
    pub(super) stages: Vec<Stage>,
}

/// One command with its redirections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) body: Body,
    pub(super) redirects: Vec<Redirect>,
}

/// Command or group that a stage runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Body {
    /// Assignments and words, as in `A=b command arguments`.
    Simple { assignments: Vec<(String, Word)>, words: Vec<Word> },
    /// A subshell, as in `( script )`.
    Group(Script),
}

/// A redirection of a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Redirect {
    pub(super) fd: u8,
    pub(super) to: Target,
}

/// Destination of a redirection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    Read(Word),
    Write(Word),
    Append(Word),
    Same(u8),
}

/// Parts that make one word, or several if an unquoted variable is among them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Word {
    pub(super) parts: Vec<Part>,
}

/// A part of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// Literal text. Quoted text makes a word even when empty.
    Text(String),
    /// The value of a variable.
    Variable { name: String, quoted: bool },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Operator(&'static str),
    /// A descriptor and `<`, `>`, `>>` or `>&`.
    Redirect(u8, &'static str),
    Word(Word),
}

type Result<T> = std::result::Result<T, String>;

/// Parses a script.
///
/// # Errors
/// A message that says what cannot be read.
pub(super) fn parse(text: &str) -> Result<Script> {
    let mut parser = Parser { tokens: Lexer { rest: text.chars().collect() }.tokens()? };
    let script = parser.script(0)?;
    match parser.tokens.front() {
        None => Ok(script),
        Some(token) => Err(unexpected(token)),
    }
}

fn unexpected(token: &Token) -> String {
    match token {
        Token::Operator(operator) | Token::Redirect(_, operator) => format!("syntax error near `{operator}`"),
        Token::Word(_) => "syntax error near a word".to_owned(),
    }
}

struct Lexer {
    rest: VecDeque<char>,
}

impl Lexer {
    fn take(&mut self, expected: &str) -> bool {
        let found = expected.chars().enumerate().all(|(at, c)| self.rest.get(at) == Some(&c));
        if found {
            self.rest.drain(..expected.chars().count());
        }
        found
    }

    fn tokens(mut self) -> Result<VecDeque<Token>> {
        let mut tokens = VecDeque::new();
        'next: while let Some(&c) = self.rest.front() {
            match c {
                ' ' | '\t' => {
                    self.rest.pop_front();
                    continue;
                }
                '#' => {
                    while self.rest.front().is_some_and(|c| *c != '\n') {
                        self.rest.pop_front();
                    }
                    continue;
                }
                _ => {}
            }
            if self.take("\n") {
                tokens.push_back(Token::Operator(";"));
                continue;
            }
            for operator in ["&&", "||", "|", ";", "&", "(", ")"] {
                if self.take(operator) {
                    tokens.push_back(Token::Operator(operator));
                    continue 'next;
                }
            }
            match self.redirect() {
                Some(redirect) => tokens.push_back(redirect),
                None => tokens.push_back(Token::Word(self.word()?)),
            }
        }
        Ok(tokens)
    }

    fn redirect(&mut self) -> Option<Token> {
        let next = self.rest.get(1).copied();
        let fd = match self.rest.front()? {
            digit @ '0'..='2' if matches!(next, Some('<' | '>')) => Some(*digit as u8 - b'0'),
            _ => None,
        };
        if fd.is_some() {
            self.rest.pop_front();
        }
        [">>", ">&", ">", "<"].into_iter().find(|operator| self.take(operator)).map(|operator| {
            let usual = u8::from(operator != "<");
            Token::Redirect(fd.unwrap_or(usual), operator)
        })
    }

    fn word(&mut self) -> Result<Word> {
        let mut word = Word::default();
        let mut text = String::new();
        let mut is_quoted = false;
        while let Some(&c) = self.rest.front() {
            if " \t\n;&|<>()".contains(c) {
                break;
            }
            self.rest.pop_front();
            match c {
                '\\' => match self.rest.pop_front() {
                    Some('\n') => {}
                    Some(escaped) => text.push(escaped),
                    None => text.push('\\'),
                },
                '\'' => {
                    is_quoted = true;
                    loop {
                        match self.rest.pop_front() {
                            Some('\'') => break,
                            Some(quoted) => text.push(quoted),
                            None => return Err("syntax error: a quote is not closed".to_owned()),
                        }
                    }
                }
                '"' => {
                    is_quoted = true;
                    self.double_quoted(&mut word, &mut text)?;
                }
                '$' => self.dollar(&mut word, &mut text, false)?,
                '`' => return Err("command substitution is not supported in a mock box".to_owned()),
                c => text.push(c),
            }
        }
        if !text.is_empty() || is_quoted {
            word.parts.push(Part::Text(text));
        }
        Ok(word)
    }

    fn double_quoted(&mut self, word: &mut Word, text: &mut String) -> Result<()> {
        loop {
            match self.rest.pop_front() {
                Some('"') => return Ok(()),
                Some('\\') => match self.rest.pop_front() {
                    Some('\n') => {}
                    Some(escaped @ ('"' | '\\' | '$' | '`')) => text.push(escaped),
                    Some(other) => text.extend(['\\', other]),
                    None => return Err("syntax error: a quote is not closed".to_owned()),
                },
                Some('$') => self.dollar(word, text, true)?,
                Some(quoted) => text.push(quoted),
                None => return Err("syntax error: a quote is not closed".to_owned()),
            }
        }
    }

    /// Parses the text after a `$`.
    fn dollar(&mut self, word: &mut Word, text: &mut String, quoted: bool) -> Result<()> {
        let name: String = match self.rest.front() {
            Some('(') => return Err("command substitution is not supported in a mock box".to_owned()),
            Some('{') => {
                self.rest.pop_front();
                let Some(end) = self.rest.iter().position(|c| *c == '}') else {
                    return Err("syntax error: `${` is not closed".to_owned());
                };
                let name: String = self.rest.drain(..end).collect();
                self.rest.pop_front();
                if !is_name(&name) && !is_special(&name) {
                    return Err(format!("${{{name}}} is not supported in a mock box"));
                }
                name
            }
            Some(c @ ('?' | '$' | '#' | '0'..='9')) => {
                let name = c.to_string();
                self.rest.pop_front();
                name
            }
            _ => {
                let len = self.rest.iter().take_while(|c| c.is_ascii_alphanumeric() || **c == '_').count();
                self.rest.drain(..len).collect()
            }
        };
        if name.is_empty() {
            text.push('$');
        } else {
            word.parts.push(Part::Text(std::mem::take(text)));
            word.parts.push(Part::Variable { name, quoted });
        }
        Ok(())
    }
}

fn is_special(name: &str) -> bool {
    matches!(name.as_bytes(), [b'?' | b'$' | b'#' | b'0'..=b'9'])
}

/// Returns whether a text can name a variable.
pub(super) fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

struct Parser {
    tokens: VecDeque<Token>,
}

impl Parser {
    fn take(&mut self, operator: &'static str) -> bool {
        let found = self.tokens.front() == Some(&Token::Operator(operator));
        if found {
            self.tokens.pop_front();
        }
        found
    }

    fn script(&mut self, depth: usize) -> Result<Script> {
        if depth > DEPTH_MAX {
            return Err("syntax error: too many nested parentheses".to_owned());
        }
        let mut items = Vec::new();
        loop {
            while self.take(";") {}
            if matches!(self.tokens.front(), None | Some(Token::Operator(")"))) {
                return Ok(Script { items });
            }
            let first = self.pipeline(depth)?;
            let mut rest = Vec::new();
            loop {
                let joint = match self.tokens.front() {
                    Some(Token::Operator("&&")) => Joint::And,
                    Some(Token::Operator("||")) => Joint::Or,
                    _ => break,
                };
                self.tokens.pop_front();
                while self.take(";") {}
                rest.push((joint, self.pipeline(depth)?));
            }
            let background = self.take("&");
            let ends = background || matches!(self.tokens.front(), None | Some(Token::Operator(";" | ")")));
            if let (false, Some(token)) = (ends, self.tokens.front()) {
                return Err(unexpected(token));
            }
            items.push(Item { first, rest, background });
        }
    }

    fn pipeline(&mut self, depth: usize) -> Result<Pipeline> {
        let mut negated = false;
        while self.tokens.front().is_some_and(|token| is_text(token, "!")) {
            self.tokens.pop_front();
            negated = !negated;
        }
        let mut stages = vec![self.stage(depth)?];
        while self.take("|") {
            stages.push(self.stage(depth)?);
        }
        Ok(Pipeline { negated, stages })
    }

    fn stage(&mut self, depth: usize) -> Result<Stage> {
        let mut redirects = Vec::new();
        if self.take("(") {
            let script = self.script(depth + 1)?;
            if !self.take(")") {
                return Err("syntax error: a parenthesis is not closed".to_owned());
            }
            while let Some(redirect) = self.redirect()? {
                redirects.push(redirect);
            }
            return Ok(Stage { body: Body::Group(script), redirects });
        }
        let (mut assignments, mut words) = (Vec::new(), Vec::new());
        loop {
            if let Some(redirect) = self.redirect()? {
                redirects.push(redirect);
                continue;
            }
            let Some(Token::Word(word)) = self.tokens.front() else { break };
            let word = word.clone();
            self.tokens.pop_front();
            match assignment(&word) {
                Some(assignment) if words.is_empty() => assignments.push(assignment),
                _ => words.push(word),
            }
        }
        if assignments.is_empty() && words.is_empty() && redirects.is_empty() {
            return Err(self
                .tokens
                .front()
                .map_or_else(|| "syntax error: a command is missing".to_owned(), unexpected));
        }
        Ok(Stage { body: Body::Simple { assignments, words }, redirects })
    }

    fn redirect(&mut self) -> Result<Option<Redirect>> {
        let Some(&Token::Redirect(fd, operator)) = self.tokens.front() else { return Ok(None) };
        self.tokens.pop_front();
        let Some(Token::Word(word)) = self.tokens.pop_front() else {
            return Err(format!("syntax error: nothing follows `{operator}`"));
        };
        let to = match operator {
            "<" => Target::Read(word),
            ">" => Target::Write(word),
            ">>" => Target::Append(word),
            _ => match &word.parts[..] {
                [Part::Text(text)] if matches!(text.as_str(), "1" | "2") => Target::Same(text.as_bytes()[0] - b'0'),
                _ => return Err("syntax error: only 1 and 2 can follow `>&`".to_owned()),
            },
        };
        Ok(Some(Redirect { fd, to }))
    }
}

fn is_text(token: &Token, expected: &str) -> bool {
    matches!(token, Token::Word(Word { parts }) if parts.len() == 1 && parts[0] == Part::Text(expected.to_owned()))
}

/// Splits `NAME=value` with an unquoted name.
fn assignment(word: &Word) -> Option<(String, Word)> {
    let (Part::Text(first), rest) = word.parts.split_first()? else { return None };
    let (name, value) = first.split_once('=')?;
    if !is_name(name) {
        return None;
    }
    let mut parts = vec![Part::Text(value.to_owned())];
    parts.extend_from_slice(rest);
    Some((name.to_owned(), Word { parts }))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_no_script_is_refused() {
        let deep = "(".repeat(100_000);
        for text in ["a |", "&& a", "'a", "\"a", "a > ", "(a", "a)", "${a", "a >&9", ";; | a", "a & & b", "$(a)", &deep]
        {
            assert!(parse(text).is_err(), "{}", &text[..text.len().min(20)]);
        }
    }

    #[test]
    fn operators_bind_as_in_a_shell() {
        let script = parse("a | b && ! c || d & e 2>&1 >f; (g; h) < i # j").unwrap();
        let [first, second, third] = &script.items[..] else { panic!("{script:?}") };
        assert!(first.background && first.first.stages.len() == 2);
        assert_eq!(first.rest.iter().map(|(joint, _)| *joint).collect::<Vec<_>>(), [Joint::And, Joint::Or]);
        assert!(first.rest[0].1.negated);
        assert_eq!(second.first.stages[0].redirects[0], Redirect { fd: 2, to: Target::Same(1) });
        assert!(matches!(&third.first.stages[0].body, Body::Group(script) if script.items.len() == 2));
    }
}
