//! Resources that sandboxes use, over the API and on the command line.

use std::io::Read;
use std::process::Stdio;

use futures_util::StreamExt;
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::cli::tidebox;
use crate::server::{Answer, MOCK, NATIVE, PATIENCE, TestServer};

/// Work that takes a processor for some tenths of a second.
const WORK: &str = "x=0; while [ $x -lt 200000 ]; do x=$((x+1)); done";

async fn stats(server: &TestServer, id: &str) -> Value {
    server.get(&format!("/sandboxes/{id}/stats")).await.ok()
}

#[tokio::test]
async fn a_sandbox_shows_what_it_uses_and_its_limits() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn_with(json!({"memory_mb": 128, "vcpus": 2})).await;
    let first = stats(&server, &id).await;
    assert_eq!((&first["sandbox_id"], &first["provider"]), (&json!(id), &json!("native")));
    assert_eq!(first["memory"]["limit_bytes"], 128 << 20);
    assert_eq!(first["cpu"]["limit"], 2);
    assert_eq!(first["disk"]["limit_bytes"], Value::Null, "no limit was asked for");
    assert_eq!(first["egress"], json!({"sent_bytes": 0, "received_bytes": 0}));
    assert!(first["processes"]["count"].as_u64().unwrap() > 0, "{first}");
    server.exec(&id, WORK).await;
    server.output(&id, "head -c 5000000 /dev/zero > /workspace/five").await;
    let second = stats(&server, &id).await;
    let used = |of: &Value| of["cpu"]["used_ms"].as_u64().unwrap();
    assert!(used(&second) >= used(&first) + 50, "{first} {second}");
    assert!(second["uptime_ms"].as_u64() > first["uptime_ms"].as_u64());
    let (share, of_limit) =
        (second["cpu"]["share"].as_f64().unwrap(), second["cpu"]["share_of_limit"].as_f64().unwrap());
    assert!(share > 0.0 && (share / 2.0 - of_limit).abs() < 0.001, "{second}");
}

#[tokio::test]
async fn the_disk_of_a_sandbox_is_measured_where_its_files_lie_on_one() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    server.output(&id, "head -c 5000000 /dev/zero > /workspace/five").await;
    let lies_there = server.data_dir().join(format!("native/boxes/{id}/layers")).exists();
    let disk = stats(&server, &id).await["disk"]["used_bytes"].as_u64();
    assert_eq!(disk.is_some(), lies_there);
    assert!(disk.is_none_or(|bytes| (5_000_000..50_000_000).contains(&bytes)), "{disk:?}");
    server.output(&id, "head -c 9000000 /dev/zero > /workspace/nine").await;
    assert_eq!(stats(&server, &id).await["disk"]["used_bytes"].as_u64(), disk, "it is not measured again at once");
}

#[tokio::test]
async fn what_a_provider_cannot_measure_is_null_and_not_zero() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn_with(json!({"disk_mb": 64})).await;
    let stats = stats(&server, &id).await;
    assert_eq!(
        stats["cpu"],
        json!({"used_ms": null, "share": null, "share_of_limit": null, "window_ms": null, "limit": null})
    );
    assert_eq!(stats["memory"], json!({"used_bytes": null, "peak_bytes": null, "limit_bytes": null}));
    assert_eq!(stats["processes"], json!({"count": null, "limit": null}));
    assert_eq!(stats["disk"], json!({"used_bytes": null, "limit_bytes": null}), "mock holds no limit");
}

#[tokio::test]
async fn one_call_has_all_running_sandboxes_that_fit_the_newest_first() {
    let server = TestServer::start(MOCK).await;
    let mut ids = Vec::new();
    for n in 0..150 {
        ids.push(
            server.spawn_with(json!({"owner_id": format!("o{}", n % 2), "metadata": {"n": (n % 3).to_string()}})).await,
        );
    }
    ids.reverse();
    let listed = async |query: &str| -> Vec<String> {
        let all = server.get(&format!("/sandboxes/stats{query}")).await.ok();
        all.as_array().unwrap().iter().map(|stats| stats["sandbox_id"].as_str().unwrap().to_owned()).collect()
    };
    let all = listed("").await;
    assert_eq!(all.len(), 150);
    let (mut sorted, mut expected) = (all, ids.clone());
    sorted.sort();
    expected.sort();
    assert_eq!(sorted, expected);
    assert_eq!(listed("?owner_id=o1").await.len(), 75);
    assert_eq!(listed("?metadata.n=2&owner_id=o0").await.len(), 25);
    assert_eq!(listed("?provider=native").await, Vec::<String>::new());
    server.delete(&format!("/sandboxes/{}", ids[0])).await.ok();
    assert_eq!(listed("").await.len(), 149);
    for query in ["?state=running", "?limit=3", "?cursor=x", "?nonsense=1", "?owner_id=a&owner_id=b"] {
        server.get(&format!("/sandboxes/stats{query}")).await.refused(400, "bad_request", "the query");
    }
}

