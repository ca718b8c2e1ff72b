//! Answers that are JSON arrays, parsed element by element as they arrive.
//!
//! A buffered answer would be held twice, as text and parsed; for an array of empty strings the
//! parsed form takes ten times the memory of the text.

use std::time::Duration;

use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::connection::{Connection, request};
use super::request::{DESCRIPTION_BYTES_MAX, succeed, within};
use crate::{Error, Result};

/// Bytes that one answer may hold while others of the same box are gathered as well.
const SMALL_BYTES: usize = 64 * 1024;
/// The longest wait of a large answer for another one that is being gathered.
const TURN_WAIT: Duration = Duration::from_secs(10);

/// Limits on an answer of an agent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Size of the JSON, in bytes.
    pub(super) text: usize,
    /// Number of elements.
    pub(super) count: usize,
}

impl Connection {
    /// Sends `question` and passes each element of the answer to `take`, which returns the number
    /// of bytes that are held for the element from then on.
    ///
    /// # Errors
    /// The errors of `take`; [`Error::Failed`] for an answer beyond `bounds`;
    /// [`Error::Exhausted`] while another large answer of the same box is being gathered.
    pub(super) async fn gather<T: DeserializeOwned>(
        &self,
        action: &'static str,
        path: &'static str,
        question: &impl Serialize,
        wait: Duration,
        bounds: Bounds,
        mut take: impl FnMut(T) -> Result<usize>,
    ) -> Result<()> {
        let body = serde_json::to_vec(question).map_err(|error| Error::failed(action, error))?.into();
        let message = request(action, Method::POST, path)?;
        let answer = async {
            let (answer, mut outgoing) = self.begin(action, message).await?;
            outgoing.put(body, true)?;
            let mut body = succeed(action, answer.await?).await?.into_body();
            let mut elements = Elements::default();
            let mut text = 0;
            let mut count = 0;
            let mut held = 0;
            let mut turn = None;
            while let Some(piece) = body.piece(action).await? {
                text += piece.len();
                if text > bounds.text {
                    return Err(too_much(action, format!("the agent's response is larger than {} bytes", bounds.text)));
                }
                elements
                    .feed(&piece, |element| {
                        count += 1;
                        if count > bounds.count {
                            return Err(too_much(
                                action,
                                format!("the agent returned more than {} elements", bounds.count),
                            ));
                        }
                        let element = serde_json::from_slice(element).map_err(|error| Error::failed(action, error))?;
                        held += take(element)?;
                        Ok(())
                    })
                    .unwrap_or_else(|| {
                        Err(Error::failed(action, "the agent's response is not an array of the expected elements"))
                    })?;
                if held > SMALL_BYTES && turn.is_none() {
                    turn = Some(timeout(TURN_WAIT, self.large_answer()).await.map_err(|_| crowded())??);
                }
            }
            if elements.is_whole() { Ok(()) } else { Err(Error::failed(action, "the agent's response was cut off")) }
        };
        within(action, wait, answer).await
    }
}

fn too_much(action: &'static str, what: String) -> Error {
    Error::failed(action, what)
}

fn crowded() -> Error {
    Error::Exhausted("another large response of this sandbox is in progress; try again when it is done".to_owned())
}

/// A splitter of a JSON array into its elements. Holds at most one element.
#[derive(Debug, Default)]
struct Elements {
    place: Place,
    element: Vec<u8>,
    /// Open brackets and braces of the element.
    depth: usize,
    in_string: bool,
    escaped: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Before,
    /// An element or the end may follow.
    First,
    /// An element must follow, or goes on.
    Element,
    After,
}

impl Elements {
    /// Feeds a piece of text. Returns `None` if the text is not an array.
    fn feed(&mut self, piece: &[u8], mut take: impl FnMut(&[u8]) -> Result<()>) -> Option<Result<()>> {
        for byte in piece {
            let is_space = byte.is_ascii_whitespace();
            match self.place {
                Place::Before if *byte == b'[' => self.place = Place::First,
                Place::First if *byte == b']' => self.place = Place::After,
                Place::Before | Place::First | Place::After if is_space => {}
                Place::Before | Place::After => return None,
                Place::First | Place::Element => {
                    self.place = Place::Element;
                    let ends = self.depth == 0 && !self.in_string && matches!(byte, b',' | b']');
                    if !ends {
                        self.go_on(*byte)?;
                        continue;
                    }
                    let taken = take(&self.element);
                    self.element.clear();
                    if *byte == b']' {
                        self.place = Place::After;
                    }
                    if taken.is_err() {
                        return Some(taken);
                    }
                }
            }
        }
        Some(Ok(()))
    }

    /// Adds a byte to the element. The element's own parser checks its contents.
    fn go_on(&mut self, byte: u8) -> Option<()> {
        if self.element.len() >= DESCRIPTION_BYTES_MAX {
            return None;
        }
        self.element.push(byte);
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' if self.in_string => self.escaped = true,
            b'"' => self.in_string = !self.in_string,
            _ if self.in_string => {}
            b'[' | b'{' => self.depth += 1,
            b']' | b'}' => self.depth = self.depth.checked_sub(1)?,
            _ => {}
        }
        Some(())
    }

    fn is_whole(&self) -> bool {
        self.place == Place::After
    }
}

#[cfg(test)]
mod test {
    use serde_json::Value;

    use super::*;

    /// Returns the elements of `text`, fed in pieces of `size` bytes.
    fn cut(text: &str, size: usize) -> Option<Vec<Value>> {
        let mut elements = Elements::default();
        let mut found = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            let taken = elements.feed(piece, |element| {
                found.push(serde_json::from_slice(element).map_err(|error| Error::failed("parse", error))?);
                Ok(())
            });
            taken?.ok()?;
        }
        elements.is_whole().then_some(found)
    }

    #[test]
    fn an_array_is_cut_as_a_parser_would_wherever_its_pieces_end() {
        for text in [
            "[]",
            " [ ] \n",
            "[1]",
            r#"["a,b]", "\"]", "\\", ""]"#,
            r#"[{"a": [1, {"b": "]}"}], "c": "\u005d"}, [], [[","]], null]"#,
            "[ 1 , 2\n,\t3 ] ",
        ] {
            let expected: Vec<Value> = serde_json::from_str(text).unwrap();
            for size in 1..=text.len() {
                assert_eq!(cut(text, size).as_ref(), Some(&expected), "{text} cut at {size}");
            }
        }
    }

    #[test]
    fn what_is_no_array_is_refused() {
        for text in
            ["", "[", "[1", "[1,", "[1,]", "[,]", "[,1]", "[1 2]", "[1}]", "[1]]", "[1],", "{}", "1", "[\"]", "x[]"]
        {
            for size in [1, 2, 64] {
                assert_eq!(cut(text, size), None, "{text}");
            }
        }
        assert_eq!(cut(&format!("[\"{}\"]", "x".repeat(DESCRIPTION_BYTES_MAX)), 4096), None);
    }
}
