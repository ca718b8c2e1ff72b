//! Making of the box of an admitted sandbox.

use std::sync::Arc;
use std::time::Instant;

use domain::{PrepareCommand, SandboxEgress, SandboxId, State};
use providers::{Chain, Phase, Provider, Spec, Started};
use store::workers::PlacementFilter;
use store::{Applied, Change, NewSandbox, Sandbox};

use super::prepare::prepare;
use super::{Claim, Plan, Spawned};
use crate::control::conflict::Conflict;
use crate::control::error::{Error, Result};
use crate::control::guest::access::{no_answer, runtime_error};
use crate::control::service::Control;
use crate::control::warm::snapshots::WarmSnapshot;
use crate::control::workers::box_host::BoxHost;

/// Sandbox that was admitted, and what the warm pool gives it.
pub(super) struct Start {
    pub(super) sandbox: Sandbox,
    /// Box of the warm pool that the sandbox was given.
    pub(super) claim: Option<Claim>,
    /// Snapshot of the warm pool that its box can be made from.
    pub(super) warm_snapshot: Option<Arc<WarmSnapshot>>,
}

impl Control {
    /// Starts the box, unless the sandbox has been given one, and stores the outcome.
    pub(super) async fn make(self: &Arc<Self>, plan: Plan, start: Start, mut phases: Vec<Phase>) -> Result<Spawned> {
        let Plan { new, spec, prepare: commands, generation, .. } = plan;
        let NewSandbox { egress, placement, .. } = new;
        let Start { sandbox, claim, warm_snapshot } = start;
        let (id, is_running) = (sandbox.id.clone(), sandbox.state == State::Running);
        let started = async {
            let claimed = self.claimed(&sandbox, claim, &mut phases).await?;
            if let Some(generation) = generation {
                let written = Instant::now();
                self.take_up(&id, generation).await?;
                more_of_the_store(&mut phases, written);
            }
            let (sandbox, provider, mut started, commands) = match claimed {
                Some(provider) => (sandbox, provider, Started { phases: Vec::new() }, &commands[..0]),
                None => {
                    let spec = Spec { trust: self.authority_certificate(&sandbox, &egress).await?, ..spec };
                    let of_snapshot = match &warm_snapshot {
                        Some(snapshot) => self.start_of_warm_snapshot(snapshot, &sandbox, &spec).await,
                        None => None,
                    };
                    match of_snapshot.zip(warm_snapshot.as_ref()) {
                        Some((started, snapshot)) => {
                            (sandbox, Arc::clone(&snapshot.provider), started, snapshot.left(&commands))
                        }
                        None => {
                            let (sandbox, provider, started) = self.start(sandbox, &spec, placement).await?;
                            (sandbox, provider, started, &commands[..])
                        }
                    }
                }
            };
            let began = Instant::now();
            if let Err(error) = self.finish_box(&sandbox, &egress, commands, provider.as_ref()).await {
                // Without its connections and programs the box is not what was asked for.
                let _ = provider.stop(&sandbox.id).await;
                return Err(error);
            }
            if !commands.is_empty() {
                started.phases.push(Phase { name: "prepare", took: began.elapsed() });
            }
            Ok((sandbox, provider, started))
        };
        let (sandbox, provider, started) = match started.await {
            Ok(made) => made,
            Err(error) => {
                let broke = Change::Broke { error: error.to_string(), at: self.now() };
                return Err(match self.apply(&id, broke).await? {
                    Applied::Refused(_) => self.ended_meanwhile(&id).await?.unwrap_or(error),
                    Applied::Done { .. } | Applied::Missing => error,
                });
            }
        };
        phases.extend(started.phases);
        if is_running {
            self.publish_running(&sandbox);
            self.record_phases(&sandbox.provider, &phases);
            return Ok(Spawned { sandbox, phases });
        }
        let written = Instant::now();
        match self.apply(&id, Change::Started).await {
            Ok(Applied::Done { sandbox, .. }) => {
                more_of_the_store(&mut phases, written);
                self.record_phases(&sandbox.provider, &phases);
                Ok(Spawned { sandbox: *sandbox, phases })
            }
            // Deleted before the box existed: the removal of the row may have found no box yet.
            Ok(Applied::Refused(_) | Applied::Missing) => {
                if let Err(error) = provider.stop(&id).await {
                    tracing::warn!(%id, error = %Chain(&error), "cannot remove an orphan; retrying later");
                }
                let ended = self.ended_meanwhile(&id).await?;
                Err(ended.unwrap_or_else(|| Conflict::DestroyedWhileCreated { sandbox: id.clone() }.into()))
            }
            // The reconciler finds the row or the box once the store is back.
            Err(error) => Err(error),
        }
    }

