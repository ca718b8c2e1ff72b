//! Forms with files. The parser keeps what it has not understood yet and searches it anew with each piece, without a
//! bound on what precedes the first part and on the headers of a part. A form therefore gets on, or is refused.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use multer::{Field, Multipart};
use providers::ByteStream;

use crate::http::error::{Result, malformed};

/// Most bytes of a form that are no content, between two pieces of content.
const IDLE_BYTES_MAX: usize = 64 * 1024;
/// Bytes that the parser gets at once.
const PIECE_BYTES: usize = 16 * 1024;

/// Parts of a form, one after the other.
pub struct Form {
    parts: Multipart<'static>,
    progress: Arc<Progress>,
}

impl Form {
    /// Reads the form in `bytes`.
    pub fn of(bytes: ByteStream, boundary: &str) -> Self {
        let progress = Arc::new(Progress::default());
        let pieces = Pieces { bytes, left: Bytes::new(), rests: false, progress: Arc::clone(&progress) };
        Self { parts: Multipart::new(pieces, boundary), progress }
    }

    /// Returns the next part; `None` at the end. The content of the one before has to be read to its end.
    ///
    /// # Errors
    /// If the form is malformed, or goes on for long without content.
    pub async fn next(&mut self) -> Result<Option<Field<'static>>> {
        let part = self.parts.next_field().await;
        self.progress.gets_on();
        part.map_err(|error| malformed(self.progress.fault(&error)))
    }

    /// Returns the content of a part.
    pub fn content(&self, part: Field<'static>) -> ByteStream {
        let progress = Arc::clone(&self.progress);
        let content = part.map(move |piece| {
            progress.gets_on();
            piece.map_err(|error| providers::Error::Invalid(progress.fault(&error)))
        });
        content.boxed()
    }
}

/// Account of what the parser has got since it last returned anything.
#[derive(Debug, Default)]
struct Progress {
    idle_bytes: AtomicUsize,
    is_stuck: AtomicBool,
}

impl Progress {
    fn gets_on(&self) {
        self.idle_bytes.store(0, Ordering::Relaxed);
    }

    /// Counts bytes. Returns false if they are too many.
    fn count(&self, bytes: usize) -> bool {
        let is_stuck = self.idle_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > IDLE_BYTES_MAX;
        self.is_stuck.fetch_or(is_stuck, Ordering::Relaxed);
        !is_stuck
    }

    fn fault(&self, error: &multer::Error) -> String {
        if self.is_stuck.load(Ordering::Relaxed) {
            return format!(
                "the form has more than {IDLE_BYTES_MAX} bytes before its first part, or as the headers of a part; send \
                 only the parts, with short headers"
            );
        }
        format!("the form cannot be read: {error}")
    }
}

/// Bytes of a form in small pieces. The parser takes whatever there is before it looks at any of it, so that there is
/// nothing for a moment after each piece.
struct Pieces {
    bytes: ByteStream,
    left: Bytes,
    rests: bool,
    progress: Arc<Progress>,
}

impl Stream for Pieces {
    type Item = providers::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::take(&mut self.rests) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        while self.left.is_empty() {
            match ready!(self.bytes.poll_next_unpin(context)) {
                Some(Ok(bytes)) => self.left = bytes,
                end => return Poll::Ready(end),
            }
        }
        let bytes = self.left.len().min(PIECE_BYTES);
        if !self.progress.count(bytes) {
            return Poll::Ready(Some(Err(providers::Error::Invalid("the form does not get on".to_owned()))));
        }
        self.rests = true;
        let piece = self.left.split_to(bytes);
        Poll::Ready(Some(Ok(piece)))
    }
}

#[cfg(test)]
mod test {
    use futures_util::stream;

    use super::*;

    const BOUNDARY: &str = "b";

    fn part(headers: &str, content: &str) -> String {
        format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"\r\n{headers}\r\n{content}\r\n")
    }

    /// Reads a form that comes in pieces of this size. Returns the length of each part.
    async fn read(text: String, piece: usize) -> Result<Vec<usize>, String> {
        let mut text = Bytes::from(text);
        let pieces = std::iter::from_fn(move || {
            let piece = text.split_to(text.len().min(piece));
            (!piece.is_empty()).then_some(Ok(piece))
        });
        let mut form = Form::of(stream::iter(pieces).boxed(), BOUNDARY);
        let mut lengths = Vec::new();
        while let Some(part) = form.next().await.map_err(|error| error.message())? {
            let mut content = form.content(part);
            let mut length = 0;
            while let Some(piece) = content.next().await {
                length += piece.map_err(|error| error.to_string())?.len();
            }
            lengths.push(length);
        }
        Ok(lengths)
    }

    #[tokio::test]
    async fn parts_of_any_size_are_read_whatever_pieces_they_come_in() {
        let text = || {
            let parts = [part("", &"x".repeat(1_000_000)), part("A: b\r\n", ""), part("", &"\r\n--".repeat(100_000))];
            format!("a preamble\r\n{}--{BOUNDARY}--\r\n", parts.concat())
        };
        for piece in [7, 4096, 100_000, usize::MAX] {
            assert_eq!(read(text(), piece).await, Ok(vec![1_000_000, 0, 400_000]), "{piece}");
        }
    }

    #[tokio::test]
    async fn what_is_no_content_is_refused_before_much_of_it_is_kept() {
        let zeros = "\0".repeat(1_000_000);
        let header = format!("X-Long: {}\r\n", "x".repeat(100_000));
        for text in [zeros, part(&header, "x"), part("", "x") + &part(&header, "x")] {
            for piece in [1000, usize::MAX] {
                let fault = read(text.clone(), piece).await.unwrap_err();
                assert!(fault.contains("65536 bytes"), "{fault}");
            }
        }
        let torn = read(part("", "x"), 7).await.unwrap_err();
        assert!(torn.contains("cannot be read"), "{torn}");
    }
}
