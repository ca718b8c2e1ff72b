//! Egress: which connections out of a box are made.
//!
//! A connection passes every policy that applies to it (the site's, its owner's, its template's,
//! its own), so a narrower policy can only narrow. It is decided twice: on the host that is asked
//! for, and on each address that the host's name resolves to, which is the address then dialled.

mod address;
mod mode;
mod policy;
mod rules;
mod secret;
mod target;
#[cfg(test)]
mod test;

pub use address::{SpecialAddress, embedded, special};
pub use mode::EgressMode;
pub use policy::{EgressEntry, EgressLists, EgressPolicy, EntryError, InvalidEgress, SandboxEgress};
pub use rules::{Dialled, EgressDenial, EgressRules, decide_address, decide_host};
pub use secret::{InvalidBinding, SecretBinding, SecretForm, SecretName, SecretUse, SecretUseError};
pub use target::{Host, HostError, Network, Target, TargetError, Targets};
