//! Sandbox of a session: made when a call first needs it, removed at the end.

use std::time::{Duration, Instant};

use api::SpawnRequest;
use client::Client;
use tokio::sync::Mutex;

use crate::failure::{Failure, Result};

/// Time between two extensions of its lifetime, and thus the least lifetime that it has left after a call.
const EXTEND_EVERY: Duration = Duration::from_secs(300);

/// Sandbox of a session.
#[derive(Debug)]
pub(crate) struct Home {
    request: SpawnRequest,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    running: Option<Running>,
    /// True after the end of the session: a call that is still at work makes no sandbox that nobody would remove.
    has_ended: bool,
}

#[derive(Debug)]
struct Running {
    id: String,
    extended: Instant,
}

/// Sandbox for a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) id: String,
    /// True if the one of earlier calls has ended.
    pub(crate) is_replacement: bool,
}

impl Home {
    pub(crate) fn new(request: SpawnRequest) -> Self {
        Self { request, state: Mutex::new(State { running: None, has_ended: false }) }
    }

    /// Returns the sandbox, and makes it first if there is none.
    pub(crate) async fn sandbox(&self, client: &Client) -> Result<Found> {
        // Held across the spawn, so that two calls at once make one.
        let mut state = self.state.lock().await;
        if state.has_ended {
            return Err(Failure::new("the session has ended"));
        }
        let mut is_replacement = false;
        if let Some(known) = state.running.as_mut() {
            match check(client, &self.request, known).await {
                Ok(()) => return Ok(Found { id: known.id.clone(), is_replacement }),
                Err(error) if error.is_code("not_found") => is_replacement = true,
                Err(error) => return Err(error.into()),
            }
        }
        let id = client.spawn(&self.request).await?.id;
        state.running = Some(Running { id: id.clone(), extended: Instant::now() });
        Ok(Found { id, is_replacement })
    }

    /// Removes the sandbox.
    pub(crate) async fn end(&self, client: &Client) -> client::Result<()> {
        let mut state = self.state.lock().await;
        state.has_ended = true;
        match state.running.take() {
            Some(Running { id, .. }) => match client.destroy(&id).await {
                Err(error) if error.is_code("not_found") => Ok(()),
                ended => ended.map(drop),
            },
            None => Ok(()),
        }
    }
}

/// Checks that a sandbox runs, and now and then sets its lifetime anew.
async fn check(client: &Client, request: &SpawnRequest, running: &mut Running) -> client::Result<()> {
    let ttl = request.ttl.as_deref().filter(|_| running.extended.elapsed() >= EXTEND_EVERY);
    match ttl {
        Some(ttl) => {
            client.extend(&running.id, ttl).await?;
            running.extended = Instant::now();
        }
        None => drop(client.sandbox(&running.id).await?),
    }
    Ok(())
}
