//! Authentication, which finds the principal of a request in its headers, and authorization, which
//! decides what a principal may use. Both have no effects.
//!
//! Keys are stored and compared as hashes, in constant time. No type here can show a key;
//! outside of this module it appears as its [`KeyId`].

mod credential;
mod key;
pub mod preview;
pub mod token;
pub mod worker;

use axum::http::{HeaderMap, HeaderName, header};

use crate::config::{Auth, RouteGroup};

use credential::{denied, single};
use key::KeyHash;

pub use credential::Denied;
pub use key::KeyId;
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
    /// Worker with this id.
    Worker(String),
}

impl Principal {
    /// Returns the id of the key that was sent, for logs and the audit history.
    #[must_use]
    pub fn key_id(&self) -> Option<&KeyId> {
        match self {
            Principal::ApiKey(id) | Principal::Admin(id) => Some(id),
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
    pub fn new(auth: &Auth) -> Access {
        Access {
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
            if let Principal::ApiKey(tried) = principal {
                let message = "`X-Admin-API-Key` holds the API key; send that as `X-API-Key`";
                return Err(Denied { message, tried: Some(tried) });
            }
            Ok(principal)
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

    /// Returns the caller whom [`Access::authenticate`] found, if it may use what `demand` guards.
    ///
    /// # Errors
    /// [`Denied`] if it may not.
    pub fn authorize(&self, found: Result<Principal, Denied>, demand: Demand) -> Result<Principal, Denied> {
        match demand {
            Demand::AdminKey => self.authorize_admin(found),
            Demand::Group(group) if self.admin_only.contains(&group) => self.authorize_admin(found),
            Demand::Key | Demand::Group(_) if self.enabled => match found? {
                Principal::Anonymous => {
                    Err(denied("this service requires a key; send it as `X-API-Key`, or as `Authorization: Bearer`"))
                }
                found @ (Principal::ApiKey(_) | Principal::Admin(_) | Principal::Worker(_)) => Ok(found),
            },
            // No key is required, so a wrong one is ignored.
            Demand::Nothing | Demand::Key | Demand::Group(_) => Ok(found.unwrap_or(Principal::Anonymous)),
        }
    }

    /// Removes the keys of this service from headers that are passed on.
    pub fn remove_keys(&self, headers: &mut HeaderMap) {
        headers.remove(API_KEY);
        headers.remove(ADMIN_KEY);
        // Of two, or of one that cannot be read, none is passed on.
        let is_ours = bearer(headers).map_or(true, |key| key.is_some_and(|key| self.whose(key, "").is_ok()));
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

    /// Returns whether the caller may see all details: where no key is required, or one was sent.
    #[must_use]
    pub fn tells_all(&self, principal: &Principal) -> bool {
        !self.enabled || matches!(principal, Principal::ApiKey(_) | Principal::Admin(_))
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
            Principal::ApiKey(tried) => Err(Denied {
                message: "the API key does not give access to this route; send the admin key as `X-Admin-API-Key`",
                tried: Some(tried),
            }),
            Principal::Anonymous | Principal::Worker(_) => {
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
            Err(Denied { message: otherwise, tried: Some(given.id()) })
        }
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
