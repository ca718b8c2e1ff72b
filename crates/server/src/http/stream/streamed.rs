//! Responses whose bodies are sent as they come about.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;

/// Returns the response with this body, which is neither kept nor gathered on its way.
pub fn streamed(body: Body, kind: HeaderValue) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx would gather it.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
