//! The owner table: every route of the document, with keys of its owner, of another, and with keys that have ended
//! or lack the scope.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use super::{Key, SCOPES, server};
use crate::server::{Answer, TestServer};

/// Demand of a route on a key of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    /// No key.
    Nothing,
    /// Any key.
    AnyKey,
    /// This scope.
    Scope(&'static str),
    /// No key of an owner: the route is the operator's.
    Operator,
    /// The credential of a worker.
    Worker,
}

/// Returns what a route has to ask. A route of an unknown group fails the test: decide, and add it here.
fn asks(method: &Method, path: &str) -> Asks {
    let reads = *method == Method::GET;
    let is_socket = ["/exec/ws", "/attach", "/connect", "/listen", "/listen/{connection}"];
    match path.split('/').nth(1).unwrap() {
        "live" | "health" | "ready" => Asks::Nothing,
        "openapi.json" => Asks::AnyKey,
        "sandboxes" if path.ends_with("/snapshots") => Asks::Scope("snapshots"),
        "sandboxes" if path == "/sandboxes/admission" => Asks::Scope("sandboxes:read"),
        "sandboxes" if reads && !is_socket.iter().any(|end| path.ends_with(end)) => Asks::Scope("sandboxes:read"),
        "sandboxes" => Asks::Scope("sandboxes:write"),
        "snapshots" => Asks::Scope("snapshots"),
        "templates" if path.ends_with("/spawn") => Asks::Scope("sandboxes:write"),
        "templates" => Asks::Scope("templates"),
        "events" => Asks::Scope("events"),
        "metrics" => Asks::Scope("metrics"),
        "quotas" if reads && path.contains("{owner_id}") => Asks::Scope("sandboxes:read"),
        "images" if reads => Asks::Scope("images"),
        "secrets" if reads => Asks::Scope("secrets"),
        "admin" | "diagnostics" | "images" | "pool" | "providers" | "quotas" | "secrets" | "workers" => Asks::Operator,
        "worker" => Asks::Worker,
        _ => panic!("say what {method} {path} asks of a key of an owner"),
    }
}

/// Returns every method and path of the document.
async fn routes(server: &TestServer) -> Vec<(Method, String)> {
    let document = server.get("/openapi.json").await.ok();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.strip_prefix("/api/v1").unwrap();
        for method in methods.as_object().unwrap().keys().filter(|key| key.as_str() != "parameters") {
            routes.push((Method::from_bytes(method.to_uppercase().as_bytes()).unwrap(), path.to_owned()));
        }
    }
    assert!(routes.len() > 100, "{}", routes.len());
    routes
}

/// Objects that belong to one owner, or to none.
struct Objects {
    sandbox: String,
    snapshot: String,
    template: String,
    owner: String,
}

impl Objects {
    /// Makes one of each with the admin key. The template is made with the owner's key, if it has one.
    async fn make(server: &TestServer, owner: Option<&str>, key: Option<&Key<'_>>) -> Self {
        let owner_id = owner.map(str::to_owned);
        let answer = server.post("/sandboxes", json!({"owner_id": owner_id, "metadata": {"is": "theirs"}})).await;
        let sandbox = answer.ok()["id"].as_str().unwrap().to_owned();
        let snapshot = server.post(&format!("/sandboxes/{sandbox}/snapshots"), json!({})).await.ok();
        let template = format!("template-of-{}", owner.unwrap_or("nobody"));
        match key {
            Some(key) => key.post("/templates", json!({"name": template})).await.ok(),
            None => server.post("/templates", json!({"name": template})).await.ok(),
        };
        Self {
            sandbox,
            snapshot: snapshot["id"].as_str().unwrap().to_owned(),
            template,
            owner: owner.unwrap_or("nobody").to_owned(),
        }
    }

    /// Returns the path to one of these objects, with the query that the route needs.
    fn path(&self, method: &Method, path: &str) -> String {
        let id = if path.starts_with("/snapshots") { &self.snapshot } else { &self.sandbox };
        let filled = path
            .replace("{id}", id)
            .replace("{name}", if path.starts_with("/templates") { &self.template } else { "shared" })
            .replace("{owner_id}", &self.owner)
            .replace("{port}", "3000")
            .replace("{process}", "p-none")
            .replace("{path}", "tmp/file");
        let reads_or_deletes = [Method::GET, Method::DELETE].contains(method);
        let query = match path {
            "/events" => "?follow=false&last_event_id=0",
            "/sandboxes/{id}/files" if reads_or_deletes => "?path=/tmp",
            "/sandboxes/{id}/files/watch" | "/sandboxes/{id}/files/archive" => "?path=/tmp",
            "/sandboxes/{id}/wait" => "?timeout=1ms",
            _ => "",
        };
        format!("{filled}{query}")
    }

