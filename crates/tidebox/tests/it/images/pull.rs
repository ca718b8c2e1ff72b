//! Pulls, requested directly and for a box.

use std::time::{Duration, Instant};

use fixtures::image::Image;
use fixtures::registry::Registry;
use reqwest::Method;
use serde_json::{Value, json};

use super::{asking, events, read_events, registry_and_server, types};
use crate::server::{Answer, MOCK, NATIVE, TestServer};

#[tokio::test]
async fn a_spawn_pulls_what_is_missing_and_tells_how_long_that_took() {
    let Some((_registry, name, server)) = registry_and_server("").await else { return };
    let answer = server.post("/sandboxes", json!({"image": name})).await;
    let sandbox = answer.ok();
    assert_eq!(sandbox["image"], json!(name));
    let timing = answer.headers["server-timing"].to_str().unwrap();
    assert!(timing.contains("image;dur="), "{timing}");
    let told = events(&server, "image.pulling,image.pulled").await;
    assert_eq!(types(&told), ["image.pulling", "image.pulled"]);
    assert_eq!(told[0]["sandbox_id"], sandbox["id"]);
    // The second sandbox finds the image in the store.
    server.post("/sandboxes", json!({"image": name})).await.ok();
    assert_eq!(events(&server, "image.pulling").await.len(), 1);
}

#[tokio::test]
async fn a_spawn_among_users_who_share_a_box_tells_of_its_image_too() {
    let Some((_registry, name, server)) = registry_and_server("pool.enabled=true").await else { return };
    let spawn = server.request(Method::POST, "/sandboxes").header("x-user-id", "ada").json(&json!({"image": name}));
    let sandbox = Answer::read(spawn.send().await.unwrap()).await.ok();
    // A user in a shared box sees only the events of their own sandbox.
    let path = format!("/events?last_event_id=0&follow=false&sandbox_id={}", sandbox["id"].as_str().unwrap());
    let heard = server.request(Method::GET, &format!("{path}&type=image.pulling,image.pulled"));
    let told = read_events(Answer::read(heard.header("x-user-id", "ada").send().await.unwrap()).await);
    assert_eq!(types(&told), ["image.pulling", "image.pulled"]);
    assert!(told.iter().all(|event| event["sandbox_id"] == sandbox["id"]), "{told:?}");
    let path = format!("/sandboxes/{}", sandbox["id"].as_str().unwrap());
    let removed = server.request(Method::DELETE, &path).header("x-user-id", "ada").send().await.unwrap();
    assert_eq!(removed.status(), 200);
}

#[tokio::test]
async fn a_spawn_of_a_provider_without_images_tells_of_none() {
    let server = TestServer::start(&format!("{MOCK} images.pull=always")).await;
    server.post("/sandboxes", json!({"image": "python:3.12"})).await.ok();
    assert_eq!(events(&server, "image.pulling,image.pulled,image.failed").await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_pull_tells_how_it_goes_line_by_line() {
    let Some((_registry, name, server)) = registry_and_server("").await else { return };
    for _ in 0..2 {
        let answer = server.post("/images/pull", json!({"name": name, "stream": true})).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.headers["content-type"]),
            (200, &"application/x-ndjson".parse().unwrap())
        );
        let text = String::from_utf8(answer.bytes).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let (last, rest) = lines.split_last().unwrap();
        assert_eq!((&last["type"], &last["image"]["names"]), (&json!("done"), &json!([name])), "{text}");
        for line in rest {
            assert!(["resolving", "downloading", "unpacking"].contains(&line["type"].as_str().unwrap()), "{line}");
        }
    }
}

#[tokio::test]
async fn a_pull_goes_on_when_its_caller_hangs_up() {
    let Some((_registry, name, server)) = registry_and_server("").await else { return };
    let request = server.request(Method::POST, "/images/pull").json(&json!({"name": name, "stream": true}));
    drop(request.send().await.unwrap());
    server.until("the image", async || server.get("/images").await.ok() != json!([])).await;
    server.until("its event", async || events(&server, "image.pulled").await.len() == 1).await;
}

