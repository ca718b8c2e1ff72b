//! One scenario, the same on every runtime: images are pulled, sandboxes made of them by template,
//! used, kept through a crash, used again, destroyed.

use std::fmt::Write as _;
use std::path::PathBuf;

use fixtures::image::Image;
use fixtures::registry::Registry;
use fixtures::{Engine, found};
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{MOCK, NATIVE, TestServer};

/// A runtime for the scenario.
struct Runtime {
    settings: String,
    /// True if boxes hold what their image holds, and outlive the server.
    is_real: bool,
    /// True if there is time for Debian's files. An emulated processor takes minutes to boot from them.
    has_debian: bool,
    engine: Option<Engine>,
}

impl Runtime {
    /// Starts a Docker Engine for the test, with this OCI runtime.
    fn docker(runtime: &str) -> Option<Runtime> {
        let engine = Engine::start()?;
        let mut settings =
            "providers.native.enabled=false providers.docker.enabled=true providers.default=docker".to_owned();
        let _ = write!(settings, " providers.docker.socket={}", engine.socket().display());
        let _ = write!(settings, " providers.docker.runtime={runtime}");
        Some(Runtime { engine: Some(engine), ..Runtime::real(settings) })
    }

    fn real(settings: String) -> Runtime {
        Runtime { settings, is_real: true, has_debian: true, engine: None }
    }

    /// Makes virtual machines with the Firecracker that `FIRECRACKER_BIN` names, of the newest installed kernel.
    fn firecracker() -> Option<Runtime> {
        let skip = |reason: &str| fixtures::skip("firecracker", reason);
        let Some(binary) = std::env::var_os("FIRECRACKER_BIN").map(PathBuf::from) else {
            skip("FIRECRACKER_BIN names no Firecracker");
            return None;
        };
        let Some(kernel) = firecracker::guest_kernel::newest_installed().unwrap() else {
            skip("no kernel is installed");
            return None;
        };
        let settings = format!(
            "providers.native.enabled=false providers.firecracker.enabled=true providers.default=firecracker \
             providers.firecracker.binary={} providers.firecracker.jailer.binary={} providers.firecracker.kernel={} \
             providers.firecracker.boot_timeout=4m",
            binary.display(),
            binary.with_file_name("jailer").display(),
            kernel.display()
        );
        Some(Runtime { has_debian: false, ..Runtime::real(settings) })
    }
}

/// An image of the scenario: its template, its name, and the name in its `os-release`.
type ScenarioImage = (&'static str, String, &'static str);

/// Starts a registry with the images.
fn images(has_debian: bool) -> Option<(Registry, Vec<ScenarioImage>)> {
    let alpine = Image::alpine_like()?;
    let debian = if has_debian { Some(Image::debian_like()?) } else { None };
    let registry = Registry::start()?;
    let push = |image: Image, path: &str, repository: &str, tag: &str| {
        registry.push(&image.with("Env", json!(["GREETING=hello", path])), repository, tag)
    };
    let mut images = vec![("small", push(alpine, "PATH=/bin:/usr/bin", "team/alpine", "3"), "Alpine")];
    images.extend(debian.map(|debian| ("large", push(debian, "PATH=/usr/bin:/bin", "debian", "stable"), "Debian")));
    Some((registry, images))
}

/// Returns the contents of a stream: stdout, stderr, and the exit code.
fn heard(lines: &[u8]) -> (String, String, String) {
    let (mut out, mut err, mut exit) = (String::new(), String::new(), String::new());
    for line in std::str::from_utf8(lines).unwrap().lines() {
        let chunk: Value = serde_json::from_str(line).unwrap();
        let data = chunk["data"].as_str().unwrap();
        match chunk["stream"].as_str().unwrap() {
            "stdout" => out.push_str(data),
            "stderr" => err.push_str(data),
            _ => exit.push_str(data),
        }
    }
    (out, err, exit)
}

