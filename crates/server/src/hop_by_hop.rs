//! Headers that two neighbours of a chain of HTTP say to each other, and that a proxy does not pass on.
//! RFC 9110 §7.6.1.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

/// Headers that are between two neighbours only.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// Headers that a `Connection` cannot take away.
const LASTING: [HeaderName; 2] = [header::HOST, header::CONTENT_LENGTH];

/// Returns the protocol that a client wants to switch to.
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = listed(headers, header::CONNECTION).any(|name| name.eq_ignore_ascii_case("upgrade"));
    headers.get(header::UPGRADE).filter(|_| asks).cloned()
}

/// Returns the items of a header whose lines are lists.
pub fn listed(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(name).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

/// Removes the headers that are for the neighbour only, and those that `Connection` names.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> =
        listed(headers, header::CONNECTION).filter_map(|name| HeaderName::try_from(name).ok()).collect();
    for name in named.into_iter().filter(|name| !LASTING.contains(name)).chain(HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Returns whether an answer tells its length in two ways, which two readers could take for two
/// answers.
pub fn is_framed_twice(headers: &HeaderMap) -> bool {
    headers.contains_key(header::CONTENT_LENGTH) && headers.contains_key(header::TRANSFER_ENCODING)
}
