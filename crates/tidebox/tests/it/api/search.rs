//! `/sandboxes/{id}/files/search` and `…/replace`, on real boxes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::server::{NATIVE, TestServer};

async fn boxed() -> (TestServer, String, String, String) {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let (search, replace) = (format!("/sandboxes/{id}/files/search"), format!("/sandboxes/{id}/files/replace"));
    (server, id, search, replace)
}

#[tokio::test]
async fn a_search_gives_each_match_with_its_place() {
    let (server, id, search, _) = boxed().await;
    server.write(&id, "/workspace/src/b.rs", "fn one() {}\n\nfn two() {}\n").await;
    server.write(&id, "/workspace/src/a.txt", "// fn three\n").await;
    server.write(&id, "/workspace/.hidden", "fn four\n").await;
    let found = server.post(&search, json!({"pattern": r"fn (\w+)", "context": 1})).await.ok();
    assert_eq!(
        found,
        json!({
            "matches": [
                {"path": "/workspace/src/a.txt", "line": 1, "column": 4, "text": "// fn three"},
                {"path": "/workspace/src/b.rs", "line": 1, "column": 1, "text": "fn one() {}", "after": [""]},
                {"path": "/workspace/src/b.rs", "line": 3, "column": 1, "text": "fn two() {}", "before": [""]},
            ],
            "files_searched": 2,
            "files_skipped": {"binary": 0, "too_large": 0, "unreadable": 0},
            "truncated": false,
        })
    );
    let found = server.post(&search, json!({"pattern": "fn", "include": ["*.rs"], "max_matches": 1})).await.ok();
    assert_eq!((&found["truncated"], &found["truncated_by"]), (&json!(true), &json!("count")));
    assert_eq!(found["matches"].as_array().unwrap().len(), 1);
    let found = server.post(&search, json!({"pattern": "FN F", "ignore_case": true, "hidden": true})).await.ok();
    assert_eq!(found["matches"][0]["path"], "/workspace/.hidden");
}

#[tokio::test]
async fn a_search_that_makes_no_sense_says_what_to_change() {
    let (server, _, search, replace) = boxed().await;
    for (body, words) in [
        (json!({}), "pattern"),
        (json!({"pattern": ""}), "empty"),
        (json!({"pattern": "("}), "regular expression"),
        (json!({"pattern": r"(a)\1"}), "backreferences"),
        (json!({"pattern": r"(\w{1000}){1000}"}), "regular expression"),
        (json!({"pattern": r"a\nb"}), "each line separately"),
        (json!({"pattern": "x".repeat(20_000)}), "`pattern`"),
        (json!({"pattern": "x", "include": ["a{b"]}), "`include`"),
        (json!({"pattern": "x", "exclude": vec!["x"; 101]}), "`exclude`"),
        (json!({"pattern": "x", "context": 21}), "`context`"),
        (json!({"pattern": "x", "max_matches": 0}), "`max_matches`"),
        (json!({"pattern": "x", "max_matches": 10_001}), "`max_matches`"),
        (json!({"pattern": "x", "timeout": "61s"}), "`timeout`"),
        (json!({"pattern": "x", "path": "workspace"}), "absolute"),
        (json!({"pattern": "x", "path": "/dev/null"}), "/dev/null"),
        (json!({"pattern": "x", "paths": []}), "paths"),
    ] {
        server.post(&search, body).await.refused(400, "bad_request", words);
    }
    server.post(&search, json!({"pattern": "x", "path": "/none"})).await.refused(404, "not_found", "/none");
    server.post(&replace, json!({"pattern": "x"})).await.refused(400, "bad_request", "replacement");
    let long = json!({"pattern": "x", "replacement": "y".repeat(20_000)});
    server.post(&replace, long).await.refused(400, "bad_request", "`replacement`");
}

