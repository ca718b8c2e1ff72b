//! Registration of workers, and the limits on what a worker may report.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Answer, MOCK, TestServer, redacted};

const WITH_TOKEN: &str = "auth.worker_token=worker-token-of-the-tests";

async fn start() -> TestServer {
    TestServer::start(&format!("{MOCK} {WITH_TOKEN}")).await
}

async fn as_worker(server: &TestServer, id: &str, path: &str, body: &Value) -> Answer {
    let request = server.request(Method::POST, &format!("/worker/{id}{path}")).json(body);
    let request = request.header("X-Worker-ID", id).header("X-Worker-Token", "worker-token-of-the-tests");
    Answer::read(request.send().await.unwrap()).await
}

fn beat() -> Value {
    json!({
        "hostname": "h1.example", "status": "online", "providers": ["mock"], "capabilities": ["spawn", "exec"],
        "capacity": {"max_sandboxes": 4, "max_sandboxes_per_owner": 2}
    })
}

#[tokio::test]
async fn a_single_server_registers_itself_as_local() {
    let server =
        TestServer::start(&format!("{MOCK} defaults.max_sandboxes=9 defaults.max_sandboxes_per_owner=3")).await;
    let workers = server.get("/workers").await.ok();
    assert_eq!(workers.as_array().unwrap().len(), 1);
    let local = server.get("/workers/local").await.ok();
    assert_eq!(workers[0]["id"], "local");
    assert!(!local["hostname"].as_str().unwrap().is_empty());
    insta::assert_json_snapshot!(redacted(local, &["hostname", "last_heartbeat", "created_at", "updated_at"]), @r#"
    {
      "capabilities": [
        "api",
        "single_node",
        "spawn",
        "exec",
        "files"
      ],
      "capacity": {
        "max_sandboxes": 9,
        "max_sandboxes_per_owner": 3
      },
      "created_at": "[created_at]",
      "hostname": "[hostname]",
      "id": "local",
      "last_heartbeat": "[last_heartbeat]",
      "providers": [
        "mock"
      ],
      "stale": false,
      "status": "online",
      "updated_at": "[updated_at]"
    }
    "#);
}

#[tokio::test]
async fn the_local_worker_keeps_beating_and_is_never_stale() {
    let settings = format!("{MOCK} leases.heartbeat_interval=200ms leases.stale_after=5s leases.ttl=5s");
    let server = TestServer::start(&settings).await;
    let first = server.get("/workers/local").await.ok();
    server
        .until("another beat", async || {
            let seen = server.get("/workers/local").await.ok();
            seen["last_heartbeat"] != first["last_heartbeat"] && seen["stale"] == false
        })
        .await;
    assert_eq!(server.get("/workers/local").await.ok()["updated_at"], first["updated_at"], "nothing else changed");
}

#[tokio::test]
async fn a_heartbeat_registers_a_worker_and_answers_with_it() {
    let server = start().await;
    let heard = as_worker(&server, "w1", "/heartbeat", &beat()).await.ok();
    for (key, value) in beat().as_object().unwrap() {
        assert_eq!(&heard[key], value, "{key}");
    }
    assert_eq!((&heard["id"], &heard["stale"]), (&json!("w1"), &json!(false)));
    assert_eq!(server.get("/workers/w1").await.ok(), heard);
    let draining = as_worker(&server, "w1", "/heartbeat", &json!({"status": "draining"})).await.ok();
    assert_eq!(draining["status"], "draining");
    assert_eq!((&draining["providers"], &draining["hostname"]), (&json!([]), &json!("w1")));
    assert_eq!(draining["created_at"], heard["created_at"]);
    let ids: Vec<Value> =
        server.get("/workers").await.ok().as_array().unwrap().iter().map(|worker| worker["id"].clone()).collect();
    assert_eq!(ids, ["local", "w1"]);
}

#[tokio::test]
async fn a_worker_is_stale_once_it_has_been_silent_for_so_long() {
    let settings =
        format!("{MOCK} {WITH_TOKEN} leases.heartbeat_interval=100ms leases.stale_after=1500ms leases.ttl=2s");
    let server = TestServer::start(&settings).await;
    as_worker(&server, "w1", "/heartbeat", &beat()).await.ok();
    server.until("w1 is stale", async || server.get("/workers/w1").await.ok()["stale"] == true).await;
    let seen = server.get("/workers/w1").await.ok();
    assert_eq!(seen["status"], "online", "that is what it said last");
    assert_eq!(as_worker(&server, "w1", "/heartbeat", &beat()).await.ok()["stale"], false);
}

#[tokio::test]
async fn an_address_for_a_host_name_is_in_no_diagnostics_and_no_metrics() {
    let server = start().await;
    for (id, hostname) in [("w4", "10.1.2.3"), ("w6", "fd00::1")] {
        let mut body = beat();
        body["hostname"] = json!(hostname);
        assert_eq!(as_worker(&server, id, "/heartbeat", &body).await.ok()["hostname"], hostname);
        for path in ["/diagnostics", "/metrics", "/metrics/prometheus"] {
            let answer = server.get(path).await;
            let text = String::from_utf8_lossy(&answer.bytes);
            assert!(answer.status == 200 && !text.contains(hostname), "{path}: {text}");
        }
    }
}

#[tokio::test]
async fn what_a_heartbeat_may_say_is_bounded() {
    let server = start().await;
    let long = "x".repeat(300);
    for (field, value, words) in [
        ("hostname", json!("a b"), "`hostname`"),
        ("hostname", json!(""), "`hostname`"),
        ("hostname", json!(long), "`hostname`"),
        ("hostname", json!("a\u{7}"), "`hostname`"),
        ("status", json!("busy"), "`busy` is not online, draining or unhealthy"),
        ("status", json!(1), "`status`"),
        ("providers", json!(["a b"]), "`providers`"),
        ("providers", json!([""]), "`providers`"),
        ("providers", json!([long]), "`providers`"),
        ("providers", json!((0..65).map(|n| format!("p{n}")).collect::<Vec<_>>()), "at most 64"),
        ("providers", json!("mock"), "`providers`"),
        ("capabilities", json!(["<script>"]), "`capabilities`"),
        ("capacity", json!({"max_sandboxes": -1}), "`capacity.max_sandboxes`"),
        ("capacity", json!({"max_sandboxes": 1_000_000_001u64}), "`capacity.max_sandboxes` must be at most"),
        ("capacity", json!({"max_sandboxes_per_owner": 1.5}), "`capacity.max_sandboxes_per_owner`"),
    ] {
        for admin in [false, true] {
            let mut body = beat();
            body[field] = value.clone();
            let answer = if admin {
                server.post("/admin/workers/w1/heartbeat", body).await
            } else {
                as_worker(&server, "w1", "/heartbeat", &body).await
            };
            answer.refused(400, "bad_request", words);
        }
    }
    server.get("/workers/w1").await.refused(404, "not_found", "worker `w1` does not exist");
    let twice = json!({"providers": ["mock", "mock", "native"]});
    assert_eq!(as_worker(&server, "w1", "/heartbeat", &twice).await.ok()["providers"], json!(["mock", "native"]));
}

#[tokio::test]
async fn unknown_fields_are_ignored_between_tideboxes_and_refused_from_the_operator() {
    let server = start().await;
    let mut body = beat();
    body["of_the_future"] = json!({"a": 1});
    body["capacity"]["of_the_future"] = json!(7);
    as_worker(&server, "w1", "/heartbeat", &body).await.ok();
    let strict = |body: Value| server.post("/admin/workers/w1/heartbeat", body);
    strict(json!({"of_the_future": 1})).await.refused(400, "bad_request", "unknown field `of_the_future`");
    let nested = json!({"capacity": {"of_the_future": 1}});
    strict(nested).await.refused(400, "bad_request", "unknown field `of_the_future`");
    let renew = json!({"ttl": "1m", "of_the_future": 1});
    as_worker(&server, "w1", "/leases/sb-x/renew", &renew).await.refused(404, "not_found", "sb-x");
}

#[tokio::test]
async fn the_operator_can_register_repair_and_forget_a_worker() {
    let server = start().await;
    let made = server.post("/admin/workers/w1/heartbeat", beat()).await.ok();
    assert_eq!(made["capacity"]["max_sandboxes"], 4);
    let repaired = server.post("/admin/workers/w1/heartbeat", json!({"status": "unhealthy"})).await.ok();
    assert_eq!(repaired["status"], "unhealthy");
    assert_eq!(server.delete("/admin/workers/w1").await.ok(), json!({"status": "deleted"}));
    server.delete("/admin/workers/w1").await.refused(404, "not_found", "worker `w1` does not exist");
    server.get("/workers/w1").await.refused(404, "not_found", "worker `w1` does not exist");
    assert_eq!(server.get("/workers").await.ok().as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn local_is_this_server_itself() {
    let server = start().await;
    as_worker(&server, "local", "/heartbeat", &beat()).await.refused(401, "unauthorized", "`local` is this server");
    let renew = json!({"ttl": "1m"});
    as_worker(&server, "local", "/leases/sb-x/renew", &renew).await.refused(
        401,
        "unauthorized",
        "`local` is this server",
    );
    server.delete("/admin/workers/local").await.refused(409, "conflict", "this server itself");
}

#[tokio::test]
async fn a_worker_id_is_fit_for_a_path() {
    let server = start().await;
    for id in ["a%20b", "a%2fb", "%c3%a4", &"x".repeat(129)] {
        server.post(&format!("/admin/workers/{id}/heartbeat"), beat()).await.refused(400, "bad_request", "worker id");
        server.get(&format!("/workers/{id}")).await.refused(404, "not_found", "worker");
        server.delete(&format!("/admin/workers/{id}")).await.refused(404, "not_found", "worker");
    }
}

#[tokio::test]
async fn a_worker_route_asks_for_the_workers_own_credential() {
    let server = start().await;
    let shown = |id: Option<&str>, token: Option<&str>| {
        let mut request = server.request(Method::POST, "/worker/w1/heartbeat").json(&beat());
        if let Some(id) = id {
            request = request.header("X-Worker-ID", id);
        }
        if let Some(token) = token {
            request = request.header("X-Worker-Token", token);
        }
        request.send()
    };
    let token = Some("worker-token-of-the-tests");
    for (id, token) in [(None, None), (Some("w1"), None), (None, token), (Some("w2"), token), (Some("w1"), Some("x"))] {
        let answer = Answer::read(shown(id, token).await.unwrap()).await;
        assert_eq!(answer.status, 401, "{id:?} {token:?}: {}", answer.json());
    }
    Answer::read(shown(Some("w1"), token).await.unwrap()).await.ok();
    let unconfigured = TestServer::start(MOCK).await;
    let answer = as_worker(&unconfigured, "w1", "/heartbeat", &beat()).await;
    assert_eq!(answer.status, 401, "{}", answer.json());
}

#[tokio::test]
async fn the_worker_of_the_path_is_known_however_its_id_is_written() {
    let server = start().await;
    let beat = async |path: &str, id: &str| {
        let request = server.request(Method::POST, &format!("/worker/{path}/heartbeat")).json(&beat());
        let request = request.header("X-Worker-ID", id).header("X-Worker-Token", "worker-token-of-the-tests");
        Answer::read(request.send().await.unwrap()).await.status
    };
    assert!(beat("w1", "w1").await.is_success() && beat("w%31", "w1").await.is_success());
    for (path, id) in
        [("w2", "w1"), ("w%31", "w%31"), ("w%32", "w1"), ("w2%2f..%2fw1", "w1"), ("%6cocal", "local"), ("w1%00", "w1")]
    {
        assert_eq!(beat(path, id).await, 401, "{path}");
    }
}

#[tokio::test]
async fn the_lifetime_of_a_lease_is_positive_and_bounded() {
    let server = start().await;
    for (ttl, words) in [("0s", "longer than zero"), ("-1s", "negative"), ("soon", "`ttl`"), ("61m", "at most 1h0m0s")]
    {
        let answer = as_worker(&server, "w1", "/leases/sb-x/renew", &json!({"ttl": ttl})).await;
        answer.refused(400, "bad_request", words);
    }
    as_worker(&server, "w1", "/leases/sb-x/renew", &json!({})).await.refused(400, "bad_request", "`ttl`");
}

#[tokio::test]
async fn a_server_that_drains_stays_drained_through_its_own_beats() {
    let settings = format!("{MOCK} leases.heartbeat_interval=100ms leases.stale_after=5s leases.ttl=5s");
    let mut server = TestServer::start(&settings).await;
    let drained = server.post("/admin/workers/local/heartbeat", json!({"status": "draining"})).await.ok();
    server
        .until("it beats", async || {
            server.get("/workers/local").await.ok()["last_heartbeat"] != drained["last_heartbeat"]
        })
        .await;
    server.kill();
    server.launch().await;
    let local = server.get("/workers/local").await.ok();
    assert_eq!((&local["status"], &local["providers"]), (&json!("draining"), &json!(["mock"])));
    server.post("/admin/workers/local/heartbeat", json!({"status": "online"})).await.ok();
    assert_eq!(server.get("/workers/local").await.ok()["status"], "online");
}
