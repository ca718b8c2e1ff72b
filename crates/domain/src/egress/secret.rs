//! Secrets that a policy has sent to hosts, without the box ever seeing them.

use std::fmt;

use super::target::{Host, Target, TargetError, Targets};
use crate::identity::OwnerId;

/// Longest name of a secret, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Port of a target that names none: that of HTTPS.
const HTTPS: u16 = 443;
/// Port of plain HTTP, whose requests go to [`HTTPS`] instead.
const HTTP: u16 = 80;
/// Most hosts, and most owners, of one secret.
const LISTED_MAX: usize = 100;
/// Longest name of a header, in bytes.
const HEADER_BYTES_MAX: usize = 128;
/// Longest user of [`SecretForm::Basic`], in bytes.
const USER_BYTES_MAX: usize = 256;
/// Headers that decide where a request goes and where it ends.
const FRAMING: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Name of a secret of the operator: 1 to 64 letters, digits, `.`, `_` or `-`; not `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SecretName(String);

impl SecretName {
    /// Parses a name; `None` if it breaks the rule.
    #[must_use]
    pub fn parse(text: &str) -> Option<SecretName> {
        let is_name = (1..=NAME_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
            && !matches!(text, "." | "..");
        is_name.then(|| SecretName(text.to_owned()))
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Use of a secret by a policy: at all of its hosts, or at those of one target.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SecretUse {
    /// The secret.
    pub name: SecretName,
    /// Target to which its use is narrowed.
    pub target: Option<Target>,
}

/// Fault of the text of a use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretUseError {
    /// The name is at fault.
    #[error("does not name a secret; write 1 to 64 letters, digits, `.`, `_` or `-`, and @host to limit it to a host")]
    Name,
    /// The target is at fault.
    #[error("names a host that {0}")]
    Target(#[from] TargetError),
}

impl SecretUse {
    /// Parses `name` or `name@target`.
    ///
    /// # Errors
    /// The fault of the text.
    pub fn parse(text: &str) -> Result<SecretUse, SecretUseError> {
        let (name, target) = text.split_once('@').map_or((text, None), |(name, target)| (name, Some(target)));
        let name = SecretName::parse(name).ok_or(SecretUseError::Name)?;
        Ok(SecretUse { name, target: target.map(Target::parse).transpose()? })
    }

    /// Returns whether the secret is sent to this host, if it is bound to it by `binding`.
    #[must_use]
    pub fn covers(&self, binding: &SecretBinding, host: &Host, port: u16) -> bool {
        let narrowed = self.target.as_ref().is_none_or(|target| is_at([target], host, port));
        narrowed && is_at(&binding.hosts, host, port)
    }
}

impl fmt::Display for SecretUse {
    /// Writes what [`SecretUse::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)?;
        self.target.as_ref().map_or(Ok(()), |target| write!(f, "@{target}"))
    }
}

/// Returns whether a host is among targets, of which those without a port mean [`HTTPS`].
fn is_at<'a>(targets: impl IntoIterator<Item = &'a Target>, host: &Host, port: u16) -> bool {
    let targets: Targets = targets.into_iter().map(|target| target.clone().or_port(HTTPS)).collect();
    targets.has_host(host, port)
}

/// Form of a secret in its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretForm {
    /// The value as it is.
    Plain,
    /// `Bearer` and the value.
    Bearer,
    /// `Basic` and the base64 of this user, a colon and the value.
    Basic(String),
}

impl SecretForm {
    /// Parses `plain`, `bearer`, or `basic:` and a user; `None` for another text.
    #[must_use]
    pub fn parse(text: &str) -> Option<SecretForm> {
        match text {
            "plain" => Some(SecretForm::Plain),
            "bearer" => Some(SecretForm::Bearer),
            _ => text.strip_prefix("basic:").map(|user| SecretForm::Basic(user.to_owned())),
        }
    }
}

impl fmt::Display for SecretForm {
    /// Writes what [`SecretForm::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretForm::Plain => f.write_str("plain"),
            SecretForm::Bearer => f.write_str("bearer"),
            SecretForm::Basic(user) => write!(f, "basic:{user}"),
        }
    }
}

/// Hosts that a secret is bound to, and the header that it is sent in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretBinding {
    /// Hosts that it is sent to; those without a port at 443. None for a secret of commands.
    pub hosts: Vec<Target>,
    /// Name of the header, in lower case.
    pub header: String,
    /// Form of the header's value.
    pub form: SecretForm,
    /// Owners whose sandboxes may use it; none for all.
    pub owners: Vec<OwnerId>,
}

/// Rule that a binding breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBinding {
    /// It is bound to too many hosts.
    #[error("`hosts` may name at most {LISTED_MAX} hosts that the secret is sent to")]
    Hosts,
    /// It is bound to addresses.
    #[error("`hosts`: `{0}` is an address; use a host name, because TLS checks certificates by name")]
    Address(Target),
    /// It would be sent in plain text.
    #[error("`hosts`: `{0}` has the port of plain HTTP; secrets are sent only over HTTPS, so leave the port out")]
    PlainPort(Target),
    /// The header is no name of one, or one that frames requests.
    #[error("`header` must be the name of a header that does not control the connection, such as x-api-key")]
    Header,
    /// The user of [`SecretForm::Basic`] cannot be one.
    #[error("`user` must have at most {USER_BYTES_MAX} characters, and no colon or control character")]
    User,
    /// It has too many owners.
    #[error("`owners` may name at most {LISTED_MAX} owners")]
    Owners,
}

impl SecretBinding {
    /// Checks the rules of a binding.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn check(&self) -> Result<(), InvalidBinding> {
        if self.hosts.len() > LISTED_MAX {
            return Err(InvalidBinding::Hosts);
        }
        for target in &self.hosts {
            if target.is_network() {
                return Err(InvalidBinding::Address(target.clone()));
            }
            if target.port() == Some(HTTP) {
                return Err(InvalidBinding::PlainPort(target.clone()));
            }
        }
        let is_header = (1..=HEADER_BYTES_MAX).contains(&self.header.len()) && self.header.bytes().all(is_of_header);
        if !is_header || FRAMING.contains(&self.header.as_str()) {
            return Err(InvalidBinding::Header);
        }
        if let SecretForm::Basic(user) = &self.form
            && (user.len() > USER_BYTES_MAX || user.contains(':') || user.chars().any(char::is_control))
        {
            return Err(InvalidBinding::User);
        }
        if self.owners.len() > LISTED_MAX { Err(InvalidBinding::Owners) } else { Ok(()) }
    }

    /// Returns whether the secret is for variables of commands, and not for requests to hosts: the one
    /// enters sandboxes, the other never does.
    #[must_use]
    pub fn is_for_commands(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Returns whether the sandboxes of this owner may use the secret.
    #[must_use]
    pub fn admits(&self, owner: Option<&OwnerId>) -> bool {
        self.owners.is_empty() || owner.is_some_and(|owner| self.owners.contains(owner))
    }

    /// Returns the port at which a secret bound to this host is sent, for a connection that was asked
    /// for at `port`: plain HTTP goes to the port of HTTPS.
    #[must_use]
    pub fn https_port(port: u16) -> u16 {
        if port == HTTP { HTTPS } else { port }
    }
}

/// Returns whether the byte may be in the name of a header in lower case.
fn is_of_header(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
