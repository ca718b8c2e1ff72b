//! The control plane.

use reqwest::Method;
use serde_json::{Value, json};

use super::{E2b, KEY, Sandbox, answer, refused};
use crate::server::{MOCK, TestServer, http_client};

#[tokio::test]
async fn a_sandbox_is_made_shown_listed_and_killed() {
    let e2b = E2b::mock().await;
    for path in ["/v2/sandboxes", "/sandboxes"] {
        let body = json!({"templateID": "base", "timeout": 60, "metadata": {"a": "b"}, "envVars": {}, "secure": true});
        let made = e2b.post(path, body).await;
        assert_eq!(made.status, 201, "{}", made.json());
        let made = Sandbox::of(made.json());
        assert_eq!(made.answer["templateID"], "base");
        for field in ["clientID", "envdVersion", "domain"] {
            assert!(made.answer[field].is_string(), "{field}: {}", made.answer);
        }
        let shown = e2b.get(&format!("/sandboxes/{}", made.id)).await.ok();
        for field in ["startedAt", "endAt", "cpuCount", "memoryMB", "diskSizeMB", "clientID", "envdVersion"] {
            assert!(!shown[field].is_null(), "{field}: {shown}");
        }
        assert_eq!((&shown["state"], &shown["metadata"]), (&json!("running"), &json!({"a": "b"})));
        assert_eq!(shown["envdAccessToken"], made.token.as_str());
        assert_eq!(shown["lifecycle"], json!({"onTimeout": "kill", "autoResume": false}));
        let listed = e2b.get("/v2/sandboxes").await.ok();
        assert_eq!(listed[0]["sandboxID"], made.id.as_str());
        let path = format!("/sandboxes/{}", made.id);
        let killed = e2b.delete(&path).await;
        assert_eq!((killed.status.as_u16(), killed.bytes.len()), (204, 0));
        refused(&e2b.delete(&path).await, 404, &made.id);
        refused(&e2b.get(&path).await, 404, &made.id);
        assert_eq!(e2b.get("/v2/sandboxes").await.ok(), json!([]));
    }
}

#[tokio::test]
async fn an_error_has_its_status_as_a_number_and_a_message_that_tells_what_to_change() {
    let e2b = E2b::mock().await;
    let none = "/sandboxes/sb-aaaaaaaaaaaaaaaa";
    for (method, path, body, status, words) in [
        (Method::POST, "/v2/sandboxes", json!({"templateID": "nonsense"}), 404, "nonsense"),
        (Method::POST, "/v2/sandboxes", json!({"templateID": "base:v9"}), 404, "base:v9"),
        (Method::POST, "/v2/sandboxes", json!({}), 400, "templateID"),
        (Method::POST, "/v2/sandboxes", json!({"templateID": "base", "timeout": "60"}), 400, "timeout"),
        (Method::POST, "/v2/sandboxes", json!({"templateID": "base", "timeout": 0}), 400, "`timeout`"),
        (Method::POST, "/v2/sandboxes", json!({"templateID": "base", "timeout": 999_999_999}), 400, "`timeout`"),
        (Method::POST, "/v2/sandboxes", json!({"templateID": "base", "metadata": {"k": 1}}), 400, "metadata"),
        (Method::POST, "/v2/sandboxes", json!({"templateID": "base", "envVars": {"A=B": "x"}}), 400, "variable"),
        (
            Method::POST,
            "/v2/sandboxes",
            json!({"templateID": "base", "autoPauseMemory": false}),
            400,
            "autoPauseMemory",
        ),
        (Method::POST, "/v2/sandboxes", json!({"templateID": "base", "iam": {"role": "r"}}), 400, "iam"),
        (
            Method::POST,
            "/v2/sandboxes",
            json!({"templateID": "base", "volumeMounts": [{"name": "v", "path": "/v"}]}),
            400,
            "volumeMounts",
        ),
        (Method::POST, "/v2/sandboxes", json!({"templateID": "base", "network": {"rules": {"h": []}}}), 400, "rules"),
        (Method::GET, none, Value::Null, 404, "does not exist"),
        (Method::DELETE, none, Value::Null, 404, "does not exist"),
        (Method::GET, "/sandboxes/nonsense", Value::Null, 404, "does not exist"),
        (Method::POST, &format!("{none}/timeout"), json!({"timeout": 5}), 404, "does not exist"),
        (Method::POST, &format!("{none}/timeout"), json!({}), 400, "timeout"),
        (Method::POST, &format!("{none}/connect"), json!({}), 404, "does not exist"),
        (Method::POST, &format!("{none}/pause"), json!({}), 404, "does not exist"),
        (Method::POST, &format!("{none}/pause"), json!({"memory": false}), 400, "memory"),
        (Method::GET, &format!("{none}/metrics"), Value::Null, 404, "does not exist"),
        (Method::PUT, &format!("{none}/network"), json!({}), 404, "does not exist"),
        (Method::POST, &format!("{none}/snapshots"), json!({}), 404, "does not exist"),
        (Method::POST, &format!("{none}/fork"), json!({}), 404, "does not exist"),
        (Method::DELETE, "/templates/nonsense", Value::Null, 404, "does not exist"),
        (Method::GET, "/templates/aliases/nonsense", Value::Null, 404, "does not exist"),
        (Method::GET, "/v2/sandboxes?state=odd", Value::Null, 400, "`state`"),
        (Method::GET, "/volumes", Value::Null, 404, "/volumes"),
        (Method::PUT, "/v2/sandboxes", json!({}), 405, "method"),
    ] {
        let request = e2b.asking(method.clone(), path);
        let request = if body.is_null() { request } else { request.json(&body) };
        let answered = answer(request).await;
        assert_eq!(answered.headers["content-type"], "application/json", "{method} {path}");
        refused(&answered, status, words);
    }
    refused(&answer(e2b.bare(Method::GET, "/v2/sandboxes")).await, 401, "key");
    refused(&answer(e2b.bare(Method::GET, "/v2/sandboxes").header("X-API-KEY", "wrong")).await, 401, "key");
    assert_eq!(e2b.get("/v2/sandboxes").await.ok(), json!([]), "nothing was made");
}

