//! Rate limits, and the callers that they apply to.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::server::{Answer, MOCK, PATIENCE, TestServer};

const API: &str = "api-key-0123456789abcdef0123456789abcdef";
const ADMIN: &str = "admin-key-0123456789abcdef0123456789abcdef";
/// A route that answers from memory.
const CHEAP: &str = "/providers";

type Headers<'a> = &'a [(&'a str, &'a str)];

/// Starts a server that allows each caller `burst` requests at once, and one more per minute.
async fn start(key_by: &str, burst: u32, more: &str) -> TestServer {
    let limit = format!("rate_limit.enabled=true rate_limit.requests_per_minute=1 rate_limit.burst={burst}");
    TestServer::start(&format!("{MOCK} {limit} rate_limit.key_by={key_by} {more}")).await
}

fn keyed() -> String {
    format!("auth.enabled=true auth.api_key={API} auth.admin_api_key={ADMIN}")
}

async fn send(server: &TestServer, method: Method, path: &str, headers: Headers<'_>) -> Answer {
    let mut request = server.request(method, path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Answer::read(request.send().await.unwrap()).await
}

async fn ask(server: &TestServer, headers: Headers<'_>) -> Answer {
    send(server, Method::GET, CHEAP, headers).await
}

/// Sends the same request from another address of this machine.
async fn ask_from(server: &TestServer, address: &str, headers: Headers<'_>) -> Answer {
    let http = crate::server::http_client().local_address(Some(address.parse().unwrap())).build().unwrap();
    let mut request = http.get(format!("{}/api/v1{CHEAP}", server.url));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Answer::read(request.send().await.unwrap()).await
}

fn number(answer: &Answer, header: &str) -> u64 {
    let value = answer.headers.get(header).unwrap_or_else(|| panic!("no {header} in {:?}", answer.headers));
    value.to_str().unwrap().parse().unwrap()
}

/// Checks that a request was allowed, and the number of requests left.
#[track_caller]
fn left(answer: &Answer, remaining: u64) {
    assert_ne!(answer.status, 429, "{:?}", answer.json());
    assert_eq!((number(answer, "x-ratelimit-limit"), number(answer, "x-ratelimit-remaining")), (1, remaining));
    assert!(!answer.headers.contains_key("retry-after"));
}

#[track_caller]
fn limited(answer: &Answer) {
    answer.refused(429, "resource_limit", "too many requests; retry in ");
    assert_eq!((number(answer, "x-ratelimit-limit"), number(answer, "x-ratelimit-remaining")), (1, 0));
    assert!((1..=60).contains(&number(answer, "retry-after")), "{:?}", answer.headers);
}

#[tokio::test]
async fn every_answer_says_what_is_left_and_one_too_many_how_long_to_wait() {
    let server = start("ip", 3, "server.cors_allowed_origins=https://app.example").await;
    let start = Instant::now();
    left(&ask(&server, &[]).await, 2);
    left(&send(&server, Method::GET, "/nope", &[]).await, 1);
    left(&send(&server, Method::PATCH, "/sandboxes", &[]).await, 0);
    let answer = ask(&server, &[("origin", "https://app.example")]).await;
    limited(&answer);
    let waited = start.elapsed().as_secs() + 1;
    assert!(number(&answer, "retry-after") >= 60 - waited.min(59), "{:?} after {waited} s", answer.headers);
    let exposed = answer.headers["access-control-expose-headers"].to_str().unwrap();
    for header in ["retry-after", "x-ratelimit-limit", "x-ratelimit-remaining"] {
        assert!(exposed.contains(header), "a page may read {header}: {exposed}");
    }
    assert!(answer.headers.contains_key("x-request-id"));
}

#[tokio::test]
async fn without_a_limit_no_answer_speaks_of_one() {
    let server = TestServer::start(&format!("{MOCK} rate_limit.requests_per_minute=1 rate_limit.burst=1")).await;
    for _ in 0..5 {
        let answer = ask(&server, &[("x-user-id", "alice")]).await;
        answer.ok();
        assert!(!answer.headers.keys().any(|name| name.as_str().starts_with("x-ratelimit")), "{:?}", answer.headers);
    }
    let figures = server.get("/diagnostics").await.ok()["rate_limit"].clone();
    assert_eq!((&figures["enabled"], &figures["allowed_total"]), (&json!(false), &json!(0)));
}

#[tokio::test]
async fn whoever_waits_as_long_as_told_is_let_through() {
    let limit = "rate_limit.enabled=true rate_limit.requests_per_minute=20 rate_limit.burst=1";
    let server = TestServer::start(&format!("{MOCK} {limit}")).await;
    ask(&server, &[]).await.ok();
    for _ in 0..2 {
        let answer = ask(&server, &[]).await;
        answer.refused(429, "resource_limit", "");
        let wait = number(&answer, "retry-after");
        assert!((1..=3).contains(&wait), "a token comes every three seconds: {wait}");
        tokio::time::sleep(Duration::from_secs(wait)).await;
        ask(&server, &[]).await.ok();
    }
}

#[tokio::test]
async fn a_burst_is_followed_by_the_steady_rate() {
    let limit = "rate_limit.enabled=true rate_limit.requests_per_minute=600 rate_limit.burst=20";
    let server = TestServer::start(&format!("{MOCK} {limit}")).await;
    let start = Instant::now();
    let mut allowed = 0;
    while start.elapsed() < Duration::from_secs(3) || allowed <= 20 && start.elapsed() < PATIENCE {
        allowed += u64::from(ask(&server, &[]).await.status == 200);
    }
    // The bucket gains a request every 100 ms. A busy machine may send fewer.
    let came = start.elapsed().as_millis() as u64 / 100;
    assert!(allowed <= 20 + came + 1, "{allowed} in {:?}", start.elapsed());
    assert!(allowed > 20, "the bucket fills again: {allowed}");
}

#[tokio::test]
async fn each_owner_has_a_bucket_of_its_own() {
    let server = start("owner", 2, "").await;
    left(&ask(&server, &[("x-user-id", "alice")]).await, 1);
    left(&ask(&server, &[("x-user-id", "  alice ")]).await, 0);
    limited(&ask(&server, &[("x-user-id", "alice")]).await);
    left(&ask(&server, &[("x-user-id", "团队-7")]).await, 1);
    // Without a valid owner the address counts.
    left(&ask(&server, &[]).await, 1);
    left(&ask(&server, &[("x-user-id", "a/b")]).await, 0);
    limited(&ask(&server, &[("x-user-id", "")]).await);
    limited(&ask(&server, &[("x-user-id", "carol"), ("x-user-id", "dave")]).await);
}

#[tokio::test]
async fn without_an_owner_the_key_counts_and_only_a_right_one() {
    let server = start("owner", 3, &keyed()).await;
    left(&ask(&server, &[("x-api-key", API)]).await, 2);
    left(&ask(&server, &[("x-admin-api-key", ADMIN)]).await, 2);
    let bearer = format!("Bearer {API}");
    left(&ask(&server, &[("authorization", &bearer)]).await, 1);
    left(&ask(&server, &[("x-api-key", API), ("x-user-id", "alice")]).await, 2);
    left(&ask_from(&server, "127.0.0.2", &[("x-api-key", API)]).await, 0);
    limited(&ask(&server, &[("x-api-key", API)]).await);
}

#[tokio::test]
async fn a_made_up_owner_leads_around_neither_a_limit_by_key_nor_one_by_address() {
    for (key_by, more) in [("api_key", keyed()), ("api_key", String::new()), ("ip", String::new())] {
        let server = start(key_by, 3, &more).await;
        let key = if more.is_empty() { "made-up" } else { API };
        for number in 0..3 {
            let owner = format!("made-up-{number}");
            left(&ask(&server, &[("x-api-key", key), ("x-user-id", &owner)]).await, 2 - number);
        }
        limited(&ask(&server, &[("x-api-key", key), ("x-user-id", "made-up-3")]).await);
    }
}

#[tokio::test]
async fn a_made_up_key_is_nobody_where_no_key_is_asked_for() {
    for more in ["", "auth.admin_api_key=admin-key-0123456789abcdef"] {
        let server = start("api_key", 3, more).await;
        for (number, key) in ["one", "two", "admin-key-0123456789abcdef"].into_iter().enumerate() {
            left(&ask(&server, &[("x-api-key", key)]).await, 2 - number as u64);
        }
        limited(&ask(&server, &[("x-api-key", "admin-key-0123456789abcdef")]).await);
    }
}

#[tokio::test]
async fn a_limit_by_address_knows_no_other_caller() {
    let server = start("ip", 3, &keyed()).await;
    left(&ask(&server, &[("x-api-key", API)]).await, 2);
    left(&ask(&server, &[("x-admin-api-key", ADMIN)]).await, 1);
    let wrong = ask(&server, &[("x-api-key", "wrong")]).await;
    wrong.refused(401, "unauthorized", "");
    left(&wrong, 0);
    limited(&ask(&server, &[("x-api-key", API)]).await);
    left(&ask_from(&server, "127.0.0.2", &[("x-api-key", API)]).await, 2);
}

#[tokio::test]
async fn a_forwarded_address_is_believed_from_a_trusted_proxy_alone() {
    let server = start("ip", 2, "server.trusted_proxies=127.0.0.1").await;
    left(&ask(&server, &[("x-forwarded-for", "203.0.113.1")]).await, 1);
    left(&ask(&server, &[("x-forwarded-for", "203.0.113.2")]).await, 1);
    left(&ask(&server, &[("x-forwarded-for", "6.6.6.6, 203.0.113.1")]).await, 0);
    limited(&ask(&server, &[("x-forwarded-for", "7.7.7.7, 203.0.113.1")]).await);
    // An IPv6 caller is free to choose the last 64 bits.
    left(&ask(&server, &[("x-forwarded-for", "2001:db8::1")]).await, 1);
    left(&ask(&server, &[("x-forwarded-for", "2001:db8::ffff:0:0:2")]).await, 0);
    limited(&ask(&server, &[("x-forwarded-for", "2001:db8::3")]).await);
    left(&ask(&server, &[("x-forwarded-for", "2001:db8:0:1::3")]).await, 1);
    // A client that is not a trusted proxy.
    left(&ask_from(&server, "127.0.0.2", &[("x-forwarded-for", "203.0.113.3")]).await, 1);
    left(&ask_from(&server, "127.0.0.2", &[("x-forwarded-for", "203.0.113.4")]).await, 0);
    limited(&ask_from(&server, "127.0.0.2", &[("x-forwarded-for", "203.0.113.5")]).await);
}

#[tokio::test]
async fn keys_cannot_be_guessed_fast() {
    for key_by in ["owner", "api_key", "ip"] {
        let server = start(key_by, 4, &keyed()).await;
        let wrong = [("x-api-key", "wrong")];
        ask(&server, &wrong).await.refused(401, "unauthorized", "");
        let admin = send(&server, Method::GET, "/admin/providers", &[("x-admin-api-key", "wrong")]).await;
        admin.refused(401, "unauthorized", "");
        // An open route, which shows more with the right key.
        send(&server, Method::GET, "/ready", &wrong).await.ok();
        send(&server, Method::GET, "/nope", &wrong).await.refused(401, "unauthorized", "");
        // Now the answers are the same for right and wrong keys.
        for headers in [[("x-api-key", "wrong")], [("x-api-key", API)], [("x-admin-api-key", ADMIN)]] {
            limited(&ask(&server, &headers).await);
            limited(&send(&server, Method::GET, "/ready", &headers).await);
            limited(&send(&server, Method::GET, "/admin/providers", &headers).await);
        }
        limited(&ask(&server, &[("x-api-key", API), ("x-user-id", "made-up")]).await);
        left(&ask_from(&server, "127.0.0.2", &[("x-api-key", API)]).await, 3);
    }
}

#[tokio::test]
async fn workers_cannot_guess_their_tokens_fast_either() {
    for key_by in ["owner", "ip"] {
        let server =
            start(key_by, 3, &format!("{} auth.worker_token=worker-0123456789abcdef0123456789", keyed())).await;
        let beat = async |token: &str| {
            let headers = [("x-worker-id", "w1"), ("x-worker-token", token)];
            send(&server, Method::POST, "/worker/w1/heartbeat", &headers).await
        };
        for _ in 0..3 {
            beat("wrong").await.refused(401, "unauthorized", "");
        }
        limited(&beat("wrong").await);
        limited(&beat("worker-0123456789abcdef0123456789").await);
        left(&ask(&server, &[("x-api-key", API)]).await, 2);
    }
}

#[tokio::test]
async fn a_worker_with_the_right_token_is_never_refused() {
    let token = "worker-0123456789abcdef0123456789";
    let server = start("ip", 1, &format!("auth.worker_token={token}")).await;
    let _ = ask(&server, &[]).await;
    limited(&ask(&server, &[]).await);
    let headers = [("x-worker-id", "w1"), ("x-worker-token", token)];
    for path in ["/worker/w1/heartbeat", "/worker/w1/leases/sb-aaaaaaaaaaaaaaaa/renew"] {
        for _ in 0..5 {
            let answer = send(&server, Method::POST, path, &headers).await;
            assert!(![401, 429].contains(&answer.status.as_u16()), "{path}: {}", answer.status);
            assert!(!answer.headers.contains_key("x-ratelimit-limit"), "{path} takes nothing");
        }
    }
}

#[tokio::test]
async fn attempts_of_a_neighbour_leave_what_others_may_ask() {
    let server = start("owner", 2, "auth.admin_api_key=admin-key-0123456789abcdef").await;
    for _ in 0..2 {
        send(&server, Method::GET, "/admin/providers", &[]).await.refused(401, "unauthorized", "");
    }
    limited(&send(&server, Method::GET, "/admin/providers", &[]).await);
    left(&ask(&server, &[]).await, 1);
}

#[tokio::test]
async fn a_flood_of_guesses_is_one_row_of_the_audit_history() {
    let server = start("owner", 5, &keyed()).await;
    for _ in 0..40 {
        let _ = send(&server, Method::DELETE, "/admin/quotas/alice", &[("x-api-key", "wrong")]).await;
    }
    let rows = ask_from(&server, "127.0.0.2", &[("x-admin-api-key", ADMIN)]).await;
    left(&rows, 4);
    let http = crate::server::http_client().local_address(Some("127.0.0.2".parse().unwrap())).build().unwrap();
    let request = http.get(format!("{}/api/v1/admin/audit", server.url)).header("x-admin-api-key", ADMIN);
    let rows = Answer::read(request.send().await.unwrap()).await.ok();
    let refused: Vec<&Value> =
        rows.as_array().unwrap().iter().filter(|row| row["remote_addr"] == "127.0.0.1").collect();
    assert!((1..=2).contains(&refused.len()), "one for each minute: {rows}");
    assert!(refused.iter().all(|row| row["action"] == "key.refused"), "{rows}");
}

#[tokio::test]
async fn probes_and_preflights_are_never_refused() {
    for more in [String::new(), keyed()] {
        let server = start("ip", 1, &more).await;
        let _ = ask(&server, &[]).await;
        limited(&ask(&server, &[]).await);
        for path in ["/live", "/health", "/ready"] {
            for _ in 0..3 {
                let answer = server.get(path).await;
                answer.ok();
                assert!(!answer.headers.contains_key("x-ratelimit-limit"), "{path} takes nothing");
            }
        }
        let preflight = [("origin", "https://app.example"), ("access-control-request-method", "POST")];
        assert_eq!(send(&server, Method::OPTIONS, CHEAP, &preflight).await.status, 204);
        // Another method is no probe.
        limited(&send(&server, Method::POST, "/live", &[]).await);
    }
}

#[tokio::test]
async fn a_refused_request_has_no_effect() {
    let server = start("owner", 3, "").await;
    let alice = [("x-user-id", "alice")];
    let spawned = send(&server, Method::POST, "/sandboxes", &alice).await;
    assert_eq!(spawned.status, 201, "{}", spawned.json());
    left(&spawned, 2);
    let id = spawned.json()["id"].as_str().unwrap().to_owned();
    let quota = server.request(Method::PUT, "/quotas/alice").header("x-user-id", "alice").json(&json!({}));
    left(&Answer::read(quota.send().await.unwrap()).await, 1);
    left(&ask(&server, &alice).await, 0);
    limited(&send(&server, Method::POST, "/sandboxes", &alice).await);
    limited(&send(&server, Method::DELETE, &format!("/sandboxes/{id}"), &alice).await);
    limited(&send(&server, Method::DELETE, "/quotas/alice", &alice).await);
    let body = json!({"path": "/tmp/refused", "content": "x"});
    let write =
        server.request(Method::POST, &format!("/sandboxes/{id}/files")).header("x-user-id", "alice").json(&body);
    limited(&Answer::read(write.send().await.unwrap()).await);
    let bob = [("x-user-id", "bob")];
    let sandboxes = send(&server, Method::GET, "/sandboxes", &bob).await.ok();
    assert_eq!(sandboxes.as_array().map(Vec::len), Some(1), "{sandboxes}");
    assert_eq!(sandboxes[0]["state"], "running", "{sandboxes}");
    let file = send(&server, Method::GET, &format!("/sandboxes/{id}/files?path=/tmp/refused"), &bob).await;
    assert_eq!(file.status, 404);
    assert_eq!(send(&server, Method::GET, "/quotas/alice", &bob).await.status, 200);
}

#[tokio::test]
async fn a_command_that_streams_counts_once() {
    let server = start("owner", 9, "").await;
    let id = server.spawn().await;
    let body = json!({"command": "for i in 1 2 3 4 5; do echo $i; done", "stream": true});
    let stream = server.request(Method::POST, &format!("/sandboxes/{id}/exec")).header("x-user-id", "alice");
    let answer = Answer::read(stream.json(&body).send().await.unwrap()).await;
    assert_eq!(answer.status, 200);
    left(&answer, 8);
    assert!(answer.bytes.iter().filter(|byte| **byte == b'\n').count() >= 2, "it streams");
    left(&ask(&server, &[("x-user-id", "alice")]).await, 7);
}

/// Returns the limiter's figures, requested by an owner who is not limited yet.
async fn figures(server: &TestServer, owner: &str) -> Value {
    send(server, Method::GET, "/diagnostics", &[("x-user-id", owner)]).await.ok()["rate_limit"].clone()
}

#[tokio::test]
async fn the_figures_are_exact_and_name_nobody() {
    let server = start("owner", 2, "logging.level=trace server.trusted_proxies=127.0.0.1").await;
    let forwarded = [("x-user-id", "alice-in-the-clear"), ("x-forwarded-for", "203.0.113.77")];
    for _ in 0..5 {
        let _ = ask(&server, &forwarded).await;
    }
    ask(&server, &[("x-forwarded-for", "203.0.113.77")]).await.ok();
    let bob = [("x-user-id", "bob")];
    let answer = send(&server, Method::GET, "/diagnostics", &bob).await;
    let told = answer.ok()["rate_limit"].clone();
    let keys = json!({
        "enabled": true, "requests_per_minute": 1, "burst": 2, "key_by": "owner", "bucket_ttl": "15m0s",
        "cleanup_interval": "1m0s", "active_buckets": 3, "allowed_total": 4, "limited_total": 3, "evicted_total": 0,
    });
    assert_eq!(told, keys);
    let metrics = send(&server, Method::GET, "/metrics", &[("x-user-id", "carol")]).await;
    assert_eq!(metrics.ok()["rate_limit"]["limited_total"], 3);
    let prometheus = send(&server, Method::GET, "/metrics/prometheus", &[("x-user-id", "dave")]).await;
    let prometheus = String::from_utf8(prometheus.bytes).unwrap();
    assert!(prometheus.contains("\ntidebox_rate_limit_blocked_total 3\n"), "{prometheus}");
    let events = send(&server, Method::GET, "/events?last_event_id=0&follow=false", &bob).await;
    let events = String::from_utf8(events.bytes).unwrap();
    assert!(events.contains("resource.limit"), "{events}");
    let said = [&answer.bytes, &metrics.bytes].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
    for (place, text) in [("figures", &said), ("metrics", &prometheus), ("events", &events)] {
        for raw in ["alice-in-the-clear", "203.0.113.77", "127.0.0.1"] {
            assert!(!text.contains(raw), "{raw} is in the {place}: {text}");
        }
    }
    assert!(!server.log_text().contains("alice-in-the-clear"), "an owner is in the log");
}

#[tokio::test]
async fn refusals_are_events_that_no_flood_multiplies() {
    let server = start("owner", 1, "").await;
    ask(&server, &[("x-user-id", "alice")]).await.ok();
    let start = Instant::now();
    for _ in 0..50 {
        limited(&ask(&server, &[("x-user-id", "alice")]).await);
    }
    let seconds = start.elapsed().as_secs() + 1;
    let query = "/events?last_event_id=0&follow=false&type=resource.limit";
    let answer = send(&server, Method::GET, query, &[("x-user-id", "bob")]).await;
    let text = String::from_utf8(answer.bytes).unwrap();
    let events: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|it| serde_json::from_str(it).unwrap())
        .collect();
    assert!((1..=seconds as usize).contains(&events.len()), "at most one in a second: {text}");
    assert_eq!(events[0]["data"], json!({"operation": "request", "provider": null, "refused": 1}));
    assert_eq!(events[0]["sandbox_id"], Value::Null);
}

