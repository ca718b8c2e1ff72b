//! Unavailability: why a request cannot be served now.

use std::fmt;
use std::time::Duration;

use domain::{SandboxId, SnapshotId, WorkerId};
use kernels::Language;

use super::limit::{Cap, Limit};
use super::resource::Resource;
use crate::events;

/// Reason why a request cannot be served now. A retry may succeed. Its text is for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unavailable {
    /// The server is shutting down.
    ShuttingDown,
    /// The boxes that users share have no slot left.
    PoolFull(Cap),
    /// No eligible worker offers the provider.
    NoWorker,
    /// As many snapshots are being taken as may wait.
    SnapshotQueueFull,
    /// As many clients listen to events as may.
    TooManyReaders(events::Full),
    /// No provider is healthy.
    NoHealthyProvider(Diagnosis),
    /// The provider that the request needs is not healthy on this server.
    ProviderUnhealthy { provider: String, unhealthy: Unhealthy },
    /// The provider of a stored object is not enabled on this server.
    NotEnabled { provider: String, resource: Resource, id: String },
    /// The provider cannot work at the moment, with the cause in its own words.
    Provider { provider: String, cause: String },
    /// This server does not know the address of the sandbox's worker.
    WorkerUnknown { worker: WorkerId, sandbox: SandboxId },
    /// The sandbox's worker does not answer.
    WorkerSilent { worker: WorkerId, sandbox: SandboxId },
    /// The provider cannot get the image, with the cause in its own words.
    Image { cause: String },
    /// The server has no image store.
    NoImageStore,
    /// The image store cannot get or store an image, with the cause in its own words.
    ImageStore { cause: String },
    /// The interpreter of a context accepted no requests in time.
    KernelSilent { language: Language, waited: Duration },
    /// The image of a snapshot was not made in time.
    SnapshotImageLate { snapshot: SnapshotId, waited: Duration },
    /// The removal of a sandbox failed that several callers waited for.
    Removal { cause: String },
    /// The request was carried out, but its audit entry could not be written.
    AuditNotWritten,
}

/// Reason why no provider is healthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Diagnosis {
    /// Other routes give the reasons.
    OnOtherRoutes,
    /// The same route gives the reasons to callers with the key.
    WithKey,
    /// The reasons, of each provider and of the server.
    Reasons(Vec<String>),
}

/// Fault of a provider, or its role for the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unhealthy {
    /// The fault that the last health check found.
    Fault { cause: String },
    /// The provider makes the boxes that are kept ready.
    MakesWarmBoxes,
    /// The provider keeps the snapshot.
    KeepsSnapshot { snapshot: SnapshotId },
    /// The provider keeps all snapshots that the request could name.
    KeepsSnapshots,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::ShuttingDown => f.write_str("the server is shutting down"),
            Unavailable::PoolFull(cap) => Limit::Cap(*cap).fmt(f),
            Unavailable::NoWorker => f.write_str(
                "no worker can run this sandbox: every worker with this provider is offline, silent or full; GET \
                 /api/v1/workers shows them",
            ),
            Unavailable::SnapshotQueueFull => f.write_str("many snapshots are being taken; try again later"),
            Unavailable::TooManyReaders(full) => full.fmt(f),
            Unavailable::NoHealthyProvider(diagnosis) => {
                write!(f, "no provider is healthy{diagnosis}")
            }
            Unavailable::ProviderUnhealthy { provider, unhealthy } => unhealthy.write(provider, f),
            Unavailable::NotEnabled { provider, resource, id } => write!(
                f,
                "the provider `{provider}` of {resource} `{id}` is not enabled on this server; \
                 enable it again"
            ),
            Unavailable::Provider { provider, cause } => {
                write!(f, "the provider `{provider}` is not available: {cause}")
            }
            Unavailable::WorkerUnknown { worker, sandbox } => write!(
                f,
                "the worker `{worker}` of sandbox `{sandbox}` is not configured; set \
                 `workers.{worker}.url`"
            ),
            Unavailable::WorkerSilent { worker, sandbox } => {
                write!(f, "the worker `{worker}` of sandbox `{sandbox}` does not answer; try again")
            }
            Unavailable::Image { cause } => write!(f, "the image is not available: {cause}"),
            Unavailable::NoImageStore => f.write_str("this server has no image store"),
            Unavailable::KernelSilent { language, waited } => write!(
                f,
                "the `{language}` interpreter did not start within {} seconds; give the sandbox more `vcpus`, or try \
                 again",
                waited.as_secs()
            ),
            Unavailable::SnapshotImageLate { snapshot, waited } => {
                write!(f, "the image from snapshot `{snapshot}` was not ready within {} seconds", waited.as_secs())
            }
            Unavailable::ImageStore { cause } | Unavailable::Removal { cause } => f.write_str(cause),
            Unavailable::AuditNotWritten => f.write_str(
                "the request was carried out, but the audit history cannot be written; check the state before you \
                 retry, and make sure that the server's disk has room",
            ),
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Diagnosis::OnOtherRoutes => f.write_str("; GET /api/v1/providers and `tidebox doctor` show why"),
            Diagnosis::WithKey => f.write_str("; send the key to see the reasons"),
            Diagnosis::Reasons(reasons) => write!(f, " ({})", reasons.join("; ")),
        }
    }
}

impl Unhealthy {
    /// Writes the text with the name of the provider.
    fn write(&self, provider: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unhealthy::Fault { cause } => {
                write!(f, "the provider `{provider}` is not healthy: {cause}")
            }
            Unhealthy::MakesWarmBoxes => {
                write!(f, "the provider `{provider}` is not healthy on this server")
            }
            Unhealthy::KeepsSnapshot { snapshot } => {
                write!(f, "the provider `{provider}`, which keeps the snapshot `{snapshot}`, is not healthy")
            }
            Unhealthy::KeepsSnapshots => {
                write!(f, "snapshots are kept on this server, where the provider `{provider}` is not healthy")
            }
        }
    }
}
