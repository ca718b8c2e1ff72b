//! Taking and replacing of the snapshots of the warm pool, and the start of boxes that are made of them.

use std::sync::Arc;
use std::time::Instant;

use domain::{PrepareCommand, SnapshotId};
use providers::{Chain, Provider, Spec, Started};

use super::pool::Kind;
use super::snapshots::WarmSnapshot;
use crate::control::error::{Error, Result};
use crate::control::guest::access::runtime_error;
use crate::control::service::Control;
use crate::control::snapshots::{SNAPSHOT_WAIT, snapshots_of};
use crate::control::workers::box_host::BoxHost;
use crate::control::workers::inventory::within;
use store::Sandbox;

impl Control {
    /// Returns the snapshots of the warm pool.
    pub fn warm_snapshots(&self) -> Vec<Arc<WarmSnapshot>> {
        self.warm.snapshots.all()
    }

    /// Removes the snapshot of an entry that is outdated, and returns after how many commands of the next box
    /// another is to be taken; `None` if it has one. One is replaced at half of `max_age`, so that boxes which
    /// are made of it are replaced in time as well, and there is always another to make them of.
    ///
    /// # Errors
    /// [`Error::NotSupported`] and [`Error::Invalid`] where none can be taken.
    pub(in crate::control) fn renew_warm_snapshot(
        &self,
        entry: usize,
        kind: &Kind,
        digest: Option<&str>,
        provider: &dyn Provider,
    ) -> Result<Option<usize>> {
        let wish = self.warm.pool.wish(entry);
        let now = Instant::now();
        if let Some(outdated) = self.warm.snapshots.outdated(entry, kind, digest, wish.max_age, now) {
            self.discard(outdated);
        }
        if !wish.snapshot || kind.prepare.is_empty() {
            return Ok(None);
        }
        let before = commands_before(&kind.prepare, snapshots_of(provider)?.has_memory())?;
        let kept = self.warm.snapshots.of_entry(entry);
        Ok(kept.is_none_or(|kept| now.duration_since(kept.since) >= wish.max_age / 2).then_some(before))
    }

    /// Takes the snapshot of an entry of a box in which the first `done` commands have run.
    pub(in crate::control) async fn take_warm_snapshot(
        &self,
        entry: usize,
        kind: &Kind,
        digest: Option<String>,
        sandbox: &Sandbox,
        done: usize,
        provider: &Arc<dyn Provider>,
    ) -> Result<()> {
        let snapshots = snapshots_of(provider.as_ref())?;
        let id = SnapshotId::from_entropy(rand::random());
        let in_hand = self.snapshotting.in_progress.begin(&id);
        let _place = self.snapshotting.in_progress.place().await;
        let since = Instant::now();
        let taken = match within(SNAPSHOT_WAIT, snapshots.take(&sandbox.id, &id)).await {
            Ok(taken) => taken,
            Err(error) => {
                remove(provider.as_ref(), &id).await;
                return Err(runtime_error(sandbox, error));
            }
        };
        let replaced = self.warm.snapshots.keep(WarmSnapshot {
            id,
            provider: Arc::clone(provider),
            name: self.warm.pool.wish(entry).name.clone(),
            entry,
            kind: kind.clone(),
            digest,
            done,
            since,
            created_at: self.now(),
            taken,
            _in_hand: in_hand,
        });
        if let Some(replaced) = replaced {
            self.discard(replaced);
        }
        Ok(())
    }

    /// Starts the box of a sandbox of a snapshot of the warm pool. `None` if that fails: the snapshot is given
    /// up, and the box has to be made as others are.
    pub(in crate::control) async fn start_of_warm_snapshot(
        &self,
        snapshot: &WarmSnapshot,
        sandbox: &Sandbox,
        spec: &Spec,
    ) -> Option<Started> {
        if matches!(self.host_of(sandbox), BoxHost::Worker(_)) {
            return None;
        }
        let spec = Spec { snapshot: Some(snapshot.id.clone()), ..spec.clone() };
        match snapshot.provider.start(&sandbox.id, &spec).await {
            Ok(started) => {
                self.warm.pool.made_of_snapshot(snapshot.entry);
                Some(started)
            }
            Err(error) => {
                // One that was replaced meanwhile is no fault.
                if let Some(given_up) = self.warm.snapshots.give_up(snapshot) {
                    let entry = &snapshot.name;
                    tracing::warn!(entry, error = %Chain(&error), "cannot make a box from a snapshot; replacing it");
                    self.discard(given_up);
                }
                None
            }
        }
    }

