//! Lists of any length, read and sent part by part. Memory holds one part at a time, and no
//! read of the store lasts longer than that of a part. Bytes that a client has not taken count
//! against the memory of requests.
//!
//! An item that exists all the while is in the list once, as it was when its part was read. One
//! that comes or goes meanwhile may be in it or not.

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use providers::Chain;
use serde::Serialize;

use super::flow_control::{OUTFLOW_BYTES, Outflow, PIECE_BYTES_MIN};
use crate::budget::Reservation;
use crate::control;
use crate::http::error::Result;
use crate::http::request_memory::{Meter, WAIT_MAX};

/// Rows of a part.
pub const PART: u32 = 16;
/// Most bytes of a part as JSON: for each row labels of 16 KiB, whose bytes may take six each,
/// and the rest.
const PART_BYTES: usize = PART as usize * (6 * 16 + 8) * 1024;
/// Length up to which a page is answered in one piece, in bytes.
const SHORT_BYTES: usize = 64 * 1024;

/// Part of a list, with the place of the next one.
#[derive(Debug)]
pub struct Part<T, P> {
    /// Rows in the form of the answer.
    pub rows: Vec<T>,
    /// Place of the next part; `None` at the end.
    pub next: Option<P>,
}

impl<T, P> Part<T, P> {
    /// Builds a part from rows that were requested with the limit [`PART`]. `place` returns the
    /// place of a row.
    pub fn of<R>(rows: &[R], place: impl Fn(&R) -> P, wire: impl Fn(&R) -> T) -> Self {
        let is_full = rows.len() >= PART as usize;
        Self { rows: rows.iter().map(wire).collect(), next: rows.last().filter(|_| is_full).map(place) }
    }
}

/// Answers with all parts as one array. The first is read before the answer begins, so that its
/// error has a status. An error in a later part cuts the answer off.
///
/// # Errors
/// If the first part cannot be read, or the caller may not hold a part.
pub async fn array<T, P, R, F>(meter: &Meter, mut read: R) -> Result<Response>
where
    T: Serialize + Send + 'static,
    P: Send + 'static,
    R: FnMut(Option<P>) -> F + Send + 'static,
    F: Future<Output = control::Result<Part<T, P>>> + Send + 'static,
{
    let held = meter.account().reserve_within(PART_BYTES + OUTFLOW_BYTES, WAIT_MAX).await?;
    let Part { rows, next } = read(None).await?;
    let Some(next) = next else { return Ok(Json(rows).into_response()) };
    let part = written(b'[', &rows);
    Ok(response(Listing { outflow: Outflow::new(held, PART_BYTES), read, next: Some(Some(next)), part }))
}

/// Answers with the rows of one page, which take `bytes` in memory. `held` covers them and
/// their text.
pub fn page<R, T>(
    mut held: Reservation,
    bytes: usize,
    rows: Vec<R>,
    wire: impl Fn(&R) -> T + Send + 'static,
) -> Response
where
    R: Send + 'static,
    T: Serialize + Send + 'static,
{
    if bytes <= SHORT_BYTES {
        return Json(rows.iter().map(&wire).collect::<Vec<T>>()).into_response();
    }
    held.shrink_to(bytes + PART_BYTES + OUTFLOW_BYTES);
    let mut rows = rows.into_iter();
    let Part { rows: first, next } = next_part(&mut rows, &wire);
    let part = written(b'[', &first);
    response(Listing {
        outflow: Outflow::new(held, bytes + PART_BYTES),
        read: move |_| std::future::ready(Ok(next_part(&mut rows, &wire))),
        next: Some(next),
        part,
    })
}

/// Takes the next part of rows that are all in memory.
fn next_part<R, T>(rows: &mut std::vec::IntoIter<R>, wire: impl Fn(&R) -> T) -> Part<T, ()> {
    let part: Vec<T> = rows.by_ref().take(PART as usize).map(|row| wire(&row)).collect();
    let is_over = rows.len() == 0;
    Part { rows: part, next: (!is_over).then_some(()) }
}

/// Returns the most bytes that a page of `limit` rows may take while it is read.
pub fn page_bytes(limit: u32) -> usize {
    // Text of the store, and the row made from it.
    const ROW_BYTES: usize = 2 * 17 * 1024;
    usize::try_from(limit).unwrap_or(usize::MAX).saturating_mul(ROW_BYTES).saturating_add(PART_BYTES + OUTFLOW_BYTES)
}

/// State of a list that is being sent.
struct Listing<P, R> {
    outflow: Outflow,
    read: R,
    /// Place of the next part: `Some(None)` before the closing bracket, `None` after it.
    next: Option<Option<P>>,
    /// Rest of the current part's text.
    part: Bytes,
}