#[tokio::test]
async fn a_stream_has_an_event_each_second_until_the_sandbox_ends() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let answer = server.request(Method::GET, &format!("/sandboxes/{id}/stats?stream=true")).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut pieces = answer.bytes_stream();
    let mut text = String::new();
    let ended = tokio::time::timeout(PATIENCE, async {
        while let Some(piece) = pieces.next().await {
            text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
            if text.matches("event: stats\n").count() == 3 {
                server.delete(&format!("/sandboxes/{id}")).await.ok();
            }
        }
    });
    ended.await.expect("the stream ends with the sandbox");
    let events: Vec<Value> = text
        .split_terminator("\n\n")
        .map(|event| serde_json::from_str(event.strip_prefix("event: stats\ndata: ").unwrap()).unwrap())
        .collect();
    assert!(events.len() >= 3, "{text}");
    let uptime = |at: usize| events[at]["uptime_ms"].as_u64().unwrap();
    assert!(uptime(2) >= uptime(0) + 2000, "{text}");
}

#[tokio::test]
async fn a_stream_ends_when_the_server_stops() {
    let mut server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    let answer = server.request(Method::GET, &format!("/sandboxes/{id}/stats?stream=true")).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(server.terminate(), Some(0));
}

#[tokio::test]
async fn only_a_sandbox_that_runs_has_statistics() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    server.get(&format!("/sandboxes/{id}/stats?stream=maybe")).await.refused(400, "bad_request", "stream");
    server.get(&format!("/sandboxes/{id}/stats?every=1")).await.refused(400, "bad_request", "every");
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    server.get(&format!("/sandboxes/{id}/stats")).await.refused(404, "not_found", "");
    server.get("/sandboxes/sb-aaaaaaaaaaaaaaaa/stats?stream=true").await.refused(404, "not_found", "");
}

#[tokio::test]
async fn prometheus_has_sums_and_series_of_sandboxes_only_where_asked_for() {
    let mut server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    server.exec(&id, WORK).await;
    let text =
        async |server: &TestServer| String::from_utf8(server.get("/metrics/prometheus").await.bytes.to_vec()).unwrap();
    let sums = text(&server).await;
    assert!(sums.contains("tidebox_sandboxes_measured{provider=\"native\"} 1\n"), "{sums}");
    let memory =
        sums.lines().find_map(|line| line.strip_prefix("tidebox_sandboxes_memory_bytes{provider=\"native\"} "));
    assert!(memory.unwrap().parse::<f64>().unwrap() > 0.0);
    assert!(!sums.contains(&id), "{sums}");
    server.terminate();
    server.set("metrics.per_sandbox", "true");
    server.launch().await;
    let each = text(&server).await;
    let line = |name: &str| each.lines().any(|line| line.starts_with(&format!("{name}{{sandbox=\"{id}\"")));
    for name in [
        "tidebox_sandbox_cpu_seconds_total",
        "tidebox_sandbox_memory_bytes",
        "tidebox_sandbox_processes",
        "tidebox_sandbox_egress_bytes_total",
    ] {
        assert!(line(name), "{name}: {each}");
    }
}

