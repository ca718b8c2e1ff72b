//! `/sandboxes/{id}/files`, on real boxes.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Answer, NATIVE, PATIENCE, TestServer};

async fn boxed() -> (TestServer, String, String) {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let files = format!("/sandboxes/{id}/files");
    (server, id, files)
}

async fn put_raw(server: &TestServer, url: &str, bytes: Vec<u8>) -> Answer {
    Answer::read(server.request(Method::PUT, url).body(bytes).send().await.unwrap()).await
}

#[tokio::test]
async fn what_is_written_is_read_back_byte_for_byte() {
    let (server, id, files) = boxed().await;
    let written =
        server.post(&files, json!({"path": "/workspace/a/b/c.txt", "content": "hé\0\n", "mode": "600"})).await.ok();
    assert_eq!(written, json!({"status": "written"}));
    let read = server.get(&format!("{files}?path=/workspace/a/b/c.txt")).await;
    assert_eq!(read.bytes, "hé\0\n".as_bytes());
    for (header, value) in [
        ("content-type", "application/octet-stream"),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "sandbox"),
        ("content-length", "5"),
    ] {
        assert_eq!(read.headers[header], value);
    }
    assert_eq!(
        server.output(&id, "stat -c '%a %n' /workspace/a /workspace/a/b/c.txt").await,
        "755 /workspace/a\n600 /workspace/a/b/c.txt\n"
    );
    server.post(&files, json!({"path": "/workspace/x", "content": "/wA=", "encoding": "base64"})).await.ok();
    assert_eq!(server.get(&format!("{files}?path=/workspace/x")).await.bytes, b"\xff\0");
}

/// Listing of a directory by `ls`, with each byte that is no UTF-8 in octal.
const LS: &str = "cd /workspace && LC_ALL=C ls --quoting-style=escape -A";

#[tokio::test]
async fn a_name_that_is_no_utf8_goes_through_the_whole_api() {
    let (server, id, files) = boxed().await;
    server.output(&id, r#"cd /workspace && printf one > "$(printf 'caf\351')" && printf two > 'caf\xe9'"#).await;
    let listed = server.get(&format!("{files}/list?path=/workspace")).await.ok();
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, [r"caf\x5cxe9", r"caf\xe9"], "the plain name and the bytes have two texts");
    for (name, content) in [(r"caf\xe9", "one"), (r"caf\x5cxe9", "two")] {
        let path = format!("/workspace/{name}");
        let asked = path.replace('\\', "%5C");
        let stat = server.get(&format!("{files}/stat?path={asked}")).await.ok();
        assert_eq!((&stat["name"], &stat["path"]), (&json!(name), &json!(path)));
        assert_eq!(server.get(&format!("{files}?path={asked}")).await.bytes, content.as_bytes());
        let pattern = format!("{}*", path.replace('\\', "%5C"));
        assert_eq!(server.get(&format!("{files}/glob?pattern={pattern}")).await.ok(), json!([path]));
        let found = server.post(&format!("{files}/search"), json!({"pattern": content})).await.ok();
        assert_eq!(found["matches"][0]["path"], path.as_str());
        let one = json!({"pattern": content, "replacement": "new", "path": path});
        assert_eq!(server.post(&format!("{files}/replace"), one).await.ok()["files"][0]["path"], path.as_str());
        let archive = server.get(&format!("{files}/archive?path={asked}")).await;
        assert!(archive.bytes.windows(3).any(|bytes| bytes == b"new"), "{name}");
        server.post(&files, json!({"path": path, "content": "written"})).await.ok();
        let moved = json!({"old_path": path, "new_path": format!("/workspace/deep{name}/{name}")});
        server.post(&format!("{files}/move"), moved).await.ok();
        server.delete(&format!("{files}?path=/workspace/deep{0}/{0}", name.replace('\\', "%5C"))).await.ok();
    }
    assert_eq!(server.output(&id, LS).await, "deepcaf\\\\xe9\ndeepcaf\\351\n");
}

