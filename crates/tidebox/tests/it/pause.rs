//! Sandboxes that are paused, and go on with the next request.

use std::path::PathBuf;

use futures_util::StreamExt;
use reqwest::Method;
use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::cli::tidebox;
use crate::server::{Answer, MOCK, NATIVE, TestServer};

/// Starts a server whose sandboxes can be paused; `None` where the host has no freezer for it.
async fn start(settings: &str) -> Option<TestServer> {
    if !geteuid().is_root() {
        return None;
    }
    Some(TestServer::start(&format!("{NATIVE} {settings}")).await)
}

async fn pause(server: &TestServer, id: &str) -> Value {
    server.post(&format!("/sandboxes/{id}/pause"), json!({})).await.ok()
}

async fn resume(server: &TestServer, id: &str) -> Value {
    server.post(&format!("/sandboxes/{id}/resume"), json!({})).await.ok()
}

async fn state(server: &TestServer, id: &str) -> String {
    server.get(&format!("/sandboxes/{id}")).await.ok()["state"].as_str().unwrap().to_owned()
}

/// Returns the freezer of a box, in either version of control groups.
fn freezer(server: &TestServer, id: &str) -> PathBuf {
    let record = std::fs::read(server.data_dir().join(format!("native/boxes/{id}/box.json"))).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    let files = record["cgroups"].as_array().unwrap().iter().map(|group| {
        let file = if group["v2"] == true { "cgroup.freeze" } else { "freezer.state" };
        PathBuf::from(group["path"].as_str().unwrap()).join(file)
    });
    files.into_iter().find(|file| file.exists()).expect("a box has a freezer")
}

/// Returns whether the processes of a box are stopped where they are.
pub(crate) fn is_frozen(server: &TestServer, id: &str) -> bool {
    !matches!(std::fs::read_to_string(freezer(server, id)).unwrap().trim(), "0" | "THAWED")
}

/// Freezes a box, or lets it go on, behind the server's back.
fn freeze(server: &TestServer, id: &str, frozen: bool) {
    let file = freezer(server, id);
    let v2 = file.ends_with("cgroup.freeze");
    std::fs::write(
        &file,
        match (v2, frozen) {
            (true, true) => "1",
            (true, false) => "0",
            (false, true) => "FROZEN",
            (false, false) => "THAWED",
        },
    )
    .unwrap();
}

/// Returns the types of the events of a sandbox so far.
async fn events(server: &TestServer, id: &str) -> Vec<String> {
    let path = format!("/events?sandbox_id={id}&last_event_id=0&follow=false");
    let text = String::from_utf8(server.get(&path).await.bytes.to_vec()).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("event: ")).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_paused_sandbox_rests_until_it_is_resumed() {
    let Some(server) = start("").await else { return };
    let id = server.spawn().await;
    server.output(&id, "(while :; do :; done) >/dev/null 2>&1 &").await;
    assert_eq!(pause(&server, &id).await["state"], "paused");
    assert!(is_frozen(&server, &id));
    assert_eq!(
        (state(&server, &id).await.as_str(), pause(&server, &id).await["state"].as_str()),
        ("paused", Some("paused"))
    );
    let used = async || server.get(&format!("/sandboxes/{id}/stats")).await.ok()["cpu"]["used_ms"].as_u64().unwrap();
    let before = used().await;
    assert_eq!(used().await, before, "looking at it does not wake it");
    assert_eq!(server.get("/sandboxes?state=paused").await.ok().as_array().unwrap().len(), 1);
    assert_eq!(server.get("/sandboxes?state=running").await.ok(), json!([]));
    assert_eq!(resume(&server, &id).await["state"], "running");
    assert_eq!(resume(&server, &id).await["state"], "running");
    assert!(!is_frozen(&server, &id));
    server.until("it goes on", async || used().await > before).await;
    let told = events(&server, &id).await;
    let of_pauses: Vec<&str> =
        told.iter().map(String::as_str).filter(|kind| kind.ends_with("paused") || kind.ends_with("resumed")).collect();
    assert_eq!(of_pauses, ["sandbox.paused", "sandbox.resumed"]);
}

