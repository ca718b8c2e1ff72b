//! Headers of a preview: those that the program in the sandbox gets, and those that its client gets.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};

use crate::auth::Access;
use crate::auth::preview::permit;
use crate::hop_by_hop::{listed, remove_hop_by_hop, upgrade};
use crate::http::peer::Peer;

/// Cookie that holds a token.
pub const COOKIE: &str = "tidebox-preview";
/// Parameter of the query that holds a token.
const PARAMETER: &str = "token=";
/// Name of this server in `Via`.
const VIA: &str = "1.1 tidebox";
/// Most previews that a request may have come through: a program that asks for another's preview is
/// no loop yet.
const PREVIEWS_MAX: usize = 5;
/// Header by which an answer clears what a browser keeps.
const CLEAR_SITE_DATA: HeaderName = HeaderName::from_static("clear-site-data");
/// Values of `Clear-Site-Data` that concern a single origin.
const CLEARED_BY_ORIGIN: [&str; 4] = ["\"cache\"", "\"clientHints\"", "\"storage\"", "\"executionContexts\""];
/// Headers of an answer that say something about it alone.
const HARMLESS: [&str; 31] = [
    "accept-ranges",
    "age",
    "allow",
    "cache-control",
    "connection",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-range",
    "content-security-policy",
    "content-type",
    "cross-origin-embedder-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "date",
    "etag",
    "expires",
    "last-modified",
    "location",
    "permissions-policy",
    "pragma",
    "referrer-policy",
    "retry-after",
    "server",
    "server-timing",
    "timing-allow-origin",
    "transfer-encoding",
    "upgrade",
    "vary",
];

/// Returns the values of our cookie.
pub fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

/// Returns the first token in a query. A parameter of the same name that holds another text is the
/// program's own.
pub fn token_in(query: &str) -> Option<&str> {
    query.split('&').filter_map(|pair| pair.strip_prefix(PARAMETER)).find(|value| permit(value).is_some())
}

/// Returns path and query without tokens, for the program.
pub fn without_token(uri: &Uri) -> String {
    let path = if uri.path().is_empty() { "/" } else { uri.path() };
    match uri.query().map(stripped) {
        Some(query) if !query.is_empty() || uri.query() == Some("") => format!("{path}?{query}"),
        _ => path.to_owned(),
    }
}

fn stripped(query: &str) -> String {
    let kept = query.split('&').filter(|pair| pair.strip_prefix(PARAMETER).is_none_or(|value| permit(value).is_none()));
    kept.collect::<Vec<_>>().join("&")
}

/// Returns whether a request has come through so many previews that it must be a loop.
pub fn is_loop(headers: &HeaderMap) -> bool {
    listed(headers, header::VIA).filter(|hop| *hop == VIA).count() >= PREVIEWS_MAX
}

/// Changes the headers of a client into those that the program gets.
pub fn to_program(headers: &mut HeaderMap, access: &Access, peer: Peer) {
    let upgrade = upgrade(headers);
    let takes_trailers = listed(headers, header::TE).any(|name| name.eq_ignore_ascii_case("trailers"));
    remove_hop_by_hop(headers);
    // The server has answered it.
    headers.remove(header::EXPECT);
    access.remove_keys(headers);
    headers.remove("x-preview-token");
    headers.remove("e2b-traffic-access-token");
    remove_cookie(headers);
    remove_from_referer(headers);
    remove_of_proxies(headers);
    let scheme = HeaderValue::from_static(if peer.is_secure { "https" } else { "http" });
    headers.insert("x-forwarded-proto", scheme);
    if let Some(host) = headers.get(header::HOST).cloned() {
        headers.insert("x-forwarded-host", host);
    }
    if let Some(address) =
        peer.address.as_ref().map(IpAddr::to_string).and_then(|text| HeaderValue::try_from(text).ok())
    {
        headers.insert("x-forwarded-for", address);
    }
    headers.append(header::VIA, HeaderValue::from_static(VIA));
    if takes_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    // A connection serves one request.
    let connection = HeaderValue::from_static(if upgrade.is_some() { "upgrade" } else { "close" });
    headers.insert(header::CONNECTION, connection);
    if let Some(protocol) = upgrade {
        headers.insert(header::UPGRADE, protocol);
    }
}

