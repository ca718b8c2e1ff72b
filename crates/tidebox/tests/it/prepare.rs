//! Commands that run before a sandbox counts as running, also in boxes that are kept ready.

use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::egress::TestHost;
use crate::pause::is_frozen;
use crate::server::{MOCK, NATIVE, TestServer};

async fn spawn(server: &TestServer, prepare: Value) -> String {
    server.spawn_with(json!({"prepare": prepare})).await
}

#[tokio::test]
async fn a_sandbox_runs_its_commands_before_it_is_running() {
    let server = TestServer::start(NATIVE).await;
    let prepare = json!([
        {"command": "mkdir /workspace/made && echo $NAME > /workspace/made/name", "env": {"NAME": "anna"}},
        {"command": "cp", "args": ["name", "it's"], "mode": "argv", "workdir": "/workspace/made", "timeout": "5s"},
        {"command": "while read line; do echo got $line; done", "background": true, "name": "loop", "stdin_open": true},
    ]);
    let template = server.post("/templates", json!({"name": "py", "prepare": prepare})).await.ok();
    let mut expected = prepare.clone();
    for (command, mode) in expected.as_array_mut().unwrap().iter_mut().zip(["shell", "argv", "shell"]) {
        command["mode"] = json!(mode);
    }
    assert_eq!(template["prepare"], expected);
    assert_eq!(server.get("/templates/py").await.ok()["prepare"], expected);

    let answer = server.post("/templates/py/spawn", json!({})).await;
    assert_eq!(answer.status, 201, "{}", answer.json());
    assert!(answer.headers["server-timing"].to_str().unwrap().contains("prepare;dur="), "{:?}", answer.headers);
    let id = answer.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(server.output(&id, "cat /workspace/made/it*").await, "anna\n");
    let processes = server.get(&format!("/sandboxes/{id}/processes")).await.ok();
    assert_eq!((&processes[0]["name"], &processes[0]["state"]), (&json!("loop"), &json!("running")), "{processes}");

    let own = server.spawn_with(json!({"template": "py", "prepare": []})).await;
    assert_eq!(server.output(&own, "ls /workspace").await, "", "the request's count instead of the template's");
}

#[tokio::test]
async fn a_command_that_fails_fails_the_spawn_with_its_words() {
    let server = TestServer::start(NATIVE).await;
    let spawn = async |prepare: Value| server.post("/sandboxes", json!({"prepare": prepare})).await;
    let failing =
        json!([{"command": "true"}, {"command": "echo no such package >&2; exit 7"}, {"command": "sleep 100"}]);
    spawn(failing).await.refused(
        400,
        "bad_request",
        "command 2 of `prepare` (`echo no such package >&2; exit 7`) exited with status 7: no such package",
    );
    let endless = json!([{"command": "sleep 100", "timeout": "200ms"}]);
    spawn(endless).await.refused(
        400,
        "bad_request",
        "command 1 of `prepare` (`sleep 100`) did not end before its deadline",
    );
    spawn(json!([{"command": "nowhere", "mode": "argv"}])).await.refused(400, "bad_request", "nowhere");
    spawn(json!([{"command": "true", "timeout": "999h"}])).await.refused(429, "resource_limit", "timeout");
    let failed = server.get("/sandboxes?state=failed").await.ok();
    assert_eq!(failed.as_array().unwrap().len(), 4, "{failed}");
    assert!(failed.to_string().contains("no such package"), "{failed}");
    let boxes = std::fs::read_dir(server.data_dir().join("native/boxes")).unwrap().count();
    assert_eq!(boxes, 0, "the boxes of failed spawns are removed");
}

#[tokio::test]
async fn commands_that_make_no_sense_are_refused_before_anything_is_made() {
    let server = TestServer::start(MOCK).await;
    let many = vec![json!({"command": "true"}); 17];
    for (prepare, words) in [
        (json!(many), "`prepare` has 17 commands, and may have at most 16"),
        (json!([{"command": "x".repeat(65_537)}]), "have 65537 bytes in total"),
        (json!([{"command": ""}]), "`command` is empty"),
        (json!([{"command": "true", "name": "a"}]), "`background: true`"),
        (json!([{"command": "true", "background": true, "name": "7"}]), "name"),
        (json!([{"command": "true", "timeout": "soon"}]), "soon"),
        (json!([{"command": "true", "stdin": "x"}]), "stdin"),
        (json!({"command": "true"}), "prepare"),
        (json!(["true"]), "prepare"),
    ] {
        let body = json!({"name": "py", "prepare": prepare});
        server.post("/templates", body).await.refused(400, "bad_request", words);
        server.post("/sandboxes", json!({"prepare": prepare})).await.refused(400, "bad_request", words);
    }
    assert_eq!(server.get("/templates").await.ok(), json!([]));
    assert_eq!(server.get("/sandboxes").await.ok(), json!([]));
    let id = spawn(&server, json!([{"command": "sleep 600", "background": true, "name": "web"}])).await;
    assert_eq!(server.get(&format!("/sandboxes/{id}/processes")).await.ok()[0]["name"], "web");
    let id = spawn(&server, json!([{"command": "echo a > /tmp/a"}])).await;
    assert_eq!(server.output(&id, "cat /tmp/a").await, "a\n");
}

