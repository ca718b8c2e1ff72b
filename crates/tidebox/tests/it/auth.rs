//! Permissions of real keys against the real server.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::server::{Answer, MOCK, TestServer};

const API: &str = "api-key-0123456789abcdef0123456789abcdef";
const ADMIN: &str = "admin-key-0123456789abcdef0123456789abcdef";

/// Returns the settings of a server that requires both keys.
fn keyed(more: &str) -> String {
    format!("{MOCK} auth.enabled=true auth.api_key={API} auth.admin_api_key={ADMIN} {more}")
}

async fn send(server: &TestServer, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = server.http.request(method, format!("{}{path}", server.url));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Answer::read(request.send().await.unwrap()).await
}

/// Returns the status without reading the body: some answers never end.
async fn status(server: &TestServer, method: &Method, path: &str, headers: &[(&str, &str)]) -> u16 {
    let mut request = server.http.request(method.clone(), format!("{}{path}", server.url));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap().status().as_u16()
}

async fn get(server: &TestServer, path: &str, headers: &[(&str, &str)]) -> Answer {
    send(server, Method::GET, &format!("/api/v1{path}"), headers).await
}

/// Sends `target` exactly as written and returns the head and body of the answer.
async fn raw(server: &TestServer, method: &str, target: &str, headers: &str) -> String {
    let mut socket = tokio::net::TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap();
    let request = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Returns every method and path of the document, with names filled in.
async fn routes(server: &TestServer) -> Vec<(Method, String)> {
    let document = get(server, "/openapi.json", &[("x-api-key", API)]).await.ok();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let mut url = String::new();
        for part in path.split_inclusive(['{', '}']) {
            // Braces hold a parameter's name.
            match part.strip_suffix('}') {
                Some(_) => url.push_str("sb-aaaaaaaaaaaaaaaa"),
                None => url.push_str(part.trim_end_matches('{')),
            }
        }
        for method in methods.as_object().unwrap().keys().filter(|key| Method::from_bytes(key.as_bytes()).is_ok()) {
            routes.extend(method.to_uppercase().parse().ok().map(|method| (method, url.clone())));
        }
    }
    assert!(routes.len() >= 31, "{}", routes.len());
    routes
}

#[tokio::test]
async fn every_route_of_the_document_asks_for_its_key() {
    let server = TestServer::start(&keyed("")).await;
    for (method, path) in routes(&server).await {
        let is_open = ["/api/v1/live", "/api/v1/health", "/api/v1/ready"].contains(&path.as_str());
        let is_admin =
            ["/api/v1/admin/", "/api/v1/images", "/api/v1/secrets"].iter().any(|prefix| path.starts_with(prefix));
        let is_worker = path.starts_with("/api/v1/worker/");
        for (key, opens) in [
            ("", is_open),
            ("wrong", is_open),
            (&API[1..], is_open),
            (API, !is_admin && !is_worker),
            (ADMIN, !is_worker),
        ] {
            for header in ["x-api-key", "authorization"] {
                let value = if header == "authorization" { format!("Bearer {key}") } else { key.to_owned() };
                let headers = [(header, value.as_str())];
                let headers = if key.is_empty() { &[][..] } else { &headers };
                let status = status(&server, &method, &path, headers).await;
                assert_eq!(status != 401, opens, "{method} {path} with {value:?}: {status}");
                if !opens {
                    send(&server, method.clone(), &path, headers).await.refused(401, "unauthorized", "");
                }
            }
        }
        let admin = status(&server, &method, &path, &[("x-admin-api-key", ADMIN)]).await;
        assert_eq!(admin != 401, !is_worker, "{method} {path} with the admin key: {admin}");
        let misplaced = status(&server, &method, &path, &[("x-admin-api-key", API)]).await;
        assert_eq!(misplaced != 401, is_open, "{method} {path}: {misplaced}");
    }
}

