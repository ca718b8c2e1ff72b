//! The configuration in effect, key by key, for people and programs: values and their sources,
//! and never a secret.

use std::fmt::Write as _;

use super::declare::Key;
use super::fault::Source;
use super::keys;
use super::load::Loaded;
use super::secret::HIDDEN;
use super::tree::{Value, parse};

/// One key with its value in effect.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Dotted name of the key.
    pub key: String,
    /// The value; the text `[hidden]` for a secret.
    pub value: serde_json::Value,
    /// Source that set it last.
    pub source: Source,
    /// Same value in YAML, on one line.
    yaml: String,
}

impl Setting {
    /// Returns the value in YAML, on one line.
    #[must_use]
    pub fn yaml(&self) -> &str {
        &self.yaml
    }
}

impl Loaded {
    /// Returns every key, in the order of the example file; of maps, the entries that are set. A
    /// secret that was read from a file is shown only as its file.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        for key in keys::keys().iter().filter(|key| !key.name.contains('*')) {
            settings.push(self.setting(key, &key.name));
        }
        for name in self.sources.keys() {
            if let Some((key, _)) = keys::find(name).filter(|(_, entry)| !entry.is_empty()) {
                settings.push(self.setting(key, name));
            }
        }
        // Stable: within a section the order stays.
        settings.sort_by_key(|setting| keys::keys().iter().position(|key| first(&key.name) == first(&setting.key)));
        settings
    }

    /// Returns whether the key `name` holds a secret and one was written for it.
    pub(super) fn holds_secret(&self, name: &str) -> bool {
        let is_secret = keys::find(name).is_some_and(|(key, _)| key.kind.marks().is_secret);
        is_secret && !matches!(self.values.get(name), None | Some(Value::Null))
    }

    fn setting(&self, key: &Key, name: &str) -> Setting {
        let source = self.sources.get(name).cloned().unwrap_or(Source::Default);
        let is_secret = key.kind.marks().is_secret;
        let value = match self.values.get(name) {
            None | Some(Value::Null) => key.default_value(),
            // A variable's text is not split.
            Some(hidden @ Value::Text(_)) if is_secret && key.default.is_some() => Value::List(vec![hidden.clone()]),
            Some(Value::Bare(text) | Value::Text(text)) => key.kind.plain(text, self.home.as_deref()),
            Some(value) => value.clone(),
        };
        // Without quotes, a hidden secret is a list to YAML, so no server takes it for the
        // secret itself.
        let line = if is_secret { yaml(&value).replace("\"[hidden]\"", HIDDEN) } else { yaml(&value) };
        Setting { key: name.to_owned(), value: json(&value), source, yaml: line }
    }
}

fn first(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Returns all settings as one YAML document, each followed by its source. Without secrets it is
/// a configuration file with the same meaning.
#[must_use]
pub fn nested(settings: &[Setting]) -> String {
    let mut text = String::new();
    let mut open: Vec<&str> = Vec::new();
    for setting in settings {
        let Some((key, entry)) = keys::find(&setting.key) else { continue };
        let mut sections = key.path(entry);
        let Some(name) = sections.pop() else { continue };
        let shared = open.iter().zip(&sections).take_while(|(a, b)| a == b).count();
        for (depth, section) in sections.iter().enumerate().skip(shared) {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{}{}:", "  ".repeat(depth), quoted(section));
        }
        let source: String = setting.source.to_string().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let _ = writeln!(text, "{}{}: {}  # {source}", "  ".repeat(sections.len()), quoted(name), setting.yaml);
        open = sections;
    }
    text
}

fn yaml(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Integer(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Text(text) | Value::Bare(text) => quoted(text),
        Value::List(items) => format!("[{}]", items.iter().map(yaml).collect::<Vec<_>>().join(", ")),
        Value::Map(_) => "{}".to_owned(),
    }
}

/// Returns the text as it is where YAML reads it back as a text, else in quotes.
fn quoted(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._/:@+-".contains(&byte))
        && !text.ends_with(':')
        && parse(text) == Ok(Value::Text(text.to_owned()));
    // A JSON string is valid YAML.
    if is_plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

/// Returns the value as JSON.
pub(super) fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::Null | Value::Map(_) => serde_json::Value::Null,
        Value::Bool(value) => (*value).into(),
        Value::Integer(value) => i64::try_from(*value).map_or_else(|_| value.to_string().into(), Into::into),
        Value::Float(value) => (*value).into(),
        Value::Text(text) | Value::Bare(text) => text.as_str().into(),
        Value::List(items) => items.iter().map(json).collect(),
    }
}
