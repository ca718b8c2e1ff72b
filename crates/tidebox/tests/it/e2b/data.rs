//! The data plane: whom a request is for, and whom it is open to.

use reqwest::Method;
use serde_json::{Value, json};

use super::{E2b, Sandbox, answer, refused};
use crate::server::{Answer, MOCK, NATIVE, TestServer, http_client};

#[track_caller]
fn gone(answer: &Answer, id: &str) {
    assert_eq!(answer.status, 502);
    assert_eq!(answer.json(), json!({"sandboxId": id, "message": "The sandbox was not found", "code": 502}));
}

#[tokio::test]
async fn health_tells_whether_a_sandbox_runs_and_asks_for_nothing() {
    let e2b = E2b::mock().await;
    let made = e2b.create(json!({})).await;
    let health = async |id: &str| answer(e2b.bare(Method::GET, "/health").header("E2b-Sandbox-Id", id)).await;
    assert_eq!(health(&made.id).await.status, 204);
    assert_eq!(e2b.delete(&format!("/sandboxes/{}", made.id)).await.status, 204);
    for id in [made.id.as_str(), "sb-aaaaaaaaaaaaaaaa", "nonsense"] {
        gone(&health(id).await, id);
    }
    gone(&answer(e2b.bare(Method::GET, "/health")).await, "");
}

#[tokio::test]
async fn every_call_asks_for_the_token_of_its_sandbox() {
    let e2b = E2b::mock().await;
    let (made, other) = (e2b.create(json!({})).await, e2b.create(json!({})).await);
    for path in ["/filesystem.Filesystem/Stat", "/process.Process/List", "/files"] {
        let ask = async |token: Option<&str>| {
            let request = e2b.bare(Method::POST, path).header("E2b-Sandbox-Id", &made.id).json(&json!({"path": "/"}));
            answer(if let Some(token) = token { request.header("X-Access-Token", token) } else { request }).await
        };
        for token in [None, Some("wrong"), Some(other.token.as_str()), Some("")] {
            refused(&ask(token).await, 401, "X-Access-Token");
        }
        assert_ne!(ask(Some(&made.token)).await.status, 401, "{path}");
        let keyed = e2b.asking(Method::POST, path).header("E2b-Sandbox-Id", &made.id).json(&json!({"path": "/"}));
        refused(&answer(keyed).await, 401, "X-Access-Token");
    }
    let dead = Sandbox { id: "sb-aaaaaaaaaaaaaaaa".to_owned(), ..made };
    gone(&e2b.call(&dead, "process.Process/List", json!({})).await, &dead.id);
}

#[tokio::test]
async fn a_sandbox_is_found_by_headers_by_its_host_and_by_its_token_alone() {
    let e2b = E2b::start(&format!("{MOCK} server.preview_domain=box.example")).await;
    let made = e2b.create(json!({})).await;
    let list = |path: &str| e2b.bare(Method::POST, path).header("X-Access-Token", &made.token).json(&json!({}));
    let host = format!("49983-{}.box.example", made.id);
    for request in [
        list("/process.Process/List").header("E2b-Sandbox-Id", &made.id).header("E2b-Sandbox-Port", "49983"),
        list("/process.Process/List").header("E2b-Sandbox-Id", &made.id),
        list("/process.Process/List").header("Host", &host),
        list("/process.Process/List"),
        list("//process.Process/List"),
    ] {
        assert_eq!(answer(request).await.ok()["processes"], json!([]));
    }
    let host = "49983-never.box.example";
    gone(&answer(e2b.bare(Method::GET, "/health").header("Host", host)).await, "never");
}

#[tokio::test]
async fn a_token_outlives_the_server() {
    let mut e2b = E2b::mock().await;
    let made = e2b.create(json!({})).await;
    e2b.server.terminate();
    e2b.server.launch().await;
    let again = e2b.create(json!({})).await;
    assert_ne!(again.token, made.token);
    // The boxes of `mock` end with their server, and their tokens say so.
    gone(&e2b.call(&made, "process.Process/List", json!({})).await, &made.id);
    let shape = |token: &str| (token.len(), token.starts_with("sb-"));
    assert_eq!(shape(&again.token), shape(&made.token));
}