#[tokio::test]
async fn the_mode_of_an_existing_file_is_kept_unless_given() {
    let (server, id, files) = boxed().await;
    let mode = async || server.output(&id, "stat -c %a /workspace/f").await;
    server.write(&id, "/workspace/f", "1").await;
    assert_eq!(mode().await, "644\n");
    server.output(&id, "chmod 750 /workspace/f").await;
    server.write(&id, "/workspace/f", "2").await;
    assert_eq!(mode().await, "750\n");
    server.post(&files, json!({"path": "/workspace/f", "content": "3", "mode": "0640"})).await.ok();
    assert_eq!(mode().await, "640\n");
}

#[tokio::test]
async fn a_raw_put_takes_the_mode_from_the_query() {
    let (server, id, files) = boxed().await;
    put_raw(&server, &format!("{files}/workspace/run?mode=755"), b"#!/bin/sh\n".to_vec()).await.ok();
    assert_eq!(server.output(&id, "stat -c %a /workspace/run").await, "755\n");
    for (query, words) in [("mode=rwx", "`mode`"), ("mode=1&mode=2", "mode"), ("umask=1", "umask")] {
        let answer = put_raw(&server, &format!("{files}/workspace/run?{query}"), b"changed".to_vec()).await;
        answer.refused(400, "bad_request", words);
    }
    let json = server.put(&format!("{files}/workspace/run?mode=700"), json!({"content": "x"})).await;
    json.refused(400, "bad_request", "leave out the query");
    assert_eq!(server.output(&id, "cat /workspace/run").await, "#!/bin/sh\n");
}

#[tokio::test]
async fn put_takes_raw_bytes_or_json_at_any_path() {
    let (server, id, files) = boxed().await;
    for name in [
        "list",
        "move",
        "chmod",
        "stat",
        "glob",
        "search",
        "replace",
        "archive",
        "watch",
        "workspace/a%20b%25%23%3f",
        "workspace/%C3%BC",
        "workspace/deep/er",
    ] {
        let answer = put_raw(&server, &format!("{files}/{name}"), name.as_bytes().to_vec()).await;
        assert_eq!(answer.ok(), json!({"status": "written"}), "{name}");
    }
    assert_eq!(
        server.output(&id, "cat /list '/workspace/a b%#?' /workspace/ü").await,
        "listworkspace/a%20b%25%23%3fworkspace/%C3%BC"
    );
    server.put(&format!("{files}/workspace/j.json"), json!({"content": "{}", "mode": "600"})).await.ok();
    assert_eq!(server.output(&id, "cat /workspace/j.json; stat -c %a /workspace/j.json").await, "{}600\n");
    server.put(&format!("{files}/workspace/j.json"), json!({"contents": "{}"})).await.refused(
        400,
        "bad_request",
        "unknown field",
    );
}

#[tokio::test]
async fn ranges_are_honoured() {
    let (server, id, files) = boxed().await;
    server.write(&id, "/workspace/f", "0123456789").await;
    let ranged = async |range: &str| {
        let request = server.request(Method::GET, &format!("{files}?path=/workspace/f")).header("Range", range);
        Answer::read(request.send().await.unwrap()).await
    };
    let part = ranged("bytes=2-4").await;
    assert_eq!((part.status.as_u16(), &part.bytes[..]), (206, &b"234"[..]));
    assert_eq!(part.headers["content-range"], "bytes 2-4/10");
    assert_eq!(ranged("bytes=-3").await.bytes, b"789");
    assert_eq!(ranged("bytes=8-").await.bytes, b"89");
    let outside = ranged("bytes=10-").await;
    outside.refused(416, "range_not_satisfiable", "10 bytes");
    assert_eq!(outside.headers["content-range"], "bytes */10");
    assert_eq!(ranged("lines=1-2").await.bytes, b"0123456789");
}

