//! The name server of a box whose connections are led to the agent.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UdpSocket};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

use super::names::Names;
use super::{datagram, dns};

/// Longest message that is read: a question with all that may stand beside it.
const MESSAGE_BYTES_MAX: usize = 4096;
/// Pause after an error of a socket.
const PAUSE: Duration = Duration::from_millis(50);

/// Starts to answer on sockets of UDP.
pub(super) fn listen(sockets: Vec<OwnedFd>, names: &Rc<Names>) -> io::Result<()> {
    for socket in sockets {
        let socket = UdpSocket::from_std(std::net::UdpSocket::from(socket))?;
        spawn_local(serve(socket, Rc::clone(names)));
    }
    Ok(())
}

async fn serve(socket: UdpSocket, names: Rc<Names>) {
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    loop {
        match socket.async_io(Interest::READABLE, || datagram::receive(&socket, &mut message)).await {
            Ok(asked) => {
                if let Some(answer) = dns::answer(&message[..asked.length], asked.is_cut, &names) {
                    // A resolver asks again if its answer is lost.
                    let _ = datagram::send(&socket, &answer, asked.to, asked.from);
                }
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Answers the questions of one connection. The process has `wait` for each.
pub(super) async fn serve_stream(mut stream: TcpStream, names: &Names, wait: Duration) {
    while let Ok(Ok(true)) = timeout(wait, exchange(&mut stream, names)).await {}
}

/// Answers one question. Returns whether there can be another one.
async fn exchange(stream: &mut TcpStream, names: &Names) -> io::Result<bool> {
    let length = usize::from(stream.read_u16().await?);
    let mut message = vec![0; length.min(MESSAGE_BYTES_MAX)];
    stream.read_exact(&mut message).await?;
    let is_cut = length > message.len();
    let Some(answer) = dns::answer(&message, is_cut, names) else { return Ok(false) };
    let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], &answer].concat()).await?;
    Ok(!is_cut)
}
