//! Conversions of keys of owners.

use domain::{KeyScope, KeyScopes, OwnerId};

use super::scalars::{given, span, time};
use crate::control::{KeyFormat, NewKey, NewKeyRequest, OwnerKey};
use crate::http::error::{ApiError, malformed};

/// Converts the body of a request for a key.
pub fn key_request(body: api::OwnerKeyRequest) -> Result<NewKeyRequest, ApiError> {
    let api::OwnerKeyRequest { owner_id, name, scopes, ttl, format } = body;
    Ok(NewKeyRequest {
        owner: owner("owner_id", &owner_id)?,
        name: given("name", name)?,
        scopes: scopes.map_or_else(KeyScopes::default, |scopes| scopes.into_iter().map(scope).collect()),
        ttl: ttl.map(|text| span("ttl", &text)).transpose()?,
        format: match format {
            None | Some(api::KeyFormat::Tidebox) => KeyFormat::Tidebox,
            Some(api::KeyFormat::E2b) => KeyFormat::E2b,
        },
    })
}

/// Converts the filter of the list of keys.
pub fn key_filter(owner_id: Option<&str>) -> Result<Option<OwnerId>, ApiError> {
    owner_id.map(|text| owner("owner_id", text)).transpose()
}

fn owner(field: &str, text: &str) -> Result<OwnerId, ApiError> {
    OwnerId::parse(text).map_err(|error| malformed(format!("`{field}`: {error}")))
}

fn scope(scope: api::KeyScope) -> KeyScope {
    match scope {
        api::KeyScope::SandboxesRead => KeyScope::SandboxesRead,
        api::KeyScope::SandboxesWrite => KeyScope::SandboxesWrite,
        api::KeyScope::Snapshots => KeyScope::Snapshots,
        api::KeyScope::Templates => KeyScope::Templates,
        api::KeyScope::Images => KeyScope::Images,
        api::KeyScope::Secrets => KeyScope::Secrets,
        api::KeyScope::Events => KeyScope::Events,
        api::KeyScope::Metrics => KeyScope::Metrics,
    }
}

/// Converts a key to the API, without its text.
pub fn owner_key(key: &OwnerKey) -> api::OwnerKey {
    api::OwnerKey {
        id: key.id.to_string(),
        name: key.name.clone(),
        owner_id: key.owner.to_string(),
        scopes: key.scopes.iter().map(|scope| scope.as_str().to_owned()).collect(),
        prefix: key.prefix.clone(),
        created_at: time(key.created_at),
        expires_at: key.expires_at.map(time),
        revoked_at: key.revoked_at.map(time),
        last_used_at: key.last_used_at.map(time),
    }
}

/// Converts a new key to the API, with its text.
pub fn created_key(created: NewKey) -> api::CreatedOwnerKey {
    api::CreatedOwnerKey { key: owner_key(&created.key), secret: created.text }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_scope_has_the_same_name_in_the_api_and_in_the_rules() {
        for known in KeyScope::ALL {
            let named: api::KeyScope = serde_json::from_value(known.as_str().into()).unwrap();
            assert_eq!(scope(named), known);
        }
    }
}
