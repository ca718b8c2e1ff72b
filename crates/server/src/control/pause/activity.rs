//! Requests that use sandboxes now, and locks for their pauses.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use domain::SandboxId;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;

use crate::control::keyed_lock::KeyedLock;
use crate::operation_metrics::Operation;

/// Guards of pauses: who uses a sandbox, and whose turn it is to change it.
#[derive(Debug, Default)]
pub(in crate::control) struct Pauses {
    /// Requests that use sandboxes.
    pub(in crate::control) in_use: InUse,
    /// Locks to pause and resume sandboxes, to take their snapshots, and to set deadlines late.
    pub(in crate::control) turns: KeyedLock,
    /// Locks to set the ends of lifetimes, of a row together with the deadline of its box. They are held briefly; who
    /// needs the turn as well takes it before.
    pub(in crate::control) lifetimes: KeyedLock,
}

/// Requests under way, by the id of their sandbox, and when the last one ended.
#[derive(Debug, Default)]
pub(in crate::control) struct InUse {
    uses: Arc<Mutex<Uses>>,
}

#[derive(Debug, Default)]
struct Uses {
    now: HashMap<String, Vec<Operation>>,
    /// Time of the last use of each sandbox that is watched.
    last: HashMap<String, Instant>,
}

impl Uses {
    fn touch(&mut self, id: &str) {
        if let Some(last) = self.last.get_mut(id) {
            *last = Instant::now();
        }
    }
}

/// A request that uses a sandbox, until it is dropped.
#[derive(Debug)]
pub(in crate::control) struct Using {
    uses: Arc<Mutex<Uses>>,
    id: String,
    operation: Operation,
}

impl InUse {
    /// Begins a use. It has to begin before the state of the sandbox is read: a pause that is stored
    /// later sees it, and one that was stored before is read.
    pub(in crate::control) fn begin(&self, id: &str, operation: Operation) -> Using {
        let mut uses = self.uses.lock();
        uses.now.entry(id.to_owned()).or_default().push(operation);
        Using { uses: Arc::clone(&self.uses), id: id.to_owned(), operation }
    }

    /// Remembers the last use of these sandboxes, and of no others. One that is new counts as used now.
    pub(in crate::control) fn watch_only<'a>(&self, ids: impl Iterator<Item = &'a str>) {
        let mut uses = self.uses.lock();
        let now = Instant::now();
        let watched = ids.map(|id| (id.to_owned(), uses.last.get(id).copied().unwrap_or(now))).collect();
        uses.last = watched;
    }

    /// Notes a use that is no request.
    pub(in crate::control) fn used(&self, id: &SandboxId) {
        self.uses.lock().touch(id.as_str());
    }

    /// Returns the time of the last use of a sandbox that is watched; `None` while it is used.
    pub(in crate::control) fn idle_since(&self, id: &SandboxId) -> Option<Instant> {
        let uses = self.uses.lock();
        if uses.now.contains_key(id.as_str()) { None } else { uses.last.get(id.as_str()).copied() }
    }

    /// Returns the names of the operations that use a sandbox, each once.
    pub(in crate::control) fn of(&self, id: &SandboxId) -> Vec<&'static str> {
        let uses = self.uses.lock();
        let mut names: Vec<&str> =
            uses.now.get(id.as_str()).into_iter().flatten().map(|operation| operation.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl Using {
    /// Has the use last as long as the stream.
    pub(in crate::control) fn until_the_end<T: 'static>(self, stream: BoxStream<'static, T>) -> BoxStream<'static, T> {
        let passed_on = stream.map(move |item| {
            let _ = &self;
            item
        });
        passed_on.boxed()
    }
}

impl Drop for Using {
    fn drop(&mut self) {
        let mut uses = self.uses.lock();
        uses.touch(&self.id);
        let Some(of_one) = uses.now.get_mut(&self.id) else { return };
        if let Some(at) = of_one.iter().position(|operation| *operation == self.operation) {
            of_one.swap_remove(at);
        }
        if of_one.is_empty() {
            uses.now.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod test {
    use futures_util::stream;

    use super::*;

    #[test]
    fn a_use_lasts_until_its_stream_is_dropped() {
        let (in_use, id) = (InUse::default(), SandboxId::from_entropy([1; 10]));
        let first = in_use.begin(id.as_str(), Operation::FileRead);
        let second = in_use.begin(id.as_str(), Operation::Exec).until_the_end(stream::iter([1, 2]).boxed());
        let third = in_use.begin(id.as_str(), Operation::Exec);
        assert_eq!(in_use.of(&id), ["exec", "file_read"]);
        drop((first, third));
        assert_eq!(in_use.of(&id), ["exec"]);
        drop(second);
        assert!(in_use.of(&id).is_empty() && in_use.uses.lock().now.is_empty());
    }

    #[test]
    fn the_last_use_of_what_is_watched_is_known_and_of_nothing_else() {
        let (in_use, id, other) =
            (InUse::default(), SandboxId::from_entropy([1; 10]), SandboxId::from_entropy([2; 10]));
        drop(in_use.begin(id.as_str(), Operation::Exec));
        assert_eq!(in_use.idle_since(&id), None);
        in_use.watch_only([id.as_str()].into_iter());
        let first = in_use.idle_since(&id).unwrap();
        let using = in_use.begin(id.as_str(), Operation::Exec);
        assert_eq!(in_use.idle_since(&id), None, "it is used");
        drop(using);
        let second = in_use.idle_since(&id).unwrap();
        assert!(second >= first);
        in_use.watch_only([id.as_str()].into_iter());
        assert_eq!(in_use.idle_since(&id), Some(second), "another look is no use");
        in_use.watch_only([other.as_str()].into_iter());
        assert_eq!(in_use.idle_since(&id), None);
    }
}