    /// Returns whether the path leads to one of these objects.
    fn is_named_by(path: &str) -> bool {
        ["{id}", "{name}", "{owner_id}"].iter().any(|part| path.contains(part))
            && ["/sandboxes", "/snapshots", "/templates", "/quotas"].iter().any(|group| path.starts_with(group))
    }
}

/// Sends a request with an empty body and returns the answer; of a success without an end only the head.
async fn send(key: &Key<'_>, method: &Method, path: &str) -> Answer {
    let request = key.request(method.clone(), path).json(&json!({}));
    let response = request.send().await.unwrap();
    let has_end = !path.contains("/watch") || !response.status().is_success();
    if has_end {
        return Answer::read(response).await;
    }
    Answer { status: response.status(), headers: response.headers().clone(), bytes: Vec::new() }
}

#[tokio::test]
async fn every_route_asks_keys_of_owners_for_its_scope_and_knows_those_that_have_ended() {
    let server = server("").await;
    let all = Key::of(&server, "ann").await;
    let ann = Objects::make(&server, Some("ann"), Some(&all)).await;
    let revoked = Key::of(&server, "ann").await;
    revoked.revoke().await;
    let expired = Key::create(&server, json!({"owner_id": "ann", "scopes": SCOPES, "ttl": "1ms"})).await;
    server.until("the key expires", async || expired.get("/sandboxes").await.status == 401).await;
    // For each scope a key with all the others.
    let mut lacking = Vec::new();
    for scope in SCOPES {
        let others: Vec<&str> = SCOPES.into_iter().filter(|other| *other != scope).collect();
        // Writing implies reading.
        let others: Vec<&str> = match scope {
            "sandboxes:read" => others.into_iter().filter(|other| *other != "sandboxes:write").collect(),
            _ => others,
        };
        lacking.push((scope, Key::create(&server, json!({"owner_id": "ann", "scopes": others})).await));
    }
    for (method, path) in routes(&server).await {
        let asks = asks(&method, &path);
        let at = ann.path(&method, &path);
        for (key, words) in [(&revoked, "was revoked"), (&expired, "has expired")] {
            let answer = send(key, &method, &at).await;
            match asks {
                Asks::Nothing => assert!(answer.status.is_success(), "{method} {path}: {}", answer.status),
                Asks::Worker => answer.refused(401, "unauthorized", ""),
                Asks::AnyKey | Asks::Scope(_) | Asks::Operator => answer.refused(401, "unauthorized", words),
            }
        }
        match asks {
            Asks::Scope(scope) => {
                let (_, key) = lacking.iter().find(|(lacks, _)| *lacks == scope).unwrap();
                send(key, &method, &at).await.refused(403, "forbidden", &format!("scope `{scope}`"));
            }
            Asks::Operator => send(&all, &method, &at).await.refused(403, "forbidden", "the operator's"),
            Asks::Nothing | Asks::AnyKey | Asks::Worker => {}
        }
    }
    let kept = all.get(&format!("/sandboxes/{}", ann.sandbox)).await.ok();
    assert_eq!(kept["state"], "running", "no refused request has changed anything");
}