#[tokio::test]
async fn ten_thousand_owners_are_ten_thousand_buckets_and_cost_little() {
    let server = start("owner", 2, "").await;
    let mut socket = tokio::net::TcpStream::connect(server.url.strip_prefix("http://").unwrap()).await.unwrap();
    let (mut answers, mut buffer) = (0, Vec::new());
    for hundred in 0..100 {
        let mut requests = String::new();
        for owner in 0..100 {
            let head = "GET /api/v1/nope HTTP/1.1\r\nHost: localhost\r\nX-User-ID: owner";
            requests += &format!("{head}-{}\r\n\r\n", hundred * 100 + owner);
        }
        socket.write_all(requests.as_bytes()).await.unwrap();
        let wanted = (hundred + 1) * 100;
        while answers < wanted {
            let read = socket.read_buf(&mut buffer).await.unwrap();
            assert!(read > 0, "the server hung up after {answers} answers");
            // Counts a text of each answer, which may lie across two reads.
            answers = wanted - 100 + String::from_utf8_lossy(&buffer).matches("HTTP/1.1 404").count();
        }
        buffer.clear();
    }
    let told = figures(&server, "somebody-else").await;
    assert_eq!((&told["active_buckets"], &told["limited_total"]), (&json!(10_001), &json!(0)));
    assert_eq!((&told["allowed_total"], &told["evicted_total"]), (&json!(10_001), &json!(0)));
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap().trim();
    let resident: u64 = resident.split(' ').next().unwrap().parse().unwrap();
    assert!(resident < 300 * 1024, "{resident} KiB");
}