#[tokio::test]
async fn a_call_that_is_not_there_is_unimplemented() {
    let e2b = E2b::mock().await;
    let made = e2b.create(json!({})).await;
    let answered = e2b.call(&made, "process.Process/Dance", json!({})).await;
    assert_eq!((answered.status.as_u16(), &answered.json()["code"]), (501, &json!("unimplemented")));
    let streamed = e2b.inside(Method::POST, "/filesystem.Filesystem/Dance", &made);
    let streamed = answer(streamed.header("content-type", "application/connect+json").body("")).await;
    assert_eq!(streamed.status, 200);
    assert_eq!(streamed.bytes[0], 2);
    let end: Value = serde_json::from_slice(&streamed.bytes[5..]).unwrap();
    assert_eq!(end["error"]["code"], "unimplemented");
    refused(&answer(e2b.inside(Method::POST, "/init", &made)).await, 404, "/init");
}

const SERVE: &str = "cd /tmp && echo hello >index.html && exec python3 -m http.server 3000 >/dev/null 2>&1 &";

/// Starts a web server on port 3000 of a sandbox.
async fn serve(e2b: &E2b, id: &str) {
    e2b.server.output(id, SERVE).await;
    let listens = async || {
        let ports = e2b.server.get(&format!("/sandboxes/{id}/ports")).await.ok();
        ports.as_array().unwrap().iter().any(|entry| entry["port"] == 3000)
    };
    e2b.server.until("the program listens", listens).await;
}

#[tokio::test]
async fn ports_are_public_unless_the_caller_says_otherwise() {
    let e2b = E2b::start(&format!("{NATIVE} server.preview_domain=box.example")).await;
    let open = e2b.create(json!({})).await;
    let closed = e2b.create(json!({"network": {"allowPublicTraffic": false}})).await;
    let traffic = closed.answer["trafficAccessToken"].as_str().unwrap();
    assert!(open.answer.get("trafficAccessToken").is_none());
    let private = e2b.server.spawn().await;
    for id in [&open.id, &closed.id, &private] {
        serve(&e2b, id).await;
    }
    let by_headers =
        |id: &str, port: &str| e2b.bare(Method::GET, "/").header("E2b-Sandbox-Id", id).header("E2b-Sandbox-Port", port);
    let by_host = |id: &str, port: &str| e2b.bare(Method::GET, "/").header("Host", format!("{port}-{id}.box.example"));
    for ask in [&by_headers as &dyn Fn(&str, &str) -> reqwest::RequestBuilder, &by_host] {
        assert_eq!(answer(ask(&open.id, "3000")).await.bytes, b"hello\n");
        let answered = answer(ask(&open.id, "3001")).await;
        assert_eq!(answered.status, 502);
        let expected = json!({"sandboxId": open.id, "message": "The sandbox is running but port is not open",
            "port": 3001, "code": 502});
        assert_eq!(answered.json(), expected);
        refused(&answer(ask(&closed.id, "3000")).await, 403, "e2b-traffic-access-token");
        let with_wrong = ask(&closed.id, "3000").header("e2b-traffic-access-token", &open.token);
        refused(&answer(with_wrong).await, 403, "e2b-traffic-access-token");
        let with_token = ask(&closed.id, "3000").header("e2b-traffic-access-token", traffic);
        assert_eq!(answer(with_token).await.bytes, b"hello\n");
        // A sandbox of the API has private ports, by either way.
        assert_eq!(answer(ask(&private, "3000")).await.status, 401);
    }
    let shown = e2b.get(&format!("/sandboxes/{}", closed.id)).await.ok();
    assert_eq!(shown["network"]["allowPublicTraffic"], false);
    e2b.delete(&format!("/sandboxes/{}", open.id)).await;
    gone(&answer(by_headers(&open.id, "3000")).await, &open.id);
    gone(&answer(by_host(&open.id, "3000")).await, &open.id);
}

#[tokio::test]
async fn paths_below_the_host_of_a_port_are_those_of_its_program() {
    let e2b = E2b::start(&format!("{NATIVE} server.preview_domain=box.example")).await;
    let (made, other) = (e2b.create(json!({})).await, e2b.create(json!({})).await);
    serve(&e2b, &made.id).await;
    let host = format!("3000-{}.box.example", made.id);
    for path in ["/health", "/v2/sandboxes", "/files", "/process.Process/List", "/templates/aliases/base"] {
        let asked = e2b.asking(Method::GET, path).header("Host", &host).header("X-Access-Token", &made.token);
        let answered = answer(asked.header("E2b-Sandbox-Id", &other.id)).await;
        // Python's server has no such file, and says so in HTML.
        let is_page = String::from_utf8_lossy(&answered.bytes).to_lowercase().contains("<html");
        assert_eq!((answered.status.as_u16(), is_page), (404, true), "{path}");
    }
}

