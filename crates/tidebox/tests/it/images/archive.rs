//! Archives that are sent.

use fixtures::image::{Entry, Image, Packing, layer};
use reqwest::Method;
use serde_json::json;

use crate::server::{Answer, MOCK, NATIVE, TestServer};

async fn import(server: &TestServer, query: &str, kind: &str, body: Vec<u8>) -> Answer {
    let request = server.request(Method::POST, &format!("/images/import{query}")).header("content-type", kind);
    Answer::read(request.body(body).send().await.unwrap()).await
}

#[tokio::test]
async fn what_docker_saved_is_taken_in_under_its_names_and_used() {
    let Some(image) = Image::alpine_like() else { return };
    let server = TestServer::start(NATIVE).await;
    let answer = import(&server, "", "application/x-tar", image.docker_save(&["team/app:1", "team/app:latest"])).await;
    assert_eq!(answer.status, 201, "{}", answer.json());
    let images = answer.json();
    assert_eq!(images[0]["names"], json!(["docker.io/team/app:1", "docker.io/team/app:latest"]), "{images}");
    let id = server.spawn_with(json!({"image": "team/app:1"})).await;
    assert!(server.output(&id, "cat /etc/os-release").await.contains("like Alpine"));
}

#[tokio::test]
async fn a_root_file_system_needs_a_name() {
    let server = TestServer::start(MOCK).await;
    let root = layer(&[Entry::dir("etc"), Entry::file("etc/motd", "hello")]);
    import(&server, "", "application/octet-stream", root.clone()).await.refused(400, "bad_request", "name");
    let answer = import(&server, "?name=my-system:1", "application/octet-stream", root).await;
    assert_eq!(answer.status, 201, "{}", answer.json());
    assert_eq!(answer.json()[0]["names"], json!(["docker.io/library/my-system:1"]));
    assert_eq!(server.get("/images/my-system:1").await.ok()["digest"], answer.json()[0]["digest"]);
}

#[tokio::test]
async fn what_is_no_archive_leaves_nothing() {
    let server = TestServer::start(&format!("{MOCK} images.max_image_mb=1")).await;
    for kind in ["text/plain", "application/x-www-form-urlencoded", "application/json", "multipart/form-data"] {
        import(&server, "?name=a", kind, b"x".to_vec()).await.refused(
            415,
            "unsupported_media_type",
            "application/x-tar",
        );
    }
    for body in [Vec::new(), b"no tar at all".to_vec(), vec![b'x'; 4096]] {
        import(&server, "?name=a", "application/x-tar", body).await.refused(400, "bad_request", "");
    }
    import(&server, "?name=a%20b", "application/x-tar", layer(&[])).await.refused(400, "bad_request", "");
    import(&server, "?names=a", "application/x-tar", layer(&[])).await.refused(400, "bad_request", "names");
    let large = layer(&[Entry::file("large", vec![1; 3 << 20])]);
    import(&server, "?name=a", "application/x-tar", large.clone()).await.refused(
        413,
        "payload_too_large",
        "raise `images.max_image_mb`",
    );
    // The size is known only when the archive is unpacked.
    for packing in [Packing::Gzip, Packing::Zstd] {
        let bomb = packing.pack(&large);
        assert!(bomb.len() < 1 << 20);
        let answer = import(&server, "?name=a", "application/x-tar", bomb).await;
        answer.refused(413, "payload_too_large", "raise `images.max_image_mb`");
    }
    let xz = [&b"\xfd7zXZ\x00"[..], &[1; 1000]].concat();
    import(&server, "?name=a", "application/x-tar", xz).await.refused(
        400,
        "bad_request",
        "compressed with xz; use plain tar, gzip",
    );
    assert_eq!(server.get("/images").await.ok(), json!([]));
}

#[tokio::test]
async fn a_server_that_stops_does_not_wait_for_an_image_to_be_unpacked() {
    let mut server = TestServer::start(MOCK).await;
    // A hundred files, each a thousand times: seconds of work, and little to remove afterwards.
    let files: Vec<_> = (0..100_000).map(|number| Entry::file(format!("{}", number % 100), "")).collect();
    let archive = Packing::Zstd.pack(&layer(&files));
    let trees = server.data_dir().join("images/trees");
    let request = server.request(Method::POST, "/images/import?name=a").header("content-type", "application/zstd");
    let importing = tokio::spawn(request.body(archive).send());
    server.until("the unpacking", async || std::fs::read_dir(&trees).is_ok_and(|trees| trees.count() > 0)).await;
    assert_eq!(server.terminate(), Some(0));
    let answer = Answer::read(importing.await.unwrap().unwrap()).await;
    answer.refused(503, "unavailable", "this server is shutting down; import the image again");
    assert!(!server.log_text().contains("cut off"), "{}", server.log_text());
    let is_whole = |tree: std::io::Result<std::fs::DirEntry>| tree.unwrap().file_name().len() == 64;
    assert!(!std::fs::read_dir(&trees).unwrap().any(is_whole));
    server.launch().await;
}
