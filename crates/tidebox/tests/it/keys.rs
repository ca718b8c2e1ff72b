//! Keys of owners: one server, several teams.

mod attempts;
mod many;
mod owners;
mod streams;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::cli::{succeeds, tidebox};
use crate::server::{Answer, MOCK, TestServer};

const API: &str = "api-key-0123456789abcdef0123456789abcdef";
const ADMIN: &str = "admin-key-0123456789abcdef0123456789abcdef";
/// Every scope.
const SCOPES: [&str; 8] =
    ["sandboxes:read", "sandboxes:write", "snapshots", "templates", "images", "secrets", "events", "metrics"];

/// Starts a server that requires keys; requests without another go with the admin key.
async fn server(more: &str) -> TestServer {
    let settings = format!("{MOCK} auth.enabled=true auth.api_key={API} auth.admin_api_key={ADMIN} {more}");
    let mut server = TestServer::start(&settings).await;
    server.key = Some(ADMIN.to_owned());
    server
}

/// A key of an owner, with the server that it is for.
#[derive(Clone)]
struct Key<'a> {
    server: &'a TestServer,
    id: String,
    secret: String,
}

impl<'a> Key<'a> {
    async fn create(server: &'a TestServer, body: Value) -> Key<'a> {
        let answer = server.post("/admin/keys", body).await;
        assert_eq!(answer.status, 201, "{}", answer.json());
        let created = answer.json();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        Key { server, id: text(&created["key"]["id"]), secret: text(&created["secret"]) }
    }

    /// Creates a key with every scope.
    async fn of(server: &'a TestServer, owner: &str) -> Key<'a> {
        Key::create(server, json!({"owner_id": owner, "scopes": SCOPES})).await
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let url = format!("{}/api/v1{path}", self.server.url);
        self.server.http.request(method, url).header("X-API-Key", &self.secret)
    }

    async fn send(&self, method: Method, path: &str, body: Value) -> Answer {
        Answer::read(self.request(method, path).json(&body).send().await.unwrap()).await
    }

    async fn get(&self, path: &str) -> Answer {
        Answer::read(self.request(Method::GET, path).send().await.unwrap()).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(Method::POST, path, body).await
    }

    async fn put(&self, path: &str, body: Value) -> Answer {
        self.send(Method::PUT, path, body).await
    }

    async fn delete(&self, path: &str) -> Answer {
        Answer::read(self.request(Method::DELETE, path).send().await.unwrap()).await
    }

    async fn spawn(&self) -> String {
        let answer = self.post("/sandboxes", json!({})).await;
        assert_eq!(answer.status, 201, "{}", answer.json());
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    async fn revoke(&self) {
        self.server.delete(&format!("/admin/keys/{}", self.id)).await.ok();
    }

    /// Returns the row of the key in the list.
    async fn listed(&self) -> Value {
        let listed = self.server.get("/admin/keys").await.ok();
        listed.as_array().unwrap().iter().find(|key| key["id"] == self.id.as_str()).unwrap().clone()
    }
}

/// Returns this field of each item of a list.
fn each(list: &Value, field: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|item| item[field].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn a_key_is_shown_once_and_listed_by_its_first_characters() {
    let server = server("").await;
    let body = json!({"owner_id": "ann", "name": "CI", "scopes": ["events", "sandboxes:read"], "ttl": "1h"});
    let created = server.post("/admin/keys", body).await.json();
    let secret = created["secret"].as_str().unwrap();
    let digits = secret.strip_prefix("tbx_").unwrap();
    assert!(digits.len() == 40 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{secret}");
    let key = &created["key"];
    assert_eq!((&key["owner_id"], &key["name"]), (&json!("ann"), &json!("CI")));
    assert_eq!(key["scopes"], json!(["sandboxes:read", "events"]));
    assert_eq!(key["prefix"], secret[..12]);
    assert!(key["expires_at"].is_string() && key["revoked_at"].is_null() && key["last_used_at"].is_null(), "{key}");
    let listed = server.get("/admin/keys").await;
    assert_eq!(listed.json(), json!([key]));
    for path in ["/admin/keys", "/admin/audit", "/events?last_event_id=0&follow=false", "/metrics/prometheus"] {
        let shown = String::from_utf8(server.get(path).await.bytes).unwrap();
        assert!(!shown.contains(secret), "{path}");
    }
    assert!(!server.log_text().contains(digits));
    let database = std::fs::read(server.data_dir().join("tidebox.db")).unwrap();
    assert!(!database.windows(40).any(|window| window == digits.as_bytes()), "only its hash is stored");
}

#[tokio::test]
async fn a_key_of_the_form_of_e2b_works_like_any_other() {
    let server = server("").await;
    let key = Key::create(&server, json!({"owner_id": "ann", "format": "e2b"})).await;
    let digits = key.secret.strip_prefix("e2b_").unwrap();
    assert!(digits.len() == 40 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()), "{}", key.secret);
    let id = key.spawn().await;
    assert_eq!(key.get(&format!("/sandboxes/{id}")).await.ok()["owner_id"], "ann");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_makes_no_key() {
    let server = server("").await;
    for (body, words) in [
        (json!({}), "owner_id"),
        (json!({"owner_id": "a b"}), "`owner_id`"),
        (json!({"owner_id": "ann", "scopes": []}), "`scopes`"),
        (json!({"owner_id": "ann", "scopes": ["everything"]}), "sandboxes:read"),
        (json!({"owner_id": "ann", "ttl": "0s"}), "`ttl`"),
        (json!({"owner_id": "ann", "ttl": "-1h"}), "`ttl`"),
        (json!({"owner_id": "ann", "name": ""}), "`name`"),
        (json!({"owner_id": "ann", "name": "x".repeat(65)}), "`name`"),
        (json!({"owner_id": "ann", "format": "jwt"}), "e2b"),
        (json!({"owner_id": "ann", "key": "mine"}), "key"),
    ] {
        server.post("/admin/keys", body).await.refused(400, "bad_request", words);
    }
    assert_eq!(server.get("/admin/keys").await.ok(), json!([]));
    for id in ["key-aaaaaaaaaaaaaaaa", "nope", "tbx_1"] {
        server.delete(&format!("/admin/keys/{id}")).await.refused(404, "not_found", "key");
    }
}

#[tokio::test]
async fn only_the_admin_key_manages_keys() {
    let server = server("").await;
    let ann = Key::of(&server, "ann").await;
    for (key, status) in [("", 401), (API, 401), (ann.secret.as_str(), 403)] {
        let send = |method, path: &str| {
            let request = server.http.request(method, format!("{}/api/v1/admin/keys{path}", server.url));
            let request = request.json(&json!({"owner_id": "ann"}));
            if key.is_empty() { request } else { request.header("X-API-Key", key) }.send()
        };
        for (method, path) in [(Method::POST, ""), (Method::GET, ""), (Method::DELETE, "/key-aaaaaaaaaaaaaaaa")] {
            assert_eq!(send(method.clone(), path).await.unwrap().status(), status, "{method} with {key:?}");
        }
    }
    assert_eq!(server.get("/admin/keys").await.ok().as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_request_acts_as_the_owner_of_its_key_whatever_it_names() {
    let server = server("").await;
    let ann = Key::of(&server, "ann").await;
    let send = |method, path: &str, user: &str, body: Value| {
        ann.request(method, path).header("X-User-ID", user).json(&body).send()
    };
    let answer = Answer::read(send(Method::POST, "/sandboxes", "ann", json!({})).await.unwrap()).await;
    assert_eq!(answer.ok()["owner_id"], "ann");
    assert_eq!(ann.post("/sandboxes", json!({"owner_id": "ann"})).await.ok()["owner_id"], "ann");
    for (method, path) in [
        (Method::GET, "/sandboxes"),
        (Method::POST, "/sandboxes"),
        (Method::POST, "/sandboxes/admission"),
        (Method::GET, "/templates"),
        (Method::GET, "/events?follow=false"),
    ] {
        let answer = Answer::read(send(method.clone(), path, "bob", json!({})).await.unwrap()).await;
        answer.refused(403, "forbidden", "`X-User-ID` names another owner");
        let answer = Answer::read(send(method, path, "a b", json!({})).await.unwrap()).await;
        answer.refused(400, "bad_request", "`X-User-ID`");
    }
    server.post("/templates", json!({"name": "t"})).await.ok();
    for path in ["/sandboxes", "/sandboxes/admission", "/templates/t/spawn"] {
        let answer = ann.post(path, json!({"owner_id": "bob"})).await;
        answer.refused(403, "forbidden", "`owner_id` names another owner");
    }
    assert_eq!(each(&server.get("/sandboxes").await.ok(), "owner_id"), ["ann", "ann"]);
}

#[tokio::test]
async fn each_place_for_a_key_takes_a_key_of_an_owner() {
    let server = server("").await;
    let ann = Key::of(&server, "ann").await;
    let url = format!("{}/api/v1/sandboxes", server.url);
    for (header, value) in [
        ("x-api-key", ann.secret.clone()),
        ("authorization", format!("Bearer {}", ann.secret)),
        ("authorization", format!("bearer  {}", ann.secret)),
    ] {
        let answer = server.http.get(&url).header(header, value).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{header}");
    }
    let misplaced = server.http.get(&url).header("x-admin-api-key", &ann.secret).send().await.unwrap();
    Answer::read(misplaced).await.refused(401, "unauthorized", "holds a key of an owner");
    let wrong = server.http.get(&url).header("x-api-key", format!("{}0", ann.secret)).send().await.unwrap();
    Answer::read(wrong).await.refused(401, "unauthorized", "not valid for this service");
}

#[tokio::test]
async fn without_authentication_a_key_still_restricts_to_its_owner() {
    let settings = format!("{MOCK} auth.admin_api_key={ADMIN}");
    let mut server = TestServer::start(&settings).await;
    let other = server.spawn_with(json!({"owner_id": "bob"})).await;
    server.key = Some(ADMIN.to_owned());
    let ann = Key::create(&server, json!({"owner_id": "ann", "scopes": ["sandboxes:write"]})).await;
    ann.get(&format!("/sandboxes/{other}")).await.refused(404, "not_found", &other);
    let own = ann.spawn().await;
    assert_eq!(each(&ann.get("/sandboxes").await.ok(), "id"), [own]);
    ann.get("/templates").await.refused(403, "forbidden", "scope `templates`");
    ann.get("/providers").await.refused(403, "forbidden", "the operator's");
    ann.revoke().await;
    ann.get("/sandboxes").await.refused(401, "unauthorized", "was revoked");
    let unknown = Key { secret: "tbx_0000".to_owned(), ..ann.clone() };
    unknown.get("/sandboxes").await.ok();
}

#[tokio::test]
async fn keys_and_their_last_use_outlive_a_restart() {
    let settings = format!("{MOCK} auth.enabled=true auth.api_key={API} auth.admin_api_key={ADMIN}");
    let mut server = TestServer::builder(&settings).start().await;
    server.key = Some(ADMIN.to_owned());
    let ann = Key::of(&server, "ann").await;
    assert!(ann.listed().await["last_used_at"].is_null());
    ann.get("/sandboxes").await.ok();
    let used = ann.listed().await["last_used_at"].clone();
    assert!(used.is_string());
    let revoked = Key::of(&server, "bob").await;
    revoked.revoke().await;
    let (id, secret) = (ann.id.clone(), ann.secret.clone());
    let (revoked_id, revoked_secret) = (revoked.id.clone(), revoked.secret.clone());
    assert_eq!(server.terminate(), Some(0));
    server.launch().await;
    let ann = Key { server: &server, id, secret };
    assert_eq!(ann.listed().await["last_used_at"], used);
    ann.get("/sandboxes").await.ok();
    let revoked = Key { server: &server, id: revoked_id, secret: revoked_secret };
    revoked.get("/sandboxes").await.refused(401, "unauthorized", "was revoked");
    assert!(revoked.listed().await["revoked_at"].is_string());
}

#[tokio::test]
async fn a_key_expires_at_its_time_and_says_so() {
    let server = server("").await;
    let ann = Key::create(&server, json!({"owner_id": "ann", "ttl": "1s"})).await;
    ann.get("/sandboxes").await.ok();
    server.until("the key expires", async || ann.get("/sandboxes").await.status == 401).await;
    ann.get("/sandboxes").await.refused(401, "unauthorized", "has expired");
    assert_eq!(ann.get("/health").await.status, 200, "an open route asks for none");
}

#[tokio::test]
async fn quotas_limits_and_admission_count_by_the_owner_of_the_key() {
    let more = "rate_limit.enabled=true rate_limit.requests_per_minute=1 rate_limit.burst=6";
    let server = server(&format!("defaults.max_sandboxes_per_owner=1 {more}")).await;
    let (ann, second, bob) =
        (Key::of(&server, "ann").await, Key::of(&server, "ann").await, Key::of(&server, "bob").await);
    ann.spawn().await;
    second.post("/sandboxes", json!({})).await.refused(429, "resource_limit", "sandboxes");
    bob.spawn().await;
    let usage = ann.get("/quotas/ann/usage").await.ok();
    assert_eq!((&usage["active_sandboxes"], &usage["max_sandboxes"]), (&json!(1), &json!(1)));
    bob.get("/quotas/ann/usage").await.refused(404, "not_found", "ann");
    bob.get("/quotas/ann").await.refused(404, "not_found", "ann");
    // Both keys of one owner draw from one bucket.
    let mut limited = false;
    for _ in 0..6 {
        limited |= second.get("/sandboxes").await.status == StatusCode::TOO_MANY_REQUESTS;
    }
    assert!(limited);
    assert_eq!(ann.get("/sandboxes").await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(bob.get("/sandboxes").await.status, 200);
}

#[tokio::test]
async fn the_audit_history_names_the_owner_and_the_key() {
    let server = server("").await;
    let ann = Key::of(&server, "ann").await;
    ann.post("/templates", json!({"name": "t"})).await.ok();
    ann.put("/quotas/ann", json!({"max_sandboxes": 9})).await.refused(403, "forbidden", "the operator's");
    ann.revoke().await;
    ann.get("/sandboxes").await.refused(401, "unauthorized", "was revoked");
    let rows = server.get("/admin/audit?actor=owner:ann").await.ok();
    let told: Vec<_> =
        rows.as_array().unwrap().iter().map(|row| (row["action"].clone(), row["status"].clone())).collect();
    assert_eq!(told, [(json!("quotas.update"), json!(403)), (json!("templates.create"), json!(201))]);
    for row in rows.as_array().unwrap() {
        assert!(row["detail"].as_str().unwrap().contains(&format!("key={}", ann.id)), "{row}");
    }
    for action in ["keys.create", "keys.revoke"] {
        let rows = server.get(&format!("/admin/audit?action={action}")).await.ok();
        let detail = rows[0]["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("name={} owner=ann", ann.id)), "{detail}");
    }
    let refused = server.get("/admin/audit?action=key.refused").await.ok();
    assert!(refused[0]["detail"].as_str().unwrap().contains(&ann.id), "{refused}");
}

#[tokio::test]
async fn no_more_keys_are_kept_than_configured_and_an_ended_one_makes_way() {
    let server = server("auth.max_keys=2").await;
    let (first, second) = (Key::of(&server, "ann").await, Key::of(&server, "bob").await);
    let refused = server.post("/admin/keys", json!({"owner_id": "cyd"})).await;
    refused.refused(429, "resource_limit", "`auth.max_keys`");
    first.revoke().await;
    let third = Key::of(&server, "cyd").await;
    assert_eq!(each(&server.get("/admin/keys").await.ok(), "id"), [third.id.clone(), second.id.clone()]);
    first.get("/sandboxes").await.refused(401, "unauthorized", "not valid");
    second.get("/sandboxes").await.ok();
}

#[tokio::test]
async fn the_command_line_makes_lists_and_revokes_keys_and_uses_one() {
    let server = server("").await;
    let work = move || {
        let admin = |arguments: &[&str]| succeeds(&server, &[&["--api-key", ADMIN], arguments].concat());
        let created = tidebox(
            &server,
            &["--api-key", ADMIN, "key", "create", "--owner", "ana", "--name", "CI", "--scope", "sandboxes:write"],
            b"",
        );
        let key = String::from_utf8(created.stdout).unwrap().trim().to_owned();
        assert!(key.starts_with("tbx_") && key.len() == 44, "{key}");
        let note = String::from_utf8(created.stderr).unwrap();
        assert!(note.contains("ana") && note.contains("not shown again"), "{note}");
        let e2b =
            admin(&["key", "create", "--owner", "ana", "--format", "e2b", "--expires", "30d", "--output", "json"]);
        let e2b: Value = serde_json::from_str(&e2b).unwrap();
        assert!(e2b["secret"].as_str().unwrap().starts_with("e2b_") && e2b["key"]["expires_at"].is_string(), "{e2b}");
        let listed = admin(&["key", "list", "--owner", "ana"]);
        assert!(listed.contains("CI") && listed.contains(&key[..12]) && !listed.contains(&key), "{listed}");
        assert_eq!(admin(&["key", "list", "--owner", "bob"]).lines().count(), 1);
        let id = succeeds(&server, &["--api-key", &key, "spawn"]).trim().to_owned();
        assert!(succeeds(&server, &["--api-key", &key, "list"]).contains(&id));
        let ids: Value = serde_json::from_str(&admin(&["key", "list", "--output", "json"])).unwrap();
        let of_key = ids.as_array().unwrap().iter().find(|row| row["name"] == "CI").unwrap()["id"].clone();
        admin(&["key", "revoke", of_key.as_str().unwrap()]);
        let refused = tidebox(&server, &["--api-key", &key, "list"], b"");
        assert_eq!(refused.status.code(), Some(1));
        assert!(String::from_utf8(refused.stderr).unwrap().contains("was revoked"));
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

#[tokio::test]
async fn in_pool_mode_a_key_names_its_user() {
    let server = server("pool.enabled=true pool.max_vms=2 pool.max_users_per_vm=2").await;
    let (ann, bob) = (Key::of(&server, "ann").await, Key::of(&server, "bob").await);
    let id = ann.spawn().await;
    bob.get(&format!("/sandboxes/{id}")).await.refused(404, "not_found", &id);
    assert_eq!(each(&ann.get("/sandboxes").await.ok(), "id"), std::slice::from_ref(&id));
    let events = ann.get("/events?last_event_id=0&follow=false").await;
    assert!(String::from_utf8(events.bytes).unwrap().contains(&id));
    ann.delete(&format!("/sandboxes/{id}")).await.ok();
    // The boxes go with their last slot.
    server.until("the box goes", async || server.get("/pool/status").await.ok()["vms"] == 0).await;
}
