//! The life of the key that a request holds: what was begun with an owner's key ends with the key.
//!
//! One place for every stream: the middleware wraps requests and answers, and connections that outlive their
//! answer wait for [`KeyLife::over`].

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::http::Extensions;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::caller::Caller;
use super::error::{ApiError, Refusal};

/// Message for a caller whose key ended while it was used.
pub const KEY_ENDED: &str = "the key was revoked or has expired; ask the operator for a new one";

/// Life of a key; endless for keys that are not an owner's.
#[derive(Debug, Clone, Default)]
pub struct KeyLife(Option<CancellationToken>);

impl KeyLife {
    /// Returns the life of the key that a request holds.
    pub fn of(caller: &Caller) -> Self {
        Self(caller.owner_key().map(|key| key.ended().clone()))
    }

    /// Returns the life of the key of a request that passed authentication.
    pub fn among(extensions: &Extensions) -> Self {
        extensions.get::<Caller>().map_or_else(Self::default, Self::of)
    }

    /// Waits until the key has ended.
    pub async fn over(&self) {
        match &self.0 {
            Some(ended) => ended.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Waits for the answer of a request. If the key ends before the answer begins, a request that `may_be_cut` is
    /// dropped, as if its caller had hung up; later the rest of the answer is cut off.
    pub async fn pass(self, may_be_cut: bool, answer: impl Future<Output = Response>) -> Response {
        let Some(ended) = self.0 else { return answer.await };
        let response = tokio::select! {
            biased;
            response = answer => response,
            () = ended.cancelled(), if may_be_cut => {
                return ApiError::from(Refusal::Unauthorized(KEY_ENDED.to_owned())).into_response();
            }
        };
        response.map(|body| Body::new(Ending { body, ended, wait: None }))
    }
}

/// Body that breaks off when a key ends. An error, not an end: half a file must not look like a whole one.
struct Ending {
    body: Body,
    ended: CancellationToken,
    /// Waits for the end; made once the body has nothing ready.
    wait: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

/// Error of an answer whose key has ended.
#[derive(Debug, thiserror::Error)]
#[error("{KEY_ENDED}")]
struct KeyEnded;

impl http_body::Body for Ending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if !this.ended.is_cancelled() {
            if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
                return Poll::Ready(frame);
            }
            let ended = &this.ended;
            let wait = this.wait.get_or_insert_with(|| Box::pin(ended.clone().cancelled_owned()));
            ready!(wait.as_mut().poll(context));
        }
        // The work behind the body ends with it.
        this.body = Body::empty();
        Poll::Ready(Some(Err(axum::Error::new(KeyEnded))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod test {
    use futures_util::{StreamExt, stream};
    use http_body_util::BodyExt as _;

    use super::*;

    fn answer(body: Body) -> impl Future<Output = Response> {
        std::future::ready(Response::new(body))
    }

    #[tokio::test]
    async fn a_stream_breaks_off_at_the_end_of_its_key_whether_it_waits_or_not() {
        let piece = || Ok::<_, axum::Error>(Bytes::from_static(b"x"));
        for body in [
            Body::from_stream(stream::once(async move { piece() }).chain(stream::pending())),
            Body::from_stream(stream::repeat_with(piece)),
        ] {
            let ended = CancellationToken::new();
            let mut body = KeyLife(Some(ended.clone())).pass(true, answer(body)).await.into_body();
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "x");
            let (last, ()) = tokio::join!(body.frame(), async { ended.cancel() });
            let last = if matches!(last, Some(Ok(_))) { body.frame().await } else { last };
            assert!(last.unwrap().unwrap_err().to_string().contains("the key was revoked"));
        }
    }

    #[tokio::test]
    async fn a_request_under_way_is_dropped_only_if_it_may_be() {
        let ended = CancellationToken::new();
        ended.cancel();
        let life = || KeyLife(Some(ended.clone()));
        assert_eq!(life().pass(true, std::future::pending()).await.status(), 401);
        let late = async {
            tokio::task::yield_now().await;
            Response::new(Body::empty())
        };
        assert_eq!(life().pass(false, late).await.status(), 200);
    }

    #[tokio::test]
    async fn a_key_without_an_end_cuts_nothing() {
        let response = KeyLife::default().pass(true, answer(Body::from("whole"))).await;
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "whole");
    }
}
