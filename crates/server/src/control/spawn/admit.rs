//! Admission of a planned sandbox, and the task that makes it.

use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::State;
use futures_util::FutureExt;
use futures_util::future::{Either, select};
use providers::Phase;
use serde_json::json;
use tokio::sync::oneshot;

use super::in_progress::InProgress;
use super::make::Start;
use super::{Claim, Plan, Spawned};
use crate::admission::{Granted, Refused};
use crate::control::error::Result;
use crate::control::policy::ORPHAN_GRACE;
use crate::control::service::Control;
use crate::control::unavailable::Unavailable;
use crate::control::warm::pool::{WarmBox, WarmCheck};
use crate::events::EventType;

impl Control {
    /// Admits and makes a sandbox. `phases` are those since `started` that are over.
    pub(super) async fn admit_and_make(
        self: &Arc<Self>,
        plan: Plan,
        started: Instant,
        mut phases: Vec<Phase>,
    ) -> Result<Spawned> {
        let (warm, warm_snapshot) = self.take_warm(&plan);
        let (in_progress, granted, claim) = self.admit(&plan, warm).await?;
        // No await from here until the task owns the sandbox. If the caller goes away, either
        // the task or the admission removes it.
        let Granted { sandbox, stored } = granted;
        self.publish(EventType::SandboxCreated, Some(&sandbox.id), json!({"provider": sandbox.provider}));
        let before: Duration = phases.iter().map(|phase| phase.took).sum();
        phases.push(Phase { name: "admission", took: started.elapsed().saturating_sub(stored + before) });
        phases.push(Phase { name: "store", took: stored });
        let start = Start { sandbox, claim, warm_snapshot };
        let (mut answer, answered) = oneshot::channel();
        let control = Arc::clone(self);
        self.tasks.spawn(async move {
            let id = start.sandbox.id.clone();
            let spawned = tokio::select! {
                spawned = control.make(plan, start, phases) => spawned,
                // A start may wait long for an image, which is useless once the caller has gone.
                () = answer.closed() => {
                    drop(in_progress);
                    return control.abandon(&id).await;
                }
            };
            drop(in_progress);
            let made = spawned.as_ref().ok().map(|spawned| spawned.sandbox.id.clone());
            // The caller may also go away while the answer is under way.
            let (claim, claimed) = oneshot::channel();
            let _ = answer.send((spawned, claim));
            if let (Some(id), Err(_)) = (made, claimed.await) {
                control.abandon(&id).await;
            }
        });
        // The task always answers: it is not cancelled while the tracker waits for it.
        let (spawned, claim) = answered.await.map_err(|_| Unavailable::ShuttingDown)?;
        let _ = claim.send(());
        spawned
    }

    /// Admits a sandbox, with the id of the box that it is given if there is one.
    async fn admit(
        self: &Arc<Self>,
        plan: &Plan,
        warm: Option<WarmBox>,
    ) -> Result<(InProgress, Granted, Option<Claim>)> {
        if let Some(warm) = warm {
            let mut claimed = plan.new.clone();
            claimed.sandbox.id = warm.id().clone();
            claimed.placement.reachable = Arc::default();
            if claimed.egress.is_none() && plan.generation.is_none() {
                // Nothing is left to be done, so that one write is enough.
                claimed.sandbox.state = State::Running;
            }
            let in_progress = self.spawns.begin(warm.id());
            let check = self.check_warm(&warm, plan.ttl + ORPHAN_GRACE);
            let admission = pin!(self.admission.admit(claimed, plan.ttl));
            let (granted, check) = match check {
                // At once, because the two take the same time. A refused spawn leaves a paused box paused.
                WarmCheck::Ask(answer) if !warm.ready().is_paused => match select(admission, answer).await {
                    Either::Left((granted, answer)) => (granted, WarmCheck::Ask(answer)),
                    Either::Right((answered, admission)) => (admission.await, WarmCheck::Ask(ready(answered).boxed())),
                },
                check @ (WarmCheck::Ask(_) | WarmCheck::Look(_)) => (admission.await, check),
            };
            match granted {
                Ok(granted) => return Ok((in_progress, granted, Some(Claim { entry: warm.used(), check }))),
                Err(refused) => {
                    // After a fault of the store there may be a row.
                    if !matches!(refused, Refused::Store(_) | Refused::Closed) {
                        warm.give_back();
                    }
                    let is_elsewhere = matches!(refused, Refused::NoWorker) && !plan.new.placement.reachable.is_empty();
                    if !is_elsewhere {
                        return Err(self.refused(refused));
                    }
                    // Another worker may have a place for it.
                }
            }
        }
        let in_progress = self.spawns.begin(&plan.new.sandbox.id);
        let granted = self.admission.admit(plan.new.clone(), plan.ttl).await;
        let granted = granted.map_err(|refused| self.refused(refused))?;
        Ok((in_progress, granted, None))
    }
}
