//! Cross-origin requests (CORS): the origins that may use the API, and the answer to a preflight.
//!
//! Keys are sent as headers, never by the browser on its own, so credentials are never allowed
//! and `*` may be answered literally.

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Request headers that a page may send besides the safelisted ones.
const HEADERS_IN: &str = "authorization, content-type, content-encoding, range, x-api-key, x-admin-api-key, \
                          x-user-id, x-request-id, idempotency-key, last-event-id";
/// Response headers that a page may read besides the safelisted ones.
const HEADERS_OUT: &str = "x-next-cursor, x-request-id, x-exit-code, retry-after, x-ratelimit-limit, \
                           x-ratelimit-remaining, server-timing, content-range, accept-ranges, content-disposition, \
                           www-authenticate";
const METHODS: &str = "GET, HEAD, POST, PUT, DELETE";
/// Time for which a browser may cache a preflight, in seconds.
const REMEMBERED_S: &str = "600";

/// Origins that may use the API.
#[derive(Debug, Clone)]
pub struct Cors {
    any: bool,
    origins: Vec<String>,
}

impl Cors {
    /// Builds the rule of `server.cors_allowed_origins`.
    #[must_use]
    pub fn new(origins: &[String]) -> Cors {
        Cors {
            any: origins.iter().any(|origin| origin == "*"),
            origins: origins.iter().filter(|origin| *origin != "*").cloned().collect(),
        }
    }

    /// Returns whether this origin is listed by name; `*` does not count.
    pub fn lists(&self, origin: &str) -> bool {
        self.origins.iter().any(|listed| listed.eq_ignore_ascii_case(origin))
    }

    /// Returns whether a WebSocket may be opened. Browsers send no preflight for one, and show
    /// the page what is received. `*` does not count: the origin must be listed by name, be
    /// that of the server itself, or be absent, which no page can arrange.
    pub fn admits_socket(&self, request: &HeaderMap) -> bool {
        let mut origins = request.get_all(header::ORIGIN).iter();
        let Some(origin) = origins.next() else { return true };
        let (Ok(origin), None) = (origin.to_str(), origins.next()) else { return false };
        let host = request.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        self.lists(origin) || authority.is_some_and(|own| !host.is_empty() && own.eq_ignore_ascii_case(host))
    }

    /// Returns the answer to a preflight; `None` for any other request.
    pub fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<Response> {
        let asks = *method == Method::OPTIONS
            && headers.contains_key(header::ORIGIN)
            && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if !asks {
            return None;
        }
        let mut response = StatusCode::NO_CONTENT.into_response();
        // Without an `Access-Control-Allow-Origin`, the others have no effect.
        if self.answer(headers).is_some() {
            for (name, value) in [
                (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
                (header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS_IN),
                (header::ACCESS_CONTROL_MAX_AGE, REMEMBERED_S),
            ] {
                response.headers_mut().insert(name, HeaderValue::from_static(value));
            }
        }
        Some(response)
    }

    /// Returns the `Access-Control-Allow-Origin` for this request, if any.
    pub fn answer(&self, request: &HeaderMap) -> Option<HeaderValue> {
        let origin = request.get(header::ORIGIN)?;
        if self.any {
            return Some(HeaderValue::from_static("*"));
        }
        self.lists(origin.to_str().ok()?).then(|| origin.clone())
    }

    /// Adds the CORS headers to an answer. `allowed` is the result of [`Cors::answer`].
    pub fn mark(&self, allowed: Option<HeaderValue>, response: &mut HeaderMap) {
        if !self.any {
            response.append(header::VARY, HeaderValue::from_static("origin"));
        }
        if let Some(allowed) = allowed {
            response.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
            response.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(HEADERS_OUT));
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn asked_from(origin: &str) -> HeaderMap {
        HeaderMap::from_iter([
            (header::ORIGIN, origin.parse().unwrap()),
            (header::ACCESS_CONTROL_REQUEST_METHOD, HeaderValue::from_static("POST")),
        ])
    }

    #[track_caller]
    fn check(listed: &[&str], origin: &str, expected: Option<&str>) {
        let cors = Cors::new(&listed.iter().map(|&origin| origin.to_owned()).collect::<Vec<_>>());
        let headers = asked_from(origin);
        let answer = cors.answer(&headers);
        assert_eq!(answer.as_ref().map(|value| value.to_str().unwrap()), expected, "{listed:?} {origin}");
        let preflight = cors.preflight(&Method::OPTIONS, &headers).unwrap();
        assert_eq!(preflight.headers().contains_key(header::ACCESS_CONTROL_ALLOW_HEADERS), expected.is_some());
    }

    #[test]
    fn an_origin_is_allowed_when_it_is_listed_whole_or_any_is() {
        let app = "https://app.example";
        check(&["*"], app, Some("*"));
        check(&["*", app], "null", Some("*"));
        check(&[app], app, Some(app));
        for other in ["http://app.example", "https://app.example:444", "https://app.example.evil", "null", ""] {
            check(&[app], other, None);
        }
        check(&[], app, None);
    }

    #[test]
    fn only_a_preflight_is_answered_as_one() {
        let cors = Cors::new(&["*".to_owned()]);
        let mut headers = asked_from("https://app.example");
        assert!(cors.preflight(&Method::POST, &headers).is_none());
        headers.remove(header::ACCESS_CONTROL_REQUEST_METHOD);
        assert!(cors.preflight(&Method::OPTIONS, &headers).is_none());
    }

    #[test]
    fn a_websocket_needs_an_origin_that_is_listed_or_our_own_or_none() {
        let cors = Cors::new(&["*".to_owned(), "https://app.example".to_owned()]);
        let asked = |origins: &[&str]| {
            let mut headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("box.example:7423"))]);
            for origin in origins {
                headers.append(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
            }
            cors.admits_socket(&headers)
        };
        assert!(asked(&[]));
        for origin in ["https://app.example", "http://box.example:7423", "https://BOX.example:7423"] {
            assert!(asked(&[origin]), "{origin}");
        }
        for origin in [
            "https://evil.example",
            "null",
            "",
            "*",
            "http://box.example",
            "http://box.example:7424",
            "http://box.example:7423.evil.example",
            "ftp://box.example:7423",
            "box.example:7423",
            "https://app.example:444",
        ] {
            assert!(!asked(&[origin]), "{origin}");
        }
        assert!(!asked(&["https://app.example", "https://evil.example"]));
        let mut nameless = HeaderMap::new();
        nameless.insert(header::ORIGIN, HeaderValue::from_static("http://"));
        assert!(!cors.admits_socket(&nameless));
    }

    #[test]
    fn the_star_does_not_list_an_origin() {
        let cors = Cors::new(&["*".to_owned(), "https://app.example".to_owned()]);
        assert!(cors.lists("https://APP.example"));
        assert!(!cors.lists("https://other.example") && !cors.lists("*"));
    }
}