#[tokio::test]
async fn with_authentication_off_only_admin_routes_ask_and_only_with_an_admin_key() {
    let open = TestServer::start(MOCK).await;
    get(&open, "/admin/providers", &[]).await.ok();
    let server = TestServer::start(&format!("{MOCK} auth.admin_api_key={ADMIN}")).await;
    for (method, path) in routes(&server).await {
        let is_closed = ["/api/v1/admin/", "/api/v1/images", "/api/v1/secrets", "/api/v1/worker/"]
            .iter()
            .any(|prefix| path.starts_with(prefix));
        let status = status(&server, &method, &path, &[]).await;
        assert_eq!(status == 401, is_closed, "{method} {path}: {status}");
    }
    get(&server, "/admin/providers", &[("x-api-key", ADMIN)]).await.ok();
    get(&server, "/sandboxes", &[("x-api-key", "whatever")]).await.ok();
}

#[tokio::test]
async fn the_api_key_opens_admin_routes_by_fallback_unless_that_is_off() {
    let settings = format!("{MOCK} auth.enabled=true auth.api_key={API}");
    let server = TestServer::start(&settings).await;
    get(&server, "/admin/providers", &[("x-api-key", API)]).await.ok();
    get(&server, "/admin/providers", &[("x-admin-api-key", API)]).await.ok();
    get(&server, "/admin/providers", &[]).await.refused(401, "unauthorized", "X-Admin-API-Key");
    let closed = TestServer::start(&format!("{settings} auth.admin_fallback_enabled=false")).await;
    for headers in [&[][..], &[("x-api-key", API)], &[("x-admin-api-key", API)]] {
        let answer = get(&closed, "/admin/providers", headers).await;
        answer.refused(401, "unauthorized", "auth.admin_fallback_enabled");
    }
}

#[tokio::test]
async fn admin_providers_are_the_same_as_the_others() {
    let server = TestServer::start(&keyed("")).await;
    let admin = [("x-admin-api-key", ADMIN)];
    // The time of the last check differs between two requests.
    let look = async |path: &str| {
        let mut body = get(&server, path, &admin).await.ok();
        for entry in body.as_array_mut().into_iter().flatten() {
            (entry["last_checked"], entry["latency_ms"]) = (Value::Null, Value::Null);
        }
        if body.is_object() {
            (body["health"]["last_checked"], body["health"]["latency_ms"]) = (Value::Null, Value::Null);
        }
        body
    };
    for path in ["/providers", "/providers/mock"] {
        assert_eq!(look(path).await, look(&format!("/admin{path}")).await);
    }
    get(&server, "/admin/providers/nope", &admin).await.refused(404, "not_found", "nope");
    let tested = send(&server, Method::POST, "/api/v1/admin/providers/test", &admin).await.ok();
    assert_eq!(tested, json!({"mock": true}));
}

#[tokio::test]
async fn no_way_of_writing_a_path_leads_to_an_admin_route_without_the_admin_key() {
    let server = TestServer::start(&keyed("")).await;
    for target in [
        "/api/v1/admin/providers",
        "/api/v1/%61dmin/providers",
        "/api/v1/admi%6E/providers",
        "/api/v1/%2561dmin/providers",
        "/api/v1/ADMIN/providers",
        "/api/v1//admin/providers",
        "//api/v1/admin/providers",
        "/api/v1/./admin/providers",
        "/api/v1/sandboxes/../admin/providers",
        "/api/v1/sandboxes/%2e%2e/admin/providers",
        "/api/v1/sandboxes/..%2fadmin%2fproviders",
        "/api/v1/admin/providers/",
        "/api/v1/admin//providers",
        "/api/v1/admin%2Fproviders",
        "/api/v1/admin/providers?x=/live",
        "/api/v1/admin/providers;/live",
        "/api/v1/live/../admin/providers",
        "/api/v1/live%2f..%2fadmin/providers",
        "/api/v1/admin\\providers",
        "/api/v1/admin/providers%00",
        "/api/v1/admin/providers%",
        "http://localhost/api/v1/admin/providers",
        "*",
    ] {
        for (key, headers) in [("none", String::new()), ("api", format!("X-API-Key: {API}\r\n"))] {
            let answer = raw(&server, "GET", target, &headers).await;
            let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
            assert!(["400", "401", "404", "405"].contains(&status.as_str()), "{target} with {key}: {answer}");
            assert!(!answer.contains("capabilities"), "{target} with {key}: {answer}");
            if key == "none" {
                assert!(status == "401" || status == "400", "{target}: {answer}");
            }
        }
    }
}

