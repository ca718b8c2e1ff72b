//! Bytes of a layer: read from its blob, decompressed, counted and hashed on one thread, while
//! another one writes files.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::layer::{Bounds, Compression, Layer};
use crate::digest::finish;
use crate::disk;
use crate::error::{Error, Result, refuse, stopped};
use crate::processors::{Pace, Turn};

/// Bytes handed from thread to thread at a time.
const CHUNK: usize = 256 * 1024;
/// Most chunks that may wait for the other thread.
const WAITING: usize = 8;

/// Bytes written between two checks of the free space.
const LOOK_BYTES: u64 = 4 << 20;
/// Bytes that a file takes on disk besides its content, as counted for these checks.
const ENTRY_BYTES: u64 = 4096;

/// Steps of step-by-step path resolution allowed for each file that an image may have.
const STEPS: u64 = 32;
/// Least number of such steps allowed to an image.
const STEPS_MIN: u64 = 1 << 17;

/// Remaining allowance of an image.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: AtomicU64,
    bounds: Bounds,
    entries: AtomicU64,
    steps: AtomicU64,
    /// Bytes written since the last check of the free space.
    unseen: AtomicU64,
    /// Folder on the disk that is written to.
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

    /// Fails once the unpacking is stopped.
    pub(super) fn go_on(&self) -> Result<()> {
        if self.stop.is_cancelled() { Err(stopped()) } else { Ok(()) }
    }

    /// Counts bytes to be written; fails if the disk has no more free than the reserve.
    fn look(&self, bytes: u64) -> Result<()> {
        self.go_on()?;
        if self.unseen.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) < LOOK_BYTES {
            return Ok(());
        }
        self.unseen.store(0, Ordering::Relaxed);
        disk::room(&self.dir, self.bounds.reserve)
    }

    /// Takes `bytes` from the allowance.
    pub(super) fn take(&self, bytes: u64) -> Result<()> {
        self.look(bytes)?;
        let taken = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.map(drop).map_err(|_| {
            let most = self.bounds.bytes_max;
            Error::TooLarge(format!(
                "the image is larger than {most} bytes unpacked, the limit for images; raise `images.max_image_mb` to \
                 accept it"
            ))
        })
    }

    /// Takes one step towards a directory from the allowance.
    pub(super) fn step(&self) -> Result<()> {
        self.go_on()?;
        self.steps
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .map(drop)
            .map_err(|_| refuse("the paths in the image take too many steps to resolve because links lead to links"))
    }

    /// Takes one file from the allowance.
    pub(super) fn entry(&self) -> Result<()> {
        self.look(ENTRY_BYTES)?;
        let taken = self.entries.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        taken.map(drop).map_err(|_| {
            let most = self.bounds.entries_max;
            refuse(format!("the image has more than {most} files, the limit for images"))
        })
    }
}

/// Runs `consume` over the uncompressed bytes of a layer, all of which it must read, and checks
/// their digest against the image's configuration.
///
/// `read` receives the number of bytes of each read from the blob.
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
        // The producer may be waiting for the consumer.
        drop(chunks);
        let produced = producer.join().map_err(|_| Error::failed("unpack a layer", "its reader thread panicked"))?;
        match (consumed, produced) {
            // The producer's error is the cause where the bytes end early.
            (_, Err(Stopped::Fault(fault))) => Err(fault),
            (Err(error), _) => Err(error),
            (Ok(_), Err(Stopped::NobodyReads)) => Err(Error::failed("unpack a layer", "it was not read to the end")),
            (Ok(value), Ok(digest)) if digest == layer.diff_id => Ok(value),
            (Ok(_), Ok(digest)) => Err(refuse(format!(
                "the content of the layer is {digest}, but the image's configuration says {}",
                layer.diff_id.escape_debug()
            ))),
        }
    })
}

#[derive(Debug)]
enum Stopped {
    Fault(Error),
    /// End of the consumer, which returns its own error.
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
        // Checked here too: decompression may go on without any output.
        budget.go_on().map_err(Stopped::Fault)?;
        let got = got.map_err(|error| Stopped::Fault(fault(error)))?;
        if got == 0 {
            return Ok(finish(hash));
        }
        budget.take(got as u64).map_err(Stopped::Fault)?;
        hash.update(&chunk);
        // Not held while waiting for the other thread.
        drop(turn);
        full.send(chunk).map_err(|_| Stopped::NobodyReads)?;
    }
}

/// Decompresses `input`: all its members or frames, in order.
pub(crate) fn decoder<'a>(
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

/// Converts a read error: one of a decoder is the image's fault, one of the disk is the server's.
pub(super) fn fault(error: io::Error) -> Error {
    if error.raw_os_error().is_some() {
        return Error::failed("read a layer", error);
    }
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return refuse("the layer is truncated");
    }
    refuse(format!("the layer's compression is damaged: {error}"))
}

/// Reader that reports the number of bytes read from a blob.
struct Counted<'a> {
    blob: File,
    read: &'a (dyn Fn(u64) + Sync),
    budget: &'a Budget,
    /// Counter of the bytes read, since decompression may go on without any output.
    pace: Pace,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.budget.go_on().is_err() {
            return Err(io::Error::other("unpacking was stopped"));
        }
        let got = self.blob.read(buffer)?;
        (self.read)(got as u64);
        self.pace.count(got);
        Ok(got)
    }
}

/// Uncompressed bytes, received from the producer.
#[derive(Debug)]
pub(super) struct Chunks {
    filled: Receiver<Vec<u8>>,
    used: Sender<Vec<u8>>,
    current: Vec<u8>,
    at: usize,
    /// Turn at a processor, held while there are bytes to process.
    turn: Option<Turn>,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.current.len() {
            self.turn = None;
            let Ok(next) = self.filled.recv() else { return Ok(0) };
            self.turn = Some(Turn::take());
            let used = std::mem::replace(&mut self.current, next);
            // Fails only if the producer has ended.
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
