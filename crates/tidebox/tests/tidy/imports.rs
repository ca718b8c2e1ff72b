//! Imports between the files of a crate, read from their text.
//!
//! An import is a `use` or a path in the code that leads to a module of another file. Two things
//! are none:
//!
//! - Re-exports of a door, a file that has nothing but modules and `pub use`. A door adds nothing
//!   that one could need, so a path through it leads to the file behind it. Otherwise each crate
//!   that shows its items at its root would be one circle, and a circle through the door would be
//!   none.
//! - Unit tests. They may need whatever helps to test, and are not part of what others read.
//!
//! `mod child;` alone says where a file lies, not that its parent needs it.

use std::collections::BTreeMap;

/// The most names that stand for each other on the way of one path.
const NAMES_MAX: usize = 16;
/// Maximum length of what stands before the quote of a text, such as `br##`.
const PREFIX_BYTES_MAX: usize = 16;

/// One file needs another.
#[derive(Debug)]
pub struct Import {
    pub from: String,
    pub line: usize,
    pub to: String,
    /// Path as it is written.
    pub path: String,
}

/// Returns the imports between files below the folder of a crate's root file.
///
/// `files` are the files of the crate, with their text, by path. Files that no module names are
/// left out, and of several imports of the same file all but the first.
pub fn imports(root: &str, files: &BTreeMap<&str, &str>) -> Vec<Import> {
    let mut tree = Tree { files, modules: Vec::new(), paths: Vec::new() };
    tree.add(None, root);
    let mut found: Vec<Import> = tree.paths.iter().flat_map(|path| tree.imports_of(path)).collect();
    found.sort_by(|a, b| (&a.from, &a.to, a.line).cmp(&(&b.from, &b.to, b.line)));
    found.dedup_by(|later, first| (&later.from, &later.to) == (&first.from, &first.to));
    found
}

/// A module, in a file of its own or inside of another's.
struct Module {
    file: String,
    /// Folder of the files of its children.
    folder: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// Names that `use` brings in, with the paths that they stand for.
    names: BTreeMap<String, Vec<String>>,
    /// The module has something besides modules and `pub use`.
    has_items: bool,
}

/// A path in the code of a module.
struct Path {
    module: usize,
    line: usize,
    parts: Vec<String>,
    is_shown: bool,
}

struct Tree<'a> {
    files: &'a BTreeMap<&'a str, &'a str>,
    modules: Vec<Module>,
    paths: Vec<Path>,
}