#[tokio::test]
async fn idle_buckets_are_pruned() {
    let limit = "rate_limit.enabled=true rate_limit.requests_per_minute=600 rate_limit.burst=2";
    let limit = format!("{limit} rate_limit.bucket_ttl=500ms rate_limit.cleanup_interval=100ms");
    let server = TestServer::start(&format!("{MOCK} {limit}")).await;
    for owner in 0..20 {
        ask(&server, &[("x-user-id", &format!("owner-{owner}"))]).await.ok();
    }
    server
        .until("the idle buckets go", async || {
            // The client that asks is not idle.
            let told = send(&server, Method::GET, "/diagnostics", &[("x-user-id", "looks")]).await;
            let told = if told.status == 200 { told.json()["rate_limit"].clone() } else { Value::Null };
            told["active_buckets"] == 1 && told["evicted_total"].as_u64() >= Some(20)
        })
        .await;
}

#[tokio::test]
async fn the_unix_socket_is_one_caller() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let server =
        start("ip", 2, &format!("server.unix_socket={} server.trusted_proxies=0.0.0.0/0", path.display())).await;
    let ask_socket = async |forwarded: &str| {
        let mut socket = tokio::net::UnixStream::connect(&path).await.unwrap();
        let head = format!("GET /api/v1{CHEAP} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        socket.write_all(format!("{head}X-Forwarded-For: {forwarded}\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answer
    };
    assert!(ask_socket("203.0.113.1").await.contains("x-ratelimit-remaining: 1\r\n"));
    assert!(ask_socket("203.0.113.2").await.contains("x-ratelimit-remaining: 0\r\n"));
    assert!(ask_socket("203.0.113.3").await.starts_with("HTTP/1.1 429 "));
    left(&ask(&server, &[]).await, 1);
}
