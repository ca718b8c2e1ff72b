//! The provider `custom`: one service that makes its boxes in another.

use std::sync::Arc;
use std::time::Duration;

use conformance::{Coverage, Need, Subject, run};
use domain::{Resources, SandboxId};
use providers::custom::{Custom, CustomConfig};
use providers::{Command, Error, OutputEvent, Provider, Spec};
use serde_json::{Value, json};

use crate::server::{MOCK, NATIVE, TestServer};

/// Reasons for which some cases of the suite are skipped.
const IMAGES: &str = "which images there are, the other service knows, and is asked only by the start";
const EGRESS: &str = "the other service makes the connections out of its boxes";
const PORT_WATCH: &str = "the other service has the events of its boxes";
const STDIN: &str = "stdin is sent in the request, which has a bound";

fn config(url: &str, label: &str) -> CustomConfig {
    CustomConfig {
        name: "custom".to_owned(),
        base_url: url.to_owned(),
        api_key: None,
        ca_file: None,
        timeout: Duration::from_secs(30),
        remote_provider: None,
        label: label.to_owned(),
    }
}

fn open(url: &str, label: &str) -> Custom {
    Custom::open(config(url, label)).unwrap()
}

fn spec() -> Spec {
    Spec {
        image: "default".to_owned(),
        resources: Resources { memory_mb: 256, vcpus: 1, disk_mb: 0, pids: 256 },
        entrypoint: false,
        metadata: [("team".to_owned(), "blue".to_owned())].into(),
        lifetime: Duration::from_secs(600),
        trust: None,
        snapshot: None,
        is_copy: false,
        egress: Vec::new(),
        asker: None,
    }
}

fn id(n: u8) -> SandboxId {
    SandboxId::from_entropy([n; 10])
}

/// Reason for cases about what the API has no field for.
const NO_FIELD: &str = "the other service's API has no field for it";