#[tokio::test]
async fn each_request_that_needs_a_paused_sandbox_wakes_it() {
    let Some(server) = start("").await else { return };
    let id = server.spawn().await;
    server.write(&id, "/workspace/kept", "kept").await;
    let path = |rest: &str| format!("/sandboxes/{id}{rest}");
    for (method, rest, body) in [
        (Method::POST, "/exec", json!({"command": "true"})),
        (Method::GET, "/files?path=/workspace/kept", Value::Null),
        (Method::POST, "/files", json!({"path": "/workspace/new", "content": "x"})),
        (Method::GET, "/files/list?path=/workspace", Value::Null),
        (Method::GET, "/ports", Value::Null),
        (Method::GET, "/logs", Value::Null),
        (Method::PUT, "/egress", json!({"mode": "none"})),
        (Method::POST, "/extend", json!({"ttl": "10m"})),
    ] {
        pause(&server, &id).await;
        let mut request = server.request(method.clone(), &path(rest));
        if !body.is_null() {
            request = request.json(&body);
        }
        let answer = Answer::read(request.send().await.unwrap()).await;
        assert!(answer.status.is_success(), "{method} {rest}: {}", String::from_utf8_lossy(&answer.bytes));
        assert_eq!(state(&server, &id).await, "running", "{method} {rest}");
    }
    for rest in ["", "/stats", "/egress"] {
        pause(&server, &id).await;
        server.get(&path(rest)).await.ok();
        assert_eq!(state(&server, &id).await, "paused", "{rest}");
    }
}

#[tokio::test]
async fn an_archive_that_is_read_keeps_its_sandbox_awake() {
    let Some(server) = start("").await else { return };
    let id = server.spawn().await;
    server.output(&id, "head -c 64M /dev/urandom >big").await;
    let archive =
        server.request(Method::GET, &format!("/sandboxes/{id}/files/archive?path=/workspace")).send().await.unwrap();
    server.post(&format!("/sandboxes/{id}/pause"), json!({})).await.refused(409, "conflict", "file_archive");
    drop(archive);
    server
        .until("the sandbox is paused", async || {
            server.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status == 200
        })
        .await;
}

#[tokio::test]
async fn a_sandbox_in_use_is_not_paused_unless_forced() {
    let Some(server) = start("").await else { return };
    let id = server.spawn().await;
    let slow = json!({"command": "echo begun; sleep 2; echo done", "stream": true});
    let answer = server.request(Method::POST, &format!("/sandboxes/{id}/exec")).json(&slow).send().await.unwrap();
    let mut output = answer.bytes_stream();
    let first = output.next().await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&first).contains("begun"));
    let refused = server.post(&format!("/sandboxes/{id}/pause"), json!({})).await;
    refused.refused(409, "conflict", "exec_stream");
    assert!(!is_frozen(&server, &id));
    assert_eq!(server.post(&format!("/sandboxes/{id}/pause"), json!({"force": true})).await.ok()["state"], "paused");
    assert!(is_frozen(&server, &id));
    resume(&server, &id).await;
    let mut rest = String::new();
    while let Some(piece) = output.next().await {
        rest.push_str(&String::from_utf8_lossy(&piece.unwrap()));
    }
    assert!(rest.contains("done"), "{rest}");
    // The end of the command ends the use.
    server
        .until("it can be paused", async || {
            server.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status == 200
        })
        .await;
}

