//! Readers: from a value of the tree to a typed one.
//!
//! An error states what would be right and what was found.

#![expect(clippy::wildcard_enum_match_arm, reason = "a kind of value that a reader does not name is a wrong type")]

use std::fmt::Display;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::parse_duration;
use serde_json::{Value as Json, json};

use super::secret::Secret;
use super::tree::{Value, clip};

pub(super) type Read<T> = Result<T, String>;

/// Properties of the values of a key.
pub(super) trait Kind: Send + Sync + 'static {
    /// Returns the JSON schema of a value in a file.
    fn schema(&self) -> Json;

    /// Returns the value that a file would state in place of `text`.
    fn plain(&self, text: &str, _: Option<&Path>) -> Value {
        Value::Text(text.to_owned())
    }

    /// Returns the rules for what may be shown of it, and for the file that it names.
    fn marks(&self) -> Marks {
        Marks::OPEN
    }
}

/// Rules for a value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marks {
    /// True for a key or token, which is never shown.
    pub(super) is_secret: bool,
    /// True where a secret may be written by mistake, so that a fault does not repeat the value.
    pub(super) is_beside_a_secret: bool,
    /// True for a file from which the secret is read whose key has the same name without `_file`.
    pub(super) is_file_of_secret: bool,
    /// True for a file that only the server's user may read.
    pub(super) is_private: bool,
    /// True for a file that must be readable at the start, since it is read only when it is
    /// needed.
    pub(super) is_read_later: bool,
}

impl Marks {
    /// Rules for a value without special rules.
    pub(super) const OPEN: Marks = Marks {
        is_secret: false,
        is_beside_a_secret: false,
        is_file_of_secret: false,
        is_private: false,
        is_read_later: false,
    };
}

/// Reader of the values of a key.
pub(super) trait Reader: Kind {
    type Out;

    /// Returns the typed value, or what a right one would be. `home` stands for `~`.
    fn read(&self, value: &Value, home: Option<&Path>) -> Read<Self::Out>;
}

/// A type of which every key takes the same values.
pub(super) trait Configurable: Sized {
    /// Returns the reader of a value.
    fn reader() -> impl Reader<Out = Self>;
}

pub(super) fn must<T>(be: &str, value: &Value) -> Read<T> {
    Err(format!("must be {be}, not {}", value.describe()))
}

/// Returns the text itself, which is never empty.
pub(super) fn text_of<'a>(value: &'a Value, be: &str) -> Read<&'a str> {
    match value {
        Value::Text(text) | Value::Bare(text) if !text.is_empty() => Ok(text),
        Value::Text(_) | Value::Bare(_) => Err(format!("must be {be}, not empty")),
        _ => must(be, value),
    }
}

/// Parses digits and nothing else; `None` for more than fits.
pub(super) fn decimal(text: &str) -> Option<i128> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Returns `text` as a number if it is one, else as a text.
fn number_or_text(text: &str) -> Value {
    decimal(text).map_or_else(|| Value::Text(text.to_owned()), Value::Integer)
}

/// A value that can be unset: `null` or an empty variable is `None`.
pub(super) struct Optional<R>(pub(super) R);

impl<R: Reader> Kind for Optional<R> {
    fn schema(&self) -> Json {
        let mut schema = self.0.schema();
        let types = match schema["type"].take() {
            Json::Array(mut types) => {
                types.push("null".into());
                types
            }
            one => vec![one, "null".into()],
        };
        schema["type"] = types.into();
        schema
    }

    fn plain(&self, text: &str, home: Option<&Path>) -> Value {
        if text.is_empty() { Value::Null } else { self.0.plain(text, home) }
    }

    fn marks(&self) -> Marks {
        self.0.marks()
    }
}

impl<R: Reader> Reader for Optional<R> {
    type Out = Option<R::Out>;

    fn read(&self, value: &Value, home: Option<&Path>) -> Read<Option<R::Out>> {
        match value {
            Value::Null => Ok(None),
            Value::Bare(text) if text.is_empty() => Ok(None),
            _ => self.0.read(value, home).map(Some),
        }
    }
}

impl<T: Configurable> Configurable for Option<T> {
    fn reader() -> impl Reader<Out = Self> {
        Optional(T::reader())
    }
}

/// A value that can be unset, which is kept as an empty one.
pub(super) struct OrEmpty<R>(pub(super) Optional<R>);

