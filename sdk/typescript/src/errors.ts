/** Details of an error. */
export interface ErrorDetails {
  /** Code for programs, such as `not_found`. */
  code: string;
  /** HTTP status of the answer, if there was an answer. */
  status?: number | undefined;
  /** ID of the request, as in the server's log. */
  requestId?: string | undefined;
  /** True if the same call may succeed later. */
  retryable?: boolean | undefined;
  /** Seconds after which the server allows another attempt. */
  retryAfter?: number | undefined;
  cause?: unknown;
}

/** Root of all errors of this package. The message says what to change. */
export class TideboxError extends Error {
  override name = "TideboxError";
  /** Code for programs, such as `not_found`. */
  readonly code: string;
  /** HTTP status of the answer, if there was an answer. */
  readonly status: number | undefined;
  /** ID of the request, as in the server's log. */
  readonly requestId: string | undefined;
  /** True if the same call may succeed later. */
  readonly retryable: boolean;
  /** Seconds after which the server allows another attempt. */
  readonly retryAfter: number | undefined;

  constructor(message: string, details: ErrorDetails) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = details.code;
    this.status = details.status;
    this.requestId = details.requestId;
    this.retryable = details.retryable ?? false;
    this.retryAfter = details.retryAfter;
  }
}

/** An error that the server answered with; the base of one class for each code of the API. */
export class ApiError extends TideboxError {
  override name = "ApiError";
}

/** The request is invalid. */
export class BadRequestError extends ApiError {
  override name = "BadRequestError";
}
/** The provider of the sandbox cannot do this. */
export class NotSupportedError extends ApiError {
  override name = "NotSupportedError";
}
/** The API key is missing or wrong. */
export class UnauthorizedError extends ApiError {
  override name = "UnauthorizedError";
}
/** The key, its scopes or the origin do not allow this. */
export class ForbiddenError extends ApiError {
  override name = "ForbiddenError";
}
/** The object does not exist, or has ended. */
export class NotFoundError extends ApiError {
  override name = "NotFoundError";
}
/** The server stopped waiting; see {@link RequestTimeout} for the client's own deadline. */
export class ApiTimeoutError extends ApiError {
  override name = "ApiTimeoutError";
}
/** The name is taken, or the state of the object does not allow this. */
export class ConflictError extends ApiError {
  override name = "ConflictError";
}
/** The body is larger than the server accepts. */
export class PayloadTooLargeError extends ApiError {
  override name = "PayloadTooLargeError";
}
/** A cap, a quota or a rate limit is reached; `retryAfter` says when to try again. */
export class ResourceLimitError extends ApiError {
  override name = "ResourceLimitError";
}
/** The provider of the sandbox failed. */
export class ProviderError extends ApiError {
  override name = "ProviderError";
}
/** The server failed; its log has the cause under `requestId`. */
export class InternalError extends ApiError {
  override name = "InternalError";
}
/** The provider, worker, pool or store is unavailable. */
export class UnavailableError extends ApiError {
  override name = "UnavailableError";
}
/** The sandbox or the server has no disk space left. */
export class NoSpaceError extends ApiError {
  override name = "NoSpaceError";
}

/** An argument cannot be sent; nothing was sent. */
export class InvalidArgument extends TideboxError {
  override name = "InvalidArgument";
}

/** The server cannot be reached; nothing was sent. */
export class ConnectionFailed extends TideboxError {
  override name = "ConnectionFailed";
  constructor(url: string, reason: string, cause?: unknown) {
    const advice = /certificate|UnknownIssuer/i.test(reason)
      ? "trust the authority of its certificate with NODE_EXTRA_CA_CERTS (Node.js, Bun) or DENO_CERT"
      : "is the server running? Start it with `tidebox serve`, or set `url` or TIDEBOX_URL to its address";
    super(`cannot connect to ${url}: ${reason}; ${advice}`, {
      code: "connection_failed",
      retryable: true,
      cause,
    });
  }
}

