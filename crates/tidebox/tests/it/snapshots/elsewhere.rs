//! Sandboxes of snapshots on providers that did not take them.

use std::fs;
use std::process::Command;

use fixtures::found;
use fixtures::image::{Entry, Image};
use futures_util::future::join;
use reqwest::Method;
use serde_json::{Value, json};

use super::{ids, read, take_id};
use crate::server::{Answer, MOCK, NATIVE, TestServer};

/// Name of the image of these tests' sandboxes.
const IMAGE: &str = "docker.io/team/app:1";

/// Starts a server with two providers, and with an image that has settings; `None` if this machine lacks a
/// program for it.
async fn server() -> Option<TestServer> {
    found("proot", &[])?;
    let image = Image::alpine_like()?.with("Env", json!(["MARK=of the image"])).with("WorkingDir", json!("/srv"));
    let server = TestServer::start(&format!("{NATIVE} providers.proot.enabled=true defaults.image={IMAGE}")).await;
    import(&server, &image, IMAGE).await;
    Some(server)
}

async fn import(server: &TestServer, image: &Image, name: &str) {
    let request = server.request(Method::POST, "/images/import").header("content-type", "application/x-tar");
    let answer = Answer::read(request.body(image.docker_save(&[name])).send().await.unwrap()).await;
    assert_eq!(answer.status, 201, "{}", answer.json());
}

/// Returns the image of this name in the store; `None` if there is none.
async fn image(server: &TestServer, name: &str) -> Option<Value> {
    let listed = server.get("/images").await.ok();
    let has = |image: &&Value| image["names"].as_array().unwrap().contains(&json!(name));
    listed.as_array().unwrap().iter().find(has).cloned()
}