impl<R: Reader> Kind for OrEmpty<R> {
    fn schema(&self) -> Json {
        self.0.schema()
    }

    fn plain(&self, text: &str, home: Option<&Path>) -> Value {
        self.0.plain(text, home)
    }
}

impl<R: Reader<Out: Default>> Reader for OrEmpty<R> {
    type Out = R::Out;

    fn read(&self, value: &Value, home: Option<&Path>) -> Read<R::Out> {
        self.0.read(value, home).map(Option::unwrap_or_default)
    }
}

/// A list; a variable's text is split at commas.
pub(super) struct List<R>(pub(super) R);

impl<R: Reader> Kind for List<R> {
    fn schema(&self) -> Json {
        json!({ "type": "array", "items": self.0.schema() })
    }

    fn plain(&self, text: &str, _: Option<&Path>) -> Value {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        Value::List(parts.map(|part| Value::Text(part.to_owned())).collect())
    }

    fn marks(&self) -> Marks {
        self.0.marks()
    }
}

impl<R: Reader> Reader for List<R> {
    type Out = Vec<R::Out>;

    fn read(&self, value: &Value, home: Option<&Path>) -> Read<Vec<R::Out>> {
        match value {
            Value::List(items) => items.iter().map(|item| self.0.read(item, home)).collect(),
            Value::Bare(text) if text.trim().is_empty() => Ok(Vec::new()),
            Value::Bare(text) => {
                text.split(',').map(|part| self.0.read(&Value::Bare(part.trim().to_owned()), home)).collect()
            }
            _ => must("a list", value),
        }
    }
}

impl<T: Configurable> Configurable for Vec<T> {
    fn reader() -> impl Reader<Out = Self> {
        List(T::reader())
    }
}

/// Largest count that can be configured: counts are stored and multiplied as signed 64-bit
/// numbers.
pub(super) const COUNT_MAX: u64 = 1_000_000_000;

/// A whole number within a range.
pub(super) struct Number<T>(pub(super) RangeInclusive<T>);

/// An integer type of the settings.
pub(super) trait Integer:
    Copy + PartialOrd + TryFrom<i128> + Display + Into<Json> + Send + Sync + 'static
{
}

impl<T: Copy + PartialOrd + TryFrom<i128> + Display + Into<Json> + Send + Sync + 'static> Integer for T {}

impl<T: Integer> Kind for Number<T> {
    fn schema(&self) -> Json {
        let min: Json = (*self.0.start()).into();
        let max: Json = (*self.0.end()).into();
        json!({ "type": "integer", "minimum": min, "maximum": max })
    }

    fn plain(&self, text: &str, _: Option<&Path>) -> Value {
        number_or_text(text)
    }
}

impl<T: Integer> Number<T> {
    fn find(&self, value: &Value) -> Option<T> {
        let number = match value {
            Value::Integer(number) => Some(*number),
            Value::Bare(text) => decimal(text),
            _ => None,
        };
        number.and_then(|number| T::try_from(number).ok()).filter(|number| self.0.contains(number))
    }

    fn be(&self) -> String {
        format!("a whole number from {} to {}", self.0.start(), self.0.end())
    }
}

impl<T: Integer> Reader for Number<T> {
    type Out = T;

    fn read(&self, value: &Value, _: Option<&Path>) -> Read<T> {
        self.find(value).map_or_else(|| must(&self.be(), value), Ok)
    }
}

impl Configurable for u16 {
    fn reader() -> impl Reader<Out = Self> {
        Number(0..=u16::MAX)
    }
}

/// A whole number within a range, or `auto`, which is `None`.
pub(super) struct Auto<T>(pub(super) RangeInclusive<T>);

impl<T: Integer> Kind for Auto<T> {
    fn schema(&self) -> Json {
        json!({ "anyOf": [{ "const": "auto" }, Number(self.0.clone()).schema()] })
    }

    fn plain(&self, text: &str, _: Option<&Path>) -> Value {
        number_or_text(text)
    }
}

impl<T: Integer> Reader for Auto<T> {
    type Out = Option<T>;

