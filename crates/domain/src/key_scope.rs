//! Scopes of an owner's key: the parts of the API that it opens.

use std::collections::BTreeSet;
use std::fmt;

/// Part of the API that an owner's key may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyScope {
    /// Reading the owner's sandboxes: lists, files, output, logs, statistics, and the owner's quota.
    SandboxesRead,
    /// Making, changing and removing the owner's sandboxes; implies [`KeyScope::SandboxesRead`].
    SandboxesWrite,
    /// Taking, listing and removing snapshots of the owner's sandboxes.
    Snapshots,
    /// Managing the owner's templates, and reading those of the operator.
    Templates,
    /// Reading the list of images.
    Images,
    /// Reading the names of the secrets that the owner may use.
    Secrets,
    /// Events of the owner's sandboxes.
    Events,
    /// Metrics of the whole service, which name no sandbox and no owner.
    Metrics,
}

impl KeyScope {
    /// Every scope.
    pub const ALL: [KeyScope; 8] = [
        KeyScope::SandboxesRead,
        KeyScope::SandboxesWrite,
        KeyScope::Snapshots,
        KeyScope::Templates,
        KeyScope::Images,
        KeyScope::Secrets,
        KeyScope::Events,
        KeyScope::Metrics,
    ];

    /// Returns the name in the API and in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            KeyScope::SandboxesRead => "sandboxes:read",
            KeyScope::SandboxesWrite => "sandboxes:write",
            KeyScope::Snapshots => "snapshots",
            KeyScope::Templates => "templates",
            KeyScope::Images => "images",
            KeyScope::Secrets => "secrets",
            KeyScope::Events => "events",
            KeyScope::Metrics => "metrics",
        }
    }

    /// Returns the scope of this name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text)
    }
}

impl fmt::Display for KeyScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Scopes of one key. The default is what a program needs that works with sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyScopes(BTreeSet<KeyScope>);

impl Default for KeyScopes {
    fn default() -> Self {
        use KeyScope::{Events, SandboxesRead, SandboxesWrite, Snapshots, Templates};
        Self::from_iter([SandboxesRead, SandboxesWrite, Snapshots, Templates, Events])
    }
}

impl FromIterator<KeyScope> for KeyScopes {
    fn from_iter<I: IntoIterator<Item = KeyScope>>(scopes: I) -> Self {
        Self(scopes.into_iter().collect())
    }
}

impl KeyScopes {
    /// Returns whether a key with these scopes may use what asks for `scope`.
    #[must_use]
    pub fn allow(&self, scope: KeyScope) -> bool {
        self.0.contains(&scope) || scope == KeyScope::SandboxesRead && self.0.contains(&KeyScope::SandboxesWrite)
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the scopes in the order of [`KeyScope::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = KeyScope> {
        self.0.iter().copied()
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_scope_is_read_by_its_name_alone() {
        for scope in KeyScope::ALL {
            assert_eq!(KeyScope::parse(scope.as_str()), Some(scope));
        }
        for text in ["", "sandboxes", "Snapshots", "sandboxes:read ", "*"] {
            assert_eq!(KeyScope::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_scope_allows_itself_and_writing_allows_reading() {
        for held in KeyScope::ALL {
            let scopes = KeyScopes::from_iter([held]);
            for asked in KeyScope::ALL {
                let is_implied = held == KeyScope::SandboxesWrite && asked == KeyScope::SandboxesRead;
                assert_eq!(scopes.allow(asked), held == asked || is_implied, "{held} {asked}");
            }
        }
    }

    #[test]
    fn the_default_opens_nothing_of_the_operator() {
        let scopes = KeyScopes::default();
        for scope in [KeyScope::Images, KeyScope::Secrets, KeyScope::Metrics] {
            assert!(!scopes.allow(scope), "{scope}");
        }
    }
}