impl Tree<'_> {
    /// Adds the module that is the whole of `file`, and all modules in it.
    fn add(&mut self, parent: Option<usize>, file: &str) -> usize {
        let stem = file.trim_end_matches(".rs");
        let folder = stem.strip_suffix("/lib").or_else(|| stem.strip_suffix("/main")).unwrap_or(stem);
        let module = self.open(parent, file.to_owned(), folder.to_owned());
        let text = self.files.get(file).unwrap_or_else(|| panic!("there is no {file}"));
        self.read(module, &tokens(text));
        module
    }

    fn open(&mut self, parent: Option<usize>, file: String, folder: String) -> usize {
        let (children, names) = (BTreeMap::new(), BTreeMap::new());
        self.modules.push(Module { file, folder, parent, children, names, has_items: false });
        self.modules.len() - 1
    }

    /// Takes the modules, the names and the paths from the code of a module.
    fn read(&mut self, module: usize, tokens: &[(usize, Token)]) {
        let mut at = 0;
        let mut is_shown = false;
        while let Some((line, token)) = tokens.get(at) {
            let next = |ahead: usize| tokens.get(at + ahead).map(|(_, token)| *token);
            match (*token, next(1)) {
                (Token::Mark('#'), Some(Token::Mark('!' | '['))) => {
                    at = self.read_attribute(module, tokens, at);
                    continue;
                }
                (Token::Name("pub"), Some(Token::Mark('('))) => {
                    is_shown = true;
                    at = after_group(tokens, at + 1);
                    continue;
                }
                (Token::Name("pub"), _) => {
                    is_shown = true;
                    at += 1;
                    continue;
                }
                (Token::Name("mod"), Some(Token::Name(name))) if next(2) == Some(Token::Mark(';')) => {
                    let file = format!("{}/{name}.rs", self.modules[module].folder);
                    let child = self.add(Some(module), &file);
                    self.modules[module].children.insert(name.to_owned(), child);
                    at += 3;
                }
                (Token::Name("mod"), Some(Token::Name(name))) if next(2) == Some(Token::Mark('{')) => {
                    let Module { file, folder, .. } = &self.modules[module];
                    let child = self.open(Some(module), file.clone(), format!("{folder}/{name}"));
                    let end = after_group(tokens, at + 2);
                    self.read(child, &tokens[at + 3..end - 1]);
                    self.modules[module].children.insert(name.to_owned(), child);
                    self.modules[module].has_items |= self.modules[child].has_items;
                    at = end;
                }
                // `use<'a>` is a bound.
                (Token::Name("use"), Some(Token::Name(_) | Token::Separator)) => {
                    let end = tokens[at..].iter().position(|(_, token)| *token == Token::Mark(';'));
                    let end = at + end.expect("a `use` ends in `;`");
                    for (parts, name) in expand(&tokens[at + 1..end], &[]) {
                        self.modules[module].names.insert(name, parts.clone());
                        self.paths.push(Path { module, line: *line, parts, is_shown });
                    }
                    self.modules[module].has_items |= !is_shown;
                    at = end + 1;
                }
                (Token::Name(_), Some(Token::Separator)) => {
                    let (parts, end) = path_at(tokens, at);
                    self.paths.push(Path { module, line: *line, parts, is_shown: false });
                    self.modules[module].has_items = true;
                    at = end;
                }
                _ => {
                    self.modules[module].has_items = true;
                    at += 1;
                }
            }
            is_shown = false;
        }
    }

    /// Takes the paths from the attribute that begins at `at`, and returns the place after it; after
    /// its item, if that is for unit tests.
    fn read_attribute(&mut self, module: usize, tokens: &[(usize, Token)], at: usize) -> usize {
        let open = at + 1 + usize::from(tokens[at + 1].1 == Token::Mark('!'));
        let end = after_group(tokens, open);
        if is_of_tests(&tokens[open..end]) {
            return after_item(tokens, end);
        }
        let mut at = open;
        while at < end {
            let (parts, after) = path_at(tokens, at);
            if parts.len() > 1 {
                self.paths.push(Path { module, line: tokens[at].0, parts, is_shown: false });
            }
            at = after.max(at + 1);
        }
        end
    }

    /// Returns the imports of other files that a path is.
    fn imports_of(&self, path: &Path) -> Vec<Import> {
        let module = &self.modules[path.module];
        if path.is_shown && !module.has_items {
            return Vec::new();
        }
        let mut files = self.files_at(path.module, &path.parts, NAMES_MAX);
        files.retain(|file| *file != module.file);
        let import = |to: &str| Import {
            from: module.file.clone(),
            line: path.line,
            to: to.to_owned(),
            path: path.parts.join("::"),
        };
        files.into_iter().map(import).collect()
    }

    /// Returns the files that a path leads to from `module`: one, several for a `*` of a door, none
    /// if it leads out of the crate or past more than `names` names that stand for others.
    fn files_at(&self, module: usize, parts: &[String], names: usize) -> Vec<&str> {
        let behind = |module: usize, path: &[String], rest: &[String]| match names.checked_sub(1) {
            Some(left) => self.files_at(module, &[path, rest].concat(), left),
            None => Vec::new(),
        };
        let Some((first, mut rest)) = parts.split_first() else { return Vec::new() };
        let from = &self.modules[module];
        let mut place = match first.as_str() {
            "crate" => 0,
            "self" => module,
            "super" => from.parent.expect("`super` is not above the crate"),
            name => match (from.children.get(name), from.names.get(name)) {
                (Some(child), _) => *child,
                (None, Some(path)) if path != parts => return behind(module, path, rest),
                _ => return Vec::new(),
            },
        };
        while let Some((name, after)) = rest.split_first() {
            let here = &self.modules[place];
            if name == "super" {
                place = here.parent.expect("`super` is not above the crate");
            } else if let Some(child) = here.children.get(name) {
                place = *child;
            } else if here.has_items {
                break;
            } else if let Some(path) = here.names.get(name) {
                return behind(place, path, after);
            } else {
                // Behind a door, `*` is each of its names, and another name may stand behind each `*`.
                let may_have = |path: &&Vec<String>| name == "*" || path.last().is_some_and(|last| last == "*");
                let paths = here.names.values().filter(may_have);
                let files: Vec<&str> = paths.flat_map(|path| behind(place, path, after)).collect();
                return if files.is_empty() { vec![&here.file] } else { files };
            }
            rest = after;
        }
        vec![&self.modules[place].file]
    }
}