#[tokio::test]
async fn bad_paths_are_refused_and_missing_ones_not_found() {
    let (server, id, files) = boxed().await;
    server.write(&id, "/workspace/f", "x").await;
    for (path, words) in
        [("", "path"), ("relative", "absolute"), ("%00", "path"), ("/a%00b", "NUL"), ("/workspace", "directory")]
    {
        server.get(&format!("{files}?path={path}")).await.refused(400, "bad_request", words);
    }
    let long = "x".repeat(5000);
    server.get(&format!("{files}?path=/{long}")).await.refused(400, "bad_request", "4096");
    let name = "y".repeat(300);
    server.get(&format!("{files}/stat?path=/{name}")).await.refused(400, "bad_request", "");
    let missing = server.get(&format!("{files}?path=/nope")).await;
    missing.refused(404, "not_found", "");
    assert_eq!(missing.json()["message"], "/nope: no such file or directory");
    server.get(&format!("{files}/stat?path=/nope")).await.refused(404, "not_found", "/nope");
    server.get(&format!("{files}/list?path=/nope")).await.refused(404, "not_found", "/nope");
    server.get(&format!("{files}/list?path=/workspace/f")).await.refused(400, "bad_request", "directory");
    server.delete(&format!("{files}?path=/nope")).await.refused(404, "not_found", "/nope");
    server.get(&files).await.refused(400, "bad_request", "path");
    server.get(&format!("{files}?path=/a&path=/b")).await.refused(400, "bad_request", "path");
    for mode in ["888", "rwx", "", "10000"] {
        server.post(&format!("{files}/chmod"), json!({"path": "/workspace/f", "mode": mode})).await.refused(
            400,
            "bad_request",
            "`mode`",
        );
    }
}

#[tokio::test]
async fn only_regular_files_are_read_and_nothing_waits() {
    let (server, id, files) = boxed().await;
    server.output(&id, "mkfifo /tmp/fifo; ln -s /dev/zero /tmp/zero; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('/tmp/sock')\"").await;
    for path in ["/tmp/fifo", "/dev/zero", "/tmp/zero", "/tmp/sock"] {
        let url = format!("{files}?path={path}");
        let read = server.get(&url);
        let answer = tokio::time::timeout(PATIENCE, read).await.expect("a FIFO blocks no read");
        answer.refused(400, "bad_request", "regular file");
    }
    let status = server.get(&format!("{files}?path=/proc/self/status")).await;
    assert!(status.status.is_success() && !status.bytes.is_empty(), "a file that says it is empty and is not");
}

#[tokio::test]
async fn links_lead_nowhere_but_into_the_box() {
    let (server, id, files) = boxed().await;
    let canary = server.data_dir().parent().unwrap().join("canary");
    std::fs::write(&canary, "host").unwrap();
    let canary = canary.to_str().unwrap().to_owned();
    server.output(&id, &format!("ln -s {canary} /workspace/out; ln -s ../../../../../../..{canary} /workspace/up; ln -s /proc/1/root{canary} /workspace/magic")).await;
    for link in ["out", "up", "magic"] {
        let path = format!("/workspace/{link}");
        let written = server.post(&files, json!({"path": path, "content": "guest"})).await;
        let read = server.get(&format!("{files}?path={path}")).await;
        assert_ne!(read.bytes, b"host", "{link}: {written:?}");
    }
    let climbed = server.get(&format!("{files}?path=/workspace/../../../..{canary}")).await;
    assert_ne!(climbed.bytes, b"host");
    assert_eq!(std::fs::read_to_string(&canary).unwrap(), "host");
}