#[tokio::test]
async fn a_pause_in_the_middle_of_an_upload_names_it() {
    let Some(server) = start("").await else { return };
    let id = server.spawn().await;
    let (sender, receiver) = tokio::sync::mpsc::channel::<std::io::Result<bytes::Bytes>>(1);
    let body = reqwest::Body::wrap_stream(futures_util::stream::unfold(receiver, |mut receiver| async {
        Some((receiver.recv().await?, receiver))
    }));
    let upload = server.request(Method::PUT, &format!("/sandboxes/{id}/files/workspace/big")).body(body);
    let upload = async move { Answer::read(upload.send().await.unwrap()).await };
    let attempt = async {
        sender.send(Ok(bytes::Bytes::from(vec![b'x'; 100_000]))).await.unwrap();
        server
            .until("the upload is seen", async || {
                let answer = server.post(&format!("/sandboxes/{id}/pause"), json!({})).await;
                if answer.status == 200 {
                    resume(&server, &id).await;
                    return false;
                }
                answer.refused(409, "conflict", "file_write");
                true
            })
            .await;
        drop(sender);
    };
    let (written, ()) = tokio::join!(upload, attempt);
    assert!(written.status.is_success(), "{}", String::from_utf8_lossy(&written.bytes));
    assert_eq!(server.output(&id, "wc -c < /workspace/big").await.trim(), "100000");
}

#[tokio::test]
async fn a_paused_sandbox_ends_as_any_other() {
    let Some(server) = start("").await else { return };
    let (destroyed, expired) = (server.spawn().await, server.spawn_with(json!({"ttl": "2s"})).await);
    for id in [&destroyed, &expired] {
        pause(&server, id).await;
    }
    assert_eq!(server.get("/diagnostics").await.ok()["sandboxes"]["active"], 2, "a paused one counts");
    server.delete(&format!("/sandboxes/{destroyed}")).await.ok();
    server.post(&format!("/sandboxes/{destroyed}/pause"), json!({})).await.refused(404, "not_found", "");
    let wait = server.get(&format!("/sandboxes/{expired}/wait?state=destroyed&timeout=20s")).await;
    assert!(matches!(wait.status.as_u16(), 200 | 404), "{}", wait.status);
    server
        .until("nothing of it is left", async || server.get("/diagnostics").await.ok()["sandboxes"]["active"] == 0)
        .await;
}

#[tokio::test]
async fn a_server_that_was_killed_finds_paused_sandboxes_and_wakes_them() {
    let Some(mut server) = start("").await else { return };
    let (kept, thawed, frozen) = (server.spawn().await, server.spawn().await, server.spawn().await);
    server.write(&kept, "/workspace/kept", "kept").await;
    for id in [&kept, &thawed] {
        pause(&server, id).await;
    }
    server.kill();
    // As a crash leaves them after the row was written, and before the box was asked.
    freeze(&server, &thawed, false);
    freeze(&server, &frozen, true);
    server.launch().await;
    assert_eq!(state(&server, &kept).await, "paused");
    server.until("the box whose row is paused is paused", async || is_frozen(&server, &thawed)).await;
    server.until("the box whose row is running goes on", async || !is_frozen(&server, &frozen)).await;
    assert_eq!(server.output(&frozen, "echo here").await, "here\n");
    assert_eq!(server.output(&kept, "cat /workspace/kept").await, "kept");
    assert_eq!(
        (state(&server, &kept).await, state(&server, &thawed).await),
        ("running".to_owned(), "paused".to_owned())
    );
}

/// Kills the server while it pauses and resumes, after each number of answers.
#[tokio::test]
async fn whenever_the_server_is_killed_a_box_and_its_row_agree_again() {
    let Some(mut server) = start("").await else { return };
    let id = server.spawn().await;
    for answers in 0..6 {
        let verbs = ["pause", "resume"].into_iter().cycle().take(40);
        let post = |verb| server.request(Method::POST, &format!("/sandboxes/{id}/{verb}")).json(&json!({}));
        let requests: Vec<_> = verbs.map(post).collect();
        let (answered, mut count) = tokio::sync::mpsc::channel(1);
        let mut sending = tokio::task::JoinSet::new();
        sending.spawn(async move {
            for request in requests {
                if request.send().await.is_err() || answered.send(()).await.is_err() {
                    return;
                }
            }
        });
        for _ in 0..answers {
            count.recv().await.unwrap();
        }
        server.kill();
        drop(count);
        sending.join_next().await.unwrap().unwrap();
        server.launch().await;
        server
            .until("the box is in the state of its row", async || {
                (state(&server, &id).await == "paused") == is_frozen(&server, &id)
            })
            .await;
        assert_eq!(server.output(&id, "echo here").await, "here\n");
        assert_eq!(state(&server, &id).await, "running");
    }
}