#[tokio::test]
async fn no_way_of_writing_an_open_path_opens_another() {
    let server = TestServer::start(&keyed("")).await;
    for target in [
        "/api/v1/live/../sandboxes",
        "/api/v1/live/",
        "/api/v1/live%2f",
        "/api/v1/%6cive",
        "/api/v1//live",
        "/live",
        "/api/v1/sandboxes?/api/v1/live",
        "/api/v1/sandboxes/live",
        "/api/v1/worker",
        "/api/v1/worker/",
        "/api/v1/worker/../sandboxes",
        "/api/v1/worker%2f..%2fsandboxes",
    ] {
        let answer = raw(&server, "GET", target, "").await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{target}: {answer}");
    }
}

#[tokio::test]
async fn what_exists_is_not_told_to_those_without_a_key() {
    let server = TestServer::start(&keyed("")).await;
    for (method, path) in [
        (Method::GET, "/api/v1/nope"),
        (Method::GET, "/"),
        (Method::PATCH, "/api/v1/sandboxes"),
        (Method::TRACE, "/api/v1/sandboxes"),
        (Method::OPTIONS, "/api/v1/sandboxes"),
        (Method::POST, "/api/v1/live"),
        (Method::GET, "/api/v1/openapi.json"),
    ] {
        let answer = send(&server, method.clone(), path, &[]).await;
        answer.refused(401, "unauthorized", "X-API-Key");
        assert_eq!(answer.headers["www-authenticate"], "Bearer realm=\"tidebox\"");
        let answer = send(&server, method.clone(), path, &[("x-api-key", API)]).await;
        assert_ne!(answer.status, 401, "{method} {path}");
    }
    // The body is not even read.
    let spawned = raw(&server, "POST", "/api/v1/sandboxes", "Content-Length: 5\r\nContent-Type: text/plain\r\n").await;
    assert!(spawned.starts_with("HTTP/1.1 401 "), "{spawned}");
}

#[tokio::test]
async fn live_health_and_ready_need_no_key_and_ready_tells_the_status_alone() {
    let server = TestServer::start(&keyed("")).await;
    for (path, status) in [("/live", "alive"), ("/health", "ok"), ("/ready", "ready")] {
        for headers in [&[][..], &[("x-api-key", "wrong")], &[("x-api-key", "")]] {
            assert_eq!(get(&server, path, headers).await.ok()["status"], status);
        }
        assert!(raw(&server, "HEAD", &format!("/api/v1{path}"), "").await.starts_with("HTTP/1.1 200 "));
    }
    assert_eq!(get(&server, "/ready", &[]).await.ok()["providers"], json!([]));
    for key in [API, ADMIN] {
        let body = get(&server, "/ready", &[("x-api-key", key)]).await.ok();
        assert_eq!(body["providers"].as_array().map(Vec::len), Some(1), "{body}");
    }
    let none = TestServer::start(&keyed("providers.mock.enabled=false providers.default=auto")).await;
    let told = get(&none, "/ready", &[]).await;
    told.refused(503, "unavailable", "no provider is healthy; send the key");
}

#[tokio::test]
async fn two_keys_an_empty_key_and_keys_that_disagree_are_refused() {
    let server = TestServer::start(&keyed("")).await;
    let right = format!("X-API-Key: {API}\r\n");
    for (headers, words) in [
        (format!("{right}X-API-Key: wrong\r\n"), "given twice"),
        (format!("{right}x-api-key: {API}\r\n"), "given twice"),
        ("X-API-Key:\r\n".to_owned(), "is empty"),
        ("X-API-Key:   \r\n".to_owned(), "is empty"),
        ("Authorization: Bearer \r\n".to_owned(), "contains no key"),
        (format!("{right}Authorization: Bearer wrong\r\n"), "different keys"),
        (format!("X-API-Key: wrong\r\nAuthorization: Bearer {API}\r\n"), "different keys"),
        (format!("{right}X-Admin-API-Key: wrong\r\n"), "not the admin key"),
        (format!("X-Admin-API-Key: {API}\r\n"), "send that as"),
        (format!("X-User-ID: {API}\r\n"), "requires a key"),
        (format!("X-Worker-Token: {API}\r\n"), "requires a key"),
        (format!("Cookie: x-api-key={API}\r\n"), "requires a key"),
        (format!("Authorization: {API}\r\n"), "requires a key"),
        ("X-API-Key: \u{1}\r\n".to_owned(), ""),
    ] {
        let answer = raw(&server, "GET", "/api/v1/sandboxes", &headers).await;
        let expected = if words.is_empty() { "HTTP/1.1 400" } else { "HTTP/1.1 401" };
        assert!(answer.starts_with(expected) && answer.contains(words), "{headers:?}: {answer}");
    }
    let query = raw(&server, "GET", &format!("/api/v1/sandboxes?api_key={API}"), "").await;
    assert!(query.starts_with("HTTP/1.1 401 "), "{query}");
}

