//! Cross-origin requests (CORS): the origins that may use the API, and the answer to a preflight.
//!
//! Keys are sent as headers, never by the browser on its own, so credentials are never allowed
//! and `*` may be answered literally.

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::http::preview::target::{is_below, is_of_preview};

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
    /// Domain of the previews, in lower case.
    preview_domain: String,
}

/// Relation of the `Origin` of a request to the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No page: every browser names the origin of a page that writes or reads across origins.
    Absent,
    /// The server itself.
    Own,
    /// Listed by name.
    Listed,
    /// Admitted by `*`.
    Any,
    /// Not admitted.
    Foreign,
    /// A page of a sandbox, or of a name that one could have.
    Sandbox,
}

impl Cors {
    /// Builds the rule of `server.cors_allowed_origins` for a server with this domain of previews. Without a key, the
    /// API obeys whoever reaches it, so `*` does not count there.
    #[must_use]
    pub fn new(origins: &[String], preview_domain: &str, asks_for_key: bool) -> Cors {
        Cors {
            any: asks_for_key && origins.iter().any(|origin| origin == "*"),
            origins: origins.iter().filter(|origin| *origin != "*").cloned().collect(),
            preview_domain: preview_domain.to_ascii_lowercase(),
        }
    }

    /// Returns whether this origin is listed by name; `*` does not count.
    pub fn lists(&self, origin: &str) -> bool {
        self.origins.iter().any(|listed| listed.eq_ignore_ascii_case(origin))
    }

    /// Returns what the origin of a request is to an API at this authority, that of the request. The pages of a
    /// sandbox are written by the code in it, so no rule admits them.
    pub fn standing(&self, headers: &HeaderMap, authority: Option<&str>) -> Standing {
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let Some(origin) = origins.next() else { return Standing::Absent };
        let (Ok(origin), None) = (origin.to_str(), origins.next()) else { return Standing::Foreign };
        let from = authority_in(origin);
        if is_of_sandbox(origin, &self.preview_domain) {
            Standing::Sandbox
        } else if from.zip(authority).is_some_and(|(from, own)| !own.is_empty() && from.eq_ignore_ascii_case(own)) {
            Standing::Own
        } else if self.lists(origin) {
            Standing::Listed
        } else if from.is_some_and(|from| is_below(from, &self.preview_domain)) {
            Standing::Sandbox
        } else if self.any {
            Standing::Any
        } else {
            Standing::Foreign
        }
    }

    /// Returns whether a WebSocket may be opened. Browsers send no preflight for one, and show
    /// the page what is received. `*` does not count: the origin must be listed by name, be
    /// that of the server itself, or be absent, which no page can arrange.
    pub fn admits_socket(&self, request: &HeaderMap) -> bool {
        let host = request.get(header::HOST).and_then(|host| host.to_str().ok());
        match self.standing(request, host) {
            Standing::Absent | Standing::Own | Standing::Listed => true,
            Standing::Any | Standing::Foreign | Standing::Sandbox => false,
        }
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
        match self.standing(request, None) {
            Standing::Any => Some(HeaderValue::from_static("*")),
            Standing::Listed => request.get(header::ORIGIN).cloned(),
            Standing::Absent | Standing::Own | Standing::Foreign | Standing::Sandbox => None,
        }
    }

    /// Adds the CORS headers to an answer. `allowed` is the result of [`Cors::answer`].
    pub fn mark(allowed: Option<HeaderValue>, response: &mut HeaderMap) {
        // Also under `*`, which pages of sandboxes do not get.
        response.append(header::VARY, HeaderValue::from_static("origin"));
        if let Some(allowed) = allowed {
            response.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed);
            response.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(HEADERS_OUT));
        }
    }
}

/// Returns whether an origin is that of a page of a sandbox. `domain` is that of the previews, in lower case.
pub fn is_of_sandbox(origin: &str, domain: &str) -> bool {
    authority_in(origin).is_some_and(|authority| is_of_preview(authority, domain))
}

fn authority_in(origin: &str) -> Option<&str> {
    origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))
}

#[cfg(test)]
mod test {
    use super::*;

    const PREVIEW: &str = "http://3000-sb-mzxw6ytbojtg633c.previews.example:7423";

    /// Returns the rule of a server that asks for a key.
    fn keyed(listed: &[&str]) -> Cors {
        of(listed, true)
    }

    fn of(listed: &[&str], asks_for_key: bool) -> Cors {
        let listed: Vec<_> = listed.iter().map(|&origin| origin.to_owned()).collect();
        Cors::new(&listed, "Previews.example", asks_for_key)
    }

    fn asked_from(origin: &str) -> HeaderMap {
        HeaderMap::from_iter([
            (header::ORIGIN, origin.parse().unwrap()),
            (header::ACCESS_CONTROL_REQUEST_METHOD, HeaderValue::from_static("POST")),
        ])
    }

    #[track_caller]
    fn check(listed: &[&str], origin: &str, expected: Option<&str>) {
        let cors = keyed(listed);
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
    fn without_a_key_only_an_origin_that_is_listed_by_name_is_allowed() {
        let app = "https://app.example";
        for (listed, expected) in [(&["*"][..], None), (&["*", app], Some(app)), (&[app], Some(app))] {
            let answer = of(listed, false).answer(&asked_from(app));
            assert_eq!(answer.as_ref().map(|value| value.to_str().unwrap()), expected, "{listed:?}");
        }
    }

    #[test]
    fn an_origin_below_the_previews_domain_is_a_sandboxes_unless_a_list_names_what_cannot_be_one() {
        let app = "https://app.previews.example";
        let cors = keyed(&["*", app, PREVIEW]);
        for (origin, expected) in [
            (PREVIEW, Standing::Sandbox),
            ("https://3000-sb-mzxw6ytbojtg633c.Previews.EXAMPLE.", Standing::Sandbox),
            ("https://sb-mzxw6ytbojtg633c.previews.example", Standing::Sandbox),
            ("https://other.previews.example", Standing::Sandbox),
            (app, Standing::Listed),
            ("https://api.previews.example", Standing::Own),
            ("https://previews.example", Standing::Any),
            ("https://notpreviews.example", Standing::Any),
            ("null", Standing::Any),
        ] {
            assert_eq!(cors.standing(&asked_from(origin), Some("api.previews.example")), expected, "{origin}");
        }
    }

    #[test]
    fn only_a_preflight_is_answered_as_one() {
        let cors = keyed(&["*"]);
        let mut headers = asked_from("https://app.example");
        assert!(cors.preflight(&Method::POST, &headers).is_none());
        headers.remove(header::ACCESS_CONTROL_REQUEST_METHOD);
        assert!(cors.preflight(&Method::OPTIONS, &headers).is_none());
    }

    #[test]
    fn a_websocket_needs_an_origin_that_is_listed_or_our_own_or_none() {
        let cors = keyed(&["*", "https://app.example"]);
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
            PREVIEW,
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
        let cors = keyed(&["*", "https://app.example"]);
        assert!(cors.lists("https://APP.example"));
        assert!(!cors.lists("https://other.example") && !cors.lists("*"));
    }
}
