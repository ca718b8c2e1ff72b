//! Connections to ports of a sandbox. The service passes on HTTP alone, so a program in the sandbox makes each
//! connection and passes its bytes on as the stdin and stdout of a command.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::{StreamExt, stream};

use super::exec;
use super::guest::E2bGuest;
use super::ports::{self, OF_SERVICE};
use crate::{ByteStream, Command, Error, OutputEvent, OutputStream, Result};

const CONNECT: &str = "connect to a port";
/// Program that makes the connection. Each piece of its output has a length before it: 0 for the end of what the process
/// sends, and [`CONNECTED`] without content once there is a connection.
const PROGRAM: &str = include_str!("tunnel.py");
/// Length that stands for the connection itself.
const CONNECTED: u32 = u32::MAX;
/// Largest piece of the program, in bytes.
const PIECE_BYTES_MAX: u32 = 64 * 1024;
/// Exit code if nothing listens on the port.
const NOTHING_LISTENS: i32 = 7;
/// Exit codes of a program that is not there, and of one that cannot be executed.
const NO_PROGRAM: [i32; 2] = [126, 127];

/// Connects to a port; see [`crate::Guest::connect`].
pub(super) async fn connect(guest: &E2bGuest, port: u16, input: ByteStream) -> Result<ByteStream> {
    if OF_SERVICE.contains(&port) {
        return Err(nothing_listens(port));
    }
    let command = Command {
        argv: ["python3", "-c", PROGRAM, &port.to_string()].map(str::to_owned).to_vec(),
        env: Default::default(),
        workdir: Some("/".to_owned()),
        user: None,
        timeout: Duration::MAX,
        stdin: Some(input),
        terminal: None,
    };
    let output = exec::interactive(guest, command).await?.output;
    let mut link = Link { output, buffer: BytesMut::new(), has_ended: false };
    let first = match link.piece().await {
        // Without the program, too, a port that nothing listens on is told.
        Err(Error::NotSupported(_)) if !ports::list(guest).await?.iter().any(|it| it.port == port) => None,
        first => first?,
    };
    match first {
        Some(Piece::Connected) => {}
        Some(_) => return Err(Error::failed(CONNECT, "the program in the sandbox does not begin with its connection")),
        None => return Err(nothing_listens(port)),
    }
    Ok(stream::unfold(Some(link), |link| async move {
        let mut link = link?;
        match link.piece().await {
            Ok(Some(Piece::Bytes(bytes))) => Some((Ok(bytes), Some(link))),
            Ok(Some(Piece::Ended)) if !link.has_ended => {
                link.has_ended = true;
                Some((Ok(Bytes::new()), Some(link)))
            }
            Ok(Some(Piece::Ended | Piece::Connected)) => {
                Some((Err(Error::failed(CONNECT, "the program in the sandbox repeats itself")), None))
            }
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    })
    .boxed())
}

fn nothing_listens(port: u16) -> Error {
    Error::NotFound(format!("nothing listens on port {port} in the sandbox"))
}

/// Piece of the program's output.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Connected,
    Bytes(Bytes),
    /// The process sends no more.
    Ended,
}

/// A connection, as the output of the program. Dropping it kills the program, which resets the connection.
struct Link {
    output: OutputStream,
    buffer: BytesMut,
    has_ended: bool,
}

impl Link {
    /// Returns the next piece; `None` at the end of the program.
    async fn piece(&mut self) -> Result<Option<Piece>> {
        loop {
            if let Some(piece) = take(&mut self.buffer)? {
                return Ok(Some(piece));
            }
            match self.output.next().await {
                Some(Ok(OutputEvent::Stdout(bytes))) => self.buffer.extend_from_slice(&bytes),
                Some(Ok(OutputEvent::Stderr(bytes))) => {
                    tracing::debug!(text = %String::from_utf8_lossy(&bytes), "from a connection to a port of a sandbox");
                }
                Some(Ok(OutputEvent::Exit(exit))) => {
                    return match exit.code {
                        0 | NOTHING_LISTENS => Ok(None),
                        code if NO_PROGRAM.contains(&code) => Err(Error::NotSupported(
                            "the sandbox's image has no `python3`, which connections to its ports need".to_owned(),
                        )),
                        code => Err(Error::failed(CONNECT, format!("the connection was reset ({code})"))),
                    };
                }
                Some(Err(error)) => return Err(error),
                None => return Ok(None),
            }
        }
    }
}

/// Takes a whole piece from what has arrived.
fn take(buffer: &mut BytesMut) -> Result<Option<Piece>> {
    let Some(head) = buffer.first_chunk() else { return Ok(None) };
    let bytes = match u32::from_be_bytes(*head) {
        CONNECTED => {
            buffer.advance(4);
            return Ok(Some(Piece::Connected));
        }
        0 => {
            buffer.advance(4);
            return Ok(Some(Piece::Ended));
        }
        bytes if bytes > PIECE_BYTES_MAX => {
            return Err(Error::failed(CONNECT, "the program in the sandbox announces too large a piece"));
        }
        bytes => bytes as usize,
    };
    if buffer.len() < 4 + bytes {
        return Ok(None);
    }
    buffer.advance(4);
    Ok(Some(Piece::Bytes(buffer.split_to(bytes).freeze())))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn pieces_are_taken_however_their_bytes_arrive() {
        let all = [&[0xff; 4][..], &[0, 0, 0, 2, b'h', b'i'], &[0, 0, 0, 0]].concat();
        let (mut buffer, mut pieces) = (BytesMut::new(), Vec::new());
        for byte in all {
            buffer.extend_from_slice(&[byte]);
            pieces.extend(take(&mut buffer).unwrap());
        }
        assert_eq!(pieces, [Piece::Connected, Piece::Bytes(Bytes::from_static(b"hi")), Piece::Ended]);
        assert!(take(&mut BytesMut::from(&[0, 1, 0, 1][..])).is_err());
    }
}
