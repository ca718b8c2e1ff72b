//! Contexts that are there with their state when a sandbox runs.

use serde_json::{Value, json};

use super::run;
use crate::server::{NATIVE, TestServer};

fn code(text: &str) -> Value {
    json!({"command": text, "language": "python"})
}

#[tokio::test]
async fn code_of_prepare_runs_before_the_sandbox_does_and_its_state_is_there() {
    let server = TestServer::start(NATIVE).await;
    let prepare = json!([code("import json\nx = 40"), {"command": "touch /tmp/there"}, code("x += 1")]);
    let id = server.spawn_with(json!({"prepare": prepare})).await;
    let listed = server.get(&format!("/sandboxes/{id}/contexts")).await.ok();
    assert_eq!(
        (&listed[0]["id"], &listed[0]["state"], listed.as_array().unwrap().len()),
        (&json!("python"), &json!("idle"), 1)
    );
    let next = run(&server, &id, "python", "json.dumps(x + 1)").await;
    assert_eq!(next.value(), "'42'");
    assert_eq!(next.first("started")["execution_count"], 3);
}

#[tokio::test]
async fn code_of_prepare_that_fails_or_cannot_be_so_is_told() {
    let server = TestServer::start(NATIVE).await;
    for (command, words) in [
        (code("1 / 0"), "command 2 of `prepare` (`1 / 0`) exited with status 1: ZeroDivisionError: division by zero"),
        (code("import os; os._exit(3)"), "the interpreter ended with exit code 3"),
        (
            json!({"command": "while True: pass", "language": "python", "timeout": "300ms"}),
            "did not end before its deadline",
        ),
        (json!({"command": "x", "language": "r", "env": {"PATH": "/nowhere"}}), "`Rscript`"),
        (json!({"command": "x", "language": "python", "args": ["y"]}), "`args`"),
        (json!({"command": "x", "language": "python", "mode": "argv"}), "`mode`"),
        (json!({"command": "x", "language": "python", "background": true}), "`background`"),
        (json!({"command": "x", "language": "cobol"}), "unknown variant `cobol`"),
    ] {
        let answer = server.post("/sandboxes", json!({"prepare": [{"command": "true"}, command]})).await;
        answer.refused(400, "bad_request", words);
    }
}

#[tokio::test]
async fn a_box_of_the_warm_pool_has_its_context_and_so_the_first_run_is_fast() {
    let settings = format!("{NATIVE} warm_pool.a.template=py warm_pool.a.count=1");
    let server = TestServer::start(&settings).await;
    let template = json!({"name": "py", "prepare": [code("import json, decimal\nready = True")]});
    server.post("/templates", template.clone()).await.ok();
    assert_eq!(server.get("/templates/py").await.ok()["prepare"][0]["language"], "python");
    server.until("a box is ready", async || server.get("/diagnostics").await.ok()["warm_pool"][0]["ready"] == 1).await;
    let id = server.spawn_with(json!({"template": "py"})).await;
    let first = run(&server, &id, "python", "ready").await;
    assert_eq!(first.value(), "True");
    assert_eq!(first.first("started")["execution_count"], 2);
    assert_eq!(server.get("/diagnostics").await.ok()["warm_pool"][0]["hits_total"], 1);
}
