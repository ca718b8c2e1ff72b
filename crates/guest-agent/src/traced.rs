//! An agent below a tracer: what it does otherwise than one that the kernel keeps.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use guest_protocol::{Note, Traced};
use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::unix::pipe;

use crate::descriptor::take;
use crate::exec::reapers;
use crate::serve::Agent;

/// A longer note is none.
const NOTE_BYTES_MAX: u64 = 4096;

/// What an agent holds for as long as it lives.
#[derive(Debug)]
pub(crate) struct Ties {
    /// That it is open says that the agent lives.
    _life: File,
    notes: OwnedFd,
}

/// Takes the descriptors; before the runtime opens its own.
pub(crate) fn tie(traced: &Traced) -> std::io::Result<Ties> {
    let notes = take(traced.notes_fd)?;
    let life =
        rustix::fs::open(traced.life.as_str(), OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    Ok(Ties { _life: life.into(), notes })
}

/// Does what the notes say, until there are none any more.
pub(crate) async fn follow(agent: Rc<Agent>, ties: Ties) -> std::io::Result<()> {
    let Ties { _life, notes } = ties;
    let mut notes = BufReader::new(pipe::Receiver::from_owned_fd_unchecked(notes)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut notes).take(NOTE_BYTES_MAX).read_until(b'\n', &mut line).await? == 0 {
            // Without its watch the box would go on unbounded.
            return Ok(());
        }
        let Ok(note) = serde_json::from_slice::<Note>(&line) else { continue };
        agent.console.push(note.text);
        if note.end_commands {
            reapers::kill_all(&agent).await;
        }
    }
}