#[tokio::test]
async fn what_cannot_be_pulled_says_why() {
    let Some((registry, name, server)) = registry_and_server("").await else { return };
    let host = registry.address();
    for (name, status, code) in [
        (format!("{host}/no/such:1"), 400, "bad_request"),
        (name.replace("3.20", "9.99"), 400, "bad_request"),
        ("127.0.0.1:1/a:1".to_owned(), 503, "unavailable"),
    ] {
        server.post("/images/pull", json!({"name": name})).await.refused(status, code, "");
        let answer = server.post("/images/pull", json!({"name": name, "stream": true})).await;
        let text = String::from_utf8(answer.bytes.clone()).unwrap();
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!((&last["type"], &last["code"]), (&json!("error"), &json!(code)), "{text}");
        let words = if status == 503 { "the image is not available: " } else { "" };
        server.post("/sandboxes", json!({"image": name})).await.refused(status, code, words);
    }
    let failed = events(&server, "image.failed").await;
    assert_eq!(failed.len(), 9, "{failed:#?}");
    assert!(failed.iter().all(|event| !event["data"]["error"].as_str().unwrap().is_empty()));
    assert_eq!(server.get("/images").await.ok(), json!([]));
}

#[tokio::test]
async fn a_spawn_asks_nobody_where_that_is_the_policy() {
    let server = TestServer::start(&format!("{NATIVE} images.pull=never")).await;
    let answer = server.post("/sandboxes", json!({"image": "python:3.12"})).await;
    answer.refused(400, "bad_request", "images.pull");
    assert!(events(&server, "image.pulling").await.is_empty());
}

#[tokio::test]
async fn a_registry_that_says_nothing_holds_up_one_spawn_and_not_for_long() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let host = address.replace('.', "_").replace(':', "__");
    let settings =
        format!("{NATIVE} images.pull=missing images.pull_timeout=3s images.registries.{host}.plain_http=true");
    let server = TestServer::start(&settings).await;
    let begun = Instant::now();
    let spawn = server.request(Method::POST, "/sandboxes").json(&json!({"image": format!("{address}/a:1")})).send();
    let spawn = tokio::spawn(spawn);
    // The pull has reached the registry.
    let (_held, _) = silent.accept().await.unwrap();
    let other = server.spawn().await;
    assert_eq!(server.output(&other, "echo here").await, "here\n");
    assert!(!spawn.is_finished(), "the other did not have to wait");
    let answer = Answer::read(spawn.await.unwrap().unwrap()).await;
    answer.refused(503, "unavailable", "");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_login_opens_a_registry_and_is_never_shown() {
    let Some(registry) = Registry::with_login("ada", "s3cret-of-the-registry") else { return };
    let Some(image) = Image::alpine_like() else { return };
    let name = registry.push(&image, "private/app", "1");
    let mut server = TestServer::start(&asking(&registry, "")).await;
    let refused = server.post("/images/pull", json!({"name": name})).await;
    refused.refused(400, "bad_request", "");
    server.terminate();
    let host = registry.address().replace('.', "_").replace(':', "__");
    server.set(&format!("images.registries.{host}.username"), "ada");
    server.set(&format!("images.registries.{host}.password"), "s3cret-of-the-registry");
    server.launch().await;
    server.post("/images/pull", json!({"name": name})).await.ok();
    let told = format!("{} {}", server.log_text(), server.get("/diagnostics").await.ok());
    assert!(!told.contains("s3cret-of"), "{told}");
}

#[tokio::test]
async fn a_removal_ends_a_pull_that_is_under_way() {
    // A registry that accepts every connection and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("{}/a:1", silent.local_addr().unwrap());
    let server = TestServer::start(&format!("{NATIVE} images.pull=missing")).await;
    let request = server.request(Method::POST, "/images/pull").json(&json!({"name": name}));
    let pulling = tokio::spawn(request.send());
    server.until("the pull", async || events(&server, "image.pulling").await.len() == 1).await;
    server.delete(&format!("/images/{name}")).await.ok();
    Answer::read(pulling.await.unwrap().unwrap()).await.refused(503, "unavailable", "cancelled by a removal");
    server.delete(&format!("/images/{name}")).await.refused(404, "not_found", &name);
}