    fn read(&self, value: &Value, _: Option<&Path>) -> Read<Option<T>> {
        let number = Number(self.0.clone());
        match value {
            Value::Bare(text) | Value::Text(text) if text == "auto" => Ok(None),
            _ => number.find(value).map_or_else(|| must(&format!("auto or {}", number.be()), value), |it| Ok(Some(it))),
        }
    }
}

/// A size in bytes up to a maximum, as a number or as a text such as `8MiB`.
pub(super) struct Size<T>(u64, PhantomData<fn() -> T>);

/// Returns the reader of a size in bytes up to `max`.
pub(super) const fn size<T>(max: u64) -> Size<T> {
    Size(max, PhantomData)
}

impl<T: 'static> Kind for Size<T> {
    fn schema(&self) -> Json {
        let pattern = "^[0-9]+(B|KiB|MiB|GiB|TiB)?$";
        json!({ "type": ["integer", "string"], "minimum": 1, "maximum": self.0, "pattern": pattern })
    }

    fn plain(&self, text: &str, _: Option<&Path>) -> Value {
        number_or_text(text)
    }
}

impl<T: TryFrom<u64> + 'static> Reader for Size<T> {
    type Out = T;

    fn read(&self, value: &Value, _: Option<&Path>) -> Read<T> {
        let bytes = match value {
            Value::Integer(number) => u64::try_from(*number).ok(),
            Value::Text(text) | Value::Bare(text) => size_of_text(text),
            _ => None,
        };
        match bytes {
            Some(bytes) if (1..=self.0).contains(&bytes) => {
                T::try_from(bytes).map_err(|_| "is more than memory can address".to_owned())
            }
            _ => must(&format!("a size from 1 to {}, such as 8MiB or 8388608", size_text(self.0)), value),
        }
    }
}

fn size_of_text(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit: u64 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    u64::try_from(decimal(number)?).ok()?.checked_mul(unit)
}

fn size_text(bytes: u64) -> String {
    match (bytes % (1 << 40), bytes % (1 << 30)) {
        (0, _) => format!("{}TiB", bytes >> 40),
        (_, 0) => format!("{}GiB", bytes >> 30),
        _ => bytes.to_string(),
    }
}

/// A duration.
pub(super) struct Span {
    may_be_zero: bool,
}

/// A duration, zero included.
pub(super) const ANY_SPAN: Span = Span { may_be_zero: true };

impl Kind for Span {
    fn schema(&self) -> Json {
        json!({ "type": "string", "pattern": "^(([0-9]+[.]?[0-9]*|[.][0-9]+)(ms|s|m|h))+$|^0$" })
    }
}

impl Reader for Span {
    type Out = Duration;

    fn read(&self, value: &Value, _: Option<&Path>) -> Read<Duration> {
        let text = text_of(value, "a duration, such as 30s or 1h30m")?;
        match parse_duration(text).map_err(|error| format!("{} {error}", clip(text)))? {
            Duration::ZERO if !self.may_be_zero => must("longer than zero, such as 30s", value),
            duration => Ok(duration),
        }
    }
}

impl Configurable for Duration {
    fn reader() -> impl Reader<Out = Self> {
        Span { may_be_zero: false }
    }
}

/// An absolute path; `~/` stands for the home directory.
pub(super) struct File(Marks);

/// Any absolute path.
pub(super) const PATH: File = File(Marks::OPEN);

/// The path of a file that is read when it is needed.
pub(super) const LATER_FILE: File = File(Marks { is_read_later: true, ..Marks::OPEN });

/// The path of a private key.
pub(super) const PRIVATE_FILE: File = File(Marks { is_private: true, ..Marks::OPEN });

/// The path of a private key that is read when it is needed.
pub(super) const LATER_PRIVATE_FILE: File = File(Marks { is_private: true, is_read_later: true, ..Marks::OPEN });

/// The path of a file that holds a secret.
pub(super) const SECRET_FILE: File = File(Marks { is_private: true, is_beside_a_secret: true, ..Marks::OPEN });

/// The path of a file from which the secret of another key is read.
pub(super) const FILE_OF_SECRET: File = File(Marks { is_file_of_secret: true, ..SECRET_FILE.0 });

impl Kind for File {
    fn schema(&self) -> Json {
        json!({ "type": "string", "pattern": "^(/|~/)" })
    }

    fn plain(&self, text: &str, home: Option<&Path>) -> Value {
        Value::Text(at_home(text, home).map_or_else(|| text.to_owned(), |path| path.display().to_string()))
    }