/** No answer came in time. The server may have carried out the request. */
export class RequestTimeout extends TideboxError {
  override name = "RequestTimeout";
  constructor(seconds: number) {
    const advice = "the request may have been carried out; raise `requestTimeout` if the server is slow";
    const message = `the server did not answer within ${seconds} seconds; ${advice}`;
    super(message, { code: "request_timeout", retryable: true });
  }
}

/** The connection ended before the answer did, or a stream fell silent. The outcome is unknown. */
export class StreamInterrupted extends TideboxError {
  override name = "StreamInterrupted";
  constructor(reason: string, cause?: unknown) {
    super(`the connection was interrupted: ${reason}`, { code: "stream_interrupted", cause });
  }
}

/** The answer does not come from a Tidebox server, for example an HTML page of a proxy. */
export class ProtocolError extends TideboxError {
  override name = "ProtocolError";
  constructor(url: string, reason: string, status?: number, requestId?: string) {
    const advice = "check `url` and any proxy in front of the server";
    super(`${url} does not answer like a Tidebox server: ${reason}; ${advice}`, {
      code: "protocol_error",
      status,
      requestId,
      retryable: status !== undefined && status >= 502 && status <= 504,
    });
  }
}

/** A command exited with another code than 0; thrown by `check()`. */
export class CommandFailed extends TideboxError {
  override name = "CommandFailed";
  readonly exitCode: number;
  readonly stdout: string | Uint8Array;
  readonly stderr: string | Uint8Array;
  constructor(message: string, result: { exitCode: number; stdout: string | Uint8Array; stderr: string | Uint8Array }) {
    super(message, { code: "command_failed" });
    this.exitCode = result.exitCode;
    this.stdout = result.stdout;
    this.stderr = result.stderr;
  }
}

/** Code failed, was interrupted or ran into its deadline; thrown by `check()`. */
export class CodeFailed extends TideboxError {
  override name = "CodeFailed";
  /** End of the code: `error`, `interrupted`, `timed_out` or `died`. */
  readonly outcome: string;
  constructor(message: string, outcome: string) {
    super(message, { code: "code_failed" });
    this.outcome = outcome;
  }
}

type ApiErrorClass = new (message: string, details: ErrorDetails) => ApiError;

/** Classes of errors by the code of the API. */
export const API_ERRORS: Readonly<Record<string, ApiErrorClass>> = {
  bad_request: BadRequestError,
  not_supported: NotSupportedError,
  unauthorized: UnauthorizedError,
  forbidden: ForbiddenError,
  not_found: NotFoundError,
  timeout: ApiTimeoutError,
  conflict: ConflictError,
  payload_too_large: PayloadTooLargeError,
  resource_limit: ResourceLimitError,
  provider_error: ProviderError,
  internal: InternalError,
  unavailable: UnavailableError,
  no_space: NoSpaceError,
};

/** Advice for codes whose cause is in the client's configuration. */
const ADVICE: Readonly<Record<string, string>> = {
  unauthorized: "pass `apiKey`, or set TIDEBOX_API_KEY",
};

/** Makes the error for a code of the API. */
export function apiError(message: string, details: ErrorDetails): ApiError {
  const { code, status, retryAfter } = details;
  const advice = ADVICE[code] ?? (retryAfter === undefined ? undefined : `try again in ${retryAfter} seconds`);
  const text = advice === undefined ? message : `${message} (${advice})`;
  const retryable = retryAfter !== undefined || [408, 502, 503, 504].includes(status ?? 0);
  const known = Object.hasOwn(API_ERRORS, code) ? API_ERRORS[code] : undefined;
  return new (known ?? ApiError)(text, { ...details, retryable });
}

/** Makes the error for an argument that cannot be sent. */
export function badArgument(message: string): InvalidArgument {
  return new InvalidArgument(message, { code: "invalid_argument" });
}
