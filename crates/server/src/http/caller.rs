//! Callers of requests: who asks, for whom, and from where.

use std::net::IpAddr;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap};
use domain::OwnerId;

use super::error::{ApiError, Refusal, Result, malformed};
use super::peer::{self, Peer};
use crate::auth::{Access, KeyId, Principal};
use crate::owner_keys::OwnerKey;

/// Caller of a request; made once, when its credential is accepted, and an extension of the request and of
/// its answer from then on.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Holder of the credential.
    pub principal: Principal,
    /// Owner of the key, or else the owner that `X-User-ID` names, or what is wrong with the header.
    owner: Result<Option<OwnerId>, String>,
    /// Address that the caller is counted by, for IPv6 its network; `None` over the Unix socket.
    pub address: Option<IpAddr>,
    /// Key that the caller is counted by. Without authentication there is none, because a key proves
    /// nothing then, and counting by the keys that happen to be right would reveal which are. An owner's key always
    /// counts.
    pub counted_key: Option<KeyId>,
}

impl Caller {
    /// Returns the caller of a request whose credential is that of `principal`. Without an owner's key, the request
    /// is for `named`.
    pub fn of(
        access: &Access,
        principal: Principal,
        request: &Request,
        named: Result<Option<OwnerId>, String>,
    ) -> Self {
        let address = request.extensions().get::<Peer>().and_then(|peer| peer.address).map(peer::caller);
        let owner_of_key = match &principal {
            Principal::Owner(holder) => Some(holder.key.owner().clone()),
            Principal::Anonymous | Principal::ApiKey(_) | Principal::Admin(_) | Principal::Worker(_) => None,
        };
        let is_counted = access.is_enabled() || owner_of_key.is_some();
        let counted_key = principal.key_id().filter(|_| is_counted).cloned();
        let owner = owner_of_key.map_or(named, |owner| Ok(Some(owner)));
        Self { owner, principal, address, counted_key }
    }

    /// Returns the caller of a request that passed authentication.
    pub fn among(extensions: &Extensions) -> Result<&Self> {
        extensions.get::<Caller>().ok_or_else(|| Refusal::Internal.into())
    }

    /// Returns the owner that the request names.
    ///
    /// # Errors
    /// If `X-User-ID` is given twice or is not an owner id.
    pub fn owner(&self) -> Result<Option<&OwnerId>> {
        self.owner.as_ref().map(Option::as_ref).map_err(malformed)
    }

    /// Returns the owner that the caller is counted by. A malformed one counts as none: the route of the
    /// request refuses it.
    pub fn counted_owner(&self) -> Option<&OwnerId> {
        self.owner.as_ref().ok().and_then(Option::as_ref)
    }

    /// Returns the owner's key that the caller holds.
    pub fn owner_key(&self) -> Option<&OwnerKey> {
        match &self.principal {
            Principal::Owner(holder) => Some(&holder.key),
            Principal::Anonymous | Principal::ApiKey(_) | Principal::Admin(_) | Principal::Worker(_) => None,
        }
    }

    /// Returns the owner whose objects alone the caller may see and use: that of its key.
    pub fn restricted_to(&self) -> Option<&OwnerId> {
        self.owner_key().map(OwnerKey::owner)
    }

    /// Checks that a request with an owner's key names no other owner in `X-User-ID`.
    ///
    /// # Errors
    /// [`Refusal::OtherOwner`], or [`Refusal::Malformed`] for what is not an owner id.
    pub fn check_header(&self, headers: &HeaderMap) -> Result<()> {
        let Some(own) = self.restricted_to() else { return Ok(()) };
        match owner(headers).map_err(malformed)? {
            Some(named) if named != *own => Err(Refusal::OtherOwner("`X-User-ID`").into()),
            _ => Ok(()),
        }
    }

    /// Checks that a request with an owner's key names no other owner in the field `owner_id`. Without such a key
    /// the header overrides the field.
    ///
    /// # Errors
    /// [`Refusal::OtherOwner`].
    pub fn check_named(&self, owner_id: Option<&str>) -> Result<()> {
        match (self.restricted_to(), owner_id) {
            (Some(own), Some(named)) if OwnerId::parse(named).as_ref() != Ok(own) => {
                Err(Refusal::OtherOwner("`owner_id`").into())
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the caller holds the admin key.
    pub fn is_admin(&self) -> bool {
        matches!(self.principal, Principal::Admin(_))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        Caller::among(&parts.extensions).cloned()
    }
}

/// Owner charged for the request: that of the key, else `X-User-ID`.
#[derive(Debug, Clone, Default)]
pub struct Owner(pub Option<OwnerId>);

impl<S: Send + Sync> FromRequestParts<S> for Owner {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        Ok(Owner(Caller::among(&parts.extensions)?.owner()?.cloned()))
    }
}

/// Returns the owner that `X-User-ID` names.
///
/// # Errors
/// The fault of the header, for the caller.
pub fn owner(headers: &HeaderMap) -> Result<Option<OwnerId>, String> {
    let mut values = headers.get_all("x-user-id").iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("`X-User-ID` is given twice".to_owned());
    }
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| "`X-User-ID` is not UTF-8".to_owned())?;
    OwnerId::parse(text).map(Some).map_err(|error| format!("`X-User-ID`: {error}"))
}