#[tokio::test]
async fn a_replacement_changes_what_it_says_and_keeps_modes() {
    let (server, id, _, replace) = boxed().await;
    server.write(&id, "/workspace/a.sh", "echo old old\n").await;
    server.write(&id, "/workspace/d/b.sh", "echo old\n").await;
    server.output(&id, "chmod 750 a.sh; printf 'old\\0' > binary; ln -s a.sh link; mkfifo fifo").await;
    let mut body = json!({"pattern": "(o)ld", "replacement": "${1}ne", "dry_run": true});
    let expected = json!({
        "files": [
            {"path": "/workspace/a.sh", "replacements": 2},
            {"path": "/workspace/d/b.sh", "replacements": 1},
        ],
        "replacements": 3,
        "files_searched": 2,
        "files_skipped": {"binary": 1, "too_large": 0, "unreadable": 0},
        "truncated": false,
    });
    assert_eq!(server.post(&replace, body.clone()).await.ok(), expected);
    assert_eq!(server.output(&id, "cat a.sh").await, "echo old old\n");
    body["dry_run"] = json!(false);
    assert_eq!(server.post(&replace, body).await.ok(), expected);
    assert_eq!(
        server.output(&id, "cat a.sh d/b.sh; stat -c '%a %F' a.sh link; ls -A . d").await,
        "echo one one\necho one\n750 regular file\n777 symbolic link\n.:\na.sh\nbinary\nd\nfifo\nlink\n\nd:\nb.sh\n"
    );
}

#[tokio::test]
async fn a_replacement_in_a_full_sandbox_says_so_and_loses_nothing() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn_with(json!({"disk_mb": 16})).await;
    server.output(&id, "yes x | head -c 2000000 > a; cat /dev/zero > fill 2>/dev/null || true").await;
    let body = json!({"pattern": "x", "replacement": "yy", "include": ["a"]});
    server.post(&format!("/sandboxes/{id}/files/replace"), body).await.refused(507, "no_space", "");
    assert_eq!(server.output(&id, "ls -A; tr -d 'x\\n' < a | wc -c; wc -c < a").await, "a\nfill\n0\n2000000\n");
}

#[tokio::test]
async fn a_vast_file_and_a_hopeless_expression_end_in_time() {
    let (server, id, search, _) = boxed().await;
    server.output(&id, "truncate -s 10G holes; (echo text; truncate -s 10G /dev/stdout) > begun || true").await;
    // Text without an end of line, and text of a single letter.
    server
        .output(
            &id,
            "head -c 20000000 /dev/zero | tr '\\0' a > line; yes aaaaaaaaaaaaaaaaaaaaaaaa | head -c 20000000 > many",
        )
        .await;
    let begun = Instant::now();
    let body = json!({"pattern": "(a|aa)+$b", "timeout": "20s"});
    let found = server.post(&search, body).await.ok();
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    assert_eq!(found["matches"], json!([]));
    assert_eq!(found["files_skipped"]["binary"], 2);
    assert_eq!(found["files_skipped"]["too_large"], 1);
    // The sandbox of 512 MiB lives, and so does its agent.
    assert_eq!(server.output(&id, "echo ok").await, "ok\n");
}

#[tokio::test]
async fn a_search_that_is_left_frees_its_thread() {
    let (server, id, search, _) = boxed().await;
    server
        .output(
            &id,
            "yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx | head -c 4000000 > 0; for n in $(seq 300); do ln 0 $n; done",
        )
        .await;
    let body = json!({"pattern": r"(x+x+)+\w{1,9}y", "timeout": "1m", "whole_words": true});
    // More than there are threads, so that the last search waits for those before.
    for _ in 0..20 {
        let left = server.post(&search, body.clone());
        let _ = tokio::time::timeout(Duration::from_millis(50), left).await;
    }
    let begun = Instant::now();
    let found: Value = server.post(&search, json!({"pattern": "y", "include": ["0"]})).await.ok();
    assert_eq!(found["files_searched"], 1);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}
