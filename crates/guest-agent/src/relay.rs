//! The way into a container for a server that comes later: started there from
//! outside, it connects its standard streams to the agent's socket.

use std::fs::File;
use std::io;
use std::process::ExitCode;

use guest_protocol::AGENT_SOCKET;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use crate::descriptor::standard;
use crate::launch::duplicate_to;

/// What is moved at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// Runs until one side has ended.
pub(crate) fn run() -> ExitCode {
    // Who could look into this process could speak to the agent through it.
    if set_dumpable_behavior(DumpableBehavior::NotDumpable).is_err() {
        return ExitCode::FAILURE;
    }
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else {
        return ExitCode::FAILURE;
    };
    match runtime.block_on(relay()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

async fn relay() -> io::Result<()> {
    let (input, output) = (standard(&io::stdin())?, standard(&io::stdout())?);
    // What keeps the streams open ends with this process, and nothing else does.
    let null = File::options().read(true).write(true).open("/dev/null")?;
    for number in 0..=1 {
        duplicate_to(&null, number)?;
    }
    let input = pipe::Receiver::from_owned_fd_unchecked(input)?;
    let output = pipe::Sender::from_owned_fd_unchecked(output)?;
    let (from_agent, to_agent) = UnixStream::connect(AGENT_SOCKET).await?.into_split();
    // Either end is the end: a connection that is half closed is of no use to HTTP/2.
    tokio::select! {
        moved = pump(input, to_agent) => moved,
        moved = pump(from_agent, output) => moved,
    }
}

async fn pump(from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut from = tokio::io::BufReader::with_capacity(BUFFER_BYTES, from);
    tokio::io::copy_buf(&mut from, &mut to).await?;
    to.flush().await
}