impl<P, R> Listing<P, R> {
    /// Returns the next piece, never empty.
    async fn piece<T, F>(&mut self) -> Option<control::Result<Bytes>>
    where
        T: Serialize,
        R: FnMut(Option<P>) -> F,
        F: Future<Output = control::Result<Part<T, P>>>,
    {
        while self.part.is_empty() {
            self.part = match self.next.take()? {
                None => Bytes::from_static(b"]"),
                Some(place) => match (self.read)(Some(place)).await {
                    Ok(Part { rows, next }) => {
                        self.next = Some(next);
                        written(b',', &rows)
                    }
                    Err(error) => {
                        tracing::error!(error = %Chain(&error), "a list broke off");
                        return Some(Err(error));
                    }
                },
            };
        }
        let room = self.outflow.room(PIECE_BYTES_MIN, self.part.len()).await;
        let piece = self.part.split_to(room.min(self.part.len()));
        let counted = piece.len();
        Some(Ok(self.outflow.hand_out(piece, counted)))
    }
}

fn response<T, P, R, F>(listing: Listing<P, R>) -> Response
where
    T: Serialize + Send + 'static,
    P: Send + 'static,
    R: FnMut(Option<P>) -> F + Send + 'static,
    F: Future<Output = control::Result<Part<T, P>>> + Send + 'static,
{
    // A body ends with its first error: the closing bracket does not follow it.
    let pieces = stream::unfold(listing, |mut listing| async move {
        let piece = listing.piece().await?;
        Some((piece, listing))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Writes the rows, the first after `opening` and the others after a comma. Only the last part
/// of a list, or a page, may be empty.
fn written<T: Serialize>(opening: u8, rows: &[T]) -> Bytes {
    let mut out = Vec::new();
    if rows.is_empty() && opening == b'[' {
        out.push(opening);
    }
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
    use crate::budget::{Budget, Caller};

    fn meter() -> Meter {
        Meter::new(Budget::new(64 << 20).account(Caller::Address(None), None))
    }

    async fn body(parts: usize, broken: Option<usize>) -> std::result::Result<String, axum::Error> {
        let read = move |at: Option<usize>| async move {
            let at = at.unwrap_or(0);
            if broken == Some(at) {
                return Err(control::Unavailable::ShuttingDown.into());
            }
            let next = (at + 1 < parts).then_some(at + 1);
            // The last part of a list may be empty.
            let rows = if next.is_none() && at > 0 { vec![] } else { vec![at, at] };
            Ok(Part { rows, next })
        };
        let response = array(&meter(), read).await.unwrap();
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
    async fn a_list_that_is_not_read_counts_and_holds_no_more_than_it_may() {
        let budget = Budget::new(64 << 20);
        let meter = Meter::new(budget.account(Caller::Address(None), None));
        let used = || budget.stats().used_bytes as usize;
        let row = || "x".repeat(16 * 1024);
        let read = move |at: Option<usize>| async move {
            let rows: Vec<String> = (0..PART).map(|_| row()).collect();
            Ok(Part { rows, next: Some(at.unwrap_or(0) + 1) })
        };
        let mut lists = Vec::new();
        while let Ok(mut list) = array(&meter, read).await.map(|answer| answer.into_body().into_data_stream()) {
            let piece = futures_util::StreamExt::next(&mut list).await;
            lists.push((piece, list));
            assert!(used() >= lists.len() * PART_BYTES && used() <= 64 << 20, "{}", used());
            if lists.len() > 40 {
                break;
            }
        }
        assert!(lists.len() < 60);
        drop(lists);
        assert_eq!(used(), 0);
    }

    #[tokio::test]
    async fn a_long_page_is_one_array_too() {
        for count in [0usize, 1, 7, 8, 9, 16, 17, 100] {
            let rows: Vec<String> = (0..count).map(|n| format!("{n}{}", "y".repeat(2000))).collect();
            let held = meter().account().reserve(page_bytes(100)).unwrap();
            let bytes = rows.iter().map(String::len).sum::<usize>();
            let expected = serde_json::to_string(&rows).unwrap();
            for bytes in [bytes, SHORT_BYTES + 1] {
                let held = meter().account().reserve(held.bytes()).unwrap();
                let body = page(held, bytes, rows.clone(), String::clone).into_body();
                assert_eq!(body.collect().await.unwrap().to_bytes(), expected, "{count}");
            }
        }
    }

    #[tokio::test]
    async fn a_list_that_breaks_off_is_no_whole_answer() {
        assert!(body(4, Some(2)).await.is_err());
    }
}
