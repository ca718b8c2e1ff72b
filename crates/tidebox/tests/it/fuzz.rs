//! The description of the API against the API: Schemathesis makes good and bad requests from it,
//! and finds every disagreement between the two.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::programs::installed;
use crate::server::{MOCK, TestServer};
use fixtures::found;

/// Cases per route and phase; enough for each parameter. A run of all phases takes two minutes of a processor,
/// nearly all of it Python's.
const EXAMPLES: &str = "20";

/// Suite of the cases that are made up by chance, and of those that are sent without keys.
const SUITE: &str = "fuzz";

/// Phases of which the cases are those of the description.
const DESCRIBED: &str = "examples,coverage,stateful";
/// Phases with cases that are made up by chance, the same in every run.
const ALL: &str = "examples,coverage,fuzzing,stateful";

/// Setting by which made-up images are not requested from any registry.
const NO_REGISTRY: &str = "images.allowed_registries=127.0.0.1:1";

const API_KEY: &str = "an-api-key-that-only-this-test-knows-0123";
const ADMIN_KEY: &str = "an-admin-key-that-only-this-test-knows-01";

/// Finds the program where `.ci/run` puts it, else in `PATH`.
fn schemathesis() -> Option<PathBuf> {
    found("schemathesis", &[installed("venv").join("bin/schemathesis")])
}

/// Runs every check on every route; returns the output and the exit status.
async fn fuzz(server: &TestServer, phases: &str, headers: &[(&str, &str)]) -> Option<Output> {
    let program = schemathesis()?;
    let settings = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci");
    // State kept between runs must not change the next one.
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(program);
    command
        .current_dir(folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SCHEMATHESIS_HOOKS", settings.join("schemathesis_hooks.py"))
        .arg("--config-file")
        .arg(settings.join("schemathesis.toml"))
        .arg("run")
        .args(["--checks", "all", "--phases", phases])
        .args(["--seed", "7", "--max-examples", EXAMPLES, "--no-color"])
        .arg(format!("{}/api/v1/openapi.json", server.url));
    for (name, value) in headers {
        command.arg("--header").arg(format!("{name}: {value}"));
    }
    Some(tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap())
}

#[track_caller]
fn finds_nothing(output: &Output) {
    let report = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}\n{errors}");
    // Guards against a run that finds nothing because it asked nothing.
    let count = |before: &str, after: &str| -> u64 {
        let (_, rest) = report.split_once(before).unwrap_or_else(|| panic!("no `{before}` in\n{report}"));
        rest.split_once(after).and_then(|(number, _)| number.trim().parse().ok()).unwrap_or(0)
    };
    assert!(count("Tested:", "\n") >= 35, "{report}");
    assert!(count("Test cases:\n", "generated") >= 1000, "{report}");
}

#[tokio::test]
async fn schemathesis_finds_nothing_with_auth_off() {
    if !fixtures::runs_here(SUITE) {
        return;
    }
    let server = TestServer::start(&format!("{MOCK} {NO_REGISTRY}")).await;
    let Some(output) = fuzz(&server, DESCRIBED, &[]).await else { return };
    finds_nothing(&output);
}

#[tokio::test]
async fn schemathesis_finds_nothing_with_auth_on() {
    let settings = format!("{MOCK} {NO_REGISTRY} auth.admin_api_key={ADMIN_KEY}");
    let server = TestServer::builder(&settings).key(API_KEY).start().await;
    let keys = [("X-API-Key", API_KEY), ("X-Admin-API-Key", ADMIN_KEY)];
    let phases = if fixtures::runs_whole(SUITE) { ALL } else { DESCRIBED };
    let Some(output) = fuzz(&server, phases, &keys).await else { return };
    finds_nothing(&output);
}
