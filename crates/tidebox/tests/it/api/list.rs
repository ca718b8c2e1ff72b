//! The list of sandboxes: filters and parts.

use serde_json::{Value, json};

use crate::server::{MOCK, TestServer};

fn ids(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|sandbox| sandbox["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_list_without_a_limit_is_everything_newest_first() {
    let server = TestServer::start(MOCK).await;
    let mut made = Vec::new();
    for _ in 0..5 {
        made.insert(0, server.spawn().await);
    }
    let answer = server.get("/sandboxes").await;
    assert!(!answer.headers.contains_key("x-next-cursor"));
    assert_eq!(ids(&answer.ok()), made);
}

#[tokio::test]
async fn parts_of_the_list_are_the_list_whatever_comes_and_goes() {
    let server = TestServer::start(MOCK).await;
    for _ in 0..7 {
        server.spawn().await;
    }
    let whole = ids(&server.get("/sandboxes").await.ok());
    let (mut parts, mut path) = (Vec::new(), "/sandboxes?limit=3".to_owned());
    loop {
        let answer = server.get(&path).await;
        parts.extend(ids(&answer.ok()));
        let Some(cursor) = answer.headers.get("x-next-cursor") else { break };
        path = format!("/sandboxes?limit=3&cursor={}", cursor.to_str().unwrap());
        // A new sandbox does not appear in later pages; a deleted one leaves no gap.
        server.spawn().await;
        server.delete(&format!("/sandboxes/{}", parts[0])).await.ok();
    }
    assert_eq!(parts, whole);
}

#[tokio::test]
async fn filters_hold_together() {
    let server = TestServer::start(MOCK).await;
    let spawn = async |owner: &str, colour: &str| {
        server.spawn_with(json!({"owner_id": owner, "metadata": {"colour": colour, "a.b": "%"}})).await
    };
    let (red, blue, other) = (spawn("alice", "red").await, spawn("alice", "blue").await, spawn("bob", "red").await);
    let list = async |query: &str| ids(&server.get(&format!("/sandboxes?{query}")).await.ok());
    assert_eq!(list("owner_id=alice").await, [blue.clone(), red.clone()]);
    assert_eq!(list("metadata.colour=red").await, [other.clone(), red.clone()]);
    assert_eq!(list("owner_id=alice&metadata.colour=red").await, [red]);
    assert_eq!(list("metadata.a.b=%25&metadata.colour=blue").await, [blue]);
    assert_eq!(list("metadata.colour=re").await, [""; 0]);
    assert_eq!(list("state=running&provider=mock&limit=1").await, [other]);
    assert_eq!(list("state=failed").await, [""; 0]);
    assert_eq!(list("provider=native").await, [""; 0]);
}

#[tokio::test]
async fn a_filter_that_makes_no_sense_is_refused_by_name() {
    let server = TestServer::start(MOCK).await;
    for (query, words) in [
        ("limit=0", "`limit`"),
        ("limit=1001", "`limit`"),
        ("limit=-1", "`limit`"),
        ("limit=x", "`limit`"),
        ("limit=99999999999999999999", "`limit`"),
        ("cursor=x", "`cursor`"),
        ("cursor=", "`cursor`"),
        ("cursor=OTk", "`cursor`"),
        ("state=destroyed", "`state`"),
        ("state=", "`state`"),
        ("owner_id=a%20b", "`owner_id`"),
        ("owner_id=", "`owner_id`"),
        ("metadata.=x", "metadata."),
        ("owner=x", "`owner`"),
        ("limit=1&limit=2", "twice"),
    ] {
        server.get(&format!("/sandboxes?{query}")).await.refused(400, "bad_request", words);
    }
}

#[tokio::test]
async fn a_list_is_filtered_by_no_more_labels_than_a_sandbox_has() {
    let server = TestServer::start(MOCK).await;
    let with = |labels: usize| {
        let filters: Vec<String> = (0..labels).map(|n| format!("metadata.{n}=x")).collect();
        format!("/sandboxes?{}", filters.join("&"))
    };
    assert_eq!(server.get(&with(64)).await.ok(), json!([]));
    server.get(&with(65)).await.refused(400, "bad_request", "at most 64 labels");
}
