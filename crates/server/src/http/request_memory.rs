//! Accounting of the shared memory that a request holds: the account it is charged to, and its
//! release.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{Extensions, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;

use super::caller::Caller;
use super::error::{ApiError, Refusal, Result};
use super::state::Api;
use crate::budget::{self, Account, Reservation};

/// Bytes of each body and each answer that are not counted: as much as a connection holds anyway.
pub const SMALL_BYTES: usize = 4 * 1024;
/// Memory held for a list from a box until it is complete: enough for some ten thousand files.
pub const LIST_BYTES: usize = 2 * 1024 * 1024;
/// Time that a request waits for others to release memory.
pub const WAIT_MAX: Duration = Duration::from_secs(10);
/// Memory that a caller must be able to hold before an answer is built for it.
const ANSWER_BYTES: usize = 64 * 1024;

/// Memory account of a request, and the reservation of its body. An extension of every request
/// that passed authentication.
#[derive(Debug, Clone)]
pub struct Meter {
    account: Account,
    body: Arc<Mutex<Option<Reservation>>>,
}

impl Meter {
    /// Returns the meter of a request by `caller`. It is charged to the owner, else to the key, else to the
    /// address.
    pub fn of(api: &Api, caller: &Caller) -> Self {
        let payer = match (caller.counted_owner(), &caller.counted_key) {
            (Some(owner), _) => budget::Caller::Owner(owner),
            (None, Some(key)) => budget::Caller::Key(key),
            (None, None) => budget::Caller::Address(caller.address),
        };
        Self::new(api.settings.memory.account(payer, caller.address))
    }

    /// Returns a meter that charges `account`.
    pub fn new(account: Account) -> Self {
        Self { account, body: Arc::default() }
    }

    /// Returns the account that is charged.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Holds `reservation` until the request is answered.
    pub fn keep(&self, reservation: Reservation) {
        let mut body = self.body.lock();
        match &mut *body {
            Some(kept) => kept.merge(reservation),
            None => *body = Some(reservation),
        }
    }

    /// Holds `bytes` until the request is answered. Up to [`SMALL_BYTES`] are not counted.
    ///
    /// # Errors
    /// [`Refusal::Busy`] if the caller may not hold them within [`WAIT_MAX`].
    pub async fn hold(&self, bytes: usize) -> Result<()> {
        if bytes > SMALL_BYTES {
            self.keep(self.account.reserve_within(bytes, WAIT_MAX).await?);
        }
        Ok(())
    }

    /// Removes the reservation of the request, for use beyond its answer.
    pub fn take(&self) -> Reservation {
        let kept = self.body.lock().take();
        kept.unwrap_or_else(|| self.account.nothing())
    }

    /// Passes the request on, and counts its answer until the client has taken it. GET and HEAD
    /// are refused when the caller holds too much: before the answer is built, or after, if it
    /// turns out too large. Routes that are `vital` are never refused.
    pub async fn pass(self, is_vital: bool, mut request: Request, next: Next) -> Response {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let may_refuse = is_read && !is_vital;
        if may_refuse && !self.account.has_room(ANSWER_BYTES) {
            self.account.count_refusal();
            return ApiError::from(Refusal::Busy).into_response();
        }
        request.extensions_mut().insert(self.clone());
        let response = next.run(request).await;
        drop(self.take());
        self.count(response, may_refuse)
    }

    fn count(&self, response: Response, may_refuse: bool) -> Response {
        let bytes = http_body::Body::size_hint(response.body()).exact().unwrap_or(0);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes <= SMALL_BYTES {
            return response;
        }
        let mut reservation = self.account.nothing();
        if may_refuse {
            match self.account.reserve(bytes) {
                Ok(taken) => reservation = taken,
                Err(spent) => return ApiError::from(spent).into_response(),
            }
        } else {
            reservation.grow_regardless(bytes);
        }
        counted(response, reservation)
    }
}

/// Returns the answer with a body that holds `reservation` until the client has taken it.
pub fn counted(response: Response, reservation: Reservation) -> Response {
    response.map(|body| Body::new(Counted { body, reservation: Some(reservation) }))
}

impl Meter {
    fn among(extensions: &Extensions) -> Result<Self> {
        // Set by the authentication middleware on every request it passes.
        extensions.get::<Meter>().cloned().ok_or_else(|| Refusal::Internal.into())
    }

    /// Returns the meter of a request that passed authentication.
    pub fn on(request: &Request) -> Result<Self> {
        Self::among(request.extensions())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Meter {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        Self::among(&parts.extensions)
    }
}

/// Returns the same bytes, which hold `reservation` until they are dropped.
pub fn held_with(bytes: Bytes, reservation: Reservation) -> Bytes {
    Bytes::from_owner(Held { bytes, _reservation: reservation })
}

/// Body of known length, in one piece.
struct Counted {
    body: Body,
    reservation: Option<Reservation>,
}

/// Bytes with their reservation.
struct Held {
    bytes: Bytes,
    _reservation: Reservation,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let is_last = http_body::Body::is_end_stream(&self.body);
        let hold = |bytes, reservation: &mut Option<Reservation>| match reservation.take() {
            Some(reservation) if is_last => held_with(bytes, reservation),
            kept => {
                *reservation = kept;
                bytes
            }
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(|bytes| hold(bytes, &mut self.reservation)))))
    }

    fn is_end_stream(&self) -> bool {
        http_body::Body::is_end_stream(&self.body)
    }

    fn size_hint(&self) -> SizeHint {
        http_body::Body::size_hint(&self.body)
    }
}
