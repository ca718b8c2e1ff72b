//! Builds of templates: the files that commands made in a box, and what its processes begin with.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use crate::{PrepareCommand, SnapshotId};

/// Values of processes where a request leaves them out.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ProcessDefaults {
    /// Environment, beneath that of a request.
    pub env: BTreeMap<String, String>,
    /// User; `None` for the box's own.
    pub user: Option<String>,
    /// Working directory; `None` for the home of the user.
    pub workdir: Option<String>,
}

impl ProcessDefaults {
    /// Returns these defaults, with those left out taken from `base`. The environment is that of both; of a variable in
    /// both, the value here counts.
    #[must_use]
    pub fn or(self, base: Self) -> Self {
        let mut env = base.env;
        env.extend(self.env);
        Self { env, user: self.user.or(base.user), workdir: self.workdir.or(base.workdir) }
    }
}

impl fmt::Debug for ProcessDefaults {
    /// Omits the environment, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { env: _, user, workdir } = self;
        f.debug_struct("ProcessDefaults").field("user", user).field("workdir", workdir).finish_non_exhaustive()
    }
}

/// Outcome of a build, which its template keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// Id of the build.
    pub build: BuildId,
    /// Snapshot with the files.
    pub snapshot: SnapshotId,
    /// Defaults of the processes of its sandboxes.
    pub defaults: ProcessDefaults,
    /// Commands that run in each new sandbox, unless the snapshot holds its processes.
    pub start: Vec<PrepareCommand>,
}

/// Id of a build: a UUID of version 4, because clients read it as one.
/// <https://www.rfc-editor.org/rfc/rfc9562#section-5.4>
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildId(String);

impl BuildId {
    /// Positions of the hyphens, counted in bytes before them.
    const HYPHENS: [usize; 4] = [4, 6, 8, 10];

    /// Makes an id of 122 random bits.
    #[must_use]
    pub fn from_entropy(mut entropy: [u8; 16]) -> Self {
        entropy[6] = entropy[6] & 0x0f | 0x40;
        entropy[8] = entropy[8] & 0x3f | 0x80;
        let mut text = String::with_capacity(36);
        for (at, byte) in entropy.iter().enumerate() {
            if Self::HYPHENS.contains(&at) {
                text.push('-');
            }
            let _ = write!(text, "{byte:02x}");
        }
        Self(text)
    }

    /// Reads an id as [`BuildId::from_entropy`] writes it; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 16];
        let digits: String = text.chars().filter(|character| *character != '-').collect();
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(digits.get(at * 2..at * 2 + 2)?, 16).ok()?;
        }
        Some(Self::from_entropy(bytes)).filter(|id| id.0 == text)
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_id_is_a_uuid_of_version_4_and_reads_as_it_was_written(entropy in any::<[u8; 16]>()) {
            let id = BuildId::from_entropy(entropy);
            let text = id.as_str();
            prop_assert_eq!((text.len(), &text[14..15], text.matches('-').count()), (36, "4", 4));
            prop_assert!("89ab".contains(&text[19..20]));
            prop_assert_eq!(BuildId::parse(text), Some(id.clone()));
            prop_assert_eq!(BuildId::parse(&text.to_uppercase()).is_some(), text == text.to_uppercase());
        }

        #[test]
        fn no_other_text_is_an_id(text in ".{0,40}") {
            prop_assert_eq!(BuildId::parse(&text), None);
        }
    }

    #[test]
    fn secrets_in_the_environment_are_not_logged() {
        let env = BTreeMap::from([("TOKEN".to_owned(), "s3cret".to_owned())]);
        assert!(!format!("{:?}", ProcessDefaults { env, ..ProcessDefaults::default() }).contains("s3cret"));
    }
}
