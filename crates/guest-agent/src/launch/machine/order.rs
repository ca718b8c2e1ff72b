//! The host's line, and the answer to it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::time::Duration;

use guest_protocol::{MACHINE_LINE_BYTES_MAX, Machine, MachineReport};
use rustix::net::SocketFlags;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::launch::refused::{At, Refused};
use crate::vsock::{self, Listener};

/// Limit for each part of the line, and of the answer: the host sends all at once.
const LINE_WAIT: Duration = Duration::from_secs(10);

/// Waits for a connection of the host and its line; `None` for one that sends no such line.
pub(super) fn receive(boots: &Listener) -> Result<Option<(Machine, File)>, Refused> {
    let accepted = vsock::accept(boots, SocketFlags::CLOEXEC).at("wait for the host")?;
    let Some(stream) = accepted else { return Ok(None) };
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&stream, direction, Some(LINE_WAIT)).at("limit the wait for the host")?;
    }
    let stream = File::from(stream);
    let mut line = Vec::new();
    let read = BufReader::new(&stream).take(MACHINE_LINE_BYTES_MAX as u64).read_until(b'\n', &mut line);
    let machine = read.ok().filter(|_| line.ends_with(b"\n")).and_then(|_| serde_json::from_slice(&line).ok());
    Ok(machine.map(|machine| (machine, stream)))
}

pub(super) fn answer(mut host: &File, report: &MachineReport) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    host.write_all(&line)
}
