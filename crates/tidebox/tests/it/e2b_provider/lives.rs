//! Sandboxes of the cloud, used like any other.

use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use providers::{Error, Pauses as _, Provider, Spec};
use serde_json::{Value, json};

use super::{KEY, cloud, command, id, near, open, rest, settings_of, spec, there, until_followed};
use crate::server::{MOCK, NATIVE, TestServer};

#[tokio::test]
async fn a_sandbox_of_the_cloud_is_used_like_any_other() {
    let far = cloud(NATIVE).await;
    let near = near(&far, "").await;
    let answer = near.post("/sandboxes", json!({"metadata": {"team": "blue"}})).await;
    let spawned = answer.ok();
    assert_eq!((answer.status.as_u16(), &spawned["provider"], &spawned["image"]), (201, &json!("e2b"), &json!("base")));
    assert_eq!(spawned["metadata"], json!({"team": "blue"}), "labels of ours are none of the caller's");
    let id = spawned["id"].as_str().unwrap().to_owned();
    let boxes = there(&far).await;
    assert_eq!(boxes.len(), 1);
    assert_eq!(boxes[0]["metadata"]["tidebox.e2b.id"], json!(id));
    assert_eq!(boxes[0]["metadata"]["team"], json!("blue"));

    assert_eq!(near.output(&id, "echo hello; pwd").await, "hello\n/workspace\n");
    let ran = near.exec(&id, "echo no >&2; exit 7").await;
    assert_eq!((&ran["exit_code"], &ran["stderr"]), (&json!(7), &json!("no\n")));
    let request = json!({"command": "cat; printf $A", "stdin": "typed", "env": {"A": "b"}});
    assert_eq!(near.post(&format!("/sandboxes/{id}/exec"), request).await.ok()["stdout"], "typedb");
    let slow = json!({"command": "echo before; sleep 60", "timeout": "3s"});
    let timed_out = near.post(&format!("/sandboxes/{id}/exec"), slow).await.ok();
    assert_eq!((&timed_out["exit_code"], &timed_out["timed_out"]), (&json!(124), &json!(true)), "{timed_out}");
    assert_eq!((&timed_out["stdout"], &timed_out["stderr"]), (&json!("before\n"), &json!("")), "{timed_out}");

    near.write(&id, "/workspace/a/file", "content").await;
    let large = vec![b'x'; 3_000_000];
    let put = near.request(reqwest::Method::PUT, &format!("/sandboxes/{id}/files/workspace/large"));
    assert!(put.body(large.clone()).send().await.unwrap().status().is_success());
    assert_eq!(near.get(&format!("/sandboxes/{id}/files?path=/workspace/large")).await.bytes, large);
    let moved = json!({"old_path": "/workspace/a/file", "new_path": "/workspace/b"});
    near.post(&format!("/sandboxes/{id}/files/move"), moved).await.ok();
    near.post(&format!("/sandboxes/{id}/files/chmod"), json!({"path": "/workspace/b", "mode": "600"})).await.ok();
    assert_eq!(near.get(&format!("/sandboxes/{id}/files/stat?path=/workspace/b")).await.ok()["mode"], "0600");
    near.write(&id, "/workspace/b", "again").await;
    assert_eq!(near.get(&format!("/sandboxes/{id}/files/stat?path=/workspace/b")).await.ok()["mode"], "0600");
    let glob = near.get(&format!("/sandboxes/{id}/files/glob?pattern=/workspace/*")).await.ok();
    assert_eq!(glob, json!(["/workspace/a", "/workspace/b", "/workspace/large"]));
    near.delete(&format!("/sandboxes/{id}/files?path=/workspace/b")).await.ok();
    near.get(&format!("/sandboxes/{id}/files?path=/workspace/b")).await.refused(404, "not_found", "/workspace/b");

    let before = there(&far).await[0]["expires_at"].clone();
    near.post(&format!("/sandboxes/{id}/extend"), json!({"ttl": "3h"})).await.ok();
    assert_ne!(there(&far).await[0]["expires_at"], before, "the box over there lives longer too");
    let stats = near.get(&format!("/sandboxes/{id}/stats")).await.ok();
    assert!(stats["memory"]["used_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{stats}");

    near.delete(&format!("/sandboxes/{id}")).await.ok();
    assert_eq!(there(&far).await, [] as [Value; 0]);
    near.get(&format!("/sandboxes/{id}")).await.refused(404, "not_found", &id);
}

#[tokio::test]
async fn a_preview_of_a_sandbox_of_the_cloud_is_served() {
    let far = cloud(NATIVE).await;
    let near = near(&far, "server.preview_domain=box.example").await;
    let id = near.spawn().await;
    near.write(&id, "/workspace/index.html", "hello from afar").await;
    let start = json!({"command": "python3 -m http.server 8080 --bind 127.0.0.1", "background": true});
    near.post(&format!("/sandboxes/{id}/exec"), start).await.ok();
    near.until("the port is listed", async || {
        let ports = near.get(&format!("/sandboxes/{id}/ports")).await.ok();
        ports.as_array().unwrap().iter().any(|port| port["port"] == 8080)
    })
    .await;
    let minted = near.post(&format!("/sandboxes/{id}/preview"), json!({"port": 8080})).await.ok();
    let token = minted["token"].as_str().unwrap();
    let page = near.http.get(format!("{}/index.html", near.url)).header("host", format!("8080-{id}.box.example"));
    let page = page.header("x-preview-token", token).send().await.unwrap();
    assert_eq!((page.status().as_u16(), page.text().await.unwrap().as_str()), (200, "hello from afar"));
    near.delete(&format!("/sandboxes/{id}")).await.ok();
}

#[tokio::test]
async fn the_size_is_that_of_the_template_and_what_cannot_be_enforced_is_refused() {
    let far = cloud(MOCK).await;
    let more = "providers.e2b.templates.python.template=base providers.e2b.templates.python.memory_mb=512 \
                providers.e2b.max_lifetime=2h";
    let near = near(&far, more).await;
    for (body, words) in [
        (json!({"memory_mb": 1024}), "`memory_mb`"),
        (json!({"vcpus": 2}), "`vcpus`"),
        (json!({"pids": 99}), "`pids`"),
        (json!({"disk_mb": 100}), "`disk_mb`"),
        (json!({"entrypoint": true}), "`entrypoint`"),
        (json!({"egress": {"mode": "allow-list", "allow": ["a.example:443"]}}), "port"),
    ] {
        near.post("/sandboxes", body).await.refused(400, "not_supported", words);
    }
    near.post("/sandboxes", json!({"ttl": "3h"})).await.refused(429, "resource_limit", "providers.e2b.max_lifetime");
    near.post("/sandboxes", json!({"image": "no-such"})).await.refused(400, "bad_request", "`no-such`");
    assert_eq!(there(&far).await, [] as [Value; 0]);
    // The hour for a server that does not come back is what is left out.
    let spawned = near.post("/sandboxes", json!({"image": "python", "memory_mb": 512, "ttl": "110m"})).await.ok();
    near.delete(&format!("/sandboxes/{}", spawned["id"].as_str().unwrap())).await.ok();
    assert_eq!(there(&far).await, [] as [Value; 0]);
}

#[tokio::test]
async fn connections_are_closed_unless_a_policy_opens_them() {
    let far = cloud(MOCK).await;
    let near = near(&far, "").await;
    let egress = async |body: Value| {
        let id = near.spawn_with(body).await;
        let remote = there(&far).await[0]["id"].as_str().unwrap().to_owned();
        let policy = far.get(&format!("/sandboxes/{remote}/egress")).await.ok();
        near.delete(&format!("/sandboxes/{id}")).await.ok();
        policy
    };
    assert_eq!(egress(json!({})).await["policy"]["mode"], "none");
    let list = egress(json!({"egress": {"mode": "allow-list", "allow": ["a.example", "8.8.8.8"]}})).await;
    assert_eq!(list["policy"]["mode"], "allow-list", "{list}");
    assert_eq!(list["policy"]["allow"], json!(["a.example", "8.8.8.8"]), "{list}");
    assert_eq!(egress(json!({"egress": {"mode": "open"}})).await["policy"]["mode"], "open");
}

#[tokio::test]
async fn the_key_is_needed_and_shows_nowhere() {
    let far = cloud(MOCK).await;
    let settings = settings_of(&far.url, "").replace(KEY, "e2b_ffffffffffffffffffffffffffffffffffffffff");
    let near = TestServer::start(&settings).await;
    near.post("/sandboxes", json!({})).await.refused(503, "unavailable", "providers.e2b.api_key");
    let shown = near.get("/providers/e2b").await.ok();
    assert!(!shown["healthy"].as_bool().unwrap() && shown.to_string().contains("API key"), "{shown}");
    assert!(!near.log_text().contains("e2b_fff"), "the key is in the log");
}

#[tokio::test]
async fn what_the_provider_can_do_is_shown() {
    let far = cloud(MOCK).await;
    let near = near(&far, "").await;
    let detail = near.get("/providers/e2b").await.ok();
    assert_eq!((&detail["healthy"], &detail["default"]), (&json!(true), &json!(true)), "{detail}");
    assert_eq!(detail["config"]["runtime"], "remote:e2b");
    let limits = json!({"memory_mb": "none", "vcpus": "none", "pids": "none", "disk_mb": "none"});
    assert_eq!(detail["config"]["limits"], limits);
    let capabilities: Vec<&str> =
        detail["health"]["capabilities"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert!(capabilities.contains(&"pause") && !capabilities.contains(&"snapshots"), "{capabilities:?}");
}

#[tokio::test]
async fn a_sandbox_is_paused_and_resumed_by_the_cloud() {
    let far = cloud(NATIVE).await;
    let near = near(&far, "").await;
    let id = near.spawn().await;
    near.write(&id, "/workspace/kept", "kept").await;
    let begun = near.exec(&id, "sleep 1000 >/dev/null 2>&1 & echo $!").await;
    let pid = begun["stdout"].as_str().unwrap().trim().to_owned();
    near.post(&format!("/sandboxes/{id}/pause"), json!({})).await.ok();
    assert_eq!(there(&far).await[0]["state"], "paused");
    assert_eq!(near.get(&format!("/sandboxes/{id}")).await.ok()["state"], "paused");
    near.post(&format!("/sandboxes/{id}/resume"), json!({})).await.ok();
    assert_eq!(there(&far).await[0]["state"], "running");
    assert_eq!(near.output(&id, &format!("cat /workspace/kept; kill -0 {pid} && echo lives")).await, "keptlives\n");
    // A request wakes it.
    near.post(&format!("/sandboxes/{id}/pause"), json!({})).await.ok();
    assert_eq!(near.output(&id, "cat /workspace/kept").await, "kept");
    // One that is paused is removed as any other.
    near.post(&format!("/sandboxes/{id}/pause"), json!({})).await.ok();
    near.delete(&format!("/sandboxes/{id}")).await.ok();
    assert_eq!(there(&far).await, [] as [Value; 0]);
}

#[tokio::test]
async fn a_sandbox_that_an_earlier_run_of_ours_paused_is_resumed_with_its_own_lifetime() {
    let far = cloud(NATIVE).await;
    let mut near = near(&far, "").await;
    let id = near.spawn_with(json!({"ttl": "2h"})).await;
    near.post(&format!("/sandboxes/{id}/pause"), json!({})).await.ok();
    near.kill();
    near.launch().await;
    near.post(&format!("/sandboxes/{id}/resume"), json!({})).await.ok();
    let end =
        |sandbox: &Value| sandbox["expires_at"].as_str().unwrap().parse::<domain::Timestamp>().unwrap().as_second();
    let (here, there) = (end(&near.get(&format!("/sandboxes/{id}")).await.ok()), end(&there(&far).await[0]));
    assert!((3540..=3660).contains(&(there - here)), "an hour more than here: {here} {there}");
}

#[tokio::test]
async fn pauses_may_be_repeated_and_are_found_by_a_later_process() {
    let far = cloud(NATIVE).await;
    let (one, other) = (open(&far.url, "ours"), open(&far.url, "ours"));
    one.start(&id(1), &spec()).await.unwrap();
    one.pause(&id(1)).await.unwrap();
    one.pause(&id(1)).await.unwrap();
    assert_eq!(other.paused().await.unwrap(), [id(1)]);
    assert!(other.inventory().await.unwrap().iter().all(|found| found.alive));
    let asleep = other.guest(&id(1)).await.unwrap().stat("/workspace").await;
    assert!(matches!(&asleep, Err(Error::Unavailable(text)) if text.contains("paused")), "{asleep:?}");
    other.resume(&id(1)).await.unwrap();
    other.resume(&id(1)).await.unwrap();
    assert_eq!(other.paused().await.unwrap(), []);
    other.guest(&id(1)).await.unwrap().stat("/workspace").await.unwrap();
    assert!(matches!(other.pause(&id(2)).await, Err(Error::Gone)));
    assert!(matches!(other.resume(&id(2)).await, Err(Error::Gone)));
    other.stop(&id(1)).await.unwrap();
    assert!(matches!(one.resume(&id(1)).await, Err(Error::Gone)));
}

#[tokio::test]
async fn two_servers_of_one_account_leave_each_other_alone() {
    let far = cloud(MOCK).await;
    let (one, other) = (open(&far.url, "one"), open(&far.url, "other"));
    // The same id on purpose.
    one.start(&id(1), &spec()).await.unwrap();
    other.start(&id(1), &spec()).await.unwrap();
    other.start(&id(2), &spec()).await.unwrap();
    assert_eq!(one.inventory().await.unwrap().len(), 1);
    assert_eq!(other.inventory().await.unwrap().len(), 2);
    assert!(matches!(one.guest(&id(2)).await, Err(Error::Gone)));
    one.stop(&id(1)).await.unwrap();
    assert!(one.inventory().await.unwrap().is_empty());
    assert!(other.inventory().await.unwrap().iter().all(|found| found.alive));
    assert_eq!(there(&far).await.len(), 2);
}

#[tokio::test]
async fn a_start_that_is_given_up_and_stopped_leaves_nothing_however_slow_it_is() {
    let far = cloud(MOCK).await;
    let e2b = open(&far.url, "ours");
    let slow = Spec { metadata: [("mock.start_delay".to_owned(), "3s".to_owned())].into(), ..spec() };
    assert!(tokio::time::timeout(Duration::from_millis(200), e2b.start(&id(1), &slow)).await.is_err());
    e2b.stop(&id(1)).await.unwrap();
    assert!(e2b.inventory().await.unwrap().is_empty());
    assert_eq!(there(&far).await, [] as [Value; 0]);
    assert!(e2b.start(&id(1), &spec()).now_or_never().is_none());
    e2b.stop(&id(1)).await.unwrap();
    e2b.idle().await;
    assert_eq!(there(&far).await, [] as [Value; 0]);
}

#[tokio::test]
async fn a_start_that_the_cloud_refuses_leaves_nothing() {
    let far = TestServer::builder(MOCK).key(KEY).expecting("a request failed").start().await;
    let e2b = open(&far.url, "ours");
    for (n, label) in [(1, "mock.start_fail"), (2, "mock.lose_reply")] {
        let failing = Spec { metadata: [(label.to_owned(), "1".to_owned())].into(), ..spec() };
        let failed = e2b.start(&id(n), &failing).await;
        assert!(matches!(failed, Err(Error::Failed { .. })), "{label}: {failed:?}");
        assert!(e2b.inventory().await.unwrap().is_empty(), "{label}");
        assert_eq!(there(&far).await, [] as [Value; 0], "{label}");
        e2b.start(&id(n), &spec()).await.unwrap();
        e2b.stop(&id(n)).await.unwrap();
    }
}

#[tokio::test]
async fn a_background_process_of_an_earlier_run_is_found_and_followed_from_then_on() {
    let far = cloud(NATIVE).await;
    let (one, other) = (open(&far.url, "ours"), open(&far.url, "ours"));
    one.start(&id(1), &spec()).await.unwrap();
    let named = providers::Background {
        name: Some("web".to_owned()),
        stdin: providers::BackgroundStdin::Open,
        ..providers::Background::default()
    };
    let script = "echo first; read line; echo \"second $line\"; exit 4";
    let guest = one.guest(&id(1)).await.unwrap();
    let begun = guest.start_process(command(&["/bin/sh", "-c", script]), named.clone()).await.unwrap();

    let guest = other.guest(&id(1)).await.unwrap();
    let found = guest.processes().await.unwrap();
    assert_eq!((found[0].process, found[0].name.as_deref(), found[0].pid), (begun.process, Some("web"), begun.pid));
    let taken = guest.start_process(command(&["true"]), named).await;
    assert!(matches!(taken, Err(Error::Conflict(_))), "{taken:?}");
    let attach = providers::Attach { from: providers::AttachFrom::Position(0), follow: true, input: None };
    let mut events = guest.attach_process(begun.process, attach).await.unwrap();
    let typed = futures_util::stream::iter([Ok("line\n".into())]).boxed();
    guest.process_input(begun.process, typed, false).await.unwrap();
    let (text, code) = rest(&mut events).await;
    assert_eq!((text.as_str(), code), ("second line\n", 4));
    other.stop(&id(1)).await.unwrap();
}

#[tokio::test]
async fn a_background_process_is_followed_through_a_pause() {
    let far = cloud(NATIVE).await;
    let e2b = open(&far.url, "ours");
    e2b.start(&id(1), &spec()).await.unwrap();
    let guest = e2b.guest(&id(1)).await.unwrap();
    let open = providers::Background { stdin: providers::BackgroundStdin::Open, ..providers::Background::default() };
    let script = command(&["/bin/sh", "-c", "read line; echo \"again $line\"; exit 4"]);
    let begun = guest.start_process(script, open).await.unwrap();
    e2b.pause(&id(1)).await.unwrap();
    e2b.resume(&id(1)).await.unwrap();
    let attach = providers::Attach { from: providers::AttachFrom::Position(0), follow: true, input: None };
    let mut events = guest.attach_process(begun.process, attach).await.unwrap();
    // What is written while its stream is opened again would be lost.
    until_followed(&far).await;
    guest.process_input(begun.process, futures_util::stream::iter([Ok("line\n".into())]).boxed(), false).await.unwrap();
    let (text, code) = rest(&mut events).await;
    assert_eq!((text.as_str(), code), ("again line\n", 4));
    e2b.stop(&id(1)).await.unwrap();
}
