//! Notes of the tracer mode to the agent below it.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use guest_protocol::Note;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::unix::pipe;

use crate::agent::Agent;
use crate::exec::reaping;

/// Maximum length of a note, in bytes.
const NOTE_BYTES_MAX: u64 = 4096;

/// Carries out the notes, until the pipe ends.
pub(crate) async fn follow(agent: Rc<Agent>, notes: OwnedFd) -> std::io::Result<()> {
    let mut notes = BufReader::new(pipe::Receiver::from_owned_fd_unchecked(notes)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut notes).take(NOTE_BYTES_MAX).read_until(b'\n', &mut line).await? == 0 {
            // Without the tracer mode the box would have no limits.
            return Ok(());
        }
        let Ok(note) = serde_json::from_slice::<Note>(&line) else { continue };
        agent.console.push(note.text);
        if note.end_commands {
            reaping::kill_all(&agent).await;
        }
    }
}