#[tokio::test]
async fn list_is_by_name_and_stat_describes_the_link_itself() {
    let (server, id, files) = boxed().await;
    server.output(&id, "mkdir d; cd d; mkdir sub; echo hello > b; ln -s b a; chmod 755 b").await;
    let listed = server.get(&format!("{files}/list?path=/workspace/d")).await.ok();
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "sub"]);
    let stat = async |name: &str| -> Value { server.get(&format!("{files}/stat?path=/workspace/d/{name}")).await.ok() };
    let file = stat("b").await;
    for (key, value) in [
        ("name", json!("b")),
        ("path", json!("/workspace/d/b")),
        ("size", json!(6)),
        ("is_dir", json!(false)),
        ("mode", json!("0755")),
    ] {
        assert_eq!(file[key], value, "{key}");
    }
    assert!(file["mod_time"].as_str().unwrap().ends_with('Z'), "{file}");
    let link = stat("a").await;
    assert_eq!((&link["is_symlink"], &link["target"]), (&json!(true), &json!("b")));
    assert_eq!(stat("sub").await["is_dir"], true);
    let root = server.get(&format!("{files}/list")).await.ok();
    assert!(
        root.as_array().unwrap().iter().any(|file| file["path"] == "/workspace"),
        "the default is the root: {root}"
    );
}

#[tokio::test]
async fn move_chmod_delete_and_glob_do_what_they_say() {
    let (server, id, files) = boxed().await;
    server.output(&id, "mkdir -p d/e; touch d/1.py d/2.txt d/e/3.py").await;
    let moved = server
        .post(&format!("{files}/move"), json!({"old_path": "/workspace/d/2.txt", "new_path": "/workspace/new/2.md"}))
        .await;
    assert_eq!(moved.ok(), json!({"status": "moved"}));
    let chmod = server.post(&format!("{files}/chmod"), json!({"path": "/workspace/new/2.md", "mode": "0700"})).await;
    assert_eq!(chmod.ok(), json!({"status": "chmod applied"}));
    assert_eq!(server.output(&id, "stat -c %a /workspace/new/2.md").await, "700\n");
    let glob = async |pattern: &str| server.get(&format!("{files}/glob?pattern={pattern}")).await.ok();
    assert_eq!(glob("/workspace/**/*.py").await, json!(["/workspace/d/1.py", "/workspace/d/e/3.py"]));
    assert_eq!(glob("/workspace/d/*.%7Bpy,txt%7D").await, json!(["/workspace/d/1.py"]));
    assert_eq!(glob("/workspace/nope*").await, json!([]));
    server.get(&format!("{files}/glob?pattern=*.py")).await.refused(400, "bad_request", "absolute");
    server.delete(&format!("{files}?path=/workspace/d")).await.refused(400, "bad_request", "recursive");
    assert_eq!(
        server.delete(&format!("{files}?path=/workspace/d&recursive=true")).await.ok(),
        json!({"status": "deleted"})
    );
    server.delete(&format!("{files}?path=/&recursive=true")).await.refused(400, "bad_request", "");
    assert_eq!(server.output(&id, "ls /workspace").await, "new\n");
}

