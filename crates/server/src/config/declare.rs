//! Declaration of keys, each in one place: `section!` makes a structure of settings and the list
//! of its keys from the same lines.
//!
//! A field is `pub name: Type = "default" as reader`. The default is read as a variable's text
//! would be; without one the key is unset. A type that implements [`read::Configurable`] needs no
//! reader. The doc comment of a field describes its key for operators.

use std::collections::BTreeMap;
use std::path::Path;

use super::read::{self, Kind, Optional, Read, Reader};
use super::secret::Secret;
use super::tree::Value;

/// One key of the configuration.
pub(super) struct Key {
    /// The dotted name; `*` stands for the name of an entry in a map.
    pub(super) name: String,
    /// Text that is read like that of a variable when nothing sets the key.
    pub(super) default: Option<&'static str>,
    /// Description for operators, on one line, with code in backticks.
    pub(super) doc: String,
    /// Properties of its values.
    pub(super) kind: Box<dyn Kind>,
}

impl Key {
    /// Returns the text that replaces the `*` if `dotted` is this key's name; empty for a key
    /// without `*`.
    pub(super) fn entry<'a>(&self, dotted: &'a str) -> Option<&'a str> {
        match self.name.split_once('*') {
            None => (self.name == dotted).then_some(""),
            Some((before, after)) => dotted.strip_prefix(before)?.strip_suffix(after).filter(|entry| !entry.is_empty()),
        }
    }

    /// Returns the default as a file would state it; nothing for a key that is unset.
    pub(super) fn default_value(&self) -> Value {
        self.default.map_or(Value::Null, |text| self.kind.plain(text, None))
    }

    /// Returns the sections and the name, with `entry` in place of the `*`.
    pub(super) fn path<'a>(&'a self, entry: &'a str) -> Vec<&'a str> {
        self.name.split('.').map(|part| if part == "*" { entry } else { part }).collect()
    }
}

/// A section of the configuration, or a map of sections or values.
pub(super) struct Part {
    /// The dotted name; `*` stands for the name of an entry in a map.
    pub(super) name: String,
    /// Description, on one line.
    pub(super) doc: String,
    /// Rule for the names of its entries, if it is a map.
    pub(super) entries: Option<EntryName>,
}

/// Everything that is declared, in the order of the example file.
#[derive(Default)]
pub(super) struct Declared {
    pub(super) keys: Vec<Key>,
    pub(super) parts: Vec<Part>,
}

/// A structure whose fields are keys and sections.
pub(super) trait Section: Default + Clone {
    /// Description of the section.
    const DOC: &'static str;

    /// Lists its keys and sections, whose names begin with `prefix`.
    fn list(prefix: &str, into: &mut Declared);

    /// Reads `value` into the field at `path`.
    fn set(&mut self, path: &[&str], value: &Value, home: Option<&Path>) -> Read<()>;
}

/// Name, default and description of a field.
pub(super) struct Field {
    pub(super) name: String,
    pub(super) default: Option<&'static str>,
    pub(super) doc: &'static str,
}

/// Meaning of a field: a key, or a section.
pub(super) trait Node<T>: Sized {
    /// Lists the keys and sections of the field.
    fn list(self, field: Field, into: &mut Declared);

    /// Reads `value` into the field, or into what `path` names below it.
    fn set(&self, field: &mut T, path: &[&str], value: &Value, home: Option<&Path>) -> Read<()>;

    /// Returns whether the key or section `name` belongs to the field.
    fn has(&self, field: &str, name: &str) -> bool {
        field == name
    }
}

impl<R: Reader> Node<R::Out> for R {
    fn list(self, field: Field, into: &mut Declared) {
        into.key(field.name, field.default, field.doc, self);
    }

    fn set(&self, field: &mut R::Out, _: &[&str], value: &Value, home: Option<&Path>) -> Read<()> {
        self.read(value, home).map(|it| *field = it)
    }
}

/// A section of its own.
pub(super) struct Nested;

impl<T: Section> Node<T> for Nested {
    fn list(self, field: Field, into: &mut Declared) {
        into.part(field.name.clone(), T::DOC, None);
        T::list(&format!("{}.", field.name), into);
    }

    fn set(&self, field: &mut T, path: &[&str], value: &Value, home: Option<&Path>) -> Read<()> {
        field.set(&path[1..], value, home)
    }
}

/// A secret, which can be kept in a file instead: the key with `_file` at its end names it.
pub(super) struct SecretOrFile;

impl Node<Option<Secret>> for SecretOrFile {
    fn list(self, field: Field, into: &mut Declared) {
        let file = format!("{}_file", field.name);
        let doc = format!("File that holds `{}`; set one of the two.", field.name);
        into.key(field.name, field.default, field.doc, Optional(read::SECRET));
        into.key(file, None, &doc, Optional(read::FILE_OF_SECRET));
    }

    fn set(&self, field: &mut Option<Secret>, path: &[&str], value: &Value, home: Option<&Path>) -> Read<()> {
        if path[0].ends_with("_file") {
            // The secret is read once all layers are known.
            Optional(read::FILE_OF_SECRET).read(value, home).map(drop)
        } else {
            Optional(read::SECRET).set(field, path, value, home)
        }
    }

    fn has(&self, field: &str, name: &str) -> bool {
        name.strip_prefix(field).is_some_and(|rest| matches!(rest, "" | "_file"))
    }
}