    /// Removes the snapshot of an entry.
    pub(in crate::control) fn discard_warm_snapshot(&self, entry: usize) {
        self.warm.snapshots.take(entry).into_iter().for_each(|snapshot| self.discard(snapshot));
    }

    fn discard(&self, snapshot: Arc<WarmSnapshot>) {
        self.tasks.spawn(async move { remove(snapshot.provider.as_ref(), &snapshot.id).await });
    }

    /// Removes all snapshots of the warm pool: the next start cannot know them.
    pub(in crate::control) async fn remove_warm_snapshots(&self) {
        for snapshot in (0..self.warm.pool.len()).filter_map(|entry| self.warm.snapshots.take(entry)) {
            remove(snapshot.provider.as_ref(), &snapshot.id).await;
        }
    }
}

/// Removes a snapshot that is not wanted any more. If that fails, the comparison of the provider's snapshots
/// with the rows does.
async fn remove(provider: &dyn Provider, id: &SnapshotId) {
    let Some(snapshots) = provider.snapshots() else { return };
    if let Err(error) = within(SNAPSHOT_WAIT, snapshots.remove(id)).await {
        tracing::warn!(%id, error = %Chain(&error), "cannot remove a snapshot of the warm pool; retrying later");
    }
}

/// Returns the number of commands that run before a snapshot is taken: without the memory, those in the
/// background have to run in each box.
///
/// # Errors
/// [`Error::Invalid`] if another command comes after one of these.
fn commands_before(commands: &[PrepareCommand], has_memory: bool) -> Result<usize> {
    let Some(first) = commands.iter().position(|command| command.leaves_process() && !has_memory) else {
        return Ok(commands.len());
    };
    match commands[first..].iter().position(|command| !command.leaves_process()) {
        None => Ok(first),
        Some(later) => Err(Error::Invalid(format!(
            "a snapshot has no processes here, so background commands of `prepare`, and code with a `language`, must come last: command {} follows \
             one; change their order, or set `snapshot` of the entry to false",
            first + later + 1
        ))),
    }
}

#[cfg(test)]
mod test {
    use std::time::Duration;

    use domain::SpawnOptions;

    use super::*;
    use crate::control::Policy;
    use crate::control::SpawnRequest;
    use crate::control::policy::WarmEntry;
    use crate::test::harness::{TestApp, TestProvider, policy};

    fn command(line: &str, background: bool) -> PrepareCommand {
        PrepareCommand { command: line.to_owned(), background, ..PrepareCommand::default() }
    }

    #[track_caller]
    fn check(backgrounds: &[bool], has_memory: bool, expected: std::result::Result<usize, &str>) {
        let commands: Vec<PrepareCommand> = backgrounds.iter().map(|background| command("true", *background)).collect();
        match (commands_before(&commands, has_memory), expected) {
            (Ok(count), Ok(expected)) => assert_eq!(count, expected),
            (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{error}"),
            (answer, expected) => panic!("{answer:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn commands_in_the_background_come_after_a_snapshot_that_has_no_memory() {
        check(&[false, false], false, Ok(2));
        check(&[false, true, true], false, Ok(1));
        check(&[true], false, Ok(0));
        check(&[false, true, false, false], false, Err("command 3 follows one"));
        check(&[false, true, false, true], true, Ok(4));
    }

    #[tokio::test]
    async fn where_the_memory_is_in_it_no_command_runs_again() {
        let provider = TestProvider::new("test");
        provider.keep_memory();
        let prepare = vec![command("sleep 600", true), command("echo a > /tmp/a", false)];
        let options = SpawnOptions { prepare: Some(prepare), ..SpawnOptions::default() };
        let (name, max_age) = ("a".to_owned(), Duration::from_secs(3600));
        let entry = WarmEntry { name, template: None, options: options.clone(), count: 1, max_age, snapshot: true };
        let policy = Policy { warm_pool: vec![entry], ..policy() };
        let app = TestApp::builder().provider(provider.clone()).policy(policy).start().await;
        app.control.keep_warm(0).await.unwrap();
        let mut programs = Vec::new();
        // One was ready; the other is made of the snapshot, which has no programs here.
        for _ in 0..2 {
            let request = SpawnRequest { options: options.clone(), ..SpawnRequest::default() };
            let spawned = app.control.spawn(request).await.unwrap();
            let guest = provider.mock.guest(&spawned.sandbox.id).await.unwrap();
            guest.stat("/tmp/a").await.unwrap();
            programs.push(guest.processes().await.unwrap().len());
        }
        assert_eq!(programs, [1, 0]);
    }
}
