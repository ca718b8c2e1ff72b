//! Directories: their description, chosen files of them, and changes of many at once.

use std::sync::Arc;

use bytes::Bytes;
use guest_protocol::{AMENDED_BYTES_MAX, Amend, Amended, Manifest, Pack};
use http::Method;
use serde::Serialize;

use super::connection::{Connection, request};
use super::lines::Lines;
use super::request::{LONG_WAIT, SHORT_WAIT, succeed, within};
use super::transfer::passed_on;
use crate::{ByteStream, Error, Result};

/// Describes a directory; see [`crate::Guest::manifest`].
pub(super) async fn manifest(connection: &Arc<Connection>, wanted: &Manifest) -> Result<ByteStream> {
    bytes("describe a directory", connection, "/files/manifest", wanted).await
}

/// Packs chosen files; see [`crate::Guest::pack`].
pub(super) async fn pack(connection: &Arc<Connection>, wanted: &Pack) -> Result<ByteStream> {
    bytes("pack files", connection, "/files/pack", wanted).await
}

/// Sends a request, and returns the bytes of the answer as they come.
async fn bytes(
    action: &'static str,
    connection: &Arc<Connection>,
    path: &'static str,
    wanted: &impl Serialize,
) -> Result<ByteStream> {
    let permit = connection.read_permit(SHORT_WAIT).await?;
    let body: Bytes = serde_json::to_vec(wanted).map_err(|error| Error::failed(action, error))?.into();
    let message = request(action, Method::POST, path)?;
    let answer = async {
        let (answer, mut outgoing) = connection.begin(action, message).await?;
        outgoing.put(body, true)?;
        succeed(action, answer.await?).await
    };
    let incoming = within(action, SHORT_WAIT, answer).await?.into_body();
    Ok(passed_on(action, connection, incoming, permit))
}

/// Changes many files; see [`crate::Guest::amend`].
pub(super) async fn amend(connection: &Arc<Connection>, wanted: &Amend) -> Result<Amended> {
    const ACTION: &str = "change files";
    let answer = async {
        let mut lines = Lines::of(ACTION, connection, "/files/amend", wanted, AMENDED_BYTES_MAX).await?;
        lines.next().await?.ok_or_else(|| Error::failed(ACTION, "the agent's response was cut off"))
    };
    let line = within(ACTION, LONG_WAIT, answer).await?;
    let done: Amended = serde_json::from_slice(&line).map_err(|error| Error::failed(ACTION, error))?;
    if done.failures.len() > wanted.remove.len() + wanted.attributes.len() {
        return Err(Error::failed(ACTION, "the agent returned more than requested"));
    }
    Ok(done)
}
