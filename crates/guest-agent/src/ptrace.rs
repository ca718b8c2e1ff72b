//! Connection of an agent below a tracer to that tracer.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

use guest_protocol::{EndTree, Traced};
use rustix::fs::{Mode, OFlags};

use crate::descriptor::take;

/// Connection to the tracer, held while the agent lives.
#[derive(Debug)]
pub(crate) struct TracerHandle {
    /// FIFO whose open end shows that the agent lives; requests are written into it.
    life: File,
}

impl TracerHandle {
    /// Asks the tracer mode to end a process and all below it. The request is written whole or, while
    /// the FIFO is full, not at all.
    pub(crate) fn ask_to_end(&self, root: i32) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(&EndTree { root })?;
        line.push(b'\n');
        (&self.life).write(&line).map(drop)
    }
}

/// Takes the descriptors, before the runtime opens its own: the agent's end of the FIFO, and the
/// notes.
pub(crate) fn tie(traced: &Traced) -> std::io::Result<(TracerHandle, OwnedFd)> {
    let notes = take(traced.notes_fd)?;
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let life = rustix::fs::open(traced.life.as_str(), flags, Mode::empty())?;
    Ok((TracerHandle { life: life.into() }, notes))
}
