//! Relay into a container for a later server: a process started there from outside, which connects
//! its standard streams to the agent's socket.

use std::fs::File;
use std::io::{self, Cursor, IoSliceMut};
use std::mem::MaybeUninit;
use std::process::ExitCode;
use std::time::Duration;

use guest_protocol::AGENT_SOCKET;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags, SocketType,
    recvmsg, socket_with, sockopt,
};
use rustix::process::{DumpableBehavior, Pid, getpid, set_dumpable_behavior};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use crate::descriptor::standard;
use crate::launch::duplicate_to;

/// Bytes moved at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// Longest wait for the agent's first bytes, which it sends at once.
const FIRST_WORDS_WAIT: Duration = Duration::from_secs(10);

/// Runs until one side has ended.
pub(crate) fn run() -> ExitCode {
    // A process that could inspect this one could use its connection to the agent.
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
    let input = standard(&io::stdin())?;
    let output = standard(&io::stdout())?;
    // The null device replaces the streams, so that only this process keeps them open.
    let null = File::options().read(true).write(true).open("/dev/null")?;
    for number in 0..=1 {
        duplicate_to(&null, number)?;
    }
    let input = pipe::Receiver::from_owned_fd_unchecked(input)?;
    let output = pipe::Sender::from_owned_fd_unchecked(output)?;
    let stream = connect(AGENT_SOCKET)?;
    let first = first_words(&stream)?;
    stream.set_nonblocking(true)?;
    let (from_agent, to_agent) = UnixStream::from_std(stream)?.into_split();
    let from_agent = first.chain(from_agent);
    // The end of either side is the end: a half-closed connection is of no use to HTTP/2.
    tokio::select! {
        moved = pump(input, to_agent) => moved,
        moved = pump(from_agent, output) => moved,
    }
}

/// Connects to `path`, with the sender's credentials on each message. The kernel adds them when a
/// message is sent, so they have to be enabled before the other side can send any.
fn connect(path: &str) -> io::Result<std::os::unix::net::UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_passcred(&socket, true)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

/// Waits for the agent's first bytes, which it sends unasked, and checks that they come from
/// process 1: the box's root can put a socket of its own in the agent's place.
fn first_words(stream: &std::os::unix::net::UnixStream) -> io::Result<Cursor<Vec<u8>>> {
    let own = getpid();
    // gVisor returns the pid of the process that asks instead.
    if ![Pid::INIT, own].contains(&sockopt::socket_peercred(stream)?.pid) {
        return Err(not_process_1());
    }
    stream.set_read_timeout(Some(FIRST_WORDS_WAIT))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut words = vec![0; BUFFER_BYTES];
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut words)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let is_agent = ancillary
        .drain()
        .any(|message| matches!(message, RecvAncillaryMessage::ScmCredentials(sender) if sender.pid == Pid::INIT));
    if received.bytes == 0 || !is_agent {
        return Err(not_process_1());
    }
    sockopt::set_socket_passcred(stream, false)?;
    words.truncate(received.bytes);
    Ok(Cursor::new(words))
}

fn not_process_1() -> io::Error {
    io::Error::other("this is not the socket of process 1")
}

async fn pump(from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut from = tokio::io::BufReader::with_capacity(BUFFER_BYTES, from);
    tokio::io::copy_buf(&mut from, &mut to).await?;
    to.flush().await
}

#[cfg(test)]
mod test {
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    use super::{connect, first_words};

    #[test]
    fn words_that_are_not_those_of_process_1_are_not_passed_on() {
        let dir = tempfile::tempdir().expect("a folder can be made");
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket can be bound");
        let stream = connect(path.to_str().expect("a path of text")).expect("there is a listener");
        let (mut theirs, _) = listener.accept().expect("it connects");
        theirs.write_all(b"words").expect("it is connected");
        // The listener is this process, which gVisor would report for any.
        assert!(first_words(&stream).is_err());
        drop(theirs);
        assert!(first_words(&stream).is_err());
    }
}
