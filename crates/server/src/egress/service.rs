//! The connections of all boxes: their policies, accounts and tasks.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use domain::{EgressLists, EgressPolicy, EgressRules, InvalidEgress, OwnerId, SandboxEgress, SandboxId, Target};
use parking_lot::Mutex;
use providers::EgressRequests;
use tokio::sync::{OnceCell, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::account::{Account, InForce, Receiving, Shared};
use super::ledger::{Counters, Counts, EgressDecision, EgressLimits, Ledger};
use super::resolve::Resolver;
use crate::budget::Budget;
use crate::events::Events;
use crate::secrets::Secrets;
use store::clock::Clock;

/// Settings of the operator.
#[derive(Debug, Clone)]
pub struct EgressConfig {
    /// Policy that no sandbox exceeds.
    pub site: EgressPolicy,
    /// Policy where a spawn and its template name none.
    pub default: EgressPolicy,
    /// Policies that no sandbox of an owner exceeds, by owner id.
    pub owners: BTreeMap<String, EgressPolicy>,
    pub lists: EgressLists,
    /// Special addresses that policies may reach.
    pub internal: Vec<Target>,
    /// Addresses of names that are not looked up.
    pub hosts: BTreeMap<String, Vec<IpAddr>>,
    pub limits: EgressLimits,
    /// Memory for bytes of all connections that wait.
    pub memory_bytes: u64,
    /// File with further authorities of hosts that secrets are sent to, as PEM.
    pub ca_file: Option<PathBuf>,
    /// Ports that the server itself listens on.
    pub server_ports: Vec<u16>,
}

/// Connections out of all boxes of this server.
#[derive(Debug)]
pub struct Egress {
    site: Arc<EgressRules>,
    default: EgressPolicy,
    owners: BTreeMap<String, Arc<EgressRules>>,
    lists: EgressLists,
    shared: Arc<Shared>,
    boxes: Mutex<HashMap<SandboxId, Arc<Account>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Egress {
    /// Creates the service, without any box.
    #[must_use]
    pub fn new(
        config: EgressConfig,
        secrets: Arc<Secrets>,
        events: Arc<Events>,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> Egress {
        let owners = config.owners.iter();
        Egress {
            site: rules(&config.site, &config.lists),
            default: config.default,
            owners: owners.map(|(owner, policy)| (owner.clone(), rules(policy, &config.lists))).collect(),
            shared: Arc::new(Shared {
                internal: config.internal.into_iter().collect(),
                resolver: Resolver::new(config.hosts),
                limits: config.limits,
                server_ports: config.server_ports,
                totals: Counters::default(),
                memory: Budget::new(config.memory_bytes),
                events,
                clock,
                secrets,
                ca_file: config.ca_file,
                tls: OnceCell::new(),
            }),
            lists: config.lists,
            boxes: Mutex::default(),
            tasks: TaskTracker::new(),
            stop,
        }
    }

    /// Returns the policy of a sandbox for which none is asked.
    #[must_use]
    pub fn default_policy(&self) -> &EgressPolicy {
        &self.default
    }

    /// Checks a policy that is asked for.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub fn check(&self, policy: &EgressPolicy) -> Result<(), InvalidEgress> {
        policy.check(&self.lists)
    }

    /// Returns whether the requests of a box are received.
    #[must_use]
    pub fn is_served(&self, id: &SandboxId) -> bool {
        self.boxes.lock().get(id).is_some_and(|account| account.is_served())
    }

    /// Serves the requests of a box until their stream ends, or another one is served. `exchanged` are the bytes that
    /// are stored of it.
    pub fn serve(
        &self,
        id: &SandboxId,
        owner: Option<&OwnerId>,
        policies: &SandboxEgress,
        exchanged: u64,
        requests: EgressRequests,
    ) {
        let account = self.account(id);
        account.ledger.resume(exchanged);
        account.in_force.send_replace(self.in_force(owner, policies));
        let receiving = Receiving::begin(&account);
        let stop = self.stop.clone();
        self.tasks.spawn(async move { stop.run_until_cancelled(account.serve(requests, receiving)).await });
    }

    /// Puts new policies into force, for open connections too.
    pub fn update(&self, id: &SandboxId, owner: Option<&OwnerId>, policies: &SandboxEgress) {
        self.account(id).in_force.send_replace(self.in_force(owner, policies));
    }

    /// Returns the numbers of a box since this server began to serve it, and its newest decisions.
    #[must_use]
    pub fn account_of(&self, id: &SandboxId) -> (Counts, Vec<EgressDecision>) {
        let account = self.boxes.lock().get(id).cloned();
        account.map(|account| (account.ledger.counts(), account.ledger.decisions())).unwrap_or_default()
    }

    /// Returns the numbers of a box since this server began to serve it.
    #[must_use]
    pub fn counts_of(&self, id: &SandboxId) -> Counts {
        self.boxes.lock().get(id).map(|account| account.ledger.counts()).unwrap_or_default()
    }

    /// Returns the numbers of all boxes since the start of the server.
    #[must_use]
    pub fn totals(&self) -> Counts {
        self.shared.totals.counts()
    }

    /// Returns the boxes that are not in `live`, and whose requests are not received.
    pub fn unserved(&self, live: &HashSet<SandboxId>) -> Vec<SandboxId> {
        let boxes = self.boxes.lock();
        let unserved = boxes.iter().filter(|(id, account)| !live.contains(*id) && !account.is_served());
        unserved.map(|(id, _)| id.clone()).collect()
    }

    /// Returns the boxes whose bytes are bounded and not stored yet, with their numbers.
    #[must_use]
    pub fn unstored(&self) -> Vec<(SandboxId, u64)> {
        let boxes = self.boxes.lock();
        boxes.iter().filter_map(|(id, account)| Some((id.clone(), account.ledger.unstored()?))).collect()
    }

    /// Notes that these numbers are stored.
    pub fn have_stored(&self, exchanged: &[(SandboxId, u64)]) {
        let boxes = self.boxes.lock();
        for (id, bytes) in exchanged {
            if let Some(account) = boxes.get(id) {
                account.ledger.has_stored(*bytes);
            }
        }
    }

    /// Forgets the boxes that are not in `live`, once their bytes are stored.
    pub fn keep_only(&self, live: &HashSet<SandboxId>) {
        self.boxes.lock().retain(|id, account| {
            live.contains(id)
                || account.is_served()
                || account.ledger.counts().open > 0
                || account.ledger.unstored().is_some()
        });
    }

    /// Waits until the connections have ended, after the stop token was cancelled.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn account(&self, id: &SandboxId) -> Arc<Account> {
        let mut boxes = self.boxes.lock();
        Arc::clone(boxes.entry(id.clone()).or_insert_with(|| Arc::new(self.new_account(id))))
    }

    fn new_account(&self, id: &SandboxId) -> Account {
        let limits = self.shared.limits;
        Account {
            id: id.clone(),
            in_force: watch::Sender::new(InForce::default()),
            ledger: Ledger::new(limits),
            connections: Arc::new(Semaphore::new(usize::try_from(limits.connections).unwrap_or(usize::MAX))),
            receivers: AtomicUsize::new(0),
            memory: self.shared.memory.account_of_sandbox(id),
            authority: OnceCell::new(),
            shared: Arc::clone(&self.shared),
        }
    }

    fn in_force(&self, owner: Option<&OwnerId>, policies: &SandboxEgress) -> InForce {
        let of_owner = owner.and_then(|owner| self.owners.get(owner.as_str()));
        let own = policies.each().map(|policy| rules(policy, &self.lists));
        InForce {
            rules: [&self.site].into_iter().chain(of_owner).cloned().chain(own).collect(),
            secrets: policies.secrets().cloned().collect(),
            owner: owner.cloned(),
        }
    }
}

fn rules(policy: &EgressPolicy, lists: &EgressLists) -> Arc<EgressRules> {
    Arc::new(policy.rules(lists))
}
