//! Numbers of connections that an agent lists and that wait for an answer.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Numbers that wait for an answer.
type Open = Arc<Mutex<HashSet<u64>>>;

/// Numbers of one list.
pub(super) struct Numbers {
    open: Open,
    given_up: mpsc::Sender<u64>,
    /// Task that refuses what was given up.
    _refusing: JoinSet<()>,
}

impl Numbers {
    /// Begins a list of which at most `most` wait at once. Those that are dropped without an answer are
    /// refused by `refuse`.
    pub(super) fn new<F>(most: usize, refuse: impl Fn(u64) -> F + Send + 'static) -> Numbers
    where
        F: Future<Output = ()> + Send,
    {
        let (given_up, mut to_refuse) = mpsc::channel(most);
        let mut refusing = JoinSet::new();
        refusing.spawn(async move {
            while let Some(id) = to_refuse.recv().await {
                refuse(id).await;
            }
        });
        Numbers { open: Arc::default(), given_up, _refusing: refusing }
    }

    /// Takes a number that the agent lists; `None` if it waits already.
    pub(super) fn take(&self, id: u64) -> Option<Number> {
        let is_new = self.open.lock().insert(id);
        is_new.then(|| Number { id, open: Arc::clone(&self.open), given_up: Some(self.given_up.clone()) })
    }
}

/// Number of a connection that waits for an answer.
pub(super) struct Number {
    id: u64,
    open: Open,
    /// Taken once there is an answer.
    given_up: Option<mpsc::Sender<u64>>,
}

impl Number {
    /// Returns the number for its answer.
    pub(super) fn answered(mut self) -> u64 {
        self.given_up = None;
        self.id
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        self.open.lock().remove(&self.id);
        if let Some(given_up) = self.given_up.take() {
            // There is room for all that can be open.
            let _ = given_up.try_send(self.id);
        }
    }
}
