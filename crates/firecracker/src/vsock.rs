//! Streams to ports of a guest.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::{Error, Result};

/// Maximum size of the line that precedes a stream: `OK`, a number of 32 bits, and its end.
const LINE_BYTES_MAX: usize = 16;

/// Opens a stream to `port` of the guest over `stream`, a new connection to the unix socket of its
/// vsock. A paused guest does not answer, so `wait` bounds it.
///
/// # Errors
/// [`Error::NotListening`], at once, as long as the guest does not listen: while it boots, say.
/// [`Error::Silent`] for one that is paused, [`Error::Malformed`] if something else than Firecracker
/// answers.
pub async fn open(mut stream: UnixStream, port: u32, wait: Duration) -> Result<UnixStream> {
    let opened = tokio::time::timeout(wait, shake_hands(&mut stream, port)).await;
    opened.map_err(|_| Error::Silent(wait))??;
    Ok(stream)
}

async fn shake_hands(stream: &mut UnixStream, port: u32) -> Result<()> {
    stream.write_all(format!("CONNECT {port}\n").as_bytes()).await.map_err(|error| ended(port, &error))?;
    let mut line = String::new();
    loop {
        // One at a time: the bytes behind the line belong to the stream.
        let byte = stream.read_u8().await.map_err(|error| {
            if line.is_empty() {
                ended(port, &error)
            } else {
                Error::Malformed(format!("{line:?}, then end of stream"))
            }
        })?;
        if byte == b'\n' {
            break;
        }
        line.push(char::from(byte));
        if line.len() >= LINE_BYTES_MAX {
            return Err(Error::Malformed(format!("{line:?}")));
        }
    }
    match line.strip_prefix("OK ").map(str::parse::<u32>) {
        Some(Ok(_)) => Ok(()),
        Some(Err(_)) | None => Err(Error::Malformed(format!("{line:?}"))),
    }
}

/// Converts the failure of a stream that said nothing yet: its end means that the guest does not listen.
fn ended(port: u32, error: &io::Error) -> Error {
    let is_end = [io::ErrorKind::UnexpectedEof, io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset]
        .contains(&error.kind());
    if is_end { Error::NotListening(port) } else { Error::Gone(error.to_string()) }
}
