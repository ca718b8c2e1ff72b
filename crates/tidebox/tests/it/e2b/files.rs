//! Files: `/files`, signed links and `filesystem.Filesystem`.

use std::io::{Read as _, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{E2b, Sandbox, answer, refused};
use crate::server::{Answer, NATIVE};

const BOUNDARY: &str = "boundary123";

/// Returns a form with files, each a `filename` and its content.
fn form(files: &[(&str, &str)]) -> String {
    let mut form = String::new();
    for (name, content) in files {
        form.push_str(&format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n{content}\r\n"
        ));
    }
    form + &format!("--{BOUNDARY}--\r\n")
}

async fn upload(e2b: &E2b, sandbox: &Sandbox, query: &str, files: &[(&str, &str)]) -> Answer {
    let request = e2b.inside(Method::POST, &format!("/files?{query}"), sandbox);
    let kind = format!("multipart/form-data; boundary={BOUNDARY}");
    answer(request.header("content-type", kind).body(form(files))).await
}

async fn download(e2b: &E2b, sandbox: &Sandbox, query: &str) -> Answer {
    answer(e2b.inside(Method::GET, &format!("/files?{query}"), sandbox)).await
}

#[tokio::test]
async fn a_file_is_written_by_its_path_or_by_the_name_of_its_part_and_read_back() {
    let e2b = E2b::start(NATIVE).await;
    let made = e2b.create(json!({})).await;
    let written = upload(&e2b, &made, "path=/home/user/a.txt", &[("ignored", "one")]).await.ok();
    assert_eq!(written, json!([{"path": "/home/user/a.txt", "name": "a.txt", "type": "file"}]));
    let several = upload(&e2b, &made, "", &[("sub/b.txt", "two"), ("/tmp/c \u{e4}.txt", "three")]).await.ok();
    assert_eq!(several[0]["path"], "/home/user/sub/b.txt");
    assert_eq!(several[1], json!({"path": "/tmp/c \u{e4}.txt", "name": "c \u{e4}.txt", "type": "file"}));
    for (query, content) in [("path=a.txt", "one"), ("path=~/sub/b.txt", "two"), ("path=/tmp/c+%C3%A4.txt", "three")] {
        let read = download(&e2b, &made, query).await;
        assert_eq!((read.status.as_u16(), read.bytes.as_slice()), (200, content.as_bytes()), "{query}");
        assert_eq!(read.headers["content-length"], content.len().to_string());
    }
    let owners = e2b.server.output(&made.id, "stat -c %U /home/user/a.txt /home/user/sub /home/user/sub/b.txt").await;
    assert_eq!(owners, "user\nuser\nuser\n");
    // An existing file is truncated.
    upload(&e2b, &made, "path=a.txt", &[("x", "")]).await.ok();
    let empty = download(&e2b, &made, "path=a.txt").await;
    assert_eq!((&empty.headers["content-length"], empty.bytes.len()), (&"0".parse().unwrap(), 0));
}

