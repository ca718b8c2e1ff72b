//! Authentication, which finds the principal of a request in its headers, and authorization, which
//! decides what a principal may use. Both have no effects.
//!
//! Keys are stored and compared as hashes, in constant time. No type here can show a key;
//! outside of this module it appears as its [`KeyId`].

pub mod box_token;
mod credential;
mod key;
mod owner;
pub mod preview;
pub mod token;
pub mod worker;

use std::sync::Arc;

use axum::http::{HeaderMap, HeaderName, header};

use crate::config::{Auth, RouteGroup};
use crate::owner_keys::{Found, OwnerKeys};

use credential::{denied, single};
use key::KeyHash;
use owner::{CLOSED, lacks};

pub use credential::Denied;
pub use key::KeyId;
pub use owner::{OwnerAccess, OwnerPrincipal};
use worker::Workers;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const ADMIN_KEY: HeaderName = HeaderName::from_static("x-admin-api-key");

/// Authenticated caller of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Principal {
    /// Caller without a key, where none is required.
    Anonymous,
    /// Holder of the API key.
    ApiKey(KeyId),
    /// Holder of the admin key.
    Admin(KeyId),
    /// Holder of a key of an owner.
    Owner(OwnerPrincipal),
    /// Worker with this id.
    Worker(String),
}

impl Principal {
    /// Returns the id of the key that was sent, for logs and the audit history.
    #[must_use]
    pub fn key_id(&self) -> Option<&KeyId> {
        match self {
            Principal::ApiKey(id) | Principal::Admin(id) => Some(id),
            Principal::Owner(owner) => Some(&owner.key_id),
            Principal::Anonymous | Principal::Worker(_) => None,
        }
    }
}

/// Access rule of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// No key. A key may reveal more.
    Nothing,
    /// The API key, while `auth.enabled` is true.
    Key,
    /// The admin key.
    AdminKey,
    /// As [`Demand::Key`], or the admin key if `auth.admin_only` lists this group.
    Group(RouteGroup),
}

/// Credential that a caller has to send under the current configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    Nothing,
    /// The API key, or the admin key.
    Key,
    /// The admin key.
    AdminKey,
}

/// Configured keys, and the rules of what they open.
#[derive(Debug, Clone)]
pub struct Access {
    enabled: bool,
    api_key: Option<KeyHash>,
    admin_key: Option<KeyHash>,
    fallback: bool,
    admin_only: Vec<RouteGroup>,
    workers: Workers,
    owner_keys: Arc<OwnerKeys>,
}

/// Keys in the headers of one request.
#[derive(Debug, Default)]
struct Shown<'a> {
    /// Key of `X-API-Key`, or of its alias `Authorization: Bearer`.
    api: Option<&'a [u8]>,
    /// Key of `X-Admin-API-Key`.
    admin: Option<&'a [u8]>,
}

impl Access {
    /// Builds the rules of this configuration.
    #[must_use]
    pub fn new(auth: &Auth, owner_keys: Arc<OwnerKeys>) -> Access {
        Access {
            owner_keys,
            enabled: auth.enabled,
            api_key: auth.api_key.as_ref().map(KeyHash::of),
            admin_key: auth.admin_api_key.as_ref().map(KeyHash::of),
            fallback: auth.admin_fallback_enabled,
            admin_only: auth.admin_only.clone(),
            workers: Workers::new(auth),
        }
    }

    /// Returns the holder of the keys in the headers; [`Principal::Anonymous`] without keys. Every key that is
    /// sent must be right: a wrong one is a mistake that the caller should learn of.
    ///
    /// # Errors
    /// [`Denied`] if a key is wrong or given twice.
    pub fn authenticate(&self, headers: &HeaderMap) -> Result<Principal, Denied> {
        let shown = shown(headers)?;
        let api = shown
            .api
            .map(|key| self.whose(key, "the key in `X-API-Key` or `Authorization` is not valid for this service"));
        let admin = shown.admin.map(|key| {
            let principal = self.whose(key, "the key in `X-Admin-API-Key` is not the admin key of this service")?;
            match principal {
                Principal::ApiKey(tried) => {
                    let message = "`X-Admin-API-Key` holds the API key; send that as `X-API-Key`";
                    Err(Denied::of(message, Some(tried)))
                }
                Principal::Owner(owner) => {
                    let message = "`X-Admin-API-Key` holds a key of an owner; send that as `X-API-Key`";
                    Err(Denied::of(message, Some(owner.key_id)))
                }
                Principal::Anonymous | Principal::Admin(_) | Principal::Worker(_) => Ok(principal),
            }
        });
        match (api.transpose()?, admin.transpose()?) {
            (_, Some(principal)) | (Some(principal), None) => Ok(principal),
            (None, None) => Ok(Principal::Anonymous),
        }
    }

