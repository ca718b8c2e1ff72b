//! One box: the policies in force, the account of its connections, and its limits.

use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use domain::{Dialled, EgressRules, Host, OwnerId, SandboxId, SecretUse, Targets, embedded};
use rustix::io::Errno;
use serde_json::json;
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio_rustls::rustls::ClientConfig;

use super::ledger::{Counters, Direction, EgressDecision, EgressLimits, Ledger, Verdict};
use super::resolve::Resolver;
use crate::budget::{self, Budget};
use crate::events::{EventType, Events};
use crate::secrets::{Authority, Secrets};
use store::clock::Clock;

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
    pub(super) secrets: Arc<Secrets>,
    /// File with further authorities of hosts that secrets are sent to.
    pub(super) ca_file: Option<PathBuf>,
    /// Settings of TLS towards those hosts, once a request needed them.
    pub(super) tls: OnceCell<Arc<ClientConfig>>,
}

/// Policies of one box that hold now.
#[derive(Debug, Clone, Default)]
pub(super) struct InForce {
    /// Rules of every policy that applies.
    pub(super) rules: Vec<Arc<EgressRules>>,
    /// Secrets that are sent, the first for a header before the others.
    pub(super) secrets: Arc<[SecretUse]>,
    /// Owner of the box, to whom a secret may be closed.
    pub(super) owner: Option<OwnerId>,
}

impl InForce {
    pub(super) fn rules(&self) -> Vec<&EgressRules> {
        self.rules.iter().map(AsRef::as_ref).collect()
    }
}

/// Connections of one box.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) id: SandboxId,
    pub(super) in_force: watch::Sender<InForce>,
    pub(super) ledger: Ledger,
    pub(super) connections: Arc<Semaphore>,
    /// Number of tasks that receive the box's requests. Of two, the agent ends the earlier one.
    pub(super) receivers: AtomicUsize,
    /// Memory for bytes that wait for the box or a host.
    pub(super) memory: budget::Account,
    /// Authority that the box trusts, once a request needed it.
    pub(super) authority: OnceCell<Authority>,
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
        self.in_force.borrow().rules.iter().any(|rules| rules.mode == domain::EgressMode::AllowList)
    }

    /// Returns whether a policy denies hosts by their names at this port.
    pub(super) fn denies_names(&self, port: u16) -> bool {
        self.in_force.borrow().rules.iter().any(|rules| rules.deny.has_names(port))
    }

    /// Returns whether a policy denies the host that a client names.
    pub(super) fn denies(&self, name: &str, port: u16) -> bool {
        let Ok(host) = Host::parse(name) else { return false };
        self.in_force.borrow().rules.iter().any(|rules| rules.deny.touch_host(&host, port))
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
        let is_own = is_own(address) || embedded(address).any(|inner| is_own(inner.into()));
        Dialled { address, port, is_own, is_server_port: self.server_ports.contains(&port) }
    }
}

/// Returns whether the address is one of this host: only such a one can be bound to. One that cannot be tried, for
/// want of ports or descriptors, counts as one.
pub(super) fn is_own(address: IpAddr) -> bool {
    let Err(error) = UdpSocket::bind((address, 0)) else { return true };
    // A kernel without IPv6 has no such address either.
    !matches!(Errno::from_io_error(&error), Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT))
}
