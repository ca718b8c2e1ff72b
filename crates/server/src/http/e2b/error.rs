//! Errors in the form of E2B: `{code, message}` with the status as a number, which its SDKs read.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::control::Error;
use crate::http::error::{ApiError, Refusal};

/// Header that tells Python's SDK whether to send a request again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");
/// `Retry-After` while memory is spent, in seconds.
const BUSY_RETRY_S: u64 = 1;

/// Renders an error into its answer, which has the status already.
pub fn render(error: &ApiError, response: &mut Response) {
    let (code, message) = (response.status().as_u16(), error.message());
    let mut body = json!({"code": code, "message": message});
    if let ApiError::Request(Refusal::NoSandbox(id) | Refusal::PortClosed { sandbox: id, .. }) = error {
        body["sandboxId"] = id.as_str().into();
    }
    if let ApiError::Request(Refusal::PortClosed { port, .. }) = error {
        body["port"] = (*port).into();
    }
    let (rendered, body) = Json(body).into_response().into_parts();
    *response.body_mut() = body;
    let headers = response.headers_mut();
    headers.extend(rendered.headers);
    match error {
        ApiError::Request(Refusal::TooFast { wait_s }) => {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(*wait_s));
        }
        ApiError::Request(Refusal::Busy) => {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(BUSY_RETRY_S));
        }
        // Waiting cures no cap, and the request would be repeated three times with all of its body.
        ApiError::Control(Error::LimitReached(_)) => {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        ApiError::Control(_) | ApiError::Request(_) => {}
    }
}

/// Returns whether an error has words that clients look for, whichever front answers.
pub fn has_words(error: &ApiError) -> bool {
    matches!(error, ApiError::Request(Refusal::NoSandbox(_) | Refusal::PortClosed { .. } | Refusal::NoTrafficToken))
}
