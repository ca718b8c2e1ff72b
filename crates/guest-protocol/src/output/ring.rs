//! The newest output of a process, under positions: the number of bytes written before.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::room::{Held, Room};
use crate::frame::{HEADER_BYTES, Kind, header};

/// Smallest capacity in memory: each process has as much, however many there are.
const BYTES_MIN: usize = 4 * 1024;
/// Maximum number of changes between stdout and stderr that are remembered.
const RUNS_MAX: usize = 8192;
/// Largest piece that a reader gets at once, in bytes.
const PIECE_BYTES_MAX: usize = 256 * 1024;

/// Opens a file that ends with its descriptor.
type OpenFile = fn() -> io::Result<File>;

/// A ring of bytes.
#[derive(Debug)]
pub struct Ring {
    store: Store,
    /// Maximum number of bytes that are kept.
    capacity: usize,
    /// Position of the oldest byte that is kept.
    first: u64,
    /// Position after the newest byte.
    end: u64,
    /// Positions at which the output of a stream begins, with the stream; never empty unless the ring is.
    runs: VecDeque<(u64, Kind)>,
    held: Held,
    /// Way to a file for what does not fit the memory, if there is one.
    open_file: Option<OpenFile>,
}

#[derive(Debug)]
enum Store {
    Memory(VecDeque<u8>),
    /// A file without a name, in which a byte is at its position modulo the capacity.
    File(File),
}

/// Answer to a reader.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// A frame of output, and the position after it.
    Frame(Bytes, u64),
    /// The position is gone; the oldest byte that is kept has this one.
    Lost(u64),
    /// There is no more yet.
    Nothing,
}

impl Ring {
    /// Makes an empty ring that keeps at most `capacity` bytes: in memory as far as there is `room`, then in
    /// a file, if there is a way to one.
    #[must_use]
    pub fn new(capacity: usize, room: &Arc<Room>, open_file: Option<fn() -> io::Result<File>>) -> Ring {
        Ring {
            store: Store::Memory(VecDeque::new()),
            capacity,
            first: 0,
            end: 0,
            runs: VecDeque::new(),
            held: room.nothing(),
            open_file,
        }
    }

    /// Returns the position of the oldest byte that is kept.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the position after the newest byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the number of bytes that are kept at most.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Appends output of one stream, in the place of the oldest if there is no room beside it.
    pub fn append(&mut self, kind: Kind, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.runs.back().is_none_or(|(_, last)| *last != kind) {
            self.runs.push_back((self.end, kind));
        }
        self.make_room(bytes.len());
        // What does not fit was overtaken before it could be read.
        let skipped = bytes.len().saturating_sub(self.capacity);
        let kept = bytes.get(skipped..).unwrap_or_default();
        if skipped > 0 {
            self.drop_until(self.end);
            self.first += skipped as u64;
            self.end += skipped as u64;
        }
        self.drop_until((self.end + kept.len() as u64).saturating_sub(self.capacity as u64));
        match &mut self.store {
            Store::Memory(memory) => memory.extend(kept),
            Store::File(file) => {
                if write_at(file, self.end, self.capacity, kept).is_err() {
                    // The disk is full: what is kept now is gone, and what follows is tried again.
                    self.end += kept.len() as u64;
                    self.drop_until(self.end);
                    return;
                }
            }
        }
        self.end += kept.len() as u64;
        while self.runs.len() > RUNS_MAX {
            let Some((second, _)) = self.runs.get(1).copied() else { break };
            self.drop_until(second);
        }
    }

