//! YAML as a tree, read within bounds.
//!
//! Keys that appear twice are kept, so that they can be reported together with all other faults.
//! The work is bounded by the weight of the tree: an alias costs what it stands for each time it
//! is used, so a few lines of aliases of aliases cannot fill the memory. Depth is bounded by the
//! parser.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// The largest file that is read; a configuration of every key is 5 KiB.
pub(super) const FILE_BYTES_MAX: usize = 1024 * 1024;

/// Largest weight of a tree: a node is 1 and a text its length. No file of the allowed size
/// reaches it without aliases.
const WEIGHT_MAX: usize = 4 * FILE_BYTES_MAX;

/// Value of a key, or the entries of a section.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    /// A text without a stated type: that of a variable, or of a default.
    Bare(String),
    List(Vec<Value>),
    Map(Vec<(String, Value)>),
}

impl Value {
    /// Returns the kind alone, for messages about something that is no value of a key: it may be
    /// a secret in a wrong place.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Null => "nothing",
            Value::Bool(_) => "true or false",
            Value::Integer(_) | Value::Float(_) => "a number",
            Value::Text(_) | Value::Bare(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "a section",
        }
    }

    /// Describes the value for messages, without the contents of a list or section, and without
    /// a URL that may hold a password.
    pub(super) fn describe(&self) -> String {
        match self {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Integer(value) => value.to_string(),
            Value::Float(value) => value.to_string(),
            Value::Text(text) | Value::Bare(text) if text.contains("://") && text.contains('@') => {
                "a URL with a user".to_owned()
            }
            Value::Text(text) | Value::Bare(text) => clip(text),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a section".to_owned(),
        }
    }
}

/// Returns `text` in quotes, cut to 80 characters.
pub(super) fn clip(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    let cut: String = text.chars().take(CHARS_MAX).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("`{cut}{dots}`")
}

/// Reads one YAML document. An empty one is [`Value::Null`].
///
/// # Errors
/// The parser's message, with line and column.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let left = Cell::new(WEIGHT_MAX);
    Node { left: &left }.deserialize(yaml_serde::Deserializer::from_str(text)).map_err(|error| error.to_string())
}

/// Deserializer of one node, whose weight is taken from what is left.
#[derive(Clone, Copy)]
struct Node<'a> {
    left: &'a Cell<usize>,
}

impl Node<'_> {
    fn pay<E: Error>(self, weight: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(weight.saturating_add(1));
        self.left.set(left.ok_or_else(|| E::custom("is too large once its aliases are written out"))?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a plain value without a tag")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.pay(0).map(|()| Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.pay(0).map(|()| Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.visit_i128(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.visit_i128(value.into())
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Value, E> {
        self.pay(0).map(|()| Value::Integer(value))
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Value, E> {
        // No key takes more than 64 bits, so what does not fit is too large anyway.
        self.visit_i128(i128::try_from(value).unwrap_or(i128::MAX))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.pay(0).map(|()| Value::Float(value))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.pay(text.len()).map(|()| Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        self.pay(0)?;
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        self.pay(0)?;
        let mut entries = Vec::new();
        while let Some(key) = map.next_key_seed(self)? {
            let key = match key {
                Value::Text(text) | Value::Bare(text) => text,
                Value::Null => "null".to_owned(),
                Value::Bool(value) => value.to_string(),
                Value::Integer(value) => value.to_string(),
                Value::Float(value) => value.to_string(),
                Value::List(_) | Value::Map(_) => return Err(A::Error::custom("a list or a section cannot be a key")),
            };
            entries.push((key, map.next_value_seed(self)?));
        }
        Ok(Value::Map(entries))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_empty_document_is_nothing() {
        for text in ["", "\n", "# only a comment\n", "---\n", "~"] {
            assert_eq!(parse(text), Ok(Value::Null), "{text:?}");
        }
    }

    #[test]
    fn a_key_given_twice_is_kept_twice() {
        let entry = |value| ("a".to_owned(), Value::Integer(value));
        assert_eq!(parse("a: 1\na: 2\n"), Ok(Value::Map(vec![entry(1), entry(2)])));
    }

    #[test]
    fn aliases_of_aliases_end_at_a_bound() {
        let mut text = "a0: &a0 [xxxxxxxx, xxxxxxxx]\n".to_owned();
        for level in 1..60 {
            text += &format!("a{level}: &a{level} [*a{0}, *a{0}, *a{0}, *a{0}]\n", level - 1);
        }
        assert!(parse(&text).is_err());
        let long = "x".repeat(FILE_BYTES_MAX / 2);
        let text = format!("a: &a {long}\nb: [{}]\n", vec!["*a"; 1000].join(", "));
        assert!(parse(&text).unwrap_err().contains("too large"));
    }

    #[test]
    fn a_very_deep_document_is_refused() {
        assert!(parse(&"[".repeat(10_000)).is_err());
        assert!(parse(&format!("{}{}", "[".repeat(5000), "]".repeat(5000))).is_err());
    }

    #[test]
    fn more_than_one_document_is_refused() {
        assert!(parse("a: 1\n---\na: 2\n").is_err());
    }
}
