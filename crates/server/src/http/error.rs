//! Mapping of failures to statuses and codes. The only place that does so; each front renders the
//! bodies of its answers.

use std::sync::Arc;

use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use providers::Chain;

use super::accept::body_timeout::Stalled;
use crate::budget::Spent;
use crate::control::{Conflict, Error as Control, Resource};

/// Error of a handler or a middleware.
#[derive(Debug)]
pub enum ApiError {
    /// Error of the control: the request was refused or failed.
    Control(Control),
    /// Refusal of the request before it reached the control.
    Request(Refusal),
}

/// Reasons to refuse a request before it reaches the control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Request that makes no sense.
    Malformed(String),
    /// Body of another type than JSON.
    MediaType,
    /// Body without a content type of archives.
    ArchiveType,
    /// Body larger than the route takes. Holds the bound in bytes.
    TooLarge(u64),
    /// More headers than a request may have. Holds the bound.
    TooManyHeaders(usize),
    /// The caller holds as much of the server's memory as it may.
    Busy,
    /// The body came too slowly.
    Stalled,
    /// Plain HTTP on a port that speaks TLS.
    NeedsTls,
    /// `Host` header with a name that is not served here.
    Host,
    /// A page of another origin would change something, and no key is asked for.
    Origin,
    /// A page of a sandbox, or of a name below the domain of the previews.
    SandboxOrigin,
    /// No key, or a wrong one. The text names the one that is required.
    Unauthorized(String),
    /// A right key that does not open the route. The text says why.
    Forbidden(&'static str),
    /// An owner's key, and another owner in this part of the request.
    OtherOwner(&'static str),
    /// The caller is above its rate limit.
    TooFast {
        /// Time after which the caller may ask again, in seconds; at least 1.
        wait_s: u64,
    },
    /// No route has this path.
    NoRoute(String),
    /// No route for E2B's SDKs has this path.
    NoE2bRoute(String),
    /// The route does not have this method.
    Method,
    /// Pages of this origin may not open a WebSocket.
    SocketOrigin,
    /// Range outside the file. Holds the file's size in bytes.
    Range(u64),
    /// Nothing listens on this port of a sandbox that a preview is of.
    NothingListens(u16),
    /// The program on the port of a preview does not answer in HTTP.
    BadAnswer,
    /// The program on the port of a preview takes too long for an answer.
    NoAnswer,
    /// A preview was asked for through so many others that it must be a loop.
    Loop,
    /// The sandbox that a request to its inside names does not run. Holds its id.
    NoSandbox(String),
    /// Nothing listens on the port of a sandbox that runs.
    PortClosed { sandbox: String, port: u16 },
    /// A port of a sandbox asks for its traffic token.
    NoTrafficToken,
    /// Error of a remote procedure call, with the code of its protocol.
    Rpc(RpcCode, String),
    /// Fault of the server.
    Internal,
}

/// Codes of the errors of remote procedure calls in the Connect protocol, as far as they are used.
/// <https://connectrpc.com/docs/protocol#error-codes>
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RpcCode {
    InvalidArgument,
    Unauthenticated,
    PermissionDenied,
    NotFound,
    AlreadyExists,
    ResourceExhausted,
    DeadlineExceeded,
    Unimplemented,
    Unavailable,
    Internal,
}

impl RpcCode {
    /// Returns the name of the code on the wire.
    pub fn name(self) -> &'static str {
        self.status_and_name().1
    }

    fn status_and_name(self) -> (StatusCode, &'static str) {
        match self {
            RpcCode::InvalidArgument => (StatusCode::BAD_REQUEST, "invalid_argument"),
            RpcCode::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated"),
            RpcCode::PermissionDenied => (StatusCode::FORBIDDEN, "permission_denied"),
            RpcCode::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            RpcCode::AlreadyExists => (StatusCode::CONFLICT, "already_exists"),
            RpcCode::ResourceExhausted => (StatusCode::TOO_MANY_REQUESTS, "resource_exhausted"),
            RpcCode::DeadlineExceeded => (StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded"),
            RpcCode::Unimplemented => (StatusCode::NOT_IMPLEMENTED, "unimplemented"),
            RpcCode::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            RpcCode::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        }
    }
}

/// Result of a handler.
pub type Result<T, E = ApiError> = std::result::Result<T, E>;

impl From<Control> for ApiError {
    fn from(error: Control) -> Self {
        Self::Control(error)
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self::Request(refusal)
    }
}

impl From<Spent> for ApiError {
    fn from(_: Spent) -> Self {
        Refusal::Busy.into()
    }
}

/// Returns the error of a remote procedure call.
pub fn rpc(code: RpcCode, text: impl Into<String>) -> ApiError {
    Refusal::Rpc(code, text.into()).into()
}

/// Returns the error for a request that makes no sense.
pub fn malformed(text: impl Into<String>) -> ApiError {
    Refusal::Malformed(text.into()).into()
}

impl Refusal {
    fn status(&self) -> (StatusCode, &'static str) {
        match self {
            Refusal::Malformed(_) | Refusal::NeedsTls => (StatusCode::BAD_REQUEST, "bad_request"),
            Refusal::MediaType | Refusal::ArchiveType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
            Refusal::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large"),
            Refusal::TooManyHeaders(_) => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "bad_request"),
            Refusal::Busy => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            Refusal::Stalled => (StatusCode::REQUEST_TIMEOUT, "timeout"),
            Refusal::Host
            | Refusal::Origin
            | Refusal::SandboxOrigin
            | Refusal::SocketOrigin
            | Refusal::Forbidden(_)
            | Refusal::OtherOwner(_) => (StatusCode::FORBIDDEN, "forbidden"),
            Refusal::Unauthorized(_) => (StatusCode::UNAUTHORIZED, "unauthorized"),
            Refusal::TooFast { .. } => (StatusCode::TOO_MANY_REQUESTS, "resource_limit"),
            Refusal::NoRoute(_) | Refusal::NoE2bRoute(_) => (StatusCode::NOT_FOUND, "not_found"),
            Refusal::Method => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Refusal::Range(_) => (StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable"),
            Refusal::NothingListens(_) | Refusal::BadAnswer => (StatusCode::BAD_GATEWAY, "bad_gateway"),
            Refusal::NoAnswer => (StatusCode::GATEWAY_TIMEOUT, "timeout"),
            Refusal::Loop => (StatusCode::LOOP_DETECTED, "loop_detected"),
            Refusal::NoSandbox(_) | Refusal::PortClosed { .. } => (StatusCode::BAD_GATEWAY, "bad_gateway"),
            Refusal::NoTrafficToken => (StatusCode::FORBIDDEN, "forbidden"),
            Refusal::Rpc(code, _) => code.status_and_name(),
            Refusal::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        }
    }

    fn message(&self) -> String {
        match self {
            Refusal::Malformed(text) | Refusal::Unauthorized(text) | Refusal::Rpc(_, text) => text.clone(),
            Refusal::Forbidden(text) => (*text).to_owned(),
            Refusal::OtherOwner(part) => {
                format!(
                    "{part} names another owner than the one that the key acts as; leave it out, or name that owner"
                )
            }
            Refusal::MediaType => "send the body with `Content-Type: application/json`".to_owned(),
            Refusal::ArchiveType => "send the archive with `Content-Type: application/x-tar`, or application/gzip, \
                                     application/zstd or application/octet-stream"
                .to_owned(),
            Refusal::TooLarge(max) => format!("the body is larger than the {max} bytes that this route accepts"),
            Refusal::TooManyHeaders(max) => format!("the request has more than {max} headers; send fewer"),
            Refusal::Busy => {
                "your requests already use all the server memory that they are allowed; read or cancel open requests \
                 and try again, send files by PUT as `application/octet-stream`, or raise `limits.request_memory_mb`"
                    .to_owned()
            }
            Refusal::Stalled => format!("the body stalled: {}; send it without long pauses", Stalled),
            Refusal::NeedsTls => "this port speaks TLS; use https://".to_owned(),
            Refusal::Host => "this `Host` is not served here; use a loopback address, or list the name in \
                              `server.allowed_hosts`"
                .to_owned(),
            Refusal::Origin => "pages from this `Origin` may not send this request; list the origin in \
                                `server.cors_allowed_origins`, where `*` has no effect while `auth.enabled` is false"
                .to_owned(),
            Refusal::SandboxOrigin => {
                "pages of a sandbox may not use the API, and names below `server.preview_domain` belong to sandboxes; \
                 serve other pages from another domain, or list their origin by name in `server.cors_allowed_origins`"
                    .to_owned()
            }
            Refusal::TooFast { wait_s } => {
                format!("too many requests; retry in {wait_s} seconds, and stay below `X-RateLimit-Limit`")
            }
            Refusal::NoRoute(path) => {
                format!("there is no route `{path}`; GET /api/v1/openapi.json describes all routes")
            }
            Refusal::NoE2bRoute(path) => {
                format!("this server does not have E2B's route `{path}`; docs/use/e2b.md lists what it has")
            }
            Refusal::Method => "this route does not support this method; see the `Allow` header".to_owned(),
            Refusal::SocketOrigin => {
                "pages from this origin may not open a WebSocket here; list the origin by name in \
                 `server.cors_allowed_origins`, where `*` has no effect on WebSockets"
                    .to_owned()
            }
            Refusal::Range(size) => format!("the range is outside the file, which has {size} bytes"),
            Refusal::NothingListens(port) => {
                format!("nothing listens on port {port} in the sandbox; start the program, and try again")
            }
            Refusal::BadAnswer => {
                "the program on this port of the sandbox closed the connection, or does not speak HTTP".to_owned()
            }
            Refusal::NoAnswer => "the program on this port of the sandbox takes too long to answer".to_owned(),
            // Clients look for the words of these two.
            Refusal::NoSandbox(_) => "The sandbox was not found".to_owned(),
            Refusal::PortClosed { .. } => "The sandbox is running but port is not open".to_owned(),
            Refusal::NoTrafficToken => "this port requires the header `e2b-traffic-access-token`; it is \
                                        `trafficAccessToken` of the sandbox"
                .to_owned(),
            Refusal::Loop => "this request has passed through too many previews; it is in a loop".to_owned(),
            Refusal::Internal => "internal error; the server's log has the cause under this request's id".to_owned(),
        }
    }
}

fn control_status(error: &Control) -> (StatusCode, &'static str) {
    match error {
        Control::Invalid(_) | Control::InvalidName { .. } | Control::InvalidImage(_) | Control::PrepareFailed(_) => {
            (StatusCode::BAD_REQUEST, "bad_request")
        }
        // An option that the provider cannot enforce is the caller's error.
        Control::NotSupported(_) => (StatusCode::BAD_REQUEST, "not_supported"),
        Control::NotFound(..) | Control::NoProvider { .. } | Control::NoFile(_) => (StatusCode::NOT_FOUND, "not_found"),
        Control::OfOperator(..) => (StatusCode::FORBIDDEN, "forbidden"),
        Control::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
        Control::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large"),
        Control::LimitReached(_) => (StatusCode::TOO_MANY_REQUESTS, "resource_limit"),
        Control::Unavailable(_) | Control::Store(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        Control::NoSpace | Control::Full(_) => (StatusCode::INSUFFICIENT_STORAGE, "no_space"),
        Control::Timeout(_) => (StatusCode::REQUEST_TIMEOUT, "timeout"),
        Control::Provider { .. } | Control::Images { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "provider_error"),
        Control::Secrets(_) => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
    }
}

/// Error of an answer, as its extension: the front renders it, and the audit history reads its code.
#[derive(Debug, Clone)]
pub struct Failure(pub Arc<ApiError>);

impl ApiError {
    /// Returns the status of the answer.
    pub fn status(&self) -> StatusCode {
        self.status_and_code().0
    }

    /// Returns the name of the cause in the API.
    pub fn code(&self) -> &'static str {
        self.status_and_code().1
    }

    /// Returns the text for the caller.
    pub fn message(&self) -> String {
        match self {
            ApiError::Control(error) => error.to_string(),
            ApiError::Request(refusal) => refusal.message(),
        }
    }

    /// Returns the code of the error in the answer to a remote procedure call, and its status.
    pub fn rpc_code(&self) -> (RpcCode, StatusCode) {
        let code = self.own_rpc_code().unwrap_or_else(|| match self.code() {
            "bad_request" | "unsupported_media_type" | "range_not_satisfiable" => RpcCode::InvalidArgument,
            "unauthorized" => RpcCode::Unauthenticated,
            "forbidden" => RpcCode::PermissionDenied,
            "not_found" => RpcCode::NotFound,
            "conflict" => RpcCode::AlreadyExists,
            "payload_too_large" | "resource_limit" | "no_space" => RpcCode::ResourceExhausted,
            "timeout" => RpcCode::DeadlineExceeded,
            "not_supported" | "method_not_allowed" => RpcCode::Unimplemented,
            "unavailable" | "bad_gateway" => RpcCode::Unavailable,
            _ => RpcCode::Internal,
        });
        (code, code.status_and_name().0)
    }

    /// Returns the code of an error whose name in the API does not say it.
    fn own_rpc_code(&self) -> Option<RpcCode> {
        if let ApiError::Request(Refusal::Rpc(code, _)) = self {
            return Some(*code);
        }
        // The box has ended, or was paused, since the request was let through.
        let is_gone = match self {
            ApiError::Control(Control::NotFound(resource, _)) => *resource == Resource::Sandbox,
            ApiError::Control(Control::Conflict(conflict)) => {
                !matches!(conflict, Conflict::Exists { .. } | Conflict::Refused(_))
            }
            ApiError::Control(_) | ApiError::Request(_) => false,
        };
        let is_busy = matches!(self, ApiError::Request(Refusal::Busy));
        is_gone.then_some(RpcCode::Unavailable).or(is_busy.then_some(RpcCode::ResourceExhausted))
    }

    /// Logs the cause of errors whose answers do not contain it.
    pub fn log(&self) {
        let ApiError::Control(error) = self else { return };
        if let Control::Provider { .. } | Control::Store(_) | Control::Images { .. } | Control::Secrets(_) = error {
            tracing::error!(error = %Chain(error), "a request failed");
        }
    }

    fn status_and_code(&self) -> (StatusCode, &'static str) {
        match self {
            ApiError::Control(error) => control_status(error),
            ApiError::Request(refusal) => refusal.status(),
        }
    }
}

impl IntoResponse for ApiError {
    /// Makes the answer without a body, because only the front of the request knows its form.
    fn into_response(self) -> Response {
        self.log();
        let mut response = self.status().into_response();
        response.extensions_mut().insert(Failure(Arc::new(self)));
        response
    }
}

/// Answers a request to a path without a route.
pub async fn no_such_route(uri: Uri) -> ApiError {
    Refusal::NoRoute(uri.path().chars().take(200).collect()).into()
}

/// Answers a request with a method that its path does not have.
pub async fn method_not_allowed() -> ApiError {
    Refusal::Method.into()
}
