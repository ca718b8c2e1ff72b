//! A layer's bytes: read from its blob, taken out of their compression, counted
//! and hashed on a thread of their own, while another one writes files.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::super::processors::{Pace, Turn};
use super::super::room;
use super::archive::refuse;
use super::{Bounds, Compression, Layer};
use crate::{Error, Result};

/// How much is handed from thread to thread at a time, and how many of those
/// may wait.
const CHUNK: usize = 256 * 1024;
const WAITING: usize = 8;

/// How often it is looked whether there is room for more, in bytes that are written.
const LOOK_BYTES: u64 = 4 << 20;
/// What a file takes of a disk besides its content, in bytes, for that reckoning.
const ENTRY_BYTES: u64 = 4096;

/// How many steps the ways to the files of an image may have, where they are gone by
/// hand: so many for each file, and as many for any image.
const STEPS: u64 = 32;
const STEPS_MIN: u64 = 1 << 17;

/// What an image may still take.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: AtomicU64,
    bounds: Bounds,
    entries: AtomicU64,
    steps: AtomicU64,
    /// Written since it was last looked whether there is room.
    unseen: AtomicU64,
    /// On the disk that it takes from.
    dir: PathBuf,
    stop: CancellationToken,
}

impl Budget {
    pub(super) fn new(bounds: &Bounds, dir: PathBuf, stop: &CancellationToken) -> Self {
        Budget {
            bytes: AtomicU64::new(bounds.bytes_max),
            entries: AtomicU64::new(bounds.entries_max),
            steps: AtomicU64::new(bounds.entries_max.saturating_mul(STEPS).max(STEPS_MIN)),
            bounds: *bounds,
            unseen: AtomicU64::new(LOOK_BYTES),
            dir,
            stop: stop.clone(),
        }
    }

    /// Fails once nobody wants the image any more.
    pub(super) fn go_on(&self) -> Result<()> {
        if self.stop.is_cancelled() { Err(stopped()) } else { Ok(()) }
    }

    /// Fails if what has to stay free of the disk would be taken.
    fn look(&self, bytes: u64) -> Result<()> {
        self.go_on()?;
        if self.unseen.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) < LOOK_BYTES {
            return Ok(());
        }
        self.unseen.store(0, Ordering::Relaxed);
        room(&self.dir, self.bounds.reserve)
    }

    /// Takes so many bytes.
    pub(super) fn take(&self, bytes: u64) -> Result<()> {
        self.look(bytes)?;
        let less = |left: u64| left.checked_sub(bytes);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).map(drop).map_err(|_| {
            let most = self.bounds.bytes_max;
            Error::TooLarge(format!(
                "the image is larger than {most} bytes unpacked, the most that images may be here; raise \
                 `images.max_image_mb` to take it"
            ))
        })
    }

    /// Takes one step on the way to a directory.
    pub(super) fn step(&self) -> Result<()> {
        self.go_on()?;
        let less = |left: u64| left.checked_sub(1);
        self.steps
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .map(drop)
            .map_err(|_| refuse("the ways to the files of the image are too long, by links that lead to links"))
    }

    /// Takes one entry.
    pub(super) fn entry(&self) -> Result<()> {
        self.look(ENTRY_BYTES)?;
        let less = |left: u64| left.checked_sub(1);
        self.entries.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).map(drop).map_err(|_| {
            let most = self.bounds.entries_max;
            refuse(format!("the image has more than {most} files, the most that images may have here"))
        })
    }
}

/// Runs `consume` over the uncompressed bytes of a layer, all of which it must
/// read, and checks that they are what the image's configuration promised.
///
/// `read` is told how many bytes of the blob were read.
pub(super) fn uncompressed<T>(
    layer: &Layer,
    budget: &Budget,
    read: &(dyn Fn(u64) + Sync),
    consume: impl FnOnce(&mut Chunks) -> Result<T>,
) -> Result<T> {
    let blob = File::open(&layer.path).map_err(|error| Error::failed("open a layer", error))?;
    let (full, filled) = sync_channel(WAITING);
    let (used, empty) = channel();
    thread::scope(|scope| {
        let producer = thread::Builder::new()
            .name("layer".to_owned())
            .spawn_scoped(scope, move || {
                produce(Counted { blob, read, budget, pace: Pace::default() }, layer.compression, budget, &full, &empty)
            })
            .map_err(|error| Error::failed("start a thread for a layer", error))?;
        let mut chunks = Chunks { filled, used, current: Vec::new(), at: 0, turn: None };
        let consumed = consume(&mut chunks);
        // So that the other side does not wait for us for ever.
        drop(chunks);
        let produced = producer.join().map_err(|_| Error::failed("unpack a layer", "the thread that reads it died"))?;
        match (consumed, produced) {
            // Where the bytes ended early, this says why.
            (_, Err(Stopped::Fault(fault))) => Err(fault),
            (Err(error), _) => Err(error),
            (Ok(_), Err(Stopped::NobodyReads)) => Err(Error::failed("unpack a layer", "it was not read to its end")),
            (Ok(value), Ok(digest)) if digest == layer.diff_id => Ok(value),
            (Ok(_), Ok(digest)) => Err(refuse(format!(
                "the content of the layer is {digest}, and the image's configuration says {}",
                layer.diff_id.escape_debug()
            ))),
        }
    })
}