#[tokio::test]
async fn every_route_shows_an_owner_its_own_and_nothing_of_others() {
    let server = server("").await;
    let (ann_key, bob_key) = (Key::of(&server, "ann").await, Key::of(&server, "bob").await);
    let ann = Objects::make(&server, Some("ann"), Some(&ann_key)).await;
    let nobody = Objects::make(&server, None, None).await;
    let secret = json!({"value": "s", "hosts": ["a.example"], "owners": ["ann", "cyd"]});
    server.put("/secrets/of-ann", secret).await.ok();
    server.put("/secrets/shared", json!({"value": "s", "hosts": ["a.example"]})).await.ok();
    server.put("/quotas/ann", json!({"max_sandboxes": 77})).await.ok();
    let hidden = [&*ann.sandbox, &ann.snapshot, &ann.template, &nobody.sandbox, &nobody.snapshot, "of-ann", "\"ann\""];
    for (method, path) in routes(&server).await {
        if !matches!(asks(&method, &path), Asks::Scope(_)) {
            continue;
        }
        for objects in [&ann, &nobody] {
            let answer = send(&bob_key, &method, &objects.path(&method, &path)).await;
            let shown = String::from_utf8_lossy(&answer.bytes).into_owned();
            let is_operators = std::ptr::eq(objects, &nobody) && path.starts_with("/templates/{name}");
            match (Objects::is_named_by(&path), is_operators) {
                // The operator's templates are for every owner, and stay as they are.
                (true, true) if method == Method::GET || method == Method::POST => {
                    assert!(answer.status.is_success(), "{method} {path}: {shown}");
                }
                (true, true) => answer.refused(403, "forbidden", "the operator's"),
                (true, false) => answer.refused(404, "not_found", ""),
                // A list, or an object that is to be made.
                (false, _) => {
                    let found: Vec<_> = hidden.iter().filter(|hidden| shown.contains(**hidden)).collect();
                    assert!(found.is_empty(), "{method} {path} shows {found:?}: {shown}");
                }
            }
        }
    }
    // Nothing has changed.
    for objects in [&ann, &nobody] {
        let sandbox = server.get(&format!("/sandboxes/{}", objects.sandbox)).await.ok();
        assert_eq!((&sandbox["state"], &sandbox["metadata"]), (&json!("running"), &json!({"is": "theirs"})));
        server.get(&format!("/snapshots/{}", objects.snapshot)).await.ok();
    }
    ann_key.get(&format!("/templates/{}", ann.template)).await.ok();
    // The owner itself reaches each: another fresh object for each route, since some remove it.
    for (number, (method, path)) in routes(&server).await.into_iter().enumerate() {
        if !matches!(asks(&method, &path), Asks::Scope(_)) {
            continue;
        }
        let mut own = Objects::make(&server, Some("cyd"), None).await;
        let cyd = Key::of(&server, "cyd").await;
        own.template = format!("own-{number}");
        cyd.post("/templates", json!({"name": own.template})).await.ok();
        let answer = send(&cyd, &method, &own.path(&method, &path)).await;
        let shown = String::from_utf8_lossy(&answer.bytes).into_owned();
        assert!(![401, 403].contains(&answer.status.as_u16()), "{method} {path}: {shown}");
        for kind in ["sandbox", "snapshot", "template"] {
            assert!(!shown.contains(&format!("{kind} `")), "{method} {path} does not find the {kind}: {shown}");
        }
        assert!(!hidden.iter().any(|hidden| *hidden != "of-ann" && shown.contains(hidden)), "{method} {path}: {shown}");
        cyd.revoke().await;
        server.delete(&format!("/sandboxes/{}", own.sandbox)).await;
        server.delete(&format!("/snapshots/{}", own.snapshot)).await;
        server.delete(&format!("/templates/{}?owner_id=cyd", own.template)).await;
        server.delete("/templates/template-of-cyd").await.ok();
    }
}

/// Returns the ids in the events.
fn sandboxes_in(events: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8(events.to_vec()).unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = data.map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter_map(|event| Some(event["sandbox_id"].as_str()?.to_owned())).collect()
}

#[tokio::test]
async fn events_are_those_of_the_owner_however_they_are_asked_for() {
    let server = server("").await;
    let (ann, bob) = (Key::of(&server, "ann").await, Key::of(&server, "bob").await);
    let (of_ann, of_bob, of_nobody) = (ann.spawn().await, bob.spawn().await, server.spawn().await);
    ann.post("/templates", json!({"name": "of-ann"})).await.ok();
    server.put("/quotas/ann", json!({"max_sandboxes": 7})).await.ok();
    server.put("/secrets/hidden", json!({"value": "s", "hosts": ["a.example"]})).await.ok();
    let all = "/events?last_event_id=0&follow=false";
    assert_eq!(
        sandboxes_in(&server.get(all).await.bytes),
        BTreeSet::from([&of_ann, &of_bob, &of_nobody].map(Clone::clone))
    );
    let shown = bob.get(all).await.bytes;
    assert_eq!(sandboxes_in(&shown), BTreeSet::from([of_bob.clone()]));
    let shown = String::from_utf8(shown).unwrap();
    for hidden in ["ann", "hidden", "worker.", "provider."] {
        assert!(!shown.contains(hidden), "{hidden}: {shown}");
    }
    let own = String::from_utf8(ann.get(all).await.bytes).unwrap();
    for kind in ["event: template.saved", "event: quota.saved", "event: sandbox.running"] {
        assert!(own.contains(kind), "{kind}: {own}");
    }
    for id in [&of_ann, &of_nobody] {
        bob.get(&format!("{all}&sandbox_id={id}")).await.refused(404, "not_found", id);
    }
    assert_eq!(
        sandboxes_in(&bob.get(&format!("{all}&sandbox_id={of_bob}")).await.bytes),
        BTreeSet::from([of_bob.clone()])
    );
    let resumed = bob.request(Method::GET, "/events?follow=false").header("Last-Event-ID", "1").send().await.unwrap();
    assert_eq!(sandboxes_in(&resumed.bytes().await.unwrap()), BTreeSet::from([of_bob]));
}

