//! Terms of a sandbox: rules that a front agrees with its caller when it is made.

use std::time::Duration;

use crate::{ProcessDefaults, State};

/// Maximum size of all names and values of the environment together, in bytes.
const ENV_BYTES_MAX: usize = 64 * 1024;

/// Rules of a sandbox besides its options. A sandbox without terms is destroyed at the end of its lifetime, resumes for
/// each request, and has private ports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Terms {
    /// Name of the image, template or snapshot that the caller asked for.
    pub made_of: String,
    /// Defaults of its processes. The store keeps their environment apart: what it returns has none.
    pub defaults: ProcessDefaults,
    /// True to pause it at the end of its lifetime instead of destroying it.
    pub pauses_at_end: bool,
    /// True if a request resumes it while it is paused.
    pub wakes: bool,
    /// Callers that previews of its ports are open to.
    pub ports: PortAccess,
    /// Lifetime from the request that resumes it; `None` for what is left of the one before.
    pub lifetime: Option<Duration>,
}

/// Callers that previews of the ports of a sandbox are open to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PortAccess {
    /// Holders of a key, and of a permit for the port.
    #[default]
    Private,
    /// Holders of the sandbox's traffic token too.
    Token,
    /// Everyone who knows the id of the sandbox.
    Public,
}

/// The rule that terms break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTerms {
    /// A variable without a name, with `=` in it, or with a NUL.
    #[error("the name of an environment variable must not be empty or contain `=`, and none may contain a NUL")]
    Variable,
    /// More than 64 KiB of variables.
    #[error("environment variables may have at most 65536 bytes in all names and values together")]
    TooLarge,
}

impl PortAccess {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Private, Self::Token, Self::Public];

    /// Returns the name in the store.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Token => "token",
            Self::Public => "public",
        }
    }

    /// Returns the kind of this name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

impl Terms {
    /// Checks the environment.
    ///
    /// # Errors
    /// [`InvalidTerms`] names the first broken rule.
    pub fn check(&self) -> Result<(), InvalidTerms> {
        let is_odd =
            |(name, value): (&String, &String)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
        if self.defaults.env.iter().any(is_odd) {
            return Err(InvalidTerms::Variable);
        }
        let bytes: usize = self.defaults.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > ENV_BYTES_MAX { Err(InvalidTerms::TooLarge) } else { Ok(()) }
    }

    /// Returns whether a sandbox in `state` is paused when its lifetime ends. A paused sandbox is destroyed then.
    #[must_use]
    pub fn pauses(&self, state: State) -> bool {
        self.pauses_at_end && state == State::Running
    }
}

#[cfg(test)]
mod test {
    use std::collections::BTreeMap;

    use super::*;

    fn with(name: &str, value: &str) -> Terms {
        let env = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        Terms { defaults: ProcessDefaults { env, ..ProcessDefaults::default() }, ..Terms::default() }
    }

    #[test]
    fn variables_have_names_and_are_bounded() {
        for (name, value, expected) in [
            ("A", "", Ok(())),
            ("A", "x=y\n", Ok(())),
            ("", "x", Err(InvalidTerms::Variable)),
            ("A=B", "x", Err(InvalidTerms::Variable)),
            ("A", "\0", Err(InvalidTerms::Variable)),
            ("A\0", "x", Err(InvalidTerms::Variable)),
            ("A", &"x".repeat(ENV_BYTES_MAX), Err(InvalidTerms::TooLarge)),
        ] {
            assert_eq!(with(name, value).check(), expected, "{name:?}");
        }
    }

    #[test]
    fn only_a_running_sandbox_is_paused_at_its_end() {
        let terms = Terms { pauses_at_end: true, ..Terms::default() };
        for state in [State::Creating, State::Running, State::Paused, State::Destroying] {
            assert_eq!(terms.pauses(state), state == State::Running);
            assert!(!Terms::default().pauses(state));
        }
    }
}
