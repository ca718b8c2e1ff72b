//! Wire types of `/api/v1`: the bodies that clients send and receive.
//!
//! ```
//! let request: tidebox_api::ExecRequest =
//!     serde_json::from_str(r#"{"command": "make", "timeout": "30s"}"#).unwrap();
//! assert_eq!(request.timeout.as_deref(), Some("30s"));
//! assert!(serde_json::from_str::<tidebox_api::ExecRequest>(r#"{"cmd": "make"}"#).is_err());
//! ```
//!
//! Deriving `Serialize` makes a type part of the contract, so these types hold no rules, and no
//! other crate's types are serialized to clients. Requests refuse unknown fields and duplicate
//! keys, except those between servers ([`Heartbeat`] and [`RenewRequest`]), which ignore unknown
//! fields. Responses ignore unknown fields, so that an old client can read a newer server.
//!
//! - Sandboxes: [`SpawnRequest`] makes a [`Sandbox`]; a [`Template`] holds [`SpawnOptions`].
//! - Their use of resources: [`SandboxStats`].
//! - Commands: [`ExecRequest`] gives an [`ExecResult`], or a stream of [`ExecChunk`]s. Over a
//!   WebSocket, [`SocketStart`] gives a stream of [`SocketOutput`]s.
//! - Contexts: [`ContextRequest`] makes a [`Context`]; [`RunRequest`] gives a stream of [`RunLine`]s.
//! - Files: [`WriteFileRequest`], [`FileInfo`]; [`SearchRequest`] and [`ReplaceRequest`] for their content.
//! - Commands in the background: [`ProcessStarted`], [`Process`].
//! - Connections out of a sandbox: [`EgressPolicy`], [`Egress`]; into it: [`ListeningPort`].
//! - Secrets that are sent with them: [`SecretRequest`], [`Secret`].
//! - Images: [`PullRequest`] gives a stream of [`PullProgress`]; [`Image`], [`ImageDetail`].
//! - Owners: [`OwnerQuota`], [`OwnerUsage`], [`AdmissionDecision`]; their keys: [`OwnerKeyRequest`], [`OwnerKey`].
//! - The service: [`Health`], [`Readiness`], [`ProviderHealth`], [`Event`], [`AuditEntry`],
//!   [`Metrics`], [`Diagnostics`].
//! - Workers: [`Worker`], [`Heartbeat`], [`Lease`].
//! - Every error: [`ErrorBody`].
//!
//! Durations are strings such as `90s` or `1h30m0s`, times are RFC 3339 in UTC. Types that hold
//! only a string, such as [`Span`] or [`FilePath`], describe the format of a field in the
//! description of the API; the field itself is a [`String`].

#![warn(missing_docs)]

mod audit;
mod context;
mod diagnostics;
mod egress;
mod event;
mod exec;
mod file;
mod image;
mod key;
mod map;
mod metrics;
mod operation;
mod port;
mod prepare;
mod process;
mod provider;
mod quota;
mod sandbox;
mod sandbox_stats;
mod search;
mod secret;
mod snapshot;
mod socket;
mod spawn_options;
mod system;
mod template;
mod text;
mod tree;
mod worker;

pub use audit::AuditEntry;
pub use context::{
    CodeLanguage, CompleteRequest, Completions, Context, ContextRequest, ContextState, RunLine, RunOutcome, RunRequest,
};
pub use diagnostics::{
    Build, Diagnostics, EventFigures, LeaseFigures, MemoryFigures, ProcessFigures, RateLimitFigures, ReportedLimits,
    RequestMemoryFigures, SandboxFigures, SchedulerFigures, StoreHealth, WarmPoolFigures, WorkerFigures, WorkerItem,
};
pub use egress::{Egress, EgressDecision, EgressMode, EgressPolicy};
pub use event::{Event, ServerSentEvent, StatsEvent};
pub use exec::{
    ChunkStream, ExecChunk, ExecMode, ExecRequest, ExecResult, PROVIDER_FAILED, SANDBOX_ENDED, TIMED_OUT, TextEncoding,
};
pub use file::{
    ChmodRequest, FILE_MODE_HEADER, FILE_MODIFIED_HEADER, FileChange, FileChangeEvent, FileInfo, MoveRequest,
    PutFileRequest, Unpacked, WriteFileRequest,
};
pub use image::{Image, ImageDetail, ImageLayer, PruneImagesRequest, PrunedImages, PullProgress, PullRequest};
pub use key::{CreatedOwnerKey, KeyFormat, KeyScope, OwnerKey, OwnerKeyRequest};
pub use map::StringMap;
pub use metrics::{Metrics, ProviderFigures, ProviderItem};
pub use operation::OperationFigures;
pub use port::{ListenKind, ListenMessage, ListenRefuse, ListeningPort, PortMessage, Preview, PreviewRequest};
pub use prepare::PrepareCommand;
pub use process::{PROCESS_HEADER, Process, ProcessInput, ProcessResize, ProcessSignal, ProcessStarted, ProcessState};
pub use provider::{Empty, ProviderConfig, ProviderDetail, ProviderHealth};
pub use quota::{AdmissionDecision, OwnerQuota, OwnerUsage, QuotaRequest, QuotaSummary};
pub use sandbox::{ExtendRequest, PauseRequest, Pruned, Reclaimed, Sandbox, SpawnRequest, Status};
pub use sandbox_stats::{CpuStats, DiskStats, MemoryStats, ProcessStats, SandboxStats, TransferStats};
pub use search::{
    ReplaceRequest, ReplaceResult, ReplacedFile, SearchBound, SearchMatch, SearchRequest, SearchResult, SkippedFiles,
};
pub use secret::{Secret, SecretRequest};
pub use snapshot::{ForkRequest, SnapshotRequest, SnapshotSummary};
pub use socket::{
    FRAME_MESSAGE, FRAMES_TYPE, SOCKET_KEY_PROTOCOL, SOCKET_PROTOCOL, SOCKET_SCREEN, SOCKET_STDERR, SOCKET_STDOUT,
    SocketEof, SocketKind, SocketOutput, SocketResize, SocketSignal, SocketStart, SocketStdin,
};
pub use spawn_options::SpawnOptions;
pub use system::{ErrorBody, Health, PoolStatus, Readiness};
pub use template::{Template, TemplateRequest, TemplateSpawnRequest};
pub use text::{
    Argument, Duration, EgressEntry, Environment, EventTypes, FileMode, FilePath, IMAGE_NAME_CHARS_MAX, IdempotencyKey,
    ImageName, Labels, OwnerHeader, OwnerId, RelativePath, SandboxId, SecretHost, SecretName, SecretUse,
    SecretVariables, Span, TemplateName,
};
pub use tree::{AmendFailure, AmendRequest, Amended, FileAttributes, ManifestEntry, PackRequest};
pub use worker::{AdminCapacity, AdminHeartbeat, Capacity, Heartbeat, Lease, RenewRequest, Renewed, Worker};
