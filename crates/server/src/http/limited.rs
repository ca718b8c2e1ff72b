//! How fast callers may ask, applied to a request: whose bucket it takes from,
//! and what its answer says about it.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::Api;
use super::error::{ApiError, Refusal};
use super::peer::{self, Peer};
use super::request;
use crate::auth::Principal;
use crate::config::RateKey;
use crate::events::EventType;
use crate::rate_limit::{Caller, RateLimiter, TooFast};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");

/// The limiter, for one request.
pub struct Limited<'a> {
    api: &'a Api,
    limiter: &'a RateLimiter,
    address: Option<IpAddr>,
    is_worker: bool,
}

/// What a request was allowed, for its answer.
#[derive(Debug, Clone, Copy)]
pub struct Allowed {
    per_minute: u32,
    remaining: u32,
}

impl<'a> Limited<'a> {
    /// For this request, which is on a route of workers or not; `None` without a
    /// limit.
    pub fn of(api: &'a Api, request: &Request, is_worker: bool) -> Option<Self> {
        let limiter = api.settings.rate_limiter.as_deref()?;
        let peer = request.extensions().get::<Peer>();
        let address = peer.and_then(|peer| peer.address).map(peer::caller);
        Some(Self { api, limiter, address, is_worker })
    }

    /// Refuses whoever has tried too many wrong keys, before another is looked
    /// at: who guesses must not learn that a guess was right.
    ///
    /// # Errors
    /// [`TooFast`] for them.
    pub fn before_a_key_is_looked_at(&self) -> Result<(), TooFast> {
        self.limiter.look(self.attempts(), self.address)
    }

    /// Counts a request that was refused for its key.
    pub fn count_attempt(&self) -> Allowed {
        // Two that came at once may both be the last one.
        self.allowed(self.limiter.take(self.attempts(), self.address).unwrap_or(0))
    }

    /// Counts a request that is let through otherwise.
    ///
    /// # Errors
    /// [`TooFast`] if it must not be.
    pub fn count(&self, principal: &Principal, headers: &HeaderMap) -> Result<Allowed, TooFast> {
        let by_address = Caller::Address(self.address);
        // Without authentication a key proves nothing; to count by those that
        // happen to be right would tell which are.
        let key = principal.key_id().filter(|_| self.api.settings.access.is_enabled());
        let by_key = key.map_or(by_address, Caller::Key);
        // A request with an owner that makes no sense is refused by its route.
        let owner = request::owner(headers).ok().flatten();
        let caller = match self.limiter.key_by() {
            RateKey::Owner => owner.as_ref().map_or(by_key, Caller::Owner),
            RateKey::ApiKey => by_key,
            RateKey::Ip => by_address,
        };
        self.limiter.take(caller, self.address).map(|remaining| self.allowed(remaining))
    }

    /// Attempts count by themselves, so that those of a neighbour do not use up
    /// what others at the address may ask; where the address is the caller, they
    /// are requests of it like any other. And no wrong key of the API may keep a
    /// worker from renewing its leases.
    fn attempts(&self) -> Caller<'static> {
        match self.limiter.key_by() {
            _ if self.is_worker => Caller::WorkerAttempts(self.address),
            RateKey::Ip => Caller::Address(self.address),
            RateKey::Owner | RateKey::ApiKey => Caller::Attempts(self.address),
        }
    }

    fn allowed(&self, remaining: u32) -> Allowed {
        Allowed { per_minute: self.limiter.per_minute(), remaining }
    }

    /// The answer to a request that comes too early.
    pub fn refuse(&self, too_fast: TooFast) -> Response {
        if let Some(count) = too_fast.untold {
            let data = json!({"operation": "request", "provider": null, "refused": count});
            self.api.control.publish(EventType::ResourceLimit, None, data);
        }
        // Whole seconds, of which none is too early.
        let wait_s = too_fast.wait.as_secs() + u64::from(too_fast.wait.subsec_nanos() > 0);
        let mut response = ApiError::from(Refusal::TooFast { wait_s: wait_s.max(1) }).into_response();
        self.allowed(0).mark(response.headers_mut());
        response
    }
}

impl Allowed {
    /// Says so in the headers of the answer.
    pub fn mark(self, headers: &mut HeaderMap) {
        headers.insert(LIMIT, HeaderValue::from(self.per_minute));
        headers.insert(REMAINING, HeaderValue::from(self.remaining));
    }
}
