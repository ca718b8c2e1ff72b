//! Entries whose commands run in one box, of whose snapshot the others are made.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use rustix::process::geteuid;
use serde_json::{Value, json};

use super::{figures, filled};
use crate::server::{MOCK, NATIVE, TestServer};

const SETTINGS: &str = "warm_pool.a.template=py warm_pool.a.snapshot=true";

/// Commands that leave a number in a file which no other run of them makes, and then start a program.
fn numbered() -> Value {
    json!([
        {"command": "cat /proc/sys/kernel/random/uuid > /workspace/number"},
        {"command": "echo $$ > /workspace/program; exec sleep 1000", "background": true, "name": "program"},
    ])
}

async fn start(settings: &str, prepare: Value) -> Option<TestServer> {
    if !geteuid().is_root() {
        fixtures::skip("snapshots", "only root has snapshots on `native`");
        return None;
    }
    let server = TestServer::start(&format!("{NATIVE} {SETTINGS} {settings}")).await;
    server.post("/templates", json!({"name": "py", "prepare": prepare})).await.ok();
    Some(server)
}

async fn spawn(server: &TestServer) -> String {
    server.spawn_with(json!({"template": "py"})).await
}

async fn number(server: &TestServer, id: &str) -> String {
    server.output(id, "cat /workspace/number").await
}

/// Returns the snapshots of the pool.
async fn snapshots(server: &TestServer) -> Vec<Value> {
    server.get("/snapshots").await.ok().as_array().unwrap().clone()
}

