//! Names by which callers refer to images.

use std::fmt;

use oci_spec::distribution::{ParseError, Reference};

use crate::digest::is_digest;
use crate::error::{Error, Result};

/// Longest name, in bytes: a host, a repository of 255, a tag of 128, a digest.
const NAME_BYTES_MAX: usize = 512;

/// Registry of names without a host.
const DOCKER_HUB: &str = "docker.io";

/// Image that a caller refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    Name(Name),
    /// Digest of the manifest of an image in the store.
    Digest(String),
}

impl Wanted {
    pub(super) fn parse(text: &str) -> Result<Wanted> {
        if is_digest(text) {
            return Ok(Wanted::Digest(text.to_owned()));
        }
        Name::parse(text).map(Wanted::Name)
    }
}

/// Full name of an image: host, repository, tag or digest.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name {
    reference: Reference,
}

impl Name {
    /// Parses a name as Docker does: `python` is `docker.io/library/python:latest`.
    ///
    /// # Errors
    /// [`Error::Invalid`], which names the rule that it breaks.
    pub fn parse(text: &str) -> Result<Name> {
        if text.is_empty() {
            return Err(Error::Invalid("the image has no name; give one such as `python:3.12`".to_owned()));
        }
        match parse(text) {
            Ok(reference) => Ok(Name { reference }),
            Err(why) => Err(Error::Invalid(format!("{} is not a valid image name: {why}", shown(text)))),
        }
    }

    /// Returns the host and port of the registry, such as `docker.io`.
    #[must_use]
    pub fn registry(&self) -> &str {
        self.reference.registry()
    }

    /// Refuses a registry that is not in `allowed`; an empty list allows any.
    ///
    /// # Errors
    /// [`Error::Invalid`], which lists the allowed registries.
    pub fn check_allowed(&self, allowed: &[String]) -> Result<()> {
        if allowed.is_empty() || allowed.iter().any(|registry| registry == self.registry()) {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "images from `{}` may not be pulled here, only from {}",
            self.registry(),
            allowed.iter().map(|registry| format!("`{registry}`")).collect::<Vec<_>>().join(", ")
        )))
    }

    /// Returns the repository, such as `library/python`.
    #[must_use]
    pub fn repository(&self) -> &str {
        self.reference.repository()
    }

    /// Returns the version to request from the registry: the digest if there is one, else the
    /// tag.
    #[must_use]
    pub fn version(&self) -> &str {
        self.digest().or(self.reference.tag()).unwrap_or("latest")
    }

    /// Returns the digest of the manifest, or of the index that leads to it.
    pub(crate) fn digest(&self) -> Option<&str> {
        self.reference.digest()
    }
}

/// Parses a name that is not empty; the error is the rule that it breaks.
fn parse(text: &str) -> Result<Reference, String> {
    if text.len() > NAME_BYTES_MAX {
        return Err(format!("it is longer than {NAME_BYTES_MAX} bytes"));
    }
    if text == "host" {
        return Err("`host` is this machine's own system, which cannot be pulled or imported".to_owned());
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("it may contain only letters, digits and `. _ - / : @`".to_owned());
    }
    if text.starts_with("sha256:") {
        return Err("a digest is `sha256:` and 64 hexadecimal digits in lower case".to_owned());
    }
    if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err("for a digest, put `sha256:` before it".to_owned());
    }
    if let Some((_, after)) = text.split_once("://") {
        return Err(format!("leave out the scheme and write {}", shown(after)));
    }
    let reference = match text.parse::<Reference>() {
        Ok(reference) => reference,
        Err(ParseError::NameTooLong) => return Err("the repository is longer than 255 characters".to_owned()),
        Err(ParseError::DigestUnsupported) => return Err("only `sha256` digests can be checked".to_owned()),
        Err(ParseError::DigestInvalidLength | ParseError::DigestInvalidFormat) => {
            return Err("the digest is `sha256:` and 64 hexadecimal digits".to_owned());
        }
        Err(_) if text.bytes().any(|byte| byte.is_ascii_uppercase()) => {
            return Err(
                "a repository must be in lower case; write it as `[host[:port]/]repository[:tag][@digest]`".to_owned()
            );
        }
        Err(_) => return Err("write it as `[host[:port]/]repository[:tag][@digest]`".to_owned()),
    };
    if reference.digest().is_some_and(|digest| !is_digest(digest)) {
        return Err("the digest is `sha256:` and 64 hexadecimal digits in lower case".to_owned());
    }
    if let Some((_, port)) = reference.registry().rsplit_once(':')
        && port.parse::<u16>().map_or(true, |port| port == 0)
    {
        return Err("the port must be between 1 and 65535".to_owned());
    }
    Ok(reference)
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reference.fmt(f)
    }
}