#[tokio::test]
async fn groups_that_are_closed_open_to_the_admin_key_alone() {
    let server = TestServer::start(&keyed("auth.admin_only=providers,templates")).await;
    for path in ["/providers", "/providers/mock", "/templates", "/templates/x"] {
        let answer = get(&server, path, &[("x-api-key", API)]).await;
        answer.refused(401, "unauthorized", "does not give access to this route");
        assert_ne!(get(&server, path, &[("x-admin-api-key", ADMIN)]).await.status, 401, "{path}");
    }
    get(&server, "/sandboxes", &[("x-api-key", API)]).await.ok();
}

#[tokio::test]
async fn keys_never_reach_the_log_or_an_answer() {
    let server = TestServer::start(&keyed("logging.level=trace")).await;
    let wrong = "wrong-key-0123456789abcdef";
    let mut said = String::new();
    for key in [API, ADMIN, wrong] {
        for path in ["/sandboxes", "/admin/providers", "/nope", "/ready", "/openapi.json"] {
            for header in ["x-api-key", "x-admin-api-key", "authorization"] {
                let value = if header == "authorization" { format!("Bearer {key}") } else { key.to_owned() };
                let answer = get(&server, path, &[(header, value.as_str())]).await;
                said += &String::from_utf8_lossy(&answer.bytes);
                said += &format!("{:?}", answer.headers);
            }
        }
        said += &raw(&server, "GET", &format!("/api/v1/sandboxes?key={key}"), "").await;
    }
    let log = server.log_text();
    assert!(log.contains("a caller was refused"), "the log tells of it: {log}");
    for key in [API, ADMIN, wrong] {
        assert!(!said.contains(key) && !log.contains(key), "{key} is shown");
    }
}

#[tokio::test]
async fn a_preflight_is_answered_without_a_key() {
    let server = TestServer::start(&keyed("server.cors_allowed_origins=https://app.example")).await;
    let ask = async |path: &str, origin: &str| {
        let headers = [("origin", origin), ("access-control-request-method", "POST")];
        send(&server, Method::OPTIONS, path, &headers).await
    };
    for path in ["/api/v1/sandboxes", "/api/v1/admin/providers", "/api/v1/nope"] {
        let answer = ask(path, "https://app.example").await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT);
        assert_eq!(answer.headers["access-control-allow-origin"], "https://app.example");
        assert_eq!(answer.headers["vary"], "origin");
        let allowed = answer.headers["access-control-allow-headers"].to_str().unwrap();
        for header in ["x-api-key", "x-admin-api-key", "authorization", "content-type", "x-user-id"] {
            assert!(allowed.contains(header), "{allowed}");
        }
        assert!(answer.headers["access-control-allow-methods"].to_str().unwrap().contains("DELETE"));
        assert!(!answer.headers.contains_key("access-control-allow-credentials"));
        let other = ask(path, "https://other.example").await;
        assert!(!other.headers.contains_key("access-control-allow-origin"));
        assert!(!other.headers.contains_key("access-control-allow-headers"));
    }
}