    /// Reads one frame from `position` on.
    #[must_use]
    pub fn read(&self, position: u64) -> Read {
        if position < self.first {
            return Read::Lost(self.first);
        }
        // The run that the position is in, and the beginning of the next one.
        let index = self.runs.partition_point(|(start, _)| *start <= position).saturating_sub(1);
        let Some((_, kind)) = self.runs.get(index) else { return Read::Nothing };
        let until = self.runs.get(index + 1).map_or(self.end, |(start, _)| *start);
        let len = usize::try_from(until.saturating_sub(position)).unwrap_or(usize::MAX).min(PIECE_BYTES_MAX);
        if len == 0 {
            return Read::Nothing;
        }
        let mut frame = BytesMut::with_capacity(HEADER_BYTES + len);
        frame.put_slice(&header(*kind, len));
        match &self.store {
            Store::Memory(memory) => {
                let skipped = usize::try_from(position - self.first).unwrap_or(usize::MAX);
                let (front, back) = memory.as_slices();
                let in_front = front.get(skipped..).unwrap_or_default();
                let in_front = in_front.get(..len).unwrap_or(in_front);
                frame.put_slice(in_front);
                let from = skipped.saturating_sub(front.len());
                frame.put_slice(back.get(from..from + (len - in_front.len())).unwrap_or_default());
            }
            Store::File(file) => {
                frame.resize(HEADER_BYTES + len, 0);
                let payload = frame.get_mut(HEADER_BYTES..).unwrap_or_default();
                if read_at(file, position, self.capacity, payload).is_err() {
                    return Read::Lost(until);
                }
            }
        }
        Read::Frame(frame.freeze(), position + len as u64)
    }

    /// Forgets what lies before `position`.
    fn drop_until(&mut self, position: u64) {
        let dropped = position.saturating_sub(self.first);
        if dropped == 0 {
            return;
        }
        if let Store::Memory(memory) = &mut self.store {
            memory.drain(..usize::try_from(dropped).unwrap_or(usize::MAX).min(memory.len()));
        }
        self.first = position;
        while self.runs.get(1).is_some_and(|(start, _)| *start <= position) {
            self.runs.pop_front();
        }
    }

    /// Finds a place for `more` bytes: in memory, else on disk, else in the place of the oldest.
    fn make_room(&mut self, more: usize) {
        let Store::Memory(memory) = &mut self.store else { return };
        let wanted = (memory.len() + more).min(self.capacity);
        if wanted <= self.held.bytes().max(BYTES_MIN) {
            memory.reserve_exact(wanted - memory.len().min(wanted));
            return;
        }
        // Twice as much each time, so that little is copied.
        let next = wanted.next_power_of_two().min(self.capacity);
        if self.held.resize_to(next) {
            memory.reserve_exact(next - memory.len().min(next));
            return;
        }
        if let Some(open_file) = self.open_file
            && let Ok(file) = open_file()
        {
            let (front, back) = memory.as_slices();
            let middle = self.first + front.len() as u64;
            let moved = write_at(&file, self.first, self.capacity, front)
                .and_then(|()| write_at(&file, middle, self.capacity, back));
            if moved.is_ok() {
                self.store = Store::File(file);
                self.held.resize_to(0);
                return;
            }
        }
        self.capacity = self.held.bytes().max(BYTES_MIN);
    }
}

/// Returns the offset of a position in the file, and the number of bytes until its end.
fn place(position: u64, capacity: usize) -> (u64, usize) {
    let offset = position % capacity.max(1) as u64;
    (offset, capacity - usize::try_from(offset).unwrap_or(capacity))
}

fn write_at(file: &File, mut position: u64, capacity: usize, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let (offset, len) = place(position, capacity);
        let piece = bytes.get(..len).unwrap_or(bytes);
        file.write_all_at(piece, offset)?;
        bytes = bytes.get(piece.len()..).unwrap_or_default();
        position += piece.len() as u64;
    }
    Ok(())
}

