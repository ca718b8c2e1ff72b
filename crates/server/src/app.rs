//! Composition of the service: the one place that knows how its parts fit together.
//!
//! The program and the tests below HTTP compose the same service. They differ in the parts that
//! they bring, and in the tasks that they start.

use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::select_all;
use providers::Chain;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::admission::{Admission, Opened};
use crate::control;
use crate::control::Archives;
use crate::control::Control;
use crate::control::ControlParts;
use crate::control::Policy;
use crate::egress::{Egress, EgressConfig};
use crate::events::Events;
use crate::heartbeat::WorkerAgent;
use crate::http;
use crate::http::Listeners;
use crate::http::Settings;
use crate::http::peer::TrustedProxies;
use crate::owner_keys::OwnerKeys;
use crate::port_watch::PortWatch;
use crate::provider_registry::Registry;
use crate::rate_limit::RateLimiter;
use crate::reconcile;
use crate::secrets::{SealingKey, Secrets};
use store::Store;
use store::clock::Clock;

/// Parts that the service is composed of.
pub struct Parts {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub registry: Registry,
    pub policy: Policy,
    pub egress: EgressConfig,
    pub sealing_key: SealingKey,
    /// Archives for builds of templates.
    pub archives: Archives,
}

/// Tasks that the service cannot do without.
struct TaskGroup {
    /// Name in the message of a server that ends because one of them did.
    name: &'static str,
    tasks: JoinSet<()>,
}

/// The service, with the tasks that were started. Dropping it aborts them.
pub struct App {
    pub control: Arc<Control>,
    /// Token that ends every task.
    stop: CancellationToken,
    groups: Vec<TaskGroup>,
}

impl App {
    /// Composes the service and starts the admission of spawns. Nothing else runs yet.
    pub fn compose(parts: Parts) -> Self {
        let Parts { store, clock, registry, policy, egress, sealing_key, archives } = parts;
        let events = Arc::new(Events::default());
        let stop = CancellationToken::new();
        let Opened { admission, task, abandoned } =
            Admission::open(Arc::clone(&store), Arc::clone(&clock), Arc::clone(&events), policy.queue, stop.clone());
        let secrets = Arc::new(Secrets::new(Arc::clone(&store), sealing_key));
        let egress = Egress::new(egress, Arc::clone(&secrets), Arc::clone(&events), Arc::clone(&clock), stop.clone());
        let port_watch =
            PortWatch::new(policy.port_watch_interval, Arc::clone(&events), Arc::clone(&clock), stop.clone());
        let owner_keys = Arc::new(OwnerKeys::new(Arc::clone(&clock)));
        let control = Control::assemble(ControlParts {
            store,
            registry,
            clock,
            policy,
            events,
            admission,
            egress,
            secrets,
            port_watch,
            owner_keys,
            archives,
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(task);
        tasks.spawn(Arc::clone(&control).remove_abandoned(abandoned));
        Self { control, stop, groups: vec![TaskGroup { name: "the admission", tasks }] }
    }

    /// Reads the keys of owners, reserves ids for events, and stores the heartbeat without which no spawn is placed
    /// here.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn enroll(&self) -> control::Result<()> {
        self.control.load_keys().await?;
        self.control.reserve_event_ids().await?;
        self.control.beat_own().await
    }

    /// Answers requests on every listener.
    pub fn serve(&mut self, listeners: Listeners, proxies: TrustedProxies, settings: Settings) {
        let memory = Arc::clone(&settings.memory);
        let stop = self.stop.clone();
        let sites = http::sites(Arc::clone(&self.control), settings, stop.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(http::serve(listeners, sites, Arc::clone(&self.control), memory, proxies, stop));
        self.groups.push(TaskGroup { name: "the listener", tasks });
    }

    /// Starts everything that runs without a request. `data_dir` is on the disk whose free space
    /// is watched; a worker has an agent that speaks to its control plane.
    pub fn reconcile(
        &mut self,
        data_dir: &Path,
        rate_limiter: Option<Arc<RateLimiter>>,
        worker_agent: Option<WorkerAgent>,
    ) {
        let control = Arc::clone(&self.control);
        let stop = self.stop.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(reconcile::run(Arc::clone(&control), data_dir.to_owned(), stop.clone()));
        tasks.spawn(reconcile::workers::run(Arc::clone(&control), stop.clone()));
        tasks.spawn(reconcile::number_events(Arc::clone(&control), stop.clone()));
        if let Some(worker_agent) = worker_agent {
            tasks.spawn(worker_agent.run(control, stop.clone()));
        }
        if let Some(limiter) = rate_limiter {
            tasks.spawn(async move { stop.run_until_cancelled(limiter.keep_small()).await.unwrap_or_default() });
        }
        self.groups.push(TaskGroup { name: "the reconciler", tasks });
    }

    /// Waits until a task ends by itself, and returns the name of its group.
    pub async fn failed(&mut self) -> &'static str {
        let ends = self.groups.iter_mut().map(|group| {
            let name = group.name;
            group.tasks.join_next().map(move |_| name).boxed()
        });
        select_all(ends).await.0
    }

    /// Ends every task, and waits until all have ended. Spawns that wait for room, pulls and
    /// imports are refused at once; other requests under way have a bounded time to finish.
    pub async fn stop(&mut self) {
        self.stop.cancel();
        self.control.events().close();
        if let Some(images) = self.control.registry().images() {
            images.stop();
        }
        self.control.egress().ended().await;
        if let Err(error) = self.control.store_egress_bytes().await {
            tracing::warn!(error = %Chain(&error), "cannot store how many bytes sandboxes have exchanged");
        }
        self.control.port_watch().ended().await;
        for group in &mut self.groups {
            while group.tasks.join_next().await.is_some() {}
        }
    }
}