    /// Returns the holder of the keys in a request to a preview. `Authorization` counts only where no header
    /// of our own is sent, because it may be meant for the program in the sandbox.
    ///
    /// # Errors
    /// As [`Access::authenticate`].
    pub fn authenticate_preview(&self, headers: &HeaderMap) -> Result<Principal, Denied> {
        if !headers.contains_key(API_KEY) && !headers.contains_key(ADMIN_KEY) {
            return self.authenticate(headers);
        }
        let mut own = headers.clone();
        own.remove(header::AUTHORIZATION);
        self.authenticate(&own)
    }

    /// Returns the caller whom [`Access::authenticate`] found, if it may use what `demand` guards. The holder of an
    /// owner's key always may: [`Access::check_owner_access`] decides on it.
    ///
    /// # Errors
    /// [`Denied`] if it may not.
    pub fn authorize(&self, found: Result<Principal, Denied>, demand: Demand) -> Result<Principal, Denied> {
        match &found {
            Ok(Principal::Owner(_)) => return found,
            Err(denied) if denied.has_ended && demand != Demand::Nothing => return found,
            Ok(_) | Err(_) => {}
        }
        match demand {
            Demand::AdminKey => self.authorize_admin(found),
            Demand::Group(group) if self.admin_only.contains(&group) => self.authorize_admin(found),
            Demand::Key | Demand::Group(_) if self.enabled => match found? {
                Principal::Anonymous => {
                    Err(denied("this service requires a key; send it as `X-API-Key`, or as `Authorization: Bearer`"))
                }
                found @ (Principal::ApiKey(_) | Principal::Admin(_) | Principal::Owner(_) | Principal::Worker(_)) => {
                    Ok(found)
                }
            },
            // No key is required, so a wrong one is ignored.
            Demand::Nothing | Demand::Key | Demand::Group(_) => Ok(found.unwrap_or(Principal::Anonymous)),
        }
    }