#[tokio::test]
async fn a_page_can_read_answers_and_refusals_of_an_origin_that_is_allowed() {
    let server = TestServer::start(&keyed("server.cors_allowed_origins=https://app.example,https://b.example")).await;
    for (key, status) in [(API, 200), ("wrong", 401)] {
        let answer = get(&server, "/sandboxes", &[("origin", "https://b.example"), ("x-api-key", key)]).await;
        assert_eq!(answer.status.as_u16(), status);
        assert_eq!(answer.headers["access-control-allow-origin"], "https://b.example");
        let readable = answer.headers["access-control-expose-headers"].to_str().unwrap();
        for header in ["x-next-cursor", "x-request-id", "retry-after", "x-ratelimit-limit", "server-timing"] {
            assert!(readable.contains(header), "{readable}");
        }
    }
    let other = get(&server, "/sandboxes", &[("origin", "https://evil.example"), ("x-api-key", API)]).await;
    assert!(!other.headers.contains_key("access-control-allow-origin"));
    assert_eq!(other.headers["vary"], "origin", "a cache must not mix them up");
    let any = TestServer::start(&keyed("")).await;
    let answer = get(&any, "/sandboxes", &[("origin", "https://any.example"), ("x-api-key", API)]).await;
    assert_eq!(answer.headers["access-control-allow-origin"], "*");
    let none = TestServer::start(&keyed("server.cors_allowed_origins=")).await;
    let answer = get(&none, "/live", &[("origin", "https://any.example")]).await;
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
}

/// Returns whether a page of this origin may delete a sandbox, as a browser finds out: it asks with a preflight, and
/// then sends the request. Checks that what it may not send is refused.
async fn may_delete(server: &TestServer, origin: &str, key: &[(&str, &str)]) -> bool {
    let id = server.spawn().await;
    let path = format!("/api/v1/sandboxes/{id}");
    let ask = [("origin", origin), ("access-control-request-method", "DELETE")];
    let asked = send(server, Method::OPTIONS, &path, &ask).await;
    let sent = send(server, Method::DELETE, &path, &[&[("origin", origin)], key].concat()).await;
    let is_answered = asked.headers.contains_key("access-control-allow-origin");
    assert_eq!(sent.headers.contains_key("access-control-allow-origin"), is_answered, "{origin}");
    if is_answered {
        sent.ok();
    } else {
        sent.refused(403, "forbidden", "server.cors_allowed_origins");
        server.get(&format!("/sandboxes/{id}")).await.ok();
    }
    is_answered
}

#[tokio::test]
async fn without_a_key_only_pages_that_are_listed_by_name_may_use_the_api() {
    let server = TestServer::start(MOCK).await;
    assert!(server.log_text().contains("`*` in `server.cors_allowed_origins` admits no web page"));
    // The last is the page of a port that `tidebox forward` brings to this machine.
    for origin in ["https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1:3000"] {
        assert!(!may_delete(&server, origin, &[]).await, "{origin}");
        let read = get(&server, "/sandboxes", &[("origin", origin)]).await;
        assert!(!read.headers.contains_key("access-control-allow-origin"), "{origin} reads");
        for kind in ["text/plain", "application/json"] {
            let blind = [("origin", origin), ("content-type", kind)];
            send(&server, Method::POST, "/api/v1/sandboxes", &blind).await.refused(403, "forbidden", "origin");
        }
    }
    let listing = TestServer::start(&format!("{MOCK} server.cors_allowed_origins=*,https://app.example")).await;
    assert!(may_delete(&listing, "https://app.example", &[]).await);
    assert!(!may_delete(&listing, "https://evil.example", &[]).await);
    let own = [("origin", server.url.as_str())];
    send(&server, Method::POST, "/api/v1/providers/test", &own).await.ok();
}

#[tokio::test]
async fn a_page_of_a_sandbox_may_not_use_the_api_whatever_is_listed() {
    let preview = "http://3000-sb-mzxw6ytbojtg633c.localhost:7423";
    let listed = format!("server.cors_allowed_origins=*,{preview}");
    let (open, keyed) =
        (TestServer::start(&format!("{MOCK} {listed}")).await, TestServer::start(&keyed(&listed)).await);
    assert!(open.log_text().contains("lists a page of a sandbox"), "it is warned about");
    for (server, key) in [(&open, &[][..]), (&keyed, &[("x-api-key", API)][..])] {
        for origin in [preview, "https://8000-sb-aaaaaaaaaaaaaaaa.LOCALHOST.", "http://anything.localhost:7423"] {
            let ask = [("origin", origin), ("access-control-request-method", "GET")];
            send(server, Method::OPTIONS, "/api/v1/sandboxes", &ask).await.refused(403, "forbidden", "sandbox");
            for (method, path) in [(Method::GET, "/api/v1/sandboxes"), (Method::POST, "/api/v1/providers/test")] {
                let answer = send(server, method.clone(), path, &[&[("origin", origin)], key].concat()).await;
                assert!(!answer.headers.contains_key("access-control-allow-origin"), "{origin} {method}");
                answer.refused(403, "forbidden", "sandbox");
            }
        }
    }
    let page = "https://app.localhost";
    let named = TestServer::start(&format!("{MOCK} server.cors_allowed_origins={page}")).await;
    assert!(may_delete(&named, page, &[]).await, "a name that no sandbox can have may be listed");
}