#[tokio::test]
async fn every_template_that_there_is_has_an_alias() {
    let e2b = E2b::mock().await;
    e2b.server.post("/templates", json!({"name": "mine", "memory_mb": 256})).await.ok();
    for name in ["base", "base:default", "code-interpreter-v1", "mine"] {
        assert_eq!(e2b.get(&format!("/templates/aliases/{name}")).await.ok()["templateID"], name);
    }
    let made = e2b.create(json!({"templateID": "mine"})).await;
    assert_eq!(e2b.get(&format!("/sandboxes/{}", made.id)).await.ok()["memoryMB"], 256);
}

#[tokio::test]
async fn the_list_is_filtered_ordered_and_paged() {
    let e2b = E2b::mock().await;
    let mut made = Vec::new();
    for n in 0..3 {
        let metadata = json!({"n": n.to_string(), "k": "v w&=%"});
        made.push(e2b.create(json!({"metadata": metadata})).await.id);
    }
    let ids = async |query: &str| {
        let answered = e2b.get(&format!("/v2/sandboxes?{query}")).await;
        let next = answered.headers.get("x-next-token").map(|next| next.to_str().unwrap().to_owned());
        let listed = answered.ok();
        let ids = listed.as_array().unwrap().iter().map(|one| one["sandboxID"].as_str().unwrap().to_owned());
        (ids.collect::<Vec<_>>(), next)
    };
    let newest_first: Vec<_> = made.iter().rev().cloned().collect();
    assert_eq!(ids("").await, (newest_first.clone(), None));
    assert_eq!(ids("order=asc&state=running,paused").await.0, made);
    assert_eq!(ids("state=paused").await.0, Vec::<String>::new());
    assert_eq!(ids("template=base").await.0, newest_first);
    assert_eq!(ids("template=other").await.0, Vec::<String>::new());
    // As both SDKs encode `{"k": "v w&=%"}` and `{"n": "1"}`.
    assert_eq!(ids("metadata=k%3Dv%252520w%252526%25253D%252525").await.0, newest_first);
    assert_eq!(ids("metadata=k%3Dv%252520w%252526%25253D%252525%26n%3D1").await.0, [made[1].clone()]);
    assert_eq!(ids("metadata=n%3D7").await.0, Vec::<String>::new());
    for order in ["asc", "desc"] {
        let (first, next) = ids(&format!("order={order}&limit=2")).await;
        let (rest, last) = ids(&format!("order={order}&limit=2&nextToken={}", next.unwrap())).await;
        assert_eq!((first.len(), rest.len(), last), (2, 1, None));
        let all: Vec<_> = first.into_iter().chain(rest).collect();
        assert_eq!(all, if order == "asc" { made.clone() } else { newest_first.clone() });
    }
    let second = e2b.get(&format!("/sandboxes/{}", made[1])).await.ok();
    let from = second["startedAt"].as_str().unwrap();
    let after = ids(&format!("startedAfter={from}&order=asc")).await.0;
    assert!(after.contains(&made[1]) && after.contains(&made[2]), "{after:?}");
}