#[tokio::test]
async fn a_provider_that_cannot_pause_says_so() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    for verb in ["pause", "resume"] {
        let refused = server.post(&format!("/sandboxes/{id}/{verb}"), json!({})).await;
        refused.refused(
            400,
            "not_supported",
            "the provider `mock` cannot pause sandboxes here; `docker` and `firecracker` can",
        );
    }
    assert_eq!(state(&server, &id).await, "running");
    let unknown = server.post(&format!("/sandboxes/{id}/pause"), json!({"forced": true})).await;
    unknown.refused(400, "bad_request", "forced");
    server.post("/sandboxes/sb-aaaaaaaaaaaaaaaa/pause", json!({})).await.refused(404, "not_found", "");
}

#[tokio::test]
async fn another_service_pauses_its_own_and_wakes_it_for_ours() {
    let Some(far) = start("").await else { return };
    let settings = format!(
        "providers.native.enabled=false providers.custom.enabled=true providers.custom.base_url={} providers.default=custom",
        far.url
    );
    let near = TestServer::start(&settings).await;
    let id = near.spawn().await;
    near.write(&id, "/workspace/kept", "kept").await;
    pause(&near, &id).await;
    let there = far.get("/sandboxes?state=paused").await.ok();
    assert_eq!(there.as_array().unwrap().len(), 1, "{there}");
    assert_eq!(near.output(&id, "cat /workspace/kept").await, "kept");
    assert_eq!(far.get("/sandboxes?state=paused").await.ok(), json!([]));
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_written_to_disk_is_not_paused_for_it() {
    let Some(server) = start("").await else { return };
    let id = server.spawn().await;
    let path = format!("/sandboxes/{id}/pause");
    server.post(&path, json!({"to_disk": true})).await.refused(400, "not_supported", "`suspend`");
    server.post(&path, json!({"to_disk": true, "reclaim": true})).await.refused(400, "bad_request", "`to_disk`");
    assert_eq!(server.get(&format!("/sandboxes/{id}")).await.ok()["state"], "running");
}

#[tokio::test]
async fn the_command_line_pauses_and_resumes() {
    let Some(server) = start("").await else { return };
    let id = server.spawn().await;
    tokio::task::spawn_blocking(move || {
        for (arguments, shows) in
            [(vec!["pause"], "paused"), (vec!["pause", "--reclaim"], "(memory."), (vec!["resume"], "running")]
        {
            let output = tidebox(&server, &[&arguments[..], &[&id]].concat(), b"");
            let shown = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success() && shown.contains(shows), "{arguments:?}: {shown}");
        }
    })
    .await
    .unwrap();
}

/// Writes a file of 100 MB, and returns its digest, for which it was read.
async fn with_files(server: &TestServer, id: &str) -> String {
    server.output(id, "head -c 100M /dev/urandom > /workspace/big; cat /workspace/big >/dev/null").await;
    server.output(id, "sha256sum < /workspace/big").await
}