fn read_at(file: &File, mut position: u64, capacity: usize, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        let (offset, len) = place(position, capacity);
        let (piece, rest) = into.split_at_mut(len.min(into.len()));
        file.read_exact_at(piece, offset)?;
        position += piece.len() as u64;
        into = rest;
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    /// Reads all from `position` on: the streams of the frames with their bytes, joined, and where it begins.
    fn all(ring: &Ring, mut position: u64) -> (u64, Vec<(Kind, Vec<u8>)>) {
        let mut runs: Vec<(Kind, Vec<u8>)> = Vec::new();
        let mut begin = position;
        loop {
            match ring.read(position) {
                Read::Lost(first) => {
                    assert!(runs.is_empty() && first > position);
                    (begin, position) = (first, first);
                }
                Read::Frame(frame, next) => {
                    let (head, payload) = frame.split_first_chunk::<HEADER_BYTES>().unwrap();
                    let (kind, len) = crate::frame::parse_header(*head).unwrap();
                    assert_eq!((len, next - position), (payload.len(), len as u64));
                    match runs.last_mut().filter(|(last, _)| *last == kind) {
                        Some((_, bytes)) => bytes.extend_from_slice(payload),
                        None => runs.push((kind, payload.to_vec())),
                    }
                    position = next;
                }
                Read::Nothing => return (begin, runs),
            }
        }
    }

    fn on_disk() -> io::Result<File> {
        tempfile::tempfile()
    }

    fn kind(is_stderr: bool) -> Kind {
        if is_stderr { Kind::Stderr } else { Kind::Stdout }
    }

    proptest! {
        #[test]
        fn what_is_kept_is_the_end_of_what_was_written(
            writes in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..9000)), 0..40),
            capacity in 4096_usize..40_000,
            room in 0_usize..60_000,
            is_on_disk: bool,
            from in 0_u64..100_000,
        ) {
            let mut ring = Ring::new(capacity, &Room::of_bytes(room), is_on_disk.then_some(on_disk));
            let mut written: Vec<(Kind, u8)> = Vec::new();
            for (is_stderr, bytes) in &writes {
                ring.append(kind(*is_stderr), bytes);
                written.extend(bytes.iter().map(|byte| (kind(*is_stderr), *byte)));
            }
            prop_assert_eq!(ring.end(), written.len() as u64);
            prop_assert!(ring.end() - ring.first() <= capacity as u64);
            let surely_kept = written.len().min(if is_on_disk { capacity } else { BYTES_MIN });
            prop_assert!(ring.end() - ring.first() >= surely_kept as u64);
            let from = from.min(ring.end());
            let (begin, runs) = all(&ring, from);
            prop_assert_eq!(begin, from.max(ring.first()));
            let read: Vec<(Kind, u8)> =
                runs.iter().flat_map(|(kind, bytes)| bytes.iter().map(|byte| (*kind, *byte))).collect();
            prop_assert!(read == written[usize::try_from(begin).unwrap()..]);
        }
    }

    #[test]
    fn changes_between_the_streams_are_bounded() {
        let mut ring = Ring::new(1 << 20, &Room::of_bytes(1 << 20), None);
        (0..3 * RUNS_MAX).for_each(|n| ring.append(kind(n % 2 == 1), b"x"));
        assert_eq!((ring.runs.len(), ring.end() - ring.first()), (RUNS_MAX, RUNS_MAX as u64));
    }

    #[test]
    fn rings_beyond_the_memory_are_on_disk_and_give_their_memory_back() {
        let room = Room::of_bytes(64 * 1024);
        let rings: Vec<Ring> = (0..8)
            .map(|_| {
                let mut ring = Ring::new(32 * 1024, &room, Some(on_disk));
                (0..100).for_each(|_| ring.append(Kind::Stdout, &[7; 1000]));
                assert_eq!(ring.end() - ring.first(), 32 * 1024);
                ring
            })
            .collect();
        let in_memory = rings.iter().filter(|ring| matches!(ring.store, Store::Memory(_))).count();
        assert!((1..8).contains(&in_memory), "{in_memory}");
        drop(rings);
        assert!(room.nothing().resize_to(64 * 1024));
    }
}
