//! Names of templates, and their tags.

use std::fmt;

use store::Template;

use super::error::{Error, Result};
use super::resource::Resource;

/// Maximum length of a template name, in bytes.
const NAME_BYTES_MAX: usize = 128;
/// Tag that the plain name of a template stands for.
const DEFAULT: &str = "default";
/// Maximum length of a tag, in bytes.
const TAG_BYTES_MAX: usize = 64;
/// Name of a template, with a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateRef {
    pub name: String,
    /// Tag; `None` for the default.
    pub tag: Option<String>,
}

impl TemplateRef {
    /// Reads `<name>` or `<name>:<tag>`.
    ///
    /// # Errors
    /// [`Error::InvalidName`] for what cannot be a name, [`Error::Invalid`] for what cannot be a tag.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, tag) = match text.split_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (text, None),
        };
        check_name(name)?;
        tag.map_or(Ok(()), check_tag)?;
        Ok(Self { name: name.to_owned(), tag: tag.filter(|tag| *tag != DEFAULT).map(str::to_owned) })
    }

    /// Returns the names of the templates for this name and further tags, each once.
    pub(super) fn names(&self, tags: &[String]) -> Vec<String> {
        let own = (self.tag.is_some() || tags.is_empty()).then(|| self.to_string());
        let mut names: Vec<_> = own.into_iter().chain(tags.iter().map(|tag| self.tagged(tag))).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Returns the name of the template for another tag.
    pub fn tagged(&self, tag: &str) -> String {
        Self { name: self.name.clone(), tag: Some(tag.to_owned()).filter(|tag| tag != DEFAULT) }.to_string()
    }
}

impl fmt::Display for TemplateRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tag {
            Some(tag) => write!(f, "{}:{tag}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Checks the name of a template.
///
/// # Errors
/// [`Error::InvalidName`] for what cannot be one.
pub(super) fn check_name(name: &str) -> Result<()> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && !matches!(name, "." | "..");
    if fits { Ok(()) } else { Err(Error::InvalidName { resource: Resource::Template, chars_max: NAME_BYTES_MAX }) }
}

/// Returns the tag of a template that a build made.
#[must_use]
pub fn tag_of(template: &Template) -> &str {
    template.name.split_once(':').map_or(DEFAULT, |(_, tag)| tag)
}

/// Checks a tag.
///
/// # Errors
/// [`Error::Invalid`] for what cannot be a tag.
pub fn check_tag(tag: &str) -> Result<()> {
    let fits = (1..=TAG_BYTES_MAX).contains(&tag.len())
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    let fault = || format!("a tag must be 1 to {TAG_BYTES_MAX} letters, digits, `.`, `_` or `-`");
    if fits { Ok(()) } else { Err(Error::Invalid(fault())) }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_name_may_have_a_tag_and_the_default_is_none() {
        for (text, expected) in [
            ("app", Some(("app", None))),
            ("app:v1.0", Some(("app", Some("v1.0")))),
            ("app:default", Some(("app", None))),
            ("app:", None),
            (":v1", None),
            ("app:v1:x", None),
            ("team/app", None),
            ("app:a b", None),
            ("", None),
        ] {
            let read = TemplateRef::parse(text).ok();
            assert_eq!(read.as_ref().map(|read| (read.name.as_str(), read.tag.as_deref())), expected, "{text}");
        }
    }

    #[test]
    fn a_build_gets_the_tags_that_are_asked_for_and_the_default_if_none_is() {
        for (text, tags, expected) in [
            ("app", &[][..], &["app"][..]),
            ("app", &["v1"], &["app:v1"]),
            ("app", &["v1", "default"], &["app", "app:v1"]),
            ("app:v1", &[], &["app:v1"]),
            ("app:v1", &["v1", "v2"], &["app:v1", "app:v2"]),
        ] {
            let tags: Vec<_> = tags.iter().map(|tag| (*tag).to_owned()).collect();
            assert_eq!(TemplateRef::parse(text).unwrap().names(&tags), expected, "{text} {tags:?}");
        }
    }

    #[test]
    fn template_names_are_safe_in_a_path() {
        for name in ["a", "python-3.12_slim", &"x".repeat(128)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a b", "ä", "a\0", "a%2fb", &"x".repeat(129)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
