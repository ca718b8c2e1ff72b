//! Answers that are JSON arrays, written in pieces so that the whole JSON is never in memory.

use std::fmt;
use std::task::{Context, Poll};

use bytes::Bytes;
use serde::Serialize;

use crate::failure::{Result, internal};
use crate::memory::Active;

/// Size at which a piece ends, after the row that reaches it.
const PIECE_BYTES: usize = 32 * 1024;

/// Elements of an array answer. They hold their share of the budget.
pub(crate) trait Rows: fmt::Debug + 'static {
    type Row<'a>: Serialize
    where
        Self: 'a;

    /// Returns the next element; `None` at the end.
    fn next(&mut self) -> Option<Self::Row<'_>>;
}

/// JSON of an array.
pub(super) enum Json {
    /// A single piece holds them all, as with most.
    Whole(Option<Bytes>),
    Pieces(Body),
}

/// Begins the JSON of `rows`.
pub(super) fn json(rows: impl Rows, active: Active) -> Result<Json> {
    let mut array = Array { rows, place: Place::Begin };
    let first = array.piece().map_err(|error| internal(error.to_string()))?;
    if matches!(array.place, Place::End) {
        return Ok(Json::Whole(first));
    }
    Ok(Json::Pieces(Body { first, rest: Box::new(array), rested: true, _active: active }))
}

/// JSON of an array that takes more than one piece.
#[derive(Debug)]
pub(crate) struct Body {
    first: Option<Bytes>,
    rest: Box<dyn Pieces>,
    /// True if other tasks have had their turn since the last piece.
    rested: bool,
    _active: Active,
}

impl Body {
    /// Returns the next piece; `None` at the end.
    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<std::io::Result<Bytes>>> {
        if let Some(first) = self.first.take() {
            self.rested = false;
            return Poll::Ready(Some(Ok(first)));
        }
        if !std::mem::replace(&mut self.rested, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.rested = false;
        Poll::Ready(self.rest.piece().map_err(std::io::Error::from).transpose())
    }
}

trait Pieces: fmt::Debug {
    fn piece(&mut self) -> serde_json::Result<Option<Bytes>>;
}

#[derive(Debug)]
struct Array<R> {
    rows: R,
    place: Place,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Begin,
    Middle,
    End,
}

impl<R: Rows> Pieces for Array<R> {
    fn piece(&mut self) -> serde_json::Result<Option<Bytes>> {
        let mut piece = Vec::new();
        match self.place {
            Place::Begin => piece.push(b'['),
            Place::Middle => {}
            Place::End => return Ok(None),
        }
        while piece.len() < PIECE_BYTES {
            let Some(row) = self.rows.next() else {
                self.place = Place::End;
                piece.push(b']');
                break;
            };
            if matches!(self.place, Place::Middle) {
                piece.push(b',');
            }
            self.place = Place::Middle;
            serde_json::to_writer(&mut piece, &row)?;
        }
        Ok(Some(Bytes::from(piece)))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[derive(Debug)]
    struct Numbers(std::ops::Range<usize>);

    impl Rows for Numbers {
        type Row<'a> = usize;

        fn next(&mut self) -> Option<usize> {
            self.0.next()
        }
    }

    #[test]
    fn an_array_is_the_same_in_one_piece_and_in_many() {
        for count in [0, 1, 2, 100, 50_000] {
            let mut array = Array { rows: Numbers(0..count), place: Place::Begin };
            let (mut text, mut pieces) = (Vec::new(), 0);
            while let Some(piece) = array.piece().unwrap() {
                assert!(piece.len() < PIECE_BYTES + 16);
                text.extend_from_slice(&piece);
                pieces += 1;
            }
            assert_eq!(serde_json::from_slice::<Vec<usize>>(&text).unwrap(), (0..count).collect::<Vec<_>>());
            assert_eq!(pieces > 1, count > 10_000);
        }
    }
}