/// Rule for the names of entries in a map.
#[derive(Clone, Copy)]
pub(super) struct EntryName {
    /// Returns the name as it is stored, or why it cannot be one.
    pub(super) check: fn(&str) -> Read<String>,
    /// True if entries are named after hosts.
    pub(super) is_host: bool,
}

/// A map of sections.
pub(super) struct Sections(pub(super) EntryName);

impl<T: Section> Node<BTreeMap<String, T>> for Sections {
    fn list(self, field: Field, into: &mut Declared) {
        into.part(field.name.clone(), field.doc, Some(self.0));
        into.part(format!("{}.*", field.name), T::DOC, None);
        T::list(&format!("{}.*.", field.name), into);
    }

    fn set(&self, field: &mut BTreeMap<String, T>, path: &[&str], value: &Value, home: Option<&Path>) -> Read<()> {
        let name = (self.0.check)(path[1])?;
        // A value at fault makes no entry.
        let mut entry = field.get(&name).cloned().unwrap_or_default();
        entry.set(&path[2..], value, home)?;
        field.insert(name, entry);
        Ok(())
    }
}

/// A map of values.
pub(super) struct Entries<R>(pub(super) EntryName, pub(super) R);

impl<R: Reader> Node<BTreeMap<String, R::Out>> for Entries<R> {
    fn list(self, field: Field, into: &mut Declared) {
        into.part(field.name.clone(), field.doc, Some(self.0));
        into.key(format!("{}.*", field.name), field.default, field.doc, self.1);
    }

    fn set(&self, field: &mut BTreeMap<String, R::Out>, path: &[&str], value: &Value, home: Option<&Path>) -> Read<()> {
        let name = (self.0.check)(path[1])?;
        field.insert(name, self.1.read(value, home)?);
        Ok(())
    }
}

impl Declared {
    fn key(&mut self, name: String, default: Option<&'static str>, doc: &str, kind: impl Kind) {
        self.keys.push(Key { name, default, doc: one_line(doc), kind: Box::new(kind) });
    }

    fn part(&mut self, name: String, doc: &str, entries: Option<EntryName>) {
        self.parts.push(Part { name, doc: one_line(doc), entries });
    }
}

fn one_line(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Reads a declared default.
pub(super) fn default<R: Reader>(reader: &R, text: &str) -> R::Out {
    let read = reader.read(&Value::Bare(text.to_owned()), None);
    // Each default is read by the test of the defaults.
    read.unwrap_or_else(|why| unreachable!("the default `{text}` {why}"))
}

/// Declares a section: a structure, its defaults, and its keys.
macro_rules! section {
    (
        $(#[doc = $doc:literal])+
        $(#[derive($derive:ident)])?
        pub struct $section:ident {
            $(
                $(#[doc = $text:literal])*
                pub $field:ident $(($name:literal))? : $type:ty $(= $default:literal)? $(as $node:expr)?,
            )+
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, PartialEq, Eq $(, $derive)?)]
        pub struct $section {
            $(
                $(#[doc = $text])*
                pub $field: $type,
            )+
        }

        impl Default for $section {
            fn default() -> Self {
                Self { $($field: section!(@default $type; $($default)?; $($node)?),)+ }
            }
        }

        impl $crate::config::declare::Section for $section {
            const DOC: &'static str = concat!($($doc),+);

            fn list(prefix: &str, into: &mut $crate::config::declare::Declared) {
                $({
                    let field = $crate::config::declare::Field {
                        name: format!("{prefix}{}", section!(@name $field $($name)?)),
                        default: section!(@text $($default)?),
                        doc: concat!($($text),*),
                    };
                    $crate::config::declare::Node::<$type>::list(section!(@node $type; $($node)?), field, into);
                })+
            }

            fn set(
                &mut self,
                path: &[&str],
                value: &$crate::config::tree::Value,
                home: Option<&std::path::Path>,
            ) -> $crate::config::read::Read<()> {
                use $crate::config::declare::Node;
                $(
                    let node = section!(@node $type; $($node)?);
                    if Node::<$type>::has(&node, section!(@name $field $($name)?), path[0]) {
                        return Node::<$type>::set(&node, &mut self.$field, path, value, home);
                    }
                )+
                unreachable!("`{}` is not a key of this section", path.join("."))
            }
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    (@text) => { None };
    (@text $default:literal) => { Some($default) };
    (@node $type:ty;) => { <$type as $crate::config::read::Configurable>::reader() };
    (@node $type:ty; $node:expr) => { $node };
    (@default $type:ty;; $($node:expr)?) => { <$type>::default() };
    (@default $type:ty; $default:literal; $($node:expr)?) => {
        $crate::config::declare::default(&section!(@node $type; $($node)?), $default)
    };
}

/// Declares a choice of words: an enumeration, and the word of each variant.
macro_rules! words {
    (
        $(#[$meta:meta])+
        pub enum $name:ident {
            $($(#[$about:meta])+ $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$meta])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$about])+ $variant,)+
        }

        impl $name {
            /// Returns the name as it is configured and reported.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl $crate::config::read::Configurable for $name {
            fn reader() -> impl $crate::config::read::Reader<Out = Self> {
                $crate::config::read::Words(&[$(($word, Self::$variant)),+])
            }
        }
    };
}

pub(super) use {section, words};
