//! Lines on their way to stderr. Whoever logs never waits: lines that cannot be written are left out and counted.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::mem::size_of;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Memory of the lines that wait to be written, in bytes.
const WAITING_BYTES_MAX: usize = 1024 * 1024;
/// Longest wait at the end for the lines to be written.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Queue of the process: there is one stderr.
static QUEUE: Queue = Queue::new();

/// Lines that wait for the thread that writes them.
struct Queue {
    waiting: Mutex<Waiting>,
    /// Signals a new line, and the end of a write.
    changed: Condvar,
    /// Lines that were left out since the start.
    lost: AtomicU64,
}

struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// True while the thread writes a line that is no longer among them.
    is_writing: bool,
}

/// Writer of the lines of a subscriber. A call of `write` is one line.
#[derive(Debug, Clone, Copy)]
pub struct Line;

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        QUEUE.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts the thread that writes.
///
/// # Errors
/// If no thread can be started.
pub fn start() -> io::Result<()> {
    std::thread::Builder::new().name("log".to_owned()).spawn(|| QUEUE.write_all())?;
    Ok(())
}

/// Returns the number of lines that were left out since the start.
pub fn lost() -> u64 {
    QUEUE.lost.load(Ordering::Relaxed)
}

/// Writes what waits when dropped, within [`FLUSH_MAX`].
#[derive(Debug)]
pub struct Flush;

impl Drop for Flush {
    fn drop(&mut self) {
        QUEUE.flush();
    }
}

impl Queue {
    const fn new() -> Queue {
        let waiting = Waiting { lines: VecDeque::new(), bytes: 0, is_writing: false };
        Queue { waiting: Mutex::new(waiting), changed: Condvar::new(), lost: AtomicU64::new(0) }
    }

    fn put(&self, line: &[u8]) {
        let mut waiting = self.waiting.lock();
        if waiting.bytes + cost(line) > WAITING_BYTES_MAX {
            drop(waiting);
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.bytes += cost(line);
        waiting.lines.push_back(line.to_vec());
        drop(waiting);
        self.changed.notify_all();
    }

    fn take(&self) -> Vec<u8> {
        let mut waiting = self.waiting.lock();
        loop {
            if let Some(line) = waiting.lines.pop_front() {
                waiting.bytes -= cost(&line);
                waiting.is_writing = true;
                return line;
            }
            self.changed.wait(&mut waiting);
        }
    }

    /// Notes the end of a write, and returns whether nothing else waits.
    fn is_done(&self) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.is_writing = false;
        let is_empty = waiting.lines.is_empty();
        drop(waiting);
        self.changed.notify_all();
        is_empty
    }

    fn flush(&self) {
        let deadline = Instant::now() + FLUSH_MAX;
        let mut waiting = self.waiting.lock();
        while waiting.is_writing || !waiting.lines.is_empty() {
            if self.changed.wait_until(&mut waiting, deadline).timed_out() {
                return;
            }
        }
    }

    /// Writes lines as they come. Never returns.
    fn write_all(&self) {
        let mut is_torn = false;
        let mut reported = 0;
        loop {
            let line = self.take();
            let written = write(&line, &mut is_torn);
            if written.is_err() {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            let lost = self.lost.load(Ordering::Relaxed);
            if self.is_done() && written.is_ok() && lost > reported {
                tracing::warn!(lines = lost - reported, "log lines were dropped because they could not be written");
                reported = lost;
            }
        }
    }
}

/// Returns the memory that a line takes while it waits.
fn cost(line: &[u8]) -> usize {
    line.len() + size_of::<Vec<u8>>()
}

/// Writes a line to stderr, and waits for as long as its reader does not read. `is_torn` is true if the line before
/// was cut off.
fn write(line: &[u8], is_torn: &mut bool) -> Result<(), Errno> {
    let stderr = io::stderr();
    let repaired = [b"\n", line].concat();
    let mut left = if *is_torn { &repaired[..] } else { line };
    while !left.is_empty() {
        // Not by `std`: its lock would be held for as long as the reader does not read.
        match rustix::io::write(stderr.as_fd(), left) {
            Ok(count) => {
                left = &left[count..];
                *is_torn = !left.is_empty();
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
