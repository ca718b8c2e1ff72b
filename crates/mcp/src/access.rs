//! Sandboxes that a model may work in: those that were made here, unless the operator wants it otherwise.

use std::collections::HashSet;

use api::SpawnRequest;
use client::Client;
use parking_lot::Mutex;

use crate::failure::{Failure, Result};

/// Label of the sandboxes that are made here.
pub(crate) const LABEL: (&str, &str) = ("tidebox.mcp", "true");
/// Sandboxes that are known to be made here; then they are asked for again.
const KNOWN_MAX: usize = 10_000;

/// Marks a sandbox as made here.
pub(crate) fn label(request: &mut SpawnRequest) {
    let (name, value) = LABEL;
    request.metadata.get_or_insert_default().0.insert(name.to_owned(), value.to_owned());
}

/// Sandboxes that a model may work in.
#[derive(Debug)]
pub(crate) struct Access {
    /// True for every sandbox that the key of a call opens.
    pub(crate) is_to_all: bool,
    /// Sandboxes that were made here.
    known: Mutex<HashSet<String>>,
}

impl Access {
    pub(crate) fn new(is_to_all: bool) -> Self {
        Self { is_to_all, known: Mutex::default() }
    }

    /// Checks that calls may work in a sandbox.
    pub(crate) async fn check(&self, client: &Client, id: &str) -> Result<()> {
        if self.is_to_all || self.known.lock().contains(id) {
            return Ok(());
        }
        let sandbox = client.sandbox(id).await.map_err(|error| match error.is_code("not_found") {
            true => Failure::new(format!("there is no sandbox {id}: list_sandboxes shows those that run")),
            false => error.into(),
        })?;
        if !sandbox.metadata.0.contains_key(LABEL.0) {
            return Err(Failure::new(format!(
                "sandbox {id} was not made through this server, which works in no other unless it is started with \
                 `--all-sandboxes`: use create_sandbox"
            )));
        }
        self.remember(id);
        Ok(())
    }

    /// Notes that a sandbox was made here.
    pub(crate) fn remember(&self, id: &str) {
        let mut known = self.known.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(id.to_owned());
    }
}
