//! One box: the policies in force, the account of its connections, and its limits.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use domain::{Dialled, EgressRules, SandboxId, Targets};
use serde_json::json;
use tokio::sync::{Semaphore, watch};

use super::ledger::{Counters, Direction, EgressDecision, EgressLimits, Ledger, Verdict};
use super::resolve::Resolver;
use crate::budget::{self, Budget};
use crate::clock::Clock;
use crate::events::{EventType, Events};

/// Parts that the boxes have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) internal: Targets,
    pub(super) resolver: Resolver,
    pub(super) limits: EgressLimits,
    pub(super) server_ports: Vec<u16>,
    pub(super) totals: Counters,
    pub(super) memory: Arc<Budget>,
    pub(super) events: Arc<Events>,
    pub(super) clock: Arc<dyn Clock>,
}

/// Connections of one box.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) id: SandboxId,
    pub(super) rules: watch::Sender<Vec<Arc<EgressRules>>>,
    pub(super) ledger: Ledger,
    pub(super) connections: Arc<Semaphore>,
    /// Number of tasks that receive the box's requests. Of two, the agent ends the earlier one.
    pub(super) receivers: AtomicUsize,
    /// Memory for bytes that wait for the box or a host.
    pub(super) memory: budget::Account,
    pub(super) shared: Arc<Shared>,
}

/// Mark of a task that receives the requests of a box.
#[derive(Debug)]
pub(super) struct Receiving(Arc<Account>);

impl Receiving {
    pub(super) fn begin(account: &Arc<Account>) -> Receiving {
        account.receivers.fetch_add(1, Ordering::Relaxed);
        Receiving(Arc::clone(account))
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.receivers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Account {
    pub(super) fn limits(&self) -> EgressLimits {
        self.shared.limits
    }

    /// Returns whether the requests of the box are received.
    pub(super) fn is_served(&self) -> bool {
        self.receivers.load(Ordering::Relaxed) > 0
    }

    /// Returns the memory for bytes of the box that wait here.
    pub(super) fn memory(&self) -> &budget::Account {
        &self.memory
    }

    pub(super) fn has_bytes_left(&self) -> bool {
        self.ledger.has_bytes_left()
    }

    /// Returns whether any policy has an allow list.
    pub(super) fn is_listed(&self) -> bool {
        self.rules.borrow().iter().any(|rules| rules.mode == domain::EgressMode::AllowList)
    }

    /// Counts bytes, and waits until they are within the rate.
    ///
    /// # Errors
    /// If the box has exchanged all that it may.
    pub(super) async fn pass(&self, direction: Direction, bytes: usize) -> std::io::Result<()> {
        if !self.has_bytes_left() {
            return Err(std::io::ErrorKind::QuotaExceeded.into());
        }
        let wait = self.ledger.pass(direction, bytes, &self.shared.totals);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }

    /// Keeps a decision, and publishes an event about refusals now and then.
    pub(super) fn note(
        &self,
        host: &str,
        port: u16,
        address: Option<IpAddr>,
        verdict: Verdict,
        reason: Option<String>,
    ) {
        let at = self.shared.clock.now();
        let data = json!({"host": host, "port": port, "reason": reason});
        let decision = EgressDecision { at, host: host.to_owned(), port, address, verdict, reason };
        if let Some(denied) = self.ledger.keep(decision, &self.shared.totals) {
            let mut data = data;
            data["denied"] = json!(denied);
            self.shared.events.publish(EventType::EgressDenied, Some(&self.id), at, data);
        }
    }
}

impl Shared {
    /// Describes an address that is about to be dialled.
    pub(super) fn dialled(&self, address: IpAddr, port: u16) -> Dialled {
        Dialled { address, port, is_own: is_own(address), is_server_port: self.server_ports.contains(&port) }
    }
}

/// Returns whether the address is one of this host: only such a one can be bound to.
fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}
