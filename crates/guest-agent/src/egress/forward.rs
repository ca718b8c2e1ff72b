//! Headers of a request that is passed on, and of its answer.

use hyper::HeaderMap;
use hyper::header::{CONNECTION, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, UPGRADE};

use super::refusal::Refusal;
use super::target::Target;

/// Port of plain HTTP.
pub(super) const HTTP_PORT: u16 = 80;
/// Headers for the next hop alone. `Transfer-Encoding` is the work of the HTTP library.
const HOP_BY_HOP: [HeaderName; 5] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHORIZATION,
    PROXY_AUTHENTICATE,
    CONNECTION,
];

/// Prepares the headers of a request. Returns whether it asks for another protocol.
pub(super) fn prepare(headers: &mut HeaderMap, target: &Target) -> Result<bool, Refusal> {
    if headers.get_all(HOST).iter().nth(1).is_some() {
        return Err(Refusal::malformed("the request has more than one Host header"));
    }
    let upgrades = strip(headers);
    if headers.get(TE).is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"trailers")) {
        headers.remove(TE);
    }
    // The target of the request counts, whatever its header says.
    let host = HeaderValue::try_from(target.authority(HTTP_PORT));
    headers.insert(HOST, host.map_err(|_| Refusal::malformed("the host contains a control character"))?);
    Ok(upgrades)
}

/// Removes the headers that are for one hop only, but for those of a change of the protocol. Returns
/// whether there is one.
pub(super) fn strip(headers: &mut HeaderMap) -> bool {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::from_bytes(name.trim().as_bytes()).ok())
        .collect();
    let protocol = headers.remove(UPGRADE).filter(|_| named.contains(&UPGRADE));
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    let Some(protocol) = protocol else { return false };
    headers.insert(UPGRADE, protocol);
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    true
}

#[cfg(test)]
mod test {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn headers_of_one_hop_stay_behind_and_the_host_is_that_of_the_target() {
        let target = Target::parse("a.example:8080", None).unwrap();
        let mut given = headers(&[
            ("host", "other.example"),
            ("connection", "close, x-secret"),
            ("x-secret", "1"),
            ("proxy-authorization", "Basic eDp5"),
            ("proxy-connection", "keep-alive"),
            ("te", "gzip"),
            ("upgrade", "h2c"),
            ("accept", "*/*"),
        ]);
        assert!(!prepare(&mut given, &target).unwrap());
        assert_eq!(given, headers(&[("host", "a.example:8080"), ("accept", "*/*")]));
        let mut given = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket"), ("te", "trailers")]);
        assert!(prepare(&mut given, &target).unwrap());
        let expected =
            [("connection", "upgrade"), ("upgrade", "websocket"), ("te", "trailers"), ("host", "a.example:8080")];
        assert_eq!(given, headers(&expected));
        let mut two = HeaderMap::new();
        two.append(HOST, HeaderValue::from_static("a.example"));
        two.append(HOST, HeaderValue::from_static("a.example"));
        assert_eq!(prepare(&mut two, &target).unwrap_err().status(), 400);
    }
}