#[tokio::test]
async fn memory_of_a_paused_sandbox_is_handed_back_with_the_figures_and_nothing_is_lost() {
    let Some(server) = start("").await else { return };
    let id = server.spawn().await;
    let digest = with_files(&server, &id).await;
    server.output(&id, "(x=kept; while sleep 0.1; do echo $x > /workspace/state; done) >/dev/null 2>&1 &").await;
    let answer = server.post(&format!("/sandboxes/{id}/pause"), json!({"reclaim": true})).await.ok();
    assert_eq!(answer["state"], "paused");
    let figure = |answer: &Value, name: &str| answer["reclaimed"][name].as_u64().unwrap();
    let (before, after) = (figure(&answer, "memory_before_bytes"), figure(&answer, "memory_after_bytes"));
    assert!(before > 100 << 20 && after < before - (90 << 20), "{answer}");
    let by = answer["reclaimed"]["by"].as_str().unwrap();
    assert!(["memory.reclaim", "memory.force_empty"].contains(&by), "{answer}");
    // Of one that is paused already, and without the word nothing is handed back.
    let again = server.post(&format!("/sandboxes/{id}/pause"), json!({"reclaim": true})).await.ok();
    assert!(figure(&again, "memory_before_bytes") < before - (90 << 20), "{again}");
    assert_eq!(pause(&server, &id).await.get("reclaimed"), None);
    assert!(is_frozen(&server, &id));
    let told = crate::events::history(&server).await;
    let told: Vec<&Value> = told.iter().filter(|event| event["type"] == "sandbox.reclaimed").collect();
    assert_eq!(told.len(), 2);
    assert_eq!((&told[0]["data"]["memory_after_bytes"], &told[0]["data"]["by"]), (&json!(after), &json!(by)));
    resume(&server, &id).await;
    server.output(&id, "rm -f /workspace/state").await;
    assert_eq!(server.output(&id, "sha256sum < /workspace/big").await, digest);
    server.until("what ran goes on", async || server.output(&id, "cat /workspace/state").await == "kept\n").await;
}

#[tokio::test]
async fn a_request_does_not_wait_until_the_memory_of_its_sandbox_is_handed_back() {
    let Some(server) = start("").await else { return };
    let id = server.spawn().await;
    let digest = with_files(&server, &id).await;
    for verb in ["exec", "delete"] {
        let path = format!("/sandboxes/{id}/pause");
        let reclaim = server.post(&path, json!({"reclaim": true}));
        let use_it = async {
            server.until("it is paused", async || state(&server, &id).await == "paused").await;
            match verb {
                "exec" => assert_eq!(server.output(&id, "sha256sum < /workspace/big").await, digest),
                _ => drop(server.delete(&format!("/sandboxes/{id}")).await.ok()),
            }
        };
        let (answer, ()) = tokio::join!(reclaim, use_it);
        // It may have been done before the other was asked.
        if answer.status != 200 {
            answer.refused(409, "conflict", "no longer paused");
        }
    }
    server.get(&format!("/sandboxes/{id}")).await.refused(404, "not_found", "");
}

#[tokio::test]
async fn a_caller_that_hangs_up_leaves_a_paused_sandbox_and_no_process() {
    let Some(server) = start("").await else { return };
    let id = server.spawn().await;
    let digest = with_files(&server, &id).await;
    let request = server.request(Method::POST, &format!("/sandboxes/{id}/pause")).json(&json!({"reclaim": true}));
    let sent = tokio::spawn(request.send());
    server.until("it is paused", async || state(&server, &id).await == "paused").await;
    sent.abort();
    let processes = || {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let arguments = all.map(|entry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default());
        arguments.filter(|arguments| String::from_utf8_lossy(arguments).contains(&id)).count()
    };
    server.until("its process ends", async || processes() == 0).await;
    assert_eq!(state(&server, &id).await, "paused");
    assert_eq!(server.output(&id, "sha256sum < /workspace/big").await, digest);
}

#[tokio::test]
async fn another_service_hands_memory_back_for_ours_or_says_that_it_cannot() {
    let Some(far) = start("").await else { return };
    let settings = |url: &str| {
        format!(
            "providers.native.enabled=false providers.custom.enabled=true providers.custom.base_url={url} \
             providers.default=custom"
        )
    };
    let near = TestServer::start(&settings(&far.url)).await;
    let id = near.spawn().await;
    let digest = with_files(&near, &id).await;
    let answer = near.post(&format!("/sandboxes/{id}/pause"), json!({"reclaim": true})).await.ok();
    let figure = |name: &str| answer["reclaimed"][name].as_u64().unwrap();
    assert!(figure("memory_after_bytes") < figure("memory_before_bytes") - (90 << 20), "{answer}");
    assert_eq!(far.get("/sandboxes?state=paused").await.ok().as_array().unwrap().len(), 1);
    assert_eq!(near.output(&id, "sha256sum < /workspace/big").await, digest);

    let mock = TestServer::start(MOCK).await;
    let near = TestServer::start(&settings(&mock.url)).await;
    let id = near.spawn().await;
    let refused = near.post(&format!("/sandboxes/{id}/pause"), json!({"reclaim": true})).await;
    refused.refused(400, "not_supported", "");
    assert_eq!(state(&near, &id).await, "running");
}

