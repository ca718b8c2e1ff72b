//! Ports of a box: changes of them, and connections to them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use guest_protocol as wire_types;
use guest_protocol::{Connect, PORT_CHANGE_BYTES_MAX, WatchPorts};

use super::connection::Connection;
use super::lines::Lines;
use super::wire::printable;
use super::{link, wire};
use crate::{ByteStream, Error, ListeningPort, PortChange, PortChanges, Result};

const WATCH: &str = "watch the ports of a box";

/// Converts a port that an agent lists.
pub(super) fn listening(port: wire_types::ListeningPort) -> ListeningPort {
    let wire_types::ListeningPort { port, address, pid, process } = port;
    ListeningPort { port, address, pid, process: process.map(|name| printable(&name)) }
}

/// Begins to watch the ports.
pub(super) async fn watch(connection: &Arc<Connection>, interval: Duration) -> Result<PortChanges> {
    let question = WatchPorts { interval_ms: wire::milliseconds(interval) };
    let lines = Lines::of(WATCH, connection, "/ports/watch", &question, PORT_CHANGE_BYTES_MAX).await?;
    let changes = stream::unfold(Some(lines), |lines| async move {
        let mut lines = lines?;
        match next(&mut lines).await {
            Ok(Some(change)) => Some((Ok(change), Some(lines))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(changes.boxed())
}

async fn next(lines: &mut Lines) -> Result<Option<PortChange>> {
    let Some(line) = lines.next().await? else { return Ok(None) };
    let change: wire_types::PortChange = serde_json::from_slice(&line).map_err(|error| Error::failed(WATCH, error))?;
    Ok(Some(PortChange { is_open: change.is_open, port: listening(change.port) }))
}

/// Refuses the port that does not exist.
pub(crate) fn check_port(port: u16) -> Result<()> {
    if port == 0 {
        return Err(Error::Invalid("port 0 does not exist; ports are numbered from 1".to_owned()));
    }
    Ok(())
}

/// Connects to a port of the box.
pub(super) async fn connect(connection: &Arc<Connection>, port: u16, input: ByteStream) -> Result<ByteStream> {
    check_port(port)?;
    let permit = connection.command_permit()?;
    link::open("connect to a port", connection, "/connect", &Connect { port }, permit, input).await
}