#[tokio::test]
async fn a_glob_with_too_many_results_is_refused() {
    let (server, id, files) = boxed().await;
    server.output(&id, "mkdir many; cd many; seq 1 10001 | xargs touch").await;
    server.get(&format!("{files}/glob?pattern=/workspace/many/*")).await.refused(400, "bad_request", "10,000");
    server.output(&id, "rm many/1").await;
    let found = server.get(&format!("{files}/glob?pattern=/workspace/many/*")).await.ok();
    assert_eq!(found.as_array().unwrap().len(), 10_000);
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_what_was_there() {
    let (server, id, files) = boxed().await;
    server.write(&id, "/workspace/f", "old").await;
    let half = futures_util::stream::iter([Ok("new"), Err(std::io::Error::other("gone"))]);
    let sent = server
        .request(Method::PUT, &format!("{files}/workspace/f"))
        .body(reqwest::Body::wrap_stream(half))
        .send()
        .await;
    assert!(sent.is_err());
    // The broken upload has been cleaned up once no temporary file is left.
    server.until("the clean-up", async || server.output(&id, "ls -A /workspace").await == "f\n").await;
    assert_eq!(server.output(&id, "cat /workspace/f").await, "old");
}

#[tokio::test]
async fn an_upload_above_the_limit_is_413_and_leaves_what_was_there() {
    let server = TestServer::start(&format!("{NATIVE} limits.max_file_bytes=1000000")).await;
    let id = server.spawn().await;
    let url = format!("/sandboxes/{id}/files/workspace/f");
    server.write(&id, "/workspace/f", "old").await;
    put_raw(&server, &url, vec![b'x'; 3_000_000]).await.refused(413, "payload_too_large", "1000000");
    let pieces = futures_util::stream::iter((0..30).map(|_| Ok::<_, std::io::Error>(vec![b'x'; 100_000])));
    let chunked = server.request(Method::PUT, &url).body(reqwest::Body::wrap_stream(pieces)).send().await.unwrap();
    Answer::read(chunked).await.refused(413, "payload_too_large", "1000000");
    put_raw(&server, &url, vec![b'x'; 1_000_000]).await.ok();
    assert_eq!(server.output(&id, "ls -A /workspace; stat -c %s /workspace/f").await, "f\n1000000\n");
}

#[tokio::test]
async fn a_large_file_goes_both_ways_unchanged() {
    let (server, _, files) = boxed().await;
    let content: Vec<u8> = (0..32u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    put_raw(&server, &format!("{files}/workspace/large"), content.clone()).await.ok();
    let read = server.get(&format!("{files}?path=/workspace/large")).await;
    assert!(read.bytes == content, "what came back differs");
}

#[tokio::test]
async fn a_full_box_answers_507() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn_with(json!({"disk_mb": 16})).await;
    let url = format!("/sandboxes/{id}/files/workspace/f");
    put_raw(&server, &url, vec![b'x'; 24 << 20]).await.refused(507, "no_space", "space");
    put_raw(&server, &url, vec![b'x'; 1 << 20]).await.ok();
    assert_eq!(server.output(&id, "ls -A /workspace").await, "f\n");
}

#[tokio::test]
async fn names_that_are_no_utf8_are_listed_and_take_nothing_away() {
    use fixtures::image::{Entry, layer};
    let server = TestServer::start(NATIVE).await;
    // Such names come with an image, or are made in the box.
    let odd =
        [Entry::dir("etc"), Entry::dir("odd"), Entry::file(b"odd/of \xff image", "x"), Entry::file("odd/plain", "y")];
    let import = server.request(Method::POST, "/images/import?name=odd:1").header("content-type", "application/x-tar");
    assert_eq!(Answer::read(import.body(layer(&odd)).send().await.unwrap()).await.status, 201);
    let of_image = server.spawn_with(json!({"image": "odd:1"})).await;
    let listed = server.get(&format!("/sandboxes/{of_image}/files/list?path=/odd")).await.ok();
    let names = |listed: &Value| -> Vec<String> {
        listed.as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&listed), [r"of \xff image", "plain"]);

    let id = server.spawn().await;
    let files = format!("/sandboxes/{id}/files");
    server.output(&id, r"mkdir /workspace/d && cd /workspace/d && echo x > $(printf 'a\377b') && echo y > plain").await;
    let listed = server.get(&format!("{files}/list?path=/workspace/d")).await.ok();
    assert_eq!(names(&listed), [r"a\xffb", "plain"]);
    assert_eq!(listed[0]["path"], r"/workspace/d/a\xffb");
    let found = server.get(&format!("{files}/glob?pattern=/workspace/d/*")).await.ok();
    assert_eq!(found, json!([r"/workspace/d/a\xffb", "/workspace/d/plain"]));
    // Its bytes themselves cannot be written in a request: that is refused, and breaks nothing.
    let raw = server.get(&format!("{files}/stat?path=/workspace/d/a%FFb")).await;
    assert!(matches!(raw.status.as_u16(), 400 | 404), "{raw:?}");
    assert_eq!(server.get(&format!("{files}?path=/workspace/d/plain")).await.bytes, b"y\n");
    server.delete(&format!("{files}?path=/workspace/d&recursive=true")).await.ok();
    server.get(&format!("{files}/list?path=/workspace/d")).await.refused(404, "not_found", "");
}