#[tokio::test]
async fn the_content_may_be_the_body_and_be_compressed() {
    let e2b = E2b::start(NATIVE).await;
    let made = e2b.create(json!({})).await;
    let put = |query: &str| {
        let request = e2b.inside(Method::POST, &format!("/files?{query}"), &made);
        request.header("content-type", "application/octet-stream")
    };
    let content = "hello ".repeat(10_000);
    answer(put("path=plain").body(content.clone())).await.ok();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(content.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    answer(put("path=packed").header("content-encoding", "gzip").body(packed)).await.ok();
    for path in ["plain", "packed"] {
        assert_eq!(download(&e2b, &made, &format!("path={path}")).await.bytes, content.as_bytes());
    }
    let request = e2b.inside(Method::GET, "/files?path=plain", &made).header("accept-encoding", "gzip");
    let read = answer(request).await;
    assert_eq!(read.headers["content-encoding"], "gzip");
    let mut unpacked = String::new();
    flate2::read::GzDecoder::new(read.bytes.as_slice()).read_to_string(&mut unpacked).unwrap();
    assert_eq!(unpacked, content);
    let part = answer(e2b.inside(Method::GET, "/files?path=plain", &made).header("range", "bytes=6-10")).await;
    assert_eq!((part.status.as_u16(), part.bytes.as_slice()), (206, b"hello".as_slice()));
    let of_kernel = download(&e2b, &made, "path=/proc/version").await;
    assert!(of_kernel.bytes.starts_with(b"Linux"), "{of_kernel:?}");
    refused(&answer(put("").body("x")).await, 400, "`path`");
    let odd = e2b.inside(Method::POST, "/files?path=x", &made).header("content-type", "text/plain");
    refused(&answer(odd.body("x")).await, 400, "multipart/form-data");
    let cut = put("path=packed").header("content-encoding", "gzip").body("no gzip");
    assert_eq!(answer(cut).await.status, 400);
}

#[tokio::test]
async fn metadata_of_a_file_is_kept_until_it_is_written_again() {
    let e2b = E2b::start(NATIVE).await;
    let made = e2b.create(json!({})).await;
    let put = |path: &str| {
        let upload = e2b.inside(Method::POST, &format!("/files?path={path}"), &made);
        upload.header("content-type", "application/octet-stream").body("x")
    };
    let stat = async |path: &str| e2b.call(&made, "filesystem.Filesystem/Stat", json!({"path": path})).await.ok();
    let written = answer(put("d/a").header("X-Metadata-Author", "me").header("X-Metadata-b", "")).await.ok();
    let metadata = json!({"author": "me", "b": ""});
    assert_eq!(written[0]["metadata"], metadata);
    assert_eq!(stat("d/a").await["entry"]["metadata"], metadata);
    let moved = json!({"source": "d/a", "destination": "d/c"});
    let moved = e2b.call(&made, "filesystem.Filesystem/Move", moved).await.ok();
    assert_eq!(moved["entry"]["metadata"], metadata);
    e2b.server.output(&made.id, "cd /home/user/d; for i in $(seq 100); do touch $i; done; ln -s c link").await;
    let listed = e2b.call(&made, "filesystem.Filesystem/ListDir", json!({"path": "d"})).await.ok();
    let with: Vec<_> = listed["entries"].as_array().unwrap().iter().filter(|it| it.get("metadata").is_some()).collect();
    assert_eq!(with.len(), 1, "{with:?}");
    assert_eq!((&with[0]["name"], &with[0]["metadata"]), (&json!("c"), &metadata));
    assert_eq!(answer(put("d/c")).await.ok()[0].get("metadata"), None);
    assert_eq!(stat("d/c").await["entry"].get("metadata"), None);
    let set = "python3 -c \"import os; os.setxattr('/home/user/d/c', 'user.e2b.by', b'program')\"";
    e2b.server.output(&made.id, set).await;
    assert_eq!(stat("d/c").await["entry"]["metadata"], json!({"by": "program"}));
    refused(&answer(put("d/new").header("X-Metadata-k", "a\tb")).await, 400, "printable ASCII");
    let absent = e2b.call(&made, "filesystem.Filesystem/Stat", json!({"path": "d/new"})).await;
    assert_eq!(absent.status, 404);
}

#[tokio::test]
async fn a_file_that_cannot_be_read_or_written_is_refused_with_the_status_that_clients_map() {
    let e2b = E2b::start(NATIVE).await;
    let made = e2b.create(json!({})).await;
    for (query, status, words) in [
        ("path=/no/such", 404, "/no/such"),
        ("path=/tmp", 400, "/tmp"),
        ("path=~other/x", 400, "~"),
        ("path=/tmp/x&username=nobody-of-that-name", 401, "nobody-of-that-name"),
    ] {
        refused(&download(&e2b, &made, query).await, status, words);
    }
    refused(&upload(&e2b, &made, "path=/tmp", &[("x", "y")]).await, 400, "/tmp");
    refused(&upload(&e2b, &made, "path=/tmp/x&username=nobody-of-that-name", &[("x", "y")]).await, 401, "nobody");
    let torn = e2b.inside(Method::POST, "/files?path=x", &made);
    let torn = torn.header("content-type", format!("multipart/form-data; boundary={BOUNDARY}"));
    refused(&answer(torn.body(form(&[("x", "y")]).replace("--\r\n", ""))).await, 400, "form");
    upload(&e2b, &made, "path=/root/as-root&username=root", &[("x", "y")]).await.ok();
    assert_eq!(e2b.server.output(&made.id, "stat -c %U /root/as-root").await, "root\n");
}

fn signature(text: &str) -> String {
    let hash = STANDARD_NO_PAD.encode(Sha256::digest(text));
    format!("v1_{}", hash.replace('+', "%2B").replace('/', "%2F"))
}

#[tokio::test]
async fn a_signed_link_opens_its_file_for_its_operation_until_it_ends() {
    let e2b = E2b::start(NATIVE).await;
    let made = e2b.create(json!({})).await;
    upload(&e2b, &made, "path=a.txt", &[("x", "signed")]).await.ok();
    let token = &made.token;
    let good = signature(&format!("a.txt:read:user:{token}"));
    let later = signature(&format!("a.txt:read::{token}:99999999999"));
    let past = signature(&format!("a.txt:read::{token}:1000"));
    let write = signature(&format!("b.txt:write::{token}"));
    // With the headers of a sandbox, and without: a link does not say whose it is.
    for named in [true, false] {
        let get = async |query: &str| {
            let request = e2b.bare(Method::GET, &format!("/files?{query}"));
            answer(if named { request.header("E2b-Sandbox-Id", &made.id) } else { request }).await
        };
        assert_eq!(get(&format!("path=a.txt&username=user&signature={good}")).await.bytes, b"signed");
        let until = get(&format!("path=a.txt&signature={later}&signature_expiration=99999999999")).await;
        assert_eq!(until.bytes, b"signed");
        for query in [
            format!("path=a.txt&signature={past}&signature_expiration=1000"),
            format!("path=b.txt&username=user&signature={good}"),
            format!("path=a.txt&signature={good}"),
            format!("path=a.txt&username=user&signature={good}%3D"),
            format!("path=a.txt&username=user&signature={good}&signature_expiration=99999999999"),
            "path=a.txt&signature=".to_owned(),
            "path=a.txt".to_owned(),
        ] {
            refused(&get(&query).await, 401, "");
        }
    }
    let put = e2b.bare(Method::POST, &format!("/files?path=b.txt&signature={write}"));
    let put = put.header("content-type", "application/octet-stream").body("by link");
    answer(put).await.ok();
    assert_eq!(download(&e2b, &made, "path=b.txt").await.bytes, b"by link");
    // A wrong token counts before a right signature.
    let both = e2b.bare(Method::GET, &format!("/files?path=a.txt&username=user&signature={good}"));
    let both = both.header("E2b-Sandbox-Id", &made.id).header("X-Access-Token", "wrong");
    refused(&answer(both).await, 401, "X-Access-Token");
}

/// Makes a call of the file system as a user.
async fn as_user(e2b: &E2b, sandbox: &Sandbox, user: &str, method: &str, body: Value) -> Answer {
    let basic = format!("Basic {}", BASE64.encode(format!("{user}:")));
    let request = e2b.inside(Method::POST, &format!("/filesystem.Filesystem/{method}"), sandbox);
    answer(request.header("authorization", basic).json(&body)).await
}

#[track_caller]
fn rpc_error(answer: &Answer, status: u16, code: &str) {
    let body = answer.json();
    assert_eq!((answer.status.as_u16(), body["code"].as_str()), (status, Some(code)), "{body}");
}

#[tokio::test]
async fn files_are_described_listed_made_moved_and_removed() {
    let e2b = E2b::start(NATIVE).await;
    let made = e2b.create(json!({})).await;
    let fs = async |method: &str, body: Value| e2b.call(&made, &format!("filesystem.Filesystem/{method}"), body).await;
    upload(&e2b, &made, "path=d/a.txt", &[("x", "abc")]).await.ok();
    let entry = fs("Stat", json!({"path": "d/a.txt"})).await.ok()["entry"].clone();
    let expected = json!({"name": "a.txt", "type": "FILE_TYPE_FILE", "path": "/home/user/d/a.txt", "size": "3", "mode": 420,
        "permissions": "-rw-r--r--", "owner": "user", "group": "user", "modifiedTime": entry["modifiedTime"]});
    assert_eq!(entry, expected);
    let new = fs("MakeDir", json!({"path": "d/e/f"})).await.ok();
    assert_eq!(
        (&new["entry"]["type"], &new["entry"]["path"]),
        (&json!("FILE_TYPE_DIRECTORY"), &json!("/home/user/d/e/f"))
    );
    rpc_error(&fs("MakeDir", json!({"path": "d/e"})).await, 409, "already_exists");
    rpc_error(&fs("MakeDir", json!({"path": "d/a.txt"})).await, 400, "invalid_argument");
    e2b.server.output(&made.id, "cd /home/user/d && ln -s a.txt link && ln -s nowhere dangling && ln -s e dir").await;
    let names = async |depth: u32| {
        let listed = fs("ListDir", json!({"path": "~/d", "depth": depth})).await.ok();
        let entries = listed["entries"].as_array().unwrap().clone();
        let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        let shown =
            entries.iter().map(|entry| (text(entry, "path"), text(entry, "type"), text(entry, "symlinkTarget")));
        shown.collect::<Vec<_>>()
    };
    let shown = |path: &str, kind: &str, target: &str| {
        (format!("/home/user/d/{path}"), format!("FILE_TYPE_{kind}"), target.to_owned())
    };
    let flat = vec![
        shown("a.txt", "FILE", ""),
        shown("dangling", "UNSPECIFIED", "nowhere"),
        shown("dir", "DIRECTORY", "/home/user/d/e"),
        shown("e", "DIRECTORY", ""),
        shown("link", "FILE", "/home/user/d/a.txt"),
    ];
    assert_eq!(names(0).await, flat);
    let mut deep = flat.clone();
    deep.insert(4, shown("e/f", "DIRECTORY", ""));
    assert_eq!(names(3).await, deep);
    let moved = fs("Move", json!({"source": "d/a.txt", "destination": "new/b.txt"})).await.ok();
    assert_eq!(moved["entry"]["path"], "/home/user/new/b.txt");
    rpc_error(&fs("Move", json!({"source": "d/a.txt", "destination": "x"})).await, 404, "not_found");
    for (method, body, status, code) in [
        ("Stat", json!({"path": "d/a.txt"}), 404, "not_found"),
        ("Stat", json!({"path": "~other"}), 400, "invalid_argument"),
        ("Stat", json!({"path": 7}), 400, "invalid_argument"),
        ("ListDir", json!({"path": "none"}), 404, "not_found"),
        ("ListDir", json!({"path": "new/b.txt"}), 400, "invalid_argument"),
        ("ListDir", json!({"path": "d", "depth": -1}), 400, "invalid_argument"),
        ("RemoveWatcher", json!({"watcherId": "x"}), 404, "not_found"),
        ("GetWatcherEvents", json!({"watcherId": "7-n-Lw"}), 404, "not_found"),
        ("CreateWatcher", json!({"path": "none"}), 404, "not_found"),
        ("CreateWatcher", json!({"path": "new/b.txt"}), 400, "invalid_argument"),
    ] {
        rpc_error(&fs(method, body).await, status, code);
    }
    assert_eq!(fs("Remove", json!({"path": "d"})).await.ok(), json!({}));
    assert_eq!(fs("Remove", json!({"path": "d"})).await.ok(), json!({}));
    rpc_error(&as_user(&e2b, &made, "nobody-of-that-name", "Stat", json!({"path": "/"})).await, 401, "unauthenticated");
    let as_root = as_user(&e2b, &made, "root", "MakeDir", json!({"path": "of-root"})).await.ok();
    assert_eq!((&as_root["entry"]["path"], &as_root["entry"]["owner"]), (&json!("/root/of-root"), &json!("root")));
}

#[tokio::test]
async fn a_watcher_tells_exactly_what_a_write_does_and_all_of_it_at_once() {
    let e2b = E2b::start(NATIVE).await;
    let made = e2b.create(json!({})).await;
    let fs =
        async |method: &str, body: Value| e2b.call(&made, &format!("filesystem.Filesystem/{method}"), body).await.ok();
    fs("MakeDir", json!({"path": "watched"})).await;
    let watcher = fs("CreateWatcher", json!({"path": "watched", "recursive": true, "includeEntry": true})).await;
    let events = async || {
        let told = fs("GetWatcherEvents", watcher.clone()).await;
        let told = told["events"].as_array().unwrap().clone();
        let pairs = told.iter().map(|event| {
            let kind = event["type"].as_str().unwrap().trim_start_matches("EVENT_TYPE_").to_owned();
            (event["name"].as_str().unwrap().to_owned(), kind, event["entry"]["path"].as_str().map(str::to_owned))
        });
        pairs.collect::<Vec<_>>()
    };
    assert_eq!(events().await, []);
    upload(&e2b, &made, "path=watched/a", &[("x", "abc")]).await.ok();
    let of = |kind: &str| ("a".to_owned(), kind.to_owned(), Some("/home/user/watched/a".to_owned()));
    assert_eq!(events().await, [of("CREATE"), of("CHMOD"), of("WRITE")]);
    fs("Move", json!({"source": "watched/a", "destination": "watched/b"})).await;
    fs("Remove", json!({"path": "watched/b"})).await;
    let names: Vec<_> = events().await.into_iter().map(|(name, kind, _)| format!("{name} {kind}")).collect();
    assert_eq!(names, ["a RENAME", "b CREATE", "b REMOVE"]);
    fs("RemoveWatcher", watcher.clone()).await;
    rpc_error(&e2b.call(&made, "filesystem.Filesystem/GetWatcherEvents", watcher.clone()).await, 404, "not_found");
}

#[tokio::test]
async fn a_form_of_anything_but_content_is_refused_and_takes_no_memory() {
    let e2b = E2b::start(NATIVE).await;
    let made = e2b.create(json!({})).await;
    let put = |body: Vec<u8>, encoding: &'static str| {
        let request = e2b.inside(Method::POST, "/files?path=x", &made).header("content-encoding", encoding);
        answer(request.header("content-type", format!("multipart/form-data; boundary={BOUNDARY}")).body(body))
    };
    let fine = form(&[("x", &"content ".repeat(100_000))]);
    put(fine.clone().into(), "identity").await.ok();
    let mut zeros = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::copy(&mut std::io::repeat(0).take(64 << 20), &mut zeros).unwrap();
    let zeros = zeros.finish().unwrap();
    let before = e2b.server.peak_kib();
    refused(&put(zeros, "gzip").await, 400, "65536 bytes");
    let grown = e2b.server.peak_kib() - before;
    assert!(grown < 16 * 1024, "{grown} KiB");
    let long = fine.replacen("\r\n", &format!("\r\nX-Long: {}\r\n", "x".repeat(100_000)), 1);
    refused(&put(long.into(), "identity").await, 400, "65536 bytes");
    // A part by another name may be as long as it likes.
    let other = fine.replace("name=\"file\"", "name=\"other\"");
    assert_eq!(put(other.into(), "identity").await.ok(), json!([]));
}