#[tokio::test]
async fn pages_of_sandboxes_and_foreign_hosts_do_not_reach_the_data_plane() {
    let server = TestServer::start(&format!("{MOCK} server.preview_domain=box.example")).await;
    let e2b = E2b { server, http: http_client().build().unwrap() };
    let (made, other) = (e2b.create(json!({})).await, e2b.create(json!({})).await);
    let list = |host: Option<&str>, origin: Option<&str>| {
        let call = e2b.inside(Method::POST, "/process.Process/List", &made).json(&json!({}));
        let call = if let Some(host) = host { call.header("Host", host) } else { call };
        if let Some(origin) = origin { call.header("Origin", origin) } else { call }
    };
    let own = format!("49983-{}.box.example", made.id);
    let page = format!("http://3000-{}.box.example", other.id);
    for (host, origin, expected) in [
        (None, None, 200),
        (None, Some("https://front.example"), 200),
        (Some(own.as_str()), None, 200),
        (None, Some(page.as_str()), 403),
        (Some(own.as_str()), Some(page.as_str()), 403),
        // A name that was made to resolve to this machine.
        (Some("evil.example"), None, 403),
    ] {
        assert_eq!(answer(list(host, origin)).await.status, expected, "{host:?} {origin:?}");
    }
    let port = e2b.bare(Method::GET, "/").header("E2b-Sandbox-Id", &made.id).header("E2b-Sandbox-Port", "3000");
    assert_eq!(answer(port.header("Host", "evil.example")).await.status, 403);
}

#[tokio::test]
async fn what_a_program_answers_on_the_hosts_of_the_api_stays_harmless() {
    let e2b = E2b::start(NATIVE).await;
    let made = e2b.create(json!({})).await;
    let serve = "printf 'HTTP/1.1 200 OK\\r\\nSet-Cookie: a=b\\r\\nContent-Length: 2\\r\\n\\r\\nok' >/tmp/answer; \
                 exec python3 -c 'import socket; s = socket.create_server((\"\", 3000)); c, _ = s.accept(); \
                 got = c.recv(65536); open(\"/tmp/got\", \"wb\").write(got); \
                 c.sendall(open(\"/tmp/answer\", \"rb\").read()); c.close()' >/dev/null 2>&1 &";
    e2b.server.output(&made.id, serve).await;
    let listens = async || {
        let ports = e2b.server.get(&format!("/sandboxes/{}/ports", made.id)).await.ok();
        ports.as_array().unwrap().iter().any(|entry| entry["port"] == 3000)
    };
    e2b.server.until("the program listens", listens).await;
    let asked = e2b.bare(Method::GET, "/").header("E2b-Sandbox-Id", &made.id).header("E2b-Sandbox-Port", "3000");
    let asked = asked.header("Cookie", "secret=1").header("E2b-Traffic-Access-Token", "secret");
    let response = asked.send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.headers().get("set-cookie").is_none());
    assert!(response.headers()["content-security-policy"].to_str().unwrap().contains("sandbox"));
    let got = e2b.server.output(&made.id, "cat /tmp/got").await;
    assert!(got.contains("GET / HTTP/1.1") && !got.contains("secret"), "{got}");
}

#[tokio::test]
async fn nobody_is_counted_as_the_owner_that_a_header_names_without_a_key() {
    let settings =
        "rate_limit.enabled=true rate_limit.key_by=owner rate_limit.requests_per_minute=1 rate_limit.burst=4";
    let e2b = E2b::start(&format!("{MOCK} {settings}")).await;
    for _ in 0..6 {
        let asked = e2b.bare(Method::GET, "/health").header("E2b-Sandbox-Id", "sb-aaaaaaaaaaaaaaaa");
        answer(asked.header("X-User-ID", "bob")).await;
    }
    let own = e2b.asking(Method::GET, "/v2/sandboxes").header("X-User-ID", "bob");
    assert_eq!(answer(own).await.status, 200);
}
