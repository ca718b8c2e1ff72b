//! Attempts with one owner's key on what is another's, by each field that names something.

use reqwest::Method;
use serde_json::json;

use super::{Key, each, server};
use crate::websocket::open_at;

#[tokio::test]
async fn no_field_that_names_something_leads_to_another_owners() {
    let server = server("").await;
    let (ann, bob) = (Key::of(&server, "ann").await, Key::of(&server, "bob").await);
    let id = ann.spawn().await;
    ann.post(&format!("/sandboxes/{id}/files"), json!({"path": "/tmp/secret", "content": "theirs"})).await.ok();
    let snapshot = ann.post(&format!("/sandboxes/{id}/snapshots"), json!({})).await.ok();
    let snapshot = snapshot["id"].as_str().unwrap().to_owned();
    ann.post("/templates", json!({"name": "of-ann"})).await.ok();

    // Spawns from what is another's.
    bob.post("/sandboxes", json!({"snapshot": snapshot})).await.refused(404, "not_found", &snapshot);
    bob.post("/sandboxes", json!({"snapshot": snapshot, "provider": "native"})).await.refused(
        404,
        "not_found",
        &snapshot,
    );
    bob.post("/sandboxes/admission", json!({"snapshot": snapshot})).await.refused(404, "not_found", &snapshot);
    bob.post("/sandboxes", json!({"template": "of-ann"})).await.refused(404, "not_found", "of-ann");
    bob.post("/sandboxes/admission", json!({"template": "of-ann"})).await.refused(404, "not_found", "of-ann");
    bob.post("/templates/of-ann/spawn", json!({})).await.refused(404, "not_found", "of-ann");
    for image in [format!("tidebox.invalid/snapshots:{snapshot}"), format!("TIDEBOX.invalid/snapshots:{snapshot}")] {
        bob.post("/sandboxes", json!({"image": image})).await.refused(404, "not_found", &snapshot);
        bob.post("/templates", json!({"name": "t", "image": image})).await.refused(404, "not_found", &snapshot);
        bob.get(&format!("/images/{image}")).await.refused(404, "not_found", &snapshot);
    }
    bob.post(&format!("/sandboxes/{id}/fork"), json!({})).await.refused(404, "not_found", &id);

    // The same idempotency key is another one for another owner.
    let keyed = async |key: &Key<'_>| {
        let request = key.request(Method::POST, "/sandboxes").header("Idempotency-Key", "once").json(&json!({}));
        let answer = crate::server::Answer::read(request.send().await.unwrap()).await.ok();
        answer["id"].as_str().unwrap().to_owned()
    };
    let first = keyed(&ann).await;
    assert_eq!(keyed(&ann).await, first);
    let of_bob = keyed(&bob).await;
    assert_ne!(of_bob, first);

    // Filters and cursors.
    for path in ["/sandboxes?owner_id=ann", "/snapshots?owner_id=ann", "/sandboxes/stats?owner_id=ann"] {
        assert_eq!(bob.get(path).await.ok(), json!([]), "{path}");
    }
    assert_eq!(bob.get(&format!("/snapshots?sandbox_id={id}")).await.ok(), json!([]));
    let page = ann.get("/sandboxes?limit=1").await;
    let cursor = page.headers["x-next-cursor"].to_str().unwrap().to_owned();
    assert_eq!(page.ok().as_array().unwrap().len(), 1);
    let through = bob.get(&format!("/sandboxes?limit=10&cursor={cursor}")).await.ok();
    assert!(each(&through, "owner_id").iter().all(|owner| owner == "bob"), "{through}");
    assert_eq!(each(&bob.get("/sandboxes/stats").await.ok(), "sandbox_id"), std::slice::from_ref(&of_bob));
    bob.delete("/sandboxes").await.ok();

    // Ids that are nearly right, and connections.
    for path in [
        format!("/sandboxes/{id}"),
        format!("/sandboxes/{}", id.replace("sb-", "sb%2D")),
        format!("/sandboxes/{id}/../{id}"),
        format!("/sandboxes/{of_bob}/../{id}/files?path=/tmp/secret"),
        format!("/sandboxes/{id}/files?path=/tmp/secret"),
        format!("/snapshots/{snapshot}"),
    ] {
        let answer = bob.get(&path).await;
        assert_eq!(answer.status, 404, "{path}: {}", String::from_utf8_lossy(&answer.bytes));
    }
    for path in ["ports/3000/connect", "ports/3000/listen", "ports/3000/listen/1", "exec/ws"] {
        let refused = open_at(&server, &format!("/sandboxes/{id}/{path}"), &[("X-API-Key", &bob.secret)]).await;
        assert_eq!(refused.err().map(|(status, _)| status), Some(404), "{path}");
    }
    let fenced = bob.request(Method::DELETE, &format!("/sandboxes/{id}")).header("X-Lease-Generation", "99");
    assert_eq!(fenced.send().await.unwrap().status(), 404);
    bob.delete(&format!("/snapshots/{snapshot}")).await.refused(404, "not_found", &snapshot);

    // All is as it was.
    assert_eq!(ann.get(&format!("/sandboxes/{id}/files?path=/tmp/secret")).await.bytes, b"theirs");
    ann.get(&format!("/snapshots/{snapshot}")).await.ok();
    assert_eq!(each(&bob.get("/sandboxes").await.ok(), "id"), [of_bob]);
}

#[tokio::test]
async fn another_owners_sandbox_and_none_at_all_answer_alike() {
    let server = server("").await;
    let (ann, bob) = (Key::of(&server, "ann").await, Key::of(&server, "bob").await);
    let id = ann.spawn().await;
    let none = "sb-aaaaaaaaaaaaaaaa";
    for (method, path) in
        [(Method::GET, ""), (Method::DELETE, ""), (Method::POST, "/exec"), (Method::GET, "/files/list")]
    {
        let body = json!({"command": "true"});
        let theirs = bob.send(method.clone(), &format!("/sandboxes/{id}{path}"), body.clone()).await;
        let missing = bob.send(method.clone(), &format!("/sandboxes/{none}{path}"), body).await;
        assert_eq!(theirs.status, missing.status, "{method} {path}");
        let shown = String::from_utf8(theirs.bytes).unwrap().replace(&id, none);
        assert_eq!(shown.as_bytes(), missing.bytes, "{method} {path}");
    }
}

#[tokio::test]
async fn a_key_shows_nothing_of_the_service() {
    let server = server("metrics.per_sandbox=true").await;
    let (ann, bob) = (Key::of(&server, "ann").await, Key::of(&server, "bob").await);
    let id = ann.spawn().await;
    let ready = bob.get("/ready").await.ok();
    assert_eq!(ready["providers"], json!([]));
    for path in ["/metrics", "/metrics/prometheus"] {
        let shown = String::from_utf8(bob.get(path).await.bytes).unwrap();
        assert!(!shown.contains(&id) && !shown.contains("ann"), "{path}: {shown}");
    }
    let unknown = bob.get("/no/such/route").await;
    unknown.refused(404, "not_found", "/no/such/route");
}
