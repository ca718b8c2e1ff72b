//! Conflicts: why the state of a thing forbids an operation.

use std::fmt;

use domain::{BuildId, InvalidTransition, LeaseRefused, SandboxId, SnapshotId, State};

use super::resource::Resource;

/// Reason why an operation conflicts with the state of what it is about. Its text is for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conflict {
    /// The thing exists already.
    Exists { resource: Resource, name: String },
    /// The sandbox is still being created.
    BeingCreated { sandbox: String },
    /// The sandbox is being destroyed.
    BeingDestroyed { sandbox: String },
    /// The sandbox was destroyed before it was running.
    DestroyedWhileCreated { sandbox: SandboxId },
    /// This server ended the sandbox before it was running.
    EndedWhileCreated { reason: String },
    /// The sandbox failed.
    Failed { sandbox: String, reason: Option<String> },
    /// The box of the sandbox ended.
    Ended,
    /// The sandbox is in a state from which it never gets into the awaited one.
    NeverReached { sandbox: String, state: State, awaited: &'static str },
    /// The state of the sandbox does not allow the change.
    Transition(InvalidTransition),
    /// The sandbox is being paused, resumed or kept in a snapshot.
    Changing { sandbox: String },
    /// The sandbox is paused, and no request resumes it by itself.
    Paused { sandbox: String },
    /// Requests use the sandbox.
    InUse { sandbox: SandboxId, uses: Vec<&'static str> },
    /// A request resumed the sandbox before it was written to disk.
    NotPaused { sandbox: SandboxId },
    /// A request resumed or ended the sandbox before its memory was handed back.
    NotPausedForReclaim { sandbox: SandboxId },
    /// The caller hung up before its turn.
    CallerGone,
    /// The idempotency key belongs to another request.
    KeyReused,
    /// A request with the idempotency key is being served.
    KeyInUse,
    /// The sandbox that was made with the idempotency key has ended.
    KeyEnded { sandbox: SandboxId },
    /// The worker is this server.
    LocalWorker,
    /// The worker holds sandboxes.
    WorkerBusy { worker: String, active: u64 },
    /// The lease cannot be renewed.
    Lease { sandbox: String, refused: LeaseRefused },
    /// A higher generation of the lease was seen.
    LeaseOver { sandbox: SandboxId, generation: u64 },
    /// Another control plane holds the box.
    HeldElsewhere { cause: String },
    /// The build was begun before.
    Built { build: BuildId },
    /// The template of this name was stored, and not made by a build.
    NotBuilt { template: String },
    /// The snapshot is the files of a template.
    OfTemplate { snapshot: SnapshotId },
    /// The context has another language than the run.
    OtherLanguage { context: String, language: &'static str },
    /// The context was restarted or deleted while a run waited for its turn.
    ContextEnded,
    /// The provider or the image store refuses, in its own words.
    Refused(String),
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Conflict::Exists { resource, name } => {
                write!(f, "{resource} `{name}` already exists; replace it with PUT")
            }
            Conflict::BeingCreated { sandbox } => write!(
                f,
                "sandbox `{sandbox}` is still being created; wait for it with GET /api/v1/sandboxes/{sandbox}/wait"
            ),
            Conflict::BeingDestroyed { sandbox } => write!(f, "sandbox `{sandbox}` is being destroyed"),
            Conflict::DestroyedWhileCreated { sandbox } => {
                write!(f, "sandbox `{sandbox}` was destroyed while it was being created")
            }
            Conflict::EndedWhileCreated { reason } => {
                write!(f, "the sandbox was ended while it was being created: {reason}")
            }
            Conflict::Failed { sandbox, reason } => {
                write!(f, "sandbox `{sandbox}` has failed: {}", reason.as_deref().unwrap_or("the reason is unknown"))
            }
            Conflict::Ended => f.write_str("the sandbox ended"),
            Conflict::NeverReached { sandbox, state, awaited } => {
                write!(f, "sandbox `{sandbox}` is {state} and will never be {awaited}")
            }
            Conflict::Transition(refused) => refused.fmt(f),
            Conflict::Changing { sandbox } => {
                write!(f, "sandbox `{sandbox}` is being paused, resumed or saved in a snapshot")
            }
            Conflict::Paused { sandbox } => write!(f, "sandbox `{sandbox}` is paused; resume it first"),
            Conflict::InUse { sandbox, uses } => write!(
                f,
                "sandbox `{sandbox}` is in use ({}); stop that first, or pause it with `force: true`, which makes the \
                 requests wait",
                uses.join(", ")
            ),
            Conflict::NotPaused { sandbox } => {
                write!(f, "sandbox `{sandbox}` is no longer paused: a request resumed it; pause it again")
            }
            Conflict::NotPausedForReclaim { sandbox } => write!(
                f,
                "sandbox `{sandbox}` is no longer paused: a request resumed or ended it; pause it again to free its \
                 memory"
            ),
            Conflict::CallerGone => f.write_str("the caller disconnected"),
            Conflict::KeyReused => {
                f.write_str("`Idempotency-Key` was used for another request; use a new key for each sandbox")
            }
            Conflict::KeyInUse => f.write_str("`Idempotency-Key` is in use; try again"),
            Conflict::KeyEnded { sandbox } => {
                write!(f, "the sandbox `{sandbox}` that was made with this `Idempotency-Key` has ended; use a new key")
            }
            Conflict::LocalWorker => f.write_str("`local` is this server itself and cannot be deleted"),
            Conflict::WorkerBusy { worker, active } => write!(
                f,
                "worker `{worker}` holds {active} active sandboxes; destroy them first, or wait until its leases have \
                 ended"
            ),
            Conflict::Lease { sandbox, refused } => write!(f, "`{sandbox}` cannot be renewed: {refused}"),
            Conflict::LeaseOver { sandbox, generation } => {
                write!(f, "lease generation {generation} of sandbox `{sandbox}` is outdated; a higher one was seen")
            }
            Conflict::HeldElsewhere { cause } => write!(
                f,
                "another control plane holds the sandbox, so it is not \
                removed: {cause}"
            ),
            Conflict::Built { build } => write!(f, "the build `{build}` was begun before; request another"),
            Conflict::NotBuilt { template } => write!(
                f,
                "the template `{template}` was stored through the API, and a build would replace it; delete it, or choose \
                 another name"
            ),
            Conflict::OfTemplate { snapshot } => write!(
                f,
                "the snapshot `{snapshot}` is the files of a template, and goes with it; delete the template instead"
            ),
            Conflict::OtherLanguage { context, language } => {
                write!(f, "the context `{context}` runs `{language}`; leave out `language`, or use another context")
            }
            Conflict::ContextEnded => {
                f.write_str("the context was restarted or deleted before this run began; run the code again")
            }
            Conflict::Refused(text) => f.write_str(text),
        }
    }
}
