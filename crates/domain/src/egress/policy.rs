//! Policies as they are asked for and stored.

use std::collections::BTreeMap;
use std::fmt;

use super::mode::EgressMode;
use super::rules::EgressRules;
use super::secret::SecretUse;
use super::target::{Target, TargetError, Targets};

/// Longest name of a list, in bytes.
const LIST_NAME_BYTES_MAX: usize = 64;
/// Longest text of an entry, in bytes.
const ENTRY_BYTES_MAX: usize = 253;
/// Most entries of a policy.
const ENTRIES_MAX: usize = 1000;
/// Most secrets of a policy.
const SECRETS_MAX: usize = 50;
/// Most bytes of the texts of all entries: policies are stored and listed.
const ENTRIES_BYTES_MAX: usize = 32 * 1024;

/// An entry of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EgressEntry {
    /// A host, a wildcard or a network.
    Target(Target),
    /// Name of a list of the operator.
    List(String),
}

/// Fault of the text of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The target is at fault.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// It is longer than any entry.
    #[error("is longer than {ENTRY_BYTES_MAX} characters")]
    Long,
    /// The name of the list is at fault.
    #[error("does not name a list; write @ and 1 to 64 letters, digits, `.`, `_` or `-`")]
    List,
}

impl EgressEntry {
    /// Parses a target, or `@` and the name of a list.
    ///
    /// # Errors
    /// The fault of the text.
    pub fn parse(text: &str) -> Result<EgressEntry, EntryError> {
        if text.len() > ENTRY_BYTES_MAX {
            return Err(EntryError::Long);
        }
        let Some(name) = text.strip_prefix('@') else { return Ok(EgressEntry::Target(Target::parse(text)?)) };
        let is_name = (1..=LIST_NAME_BYTES_MAX).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
        if is_name { Ok(EgressEntry::List(name.to_owned())) } else { Err(EntryError::List) }
    }
}

impl fmt::Display for EgressEntry {
    /// Writes what [`EgressEntry::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EgressEntry::Target(target) => target.fmt(f),
            EgressEntry::List(name) => write!(f, "@{name}"),
        }
    }
}

/// Lists of the operator, by name.
pub type EgressLists = BTreeMap<String, Vec<Target>>;

/// A policy on connections out of a box.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EgressPolicy {
    /// Connections that are let through.
    pub mode: EgressMode,
    /// Targets that [`EgressMode::AllowList`] lets through.
    pub allow: Vec<EgressEntry>,
    /// Targets that no mode lets through; stronger than `allow`.
    pub deny: Vec<EgressEntry>,
    /// Secrets of the operator that are sent to the hosts that they are bound to. Naming one lets no
    /// connection through.
    pub secrets: Vec<SecretUse>,
}

/// Rule that a policy breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEgress {
    /// It has too many entries.
    #[error(
        "`egress` has {0} entries; at most {ENTRIES_MAX} are allowed; for more, use a list of the operator \
        (`@name`)"
    )]
    Long(usize),
    /// Its entries are too long together.
    #[error(
        "the entries of `egress` have more than {ENTRIES_BYTES_MAX} characters in total; use a list of the operator \
         (`@name`)"
    )]
    Large,
    /// It names a list that does not exist.
    #[error("`egress` names the list `@{0}`, which the operator has not configured in `egress.lists`")]
    UnknownList(String),
    /// It allows targets in a mode that has no use for them.
    #[error("`egress.allow` has no effect with the mode `{0}`; set `egress.mode` to `allow-list`, or leave it out")]
    UselessAllow(&'static str),
    /// It names too many secrets.
    #[error("`egress.secrets` names {0} secrets; it may name at most {SECRETS_MAX}")]
    ManySecrets(usize),
    /// It names secrets in the mode that lets nothing through.
    #[error("`egress.secrets` has no effect with the mode `none`; set `egress.mode` to `allow-list`, or leave it out")]
    UselessSecrets,
}

impl EgressPolicy {
    /// Checks the number of entries, the lists that it names, and that no entry is without use.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn check(&self, lists: &EgressLists) -> Result<(), InvalidEgress> {
        let entries = self.allow.len() + self.deny.len();
        if entries > ENTRIES_MAX {
            return Err(InvalidEgress::Long(entries));
        }
        let texts = self.allow.iter().chain(&self.deny).map(|entry| entry.to_string().len());
        if texts.sum::<usize>() > ENTRIES_BYTES_MAX {
            return Err(InvalidEgress::Large);
        }
        if self.mode != EgressMode::AllowList && !self.allow.is_empty() {
            return Err(InvalidEgress::UselessAllow(self.mode.as_str()));
        }
        if self.secrets.len() > SECRETS_MAX {
            return Err(InvalidEgress::ManySecrets(self.secrets.len()));
        }
        if self.mode == EgressMode::None && !self.secrets.is_empty() {
            return Err(InvalidEgress::UselessSecrets);
        }
        for entry in self.allow.iter().chain(&self.deny) {
            match entry {
                EgressEntry::List(name) if !lists.contains_key(name) => {
                    return Err(InvalidEgress::UnknownList(name.clone()));
                }
                EgressEntry::List(_) | EgressEntry::Target(_) => {}
            }
        }
        Ok(())
    }

    /// Looks up the lists. A policy with a list that exists no more lets nothing through.
    #[must_use]
    pub fn rules(&self, lists: &EgressLists) -> EgressRules {
        match (targets(&self.allow, lists), targets(&self.deny, lists)) {
            (Some(allow), Some(deny)) => EgressRules { mode: self.mode, allow, deny },
            _ => EgressRules::default(),
        }
    }

    /// Returns the policy without its secrets.
    fn without_secrets(&self) -> Self {
        Self { secrets: Vec::new(), ..self.clone() }
    }
}

/// Returns the targets of the entries; `None` if one of the lists does not exist.
fn targets(entries: &[EgressEntry], lists: &EgressLists) -> Option<Targets> {
    let mut targets = Vec::new();
    for entry in entries {
        match entry {
            EgressEntry::Target(target) => targets.push(target.clone()),
            EgressEntry::List(name) => targets.extend(lists.get(name)?.iter().cloned()),
        }
    }
    Some(targets.into_iter().collect())
}

/// Policies of one sandbox. Each of them has to let a connection through.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxEgress {
    /// Policy of the template that it was spawned from.
    pub template: Option<EgressPolicy>,
    /// Its own policy, which can be replaced.
    pub own: EgressPolicy,
}

impl SandboxEgress {
    /// Returns the policies.
    pub fn each(&self) -> impl Iterator<Item = &EgressPolicy> {
        self.template.iter().chain([&self.own])
    }

    /// Returns the secrets that are sent, those of the own policy first: of two in the same header the
    /// first counts.
    pub fn secrets(&self) -> impl Iterator<Item = &SecretUse> {
        self.own.secrets.iter().chain(self.template.iter().flat_map(|policy| &policy.secrets))
    }

    /// Returns the policies without the secrets.
    #[must_use]
    pub fn without_secrets(&self) -> Self {
        Self { template: self.template.as_ref().map(EgressPolicy::without_secrets), own: self.own.without_secrets() }
    }

    /// Returns whether they let nothing through.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.each().any(|policy| policy.mode == EgressMode::None)
    }
}
