//! Kernel resources that all boxes of this host share and that no limit of a box covers. Ends
//! the box that takes most before others are refused.

mod load;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use domain::SandboxId;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use providers::{Chain, KernelShare, Provider};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::boxes::of_provider;
use super::job::{interval, report};
use crate::control::{Control, Result};

/// Interval of the checks, which read some small files. A box of one processor takes some 50 MiB
/// of connections or 100,000 files between two checks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Pause of the checks of a resource of which no box had much: other programs of the host use
/// it.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Time that a box's resources may take to show as free after the end of its removal.
const SETTLING: Duration = Duration::from_millis(500);
/// Deadline for the removal of a box, after which another box may be ended.
const REMOVAL_MAX: Duration = Duration::from_secs(30);
/// Maximum number of boxes of one provider that are measured at once.
const AT_ONCE: usize = 4;
/// Deadline for measuring the boxes of one provider; boxes not measured by then are skipped.
const MEASURING_MAX: Duration = Duration::from_secs(5);

/// Watches the kernel's resources.
pub(super) async fn watch(control: Arc<Control>) {
    let mut guard = Guard::default();
    let mut look = interval(LOOK_EVERY);
    loop {
        look.tick().await;
        for share in load::short() {
            report("kernel", guard.look(&control, share).await.map(drop));
        }
    }
}

/// Returns the minimum usage of a box that is ended.
fn hog_min(share: KernelShare) -> u64 {
    match share {
        KernelShare::TcpBytes => 4 * 1024 * 1024,
        KernelShare::TcpOrphans => 500,
        KernelShare::OpenFiles => 20_000,
        KernelShare::Watches => 5_000,
    }
}

/// Returns the reason of a box's end for its caller.
fn reason(share: KernelShare, amount: u64) -> String {
    match share {
        KernelShare::TcpBytes => format!(
            "it held {} MiB in connections that it did not accept when the host was running out of memory for TCP",
            amount >> 20
        ),
        KernelShare::TcpOrphans => format!(
            "it left {amount} closed connections with data that the other end did not read when the host had too many"
        ),
        KernelShare::OpenFiles => format!("it had {amount} open files when the host was running out of them"),
        KernelShare::Watches => {
            format!("it watched at least {amount} files with epoll when its user on the host could watch no more")
        }
    }
}

/// Boxes that are being ended, one for each resource.
#[derive(Debug, Default)]
struct Guard {
    removals: JoinSet<KernelShare>,
    /// Resources that the removals under way will free.
    coming: HashSet<KernelShare>,
    /// Resources of which no box had much, with the end of the pause of their checks.
    passed_over: HashMap<KernelShare, Instant>,
}

impl Guard {
    /// Ends the box that takes most of a scarce resource, one box at a time. Returns the box.
    async fn look(&mut self, control: &Arc<Control>, share: KernelShare) -> Result<Option<SandboxId>> {
        while let Some(ended) = self.removals.try_join_next() {
            self.has_ended(ended.ok());
        }
        if self.coming.contains(&share) || self.passed_over.get(&share).is_some_and(|until| Instant::now() < *until) {
            return Ok(None);
        }
        let largest = largest(control, share).await?;
        let Some((amount, id)) = largest.filter(|(amount, _)| *amount >= hog_min(share)) else {
            self.passed_over.insert(share, Instant::now() + LOOK_AGAIN);
            return Ok(None);
        };
        tracing::warn!(%id, ?share, amount, "ending the sandbox that uses the most of a shared kernel resource");
        let Some(failed) = control.fail(&id, &reason(share, amount)).await? else { return Ok(None) };
        control.publish_action("kernel_freed", Some(&id), json!({"share": name(share), "amount": amount}));
        let control = Arc::clone(control);
        self.coming.insert(share);
        self.removals.spawn(async move {
            match tokio::time::timeout(REMOVAL_MAX, control.clear_away(&failed)).await {
                Ok(Ok(())) => tokio::time::sleep(SETTLING).await,
                // The inventory removes it later: a box without an active sandbox.
                Ok(Err(error)) => tracing::warn!(id = %failed.id, error = %Chain(&error), "cannot end the box; \
                    retrying later"),
                Err(_) => tracing::warn!(id = %failed.id, "removing the box takes a long time"),
            }
            share
        });
        Ok(Some(id))
    }

    /// Records the end of a removal. After a panic, the state of all removals is unknown.
    fn has_ended(&mut self, share: Option<KernelShare>) {
        match share {
            Some(share) => drop(self.coming.remove(&share)),
            None => self.coming.clear(),
        }
    }
}

/// Returns the name of a share in events.
fn name(share: KernelShare) -> &'static str {
    match share {
        KernelShare::TcpBytes => "tcp_memory",
        KernelShare::TcpOrphans => "tcp_orphans",
        KernelShare::OpenFiles => "open_files",
        KernelShare::Watches => "epoll_watches",
    }
}