#[tokio::test]
async fn the_api_key_is_enough_for_the_whole_life_of_a_sandbox() {
    let server = TestServer::start(&keyed("")).await;
    let key = [("x-api-key", API)];
    let spawned = send(&server, Method::POST, "/api/v1/sandboxes", &key).await.ok();
    let path = format!("/api/v1/sandboxes/{}", spawned["id"].as_str().unwrap());
    send(&server, Method::GET, &path, &[]).await.refused(401, "unauthorized", "X-API-Key");
    send(&server, Method::DELETE, &path, &[]).await.refused(401, "unauthorized", "X-API-Key");
    let bearer = format!("Bearer {API}");
    assert_eq!(send(&server, Method::GET, &path, &[("authorization", &bearer)]).await.ok()["state"], "running");
    assert_eq!(send(&server, Method::DELETE, &path, &key).await.ok()["status"], "destroyed");
}

#[tokio::test]
async fn the_host_rule_holds_only_while_no_key_is_asked_for() {
    let open = TestServer::start(&format!("{MOCK} server.cors_allowed_origins=https://app.example")).await;
    let evil = [("host", "evil.example")];
    get(&open, "/sandboxes", &evil).await.refused(403, "forbidden", "allowed_hosts");
    let ask = [("host", "evil.example"), ("origin", "http://evil.example"), ("access-control-request-method", "GET")];
    let preflight = send(&open, Method::OPTIONS, "/api/v1/sandboxes", &ask).await;
    preflight.refused(403, "forbidden", "allowed_hosts");
    // A page must not be able to post without a preflight, unless it is listed by its name.
    let post = async |server: &TestServer, origin: &str| {
        send(server, Method::POST, "/api/v1/providers/test", &[("origin", origin)]).await
    };
    post(&open, "https://app.example").await.ok();
    post(&open, "https://evil.example").await.refused(403, "forbidden", "");
    post(&TestServer::start(MOCK).await, "https://evil.example").await.refused(403, "forbidden", "");
    let keyed = TestServer::start(&keyed("")).await;
    get(&keyed, "/sandboxes", &[("host", "boxes.example"), ("x-api-key", API)]).await.ok();
    get(&keyed, "/sandboxes", &evil).await.refused(401, "unauthorized", "X-API-Key");
}

#[tokio::test]
async fn a_key_can_come_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, format!("{API}\n")).unwrap();
    let settings = format!("{MOCK} auth.enabled=true auth.api_key_file={}", path.display());
    let server = TestServer::start(&settings).await;
    get(&server, "/sandboxes", &[("x-api-key", API)]).await.ok();
    get(&server, "/sandboxes", &[]).await.refused(401, "unauthorized", "");
}

#[test]
fn a_start_without_a_key_or_with_two_is_refused_and_tells_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, API).unwrap();
    let start = |variables: &[(&str, &str)]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tidebox"))
            .arg("serve")
            .env_clear()
            .env("HOME", folder.path())
            .env("TIDEBOX_SYSTEM_CONFIG", "")
            .envs(variables.iter().copied())
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!said.contains(ADMIN) && !said.contains(API), "{said}");
        said
    };
    assert!(start(&[("TIDEBOX_AUTH_ENABLED", "true")]).contains("set `auth.api_key`"));
    let both = start(&[("TIDEBOX_AUTH_API_KEY", ADMIN), ("TIDEBOX_AUTH_API_KEY_FILE", path.to_str().unwrap())]);
    assert!(
        both.contains("auth.api_key_file (TIDEBOX_AUTH_API_KEY_FILE)") && both.contains("`auth.api_key`"),
        "{both}"
    );
}