#[tokio::test]
async fn the_same_idempotency_key_gives_the_same_sandbox() {
    let e2b = E2b::mock().await;
    let create = async |metadata: Value| {
        let request = e2b.asking(Method::POST, "/v2/sandboxes").header("Idempotency-Key", "a-key-1");
        answer(request.json(&json!({"templateID": "base", "metadata": metadata}))).await
    };
    let first = create(json!({})).await.ok();
    assert_eq!(create(json!({})).await.ok()["sandboxID"], first["sandboxID"]);
    refused(&create(json!({"a": "b"})).await, 409, "Idempotency-Key");
}

#[tokio::test]
async fn the_front_can_be_switched_off() {
    let server = TestServer::start(&format!("{MOCK} compat.e2b.enabled=false")).await;
    let http = http_client().build().unwrap();
    for path in ["/v2/sandboxes", "/health", "/files", "/templates/aliases/base"] {
        let refused = answer(http.get(format!("{}{path}", server.url))).await;
        refused_by_api(&refused);
    }
}

#[track_caller]
fn refused_by_api(answer: &crate::server::Answer) {
    assert_eq!((answer.status.as_u16(), &answer.json()["code"]), (404, &json!("not_found")));
}

#[tokio::test]
async fn the_path_and_the_key_decide_before_the_routing_headers() {
    let e2b = E2b::mock().await;
    let made = e2b.create(json!({})).await;
    let path = format!("/sandboxes/{}/connect", made.id);
    let routed = e2b.asking(Method::POST, &path).header("E2b-Sandbox-Id", &made.id).header("E2b-Sandbox-Port", "49983");
    assert_eq!(answer(routed.json(&json!({"timeout": 60}))).await.ok()["envdAccessToken"], made.token.as_str());
    let doubled = answer(e2b.asking(Method::GET, &format!("//sandboxes//{}", made.id))).await.ok();
    assert_eq!(doubled["sandboxID"], made.id.as_str());
    // A bearer is the same key.
    let bearer = answer(e2b.bare(Method::GET, "/v2/sandboxes").bearer_auth(KEY)).await.ok();
    assert_eq!(bearer[0]["sandboxID"], made.id.as_str());
}

#[tokio::test]
async fn what_e2b_does_is_under_the_caps_and_the_audit_of_the_api() {
    let e2b = E2b::start(&format!("{MOCK} defaults.max_sandboxes=1")).await;
    let made = e2b.create(json!({})).await;
    let full = e2b.post("/v2/sandboxes", json!({"templateID": "base"})).await;
    refused(&full, 429, "sandboxes");
    assert_eq!(full.headers["should-retry"], "false");
    let listed = e2b.server.get("/sandboxes").await.ok();
    assert_eq!(listed[0]["id"], made.id.as_str());
    let policy = json!({"denyOut": ["10.0.0.0/8"]});
    let set = answer(e2b.asking(Method::PUT, &format!("/sandboxes/{}/network", made.id)).json(&policy)).await;
    assert_eq!(set.status, 204, "{}", String::from_utf8_lossy(&set.bytes));
    let egress = e2b.server.get(&format!("/sandboxes/{}/egress", made.id)).await.ok();
    assert_eq!(egress["policy"]["deny"], json!(["10.0.0.0/8"]), "{egress}");
    let entries = e2b.server.get("/admin/audit?action=sandboxes.egress").await.ok();
    assert_eq!(entries[0]["path"], format!("/sandboxes/{}/network", made.id), "{entries}");
}

