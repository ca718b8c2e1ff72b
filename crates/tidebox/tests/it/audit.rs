//! `/admin/audit`: the requests of all callers, each written before its answer is sent.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::Command;

use reqwest::Method;
use serde_json::{Value, json};
use sqlx::Connection as _;

use crate::server::{Answer, MOCK, TestServer, redacted};

/// Returns the rows that a query finds, newest first.
async fn rows(server: &TestServer, query: &str) -> Vec<Value> {
    server.get(&format!("/admin/audit{query}")).await.ok().as_array().unwrap().clone()
}

fn actions(rows: &[Value]) -> Vec<(&str, u64)> {
    rows.iter().map(|row| (row["action"].as_str().unwrap(), row["status"].as_u64().unwrap())).collect()
}

async fn template(server: &TestServer, name: &str) {
    server.post("/templates", json!({ "name": name })).await.ok();
}

#[tokio::test]
async fn a_row_says_who_asked_for_what_and_what_came_of_it_and_holds_no_secret() {
    let server = TestServer::start(MOCK).await;
    let asked = server
        .request(Method::PUT, "/templates/nope?api_key=s3cret-query")
        .header("X-Request-ID", "mine-1")
        .header("X-API-Key", "s3cret-key")
        .header("X-Admin-API-Key", "s3cret-admin")
        .header("Authorization", "Bearer s3cret-bearer")
        .header("User-Agent", "probe/1 \u{e9}")
        .json(&json!({"metadata": {"k": "s3cret-body"}}));
    Answer::read(asked.send().await.unwrap()).await.refused(400, "bad_request", "`api_key`");
    let rows = rows(&server, "").await;
    assert_eq!(rows.len(), 1, "{rows:#?}");
    let row = &rows[0];
    assert!(row["created_at"].as_str().unwrap().ends_with('Z') && row["duration_ms"].is_u64() && row["id"].is_u64());
    insta::assert_json_snapshot!(redacted(row.clone(), &["created_at", "duration_ms", "id"]), @r#"
    {
      "action": "templates.update",
      "actor": "anonymous",
      "created_at": "[created_at]",
      "detail": "error=bad_request",
      "duration_ms": "[duration_ms]",
      "id": "[id]",
      "method": "PUT",
      "path": "/api/v1/templates/nope",
      "remote_addr": "127.0.0.1",
      "request_id": "mine-1",
      "status": 400,
      "user_agent": "probe/1 é"
    }
    "#);
    assert!(!json!(rows).to_string().contains("s3cret"), "{rows:#?}");
}

#[tokio::test]
async fn admin_requests_and_changes_of_quotas_and_templates_are_written_down_and_nothing_else() {
    let server = TestServer::start(MOCK).await;
    template(&server, "py").await;
    server.put("/templates/py", json!({"ttl": "1m"})).await.ok();
    server.get("/templates").await.ok();
    let id = server.post("/templates/py/spawn", json!({})).await.ok()["id"].as_str().unwrap().to_owned();
    server.exec(&id, "true").await;
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    server.delete("/templates/py").await.ok();
    server.put("/quotas/alice", json!({"max_sandboxes": 3})).await.ok();
    server.get("/quotas/alice").await.ok();
    server.put("/admin/quotas/bob", json!({"max_sandboxes": -3})).await.refused(400, "bad_request", "max_sandboxes");
    server.delete("/admin/quotas/alice").await.ok();
    server.get("/admin/quotas").await.ok();
    server.get("/admin/nothing").await.refused(404, "not_found", "nothing");
    let found = rows(&server, "").await;
    assert_eq!(
        actions(&found),
        [
            ("nothing.list", 404),
            ("quotas.list", 200),
            ("quotas.delete", 200),
            ("quotas.update", 400),
            ("quotas.update", 200),
            ("templates.delete", 200),
            ("templates.update", 200),
            ("templates.create", 201),
        ]
    );
    assert_eq!(found.last().unwrap()["detail"], "name=py");
    assert_eq!(actions(&rows(&server, "?limit=1").await), [("audit.list", 200)], "reading it is written down too");
    for path in ["/admin/metrics", "/admin/metrics/prometheus", "/admin/diagnostics"] {
        let before = rows(&server, "?limit=1").await[0]["id"].as_u64().unwrap();
        let succeeded = server.get(path).await.status.is_success();
        let after = rows(&server, "?limit=1").await[0]["id"].as_u64().unwrap();
        // One for the previous read, and one for a failure.
        assert_eq!(after - before, if succeeded { 1 } else { 2 }, "{path}");
    }
}

#[tokio::test]
async fn filters_find_what_they_say_and_take_a_path_literally() {
    let server = TestServer::start(MOCK).await;
    template(&server, "a_b").await;
    template(&server, "axb").await;
    server.delete("/templates/a_b").await.ok();
    server.delete("/templates/axb").await.ok();
    server.delete("/templates/a%25b").await.refused(404, "not_found", "a%b");
    let paths = async |query: &str| {
        let rows = rows(&server, &format!("?{query}&action=templates.delete")).await;
        rows.iter().map(|row| row["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(paths("path=a_b").await, ["a_b"]);
    assert_eq!(paths("path=%25").await, ["a%25b"]);
    assert_eq!(paths("path=%5C").await, Vec::<String>::new());
    assert_eq!(paths("status=404").await, ["a%25b"]);
    assert_eq!(paths("method=delete&actor=anonymous").await.len(), 3);
    assert_eq!(paths("actor=admin").await.len(), 0);
    assert_eq!(paths("until=2000-01-01T00:00:00Z").await.len(), 0);
    assert_eq!(paths("since=2000-01-01T00:00:00%2B01:00").await.len(), 3);
    for (query, words) in [
        ("since=yesterday", "`since`"),
        ("status=ok", "`status`"),
        ("limit=0", "`limit`"),
        ("limit=1001", "1000"),
        ("cursor=x", "`cursor`"),
        ("format=xml", "`format`"),
        ("actor=", "`actor`"),
        ("user=x", "unknown field `user`"),
        ("since=2001-01-01T00:00:00Z&until=2000-01-01T00:00:00Z", "later"),
    ] {
        server.get(&format!("/admin/audit?{query}")).await.refused(400, "bad_request", words);
    }
}

#[tokio::test]
async fn pages_follow_each_other_without_a_gap_while_rows_are_added() {
    let server = TestServer::start(MOCK).await;
    for n in 0..7 {
        template(&server, &format!("t{n}")).await;
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let answer = server.get(&format!("/admin/audit?action=templates.create&limit=3{cursor}")).await;
        let next = answer.headers.get("x-next-cursor").map(|next| next.to_str().unwrap().to_owned());
        let page = answer.ok();
        seen.extend(page.as_array().unwrap().iter().map(|row| row["detail"].as_str().unwrap().to_owned()));
        template(&server, &format!("new{}", seen.len())).await;
        let Some(next) = next else { break };
        cursor = format!("&cursor={next}");
    }
    let expected: Vec<String> = (0..7).rev().map(|n| format!("name=t{n}")).collect();
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn csv_has_a_header_row_and_no_cell_that_a_spreadsheet_would_run() {
    let server = TestServer::start(MOCK).await;
    for agent in ["=cmd|' /C calc'!A0", "+1,\"two\"", "@x", "-1", "plain"] {
        let asked = server.request(Method::GET, "/admin/providers").header("User-Agent", agent);
        assert!(asked.send().await.unwrap().status().as_u16() < 500);
    }
    let answer = server.get("/admin/audit?format=csv").await;
    assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/csv"));
    let text = String::from_utf8(answer.bytes).unwrap();
    let lines: Vec<&str> = text.split("\r\n").collect();
    assert_eq!(
        lines[0],
        "id,created_at,actor,action,method,path,status,duration_ms,request_id,remote_addr,user_agent,detail"
    );
    assert_eq!((lines.len(), lines[6]), (7, ""), "{text}");
    for (line, cell) in lines[1..6].iter().zip(["plain", "'-1", "'@x", "\"'+1,\"\"two\"\"\"", "'=cmd|' /C calc'!A0"]) {
        assert!(line.contains(&format!(",127.0.0.1,{cell},")), "{line} lacks {cell}");
    }
}

#[tokio::test]
async fn a_caller_that_hangs_up_does_not_get_its_change_past_the_history() {
    let server = TestServer::start(MOCK).await;
    let address = server.url.strip_prefix("http://").unwrap();
    let sent = std::cell::Cell::new(0);
    let send = || {
        let body = format!("{{\"name\": \"t{}\"}}", sent.replace(sent.get() + 1));
        let mut stream = TcpStream::connect(address).unwrap();
        let head = "POST /api/v1/templates HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
        stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
        drop(stream);
    };
    for _ in 0..40 {
        send();
    }
    // A creation may outlast its client, so the counts are compared until they agree.
    server
        .until("what was begun is done", async || {
            let made = server.get("/templates").await.ok().as_array().unwrap().len();
            if made == 0 {
                // A busy server saw all clients hang up before it had read the requests.
                send();
            }
            let written = rows(&server, "?action=templates.create&status=201&limit=1000").await.len();
            assert!(written <= sent.get());
            made > 0 && made == written && made == server.get("/templates").await.ok().as_array().unwrap().len()
        })
        .await;
}

#[tokio::test]
async fn a_change_that_cannot_be_written_down_is_not_called_a_success() {
    let server = TestServer::builder(MOCK).expecting("the audit history cannot be written").start().await;
    let path = server.data_dir().join("tidebox.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
    let mut store = sqlx::sqlite::SqliteConnection::connect_with(&options).await.unwrap();
    sqlx::query("ALTER TABLE audit RENAME TO hidden").execute(&mut store).await.unwrap();
    server.post("/templates", json!({"name": "py"})).await.refused(503, "unavailable", "the request was carried out");
    server.get("/admin/quotas").await.ok();
    server.get("/templates/py").await.ok();
    sqlx::query("ALTER TABLE hidden RENAME TO audit").execute(&mut store).await.unwrap();
    store.close().await.unwrap();
    server.delete("/templates/py").await.ok();
    assert_eq!(actions(&rows(&server, "").await), [("templates.delete", 200)]);
}

#[tokio::test]
async fn the_history_outlives_a_crash_and_keeps_no_more_than_it_may() {
    let mut server = TestServer::start(&format!("{MOCK} auth.admin_audit_max_entries=5")).await;
    for n in 0..9 {
        template(&server, &format!("t{n}")).await;
    }
    let newest = rows(&server, "?limit=1").await[0]["id"].as_u64().unwrap();
    server.kill();
    server.launch().await;
    server
        .until("the oldest are forgotten", async || {
            rows(&server, "?until=2999-01-01T00:00:00Z&action=templates.create").await.len() < 5
        })
        .await;
    let found = rows(&server, "?action=templates.create").await;
    assert_eq!(found[0]["id"].as_u64(), Some(newest), "the newest are kept: {found:#?}");
}

/// Runs `tidebox` against the server and returns its output.
async fn tidebox(server: &TestServer, arguments: &[&str]) -> String {
    let (url, arguments) = (server.url.clone(), arguments.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
    let run = move || {
        Command::new(env!("CARGO_BIN_EXE_tidebox")).args(arguments).env_clear().env("TIDEBOX_URL", url).output()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn the_command_line_prints_the_history_as_a_table_as_json_and_as_csv() {
    let server = TestServer::start(MOCK).await;
    for n in 0..3 {
        template(&server, &format!("t{n}")).await;
    }
    let shown = tidebox(&server, &["audit", "--action", "templates.create", "--limit", "2"]).await;
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("TIME") && lines[1].contains("name=t2"), "{shown}");
    assert_eq!(lines.len(), 3, "{shown}");
    let json: Value = serde_json::from_str(&tidebox(&server, &["audit", "--output", "json"]).await).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 4);
    let csv = tidebox(&server, &["audit", "--csv", "--method", "POST"]).await;
    assert_eq!((csv.lines().count(), csv.matches("created_at").count()), (4, 1), "{csv}");
}

const API: &str = "api-key-0123456789abcdef0123456789abcdef";
const ADMIN: &str = "admin-key-0123456789abcdef0123456789abcdef";

async fn keyed() -> TestServer {
    TestServer::start(&format!("{MOCK} auth.enabled=true auth.api_key={API} auth.admin_api_key={ADMIN}")).await
}

async fn with_key(server: &TestServer, method: Method, path: &str, key: &str) -> Answer {
    let request = server.request(method, path).header("X-API-Key", key);
    Answer::read(request.send().await.unwrap()).await
}

#[tokio::test]
async fn refused_keys_make_one_row_per_source_and_minute_with_a_count() {
    let server = keyed().await;
    let refused = async || {
        let found = with_key(&server, Method::GET, "/admin/audit?action=key.refused", ADMIN).await.ok();
        found.as_array().unwrap().clone()
    };
    with_key(&server, Method::DELETE, "/templates/x", "s3cret-guess-0").await.refused(401, "unauthorized", "");
    let first = refused().await;
    assert_eq!(first.len(), 1, "it is written before the answer is sent: {first:#?}");
    assert_eq!(
        (&first[0]["actor"], &first[0]["status"], &first[0]["path"], &first[0]["remote_addr"]),
        (&json!("anonymous"), &json!(401), &json!("/api/v1/templates/x"), &json!("127.0.0.1"))
    );
    for n in 1..30 {
        let path = if n % 2 == 0 { "/sandboxes" } else { "/admin/quotas" };
        with_key(&server, Method::GET, path, &format!("s3cret-guess-{n}")).await.refused(401, "unauthorized", "");
    }
    let count = |row: &Value| -> u64 {
        let detail = row["detail"].as_str().unwrap();
        detail.strip_prefix("count=").unwrap().split(' ').next().unwrap().parse().unwrap()
    };
    // Thirty tries may lie in two minutes.
    server.until("all are counted", async || refused().await.iter().map(count).sum::<u64>() == 30).await;
    let rows = refused().await;
    assert!(rows.len() <= 2, "{rows:#?}");
    let everything = with_key(&server, Method::GET, "/admin/audit?limit=1000", ADMIN).await.ok();
    assert!(!everything.to_string().contains("s3cret"), "{everything:#}");
}

#[tokio::test]
async fn the_actor_is_told_by_the_key_which_is_never_written_down() {
    let server = keyed().await;
    with_key(&server, Method::DELETE, "/templates/x", API).await.refused(404, "not_found", "x");
    with_key(&server, Method::GET, "/admin/providers", ADMIN).await.ok();
    let found = with_key(&server, Method::GET, "/admin/audit", ADMIN).await.ok();
    let actors: Vec<&str> = found.as_array().unwrap().iter().map(|row| row["actor"].as_str().unwrap()).collect();
    assert_eq!(actors, ["admin", "api_key"]);
    let keys: Vec<&str> = found.as_array().unwrap().iter().map(|row| row["detail"].as_str().unwrap()).collect();
    assert!(keys.iter().all(|detail| detail.starts_with("key=")), "{keys:?}");
    assert_ne!(keys[0].split(' ').next(), keys[1].split(' ').next());
    for key in [API, ADMIN] {
        assert!(!found.to_string().contains(&key[..12]), "{found:#}");
    }
    let admins = with_key(&server, Method::GET, "/admin/audit?actor=api_key", ADMIN).await.ok();
    assert_eq!(admins.as_array().unwrap().len(), 1);
    with_key(&server, Method::GET, "/admin/audit", API).await.refused(401, "unauthorized", "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callers_flood_pushes_no_row_of_the_admin_out_of_the_history() {
    let key = "a-key-of-the-admin-that-is-long-enough";
    let settings = format!("{MOCK} auth.admin_api_key={key} auth.admin_audit_max_entries=200");
    let mut server = TestServer::start(&settings).await;
    let anybody = server.key.clone();
    server.key = Some(key.to_owned());
    server.put("/admin/quotas/precious", json!({"max_sandboxes": 1})).await.ok();
    server.key = anybody;
    for _ in 0..2_100 {
        server.delete("/templates/nope").await.refused(404, "not_found", "");
    }
    server.key = Some(key.to_owned());
    let kept = rows(&server, "?path=precious").await;
    assert_eq!(actions(&kept), [("quotas.update", 200)]);
    let all = server.get("/admin/audit?limit=1000&actor=anonymous").await.ok();
    assert!(all.as_array().unwrap().len() <= 1_200, "the history is bounded between two looks too");
}