/// Returns the figures of the entry `a` of the warm pool.
async fn figures(server: &TestServer) -> Value {
    server.get("/diagnostics").await.ok()["warm_pool"][0].clone()
}

async fn filled(server: &TestServer) {
    let full = async || {
        let figures = figures(server).await;
        figures["ready"] == figures["count"]
    };
    server.until("the pool is full", full).await;
}

/// Returns the processor time of a process, in ticks.
fn ticks(pid: &str) -> u64 {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn boxes(server: &TestServer) -> Vec<PathBuf> {
    std::fs::read_dir(server.data_dir().join("native/boxes")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn a_claim_meets_the_program_that_its_template_started() {
    let server = TestServer::start(&format!("{NATIVE} warm_pool.a.template=py")).await;
    let program = "import os, sys; data = list(range(1000))\n\
                   open('/workspace/pid', 'w').write(str(os.getpid()))\n\
                   for line in sys.stdin: print(eval(line), flush=True)";
    let prepare = json!([
        {"command": "python3", "args": ["-c", program], "mode": "argv", "background": true, "name": "python", "stdin_open": true},
        {"command": "until [ -s /workspace/pid ]; do sleep 0.01; done; cat /workspace/pid > /workspace/first"},
    ]);
    server.post("/templates", json!({"name": "py", "prepare": prepare})).await.ok();
    filled(&server).await;
    let id = server.spawn_with(json!({"template": "py"})).await;
    assert_eq!(figures(&server).await["hits_total"], 1);
    let seen = server.output(&id, "cat /workspace/first; echo; cat /workspace/pid").await;
    let (first, pid) = seen.split_once('\n').unwrap();
    assert_eq!(first, pid, "it was started once");
    let input = json!({"data": "len(data) + 1\n"});
    server.post(&format!("/sandboxes/{id}/processes/python/stdin"), input).await.ok();
    let answered = async || {
        let output = server.get(&format!("/sandboxes/{id}/processes/python/output?follow=false")).await;
        String::from_utf8_lossy(&output.bytes).contains("1001")
    };
    server.until("the program answers", answered).await;
    // A spawn without these commands is another kind.
    filled(&server).await;
    server.spawn().await;
    assert_eq!(figures(&server).await["hits_total"], 1);
}

#[tokio::test]
async fn a_spawn_that_is_refused_leaves_what_was_prepared_at_rest() {
    if !geteuid().is_root() {
        return;
    }
    let settings = format!("{NATIVE} warm_pool.a.template=py defaults.max_sandboxes=1");
    let server = TestServer::start(&settings).await;
    let template = json!({"name": "py", "prepare": [{"command": "true"}]});
    server.post("/templates", template).await.ok();
    filled(&server).await;
    let id = boxes(&server)[0].file_name().unwrap().to_str().unwrap().to_owned();
    assert!(is_frozen(&server, &id));
    let other = server.spawn_with(json!({})).await;
    server.post("/sandboxes", json!({"template": "py"})).await.refused(429, "resource_limit", "maximum of 1");
    assert!(is_frozen(&server, &id));
    server.delete(&format!("/sandboxes/{other}")).await.ok();
    assert_eq!(server.spawn_with(json!({"template": "py"})).await, id, "the same box is taken then");
    assert!(!is_frozen(&server, &id));
}

#[tokio::test]
async fn what_was_prepared_takes_no_processor_time_until_it_is_taken() {
    if !geteuid().is_root() {
        return;
    }
    let server = TestServer::start(&format!("{NATIVE} warm_pool.a.template=busy")).await;
    let prepare = json!([{"command": "while :; do :; done", "background": true, "name": "busy"}]);
    server.post("/templates", json!({"name": "busy", "prepare": prepare})).await.ok();
    filled(&server).await;
    let first = std::fs::read_to_string(boxes(&server)[0].join("pid")).unwrap();
    let first = first.split(' ').next().unwrap().to_owned();
    let of_the_box = || -> u64 {
        let mut pids = vec![first.clone()];
        let mut at = 0;
        while at < pids.len() {
            let children = format!("/proc/{0}/task/{0}/children", pids[at]);
            pids.extend(std::fs::read_to_string(children).unwrap().split_whitespace().map(str::to_owned));
            at += 1;
        }
        pids.iter().map(|pid| ticks(pid)).sum()
    };
    let before = of_the_box();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(of_the_box(), before, "it is frozen");
    let id = server.spawn_with(json!({"template": "busy"})).await;
    server.until("it runs", async || of_the_box() > before).await;
    server.delete(&format!("/sandboxes/{id}")).await.ok();
}

#[tokio::test]
async fn commands_that_fail_stop_the_pool_and_the_error_is_there() {
    let server = TestServer::start(&format!("{NATIVE} warm_pool.a.template=bad")).await;
    let prepare = json!([{"command": "echo broken >&2; false"}]);
    server.post("/templates", json!({"name": "bad", "prepare": prepare})).await.ok();
    let named = async || figures(&server).await["error"].as_str().is_some_and(|text| text.contains("broken"));
    server.until("the fault is named", named).await;
    server.until("its boxes are removed", async || boxes(&server).is_empty()).await;
    server.post("/sandboxes", json!({"template": "bad"})).await.refused(400, "bad_request", "broken");
    server.put("/templates/bad", json!({"prepare": [{"command": "true"}]})).await.ok();
    filled(&server).await;
    assert_eq!(figures(&server).await["error"], json!(null));
}

#[tokio::test]
async fn connections_of_the_preparation_end_with_it() {
    let host = TestHost::start().await;
    let settings = format!("{NATIVE} warm_pool.a.template=net egress.internal=127.0.0.1:{}", host.port);
    let server = TestServer::start(&settings).await;
    let get = format!("curl --silent --fail --noproxy '' --proxy $HTTP_PROXY http://127.0.0.1:{}/", host.port);
    let prepare = json!([{"command": format!("{get} > /workspace/page")}]);
    let body = json!({"name": "net", "prepare": prepare, "egress": {"mode": "open"}});
    server.post("/templates", body).await.ok();
    filled(&server).await;
    let spawn = async |egress: Value| {
        let id = server.spawn_with(json!({"template": "net", "egress": egress})).await;
        assert!(server.output(&id, "cat /workspace/page").await.contains("GET /"), "it was prepared");
        (server.exec(&id, &get).await["exit_code"].as_i64().unwrap(), id)
    };
    let (code, id) = spawn(json!({"mode": "none"})).await;
    assert_ne!(code, 0, "the sandbox's own policy is in force");
    filled(&server).await;
    assert_ne!(server.exec(&id, &get).await["exit_code"], 0, "and stays so");
    assert_eq!(spawn(json!({"mode": "open"})).await.0, 0);
    assert_eq!(figures(&server).await["hits_total"], 2);
}

#[tokio::test]
async fn a_sandbox_of_another_service_is_prepared_and_kept_ready_too() {
    let far = TestServer::start(NATIVE).await;
    let settings = format!(
        "providers.native.enabled=false providers.custom.enabled=true providers.custom.base_url={} \
         providers.default=custom warm_pool.a.template=py",
        far.url
    );
    let near = TestServer::start(&settings).await;
    let prepare = json!([
        {"command": "echo made > /workspace/made"},
        {"command": "sleep 1000", "background": true, "name": "sleeper"},
    ]);
    near.post("/templates", json!({"name": "py", "prepare": prepare})).await.ok();
    filled(&near).await;
    for _ in 0..2 {
        // The first one was ready; the second may have to be made.
        let id = near.spawn_with(json!({"template": "py"})).await;
        assert_eq!(near.output(&id, "cat /workspace/made").await, "made\n");
        let processes = near.get(&format!("/sandboxes/{id}/processes")).await.ok();
        assert_eq!(processes[0]["name"], "sleeper", "{processes}");
        assert_eq!(processes[0]["state"], "running", "{processes}");
    }
    assert!(figures(&near).await["hits_total"].as_u64() >= Some(1));
}

#[tokio::test]
async fn users_who_share_a_box_have_their_commands_run_too() {
    if !geteuid().is_root() {
        return;
    }
    let server = TestServer::start(&format!("{NATIVE} pool.enabled=true")).await;
    let body = json!({"owner_id": "anna", "prepare": [{"command": "echo $HOME > ~/made"}]});
    let request = server.request(reqwest::Method::POST, "/sandboxes").header("x-user-id", "anna").json(&body);
    let spawned = crate::server::Answer::read(request.send().await.unwrap()).await;
    assert_eq!(spawned.status, 201, "{}", spawned.json());
    let path = format!("/sandboxes/{}", spawned.json()["id"].as_str().unwrap());
    let exec = server.request(reqwest::Method::POST, &format!("{path}/exec")).header("x-user-id", "anna");
    let exec = exec.json(&json!({"command": "cat ~/made; echo $HOME"})).send().await.unwrap();
    let output = crate::server::Answer::read(exec).await.ok()["stdout"].as_str().unwrap().to_owned();
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines.len() == 2 && lines[0] == lines[1], "{output}");
    // The fixture sees only what belongs to no user.
    let gone = server.request(reqwest::Method::DELETE, &path).header("x-user-id", "anna").send().await.unwrap();
    assert!(gone.status().is_success(), "{gone:?}");
}
