//! Differences of an agent below a tracer from one in namespaces.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use guest_protocol::{EndTree, Note, Traced};
use rustix::fs::{Mode, OFlags};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::time::Instant;

use crate::descriptor::take;
use crate::exec::process_tree::{ProcessTree, children_now};
use crate::exec::reapers;
use crate::serve::Agent;

/// Maximum length of a note, in bytes.
const NOTE_BYTES_MAX: u64 = 4096;
/// Longest wait for processes to end; then they are left to the end of the box.
const END_WAIT: Duration = Duration::from_secs(5);
/// Interval between checks for processes that still live.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Connection to the tracer, held while the agent lives.
#[derive(Debug)]
pub(crate) struct TracerHandle {
    /// FIFO whose open end shows that the agent lives; requests are written into it.
    life: File,
}

/// Takes the descriptors, before the runtime opens its own: the agent's end of the FIFO, and the
/// notes.
pub(crate) fn tie(traced: &Traced) -> std::io::Result<(TracerHandle, OwnedFd)> {
    let notes = take(traced.notes_fd)?;
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let life = rustix::fs::open(traced.life.as_str(), flags, Mode::empty())?;
    Ok((TracerHandle { life: life.into() }, notes))
}

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
            reapers::kill_all(&agent).await;
        }
    }
}

/// Ends `tree`: asks the tracer mode, and waits until it has.
pub(crate) async fn kill(agent: &Agent, ties: &TracerHandle, tree: &ProcessTree) {
    let begun = Instant::now();
    let mut asked = Vec::new();
    while begun.elapsed() < END_WAIT {
        let roots: Vec<i32> = match tree {
            ProcessTree::Command(reaper) if reaper.is_gone() => return,
            ProcessTree::Command(reaper) => vec![reaper.pid],
            ProcessTree::Orphans => {
                let children = children_now(agent.pid);
                children.into_iter().filter(|pid| !agent.reapers.contains(*pid)).collect()
            }
        };
        if roots.is_empty() {
            return;
        }
        for root in roots.into_iter().filter(|root| !asked.contains(root)).collect::<Vec<_>>() {
            let Ok(mut line) = serde_json::to_vec(&EndTree { root }) else { return };
            line.push(b'\n');
            // A line is written whole or, while the FIFO is full, not at all; then the request is
            // repeated.
            if (&ties.life).write(&line).is_ok() {
                asked.push(root);
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