/// Makes a subject over a service, with everything that any service allows.
fn subject(far: &TestServer, label: &'static str) -> Subject {
    let url = far.url.clone();
    Subject::new(Arc::new(open(&far.url, label)), spec())
        .reopen(move || {
            let again: Arc<dyn Provider> = Arc::new(open(&url, label));
            Box::pin(async move { again })
        })
        .without(Need::Images, IMAGES)
        .without(Need::Stdin, STDIN)
        .without(Need::Egress, EGRESS)
        .without(Need::PortWatch, PORT_WATCH)
        .without(Need::OwnTerminals, "what a command is refused comes with its output")
        .without(Need::ExitDetails, "its API does not name the signal that ended a process")
        .without(Need::Accounts, NO_FIELD)
        .without(Need::Watchers, NO_FIELD)
        .without(Need::Sleepers, "the other service wakes a sandbox for a request")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_passes_the_suite_over_a_service_of_real_boxes() {
    let far = TestServer::start(NATIVE).await;
    let (url, folder) = (far.url.clone(), far.data_dir().join("native/boxes"));
    let subject = subject(&far, "suite").covered_by("custom", Coverage::Provider).kill(move |id| {
        let (url, folder) = (url.clone(), folder.clone());
        Box::pin(async move {
            let remote = remote_id(&url, &id).await;
            let text = std::fs::read_to_string(folder.join(remote).join("pid")).unwrap();
            let pid = text.split_whitespace().next().unwrap().parse().unwrap();
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        })
    });
    let subject = if rustix::process::geteuid().is_root() {
        subject
    } else {
        subject.without(Need::Users, "without privileges a box has one user only")
    };
    run(subject).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_passes_the_suite_over_a_service_of_boxes_in_memory() {
    let far = TestServer::start(MOCK).await;
    let subject = subject(&far, "suite")
        .without(Need::Processes, "a mock box runs no real program")
        .without(Need::Users, "a mock box has no users")
        .without(Need::Terminals, "a mock box has no terminals")
        .without(Need::Pauses, "a mock box cannot be paused")
        .without(Need::Kill, "a mock box has no process that could be killed from outside");
    run(subject).await;
}

/// Starts a server whose only provider is another server.
async fn near(far: &TestServer, more: &str) -> TestServer {
    let url = &far.url;
    TestServer::start(&format!(
        "providers.native.enabled=false providers.custom.enabled=true providers.custom.base_url={url} \
         providers.default=custom {more}"
    ))
    .await
}

#[tokio::test]
async fn a_sandbox_of_another_service_is_used_like_any_other() {
    let far = TestServer::start(NATIVE).await;
    let near = near(&far, "").await;
    let answer = near.post("/sandboxes", json!({"provider": "custom", "metadata": {"team": "blue"}})).await;
    let spawned = answer.ok();
    assert_eq!(
        (answer.status.as_u16(), &spawned["provider"], &spawned["state"]),
        (201, &json!("custom"), &json!("running"))
    );
    assert_eq!(spawned["metadata"], json!({"team": "blue"}), "labels of ours are none of the caller's");
    assert!(answer.headers["server-timing"].to_str().unwrap().contains("box;"));
    let id = spawned["id"].as_str().unwrap().to_owned();

    let there = far.get("/sandboxes").await.ok();
    assert_eq!(there.as_array().unwrap().len(), 1);
    assert_eq!((&there[0]["metadata"]["tidebox.id"], &there[0]["metadata"]["team"]), (&json!(id), &json!("blue")));
    assert_ne!(there[0]["id"], json!(id));

    assert_eq!(near.output(&id, "echo hello; pwd").await, "hello\n/workspace\n");
    let ran = near.exec(&id, "echo no >&2; exit 7").await;
    assert_eq!((&ran["exit_code"], &ran["stderr"]), (&json!(7), &json!("no\n")));
    let request = json!({"command": "cat", "stdin": "typed", "env": {"A": "b"}, "user": "0"});
    assert_eq!(near.post(&format!("/sandboxes/{id}/exec"), request).await.ok()["stdout"], "typed");
    let slow = json!({"command": "echo before; sleep 60", "timeout": "3s"});
    let timed_out = near.post(&format!("/sandboxes/{id}/exec"), slow).await.ok();
    assert_eq!((&timed_out["exit_code"], &timed_out["timed_out"]), (&json!(124), &json!(true)), "{timed_out}");
    assert_eq!((&timed_out["stdout"], &timed_out["stderr"]), (&json!("before\n"), &json!("")), "{timed_out}");
    let stream = json!({"command": "printf x; exit 3", "stream": true, "exit_event": true});
    let stream = near.post(&format!("/sandboxes/{id}/exec"), stream).await;
    let lines: Vec<serde_json::Value> = stream
        .bytes
        .split(|b| *b == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect();
    assert_eq!(lines, [json!({"stream": "stdout", "data": "x"}), json!({"stream": "exit", "data": "3"})]);

    near.write(&id, "/workspace/a/file", "content").await;
    let large = vec![b'x'; 3_000_000];
    let put = near.request(reqwest::Method::PUT, &format!("/sandboxes/{id}/files/workspace/large"));
    assert!(put.body(large.clone()).send().await.unwrap().status().is_success());
    assert_eq!(near.get(&format!("/sandboxes/{id}/files?path=/workspace/large")).await.bytes, large);
    let part = near.request(reqwest::Method::GET, &format!("/sandboxes/{id}/files?path=/workspace/a/file"));
    let part = part.header("range", "bytes=3-100").send().await.unwrap();
    assert_eq!((part.status().as_u16(), part.headers()["content-range"].to_str().unwrap()), (206, "bytes 3-6/7"));
    assert_eq!(part.text().await.unwrap(), "tent");
    let moved = json!({"old_path": "/workspace/a/file", "new_path": "/workspace/b"});
    near.post(&format!("/sandboxes/{id}/files/move"), moved).await.ok();
    near.post(&format!("/sandboxes/{id}/files/chmod"), json!({"path": "/workspace/b", "mode": "600"})).await.ok();
    assert_eq!(near.get(&format!("/sandboxes/{id}/files/stat?path=/workspace/b")).await.ok()["mode"], "0600");
    let glob = near.get(&format!("/sandboxes/{id}/files/glob?pattern=/workspace/*")).await.ok();
    assert_eq!(glob, json!(["/workspace/a", "/workspace/b", "/workspace/large"]));
    near.delete(&format!("/sandboxes/{id}/files?path=/workspace/b")).await.ok();
    near.get(&format!("/sandboxes/{id}/files?path=/workspace/b")).await.refused(404, "not_found", "/workspace/b");
    near.exec(&id, "(sleep 0.7; echo from behind) & true").await;
    near.until("the line is on the console", async || {
        near.get(&format!("/sandboxes/{id}/logs")).await.ok() == json!(["from behind"])
    })
    .await;

    let before = there[0]["expires_at"].clone();
    near.post(&format!("/sandboxes/{id}/extend"), json!({"ttl": "3h"})).await.ok();
    assert_ne!(far.get("/sandboxes").await.ok()[0]["expires_at"], before, "the box over there lives longer too");

    near.delete(&format!("/sandboxes/{id}")).await.ok();
    assert_eq!(far.get("/sandboxes").await.ok(), json!([]));
    near.get(&format!("/sandboxes/{id}")).await.refused(404, "not_found", &id);
}

#[tokio::test]
async fn a_service_behind_is_shown_with_what_it_can_do() {
    let far = TestServer::start(NATIVE).await;
    let near = near(&far, "providers.custom.name=far-away providers.default=far-away").await;
    let detail = near.get("/providers/far-away").await.ok();
    let there = far.get("/providers/native").await.ok();
    assert_eq!((&detail["healthy"], &detail["default"]), (&json!(true), &json!(true)), "{detail}");
    assert_eq!(detail["config"]["runtime"], format!("remote:{}", there["config"]["runtime"].as_str().unwrap()));
    assert_eq!(detail["config"]["limits"], there["config"]["limits"]);
    let capabilities = |detail: &Value| detail["health"]["capabilities"].as_array().unwrap().clone();
    let mut passed_on = capabilities(&there);
    passed_on.retain(|capability| capability != "snapshots");
    assert_eq!(capabilities(&detail), passed_on, "all but snapshots, which are kept behind it");
    let id = near.spawn().await;
    assert_eq!(near.get(&format!("/sandboxes/{id}")).await.ok()["provider"], "far-away");
}

/// Starts a service with a self-signed certificate that requires a key. Returns its URL and the
/// files of certificate and key.
async fn guarded(dir: &std::path::Path) -> (TestServer, String, String, String) {
    const KEY: &str = "far-key-0123456789abcdef0123456789abcdef";
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let path = |name: &str| dir.join(name).display().to_string();
    for (name, content) in
        [("cert.pem", made.cert.pem()), ("key.pem", made.signing_key.serialize_pem()), ("api.key", format!("{KEY}\n"))]
    {
        std::fs::write(dir.join(name), content).unwrap();
    }
    let (cert, key) = (path("cert.pem"), path("key.pem"));
    let settings =
        format!("{MOCK} auth.enabled=true auth.api_key={KEY} server.tls.cert_file={cert} server.tls.key_file={key}");
    let far = TestServer::start(&settings).await;
    let url = far.url.replace("127.0.0.1", "localhost");
    (far, url, cert, path("api.key"))
}

#[tokio::test]
async fn a_service_behind_tls_and_a_key_is_used_with_both() {
    let dir = tempfile::tempdir().unwrap();
    let (far, url, cert, key) = guarded(dir.path()).await;
    let settings = format!(
        "providers.native.enabled=false providers.custom.enabled=true providers.default=custom \
         providers.custom.base_url={url} providers.custom.ca_file={cert}"
    );
    let near = TestServer::start(&format!("{settings} providers.custom.api_key_file={key}")).await;
    let id = near.spawn().await;
    assert_eq!(near.output(&id, "echo hello").await, "hello\n");
    near.delete(&format!("/sandboxes/{id}")).await.ok();

    // Without the key the service refuses, and the error says why.
    let keyless = TestServer::start(&settings).await;
    keyless.post("/sandboxes", json!({})).await.refused(503, "unavailable", "credentials");
    // Without the authority, the key is not sent to the server that answers.
    let trusting = settings.replace(&format!(" providers.custom.ca_file={cert}"), "");
    let trusting = TestServer::start(&format!("{trusting} providers.custom.api_key_file={key}")).await;
    trusting.post("/sandboxes", json!({})).await.refused(503, "unavailable", "certificate");
    for server in [&near, &keyless, &trusting, &far] {
        assert!(!server.log_text().contains("far-key-"), "the key is in a log");
    }
}

#[tokio::test]
async fn the_command_line_reaches_a_service_behind_tls_and_a_key() {
    let dir = tempfile::tempdir().unwrap();
    let (_far, url, cert, key) = guarded(dir.path()).await;
    let key = std::fs::read_to_string(key).unwrap();
    let list = async |ca_file: Option<&str>| {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tidebox"));
        command.args(["list", "--output", "json"]).env_clear().kill_on_drop(true);
        command.env("TIDEBOX_URL", &url).env("TIDEBOX_API_KEY", &key);
        command.envs(ca_file.map(|file| ("TIDEBOX_CA_FILE", file)));
        command.output().await.unwrap()
    };
    let listed = list(Some(&cert)).await;
    assert_eq!((listed.status.code(), String::from_utf8_lossy(&listed.stdout).trim()), (Some(0), "[]"), "{listed:?}");
    let refused = list(None).await;
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("certificate"), "{said}");
    let wrong = list(Some("/nonexistent/ca.pem")).await;
    assert_eq!(wrong.status.code(), Some(2));
}

#[tokio::test]
async fn sandboxes_of_another_service_outlive_a_crash_of_ours() {
    let far = TestServer::start(MOCK).await;
    let mut near = near(&far, "").await;
    let id = near.spawn().await;
    near.write(&id, "/workspace/kept", "kept").await;
    near.kill();
    near.launch().await;
    assert_eq!(near.output(&id, "cat /workspace/kept").await, "kept");
    near.delete(&format!("/sandboxes/{id}")).await.ok();
    assert_eq!(far.get("/sandboxes").await.ok(), json!([]));
}

#[tokio::test]
async fn a_sandbox_that_the_other_service_lost_is_gone_here_too() {
    let far = TestServer::start(MOCK).await;
    let near = near(&far, "").await;
    let id = near.spawn().await;
    let there = far.get("/sandboxes").await.ok()[0]["id"].as_str().unwrap().to_owned();
    far.delete(&format!("/sandboxes/{there}")).await.ok();
    let exec = near.post(&format!("/sandboxes/{id}/exec"), json!({"command": "true"})).await;
    exec.refused(404, "not_found", &id);
    near.until("the sandbox is destroyed", async || near.get(&format!("/sandboxes/{id}")).await.status == 404).await;
}

#[tokio::test]
async fn a_box_over_there_that_belongs_to_no_sandbox_is_removed() {
    let far = TestServer::start(MOCK).await;
    let near = near(&far, "").await;
    near.spawn().await;
    let mut orphan = far.get("/sandboxes").await.ok()[0]["metadata"].clone();
    orphan["tidebox.id"] = json!(id(7).as_str());
    let foreign = far.spawn_with(json!({"metadata": {"tidebox.id": id(8).as_str(), "tidebox.store": "another"}})).await;
    far.spawn_with(json!({"metadata": orphan})).await;
    far.until("the orphan is removed", async || far.get("/sandboxes").await.ok().as_array().unwrap().len() == 2).await;
    assert_eq!(far.get(&format!("/sandboxes/{foreign}")).await.ok()["state"], "running");
}

#[tokio::test]
async fn what_the_other_service_refuses_is_told_and_leaves_nothing() {
    let far = TestServer::start(&format!("{NATIVE} defaults.max_ttl=2h defaults.max_exec_timeout=5m")).await;
    let near = near(&far, "").await;
    near.post("/sandboxes", json!({"image": "no-such-image"})).await.refused(400, "bad_request", "tidebox image pull");
    // An hour is added to the lifetime, for the case that this server does not come back.
    near.post("/sandboxes", json!({"ttl": "90m"})).await.refused(429, "resource_limit", "2h0m0s");
    let id = near.spawn().await;
    let long = json!({"command": "true", "timeout": "6m"});
    near.post(&format!("/sandboxes/{id}/exec"), long).await.refused(429, "resource_limit", "5m0s");
    near.post(&format!("/sandboxes/{id}/extend"), json!({"ttl": "90m"})).await.refused(429, "resource_limit", "2h0m0s");
    let nowhere = json!({"command": "true", "workdir": "/no/such/place"});
    near.post(&format!("/sandboxes/{id}/exec"), nowhere).await.refused(400, "bad_request", "/no/such/place");
    near.delete(&format!("/sandboxes/{id}")).await.ok();
    assert_eq!(far.get("/sandboxes").await.ok(), json!([]));
}

#[tokio::test]
async fn a_service_that_went_away_is_unavailable_and_makes_the_provider_unhealthy() {
    let mut far = TestServer::start(MOCK).await;
    let near = near(&far, "").await;
    let id = near.spawn().await;
    far.kill();
    let exec = near.post(&format!("/sandboxes/{id}/exec"), json!({"command": "true"})).await;
    exec.refused(503, "unavailable", "cannot be reached");
    near.delete(&format!("/sandboxes/{id}")).await.refused(503, "unavailable", "cannot be reached");
    assert_eq!(near.post("/providers/test", json!({})).await.ok(), json!({"custom": false}));
    near.post("/sandboxes", json!({})).await.refused(503, "unavailable", "cannot be reached");
    // The row remains here, and the box would be removed once the other service is back.
    assert_eq!(near.get(&format!("/sandboxes/{id}")).await.ok()["state"], "destroying");
}

#[tokio::test]
async fn two_owners_of_boxes_on_one_service_leave_each_other_alone() {
    let far = TestServer::start(MOCK).await;
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
    assert_eq!(far.get("/sandboxes").await.ok().as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_start_that_the_other_service_refuses_leaves_nothing() {
    let far = TestServer::builder(MOCK).expecting("a request failed").start().await;
    let custom = open(&far.url, "ours");
    let failing = |label: &str| Spec { metadata: [(label.to_owned(), "1".to_owned())].into(), ..spec() };
    for (n, label) in [(1, "mock.start_fail"), (2, "mock.lose_reply")] {
        let failed = custom.start(&id(n), &failing(label)).await;
        assert!(matches!(failed, Err(Error::Failed { .. })), "{label}: {failed:?}");
        assert!(custom.inventory().await.unwrap().is_empty(), "{label}");
        assert_eq!(far.get("/sandboxes").await.ok(), json!([]), "{label}");
        custom.start(&id(n), &spec()).await.unwrap();
        custom.stop(&id(n)).await.unwrap();
    }
}

#[tokio::test]
async fn a_start_that_is_given_up_and_stopped_leaves_nothing_however_slow_it_is() {
    let far = TestServer::start(MOCK).await;
    let custom = open(&far.url, "ours");
    let slow = Spec { metadata: [("mock.start_delay".to_owned(), "5s".to_owned())].into(), ..spec() };
    let begun = std::time::Instant::now();
    assert!(tokio::time::timeout(Duration::from_millis(200), custom.start(&id(1), &slow)).await.is_err());
    custom.stop(&id(1)).await.unwrap();
    assert!(custom.inventory().await.unwrap().is_empty());
    assert_eq!(far.get("/sandboxes").await.ok(), json!([]));
    // It did not wait for the abandoned start for longer than that took.
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn a_binary_stdin_and_a_file_at_an_odd_path_arrive_as_they_are() {
    let far = TestServer::start(NATIVE).await;
    let custom = open(&far.url, "ours");
    custom.start(&id(1), &spec()).await.unwrap();
    let guest = custom.guest(&id(1)).await.unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let content = |bytes: Vec<u8>| futures_util::StreamExt::boxed(futures_util::stream::iter([Ok(bytes.into())]));
    let command = Command {
        argv: vec!["cat".to_owned()],
        env: Default::default(),
        workdir: None,
        user: None,
        timeout: Duration::from_secs(30),
        stdin: Some(content(bytes.clone())),
        terminal: None,
    };
    let mut output = guest.exec(command).await.unwrap();
    let mut read = Vec::new();
    while let Some(event) = futures_util::StreamExt::next(&mut output).await {
        if let OutputEvent::Stdout(piece) = event.unwrap() {
            read.extend_from_slice(&piece);
        }
    }
    assert!(read == bytes);
    // A large file gets its mode as well.
    let large = vec![7; 2_000_000];
    guest.write_file("/workspace/large", Some(0o600), content(large.clone())).await.unwrap();
    let info = guest.read_file("/workspace/large", 5, Some(0)).await.unwrap().info;
    assert_eq!((info.size, info.mode, info.name.as_str()), (2_000_000, 0o600, "large"));
    assert_eq!(info.modified, guest.stat("/workspace/large").await.unwrap().modified);
    custom.stop(&id(1)).await.unwrap();
}

/// Returns the id that the other service gives to a box of this one.
async fn remote_id(url: &str, id: &SandboxId) -> String {
    let client = client::Client::new(url, None, None).unwrap();
    let all = client.list().await.unwrap();
    let found = all.iter().find(|sandbox| sandbox.metadata.0.get("tidebox.id").is_some_and(|it| it == id.as_str()));
    found.unwrap_or_else(|| panic!("{id} is not there")).id.clone()
}