/// Returns the names of the folders of snapshots.
fn folders(server: &TestServer) -> BTreeSet<String> {
    let entries = std::fs::read_dir(server.data_dir().join("native/snapshots")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn commands_run_once_for_all_boxes_and_their_programs_run_in_each() {
    let Some(server) = start("warm_pool.a.count=2", numbered()).await else { return };
    filled(&server, 2).await;
    // Twice as many as are ready.
    let spawned = join_all((0..4).map(|_| spawn(&server))).await;
    let mut numbers = BTreeSet::new();
    for id in &spawned {
        numbers.insert(number(&server, id).await);
        let processes = server.get(&format!("/sandboxes/{id}/processes")).await.ok();
        assert_eq!((&processes[0]["name"], &processes[0]["state"]), (&json!("program"), &json!("running")));
        assert_eq!(processes.as_array().unwrap().len(), 1);
        server.output(id, "kill -0 $(cat /workspace/program)").await;
    }
    assert_eq!(numbers.len(), 1, "{numbers:?}");
    filled(&server, 2).await;
    let figures = figures(&server).await;
    let [hits, misses, of_snapshot] =
        ["hits_total", "misses_total", "of_snapshot_total"].map(|name| figures[name].as_u64().unwrap());
    assert_eq!(hits + misses, 4, "{figures}");
    // All but the first one: those that were taken, and those that are ready now.
    assert_eq!(of_snapshot, 4 + 2 - 1, "{figures}");
    let taken = &snapshots(&server).await[0];
    assert_eq!(
        (&taken["kind"], &taken["name"], &taken["provider"], &taken["memory"]),
        (&json!("warm_pool"), &json!("a"), &json!("native"), &json!(false))
    );
    assert!(taken["size_bytes"].as_u64().unwrap() > 0 && taken.get("sandbox_id").is_none(), "{taken}");
    let id = taken["id"].as_str().unwrap();
    assert_eq!(folders(&server), BTreeSet::from([id.to_owned()]));
    server.post("/sandboxes", json!({"snapshot": id})).await.refused(404, "not_found", id);
    server.delete(&format!("/snapshots/{id}")).await.refused(404, "not_found", id);
    let text = String::from_utf8(server.get("/metrics/prometheus").await.bytes).unwrap();
    assert!(text.contains("tidebox_warm_pool_of_snapshot_total{entry=\"a\"} 5"), "{text}");
}

#[tokio::test]
async fn a_sandbox_of_it_is_as_any_other() {
    let Some(server) = start("", numbered()).await else { return };
    filled(&server, 1).await;
    let (first, second) = (spawn(&server).await, spawn(&server).await);
    server.write(&first, "/workspace/mine", "first").await;
    assert_eq!(server.output(&second, "ls /workspace").await, "number\nprogram\n");
    let [one, other] =
        [&first, &second].map(|id| server.output(id, "hostname; cat /etc/machine-id; head -c 16 /dev/urandom | od"));
    assert_ne!(one.await, other.await);
    let taken = server.post(&format!("/sandboxes/{first}/snapshots"), json!({})).await;
    let copy = server.spawn_with(json!({"snapshot": taken.json()["id"]})).await;
    assert_eq!(server.output(&copy, "cat /workspace/mine").await, "first");
    assert_eq!(number(&server, &copy).await, number(&server, &second).await);
}

#[tokio::test]
async fn a_changed_template_has_another_snapshot_and_sandboxes_of_the_last_one_go_on() {
    let Some(server) = start("", numbered()).await else { return };
    filled(&server, 1).await;
    let id = spawn(&server).await;
    let before = (number(&server, &id).await, folders(&server));
    let body = json!({"prepare": [{"command": "echo other > /workspace/number"}]});
    server.put("/templates/py", body).await.ok();
    server.until("the last one is removed", async || folders(&server).is_disjoint(&before.1)).await;
    server.until("the pool has another", async || snapshots(&server).await.len() == 1).await;
    filled(&server, 1).await;
    for _ in 0..2 {
        let other = spawn(&server).await;
        assert_eq!(number(&server, &other).await, "other\n");
    }
    assert_eq!(number(&server, &id).await, before.0);
    server.put("/templates/py", json!({})).await.ok();
    server.until("without commands there is none", async || folders(&server).is_empty()).await;
    filled(&server, 1).await;
}

#[tokio::test]
async fn a_snapshot_is_replaced_before_the_boxes_of_it_are_too_old() {
    let Some(server) = start("warm_pool.a.max_age=3s", numbered()).await else { return };
    filled(&server, 1).await;
    let first = folders(&server);
    let mut numbers = BTreeSet::new();
    let others = async || {
        if snapshots(&server).await.is_empty() {
            panic!("there is always one");
        }
        numbers.insert(number(&server, &spawn(&server).await).await);
        numbers.len() == 3
    };
    server.until("two others came", others).await;
    server.until("the first is removed", async || folders(&server).is_disjoint(&first)).await;
    server.until("those before are removed", async || folders(&server).len() == 1).await;
}

#[tokio::test]
async fn one_that_makes_no_box_is_given_up_and_the_spawn_runs_the_commands() {
    let Some(server) = start("", numbered()).await else { return };
    filled(&server, 1).await;
    let before = folders(&server);
    for name in &before {
        let folder = server.data_dir().join("native/snapshots").join(name);
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            if path.is_file() {
                std::fs::write(path, "").unwrap();
            }
        }
    }
    // The first of them takes the box that is ready.
    let spawned = [spawn(&server).await, spawn(&server).await, spawn(&server).await];
    for id in &spawned {
        assert_eq!(number(&server, id).await.len(), 37);
    }
    server.until("the broken one is removed", async || folders(&server).is_disjoint(&before)).await;
    server.until("there is another", async || snapshots(&server).await.len() == 1).await;
    assert!(server.log_text().contains("cannot make a box from a snapshot"), "{}", server.log_text());
}

#[tokio::test]
async fn neither_a_crash_nor_a_stop_leaves_one_behind() {
    let Some(mut server) = start("", numbered()).await else { return };
    filled(&server, 1).await;
    let first = folders(&server);
    let id = spawn(&server).await;
    let mine = number(&server, &id).await;
    server.kill();
    server.launch().await;
    filled(&server, 1).await;
    server.until("the last one is removed", async || folders(&server).is_disjoint(&first)).await;
    assert_eq!(folders(&server).len(), 1);
    assert_eq!(number(&server, &id).await, mine);
    assert_ne!(number(&server, &spawn(&server).await).await, mine);
    assert_eq!(server.terminate(), Some(0));
    assert!(folders(&server).is_empty(), "{:?}", folders(&server));
    server.launch().await;
    assert_eq!(number(&server, &id).await, mine);
}

#[tokio::test]
async fn where_none_can_be_taken_the_entry_says_why_and_spawns_go_on() {
    let server = TestServer::start(&format!("{MOCK} {SETTINGS}")).await;
    let prepare = json!([{"command": "sleep 600", "background": true}, {"command": "echo a > /tmp/a"}]);
    server.post("/templates", json!({"name": "py", "prepare": prepare})).await.ok();
    let said = async |words: &str| figures(&server).await["error"].as_str().is_some_and(|text| text.contains(words));
    server.until("the order is named", async || said("command 2 follows one").await).await;
    let id = spawn(&server).await;
    assert_eq!(server.output(&id, "cat /tmp/a").await, "a\n");
    let prepare = json!([{"command": "echo a > /tmp/a"}, {"command": "sleep 600", "background": true}]);
    server.put("/templates/py", json!({"prepare": prepare})).await.ok();
    filled(&server, 1).await;
    assert_eq!(figures(&server).await["error"], json!(null));
    let id = spawn(&server).await;
    assert_eq!(server.output(&id, "cat /tmp/a").await, "a\n");
}