#[tokio::test]
async fn a_key_of_an_owner_sees_what_the_owner_has_and_a_revoked_one_nothing() {
    let e2b = E2b::mock().await;
    let others = e2b.create(json!({})).await;
    let scopes = json!({"owner_id": "ann", "scopes": ["sandboxes:write", "snapshots", "templates"]});
    let created = e2b.server.post("/admin/keys", scopes).await.ok();
    let (id, secret) = (created["key"]["id"].as_str().unwrap(), created["secret"].as_str().unwrap());
    let ask = async |method: Method, path: String, body: Value| {
        answer(e2b.bare(method, &path).header("X-API-KEY", secret).json(&body)).await
    };
    let made = ask(Method::POST, "/v2/sandboxes".to_owned(), json!({"templateID": "base"})).await;
    let made = Sandbox::of(made.ok());
    let listed = ask(Method::GET, "/v2/sandboxes".to_owned(), json!({})).await.ok();
    let ids: Vec<_> = listed.as_array().unwrap().iter().map(|one| one["sandboxID"].as_str().unwrap()).collect();
    assert_eq!(ids, [made.id.as_str()]);
    for (method, path, body) in [
        (Method::GET, "", json!({})),
        (Method::DELETE, "", json!({})),
        (Method::POST, "/timeout", json!({"timeout": 60})),
        (Method::POST, "/connect", json!({})),
        (Method::POST, "/resume", json!({})),
        (Method::POST, "/pause", json!({})),
        (Method::GET, "/metrics", json!({})),
        (Method::PUT, "/network", json!({})),
        (Method::POST, "/snapshots", json!({})),
        (Method::POST, "/fork", json!({})),
    ] {
        refused(&ask(method, format!("/sandboxes/{}{path}", others.id), body).await, 404, &others.id);
    }
    assert_eq!(e2b.get(&format!("/sandboxes/{}", others.id)).await.ok()["state"], "running");
    e2b.server.delete(&format!("/admin/keys/{id}")).await;
    refused(&ask(Method::GET, "/v2/sandboxes".to_owned(), json!({})).await, 401, "");
}

#[tokio::test]
async fn a_key_with_another_scope_opens_no_route() {
    let e2b = E2b::mock().await;
    let made = e2b.create(json!({})).await;
    let body = json!({"owner_id": "ann", "scopes": ["events"]});
    let secret = e2b.server.post("/admin/keys", body).await.ok()["secret"].as_str().unwrap().to_owned();
    for (method, path) in [
        (Method::GET, "/v2/sandboxes".to_owned()),
        (Method::POST, "/v2/sandboxes".to_owned()),
        (Method::GET, format!("/sandboxes/{}", made.id)),
        (Method::DELETE, format!("/sandboxes/{}", made.id)),
        (Method::GET, "/snapshots".to_owned()),
        (Method::GET, "/templates/aliases/base".to_owned()),
    ] {
        let asked = e2b.bare(method.clone(), &path).header("X-API-KEY", &secret).json(&json!({"templateID": "base"}));
        refused(&answer(asked).await, 403, "scope");
    }
}

#[tokio::test]
async fn a_key_that_may_only_read_gets_no_token() {
    let e2b = E2b::mock().await;
    let key = async |scope: &str| {
        let created = e2b.server.post("/admin/keys", json!({"owner_id": "ann", "scopes": [scope]})).await;
        created.ok()["secret"].as_str().unwrap().to_owned()
    };
    let (reads, writes) = (key("sandboxes:read").await, key("sandboxes:write").await);
    let ask = async |key: &str, method: Method, path: &str| {
        answer(e2b.bare(method, path).header("X-API-KEY", key).json(&json!({"templateID": "base"}))).await
    };
    let made = Sandbox::of(ask(&writes, Method::POST, "/v2/sandboxes").await.ok());
    let path = format!("/sandboxes/{}", made.id);
    assert_eq!(ask(&writes, Method::GET, &path).await.ok()["envdAccessToken"], made.token.as_str());
    let detail = ask(&reads, Method::GET, &path).await.ok();
    assert_eq!((&detail["state"], detail.get("envdAccessToken")), (&json!("running"), None));
    refused(&ask(&reads, Method::POST, &format!("{path}/connect")).await, 403, "sandboxes:write");
}