/// Returns the host that serves a registry.
pub(super) fn host_of(registry: &str) -> &str {
    if registry == DOCKER_HUB { "registry-1.docker.io" } else { registry }
}

/// Returns whether this is Docker's own registry, which has several names.
#[must_use]
pub fn is_docker_hub(registry: &str) -> bool {
    matches!(registry, DOCKER_HUB | "index.docker.io" | "registry-1.docker.io")
}

/// Quotes untrusted text for a message, escaped and cut after 100 characters.
pub(super) fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 100;
    let mut shown: String = text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

/// Returns the message for an image that is not in the store.
pub(super) fn not_here(name: &str) -> String {
    format!("{} is not on this server", shown(name))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn names_are_completed_as_docker_does() {
        for (text, full) in [
            ("python", "docker.io/library/python:latest"),
            ("python:3.12", "docker.io/library/python:3.12"),
            ("docker.io/python:3.12", "docker.io/library/python:3.12"),
            ("index.docker.io/library/python", "docker.io/library/python:latest"),
            ("bitnami/redis", "docker.io/bitnami/redis:latest"),
            ("localhost/a", "localhost/a:latest"),
            ("localhost:5000/a/b/c:x", "localhost:5000/a/b/c:x"),
            ("ghcr.io/owner/app:v1.2_3-4", "ghcr.io/owner/app:v1.2_3-4"),
            ("127.0.0.1:5000/a", "127.0.0.1:5000/a:latest"),
            ("a__b/c-d.e", "docker.io/a__b/c-d.e:latest"),
        ] {
            assert_eq!(Name::parse(text).unwrap().to_string(), full, "{text}");
            assert_eq!(Name::parse(full).unwrap().to_string(), full, "a full name stays what it is");
        }
    }

    #[test]
    fn a_digest_is_what_the_registry_is_asked_for() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let name = Name::parse(&format!("python:3.12@{digest}")).unwrap();
        assert_eq!(name.version(), digest);
        assert_eq!(name.to_string(), format!("docker.io/library/python:3.12@{digest}"));
        assert_eq!(Wanted::parse(&digest).unwrap(), Wanted::Digest(digest));
    }

    #[test]
    fn hostile_names_are_refused_with_a_sentence() {
        let long = "a".repeat(5000);
        let digest = "a".repeat(64);
        for text in [
            "",
            "host",
            " ",
            "a b",
            "-v",
            "--help",
            "-oProxyCommand=x/y",
            "..",
            "../etc/passwd",
            "a/../b",
            "a/./b",
            "/a",
            "a/",
            "a//b",
            "a:",
            "a@",
            "a@sha256:abc",
            "a@md5:0123456789abcdef0123456789abcdef",
            "a\r\nX-Injected: 1",
            "a\n",
            "a\0",
            "a:tag\r\n",
            "ünïcode",
            "python:ünïcode",
            "a\u{202e}b",
            "A",
            "Python:3",
            "a:b:c",
            "user:password@host/a",
            "http://registry/a",
            "https://user:secret@registry/a",
            "a?b=c",
            "a#b",
            "a%2e%2e",
            "a\\b",
            "$(id)",
            "`id`",
            "a;b",
            "[::1]:5000/a",
            "localhost:0/a",
            "localhost:99999/a",
            "localhost:999999999999999999999/a",
            &long,
            &digest,
            &format!("a:{}", "t".repeat(129)),
            &format!("localhost/{}", "a".repeat(256)),
            &format!("sha256:{}", "A".repeat(64)),
            &format!("a@sha256:{}", "A".repeat(64)),
            &format!("a@sha512:{}", "a".repeat(128)),
        ] {
            let Err(Error::Invalid(message)) = Wanted::parse(text) else { panic!("{text:?} is taken") };
            assert!(message.len() < 800 && message.contains("name"), "{message}");
            assert!(!message.contains(['\r', '\n', '\0', '\u{202e}']), "{message:?}");
        }
    }
}