    /// Returns the error of a sandbox that this server has ended while it was being created, as for what it
    /// took of the disk.
    async fn ended_meanwhile(&self, id: &SandboxId) -> Result<Option<Error>> {
        let failed = self.store.sandbox(id).await?.filter(|row| row.state == State::Failed);
        let reason = failed.and_then(|row| row.error);
        Ok(reason.map(|reason| Conflict::EndedWhileCreated { reason }.into()))
    }

    /// Serves the connections of a box that was started, and runs the commands that prepare it.
    pub(in crate::control) async fn finish_box(
        &self,
        sandbox: &Sandbox,
        egress: &SandboxEgress,
        commands: &[PrepareCommand],
        provider: &dyn Provider,
    ) -> Result<()> {
        self.begin_egress(sandbox, egress, provider).await?;
        if commands.is_empty() {
            return Ok(());
        }
        let limits = self.limits_of(sandbox.owner.as_ref()).await?;
        let failed = |error| runtime_error(sandbox, error);
        let guest = provider.guest(&sandbox.id).await.map_err(failed)?;
        prepare(&guest, commands, &limits, failed).await
    }

    /// Starts the box on the worker that the sandbox was placed on. If the worker cannot be
    /// reached, it certainly did not receive the request, and the sandbox is placed on another.
    async fn start(
        &self,
        mut sandbox: Sandbox,
        spec: &Spec,
        mut placement: PlacementFilter,
    ) -> Result<(Sandbox, Arc<dyn Provider>, Started)> {
        loop {
            let provider = self.runtime_of(&sandbox).await?;
            let awaited = self.await_image(provider.as_ref(), &sandbox).await;
            let _room = match self.host_of(&sandbox) {
                BoxHost::ThisServer | BoxHost::Service => self.room_for_copy(provider.as_ref(), spec).await?,
                BoxHost::Worker(_) => None,
            };
            let started = tokio::select! {
                started = provider.start(&sandbox.id, spec) => started,
                () = self.registry.remote_workers().falls_silent(&sandbox.worker) => {
                    let silent = providers::Error::Unavailable("it did not answer a probe".to_owned());
                    return Err(no_answer(&sandbox, &silent));
                }
            };
            if let Some(awaited) = awaited {
                self.image_came(provider.as_ref(), awaited, started.as_ref().err()).await;
            }
            let error = match started {
                Ok(started) => return Ok((sandbox, provider, started)),
                Err(error) => error,
            };
            let is_unasked = matches!(error, providers::Error::NotAsked(_));
            let from = match self.host_of(&sandbox) {
                BoxHost::Worker(from) if is_unasked => from,
                BoxHost::ThisServer | BoxHost::Service | BoxHost::Worker(_) => {
                    return Err(runtime_error(&sandbox, error));
                }
            };
            tracing::warn!(
                id = %sandbox.id,
                worker = %from,
                error = %Chain(&error),
                "worker unreachable; not placing sandboxes on it until its next heartbeat"
            );
            // Each worker is tried once, even if it sends a heartbeat meanwhile.
            placement.reachable = placement.reachable.iter().filter(|id| *id != from).cloned().collect();
            match self.store.place_anew(&sandbox.id, from, self.now(), &placement).await? {
                Some(elsewhere) => sandbox = elsewhere,
                None => return Err(runtime_error(&sandbox, error)),
            }
        }
    }
}

/// Adds the time since `written` to the `store` phase.
fn more_of_the_store(phases: &mut [Phase], written: Instant) {
    if let Some(store) = phases.iter_mut().find(|phase| phase.name == "store") {
        store.took += written.elapsed();
    }
}
