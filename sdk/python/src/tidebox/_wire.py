"""Types of the API. Generated from docs/openapi.json by generate.py. Do not edit."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict



class AdminCapacity(TypedDict):
    max_sandboxes: NotRequired[int]
    max_sandboxes_per_owner: NotRequired[int]


class AdminHeartbeat(TypedDict):
    capabilities: NotRequired[list[str]]
    capacity: NotRequired[AdminCapacity]
    hostname: NotRequired[str | None]
    providers: NotRequired[list[str]]
    status: NotRequired[str | None]


class AdmissionDecision(TypedDict):
    active_owner_sandboxes: int
    active_sandboxes: int
    allowed: bool
    max_owner_sandboxes: int
    max_sandboxes: int
    max_ttl: float
    queueable: bool
    reason: NotRequired[str | None]


class AmendFailure(TypedDict):
    message: str
    path: str


class Amended(TypedDict):
    changed: int
    failed: int
    failures: list[AmendFailure]
    removed: int


Argument: TypeAlias = str


class AuditEntry(TypedDict):
    action: str
    actor: str
    created_at: str
    detail: NotRequired[str | None]
    duration_ms: int
    id: int
    method: str
    path: str
    remote_addr: NotRequired[str | None]
    request_id: str
    status: int
    user_agent: NotRequired[str | None]


class Build(TypedDict):
    goarch: str
    goos: str
    version: str


class Capacity(TypedDict):
    max_sandboxes: NotRequired[int]
    max_sandboxes_per_owner: NotRequired[int]


ChunkStream: TypeAlias = Literal["stdout", "stderr", "exit", "gap"]


CodeLanguage: TypeAlias = Literal["python", "javascript", "typescript", "bash", "r", "java"]


class CompleteRequest(TypedDict):
    code: str
    cursor: NotRequired[int | None]


class Completions(TypedDict):
    matches: list[str]
    start: int


ContextState: TypeAlias = Literal["idle", "busy", "ended"]


class CpuStats(TypedDict):
    limit: NotRequired[int | None]
    share: NotRequired[float | None]
    share_of_limit: NotRequired[float | None]
    used_ms: NotRequired[int | None]
    window_ms: NotRequired[int | None]


class DiskStats(TypedDict):
    limit_bytes: NotRequired[int | None]
    used_bytes: NotRequired[int | None]


Duration: TypeAlias = str


class EgressDecision(TypedDict):
    address: NotRequired[str | None]
    host: str
    port: int
    reason: NotRequired[str | None]
    time: str
    verdict: str


EgressEntry: TypeAlias = str


class Empty(TypedDict):
    pass


Environment: TypeAlias = dict[str, str]


class ErrorBody(TypedDict):
    code: str
    message: str


class Event(TypedDict):
    data: NotRequired[dict[str, Any]]
    id: int
    sandbox_id: NotRequired[str | None]
    timestamp: str
    type: str


class EventFigures(TypedDict):
    events_total: int
    history_size: int
    subscribers: int


EventTypes: TypeAlias = str


class ExecChunk(TypedDict):
    data: str
    oom_killed: NotRequired[bool]
    pids_exhausted: NotRequired[bool]
    seq: NotRequired[int | None]
    stream: ChunkStream
    timed_out: NotRequired[bool]


ExecMode: TypeAlias = Literal["shell", "argv"]


class ExecResult(TypedDict):
    duration: float
    exit_code: int
    oom_killed: NotRequired[bool]
    pids_exhausted: NotRequired[bool]
    stderr: str
    stdout: str
    timed_out: NotRequired[bool]
    truncated: NotRequired[bool]


class FileChangeEvent(TypedDict):
    data: str
    event: str


class FileInfo(TypedDict):
    is_dir: bool
    is_symlink: NotRequired[bool]
    mod_time: str
    mode: str
    name: str
    path: str
    size: int
    target: NotRequired[str | None]


FileMode: TypeAlias = str


FilePath: TypeAlias = str


class Health(TypedDict):
    status: str
    uptime: float
    version: str


class Heartbeat(TypedDict):
    capabilities: NotRequired[list[str]]
    capacity: NotRequired[Capacity]
    hostname: NotRequired[str | None]
    providers: NotRequired[list[str]]
    status: NotRequired[str | None]


IdempotencyKey: TypeAlias = str


class Image(TypedDict):
    created_at: NotRequired[str | None]
    digest: str
    in_use: int
    last_used_at: NotRequired[str | None]
    names: list[str]
    platform: str
    size_bytes: int
    unpacked_bytes: int


class ImageLayer(TypedDict):
    digest: str
    media_type: str
    size_bytes: int


ImageName: TypeAlias = str


KeyFormat: TypeAlias = Literal["tidebox", "e2b"]


KeyScope: TypeAlias = Literal["sandboxes:read", "sandboxes:write", "snapshots", "templates", "images", "secrets", "events", "metrics"]


Labels: TypeAlias = dict[str, str]


class Lease(TypedDict):
    expires_at: str
    generation: int
    holder_id: str
    resource_id: str


class LeaseFigures(TypedDict):
    active: int
    by_holder: dict[str, int]
    expired: int
    total: int


ListenKind: TypeAlias = Literal["refuse"]


class ListenMessage1(TypedDict):
    port: int
    type: Literal["listening"]


class ListenMessage2(TypedDict):
    connection: int
    type: Literal["connection"]


class ListenMessage3(TypedDict):
    code: str
    message: str
    type: Literal["error"]


ListenMessage: TypeAlias = ListenMessage1 | ListenMessage2 | ListenMessage3


class ListenRefuse(TypedDict):
    connection: int
    type: ListenKind


class ListeningPort(TypedDict):
    address: str
    pid: NotRequired[int | None]
    port: int
    process: NotRequired[str | None]


class ManifestEntry(TypedDict):
    entries: NotRequired[int | None]
    mode: NotRequired[str | None]
    mtime: NotRequired[str | None]
    path: NotRequired[str | None]
    same_as: NotRequired[str | None]
    sha256: NotRequired[str | None]
    size: NotRequired[int | None]
    target: NotRequired[str | None]
    type: str
    unreadable: NotRequired[int | None]


class MemoryFigures(TypedDict):
    alloc: int
    gc_cycles: int
    heap_alloc: int
    sys: int


class MemoryStats(TypedDict):
    limit_bytes: NotRequired[int | None]
    peak_bytes: NotRequired[int | None]
    used_bytes: NotRequired[int | None]


class MoveRequest(TypedDict):
    new_path: FilePath
    old_path: FilePath


class OperationFigures(TypedDict):
    failure_total: int
    latency_avg_ms: int
    latency_count: int
    latency_max_ms: int
    latency_min_ms: int
    latency_total_ms: int
    operation: str
    provider: str
    success_total: int


OwnerHeader: TypeAlias = str


OwnerId: TypeAlias = str


class OwnerKey(TypedDict):
    created_at: str
    expires_at: NotRequired[str | None]
    id: str
    last_used_at: NotRequired[str | None]
    name: NotRequired[str | None]
    owner_id: str
    prefix: str
    revoked_at: NotRequired[str | None]
    scopes: list[str]


class OwnerQuota(TypedDict):
    created_at: str
    max_disk_mb: NotRequired[int]
    max_exec_timeout: float
    max_memory_mb: NotRequired[int]
    max_sandboxes: int
    max_ttl: float
    max_vcpus: NotRequired[int]
    owner_id: str
    updated_at: str


class OwnerUsage(TypedDict):
    active_sandboxes: int
    max_disk_mb: NotRequired[int]
    max_exec_timeout: float
    max_memory_mb: NotRequired[int]
    max_sandboxes: int
    max_ttl: float
    max_vcpus: NotRequired[int]
    owner_id: str
    quota_configured: bool


class PackRequest(TypedDict):
    path: FilePath
    paths: list[str]


class PauseRequest(TypedDict):
    force: NotRequired[bool]
    reclaim: NotRequired[bool]
    to_disk: NotRequired[bool]


class PoolStatus(TypedDict):
    enabled: bool
    max_users_per_vm: NotRequired[int | None]
    max_vms: NotRequired[int | None]
    total_users: NotRequired[int | None]
    vms: NotRequired[int | None]


class PortMessage1(TypedDict):
    type: Literal["eof"]


class PortMessage2(TypedDict):
    code: str
    message: str
    type: Literal["error"]


PortMessage: TypeAlias = PortMessage1 | PortMessage2


class Preview(TypedDict):
    expires_at: str
    port: int
    public: bool
    token: NotRequired[str | None]
    url: str


class ProcessFigures(TypedDict):
    goroutines: int
    log_lines_dropped: int
    memory: MemoryFigures
    uptime: float


class ProcessResize(TypedDict):
    cols: int
    rows: int


class ProcessSignal(TypedDict):
    signal: str


class ProcessStarted(TypedDict):
    name: NotRequired[str | None]
    process_id: int


ProcessState: TypeAlias = Literal["running", "exited"]


class ProcessStats(TypedDict):
    count: NotRequired[int | None]
    limit: NotRequired[int | None]


class ProviderHealth(TypedDict):
    capabilities: list[str]
    default: bool
    error: NotRequired[str | None]
    healthy: bool
    last_checked: str
    latency_ms: int
    missing: NotRequired[list[str]]
    name: str
    runtime_count: NotRequired[int | None]
    runtimes: NotRequired[list[str]]
    version: NotRequired[str | None]


class ProviderItem(TypedDict):
    default: bool
    healthy: bool
    name: str


class PruneImagesRequest(TypedDict):
    all: NotRequired[bool]


class Pruned(TypedDict):
    pruned: int


class PrunedImages(TypedDict):
    freed_bytes: int
    removed: list[str]


class PullProgress1(TypedDict):
    type: Literal["resolving"]


class PullProgress2(TypedDict):
    bytes: int
    bytes_total: int
    type: Literal["downloading"]


class PullProgress3(TypedDict):
    bytes: int
    type: Literal["unpacking"]


class PullProgress4(TypedDict):
    image: Image
    type: Literal["done"]


class PullProgress5(TypedDict):
    code: str
    message: str
    type: Literal["error"]


PullProgress: TypeAlias = PullProgress1 | PullProgress2 | PullProgress3 | PullProgress4 | PullProgress5


class PullRequest(TypedDict):
    name: ImageName
    stream: NotRequired[bool]


class QuotaRequest(TypedDict):
    max_disk_mb: NotRequired[int | None]
    max_exec_timeout: NotRequired[float | None]
    max_memory_mb: NotRequired[int | None]
    max_sandboxes: NotRequired[int | None]
    max_ttl: NotRequired[float | None]
    max_vcpus: NotRequired[int | None]


class QuotaSummary(TypedDict):
    total: int
    with_max_exec_timeout: int
    with_max_sandboxes: int
    with_max_ttl: int


class RateLimitFigures(TypedDict):
    active_buckets: int
    allowed_total: int
    bucket_ttl: float
    burst: int
    cleanup_interval: float
    enabled: bool
    evicted_total: int
    key_by: str
    limited_total: int
    requests_per_minute: int


class Readiness(TypedDict):
    providers: list[ProviderHealth]
    ready_providers: int
    status: str
    total_providers: int
    uptime: float
    version: str


class Reclaimed(TypedDict):
    by: str
    memory_after_bytes: int
    memory_before_bytes: int


RelativePath: TypeAlias = str


class RenewRequest(TypedDict):
    ttl: float


class Renewed(TypedDict):
    lease: Lease


class ReplacedFile(TypedDict):
    path: str
    replacements: int


class ReportedLimits(TypedDict):
    default_exec_timeout: float
    max_disk_mb: NotRequired[int]
    max_exec_timeout: float
    max_memory_mb: NotRequired[int]
    max_sandboxes: int
    max_sandboxes_per_owner: int
    max_spawn_queue: int
    max_ttl: float
    max_vcpus: NotRequired[int]
    spawn_overflow: str
    spawn_queue_timeout: float


class RequestMemoryFigures(TypedDict):
    budget_bytes: int
    peak_bytes: int
    refused_total: int
    truncated_total: int
    used_bytes: int


class RunLine1(TypedDict):
    context_id: str
    execution_count: int
    state_lost: NotRequired[bool]
    type: Literal["started"]


class RunLine2(TypedDict):
    text: str
    type: Literal["stdout"]


class RunLine3(TypedDict):
    text: str
    type: Literal["stderr"]


class RunLine4(TypedDict):
    data: dict[str, Any]
    main: bool
    type: Literal["result"]


class RunLine5(TypedDict):
    name: str
    traceback: str
    type: Literal["error"]
    value: str


class RunLine6(TypedDict):
    type: Literal["dropped"]


class RunLine7(TypedDict):
    type: Literal["keep_alive"]


RunOutcome: TypeAlias = Literal["ok", "error", "interrupted", "timed_out", "died"]


class SandboxFigures(TypedDict):
    active: int
    by_provider: dict[str, int]
    by_state: dict[str, int]
    by_worker: dict[str, int]
    total: int


SandboxId: TypeAlias = str


class SchedulerFigures(TypedDict):
    admission_control: str
    eligible_workers: int
    max_spawn_queue: int
    selected_worker_id: str
    spawn_dequeued_total: int
    spawn_overflow: str
    spawn_queue_depth: int
    spawn_queue_timeout: float
    spawn_queue_timeouts: int
    spawn_queue_wait_avg: float
    spawn_queue_wait_avg_ms: int
    spawn_queue_wait_count: int
    spawn_queue_wait_max: float
    spawn_queue_wait_max_ms: int
    spawn_queue_wait_total: float
    spawn_queue_wait_total_ms: int
    spawn_queued_total: int
    worker_id: str


SearchBound: TypeAlias = Literal["count", "size", "time"]


class SearchMatch(TypedDict):
    after: NotRequired[list[str]]
    before: NotRequired[list[str]]
    column: int
    line: int
    path: str
    text: str
    text_truncated: NotRequired[bool]


class Secret(TypedDict):
    created_at: str
    form: NotRequired[str | None]
    header: NotRequired[str | None]
    hosts: list[str]
    name: str
    owners: list[str]
    updated_at: str


SecretHost: TypeAlias = str


SecretName: TypeAlias = str


class SecretRequest1(TypedDict):
    form: NotRequired[str | None]
    header: NotRequired[str | None]
    hosts: list[SecretHost]
    owners: NotRequired[list[OwnerId]]
    value: str


class SecretRequest2(TypedDict):
    form: NotRequired[None]
    header: NotRequired[None]
    hosts: NotRequired[list[SecretHost]]
    owners: NotRequired[list[OwnerId]]
    value: str


SecretRequest: TypeAlias = SecretRequest1 | SecretRequest2


SecretUse: TypeAlias = str


SecretVariables: TypeAlias = dict[str, str]


class ServerSentEvent(TypedDict):
    data: str
    event: str
    id: str


class SkippedFiles(TypedDict):
    binary: int
    too_large: int
    unreadable: int


class SnapshotRequest(TypedDict):
    memory: NotRequired[bool | None]
    name: NotRequired[str | None]


class SnapshotSummary(TypedDict):
    created_at: str
    id: str
    image: str
    kernel: str
    kind: str
    memory: bool
    name: NotRequired[str | None]
    owner_id: NotRequired[str | None]
    provider: str
    sandbox_id: NotRequired[str | None]
    size_bytes: int


SocketKind: TypeAlias = Literal["start", "stdin", "eof", "resize", "signal"]


class SocketOutput1(TypedDict):
    data: str
    type: Literal["stdout"]


class SocketOutput2(TypedDict):
    data: str
    type: Literal["stderr"]


class SocketOutput3(TypedDict):
    data: str
    type: Literal["screen"]


class SocketOutput4(TypedDict):
    seq: int
    type: Literal["position"]


class SocketOutput5(TypedDict):
    exit_code: int
    oom_killed: NotRequired[bool]
    pids_exhausted: NotRequired[bool]
    timed_out: NotRequired[bool]
    type: Literal["exit"]


class SocketOutput6(TypedDict):
    code: str
    message: str
    type: Literal["error"]


SocketOutput: TypeAlias = SocketOutput1 | SocketOutput2 | SocketOutput3 | SocketOutput4 | SocketOutput5 | SocketOutput6


class SocketResize(TypedDict):
    cols: int
    rows: int
    type: SocketKind


class SocketSignal(TypedDict):
    signal: str
    type: SocketKind


class SocketStdin(TypedDict):
    data: str
    type: SocketKind


Span: TypeAlias = str


class StatsEvent(TypedDict):
    data: str
    event: str


class Status(TypedDict):
    status: str


class StoreHealth(TypedDict):
    healthy: bool
    latency_ms: int


StringMap: TypeAlias = dict[str, str]


TemplateName: TypeAlias = str


TextEncoding: TypeAlias = Literal["utf8", "base64"]


class TransferStats(TypedDict):
    received_bytes: int
    sent_bytes: int


class Unpacked(TypedDict):
    bytes: int
    members: int


class WarmPoolFigures(TypedDict):
    count: int
    error: NotRequired[str | None]
    hits_total: int
    misses_total: int
    name: str
    of_snapshot_total: int
    oldest_ms: NotRequired[int | None]
    provider: NotRequired[str | None]
    ready: int
    replaced_total: int


class Worker(TypedDict):
    capabilities: list[str]
    capacity: Capacity
    created_at: str
    hostname: str
    id: str
    last_heartbeat: str
    providers: list[str]
    stale: bool
    status: str
    updated_at: str


class WorkerItem(Worker):
    active_sandboxes: int


class WriteFileRequest(TypedDict):
    content: str
    encoding: NotRequired[TextEncoding]
    mode: NotRequired[FileMode | None]
    path: FilePath


class ChmodRequest(TypedDict):
    mode: FileMode
    path: FilePath


class Context(TypedDict):
    id: str
    language: CodeLanguage
    process_id: int
    started_at: str
    state: ContextState
    user: NotRequired[str | None]
    workdir: NotRequired[str | None]


class ContextRequest(TypedDict):
    env: NotRequired[Environment]
    language: NotRequired[CodeLanguage]
    user: NotRequired[str | None]
    workdir: NotRequired[str | None]


class CreatedOwnerKey(TypedDict):
    key: OwnerKey
    secret: str


class EgressPolicy1(TypedDict):
    allow: NotRequired[list[EgressEntry]]
    deny: NotRequired[list[EgressEntry]]
    mode: Literal["allow-list"]
    secrets: NotRequired[list[SecretUse]]


class EgressPolicy2(TypedDict):
    allow: NotRequired[list[EgressEntry]]
    deny: NotRequired[list[EgressEntry]]
    mode: Literal["open"]
    secrets: NotRequired[list[SecretUse]]


class EgressPolicy3(TypedDict):
    allow: NotRequired[list[EgressEntry]]
    deny: NotRequired[list[EgressEntry]]
    mode: Literal["none"]
    secrets: NotRequired[list[SecretUse]]


EgressPolicy: TypeAlias = EgressPolicy1 | EgressPolicy2 | EgressPolicy3


class ExecRequest(TypedDict):
    args: NotRequired[list[Argument]]
    background: NotRequired[bool]
    cols: NotRequired[int | None]
    command: str
    encoding: NotRequired[TextEncoding]
    env: NotRequired[Environment]
    env_secret: NotRequired[SecretVariables]
    exit_event: NotRequired[bool]
    linger: NotRequired[float | None]
    mode: NotRequired[ExecMode]
    name: NotRequired[str | None]
    note: NotRequired[str | None]
    paced: NotRequired[bool]
    resumable: NotRequired[bool]
    rows: NotRequired[int | None]
    stdin: NotRequired[str | None]
    stdin_encoding: NotRequired[TextEncoding]
    stdin_open: NotRequired[bool]
    stream: NotRequired[bool]
    timeout: NotRequired[float | None]
    tty: NotRequired[bool]
    user: NotRequired[str | None]
    workdir: NotRequired[FilePath | None]


class ExtendRequest(TypedDict):
    ttl: float


class FileAttributes(TypedDict):
    mode: NotRequired[FileMode | None]
    mtime: NotRequired[str | None]
    path: str


class ForkRequest(TypedDict):
    count: NotRequired[int | None]
    metadata: NotRequired[Labels | None]
    ttl: NotRequired[float | None]


class ImageDetail(Image):
    config_digest: str
    entrypoint: list[str]
    env: StringMap
    labels: StringMap
    layers: list[ImageLayer]
    user: NotRequired[str | None]
    workdir: NotRequired[str | None]


class OwnerKeyRequest(TypedDict):
    format: NotRequired[KeyFormat | None]
    name: NotRequired[str | None]
    owner_id: OwnerId
    scopes: NotRequired[list[KeyScope] | None]
    ttl: NotRequired[float | None]


class PrepareCommand(TypedDict):
    args: NotRequired[list[Argument]]
    background: NotRequired[bool]
    command: str
    env: NotRequired[Environment]
    language: NotRequired[CodeLanguage | None]
    mode: NotRequired[ExecMode]
    name: NotRequired[str | None]
    stdin_open: NotRequired[bool]
    timeout: NotRequired[float | None]
    user: NotRequired[str | None]
    workdir: NotRequired[FilePath | None]


class PreviewRequest(TypedDict):
    port: int
    public: NotRequired[bool]
    ttl: NotRequired[float | None]


class Process(TypedDict):
    cols: NotRequired[int | None]
    command: str
    duration: NotRequired[float | None]
    exit_code: NotRequired[int | None]
    first_seq: int
    last_seq: int
    name: NotRequired[str | None]
    note: NotRequired[str | None]
    oom_killed: NotRequired[bool]
    pid: NotRequired[int | None]
    pids_exhausted: NotRequired[bool]
    process_id: int
    readers: int
    rows: NotRequired[int | None]
    started_at: str
    state: ProcessState
    timed_out: NotRequired[bool]
    tty: bool


class ProcessInput(TypedDict):
    data: NotRequired[str]
    encoding: NotRequired[TextEncoding]
    eof: NotRequired[bool]


class ProviderConfig(TypedDict):
    isolation: str
    limits: StringMap
    network_mode: str
    runtime: str


class ProviderDetail(TypedDict):
    config: ProviderConfig
    default: bool
    health: ProviderHealth
    healthy: bool
    name: str
    sandbox_count: int


class ProviderFigures(TypedDict):
    healthy: int
    items: list[ProviderItem]
    total: int


class PutFileRequest(TypedDict):
    content: str
    encoding: NotRequired[TextEncoding]
    mode: NotRequired[FileMode | None]


class ReplaceRequest(TypedDict):
    dry_run: NotRequired[bool]
    exclude: NotRequired[list[str]]
    gitignore: NotRequired[bool]
    hidden: NotRequired[bool]
    ignore_case: NotRequired[bool]
    include: NotRequired[list[str]]
    literal: NotRequired[bool]
    max_files: NotRequired[int | None]
    path: NotRequired[FilePath | None]
    pattern: str
    replacement: str
    timeout: NotRequired[float | None]
    whole_words: NotRequired[bool]


class ReplaceResult(TypedDict):
    files: list[ReplacedFile]
    files_searched: int
    files_skipped: SkippedFiles
    replacements: int
    truncated: bool
    truncated_by: NotRequired[SearchBound | None]


class RunLine8(TypedDict):
    duration: float
    outcome: RunOutcome
    restarted: NotRequired[bool]
    type: Literal["end"]


RunLine: TypeAlias = RunLine1 | RunLine2 | RunLine3 | RunLine4 | RunLine5 | RunLine6 | RunLine7 | RunLine8


class RunRequest(TypedDict):
    code: str
    env: NotRequired[Environment]
    language: NotRequired[CodeLanguage | None]
    timeout: NotRequired[float | None]


class Sandbox(TypedDict):
    auto_pause: NotRequired[float | None]
    created_at: str
    disk_mb: NotRequired[int | None]
    error: NotRequired[str | None]
    expires_at: str
    id: str
    image: str
    memory_mb: int
    metadata: NotRequired[StringMap]
    on_disk: NotRequired[bool]
    owner_id: NotRequired[str | None]
    pids: NotRequired[int]
    preview_domain: NotRequired[str | None]
    provider: str
    reclaimed: NotRequired[Reclaimed | None]
    state: str
    vcpus: int
    worker_id: NotRequired[str | None]


class SandboxStats(TypedDict):
    cpu: CpuStats
    disk: DiskStats
    egress: NotRequired[TransferStats | None]
    memory: MemoryStats
    processes: ProcessStats
    provider: str
    sandbox_id: str
    timestamp: str
    uptime_ms: int


class SearchRequest(TypedDict):
    context: NotRequired[int]
    exclude: NotRequired[list[str]]
    gitignore: NotRequired[bool]
    hidden: NotRequired[bool]
    ignore_case: NotRequired[bool]
    include: NotRequired[list[str]]
    literal: NotRequired[bool]
    max_matches: NotRequired[int | None]
    path: NotRequired[FilePath | None]
    pattern: str
    timeout: NotRequired[float | None]
    whole_words: NotRequired[bool]


class SearchResult(TypedDict):
    files_searched: int
    files_skipped: SkippedFiles
    matches: list[SearchMatch]
    truncated: bool
    truncated_by: NotRequired[SearchBound | None]


class SocketEof(TypedDict):
    type: SocketKind


class SocketStart(TypedDict):
    args: NotRequired[list[Argument]]
    binary: NotRequired[bool]
    cols: NotRequired[int | None]
    command: str
    env: NotRequired[Environment]
    env_secret: NotRequired[SecretVariables]
    mode: NotRequired[ExecMode]
    rows: NotRequired[int | None]
    timeout: NotRequired[float | None]
    tty: NotRequired[bool]
    type: SocketKind
    user: NotRequired[str | None]
    workdir: NotRequired[FilePath | None]


class SpawnRequest(TypedDict):
    auto_pause: NotRequired[float | None]
    disk_mb: NotRequired[int | None]
    egress: NotRequired[EgressPolicy | None]
    entrypoint: NotRequired[bool | None]
    image: NotRequired[str | None]
    memory_mb: NotRequired[int | None]
    metadata: NotRequired[Labels | None]
    owner_id: NotRequired[OwnerId | None]
    pids: NotRequired[int | None]
    prepare: NotRequired[list[PrepareCommand] | None]
    provider: NotRequired[str | None]
    snapshot: NotRequired[str | None]
    template: NotRequired[str | None]
    ttl: NotRequired[float | None]
    vcpus: NotRequired[int | None]


class Template(TypedDict):
    auto_pause: NotRequired[float | None]
    created_at: str
    disk_mb: NotRequired[int | None]
    egress: NotRequired[EgressPolicy | None]
    entrypoint: NotRequired[bool | None]
    image: NotRequired[str | None]
    memory_mb: NotRequired[int | None]
    metadata: NotRequired[StringMap]
    name: str
    owner_id: NotRequired[str | None]
    pids: NotRequired[int | None]
    prepare: NotRequired[list[PrepareCommand] | None]
    provider: NotRequired[str | None]
    snapshot: NotRequired[str | None]
    ttl: NotRequired[float | None]
    updated_at: str
    vcpus: NotRequired[int | None]


class TemplateBody(TypedDict):
    auto_pause: NotRequired[float | None]
    disk_mb: NotRequired[int | None]
    egress: NotRequired[EgressPolicy | None]
    entrypoint: NotRequired[bool | None]
    image: NotRequired[str | None]
    memory_mb: NotRequired[int | None]
    metadata: NotRequired[Labels | None]
    pids: NotRequired[int | None]
    prepare: NotRequired[list[PrepareCommand] | None]
    provider: NotRequired[str | None]
    ttl: NotRequired[float | None]
    vcpus: NotRequired[int | None]


class TemplateRequest(TypedDict):
    auto_pause: NotRequired[float | None]
    disk_mb: NotRequired[int | None]
    egress: NotRequired[EgressPolicy | None]
    entrypoint: NotRequired[bool | None]
    image: NotRequired[str | None]
    memory_mb: NotRequired[int | None]
    metadata: NotRequired[Labels | None]
    name: TemplateName
    pids: NotRequired[int | None]
    prepare: NotRequired[list[PrepareCommand] | None]
    provider: NotRequired[str | None]
    ttl: NotRequired[float | None]
    vcpus: NotRequired[int | None]


class TemplateSpawnRequest(TypedDict):
    auto_pause: NotRequired[float | None]
    disk_mb: NotRequired[int | None]
    egress: NotRequired[EgressPolicy | None]
    entrypoint: NotRequired[bool | None]
    image: NotRequired[str | None]
    memory_mb: NotRequired[int | None]
    metadata: NotRequired[Labels | None]
    owner_id: NotRequired[OwnerId | None]
    pids: NotRequired[int | None]
    prepare: NotRequired[list[PrepareCommand] | None]
    provider: NotRequired[str | None]
    ttl: NotRequired[float | None]
    vcpus: NotRequired[int | None]


class WorkerFigures(TypedDict):
    items: list[WorkerItem]
    online: int
    stale: int
    total: int
    unhealthy: int


class AmendRequest(TypedDict):
    attributes: NotRequired[list[FileAttributes]]
    path: FilePath
    remove: NotRequired[list[str]]


class Diagnostics(TypedDict):
    build: Build
    events: EventFigures
    generated_at: str
    leases: NotRequired[LeaseFigures | None]
    limits: ReportedLimits
    operations: list[OperationFigures]
    process: ProcessFigures
    providers: list[ProviderHealth]
    quotas: NotRequired[QuotaSummary | None]
    rate_limit: RateLimitFigures
    redactions: list[str]
    remediation: StringMap
    request_memory: RequestMemoryFigures
    sandboxes: NotRequired[SandboxFigures | None]
    scheduler: SchedulerFigures
    store: StoreHealth
    warm_pool: list[WarmPoolFigures]
    workers: NotRequired[WorkerFigures | None]


class Egress(TypedDict):
    allowed: int
    bytes_received: int
    bytes_sent: int
    decisions: list[EgressDecision]
    denied: int
    enforced: bool
    failed: int
    open: int
    policy: EgressPolicy
    template_policy: NotRequired[EgressPolicy | None]


class Metrics(TypedDict):
    events: EventFigures
    gc_cycles: int
    goroutines: int
    leases: NotRequired[LeaseFigures | None]
    memory_alloc: int
    memory_heap_alloc: int
    memory_sys: int
    operations: list[OperationFigures]
    providers: ProviderFigures
    quotas: NotRequired[QuotaSummary | None]
    rate_limit: RateLimitFigures
    sandboxes: NotRequired[SandboxFigures | None]
    scheduler: SchedulerFigures
    uptime: float
    workers: NotRequired[WorkerFigures | None]
