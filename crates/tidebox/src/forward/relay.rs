//! One connection, from here to the sandbox.

use std::io;

use bytes::{Bytes, BytesMut};
use client::{Client, PortStream};
use futures_util::{Stream, stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::output::{harmless, note};

/// Size of a read, in bytes.
const PIECE_BYTES: usize = 64 * 1024;

/// Passes a connection on until both directions have ended. A failure is a line on stderr.
pub async fn relay(client: &Client, id: &str, port: u16, local: TcpStream) {
    let (reader, writer) = split(local);
    let opened = client.connect_port(id, port, pieces(reader)).await;
    finish(id, port, opened, writer).await;
}

/// Takes the connection of this number to a port of the sandbox, and passes it on as [`relay`].
pub async fn take(client: &Client, id: &str, port: u16, number: u64, local: TcpStream) {
    let (reader, writer) = split(local);
    let opened = client.accept_port(id, port, number, pieces(reader)).await;
    finish(id, port, opened, writer).await;
}

fn split(local: TcpStream) -> (OwnedReadHalf, OwnedWriteHalf) {
    // Small writes are not held back: each piece is passed on as it comes.
    let _ = local.set_nodelay(true);
    local.into_split()
}

async fn finish(id: &str, port: u16, opened: client::Result<PortStream>, writer: OwnedWriteHalf) {
    let passed = match opened {
        Ok(remote) => pass(remote, writer).await,
        Err(error) => Err(error),
    };
    match passed {
        // The program here hung up, and knows it.
        Ok(()) | Err(client::Error::Io(_)) => {}
        Err(error) => note(&harmless(&format!("port {port} of {id}: {error}"))),
    }
}

/// Returns what the program here sends.
fn pieces(reader: OwnedReadHalf) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::try_unfold((reader, BytesMut::new()), |(mut reader, mut buffer)| async move {
        buffer.reserve(PIECE_BYTES);
        let count = reader.read_buf(&mut buffer).await?;
        Ok((count > 0).then(|| (buffer.split().freeze(), (reader, buffer))))
    })
}

/// Writes what the process sends, and its end. Returns once both directions have ended; a program
/// here that takes no more has hung up.
async fn pass(mut remote: PortStream, mut writer: OwnedWriteHalf) -> client::Result<()> {
    while let Some(piece) = remote.next().await? {
        let written = if piece.is_empty() { writer.shutdown().await } else { writer.write_all(&piece).await };
        written.map_err(client::Error::Io)?;
    }
    Ok(())
}