/// Returns the paths in the tree of a `use`, each with the name that it brings in; a `*` has its
/// whole path for a name.
fn expand(tokens: &[(usize, Token)], before: &[String]) -> Vec<(Vec<String>, String)> {
    let mut parts = before.to_vec();
    let mut at = 0;
    while let Some((_, token)) = tokens.get(at) {
        match *token {
            Token::Name("as") => {
                let Some((_, Token::Name(name))) = tokens.get(at + 1) else { break };
                return vec![(parts, (*name).to_owned())];
            }
            Token::Name("self") if at == 0 && !before.is_empty() => {}
            Token::Name(name) => parts.push(name.to_owned()),
            Token::Mark('*') => parts.push("*".to_owned()),
            Token::Mark('{') => {
                let inner = &tokens[at + 1..after_group(tokens, at) - 1];
                return branches(inner).into_iter().flat_map(|branch| expand(branch, &parts)).collect();
            }
            Token::Separator | Token::Mark(_) | Token::Literal => {}
        }
        at += 1;
    }
    let name = match parts.last() {
        Some(last) if last != "*" => last.clone(),
        _ => parts.join("::"),
    };
    vec![(parts, name)]
}

/// Returns what stands between the commas of a group, those of inner groups left alone.
fn branches<'t, 'a>(tokens: &'t [(usize, Token<'a>)]) -> Vec<&'t [(usize, Token<'a>)]> {
    let mut depth = 0;
    let split = tokens.split(|(_, token)| {
        depth += i32::from(*token == Token::Mark('{')) - i32::from(*token == Token::Mark('}'));
        depth == 0 && *token == Token::Mark(',')
    });
    split.filter(|branch| !branch.is_empty()).collect()
}

/// Returns the names of the path that begins at `at`, and the place after it.
fn path_at(tokens: &[(usize, Token)], mut at: usize) -> (Vec<String>, usize) {
    let mut parts = Vec::new();
    while let Some((_, Token::Name(name))) = tokens.get(at) {
        parts.push((*name).to_owned());
        let goes_on = matches!(tokens.get(at + 1..at + 3), Some([(_, Token::Separator), (_, Token::Name(_))]));
        at += if goes_on { 2 } else { 1 };
        if !goes_on {
            break;
        }
    }
    (parts, at)
}

/// Returns whether an attribute, without its `#`, keeps an item for unit tests.
fn is_of_tests(attribute: &[(usize, Token)]) -> bool {
    let names =
        attribute.iter().filter_map(|(_, token)| if let Token::Name(name) = token { Some(*name) } else { None });
    let names: Vec<&str> = names.collect();
    names == ["cfg", "test"] || names.starts_with(&["cfg", "all", "test"])
}