fn name_of(snapshot: &str) -> String {
    format!("tidebox.invalid/snapshots:{snapshot}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_files_is_started_on_another_provider() {
    let Some(server) = server().await else { return };
    let id = server.spawn_with(json!({"memory_mb": 128, "vcpus": 1})).await;
    server.output(&id, "rm -r /opt && mkdir /etc/made && echo kept > /etc/made/a && chmod 640 /etc/made/a").await;
    server.output(&id, "ln -s a /etc/made/c; touch -d @86400 /etc/made; echo w > f").await;
    // What an archive of images would have, here as files of the sandbox.
    server.write(&id, "/oci-layout", r#"{"imageLayoutVersion": "1.0.0"}"#).await;
    server.write(&id, "/index.json", r#"{"schemaVersion": 2, "manifests": []}"#).await;
    let table = json!([{"Config": "index.json", "RepoTags": [IMAGE], "Layers": []}]);
    server.write(&id, "/manifest.json", &table.to_string()).await;
    let snapshot = take_id(&server, &id).await;
    let before = image(&server, IMAGE).await.unwrap();

    let body = json!({"snapshot": snapshot, "provider": "proot"});
    let (first, second) = join(server.post("/sandboxes", body.clone()), server.post("/sandboxes", body.clone())).await;
    let made = [first.json(), second.json()];
    let image_of_snapshot = image(&server, &name_of(&snapshot)).await.expect("an image was made");
    for made in &made {
        assert_eq!((&made["provider"], &made["memory_mb"]), (&json!("proot"), &json!(128)), "{made}");
        assert_eq!(made["image"], image_of_snapshot["digest"], "{made}");
    }
    for made in &made {
        let copy = made["id"].as_str().unwrap();
        let shown = server.output(copy, "ls /opt 2>&1 | wc -l; cat /etc/made/c; stat -c %a /etc/made/a; pwd").await;
        assert_eq!(shown, "1\nkept\n640\n/srv\n");
        assert_eq!(server.output(copy, "stat -c %Y /etc/made; echo $MARK; cat f").await, "86400\nof the image\nw\n");
        assert_eq!(read(&server, copy, "/manifest.json").await, table.to_string());
    }
    assert_eq!(image(&server, IMAGE).await.unwrap()["digest"], before["digest"], "no file of it names an image");

    // Later ones find the image, and say so.
    let timing = async || {
        let answer = server.request(Method::POST, "/sandboxes").json(&body).send().await.unwrap();
        answer.headers()["server-timing"].to_str().unwrap().to_owned()
    };
    assert!(timing().await.contains("snapshot_image"), "{}", timing().await);
    // Back again, from a sandbox that was made of it.
    let copy = made[0]["id"].as_str().unwrap();
    server.output(copy, "echo more > /etc/made/d").await;
    let back = take_id(&server, copy).await;
    let native = server.spawn_with(json!({"snapshot": back, "provider": "native"})).await;
    assert_eq!(server.output(&native, "cat /etc/made/a /etc/made/d; echo $MARK").await, "kept\nmore\nof the image\n");

    // The image goes with its snapshot, and with the last sandbox that needs it.
    for snapshot in ids(&server, "/snapshots").await {
        server.delete(&format!("/snapshots/{snapshot}")).await.ok();
    }
    assert!(image(&server, &name_of(&snapshot)).await.is_none());
    assert_eq!(read(&server, copy, "/etc/made/d").await, "more\n");
    assert!(image(&server, &name_of(&back)).await.is_some(), "a sandbox of native needs it");
    assert_eq!(read(&server, &native, "/etc/made/d").await, "more\n");
    server.delete(&format!("/sandboxes/{native}")).await.ok();
    server.until("it is removed", async || image(&server, &name_of(&back)).await.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_root_may_read_is_there_too() {
    let Some(server) = server().await else { return };
    let secret = Entry::file("srv/secret", "of root").mode(0o600);
    let image = Image::alpine_like().unwrap().with("User", json!("1234:1234")).and(&[secret]);
    import(&server, &image, "team/user:1").await;
    let id = server.spawn_with(json!({"image": "team/user:1"})).await;
    assert_eq!(server.output(&id, "id -u; cat /srv/secret 2>/dev/null || echo no").await, "1234\nno\n");
    let snapshot = take_id(&server, &id).await;
    let copy = server.spawn_with(json!({"snapshot": snapshot, "provider": "proot"})).await;
    assert_eq!(server.output(&copy, "cat /srv/secret").await, "of root");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_is_an_error_and_not_left_out() {
    let Some(server) = server().await else { return };
    let id = server.spawn().await;
    // A path longer than any that can be named.
    server.output(&id, "n=$(printf %0200d 0); for i in $(seq 30); do mkdir $n && cd -P $n || exit 1; done").await;
    let snapshot = take_id(&server, &id).await;
    let answer = server.post("/sandboxes", json!({"snapshot": snapshot, "provider": "proot"})).await;
    answer.refused(503, "unavailable", "too long");
    assert!(image(&server, &name_of(&snapshot)).await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_image_is_made_though_its_caller_hangs_up() {
    let Some(server) = server().await else { return };
    let id = server.spawn().await;
    server.output(&id, "head -c 50000000 /dev/urandom > /srv/large").await;
    let snapshot = take_id(&server, &id).await;
    let body = json!({"snapshot": snapshot, "provider": "proot"});
    let spawn = tokio::spawn(server.request(Method::POST, "/sandboxes").json(&body).send());
    let boxes = server.data_dir().join("native/boxes");
    server.until("its box is there", async || fs::read_dir(&boxes).unwrap().count() == 2).await;
    spawn.abort();
    server.until("the image", async || image(&server, &name_of(&snapshot)).await.is_some()).await;
    server.until("its box is gone", async || fs::read_dir(&boxes).unwrap().count() == 1).await;
    assert_eq!(ids(&server, "/sandboxes").await, [id]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_of_a_snapshot_that_was_removed_is_made_again() {
    let Some(server) = server().await else { return };
    let id = server.spawn().await;
    server.write(&id, "/srv/a", "one").await;
    let snapshot = take_id(&server, &id).await;
    let body = json!({"snapshot": snapshot, "provider": "proot"});
    for _ in 0..2 {
        let copy = server.spawn_with(body.clone()).await;
        assert_eq!(read(&server, &copy, "/srv/a").await, "one");
        server.delete(&format!("/images/{}", name_of(&snapshot))).await.ok();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spawn_that_cannot_be_elsewhere_says_so_and_makes_no_image() {
    let Some(server) = server().await else { return };
    let of_host = server.spawn_with(json!({"image": "host"})).await;
    let of_host = take_id(&server, &of_host).await;
    let body = json!({"snapshot": of_host, "provider": "proot"});
    server.post("/sandboxes", body).await.refused(400, "not_supported", "only `native` makes sandboxes");
    let id = server.spawn().await;
    let snapshot = take_id(&server, &id).await;
    let body = json!({"snapshot": snapshot, "provider": "none"});
    server.post("/sandboxes", body).await.refused(404, "not_found", "none");
    let mut body = json!({"snapshot": snapshot, "provider": "proot"});
    assert_eq!(server.post("/sandboxes/admission", body.clone()).await.ok()["allowed"], true);
    body["memory_mb"] = json!(u32::MAX);
    server.post("/sandboxes", body).await.refused(400, "bad_request", "memory_mb");
    assert!(image(&server, &name_of(&snapshot)).await.is_none());
    assert_eq!(ids(&server, "/sandboxes").await.len(), 2);
}

#[tokio::test]
async fn a_provider_without_images_of_this_server_makes_no_sandbox_of_anothers_snapshot() {
    let server = TestServer::start(&format!("{MOCK} providers.native.enabled=true")).await;
    let id = server.spawn_with(json!({"provider": "native"})).await;
    let snapshot = take_id(&server, &id).await;
    let body = json!({"snapshot": snapshot, "provider": "mock"});
    server.post("/sandboxes", body).await.refused(400, "not_supported", "`mock` cannot use the images of this server");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_while_it_makes_the_image_leaves_no_box() {
    let Some(mut server) = server().await else { return };
    let id = server.spawn().await;
    server.output(&id, "head -c 200000000 /dev/urandom > /srv/large").await;
    let snapshot = take_id(&server, &id).await;
    let body = json!({"snapshot": snapshot, "provider": "proot"});
    let spawn = tokio::spawn(server.request(Method::POST, "/sandboxes").json(&body).send());
    let ingest = server.data_dir().join("images/ingest");
    server.until("the image is written", async || fs::read_dir(&ingest).unwrap().next().is_some()).await;
    server.kill();
    assert!(spawn.await.unwrap().is_err());
    server.launch().await;
    let boxes = server.data_dir().join("native/boxes");
    server.until("one box is left", async || fs::read_dir(&boxes).unwrap().count() == 1).await;
    assert_eq!(fs::read_dir(&ingest).unwrap().count(), 0);
    let copy = server.spawn_with(body).await;
    assert_eq!(server.output(&copy, "stat -c %s /srv/large").await, "200000000\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holes_of_files_take_no_disk_on_another_provider() {
    let Some(server) = server().await else { return };
    let id = server.spawn_with(json!({"memory_mb": 128})).await;
    server.output(&id, "truncate -s 209715200 sparse; echo end >> sparse; truncate -s 60000 small; sync").await;
    let snapshot = take_id(&server, &id).await;
    let copy = server.spawn_with(json!({"snapshot": snapshot, "provider": "proot"})).await;
    let shown = server.output(&copy, "stat -c %s sparse small; tail -c 4 sparse").await;
    assert_eq!(shown, "209715204\n60000\nend\n");
    let blocks = server.output(&copy, "stat -c %b sparse small").await;
    let blocks: u64 = blocks.lines().map(|blocks| blocks.parse::<u64>().unwrap()).sum();
    assert!(blocks * 512 < 1 << 20, "{blocks}");
    // Neither do they in the image that was made in between.
    let used = Command::new("du").args(["-sk", "images"]).current_dir(server.data_dir()).output().unwrap();
    let used = String::from_utf8(used.stdout).unwrap();
    let kib: u64 = used.split_whitespace().next().unwrap().parse().unwrap();
    assert!(kib < 100 << 10, "{used}");
}
