//! Connections that processes of a box ask for.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use guest_protocol::{
    EGRESS_CONNECTIONS_MAX, EGRESS_HOST_BYTES_MAX, EGRESS_ROW_BYTES_MAX, EgressAccept, EgressRefuse, EgressRow,
};
use tokio::sync::OwnedSemaphorePermit;

use super::connection::Connection;
use super::lines::Lines;
use super::link;
use super::numbers::{Number, Numbers};
use super::request::SHORT_WAIT;
use crate::{ByteStream, EgressAnswer, EgressReason, EgressRequest, EgressRequests, Error, Result};

const RECEIVE: &str = "receive the connections that a box asks for";
const ACCEPT: &str = "make a connection out of a box";
const REFUSE: &str = "refuse a connection out of a box";
/// Message to a process whose connection was given up.
const GIVEN_UP: &str = "the service did not make the connection; try again";

/// Begins to receive.
pub(super) async fn receive(connection: &Arc<Connection>) -> Result<EgressRequests> {
    let lines = Lines::of(RECEIVE, connection, "/egress", &(), EGRESS_ROW_BYTES_MAX).await?;
    let refuser = Arc::clone(connection);
    let numbers = Numbers::new(EGRESS_CONNECTIONS_MAX, move |id| {
        let connection = Arc::clone(&refuser);
        // Without it the process waits for as long as it would without a server.
        async move { drop(refuse(&connection, id, EgressReason::Unreachable, GIVEN_UP).await) }
    });
    let rows = Rows { lines, numbers, connection: Arc::clone(connection) };
    let requests = stream::unfold(Some(rows), |rows| async move {
        let mut rows = rows?;
        match rows.next().await {
            Ok(Some(request)) => Some((Ok(request), Some(rows))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(requests.boxed())
}

async fn refuse(connection: &Connection, id: u64, reason: EgressReason, message: &str) -> Result<()> {
    let request = EgressRefuse { id, reason, message: message.to_owned() };
    connection.order(REFUSE, "/egress/refuse", &request, SHORT_WAIT).await
}

/// Connections that an agent lists.
struct Rows {
    lines: Lines,
    numbers: Numbers,
    connection: Arc<Connection>,
}

impl Rows {
    /// Returns the next connection; `None` if there is another receiver.
    async fn next(&mut self) -> Result<Option<EgressRequest>> {
        // Each connection holds one until it ends, so an agent that lists more is not read on.
        let permit = self.connection.egress_permit().await?;
        let Some(line) = self.lines.next().await? else { return Ok(None) };
        let EgressRow { id, host, port } =
            serde_json::from_slice(&line).map_err(|error| Error::failed(RECEIVE, error))?;
        if host.is_empty() || host.len() > EGRESS_HOST_BYTES_MAX || port == 0 {
            return Err(Error::failed(RECEIVE, "the agent listed an invalid connection"));
        }
        let number = self.numbers.take(id);
        let number = number.ok_or_else(|| Error::failed(RECEIVE, "the agent listed a connection twice"))?;
        let answer = Box::new(Answer { number, permit, connection: Arc::clone(&self.connection) });
        Ok(Some(EgressRequest { host, port, answer }))
    }
}

/// Way to answer a process.
struct Answer {
    number: Number,
    permit: OwnedSemaphorePermit,
    connection: Arc<Connection>,
}

#[async_trait]
impl EgressAnswer for Answer {
    async fn accept(self: Box<Self>, input: ByteStream) -> Result<ByteStream> {
        let Answer { number, permit, connection } = *self;
        let accept = EgressAccept { id: number.answered() };
        link::open(ACCEPT, &connection, "/egress/accept", &accept, permit, input).await
    }

    async fn refuse(self: Box<Self>, reason: EgressReason, message: &str) -> Result<()> {
        let Answer { number, permit: _permit, connection } = *self;
        refuse(&connection, number.answered(), reason, message).await
    }
}
