//! Compression of streams, by the encodings that HTTP names.

use std::io::{self, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use providers::{ByteStream, Error};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::http::error::{Result, malformed};

/// Bytes read and sent at once.
const PIECE_BYTES: usize = 64 * 1024;
/// Pieces that wait for the reader.
const QUEUE_PIECES: usize = 2;
/// Level of zstd: several times as fast as gzip, and smaller.
const ZSTD_LEVEL: i32 = 1;
/// Largest window that a zstd stream may ask for, as a power of two: 8 MiB, what level 19 uses.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;
/// Memory of a stream of zstd or gzip at either end, in bytes.
pub const CODEC_BYTES: usize = 10 * 1024 * 1024;

/// Encoding of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Identity,
    Gzip,
    Zstd,
}

impl Encoding {
    /// Returns its name in headers; `None` for a body as it is.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Encoding::Identity => None,
            Encoding::Gzip => Some("gzip"),
            Encoding::Zstd => Some("zstd"),
        }
    }

    /// Returns the encoding of an answer that the caller accepts: zstd, else gzip, else none.
    pub fn accepted(headers: &HeaderMap) -> Encoding {
        let texts = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        let names: Vec<&str> = texts
            .flat_map(|text| text.split(','))
            .filter_map(|item| {
                let (name, parameters) = item.split_once(';').unwrap_or((item, ""));
                let weight = parameters.trim().strip_prefix("q=").map_or(Ok(1.0), str::parse::<f32>);
                weight.is_ok_and(|weight| weight > 0.0).then_some(name.trim())
            })
            .collect();
        if names.iter().any(|name| name.eq_ignore_ascii_case("zstd")) {
            Encoding::Zstd
        } else if names.iter().any(|name| name.eq_ignore_ascii_case("gzip")) {
            Encoding::Gzip
        } else {
            Encoding::Identity
        }
    }

    /// Returns the encoding of a request's body.
    ///
    /// # Errors
    /// Malformed for one that is not known.
    pub fn sent(headers: &HeaderMap) -> Result<Encoding> {
        let mut values = headers.get_all(header::CONTENT_ENCODING).iter();
        let Some(value) = values.next() else { return Ok(Encoding::Identity) };
        match value.to_str().ok().filter(|_| values.next().is_none()).map(str::trim) {
            Some("zstd") => Ok(Encoding::Zstd),
            Some("gzip" | "x-gzip") => Ok(Encoding::Gzip),
            Some("" | "identity") => Ok(Encoding::Identity),
            Some(_) | None => Err(malformed("`Content-Encoding` must be zstd or gzip, or left out")),
        }
    }
}

/// Returns `stream` compressed.
pub fn encoded(stream: ByteStream, encoding: Encoding) -> ByteStream {
    match encoding {
        Encoding::Identity => stream,
        Encoding::Gzip => {
            through(stream, |input| Ok(Box::new(flate2::read::GzEncoder::new(input, flate2::Compression::fast()))))
        }
        Encoding::Zstd => through(stream, |input| Ok(Box::new(zstd::stream::read::Encoder::new(input, ZSTD_LEVEL)?))),
    }
}

/// Bound on what a body is when it is unpacked.
#[derive(Debug, Clone)]
pub struct Bound {
    bytes_max: u64,
    is_exceeded: Arc<AtomicBool>,
}

impl Bound {
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, is_exceeded: Arc::default() }
    }

    /// Returns whether the body was larger.
    pub fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Relaxed)
    }
}

/// Returns what `stream` is compressed from. Beyond its bound it fails.
pub fn decoded(stream: ByteStream, encoding: Encoding, bound: &Bound) -> ByteStream {
    let bound = bound.clone();
    match encoding {
        Encoding::Identity => stream,
        Encoding::Gzip => through(stream, move |input| {
            let input = flate2::bufread::MultiGzDecoder::new(BufReader::new(input));
            Ok(Box::new(Bounded { input, read: 0, bound }))
        }),
        Encoding::Zstd => through(stream, move |input| {
            let mut input = zstd::stream::read::Decoder::new(input)?;
            input.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            Ok(Box::new(Bounded { input, read: 0, bound }))
        }),
    }
}

/// Reader that fails beyond a bound.
struct Bounded<R> {
    input: R,
    read: u64,
    bound: Bound,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.read += read as u64;
        if self.read > self.bound.bytes_max {
            self.bound.is_exceeded.store(true, Ordering::Relaxed);
            return Err(io::Error::other(Error::TooLarge("the decompressed body is too large".to_owned())));
        }
        Ok(read)
    }
}

/// Blocking reader of a stream.
struct Blocking {
    stream: ByteStream,
    piece: Bytes,
    runtime: Handle,
}

