//! Errors in the form of the API: `{code, message}`, and the headers that tell a client what to do.

use axum::Json;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::http::error::{ApiError, Refusal};

/// `Retry-After` while memory is spent, in seconds: most answers are read within it. A program that
/// is being started listens after about as long.
const BUSY_RETRY_S: u64 = 1;

impl From<&ApiError> for api::ErrorBody {
    fn from(error: &ApiError) -> Self {
        Self { code: error.code().to_owned(), message: error.message() }
    }
}

/// Renders an error into its answer, which has the status already.
pub fn render(error: &ApiError, response: &mut Response) {
    let (rendered, body) = Json(api::ErrorBody::from(error)).into_response().into_parts();
    *response.body_mut() = body;
    let headers = response.headers_mut();
    headers.extend(rendered.headers);
    let ApiError::Request(refusal) = error else { return };
    if let Refusal::Range(size) = refusal
        && let Ok(value) = HeaderValue::try_from(format!("bytes */{size}"))
    {
        headers.insert(header::CONTENT_RANGE, value);
    }
    if let Refusal::TooFast { wait_s } = refusal {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(*wait_s));
    }
    if let Refusal::Busy | Refusal::NothingListens(_) = refusal {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(BUSY_RETRY_S));
    }
    if let Refusal::Unauthorized(_) = refusal {
        let scheme = HeaderValue::from_static("Bearer realm=\"tidebox\"");
        headers.insert(header::WWW_AUTHENTICATE, scheme);
    }
}