/// Returns the place after the group that opens at `open`.
fn after_group(tokens: &[(usize, Token)], open: usize) -> usize {
    let mut depth = 0;
    for (at, (_, token)) in tokens.iter().enumerate().skip(open) {
        depth += i32::from(matches!(token, Token::Mark('(' | '[' | '{')));
        depth -= i32::from(matches!(token, Token::Mark(')' | ']' | '}')));
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Returns the place after the item, statement, field or arm that begins at `at`.
fn after_item(tokens: &[(usize, Token)], mut at: usize) -> usize {
    const ITEMS: &[&str] = &[
        "pub", "fn", "mod", "use", "struct", "enum", "impl", "const", "static", "type", "trait", "async", "unsafe",
        "let",
    ];
    while matches!(tokens.get(at), Some((_, Token::Mark('#')))) {
        at = after_group(tokens, at + 1);
    }
    let is_item = matches!(tokens.get(at), Some((_, Token::Name(name))) if ITEMS.contains(name));
    while let Some((_, token)) = tokens.get(at) {
        match token {
            Token::Mark(';') => return at + 1,
            Token::Mark(',') if !is_item => return at + 1,
            Token::Mark('{') if is_item => return after_group(tokens, at),
            Token::Mark('(' | '[' | '{') => at = after_group(tokens, at),
            Token::Mark(')' | ']' | '}') => return at,
            Token::Name(_) | Token::Separator | Token::Mark(_) | Token::Literal => at += 1,
        }
    }
    at
}

/// A word of the source. Comments are none.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token<'a> {
    Name(&'a str),
    /// `::`
    Separator,
    Mark(char),
    /// A text, a character, a number or a lifetime.
    Literal,
}

/// Returns the words of a source with their lines.
fn tokens(text: &str) -> Vec<(usize, Token<'_>)> {
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let name = |text: &str| text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
        let (token, length) = if let Some(length) = length_of_text(rest) {
            (Some(Token::Literal), length)
        } else if rest.starts_with("//") {
            (None, rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            (None, length_of_comment(rest))
        } else if let Some(raw) = rest.strip_prefix("r#") {
            let length = name(raw);
            (Some(Token::Name(&raw[..length])), 2 + length)
        } else if first.is_ascii_digit() {
            (Some(Token::Literal), name(rest))
        } else if first.is_alphabetic() || first == '_' {
            (Some(Token::Name(&rest[..name(rest)])), name(rest))
        } else if rest.starts_with("::") {
            (Some(Token::Separator), 2)
        } else {
            ((!first.is_whitespace()).then_some(Token::Mark(first)), first.len_utf8())
        };
        found.extend(token.map(|token| (line, token)));
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found
}

/// Returns the length of a comment between `/*` and `*/`, with those in it.
fn length_of_comment(text: &str) -> usize {
    let mut depth = 0;
    for (at, _) in text.match_indices(['/', '*']) {
        depth += i32::from(text[at..].starts_with("/*")) - i32::from(text[at..].starts_with("*/"));
        if depth == 0 {
            return at + 2;
        }
    }
    text.len()
}

/// Returns the length of the text, the character or the lifetime that stands at the beginning.
fn length_of_text(text: &str) -> Option<usize> {
    let quote = text.bytes().take(PREFIX_BYTES_MAX).position(|byte| byte == b'"' || byte == b'\'')?;
    let prefix = &text[..quote];
    let hashes = prefix.len() - prefix.trim_end_matches('#').len();
    let is_raw = matches!(&prefix[..quote - hashes], "r" | "br" | "cr");
    if text[quote..].starts_with('"') && is_raw {
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(text[quote + 1..].find(&end).map_or(text.len(), |at| quote + 1 + at + end.len()));
    }
    if !matches!(prefix, "" | "b" | "c") {
        return None;
    }
    let close = text[quote..].chars().next()?;
    let mut characters = text[quote + 1..].char_indices();
    if close == '\'' {
        // `'a'` is a character, `'a` a lifetime.
        let (_, first) = characters.next()?;
        let (at, second) = characters.next()?;
        if first != '\\' && second != '\'' {
            return Some(quote + 1 + at);
        }
        characters = text[quote + 1..].char_indices();
    }
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => drop(characters.next()),
            _ if character == close => return Some(quote + 1 + at + 1),
            _ => {}
        }
    }
    Some(text.len())
}