impl Read for Blocking {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.runtime.block_on(self.stream.next()) {
                None => return Ok(0),
                Some(piece) => self.piece = piece.map_err(io::Error::other)?,
            }
        }
        let part = self.piece.split_to(buffer.len().min(self.piece.len()));
        buffer[..part.len()].copy_from_slice(&part);
        Ok(part.len())
    }
}

/// Passes a stream through a reader, on a blocking thread. It ends when the result is dropped.
fn through(
    stream: ByteStream,
    reader: impl FnOnce(Blocking) -> io::Result<Box<dyn Read>> + Send + 'static,
) -> ByteStream {
    let (sender, receiver) = mpsc::channel(QUEUE_PIECES);
    // A decoder may read on after the end.
    let input = Blocking { stream: stream.fuse().boxed(), piece: Bytes::new(), runtime: Handle::current() };
    tokio::task::spawn_blocking(move || {
        if let Err(error) = reader(input).and_then(|reader| send_all(reader, &sender)) {
            // A reader that has left does not need it.
            let _ = sender.blocking_send(Err(cause(error)));
        }
    });
    stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) }).boxed()
}

/// Sends all that `reader` has, until the receiver is dropped.
fn send_all(mut reader: Box<dyn Read>, sender: &mpsc::Sender<Result<Bytes, Error>>) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        let read = reader.read(&mut buffer)?;
        let piece = Bytes::copy_from_slice(&buffer[..read]);
        if read == 0 || sender.blocking_send(Ok(piece)).is_err() {
            return Ok(());
        }
    }
}

/// Returns the error of the stream below, or that of the encoding.
fn cause(error: io::Error) -> Error {
    let kind = error.kind();
    match error.into_inner().map(|inner| inner.downcast::<Error>()) {
        Some(Ok(error)) => *error,
        _ if kind == io::ErrorKind::UnexpectedEof => Error::Invalid("the body was cut off".to_owned()),
        _ => Error::Invalid("the body does not match its `Content-Encoding`, or is damaged".to_owned()),
    }
}

#[cfg(test)]
mod test {
    use axum::http::HeaderValue;
    use futures_util::TryStreamExt;

    use super::*;

    fn pieces(content: &[u8]) -> ByteStream {
        let pieces: Vec<_> = content.chunks(1000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        stream::iter(pieces).boxed()
    }

    async fn whole(stream: ByteStream) -> Result<Vec<u8>, Error> {
        Ok(stream.try_collect::<Vec<_>>().await?.concat())
    }

    #[tokio::test]
    async fn what_is_encoded_is_decoded_again() {
        let content: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
        for encoding in [Encoding::Identity, Encoding::Gzip, Encoding::Zstd] {
            for content in [&content[..], b"", b"x"] {
                let packed = whole(encoded(pieces(content), encoding)).await.unwrap();
                assert!(whole(decoded(pieces(&packed), encoding, &Bound::new(2_000_000))).await.unwrap() == content);
                if encoding == Encoding::Identity || content.len() < 10 {
                    continue;
                }
                let bomb = whole(decoded(pieces(&packed), encoding, &Bound::new(1_000_000))).await;
                assert!(matches!(bomb, Err(Error::TooLarge(_))), "{bomb:?}");
                let cut = whole(decoded(pieces(&packed[..packed.len() / 2]), encoding, &Bound::new(2_000_000))).await;
                assert!(matches!(cut, Err(Error::Invalid(_))), "{encoding:?}");
                let noise = whole(decoded(pieces(content), encoding, &Bound::new(2_000_000))).await;
                assert!(matches!(noise, Err(Error::Invalid(_))), "{encoding:?}");
            }
        }
    }

    #[tokio::test]
    async fn an_error_of_the_stream_stays_what_it_is() {
        let broken = || stream::iter([Ok(Bytes::from_static(b"x")), Err(Error::Gone)]).boxed();
        for encoding in [Encoding::Gzip, Encoding::Zstd] {
            assert!(matches!(whole(encoded(broken(), encoding)).await, Err(Error::Gone)));
        }
    }

    #[test]
    fn the_best_encoding_that_is_accepted_is_taken() {
        for (accepted, expected) in [
            ("", Encoding::Identity),
            ("gzip, deflate, br, zstd", Encoding::Zstd),
            ("GZIP;q=0.5", Encoding::Gzip),
            ("zstd;q=0, gzip", Encoding::Gzip),
            ("br", Encoding::Identity),
            ("zstd;q=x", Encoding::Identity),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(accepted))]);
            assert_eq!(Encoding::accepted(&headers), expected, "{accepted}");
        }
        for (sent, expected) in [("zstd", Some(Encoding::Zstd)), ("br", None), ("gzip, zstd", None)] {
            let headers = HeaderMap::from_iter([(header::CONTENT_ENCODING, HeaderValue::from_static(sent))]);
            assert_eq!(Encoding::sent(&headers).ok(), expected, "{sent}");
        }
    }
}