    fn marks(&self) -> Marks {
        self.0
    }
}

impl Reader for File {
    type Out = PathBuf;

    fn read(&self, value: &Value, home: Option<&Path>) -> Read<PathBuf> {
        const BE: &str = "an absolute path";
        let text = text_of(value, BE)?;
        let path = at_home(text, home).unwrap_or_else(|| PathBuf::from(text));
        if path.is_absolute() && !text.contains('\0') { Ok(path) } else { must(BE, value) }
    }
}

/// Returns the path that `text` names below the home directory, if it begins with `~/`.
fn at_home(text: &str, home: Option<&Path>) -> Option<PathBuf> {
    Some(home?.join(text.strip_prefix("~/")?.trim_start_matches('/')))
}

impl Configurable for PathBuf {
    fn reader() -> impl Reader<Out = Self> {
        PATH
    }
}

/// One of a few words.
pub(super) struct Words<T: 'static>(pub(super) &'static [(&'static str, T)]);

impl<T: Copy + Send + Sync> Kind for Words<T> {
    fn schema(&self) -> Json {
        json!({ "enum": self.0.iter().map(|(word, _)| word).collect::<Vec<_>>() })
    }
}

impl<T: Copy + Send + Sync> Reader for Words<T> {
    type Out = T;

    fn read(&self, value: &Value, _: Option<&Path>) -> Read<T> {
        let found = match value {
            Value::Text(text) | Value::Bare(text) => self.0.iter().find(|(word, _)| word == text),
            _ => None,
        };
        found.map(|(_, meaning)| *meaning).map_or_else(|| must(&one_of(self.0), value), Ok)
    }
}

fn one_of<T>(words: &[(&str, T)]) -> String {
    let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

/// `true` or `false`.
struct Flag;

impl Kind for Flag {
    fn schema(&self) -> Json {
        json!({ "type": "boolean" })
    }

    fn plain(&self, text: &str, _: Option<&Path>) -> Value {
        flag(text)
    }
}

/// Returns `text` as a truth value if it is one, else as a text.
pub(super) fn flag(text: &str) -> Value {
    text.parse().map_or_else(|_| Value::Text(text.to_owned()), Value::Bool)
}

impl Reader for Flag {
    type Out = bool;

    fn read(&self, value: &Value, _: Option<&Path>) -> Read<bool> {
        match value {
            Value::Bool(flag) => Ok(*flag),
            Value::Bare(text) if text == "true" => Ok(true),
            Value::Bare(text) if text == "false" => Ok(false),
            _ => must("true or false", value),
        }
    }
}

impl Configurable for bool {
    fn reader() -> impl Reader<Out = Self> {
        Flag
    }
}

/// A key or token. An error never repeats what was found.
pub(super) struct Hidden;

/// Reader of a key or token.
pub(super) const SECRET: Hidden = Hidden;

/// The longest key or token, in bytes: it has to fit a header.
pub(super) const SECRET_BYTES_MAX: usize = 1024;

impl Kind for Hidden {
    fn schema(&self) -> Json {
        let pattern = format!("^[!-~]{{1,{SECRET_BYTES_MAX}}}$");
        json!({ "type": "string", "pattern": pattern, "writeOnly": true })
    }

    fn marks(&self) -> Marks {
        Marks { is_secret: true, ..Marks::OPEN }
    }
}

impl Reader for Hidden {
    type Out = Secret;

    fn read(&self, value: &Value, _: Option<&Path>) -> Read<Secret> {
        match value {
            Value::Text(text) | Value::Bare(text) if (1..=SECRET_BYTES_MAX).contains(&text.len()) => secret_text(text),
            Value::Integer(_) | Value::Float(_) | Value::Bool(_) => Err("must be a string in quotes".to_owned()),
            _ => Err(format!("must be a string of 1 to {SECRET_BYTES_MAX} characters")),
        }
    }
}

impl Configurable for Secret {
    fn reader() -> impl Reader<Out = Self> {
        SECRET
    }
}

/// Checks that a secret fits a header, where spaces around it would be lost.
pub(super) fn secret_text(text: &str) -> Read<Secret> {
    if text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(Secret::new(text.to_owned()))
    } else {
        Err("must consist of printable ASCII characters without spaces".to_owned())
    }
}
