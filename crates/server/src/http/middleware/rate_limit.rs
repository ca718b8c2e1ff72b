//! The rate limit of a request: the bucket that it takes from, and the headers of its answer.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::config::RateKey;
use crate::events::EventType;
use crate::http::caller::Caller;
use crate::http::error::{ApiError, Refusal};
use crate::http::peer::{self, Peer};
use crate::http::state::Api;
use crate::rate_limit::{Caller as Bucket, RateLimiter, TooFast};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");

/// Rate limiter applied to one request.
pub struct Limited<'a> {
    api: &'a Api,
    limiter: &'a RateLimiter,
    address: Option<IpAddr>,
    is_worker: bool,
}

/// Rate limit state for the headers of an answer.
#[derive(Debug, Clone, Copy)]
pub struct Allowed {
    per_minute: u32,
    remaining: u32,
}

impl<'a> Limited<'a> {
    /// Returns the limiter for this request; `None` without a limit. `is_worker` is true on
    /// routes of workers.
    pub fn of(api: &'a Api, request: &Request, is_worker: bool) -> Option<Self> {
        let limiter = api.settings.rate_limiter.as_deref()?;
        let peer = request.extensions().get::<Peer>();
        let address = peer.and_then(|peer| peer.address).map(peer::caller);
        Some(Self { api, limiter, address, is_worker })
    }

    /// Refuses a caller that has tried too many wrong keys, before another is checked: a
    /// guesser must not learn that a guess was right.
    ///
    /// # Errors
    /// [`TooFast`] for such a caller.
    pub fn before_a_key_is_looked_at(&self) -> Result<(), TooFast> {
        self.limiter.look(self.attempts(), self.address)
    }

    /// Counts a request that was refused for its key.
    pub fn count_attempt(&self) -> Allowed {
        // Of two concurrent attempts that passed the check before, one may find the bucket empty.
        self.allowed(self.limiter.take(self.attempts(), self.address).unwrap_or(0))
    }

    /// Counts a request that was not refused for its key.
    ///
    /// # Errors
    /// [`TooFast`] if the caller is above its limit.
    pub fn count(&self, caller: &Caller) -> Result<Allowed, TooFast> {
        let by_address = Bucket::Address(self.address);
        let by_key = caller.counted_key.as_ref().map_or(by_address, Bucket::Key);
        let bucket = match self.limiter.key_by() {
            RateKey::Owner => caller.counted_owner().map_or(by_key, Bucket::Owner),
            RateKey::ApiKey => by_key,
            RateKey::Ip => by_address,
        };
        self.limiter.take(bucket, self.address).map(|remaining| self.allowed(remaining))
    }

    /// Returns the bucket for failed attempts. They have one of their own, so that those of a
    /// neighbour do not use up the limit of other callers at the address. Where callers are
    /// counted by address, attempts count like any other request. Attempts on routes of workers
    /// are apart: wrong API keys must not keep a worker from renewing its leases.
    fn attempts(&self) -> Bucket<'static> {
        match self.limiter.key_by() {
            _ if self.is_worker => Bucket::WorkerAttempts(self.address),
            RateKey::Ip => Bucket::Address(self.address),
            RateKey::Owner | RateKey::ApiKey => Bucket::Attempts(self.address),
        }
    }

    fn allowed(&self, remaining: u32) -> Allowed {
        Allowed { per_minute: self.limiter.per_minute(), remaining }
    }

    /// Returns the answer to a request above the limit.
    pub fn refuse(&self, too_fast: TooFast) -> Response {
        if let Some(count) = too_fast.untold {
            let data = json!({"operation": "request", "provider": null, "refused": count});
            self.api.control.publish(EventType::ResourceLimit, None, data);
        }
        // Rounded up, so that the caller does not come back too early.
        let wait_s = too_fast.wait.as_secs() + u64::from(too_fast.wait.subsec_nanos() > 0);
        let mut response = ApiError::from(Refusal::TooFast { wait_s: wait_s.max(1) }).into_response();
        self.allowed(0).mark(response.headers_mut());
        response
    }
}

impl Allowed {
    /// Sets the rate limit headers of an answer.
    pub fn mark(self, headers: &mut HeaderMap) {
        headers.insert(LIMIT, HeaderValue::from(self.per_minute));
        headers.insert(REMAINING, HeaderValue::from(self.remaining));
    }
}
