//! Requests about the inside of a sandbox.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::SemaphorePermit;

use super::far_box::Known;
use super::fault::{Fault, guest_fault};
use super::http::LIST_BYTES_MAX;
use super::remote::Remote;
use super::request::Rules;
use super::wire::{Empty, Listed};
use crate::{Error, Result};

/// Working directory of a command that names none.
pub(super) const WORKSPACE: &str = "/workspace";
/// Looks whether a sandbox has ended, after a failure that its end may be the reason of, and the pause between two.
const LOOKS_MAX: u32 = 5;
const LOOK_PAUSE: Duration = Duration::from_millis(300);

/// The inside of a box, reached through the data plane of its sandbox.
#[derive(Clone)]
pub(super) struct E2bGuest {
    pub(super) remote: Arc<Remote>,
    pub(super) rules: Arc<Rules>,
    pub(super) known: Known,
}

impl fmt::Debug for E2bGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("E2bGuest").field("sandbox", &self.known.sandbox).finish_non_exhaustive()
    }
}

fn busy() -> Error {
    Error::Exhausted("too many operations are in progress in this sandbox; try again later".to_owned())
}

impl E2bGuest {
    /// Acquires one of the permits for requests about this box.
    pub(super) async fn permit(&self) -> Result<SemaphorePermit<'_>> {
        let permit = tokio::time::timeout(self.remote.timeout, self.known.permits.acquire()).await;
        permit.map_err(|_| busy())?.map_err(|_| busy())
    }

    /// Waits for an answer about this box, holding a permit.
    pub(super) async fn ask<T>(
        &self,
        action: &'static str,
        answer: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T> {
        let _permit = self.permit().await?;
        match answer.await {
            Ok(answer) => Ok(answer),
            Err(fault) => Err(self.error(action, fault).await),
        }
    }

    /// Converts a fault, and finds out whether the end of the sandbox is its reason.
    pub(super) async fn error(&self, action: &'static str, fault: Fault) -> Error {
        if self.known.dead.is_cancelled() {
            return Error::Gone;
        }
        let looks = if fault.may_be_the_end() { LOOKS_MAX } else { 0 };
        for look in 0..looks {
            // The service may notice the end of a sandbox a moment after the end of its connections.
            if look > 0 {
                tokio::time::sleep(LOOK_PAUSE).await;
                // One that reaches into the sandbox has the service notice.
                let method = "/process.Process/List";
                let _ = self.known.envd.unary::<Listed>(method, &Empty {}, LIST_BYTES_MAX).await;
            }
            match self.remote.look(&self.known).await {
                Ok(None) => return Error::Gone,
                Ok(Some(described)) if described.state == "paused" => {
                    return Error::Unavailable("the sandbox is paused at the service behind it; resume it".to_owned());
                }
                Ok(Some(_)) => {}
                Err(_) => break,
            }
        }
        guest_fault(action, fault)
    }
}
