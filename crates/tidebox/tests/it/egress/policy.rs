//! Policies on connections: what is asked for, and what changes while a sandbox runs.

use client::{Client, EventQuery};
use serde_json::{Value, json};

use super::TestHost;
use crate::server::{MOCK, NATIVE, TestServer};

/// Starts a server on `native` with a host that its sandboxes may reach as `web.example`.
async fn with_host() -> (TestHost, TestServer) {
    let host = TestHost::start().await;
    let settings = format!("{NATIVE} egress.internal=127.0.0.1:{} egress.hosts.web.example=127.0.0.1", host.port);
    let server = TestServer::start(&settings).await;
    (host, server)
}

async fn fetch(server: &TestServer, id: &str, host: &TestHost) -> String {
    let line = format!("curl -sS -m 20 http://web.example:{}/x 2>&1 || true", host.port);
    server.output(id, &line).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_has_no_network_unless_its_spawn_or_its_template_says_so() {
    let (host, server) = with_host().await;
    let none = server.spawn().await;
    assert!(fetch(&server, &none, &host).await.contains("this sandbox has no network"));
    let shown = server.get(&format!("/sandboxes/{none}/egress")).await.ok();
    assert_eq!((&shown["policy"], &shown["enforced"]), (&json!({"mode": "none"}), &json!(true)));
    let target = format!("web.example:{}", host.port);
    let template = json!({"name": "web", "egress": {"mode": "allow-list", "allow": [target]}});
    assert_eq!(server.post("/templates", template.clone()).await.status, 201);
    let of_template = server.post("/templates/web/spawn", json!({})).await.json();
    let id = of_template["id"].as_str().unwrap();
    assert!(fetch(&server, id, &host).await.contains("GET /x"));
    // A later policy can narrow what the template allows, and not widen it; so can the request.
    let path = format!("/sandboxes/{id}/egress");
    assert_eq!(server.get(&path).await.ok()["template_policy"], template["egress"]);
    server.put(&path, json!({"mode": "open"})).await.ok();
    let refused = server.output(id, "curl -sS http://other.example/ || true").await;
    assert!(refused.contains("does not allow it"), "{refused}");
    let wide = json!({"template": "web", "egress": {"mode": "open", "deny": ["a.example"]}});
    let id = server.spawn_with(wide).await;
    let shown = server.get(&format!("/sandboxes/{id}/egress")).await.ok();
    assert_eq!(shown["template_policy"], template["egress"]);
    assert!(fetch(&server, &id, &host).await.contains("GET /x"));
    let refused = server.output(&id, "curl -sS http://other.example/ || true").await;
    assert!(refused.contains("does not allow it"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_policy_holds_at_once_and_survives_a_crash() {
    let (host, mut server) = with_host().await;
    let id = server.spawn().await;
    let path = format!("/sandboxes/{id}/egress");
    let changed = server.put(&path, json!({"mode": "open"})).await.ok();
    assert_eq!(changed["policy"], json!({"mode": "open"}));
    assert!(fetch(&server, &id, &host).await.contains("GET /x"));
    let denied = json!({"mode": "open", "deny": ["web.example"]});
    server.put(&path, denied.clone()).await.ok();
    assert!(fetch(&server, &id, &host).await.contains("the egress policy denies it"));
    server.kill();
    server.launch().await;
    // The agent waits for the new server.
    assert!(fetch(&server, &id, &host).await.contains("the egress policy denies it"));
    assert_eq!(server.get(&path).await.ok()["policy"], denied);
    server.put(&path, json!({"mode": "none"})).await.ok();
    assert!(fetch(&server, &id, &host).await.contains("the egress policy is `none`"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_events_and_the_account_has_their_reasons() {
    let (host, server) = with_host().await;
    let client = Client::new(&server.url, None, None).unwrap();
    let mut events =
        client.events(&EventQuery { types: vec!["egress.denied".to_owned()], ..EventQuery::default() }).await.unwrap();
    let id = server.spawn_with(json!({"egress": {"mode": "open"}})).await;
    fetch(&server, &id, &host).await;
    server.output(&id, "curl -s http://169.254.169.254/latest || true").await;
    let event = tokio::time::timeout(crate::server::PATIENCE, events.next()).await.unwrap().unwrap().unwrap();
    let event: Value = serde_json::to_value(event).unwrap();
    assert!(event.to_string().contains("169.254.169.254") && event.to_string().contains("link-local"), "{event}");
    let account = client.egress(&id).await.unwrap();
    assert_eq!((account.allowed, account.denied, account.open), (1, 1, 0));
    assert!(account.bytes_received > 50 && account.bytes_sent > 20, "{account:?}");
    let newest = &account.decisions[0];
    assert_eq!((newest.host.as_str(), newest.verdict.as_str()), ("169.254.169.254", "denied"));
    let metrics = String::from_utf8(server.get("/metrics/prometheus").await.bytes.to_vec()).unwrap();
    assert!(metrics.contains("tidebox_egress_connections_total{verdict=\"denied\"} 1"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_makes_no_sense_is_refused_by_the_entry_that_is_at_fault() {
    let server = TestServer::start(&format!("{MOCK} egress.lists.packages.hosts=pypi.example:443")).await;
    let id = server.spawn_with(json!({"egress": {"mode": "allow-list", "allow": ["@packages"]}})).await;
    let many: Vec<String> = (0..10_000).map(|n| format!("h{n}.example")).collect();
    for (policy, words) in [
        (json!({"mode": "all"}), "unknown variant `all`"),
        (json!({"allow": ["a.example"]}), "missing field `mode`"),
        (json!({"mode": "open", "more": 1}), "unknown field `more`"),
        (json!({"mode": "open", "allow": ["a.example"]}), "`egress.allow` has no effect with the mode `open`"),
        (json!({"mode": "allow-list", "allow": ["a.example", "*.com"]}), "`egress.allow[1]`: `*.com` has a wildcard"),
        (json!({"mode": "allow-list", "allow": ["*"]}), "has a wildcard"),
        (json!({"mode": "allow-list", "allow": ["a.*.b"]}), "has a wildcard"),
        (json!({"mode": "allow-list", "allow": ["a.example:0"]}), "has an invalid port"),
        (json!({"mode": "allow-list", "allow": ["ex\u{e4}mple.com"]}), "write names in other scripts as xn--"),
        (json!({"mode": "allow-list", "allow": ["2130706433"]}), "looks like an address but is not one"),
        (json!({"mode": "allow-list", "allow": ["http://a.example"]}), "`egress.allow[0]`"),
        (json!({"mode": "allow-list", "allow": ["a".repeat(300)]}), "is longer than 253 characters"),
        (json!({"mode": "open", "deny": ["10.0.0.0/33"]}), "is not a network"),
        (json!({"mode": "allow-list", "allow": many}), "has 10000 entries; at most 1000 are allowed"),
        (json!({"mode": "allow-list", "allow": vec!["a".repeat(60) + ".example"; 900]}), "use a list of the operator"),
    ] {
        for answer in [
            server.put(&format!("/sandboxes/{id}/egress"), policy.clone()).await,
            server.post("/sandboxes", json!({"egress": policy.clone()})).await,
        ] {
            answer.refused(400, "bad_request", words);
        }
    }
    let unknown = json!({"mode": "allow-list", "allow": ["@other"]});
    let words = "egress list `@other` does not exist";
    server.put(&format!("/sandboxes/{id}/egress"), unknown.clone()).await.refused(404, "not_found", words);
    server.post("/sandboxes", json!({"egress": unknown})).await.refused(404, "not_found", words);
    server.get("/sandboxes/sb-aaaaaaaaaaaaaaaa/egress").await.refused(404, "not_found", "does not exist");
}

/// Downloads zeros until something ends it, and returns how many came, in KiB.
async fn download(server: &TestServer, id: &str, port: u16) -> u64 {
    let line = format!("curl -sS -m 20 http://web.example:{port}/ 2>/dev/null | wc -c");
    server.output(id, &line).await.trim().parse::<u64>().unwrap() / 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bound_on_all_bytes_outlives_the_server() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let host = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 716800\r\nConnection: close\r\n\r\n";
            let sent = tokio::io::AsyncWriteExt::write_all(&mut stream, &[&head[..], &[0; 700 << 10]].concat()).await;
            // Until the client has hung up, so that it gets all.
            let _ = (sent, tokio::io::copy(&mut stream, &mut tokio::io::sink()).await);
        }
    });
    let settings =
        format!("{NATIVE} egress.internal=127.0.0.1:{port} egress.hosts.web.example=127.0.0.1 egress.max_mb=1");
    let mut server = TestServer::start(&settings).await;
    let id = server.spawn_with(json!({"egress": {"mode": "open"}})).await;
    assert_eq!(download(&server, &id, port).await, 700);
    assert_eq!(server.terminate(), Some(0));
    server.launch().await;
    assert!(download(&server, &id, port).await < 400, "what came before counts");
    let refused = server.output(&id, &format!("curl -sS -m 20 http://web.example:{port}/ 2>&1 || true")).await;
    assert!(refused.contains("used up the bytes that it may"), "{refused}");
    // A crash loses what was exchanged within a second before it.
    tokio::time::sleep(std::time::Duration::from_millis(2500)).await;
    server.kill();
    server.launch().await;
    let refused = server.output(&id, &format!("curl -sS -m 20 http://web.example:{port}/ 2>&1 || true")).await;
    assert!(refused.contains("used up the bytes that it may"), "{refused}");
    host.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_box_reaches_its_own_services_however_it_names_itself() {
    let (_host, server) = with_host().await;
    for policy in [json!({"mode": "none"}), json!({"mode": "open"})] {
        let id = server.spawn_with(json!({"egress": policy})).await;
        server.output(&id, "exec python3 -m http.server 8000 --bind :: </dev/null >/dev/null 2>&1 &").await;
        server.until("it listens", async || server.output(&id, "cat /proc/net/tcp6").await.contains(":1F40 ")).await;
        for host in ["0.0.0.0", "127.0.0.2", "[::1]", "localhost", "a.localhost", "$(uname -n)"] {
            // By its variables, and where a program does not heed `NO_PROXY`.
            for options in ["", "--noproxy ''", "--noproxy '' -p", "--noproxy '' -x socks5h://127.0.0.1:7424"] {
                let line =
                    format!("curl -sS -m 20 -o /dev/null -w '%{{http_code}}' {options} http://{host}:8000/ 2>&1; true");
                assert_eq!(server.output(&id, &line).await, "200", "{line}");
            }
        }
        // The proxy does not speak with itself, and says what is not there.
        for port in [7424, 8001] {
            let line = format!("curl -sS -m 20 --noproxy '' http://127.0.0.2:{port}/ 2>&1; true");
            let said = server.output(&id, &line).await;
            assert!(said.contains("nothing listens") || said.contains("loopback"), "{said}");
        }
    }
}
