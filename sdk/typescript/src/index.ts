/**
 * SDK for Tidebox, a self-hosted service that makes disposable sandboxes for untrusted code.
 *
 * @module
 */

export { Client, VERSION } from "./client.ts";
export type { Admin } from "./client.ts";
export type {
  AuditEntry,
  AuditOptions,
  ClientCallOptions,
  ClientOptions,
  EventOptions,
  Health,
  ProviderHealth,
  Quota,
  Readiness,
  TideboxEvent,
  WorkerInfo,
} from "./client.ts";
export { Sandbox } from "./sandbox.ts";
export type {
  CreateOptions,
  EgressControl,
  EgressInfo,
  EgressPolicy,
  ListeningPort,
  ListOptions,
  PauseOptions,
  Ports,
  PrepareCommand,
  Preview,
  SandboxInfo,
  SandboxSettings,
  SandboxStats,
  SnapshotInfo,
} from "./sandbox.ts";
export { Result } from "./commands.ts";
export type { Command, CommandOptions, Encoded, RunOptions, StreamOptions } from "./commands.ts";
export type { CommandPiece, Encoding, Exit, Gap, Output, ProcessPiece } from "./output.ts";
export { CodeResult, Execution } from "./code.ts";
export type { CodeError, CodeOptions, Completions, ContextInfo, ContextOptions, Contexts, Language } from "./code.ts";
export { Files } from "./files.ts";
export type {
  FileChange,
  FileContent,
  FileInfo,
  Format,
  ReplaceOptions,
  ReplaceResult,
  SearchOptions,
  SearchResult,
} from "./files.ts";
export { Process, Terminal } from "./processes.ts";
export type { OutputOptions, ProcessInfo, Processes, ShellOptions, StartOptions } from "./processes.ts";
export { Image, Key, Secret, Snapshot, Template } from "./resources.ts";
export type {
  ImageDetail,
  ImageInfo,
  KeyInfo,
  KeyOptions,
  PullProgress,
  SecretInfo,
  SecretSettings,
  TemplateInfo,
  TemplateOptions,
} from "./resources.ts";
export type { Content, Data } from "./bytes.ts";
export { Subscription } from "./http.ts";
export type { CallOptions } from "./http.ts";
export {
  ApiError,
  ApiTimeoutError,
  BadRequestError,
  CodeFailed,
  CommandFailed,
  ConflictError,
  ConnectionFailed,
  ForbiddenError,
  InternalError,
  InvalidArgument,
  NoSpaceError,
  NotFoundError,
  NotSupportedError,
  PayloadTooLargeError,
  ProtocolError,
  ProviderError,
  RequestTimeout,
  ResourceLimitError,
  StreamInterrupted,
  TideboxError,
  UnauthorizedError,
  UnavailableError,
} from "./errors.ts";
export type { ErrorDetails } from "./errors.ts";
