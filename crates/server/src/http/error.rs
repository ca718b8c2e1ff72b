//! The only place where a failure becomes a status and a code.

use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use providers::Chain;

use crate::budget::Spent;
use crate::control::Error as Control;

/// When to ask again while memory is spent, in seconds: most answers are read within it.
const BUSY_RETRY_S: u64 = 1;

/// Why a request was not done.
#[derive(Debug)]
pub enum ApiError {
    /// The service said no, or failed.
    Control(Control),
    /// The request could not be read.
    Request(Refusal),
}

/// What is wrong with a request before the service sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// It cannot be understood.
    Malformed(String),
    /// The body has another type than JSON.
    MediaType,
    /// The body does not say that it is an archive.
    ArchiveType,
    /// The body is larger than what the route takes.
    TooLarge(u64),
    /// The caller holds as much of the server's memory as it may now.
    Busy,
    /// The body came to a halt.
    Stalled,
    /// It came without TLS to a port that speaks it.
    NeedsTls,
    /// The `Host` header names somebody else.
    Host,
    /// A page of somebody else's sent it without having asked.
    Origin,
    /// No key, or a wrong one; the text says which is asked for.
    Unauthorized(String),
    /// The caller has asked too often; it may again in so many seconds.
    TooFast {
        /// At least 1.
        wait_s: u64,
    },
    /// There is no such route.
    NoRoute(String),
    /// The route does not have this method.
    Method,
    /// Pages of this origin may not open a WebSocket.
    SocketOrigin,
    /// The part of the file that is asked for is not there; its size is.
    Range(u64),
    /// We have a fault.
    Internal,
}

/// The result of a handler.
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

/// The error of a request that makes no sense.
pub fn malformed(text: impl Into<String>) -> ApiError {
    Refusal::Malformed(text.into()).into()
}