#[tokio::test]
async fn the_command_line_shows_one_sandbox_and_all_of_them() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    tokio::task::spawn_blocking(move || {
        let shown = |arguments: &[&str]| {
            let output = tidebox(&server, arguments, b"");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let one = shown(&["stats", &id]);
        assert!(one.contains(&id) && one.contains("memory peak") && one.contains(" of "), "{one}");
        // Its output is no terminal.
        let all = shown(&["top"]);
        assert!(all.starts_with("ID ") && all.contains(&id) && !all.contains('\x1b'), "{all:?}");
        let json: Value = serde_json::from_str(&shown(&["--output", "json", "top", "--once"])).unwrap();
        assert_eq!(json[0]["sandbox_id"], json!(id));
        assert!(shown(&["top", "--provider", "mock"]).starts_with("ID "));
        let unknown = tidebox(&server, &["stats", "sb-aaaaaaaaaaaaaaaa"], b"");
        assert_eq!(unknown.status.code(), Some(1));
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn top_draws_on_a_terminal_and_leaves_its_modes_alone() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    tokio::task::spawn_blocking(move || draw(&server, &id)).await.unwrap();
}

/// Runs `tidebox top` on a terminal until it has drawn three times, and ends it as Ctrl-C does.
fn draw(server: &TestServer, id: &str) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let path = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    tcsetwinsize(&master, Winsize { ws_row: 10, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let open = || std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let modes = || format!("{:?}", tcgetattr(&master).unwrap());
    let before = modes();
    // Where the tests run in the background, an interrupt is ignored, and stays so.
    let mut child = std::process::Command::new("/usr/bin/env")
        .args(["--default-signal=INT", env!("CARGO_BIN_EXE_tidebox"), "top"])
        .env_clear()
        .env("TIDEBOX_URL", &server.url)
        .stdin(open())
        .stdout(open())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut reader = std::fs::File::from(master.try_clone().unwrap());
    let (mut text, mut piece) = (String::new(), [0; 4096]);
    while text.matches(id).count() < 3 {
        let count = reader.read(&mut piece).unwrap();
        text.push_str(std::str::from_utf8(&piece[..count]).unwrap());
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(text.contains("\x1b[3A\x1b[J"), "a screen is drawn over the one before: {text:?}");
    assert!(!text.contains("\x1b[?"), "no mode is set: {text:?}");
    assert_eq!(modes(), before);
}

#[tokio::test]
async fn another_service_passes_statistics_on() {
    let far = TestServer::start(NATIVE).await;
    let settings = format!(
        "providers.native.enabled=false providers.custom.enabled=true providers.custom.base_url={} providers.default=custom",
        far.url.trim_end_matches("/api/v1")
    );
    let near = TestServer::start(&settings).await;
    let (one, two) = (near.spawn().await, near.spawn().await);
    near.exec(&one, WORK).await;
    let stats = stats(&near, &one).await;
    assert!(stats["cpu"]["used_ms"].as_u64().unwrap() >= 50, "{stats}");
    assert!(stats["memory"]["used_bytes"].as_u64().unwrap() > 0, "{stats}");
    assert_eq!(stats["egress"], json!({"sent_bytes": 0, "received_bytes": 0}), "as the other service says");
    let all = near.get("/sandboxes/stats").await.ok();
    for id in [&one, &two] {
        let of = all.as_array().unwrap().iter().find(|stats| stats["sandbox_id"] == json!(id)).unwrap();
        assert!(of["memory"]["used_bytes"].as_u64().unwrap() > 0, "{of}");
        assert_eq!(of["provider"], "custom");
    }
}

#[tokio::test]
async fn a_user_of_a_shared_box_sees_the_numbers_of_the_own_slot() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let server = TestServer::start(&format!("{NATIVE} pool.enabled=true")).await;
    let send = async |user: &str, method: Method, path: &str, body: Value| -> Value {
        let request = server.request(method, path).header("X-User-ID", user).json(&body);
        Answer::read(request.send().await.unwrap()).await.ok()
    };
    let spawn = async |user: &str| {
        let request = server.request(Method::POST, "/sandboxes").header("X-User-ID", user).json(&json!({}));
        Answer::read(request.send().await.unwrap()).await.json()["id"].as_str().unwrap().to_owned()
    };
    let (alice, bob) = (spawn("alice").await, spawn("bob").await);
    send("alice", Method::POST, &format!("/sandboxes/{alice}/exec"), json!({"command": WORK})).await;
    let used = async |user: &str, id: &str| {
        let stats = send(user, Method::GET, &format!("/sandboxes/{id}/stats"), json!({})).await;
        stats["cpu"]["used_ms"].as_u64().unwrap()
    };
    let (busy, idle) = (used("alice", &alice).await, used("bob", &bob).await);
    assert!(busy >= idle + 50, "{busy} {idle}");
    let own = send("alice", Method::GET, "/sandboxes/stats", json!({})).await;
    assert_eq!(own.as_array().unwrap().len(), 1, "{own}");
    assert_eq!(own[0]["sandbox_id"], json!(alice));
    for (user, id) in [("alice", &alice), ("bob", &bob)] {
        send(user, Method::DELETE, &format!("/sandboxes/{id}"), json!({})).await;
    }
}