#[derive(Debug)]
enum Stopped {
    Fault(Error),
    /// The consumer has failed, and says why itself.
    NobodyReads,
}

fn produce(
    blob: Counted<'_>,
    compression: Compression,
    budget: &Budget,
    full: &SyncSender<Vec<u8>>,
    empty: &Receiver<Vec<u8>>,
) -> Result<String, Stopped> {
    let mut plain = decoder(BufReader::with_capacity(64 * 1024, blob), compression).map_err(Stopped::Fault)?;
    let mut hash = Sha256::new();
    loop {
        let mut chunk = empty.try_recv().unwrap_or_default();
        chunk.clear();
        let turn = Turn::take();
        let got = (&mut plain).take(CHUNK as u64).read_to_end(&mut chunk);
        // Said here too: a compression may go on and on and give nothing.
        budget.go_on().map_err(Stopped::Fault)?;
        let got = got.map_err(|error| Stopped::Fault(fault(error)))?;
        if got == 0 {
            return Ok(format!("sha256:{}", hex(&hash.finalize())));
        }
        budget.take(got as u64).map_err(Stopped::Fault)?;
        hash.update(&chunk);
        // Never while it waits for the other thread.
        drop(turn);
        full.send(chunk).map_err(|_| Stopped::NobodyReads)?;
    }
}

/// Takes the bytes of `input` out of their compression: all members or frames
/// of it, one after the other.
pub(in crate::images) fn decoder<'a>(
    input: impl io::BufRead + Send + 'a,
    compression: Compression,
) -> Result<Box<dyn Read + Send + 'a>> {
    Ok(match compression {
        Compression::None => Box::new(input),
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
        Compression::Zstd => {
            Box::new(zstd::stream::read::Decoder::with_buffer(input).map_err(|e| Error::failed("read a layer", e))?)
        }
    })
}

/// Work that was ended before it was done.
pub(in crate::images) fn stopped() -> Error {
    Error::Unavailable("it was stopped before its end".to_owned())
}

/// What a decoder cannot read is the image's fault; what the disk cannot, ours.
pub(super) fn fault(error: io::Error) -> Error {
    if error.raw_os_error().is_some() {
        return Error::failed("read a layer", error);
    }
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return refuse("the layer is cut short");
    }
    refuse(format!("the layer's compression is damaged: {error}"))
}

/// Bytes as lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Tells how much of a blob was read.
struct Counted<'a> {
    blob: File,
    read: &'a (dyn Fn(u64) + Sync),
    budget: &'a Budget,
    /// A compression may go on and on and give nothing.
    pace: Pace,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.budget.go_on().is_err() {
            return Err(io::Error::other("nobody wants it any more"));
        }
        let got = self.blob.read(buffer)?;
        (self.read)(got as u64);
        self.pace.count(got);
        Ok(got)
    }
}

/// The uncompressed bytes, as the other thread hands them over.
#[derive(Debug)]
pub(super) struct Chunks {
    filled: Receiver<Vec<u8>>,
    used: Sender<Vec<u8>>,
    current: Vec<u8>,
    at: usize,
    /// Held while there is something to work on.
    turn: Option<Turn>,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.current.len() {
            self.turn = None;
            let Ok(next) = self.filled.recv() else { return Ok(0) };
            self.turn = Some(Turn::take());
            let used = std::mem::replace(&mut self.current, next);
            // Refused only by a thread that has read everything.
            let _ = self.used.send(used);
            self.at = 0;
        }
        let rest = &self.current[self.at..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}