/// Spawns a sandbox that is paused after a second without use.
async fn idle_soon(server: &TestServer, more: Value) -> String {
    let mut body = json!({"auto_pause": "1s"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.spawn_with(body).await
}

async fn paused(server: &TestServer, id: &str) {
    server.until("it is paused", async || state(server, id).await == "paused").await;
}

#[tokio::test]
async fn a_sandbox_that_is_not_used_is_paused_and_wakes_for_a_request() {
    let Some(server) = start("").await else { return };
    server.post("/templates", json!({"name": "idle", "auto_pause": "1s"})).await.ok();
    let id = server.spawn_with(json!({"template": "idle"})).await;
    assert_eq!(server.get(&format!("/sandboxes/{id}")).await.ok()["auto_pause"], "1s");
    let other = server.spawn_with(json!({"template": "idle", "auto_pause": "0s"})).await;
    paused(&server, &id).await;
    // The row comes first, the event when its processes have stopped.
    let is_told = async || {
        let history = crate::events::history(&server).await;
        history.iter().any(|event| event["type"] == "sandbox.paused" && event["data"]["reason"] == "idle")
    };
    server.until("the event", is_told).await;
    assert!(is_frozen(&server, &id));
    assert_eq!(server.output(&id, "echo here").await, "here\n");
    assert_eq!(state(&server, &id).await, "running");
    paused(&server, &id).await;
    assert_eq!(state(&server, &other).await, "running", "zero is never");
}

#[tokio::test]
async fn a_request_a_stream_and_work_keep_a_sandbox_awake() {
    let Some(server) = start("").await else { return };
    let (streamed, working, quiet) =
        (idle_soon(&server, json!({})).await, idle_soon(&server, json!({})).await, idle_soon(&server, json!({})).await);
    let exec = server.request(Method::POST, &format!("/sandboxes/{streamed}/exec"));
    let command = json!({"command": "sleep 1000", "stream": true, "timeout": "100s"});
    let stream = exec.json(&command).send().await.unwrap();
    let busy = json!({"command": "while :; do :; done", "background": true, "name": "busy"});
    server.post(&format!("/sandboxes/{working}/exec"), busy).await.ok();
    let sleeper = json!({"command": "sleep 1000", "background": true});
    server.post(&format!("/sandboxes/{quiet}/exec"), sleeper).await.ok();
    paused(&server, &quiet).await;
    for _ in 0..2 {
        // Each takes as long as the other two would have had.
        resume(&server, &quiet).await;
        paused(&server, &quiet).await;
    }
    assert_eq!(state(&server, &streamed).await, "running", "a request is under way");
    assert_eq!(state(&server, &working).await, "running", "its processes work");
    drop(stream);
    paused(&server, &streamed).await;
    server.delete(&format!("/sandboxes/{working}/processes/busy")).await.ok();
    paused(&server, &working).await;
}

#[tokio::test]
async fn a_sandbox_that_was_idle_over_a_crash_is_paused_after_it() {
    let Some(mut server) = start("").await else { return };
    let id = idle_soon(&server, json!({"ttl": "1h"})).await;
    server.kill();
    server.launch().await;
    paused(&server, &id).await;
}

#[tokio::test]
async fn an_idle_time_that_cannot_be_kept_is_refused() {
    let server = TestServer::start(MOCK).await;
    let spawn = async |idle: &str| server.post("/sandboxes", json!({"auto_pause": idle})).await;
    spawn("10m").await.refused(400, "not_supported", "cannot pause");
    spawn("10ms").await.refused(400, "bad_request", "`auto_pause` must be at least 1s");
    spawn("soon").await.refused(400, "bad_request", "auto_pause");
    assert_eq!(spawn("0s").await.status, 201);
}