/// Changes the headers of a program into those that its client gets.
pub fn to_client(headers: &mut HeaderMap, is_switch: bool) {
    let protocol = headers.get(header::UPGRADE).filter(|_| is_switch).cloned();
    remove_hop_by_hop(headers);
    if let Some(protocol) = protocol {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
    let cookies: Vec<HeaderValue> = headers.get_all(header::SET_COOKIE).iter().filter_map(own_cookie).collect();
    headers.remove(header::SET_COOKIE);
    for cookie in cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
    narrow_clearing(headers);
}

/// Changes the trailers of a client into those that the program gets.
pub fn trailers_to_program(trailers: &mut HeaderMap, access: &Access) {
    access.remove_keys(trailers);
    trailers.remove("x-preview-token");
    remove_of_proxies(trailers);
}

/// Removes what would act on the API's origin from an answer that comes from there.
pub fn keep_harmless(headers: &mut HeaderMap) {
    let harmful: Vec<HeaderName> = headers.keys().filter(|name| !is_harmless(name)).cloned().collect();
    for name in harmful {
        headers.remove(name);
    }
}

/// Returns whether a header of an answer says something about this answer alone, and nothing that a browser keeps for
/// its whole origin.
fn is_harmless(name: &HeaderName) -> bool {
    let name = name.as_str();
    HARMLESS.contains(&name)
        || name.starts_with("access-control-")
        || name.starts_with("sec-websocket-")
        || name.starts_with("x-") && name != "x-permitted-cross-domain-policies"
}

/// Takes from `Clear-Site-Data` what reaches beyond the host name: cookies go for the whole domain, with those of other
/// sandboxes.
fn narrow_clearing(headers: &mut HeaderMap) {
    let asked: Vec<String> = listed(headers, CLEAR_SITE_DATA).map(str::to_owned).collect();
    if headers.remove(CLEAR_SITE_DATA).is_none() {
        return;
    }
    let all = asked.iter().any(|kind| kind == "\"*\"");
    let kept = CLEARED_BY_ORIGIN.into_iter().filter(|kind| all || asked.iter().any(|asked| asked == kind));
    let kept = kept.collect::<Vec<_>>().join(", ");
    if let (false, Ok(kept)) = (kept.is_empty(), HeaderValue::try_from(kept)) {
        headers.insert(CLEAR_SITE_DATA, kept);
    }
}

fn remove_of_proxies(headers: &mut HeaderMap) {
    let told: Vec<HeaderName> = headers.keys().filter(|name| is_of_proxies(name)).cloned().collect();
    for name in told {
        headers.remove(name);
    }
}

/// Returns whether proxies write a header to say where a request comes from.
fn is_of_proxies(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("x-forwarded-") || matches!(name, "forwarded" | "x-real-ip")
}

/// Takes our cookie out of those that a client sends.
fn remove_cookie(headers: &mut HeaderMap) {
    let lines: Vec<HeaderValue> = headers.get_all(header::COOKIE).iter().cloned().collect();
    headers.remove(header::COOKIE);
    for line in lines {
        let pairs = line.as_bytes().split(|byte| *byte == b';');
        let others: Vec<&[u8]> = pairs.filter(|pair| name_of(pair) != COOKIE.as_bytes()).collect();
        let kept = others.join(&b';');
        if let Ok(line) = HeaderValue::from_bytes(kept.trim_ascii())
            && !line.is_empty()
        {
            headers.append(header::COOKIE, line);
        }
    }
}

fn remove_from_referer(headers: &mut HeaderMap) {
    let Some(referer) = headers.get(header::REFERER) else { return };
    let Some((page, query)) = referer.to_str().ok().and_then(|referer| referer.split_once('?')) else { return };
    if token_in(query).is_none() {
        return;
    }
    let query = stripped(query);
    let referer = if query.is_empty() { page.to_owned() } else { format!("{page}?{query}") };
    match HeaderValue::try_from(referer) {
        Ok(referer) => headers.insert(header::REFERER, referer),
        Err(_) => headers.remove(header::REFERER),
    };
}

/// Returns a cookie of a program that reaches its own host name alone; `None` for one by the name
/// of ours.
fn own_cookie(cookie: &HeaderValue) -> Option<HeaderValue> {
    let mut parts = cookie.as_bytes().split(|byte| *byte == b';');
    let pair = parts.next().unwrap_or_default();
    if name_of(pair) == COOKIE.as_bytes() {
        return None;
    }
    let attributes = parts.filter(|attribute| !name_of(attribute).eq_ignore_ascii_case(b"domain"));
    let kept: Vec<&[u8]> = std::iter::once(pair).chain(attributes).collect();
    HeaderValue::from_bytes(&kept.join(&b';')).ok()
}

/// Returns the name in a pair, or an attribute, of a cookie.
fn name_of(pair: &[u8]) -> &[u8] {
    pair.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii()
}

#[cfg(test)]
mod test {
    use std::sync::Arc;

    use store::clock::SteadyClock;

    use super::*;
    use crate::config::{Inputs, load};
    use crate::owner_keys::OwnerKeys;

    const TOKEN: &str = "tbp-6930a2c0abcdefghijklmnopqrstuvwxyz";

    fn map(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        headers
    }

    fn lines(headers: &HeaderMap) -> Vec<(String, String)> {
        let mut lines: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
            .collect();
        lines.sort();
        lines
    }

    fn passed(sent: &[(&str, &str)]) -> Vec<(String, String)> {
        let env = [
            ("TIDEBOX_AUTH_ENABLED", "true"),
            ("TIDEBOX_AUTH_API_KEY", "ours"),
            ("TIDEBOX_AUTH_ADMIN_API_KEY", "boss"),
        ];
        let env = env.map(|(name, value)| (name.into(), value.into())).to_vec();
        let inputs = Inputs {
            config_file: None,
            of_machine: None,
            home: None,
            current_dir: "/nonexistent".into(),
            env,
            is_root: true,
        };
        let keys = Arc::new(OwnerKeys::new(Arc::new(SteadyClock::start())));
        let access = Access::new(&load(&inputs).unwrap().config.auth, keys);
        let peer = Peer { address: Some("203.0.113.9".parse().unwrap()), via_unix: false, is_secure: true };
        let mut headers = map(sent);
        to_program(&mut headers, &access, peer);
        let ours = ["via", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "connection"];
        lines(&headers).into_iter().filter(|(name, _)| !ours.contains(&name.as_str())).collect()
    }

    #[track_caller]
    fn check(sent: &[(&str, &str)], expected: &[(&str, &str)]) {
        let expected: Vec<_> = expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        assert_eq!(passed(sent), expected, "{sent:?}");
    }

    #[test]
    fn a_program_gets_neither_keys_nor_tokens_of_ours() {
        check(&[("x-api-key", "ours"), ("x-admin-api-key", "boss"), ("x-preview-token", TOKEN)], &[]);
        check(&[("authorization", "Bearer ours")], &[]);
        check(&[("authorization", "bearer  boss")], &[]);
        check(&[("authorization", "Bearer ours"), ("authorization", "Bearer its")], &[]);
        for own in ["Bearer its-own", "Basic dXNlcjpvdXJz", "Digest ours"] {
            check(&[("authorization", own)], &[("authorization", own)]);
        }
        for (cookie, kept) in [
            (format!("tidebox-preview={TOKEN}"), None),
            (format!("a=1; tidebox-preview={TOKEN}; b=2"), Some("a=1; b=2")),
            (format!("tidebox-preview={TOKEN}; tidebox-preview=x; b=2"), Some("b=2")),
            (" tidebox-preview =x".to_owned(), None),
            ("tidebox-preview-2=x".to_owned(), Some("tidebox-preview-2=x")),
        ] {
            let kept: Vec<_> = kept.into_iter().map(|kept| ("cookie", kept)).collect();
            check(&[("cookie", &cookie)], &kept);
        }
        let referer = format!("https://a.example/p?token={TOKEN}&x=1");
        check(&[("referer", &referer)], &[("referer", "https://a.example/p?x=1")]);
    }

    #[test]
    fn a_program_gets_nothing_that_is_between_two_neighbours_and_no_made_up_address() {
        check(
            &[
                ("connection", "keep-alive, x-mine, host, content-length"),
                ("host", "h"),
                ("content-length", "3"),
                ("x-mine", "1"),
                ("keep-alive", "5"),
                ("proxy-authorization", "Basic x"),
                ("proxy-connection", "keep-alive"),
                ("te", "gzip"),
                ("transfer-encoding", "chunked"),
                ("upgrade", "h2c"),
                ("expect", "100-continue"),
                ("x-forwarded-port", "1"),
                ("forwarded", "for=6.6.6.6"),
                ("x-real-ip", "6.6.6.6"),
                ("accept", "*/*"),
            ],
            &[("accept", "*/*"), ("content-length", "3"), ("host", "h")],
        );
        check(&[("te", "trailers, gzip")], &[("te", "trailers")]);
        check(&[("connection", "Upgrade"), ("upgrade", "websocket")], &[("upgrade", "websocket")]);
    }

    #[test]
    fn the_query_keeps_all_but_our_token() {
        for (uri, expected) in [
            ("/", "/"),
            ("/a?", "/a?"),
            ("/a?b=1&&c", "/a?b=1&&c"),
            ("/a?token=its-own", "/a?token=its-own"),
            ("/a?token={T}", "/a"),
            ("/a?b=1&token={T}&c=%20", "/a?b=1&c=%20"),
            ("/a?token={T}&token={T}&b", "/a?b"),
            ("//evil.example/?token={T}", "//evil.example/"),
        ] {
            assert_eq!(without_token(&uri.replace("{T}", TOKEN).parse().unwrap()), expected, "{uri}");
        }
    }

    #[test]
    fn cookies_of_a_program_reach_its_own_host_alone() {
        let mut headers = map(&[
            ("set-cookie", "a=1; Path=/; Domain=box.example; HttpOnly"),
            ("set-cookie", "b=2; DOMAIN =.box.example"),
            ("set-cookie", "tidebox-preview=x; Path=/"),
            ("set-cookie", "domain=kept"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("content-security-policy", "default-src 'self'"),
        ]);
        to_client(&mut headers, false);
        let cookies: Vec<_> = headers.get_all("set-cookie").iter().map(|cookie| cookie.to_str().unwrap()).collect();
        assert_eq!(cookies, ["a=1; Path=/; HttpOnly", "b=2", "domain=kept"]);
        assert!(!headers.contains_key("x-hop") && headers.contains_key("content-security-policy"));
    }

    #[test]
    fn what_a_program_clears_is_that_of_its_own_host_alone() {
        for (asked, kept) in [
            ("\"cookies\"", None),
            ("\"cache\", \"cookies\", \"storage\"", Some("\"cache\", \"storage\"")),
            ("\"*\"", Some("\"cache\", \"clientHints\", \"storage\", \"executionContexts\"")),
            ("\"unknown\"", None),
        ] {
            let mut headers = map(&[("clear-site-data", asked)]);
            to_client(&mut headers, false);
            assert_eq!(headers.get("clear-site-data").map(|value| value.to_str().unwrap()), kept, "{asked}");
        }
    }

    #[test]
    fn an_answer_from_the_origin_of_the_api_has_no_header_that_acts_on_all_of_it() {
        let acting = [
            "alt-svc",
            "clear-site-data",
            "nel",
            "report-to",
            "reporting-endpoints",
            "service-worker-allowed",
            "set-cookie",
            "strict-transport-security",
            "www-authenticate",
            "accept-ch",
            "origin-agent-cluster",
            "public-key-pins",
            "expect-ct",
            "x-permitted-cross-domain-policies",
            "link",
            "refresh",
            "speculation-rules",
            "use-as-dictionary",
            "no-vary-search",
            "critical-ch",
        ];
        let harmless = ["content-type", "etag", "x-total", "access-control-allow-origin", "content-security-policy"];
        let mut headers = map(&acting.iter().chain(&harmless).map(|name| (*name, "1")).collect::<Vec<_>>());
        keep_harmless(&mut headers);
        let mut kept: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        kept.sort_unstable();
        let mut expected = harmless;
        expected.sort_unstable();
        assert_eq!(kept, expected);
    }

    #[test]
    fn a_request_that_went_round_several_times_is_a_loop() {
        let mut headers = map(&[("via", "1.1 tidebox, 1.1 other"), ("via", "1.1 tidebox")]);
        assert!(!is_loop(&headers));
        for _ in 0..3 {
            headers.append("via", HeaderValue::from_static(VIA));
        }
        assert!(is_loop(&headers));
    }
}
