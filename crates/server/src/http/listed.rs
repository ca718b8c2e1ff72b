//! Lists of any length, part by part: memory holds one part, whatever the number,
//! and no reading of the store lasts longer than that of a part.
//!
//! What is there all the while is in the list once, as it was when its part was
//! read. What comes or goes meanwhile may be in it or not.

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use providers::Chain;
use serde::Serialize;

use super::error::Result;
use crate::control;

/// Rows of a part: at their largest, a mebibyte.
pub const PART: u32 = 64;

/// A part of a list, and where the next one begins.
#[derive(Debug)]
pub struct Part<T, P> {
    /// The rows, as they are answered.
    pub rows: Vec<T>,
    /// `None` at the end.
    pub next: Option<P>,
}

impl<T, P> Part<T, P> {
    /// Makes a part of rows that were asked for with the limit [`PART`]; `place`
    /// says where one lies.
    pub fn of<R>(rows: &[R], place: impl Fn(&R) -> P, wire: impl Fn(&R) -> T) -> Self {
        let is_full = rows.len() >= PART as usize;
        Self { rows: rows.iter().map(wire).collect(), next: rows.last().filter(|_| is_full).map(place) }
    }
}

/// Answers with all parts as one array. The first is read before the answer
/// begins, so that a fault has its status; one in a later part cuts the answer off.
///
/// # Errors
/// If the first part cannot be read.
pub async fn array<T, P, F>(mut read: impl FnMut(Option<P>) -> F + Send + 'static) -> Result<Response>
where
    T: Serialize + Send + 'static,
    P: Send + 'static,
    F: Future<Output = control::Result<Part<T, P>>> + Send + 'static,
{
    let Part { rows, next } = read(None).await?;
    let Some(next) = next else { return Ok(Json(rows).into_response()) };
    let first = stream::iter([Ok(written(b'[', &rows))]);
    let rest = stream::unfold(Some(next), move |next| {
        let read = next.map(|next| read(Some(next)));
        async move {
            let Part { rows, next } = match read?.await {
                Ok(part) => part,
                Err(error) => {
                    tracing::error!(error = %Chain(&error), "a list broke off");
                    return Some((Err(error), None));
                }
            };
            Some((Ok(written(b',', &rows)), next))
        }
    });
    let end = stream::iter([Ok(Bytes::from_static(b"]"))]);
    let parts: BoxStream<'static, control::Result<Bytes>> = first.chain(rest).chain(end).boxed();
    // A body ends with its first error: the closing bracket does not follow it.
    let mut response = Response::new(Body::from_stream(parts));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// The rows, each behind a comma, but the first behind `opening`; only the last part
/// of a list has none.
fn written<T: Serialize>(opening: u8, rows: &[T]) -> Bytes {
    let mut out = Vec::new();
    for (n, row) in rows.iter().enumerate() {
        out.push(if n == 0 { opening } else { b',' });
        serde_json::to_writer(&mut out, row).expect("a row is JSON, and a vector takes it");
    }
    Bytes::from(out)
}

#[cfg(test)]
mod test {
    use http_body_util::BodyExt;

    use super::*;

    async fn body(parts: usize, broken: Option<usize>) -> std::result::Result<String, axum::Error> {
        let read = move |at: Option<usize>| async move {
            let at = at.unwrap_or(0);
            if broken == Some(at) {
                return Err(control::Error::Unavailable("x".to_owned()));
            }
            let next = (at + 1 < parts).then_some(at + 1);
            // The last part of a list may be empty.
            let rows = if next.is_none() && at > 0 { vec![] } else { vec![at, at] };
            Ok(Part { rows, next })
        };
        let response = array(read).await.unwrap();
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        Ok(String::from_utf8(response.into_body().collect().await?.to_bytes().to_vec()).unwrap())
    }

    #[tokio::test]
    async fn parts_are_one_array() {
        for (parts, expected) in [(1, "[0,0]"), (2, "[0,0]"), (3, "[0,0,1,1]"), (4, "[0,0,1,1,2,2]")] {
            assert_eq!(body(parts, None).await.unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn a_list_that_breaks_off_is_no_whole_answer() {
        assert!(body(4, Some(2)).await.is_err());
    }
}