#[tokio::test]
async fn secrets_are_those_that_the_owner_may_use_and_name_no_other_owner() {
    let server = server("").await;
    let bob = Key::of(&server, "bob").await;
    for (name, owners) in [("all", vec![]), ("both", vec!["ann", "bob"]), ("other", vec!["ann"])] {
        server
            .put(&format!("/secrets/{name}"), json!({"value": "v", "hosts": ["a.example"], "owners": owners}))
            .await
            .ok();
    }
    let listed = bob.get("/secrets").await.ok();
    assert_eq!(each_name(&listed), ["all", "both"]);
    assert_eq!((&listed[0]["owners"], &listed[1]["owners"]), (&json!([]), &json!(["bob"])));
    assert_eq!(bob.get("/secrets/both").await.ok()["owners"], json!(["bob"]));
    bob.get("/secrets/other").await.refused(404, "not_found", "other");
    for name in ["all", "other", "new"] {
        let refused = bob.put(&format!("/secrets/{name}"), json!({"value": "x", "hosts": ["b.example"]})).await;
        refused.refused(403, "forbidden", "the operator's");
        bob.delete(&format!("/secrets/{name}")).await.refused(403, "forbidden", "the operator's");
    }
}

fn each_name(list: &Value) -> Vec<String> {
    super::each(list, "name")
}

#[tokio::test]
async fn an_owners_template_comes_before_the_operators_of_the_same_name() {
    let server = server("").await;
    let (ann, bob) = (Key::of(&server, "ann").await, Key::of(&server, "bob").await);
    server.post("/templates", json!({"name": "base", "metadata": {"of": "operator"}})).await.ok();
    ann.post("/templates", json!({"name": "base", "metadata": {"of": "ann"}})).await.ok();
    ann.post("/templates", json!({"name": "mine"})).await.ok();
    ann.post("/templates", json!({"name": "base"})).await.refused(409, "conflict", "base");
    let of = async |key: &Key<'_>| key.post("/templates/base/spawn", json!({})).await.ok()["metadata"]["of"].clone();
    assert_eq!((of(&ann).await, of(&bob).await), (json!("ann"), json!("operator")));
    let named = ann.post("/sandboxes", json!({"template": "base"})).await.ok();
    assert_eq!(named["metadata"]["of"], "ann");
    // The operator's spawn for an owner means the same template as the owner's own.
    assert_eq!(
        server.post("/sandboxes", json!({"template": "base", "owner_id": "ann"})).await.ok()["metadata"]["of"],
        "ann"
    );
    assert_eq!(server.post("/sandboxes", json!({"template": "base"})).await.ok()["metadata"]["of"], "operator");
    assert_eq!(each_name(&ann.get("/templates").await.ok()), ["base", "base", "mine"]);
    assert_eq!(each_name(&ann.get("/templates?owner_id=ann").await.ok()), ["base", "mine"]);
    assert_eq!(each_name(&bob.get("/templates").await.ok()), ["base"]);
    assert_eq!(bob.get("/templates?owner_id=ann").await.ok(), json!([]));
    for path in ["/templates/mine", "/templates/mine?owner_id=ann", "/templates/base?owner_id=ann"] {
        bob.get(path).await.refused(404, "not_found", "template");
        bob.put(path, json!({})).await.refused(404, "not_found", "template");
        bob.delete(path).await.refused(404, "not_found", "template");
    }
    bob.put("/templates/base", json!({})).await.refused(403, "forbidden", "the operator's");
    bob.delete("/templates/base").await.refused(403, "forbidden", "the operator's");
    bob.post("/sandboxes", json!({"template": "mine"})).await.refused(404, "not_found", "mine");
    // The operator names the owner of what is not its own.
    server.get("/templates/mine").await.refused(404, "not_found", "mine");
    assert_eq!(server.get("/templates/mine?owner_id=ann").await.ok()["owner_id"], "ann");
    assert_eq!(each_name(&server.get("/templates").await.ok()), ["base", "base", "mine"]);
    ann.delete("/templates/base").await.ok();
    assert_eq!(of(&ann).await, "operator");
}

#[tokio::test]
async fn one_owner_may_not_take_every_template_there_may_be() {
    let server = server("limits.max_templates=20").await;
    let ann = Key::of(&server, "ann").await;
    for name in ["a", "b"] {
        ann.post("/templates", json!({"name": name})).await.ok();
    }
    ann.post("/templates", json!({"name": "c"})).await.refused(429, "resource_limit", "2 templates of one owner");
    server.post("/templates", json!({"name": "c"})).await.ok();
}