    /// Checks that a holder of an owner's key may use a route with these rules. Other callers are none of its
    /// business.
    ///
    /// # Errors
    /// The message for the caller if it may not.
    pub fn check_owner_access(
        &self,
        principal: &Principal,
        demand: Demand,
        access: OwnerAccess,
    ) -> Result<(), &'static str> {
        let Principal::Owner(holder) = principal else { return Ok(()) };
        match (demand, access) {
            (Demand::Nothing, _) => Ok(()),
            (Demand::Group(group), _) if self.admin_only.contains(&group) => Err(CLOSED),
            (_, OwnerAccess::Closed) => Err(CLOSED),
            (_, OwnerAccess::Any) => Ok(()),
            (_, OwnerAccess::Scope(scope)) if holder.key.scopes().allow(scope) => Ok(()),
            (_, OwnerAccess::Scope(scope)) => Err(lacks(scope)),
        }
    }

    /// Removes the keys of this service from headers that are passed on.
    pub fn remove_keys(&self, headers: &mut HeaderMap) {
        headers.remove(API_KEY);
        headers.remove(ADMIN_KEY);
        // Of two, or of one that cannot be read, none is passed on.
        let is_ours = bearer(headers).map_or(true, |key| key.is_some_and(|key| self.knows(key)));
        if is_ours {
            headers.remove(header::AUTHORIZATION);
        }
    }

    /// Returns the credential that [`Access::authorize`] requires for `demand`.
    #[must_use]
    pub fn asks(&self, demand: Demand) -> Asked {
        let has_keys = self.admin_key.is_some() || self.api_key.is_some();
        match demand {
            Demand::AdminKey if has_keys || !self.fallback => Asked::AdminKey,
            Demand::Group(group) if self.admin_only.contains(&group) => self.asks(Demand::AdminKey),
            Demand::Key | Demand::Group(_) if self.enabled => Asked::Key,
            Demand::Nothing | Demand::AdminKey | Demand::Key | Demand::Group(_) => Asked::Nothing,
        }
    }

    /// Returns whether the caller may see all details: where no key is required, or one was sent. An owner's key
    /// shows none of the service's.
    #[must_use]
    pub fn tells_all(&self, principal: &Principal) -> bool {
        match principal {
            Principal::ApiKey(_) | Principal::Admin(_) => true,
            Principal::Anonymous | Principal::Worker(_) => !self.enabled,
            Principal::Owner(_) => false,
        }
    }

    /// Returns whether `auth.enabled` is true.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns whether the answer depends on a key, and so reveals whether the key is right.
    #[must_use]
    pub fn depends_on_key(&self, demand: Demand, headers: &HeaderMap) -> bool {
        match self.asks(demand) {
            Asked::Key | Asked::AdminKey => true,
            // On the open routes a key reveals more.
            Asked::Nothing if demand == Demand::Nothing && self.enabled => {
                !matches!(shown(headers), Ok(Shown { api: None, admin: None }))
            }
            Asked::Nothing => false,
        }
    }

    /// Returns the credentials of workers.
    #[must_use]
    pub fn workers(&self) -> &Workers {
        &self.workers
    }

    fn authorize_admin(&self, found: Result<Principal, Denied>) -> Result<Principal, Denied> {
        let is_closed = self.admin_key.is_none() && !self.fallback;
        if is_closed {
            return Err(denied(
                "this route is closed because `auth.admin_api_key` is not set and `auth.admin_fallback_enabled` is \
                 false",
            ));
        }
        if self.admin_key.is_none() && self.api_key.is_none() {
            return Ok(Principal::Anonymous);
        }
        match found? {
            principal @ Principal::Admin(_) => Ok(principal),
            Principal::ApiKey(tried) => Err(Denied::of(
                "the API key does not give access to this route; send the admin key as `X-Admin-API-Key`",
                Some(tried),
            )),
            Principal::Anonymous | Principal::Owner(_) | Principal::Worker(_) => {
                Err(denied("this route requires the admin key; send it as `X-Admin-API-Key`"))
            }
        }
    }

    /// Returns the holder of this key, or a refusal with the message `otherwise`.
    fn whose(&self, key: &[u8], otherwise: &'static str) -> Result<Principal, Denied> {
        let given = KeyHash::of_bytes(key);
        // Both are always compared, so that the time does not reveal which one matched.
        let is_admin = self.admin_key.as_ref().is_some_and(|known| known.matches(&given));
        let is_api = self.api_key.as_ref().is_some_and(|known| known.matches(&given));
        if is_admin || is_api && self.admin_key.is_none() && self.fallback {
            Ok(Principal::Admin(given.id()))
        } else if is_api {
            Ok(Principal::ApiKey(given.id()))
        } else {
            self.owner_of(&given).unwrap_or_else(|| Err(Denied::of(otherwise, Some(given.id()))))
        }
    }

    /// Returns the holder of the owner's key with this hash, or the refusal of a key that has ended; `None` if
    /// there is no such key.
    fn owner_of(&self, given: &KeyHash) -> Option<Result<Principal, Denied>> {
        let (message, key) = match self.owner_keys.find(given.bytes())? {
            Found::Valid(key) => {
                let key_id = KeyId::of_owner_key(key.id());
                return Some(Ok(Principal::Owner(OwnerPrincipal { key, key_id })));
            }
            Found::Revoked(key) => ("this key was revoked; ask the operator for a new one", key),
            Found::Expired(key) => ("this key has expired; ask the operator for a new one", key),
        };
        Some(Err(Denied { message, tried: Some(KeyId::of_owner_key(key.id())), has_ended: true }))
    }

    /// Returns whether this is a key of this service, which may have ended.
    fn knows(&self, key: &[u8]) -> bool {
        self.whose(key, "").map_or_else(|denied| denied.has_ended, |_| true)
    }
}

/// Finds the keys in the headers, and refuses ambiguous ones.
fn shown(headers: &HeaderMap) -> Result<Shown<'_>, Denied> {
    let own = single(headers, &API_KEY, "`X-API-Key` is given twice; send it once", "`X-API-Key` is empty")?;
    let admin =
        single(headers, &ADMIN_KEY, "`X-Admin-API-Key` is given twice; send it once", "`X-Admin-API-Key` is empty")?;
    let bearer = bearer(headers)?;
    let api = match (own, bearer) {
        (Some(own), Some(bearer)) if own != bearer => {
            return Err(denied("`X-API-Key` and `Authorization` hold different keys; send one of them"));
        }
        (own, bearer) => own.or(bearer),
    };
    Ok(Shown { api, admin })
}

/// Returns the key of `Authorization: Bearer`. Other schemes are meant for a proxy and ignored.
fn bearer(headers: &HeaderMap) -> Result<Option<&[u8]>, Denied> {
    let twice = "`Authorization` is given twice; send it once";
    let Some(value) = single(headers, &header::AUTHORIZATION, twice, "`Authorization` is empty")? else {
        return Ok(None);
    };
    let end = value.iter().position(u8::is_ascii_whitespace).unwrap_or(value.len());
    let (scheme, key) = value.split_at(end);
    match key.trim_ascii() {
        _ if !scheme.eq_ignore_ascii_case(b"bearer") => Ok(None),
        b"" => Err(denied("`Authorization: Bearer` contains no key")),
        key => Ok(Some(key)),
    }
}

#[cfg(test)]
mod test;