/// Returns the box of this server that takes most of a resource.
async fn largest(control: &Control, share: KernelShare) -> Result<Option<(u64, SandboxId)>> {
    let mut measured = Vec::new();
    for entry in control.registry().entries() {
        let boxes = of_provider(control, entry.provider.name()).await?;
        measured.push(measure(entry.provider.as_ref(), boxes, share));
    }
    let measured = join_all(measured).await.into_iter().flatten();
    Ok(measured.max_by_key(|(amount, _)| *amount))
}

async fn measure(provider: &dyn Provider, boxes: Vec<SandboxId>, share: KernelShare) -> Vec<(u64, SandboxId)> {
    let amounts = stream::iter(boxes).map(|id| async move { (provider.kernel_usage(&id, share).await, id) });
    let amounts = amounts.buffer_unordered(AT_ONCE).take_until(tokio::time::sleep(MEASURING_MAX));
    amounts.filter_map(|(amount, id)| std::future::ready(amount.map(|amount| (amount, id)))).collect().await
}

#[cfg(test)]
mod test {
    use domain::{PrepareCommand, SpawnOptions, State};

    use super::*;
    use crate::control::Conflict;
    use crate::control::Error;
    use crate::control::Pause;
    use crate::control::SpawnRequest;
    use crate::test::harness::{TestApp, TestProvider};

    const SHARE: KernelShare = KernelShare::OpenFiles;

    async fn app(shares: &[u64]) -> (TestApp, Vec<SandboxId>) {
        let (app, _, made) = with_provider(shares).await;
        (app, made)
    }

    async fn with_provider(shares: &[u64]) -> (TestApp, Arc<TestProvider>, Vec<SandboxId>) {
        let provider = TestProvider::new("heavy");
        provider.allow_pauses();
        let app = TestApp::builder().provider(provider.clone()).start().await;
        let mut made = Vec::new();
        for share in shares {
            let id = app.control.spawn(SpawnRequest::default()).await.unwrap().sandbox.id;
            provider.set_kernel_usage(&id, *share);
            made.push(id);
        }
        (app, provider, made)
    }

    #[tokio::test]
    async fn the_box_that_takes_most_is_ended_and_its_neighbours_are_not() {
        let (app, made) = app(&[100, 90_000, 30_000]).await;
        let mut guard = Guard::default();
        assert_eq!(guard.look(&app.control, SHARE).await.unwrap(), Some(made[1].clone()));
        assert_eq!(guard.look(&app.control, SHARE).await.unwrap(), None, "what it held is not free yet");
        let ended = guard.removals.join_next().await.unwrap().ok();
        guard.has_ended(ended);
        assert_eq!(app.state(&made[1]).await, State::Failed);
        assert_eq!(guard.look(&app.control, SHARE).await.unwrap(), Some(made[2].clone()), "it was not enough");
        assert_eq!(app.state(&made[0]).await, State::Running);
    }

    #[tokio::test]
    async fn a_box_that_is_paused_is_ended_like_any_other() {
        let (app, made) = app(&[30_000, 40_000]).await;
        app.control.pause(made[1].as_str(), Pause::default()).await.unwrap();
        let mut guard = Guard::default();
        assert_eq!(guard.look(&app.control, SHARE).await.unwrap(), Some(made[1].clone()));
        assert_eq!(app.state(&made[1]).await, State::Failed);
    }

    #[tokio::test]
    async fn a_box_that_is_being_made_is_ended_for_what_its_commands_take_and_its_caller_gets_the_reason() {
        let (app, provider, _) = with_provider(&[30_000]).await;
        let command = PrepareCommand { command: "sleep 600".to_owned(), ..PrepareCommand::default() };
        let options = SpawnOptions { prepare: Some(vec![command]), ..SpawnOptions::default() };
        let spawn = app.control.spawn(SpawnRequest { options, ..SpawnRequest::default() });
        let end = async {
            let id = loop {
                let made = app.control.store().in_state(State::Creating, None, 1).await.unwrap().sandboxes;
                let is_there = async |id: &SandboxId| provider.mock.guest(id).await.is_ok();
                match made.first() {
                    Some(row) if is_there(&row.id).await => break row.id.clone(),
                    _ => tokio::task::yield_now().await,
                }
            };
            provider.set_kernel_usage(&id, 90_000);
            assert_eq!(Guard::default().look(&app.control, SHARE).await.unwrap(), Some(id));
        };
        let (spawned, ()) = tokio::join!(spawn, end);
        let refused = spawned.unwrap_err();
        assert!(
            matches!(&refused, Error::Conflict(Conflict::EndedWhileCreated { reason }) if reason.contains("it had 90000 open files")),
            "{refused:?}"
        );
    }

    #[tokio::test]
    async fn no_box_is_ended_for_what_other_programs_take() {
        let (app, made) = app(&[100, 200]).await;
        let mut guard = Guard::default();
        for _ in 0..2 {
            assert_eq!(guard.look(&app.control, SHARE).await.unwrap(), None);
        }
        for id in made {
            assert_eq!(app.state(&id).await, State::Running);
        }
    }
}