#[tokio::test]
async fn admin_aliases_are_described_like_what_they_repeat() {
    let server = TestServer::start(MOCK).await;
    let document: Value = server.get("/openapi.json").await.ok();
    let paths = document["paths"].as_object().unwrap();
    for (alias, item) in paths.iter().filter(|(path, _)| path.starts_with("/api/v1/admin/providers")) {
        let plain = &paths[&alias.replacen("/admin", "", 1)];
        for (method, operation) in item.as_object().unwrap() {
            assert_eq!(operation["responses"], plain[method]["responses"], "{alias}");
            assert_eq!(operation["tags"], json!(["admin"]));
        }
    }
    assert!(paths.contains_key("/api/v1/admin/providers/{name}"));
}

/// Runs `tidebox worker token` with a signing key and these arguments and stdin.
fn worker_token(key: &str, arguments: &[&str], token: Option<&str>) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tidebox"));
    command.args(["worker", "token"]).args(arguments).env_clear().env("HOME", folder.path());
    command.env("TIDEBOX_AUTH_WORKER_SIGNING_KEY", key).env("TIDEBOX_SYSTEM_CONFIG", "").current_dir(folder.path());
    let input = folder.path().join("token");
    std::fs::write(&input, token.unwrap_or_default()).unwrap();
    let output = command.stdin(std::fs::File::open(&input).unwrap()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_line_mints_verifies_and_inspects_worker_tokens() {
    let (code, token, _) = worker_token("signing-key", &["w1", "--ttl", "2m", "--scope", "worker:lease"], None);
    assert_eq!(code, Some(0));
    assert!(token.starts_with("tidebox-worker-v1.") && token.lines().count() == 1, "{token}");
    let (code, said, _) = worker_token("signing-key", &["verify"], Some(&token));
    assert_eq!(code, Some(0), "{said}");
    for words in ["valid       yes", "worker      w1", "worker:lease", "worker:control-plane"] {
        assert!(said.contains(words), "{said}");
    }
    let (code, said, _) = worker_token("other-key", &["verify", "--output", "json"], Some(&token));
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &said["valid"], &said["claims"]["worker_id"]), (Some(1), &json!(false), &json!("w1")));
    assert!(said["reason"].as_str().unwrap().contains("is not signed with a key"));
    let (code, said, _) = worker_token("signing-key", &["verify", token.trim()], None);
    assert_eq!(code, Some(0), "{said}");
    let (code, said, _) = worker_token("signing-key", &["verify"], Some("nonsense"));
    assert!(code == Some(1) && said.contains("tidebox-worker-v1."), "{said}");
    let (code, _, complaint) = worker_token("signing-key", &["w1", "--ttl", "16m"], None);
    assert!(code == Some(2) && complaint.contains("15m"), "{complaint}");
    let (code, _, complaint) = worker_token("signing-key", &[], None);
    assert!(code == Some(2) && complaint.contains("<ID>"), "{complaint}");
}

#[tokio::test]
async fn proot_is_offered_by_itself_only_where_a_key_is_asked_for() {
    if fixtures::found("proot", &[]).is_none() {
        return;
    }
    let proot = async |settings: &str, headers: &[(&str, &str)]| {
        let server = TestServer::builder(settings).expecting("providers.proot.enabled").start().await;
        let providers = get(&server, "/providers", headers).await.ok();
        let found = providers.as_array().unwrap().iter().find(|provider| provider["name"] == "proot").cloned();
        (found, server.log_text())
    };
    let (offered, log) = proot(&format!("{MOCK} providers.proot.enabled=auto"), &[]).await;
    assert_eq!(offered, None);
    assert!(log.contains("code in its boxes could control this server"), "{log}");
    let (offered, _) = proot(&keyed("providers.proot.enabled=auto"), &[("X-API-Key", API)]).await;
    assert!(offered.is_some());
    let (offered, log) = proot(&format!("{MOCK} providers.proot.enabled=true"), &[]).await;
    let offered = offered.unwrap().to_string();
    assert!(offered.contains("requires no key"), "{offered}");
    let loud = log.lines().find(|line| line.contains("every other box") && line.contains("WARN"));
    assert!(loud.is_some(), "{log}");
}