async fn is_used(server: &TestServer, id: &str, turn: &str) {
    let result = server.exec(id, &format!("echo {turn}; echo wrong >&2; exit 3")).await;
    assert_eq!((&result["stdout"], &result["stderr"]), (&json!(format!("{turn}\n")), &json!("wrong\n")), "{result}");
    assert_eq!(result["exit_code"], 3, "{result}");

    let command = json!({"command": "echo one; echo two >&2; exit 4", "stream": true, "exit_event": true});
    let streamed = server.post(&format!("/sandboxes/{id}/exec"), command).await;
    assert_eq!(heard(&streamed.bytes), ("one\n".to_owned(), "two\n".to_owned(), "4".to_owned()));

    let (path, content) = (format!("/workspace/{turn}/notes.txt"), format!("of {turn}\n"));
    server.write(id, &path, &content).await;
    assert_eq!(server.output(id, &format!("cat {path}")).await, content);
    let listed = server.get(&format!("/sandboxes/{id}/files/list?path=/workspace/{turn}")).await.ok();
    assert_eq!((&listed[0]["name"], &listed[0]["size"]), (&json!("notes.txt"), &json!(content.len())), "{listed}");
    let read = server.request(Method::GET, &format!("/sandboxes/{id}/files?path={path}")).send().await.unwrap();
    assert_eq!(read.text().await.unwrap(), content);
}

async fn run_on(runtime: Runtime) {
    let Some((_registry, images)) = images(runtime.has_debian) else { return };
    let mut server = TestServer::start(&format!("{} images.pull=missing", runtime.settings)).await;
    let mut made = Vec::new();
    for (template, image, system) in &images {
        server.post("/templates", json!({"name": template, "image": image, "ttl": "20m"})).await.ok();
        let spawned = server.post(&format!("/templates/{template}/spawn"), json!({})).await;
        assert_eq!(spawned.status, 201, "{}", spawned.json());
        let sandbox = spawned.json();
        assert_eq!((&sandbox["image"], &sandbox["state"]), (&json!(image), &json!("running")), "{sandbox}");
        let id = sandbox["id"].as_str().unwrap().to_owned();
        if runtime.is_real {
            let seen = server.output(&id, "grep ^NAME /etc/os-release; echo $GREETING").await;
            assert!(seen.contains(system) && seen.ends_with("hello\n"), "{seen}");
            server.exec(&id, "(while :; do date > /workspace/beat; sleep 0.1; done) >/dev/null 2>&1 &").await;
        }
        is_used(&server, &id, "first").await;
        made.push(id);
    }

    server.kill();
    server.launch().await;
    for id in &made {
        if runtime.is_real {
            assert_eq!(server.output(id, "cat /workspace/first/notes.txt").await, "of first\n");
            // Commands survive the crash.
            server.output(id, "rm /workspace/beat").await;
            server
                .until("the loop goes on", async || server.exec(id, "cat /workspace/beat").await["exit_code"] == 0)
                .await;
        } else {
            // Boxes in memory end with their process, and the server reports it.
            server
                .until("the box is given up", async || server.get(&format!("/sandboxes/{id}")).await.status == 404)
                .await;
        }
    }
    if !runtime.is_real {
        made = vec![server.spawn_with(json!({"template": "small"})).await];
    }
    for id in &made {
        is_used(&server, id, "second").await;
    }
    for id in &made {
        server.delete(&format!("/sandboxes/{id}")).await.ok();
        server.get(&format!("/sandboxes/{id}")).await.refused(404, "not_found", id);
    }
    if let Some(engine) = &runtime.engine {
        let listed = |path: &str| serde_json::from_slice::<Value>(&engine.api("GET", path, b"").1).unwrap();
        assert_eq!(listed("/containers/json?all=1"), json!([]), "a container is left");
    }
    // The server's fixture checks for everything else that may be left.
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_story_is_true_on_native() {
    run_on(Runtime::real(NATIVE.to_owned())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_story_is_true_on_docker_with_runc() {
    if let Some(runtime) = Runtime::docker("runc") {
        run_on(runtime).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_story_is_true_on_docker_with_runsc() {
    if !fixtures::runs_here("docker-runsc") || found("runsc", &[]).is_none() {
        return;
    }
    if let Some(runtime) = Runtime::docker("runsc") {
        run_on(runtime).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_story_is_true_on_proot() {
    if found("proot", &[]).is_none() {
        return;
    }
    let settings = "providers.native.enabled=false providers.proot.enabled=true providers.default=proot";
    run_on(Runtime::real(settings.to_owned())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_story_is_true_on_mock() {
    run_on(Runtime { is_real: false, ..Runtime::real(MOCK.to_owned()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_story_is_true_on_firecracker() {
    if let Some(runtime) = Runtime::firecracker() {
        run_on(runtime).await;
    }
}
