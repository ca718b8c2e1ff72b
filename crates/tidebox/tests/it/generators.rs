//! The description of the API under tools that others wrote: a validator, a linter, and generators of
//! clients. What the generators make must pass a strict type checker, and drive the service.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use fixtures::found;
use tokio::process::Command;

use crate::programs::installed;
use crate::server::{MOCK, TestServer};

const API_KEY: &str = "an-api-key-that-only-this-test-knows-0123";

/// Returns the description as committed, which the contract test holds equal to the served one.
fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json").canonicalize().unwrap()
}

/// Returns a file of `.ci/openapi`.
fn settings(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/openapi").join(name)
}

/// Finds a program in Python where `.ci/run` puts it.
fn of_python(name: &str) -> Option<PathBuf> {
    found(name, &[installed("venv").join("bin").join(name)])
}

/// Finds a program for Node.js where `.ci/run` puts it.
fn of_node(name: &str) -> Option<PathBuf> {
    found(name, &[installed("openapi").join("node_modules/.bin").join(name)])
}

/// Runs a command that must succeed, and returns its output.
async fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{text}");
    text
}

#[tokio::test]
async fn the_description_is_valid_openapi() {
    let Some(validator) = of_python("openapi-spec-validator") else { return };
    let said = run(Command::new(validator).arg(document())).await;
    assert!(said.contains("OK"), "{said}");
}

#[tokio::test]
async fn a_linter_finds_nothing_in_the_description() {
    let Some(redocly) = of_node("redocly") else { return };
    let said = run(Command::new(redocly)
        .env("REDOCLY_TELEMETRY", "off")
        .env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true")
        .arg("lint")
        .arg("--max-problems=20")
        .arg("--config")
        .arg(settings("redocly.yaml"))
        .arg(document()))
    .await;
    assert!(said.contains("is valid") && !said.contains("You have"), "a warning is a finding: {said}");
}

#[tokio::test]
async fn a_generated_client_in_python_is_typed_and_works() {
    let (Some(generator), Some(mypy)) = (of_python("openapi-python-client"), of_python("mypy")) else { return };
    let folder = tempfile::tempdir().unwrap();
    let said = run(Command::new(&generator)
        .current_dir(folder.path())
        .args(["generate", "--meta", "none", "--output-path", "tidebox_api"])
        .arg("--path")
        .arg(document())
        .arg("--config")
        .arg(settings("python-client.yaml")))
    .await;
    // It has nothing for streams, and takes all else.
    let streams = said.matches("(Unsupported content_type application/x-ndjson)").count();
    let streams = streams + said.matches("(Unsupported content_type text/event-stream)").count();
    assert_eq!(said.matches("WARNING").count(), streams, "{said}");
    std::fs::copy(settings("main.py"), folder.path().join("main.py")).unwrap();
    let said = run(Command::new(mypy)
        .current_dir(folder.path())
        .arg("--config-file")
        .arg(settings("mypy.ini"))
        .args(["tidebox_api", "main.py"]))
    .await;
    assert!(said.contains("no issues found in 3"), "hundreds of files are checked: {said}");
    let server = TestServer::builder(MOCK).key(API_KEY).start().await;
    let python = generator.with_file_name("python");
    let said = run(Command::new(python).current_dir(folder.path()).args(["main.py", &server.url, API_KEY])).await;
    assert!(said.contains("+00:00"), "a time is read as such: {said}");
}

#[tokio::test]
async fn generated_types_in_typescript_are_strict_and_work() {
    let (Some(generator), Some(compiler)) = (of_node("openapi-typescript"), of_node("tsc")) else { return };
    let folder = tempfile::tempdir().unwrap();
    for name in ["main.ts", "package.json", "redocly.yaml", "tsconfig.json"] {
        std::fs::copy(settings(name), folder.path().join(name)).unwrap();
    }
    std::os::unix::fs::symlink(installed("openapi").join("node_modules"), folder.path().join("node_modules")).unwrap();
    let types = folder.path().join("api.d.ts");
    run(Command::new(generator).current_dir(folder.path()).arg(document()).arg("--output").arg(types)).await;
    run(Command::new(compiler).current_dir(folder.path()).args(["--project", "tsconfig.json"])).await;
    let server = TestServer::builder(MOCK).key(API_KEY).start().await;
    let said = run(Command::new("node").current_dir(folder.path()).args(["main.js", &server.url, API_KEY])).await;
    assert!(said.starts_with("20"), "{said}");
}
