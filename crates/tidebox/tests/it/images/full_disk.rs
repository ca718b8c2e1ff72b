//! A full disk for the images.

use std::io::Write as _;

use fixtures::image::{Entry, Image, layer};
use fixtures::registry::Registry;
use reqwest::Method;
use serde_json::{Value, json};

use super::asking;
use crate::cli::tidebox;
use crate::server::{Answer, TestServer};

/// Bytes of an image that does not fit until the disk grows.
const TOO_MUCH: usize = 40 << 20;
/// Remedy in the message of every refusal.
const WHAT_TO_DO: &str = "tidebox image prune";

async fn import(server: &TestServer, name: &str, archive: &[u8]) -> Answer {
    let request = server.request(Method::POST, &format!("/images/import?name={name}"));
    Answer::read(request.header("content-type", "application/x-tar").body(archive.to_vec()).send().await.unwrap()).await
}

#[tokio::test]
async fn a_full_disk_refuses_what_comes_and_leaves_what_is_there() {
    let Some(registry) = Registry::start() else { return };
    let Some(system) = Image::alpine_like() else { return };
    let here = registry.push(&system, "team/system", "1");
    // Small to download, and larger than the disk when it is unpacked.
    let ones = vec![Entry::file("ones", vec![1; TOO_MUCH])];
    let hollow = registry.push(&Image::new(std::slice::from_ref(&ones)), "team/hollow", "1");
    let archive = layer(&ones);
    let Some(server) = TestServer::builder(&asking(&registry, "")).images_on("size=24m") else { return };
    let server = server.start().await;
    server.post("/images/pull", json!({"name": here})).await.ok();
    let folders = ["blobs/sha256", "ingest", "trees", "files", "trash"];
    let entries = || folders.map(|folder| server.entries_on_images_disk(folder));
    let before = entries();

    server.post("/images/pull", json!({"name": hollow})).await.refused(507, "no_space", WHAT_TO_DO);
    let streamed = server.post("/images/pull", json!({"name": hollow, "stream": true})).await;
    let text = String::from_utf8(streamed.bytes).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&last["type"], &last["code"]), (&json!("error"), &json!("no_space")), "{text}");
    server.post("/sandboxes", json!({"image": hollow})).await.refused(507, "no_space", WHAT_TO_DO);
    import(&server, "imported", &archive).await.refused(507, "no_space", WHAT_TO_DO);
    assert_eq!(server.get("/images").await.ok().as_array().unwrap().len(), 1);
    server.until("what came is gone", async || entries() == before).await;

    // A request that needs no space is not delayed by one that finds none.
    let (refused, spawned) = tokio::join!(
        server.post("/images/pull", json!({"name": hollow})),
        server.post("/sandboxes", json!({"image": here})),
    );
    refused.refused(507, "no_space", WHAT_TO_DO);
    let id = spawned.ok()["id"].as_str().unwrap().to_owned();
    assert!(server.output(&id, "cat /etc/os-release").await.contains("like Alpine"));
    server.delete(&format!("/sandboxes/{id}")).await.ok();

    server.grow_images_disk("size=300m");
    server.post("/images/pull", json!({"name": hollow})).await.ok();
    assert_eq!(import(&server, "imported", &archive).await.status, 201);
    server
        .until("everything can go", async || {
            server.post("/images/prune", json!({"all": true})).await.ok();
            server.get("/images").await.ok() == json!([])
        })
        .await;
    assert_eq!(entries(), [0; 5]);
}

#[tokio::test]
async fn the_command_line_says_what_to_do_about_a_full_disk() {
    let Some(registry) = Registry::start() else { return };
    let ones = vec![Entry::file("ones", vec![1; TOO_MUCH])];
    let hollow = registry.push(&Image::new(std::slice::from_ref(&ones)), "team/hollow", "1");
    let Some(server) = TestServer::builder(&asking(&registry, "")).images_on("size=24m") else { return };
    let server = server.start().await;
    let mut archive = tempfile::NamedTempFile::new().unwrap();
    archive.write_all(&layer(&ones)).unwrap();
    let work = move || {
        let file = archive.path().to_str().unwrap();
        for arguments in [&["image", "pull", &hollow][..], &["image", "import", file, "--name", "a:1"]] {
            let output = tidebox(&server, arguments, b"");
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
            assert!(said.contains("full") && said.contains(WHAT_TO_DO), "{arguments:?}: {said}");
        }
        server
    };
    drop(tokio::task::spawn_blocking(work).await.unwrap());
}