impl Refusal {
    fn status(&self) -> (StatusCode, &'static str) {
        match self {
            Refusal::Malformed(_) | Refusal::NeedsTls => (StatusCode::BAD_REQUEST, "bad_request"),
            Refusal::MediaType | Refusal::ArchiveType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
            Refusal::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large"),
            Refusal::Busy => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            Refusal::Stalled => (StatusCode::REQUEST_TIMEOUT, "timeout"),
            Refusal::Host | Refusal::Origin | Refusal::SocketOrigin => (StatusCode::FORBIDDEN, "forbidden"),
            Refusal::Unauthorized(_) => (StatusCode::UNAUTHORIZED, "unauthorized"),
            Refusal::TooFast { .. } => (StatusCode::TOO_MANY_REQUESTS, "resource_limit"),
            Refusal::NoRoute(_) => (StatusCode::NOT_FOUND, "not_found"),
            Refusal::Method => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Refusal::Range(_) => (StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable"),
            Refusal::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        }
    }

    fn message(&self) -> String {
        match self {
            Refusal::Malformed(text) | Refusal::Unauthorized(text) => text.clone(),
            Refusal::MediaType => "send the body with `Content-Type: application/json`".to_owned(),
            Refusal::ArchiveType => "send the archive with `Content-Type: application/x-tar`, or application/gzip, \
                                     application/zstd or application/octet-stream"
                .to_owned(),
            Refusal::TooLarge(max) => format!("the body is larger than the {max} bytes that this route takes"),
            Refusal::Busy => {
                "your requests hold as much of the server's memory as they may now; read or end those that are \
                 under way and try again, send files by PUT as `application/octet-stream`, or raise \
                 `limits.request_memory_mb`"
                    .to_owned()
            }
            Refusal::Stalled => format!("the body came to a halt: {}; send it without long pauses", super::Stalled),
            Refusal::NeedsTls => "this port speaks TLS; use https://".to_owned(),
            Refusal::Host => "this `Host` is not served here; use a loopback address, or list the name in \
                              `server.allowed_hosts`"
                .to_owned(),
            Refusal::Origin => "a page of this `Origin` may not send this; send `Content-Type: application/json`, so \
                                that the browser asks first, or list the origin in `server.cors_allowed_origins`"
                .to_owned(),
            Refusal::TooFast { wait_s } => format!(
                "too many requests; ask again in {wait_s} seconds, and then less often than `X-RateLimit-Limit` says"
            ),
            Refusal::NoRoute(path) => {
                format!("there is no route `{path}`; GET /api/v1/openapi.json describes those there are")
            }
            Refusal::Method => "this route does not have this method; the `Allow` header names those it has".to_owned(),
            Refusal::SocketOrigin => "pages of this origin may not open a WebSocket here; list it by name in \
                                `server.cors_allowed_origins`, where `*` does not count for WebSockets"
                .to_owned(),
            Refusal::Range(size) => format!("the range lies outside the file, which has {size} bytes"),
            Refusal::Internal => "the server has a fault; its log has the cause under this request's id".to_owned(),
        }
    }
}

fn control_status(error: &Control) -> (StatusCode, &'static str) {
    match error {
        Control::Invalid(_) => (StatusCode::BAD_REQUEST, "bad_request"),
        // Decided: an option that the provider cannot enforce is the caller's error.
        Control::NotSupported(_) => (StatusCode::BAD_REQUEST, "not_supported"),
        Control::NotFound(..) | Control::NoProvider { .. } | Control::NoFile(_) => (StatusCode::NOT_FOUND, "not_found"),
        Control::Conflict(_) => (StatusCode::CONFLICT, "conflict"),
        Control::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large"),
        Control::LimitReached(_) => (StatusCode::TOO_MANY_REQUESTS, "resource_limit"),
        Control::Unavailable(_) | Control::Store(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        Control::NoSpace | Control::Full(_) => (StatusCode::INSUFFICIENT_STORAGE, "no_space"),
        Control::Timeout(_) => (StatusCode::REQUEST_TIMEOUT, "timeout"),
        Control::Provider { .. } | Control::Images { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "provider_error"),
    }
}

/// The code of an error, beside its answer, for those that answers pass by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub &'static str);

impl ApiError {
    fn code(&self) -> Code {
        Code(match self {
            ApiError::Control(error) => control_status(error).1,
            ApiError::Request(refusal) => refusal.status().1,
        })
    }

    /// Tells the log why, where the caller is told no more than that it is there.
    pub fn log(&self) {
        let ApiError::Control(error) = self else { return };
        if let Control::Provider { .. } | Control::Store(_) | Control::Images { .. } = error {
            tracing::error!(error = %Chain(error), "a request failed");
        }
    }

    /// The body of the answer; also the last words of a stream that has begun.
    pub fn body(&self) -> (StatusCode, api::ErrorBody) {
        let ((status, code), message) = match self {
            ApiError::Control(error) => (control_status(error), error.to_string()),
            ApiError::Request(refusal) => (refusal.status(), refusal.message()),
        };
        (status, api::ErrorBody { code: code.to_owned(), message })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, body) = self.body();
        self.log();
        let code = self.code();
        let mut response = (status, Extension(code), Json(body)).into_response();
        if let ApiError::Request(Refusal::Range(size)) = &self
            && let Ok(value) = HeaderValue::try_from(format!("bytes */{size}"))
        {
            response.headers_mut().insert(header::CONTENT_RANGE, value);
        }
        if let ApiError::Request(Refusal::TooFast { wait_s }) = &self {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(*wait_s));
        }
        if let ApiError::Request(Refusal::Busy) = &self {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(BUSY_RETRY_S));
        }
        if let ApiError::Request(Refusal::Unauthorized(_)) = &self {
            let scheme = HeaderValue::from_static("Bearer realm=\"tidebox\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

/// The answer to a path that nobody serves.
pub async fn no_such_route(uri: Uri) -> ApiError {
    Refusal::NoRoute(uri.path().chars().take(200).collect()).into()
}

/// The answer to a method that a path does not have.
pub async fn method_not_allowed() -> ApiError {
    Refusal::Method.into()
}
