//! Holders of keys of owners, and what these keys open.

use std::sync::Arc;

use domain::KeyScope;

use super::key::KeyId;
use crate::owner_keys::OwnerKey;

/// Holder of a key of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerPrincipal {
    pub key: Arc<OwnerKey>,
    /// Id of the key, for logs and the audit history.
    pub key_id: KeyId,
}

/// Rule of a route for keys of owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerAccess {
    /// None opens it: the route is the operator's.
    Closed,
    /// Each opens it.
    Any,
    /// Those with this scope open it.
    Scope(KeyScope),
}

/// Message for the holder of an owner's key on a route of the operator.
pub(super) const CLOSED: &str = "this route is the operator's, and no key of an owner opens it";

/// Returns the message for the holder of a key without this scope.
pub(super) fn lacks(scope: KeyScope) -> &'static str {
    match scope {
        KeyScope::SandboxesRead => {
            "the key does not have the scope `sandboxes:read`; ask the operator for one that does"
        }
        KeyScope::SandboxesWrite => {
            "the key does not have the scope `sandboxes:write`; ask the operator for one that does"
        }
        KeyScope::Snapshots => "the key does not have the scope `snapshots`; ask the operator for one that does",
        KeyScope::Templates => "the key does not have the scope `templates`; ask the operator for one that does",
        KeyScope::Images => "the key does not have the scope `images`; ask the operator for one that does",
        KeyScope::Secrets => "the key does not have the scope `secrets`; ask the operator for one that does",
        KeyScope::Events => "the key does not have the scope `events`; ask the operator for one that does",
        KeyScope::Metrics => "the key does not have the scope `metrics`; ask the operator for one that does",
    }
}
