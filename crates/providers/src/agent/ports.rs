//! Connections to ports of a box.

use std::sync::Arc;

use guest_protocol::Connect;

use super::connection::Connection;
use super::link;
use crate::{ByteStream, Error, Result};

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
