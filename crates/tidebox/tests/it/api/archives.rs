//! `/sandboxes/{id}/files/archive`, on real boxes.

use std::io::Write as _;

use reqwest::Method;
use serde_json::json;
use tar::{Builder, EntryType, Header};

use crate::server::{Answer, NATIVE, TestServer};

async fn boxed() -> (TestServer, String, String) {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let archive = format!("/sandboxes/{id}/files/archive?path=");
    (server, id, archive)
}

async fn put(server: &TestServer, url: &str, bytes: Vec<u8>) -> Answer {
    encoded(server, url, bytes, "identity").await
}

async fn encoded(server: &TestServer, url: &str, bytes: Vec<u8>, encoding: &str) -> Answer {
    let request = server.request(Method::POST, url).header("content-type", "application/x-tar");
    Answer::read(request.header("content-encoding", encoding).body(bytes).send().await.unwrap()).await
}

fn header(kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o640);
    header.set_mtime(1_000_000_000);
    header.set_size(size);
    header
}

/// Returns an archive of members with any names, which a builder would refuse.
fn archive(members: &[(EntryType, &str, &str)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, content) in members {
        let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
        let mut header = header(*kind, if is_link { 0 } else { content.len() as u64 });
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        if is_link {
            header.as_old_mut().linkname[..content.len()].copy_from_slice(content.as_bytes());
        }
        header.set_cksum();
        builder.append(&header, if is_link { &b""[..] } else { content.as_bytes() }).unwrap();
    }
    builder.into_inner().unwrap()
}

#[tokio::test]
async fn a_tree_goes_out_and_in_again_as_it_was() {
    let (server, id, archive) = boxed().await;
    let make = "mkdir -p src/sub/empty src/closed && cd src && printf 'a b\\0c' > 'odd näme' && echo x > sub/run && \
                chmod 4755 sub/run && ln sub/run again && ln -s ../elsewhere link && ln -s /etc/passwd abs && \
                mkfifo fifo && head -c 3000000 /dev/urandom > large && : > empty && chmod 1777 sub && \
                long=$(printf 'd%.0s' $(seq 120)) && mkdir -p $long/$long && echo deep > $long/$long/file && \
                touch -d '2001-02-03 04:05:06.789' large && touch -h -d '1999-01-01' link && \
                echo in > closed/in && chmod 555 closed && touch -d '2010-01-01 00:00:00.5' sub closed";
    server.output(&id, make).await;
    let list = "find . -mindepth 1 ! -type p -printf '%P %y %m %n %s %T@ %l\\n' | sed 's/ d \\([0-9]*\\) [0-9]* [0-9]* / d \\1 /' \
                | sort; find . -type f | sort | xargs -d '\\n' sha256sum";
    let before = server.output(&id, &format!("cd src && {list}")).await;
    for (encoding, header) in [("", None), ("gzip", Some("gzip")), ("gzip, zstd", Some("zstd"))] {
        let request = server.request(Method::GET, &format!("{archive}/workspace/src"));
        let answer = Answer::read(request.header("accept-encoding", encoding).send().await.unwrap()).await;
        assert_eq!(answer.headers["content-type"], "application/x-tar");
        assert_eq!(answer.headers.get("content-encoding").map(|value| value.to_str().unwrap()), header);
        let there = format!("/workspace/there-{}", header.unwrap_or("plain"));
        let unpacked =
            encoded(&server, &format!("{archive}{there}"), answer.bytes.to_vec(), header.unwrap_or("identity")).await;
        assert!(unpacked.ok()["members"].as_u64().unwrap() > 10);
        let after = server.output(&id, &format!("cd {there} && {list}")).await;
        assert_eq!(before, after, "{encoding}");
    }
    // A tree over itself stays what it is, and a file goes by its own name.
    let answer = server.get(&format!("{archive}/workspace/src/large")).await;
    assert!(answer.bytes.len() > 3_000_000);
    put(&server, &format!("{archive}/workspace/src"), answer.bytes.to_vec()).await.ok();
    assert_eq!(server.output(&id, &format!("cd src && {list}")).await, before);
}

#[tokio::test]
async fn an_archive_that_would_lead_out_is_refused_and_nothing_is_written_there() {
    use EntryType::{Block, Char, Directory, Fifo, Link, Regular, Symlink};
    let (server, id, url) = boxed().await;
    let setup = "mkdir -p out /workspace/in/dir && echo safe > out/file && echo file > in/file && ln -s ../out in/old";
    server.output(&id, setup).await;
    let state = "ls -A /workspace; cat out/file; ls -A out; ls -l /etc/passwd";
    let before = server.output(&id, state).await;
    let check = async |members: &[(EntryType, &str, &str)], words: &str| {
        put(&server, &format!("{url}/workspace/in"), archive(members)).await.refused(400, "bad_request", words);
        assert_eq!(server.output(&id, state).await, before, "{members:?}");
    };
    check(&[(Regular, "/etc/passwd", "x")], "absolute").await;
    check(&[(Regular, "../out/file", "x")], "`..`").await;
    check(&[(Regular, "a/../../out/file", "x")], "`..`").await;
    check(&[(Symlink, "l", "../out"), (Regular, "l/file", "x")], "remove it first").await;
    check(&[(Symlink, "m", "/"), (Directory, "m/workspace/new/", "")], "remove it first").await;
    check(&[(Regular, "old/file", "x")], "`old`").await;
    check(&[(Symlink, "n", "../out/file"), (Link, "hard", "n/../file")], "`..`").await;
    check(&[(Link, "hard", "../out/file")], "`..`").await;
    check(&[(Link, "hard", "/etc/passwd")], "absolute").await;
    check(&[(Link, "hard", "old/file")], "`old`").await;
    check(&[(Link, "hard", "nothing")], "no such file").await;
    check(&[(Char, "null", ""), (Block, "disk", "")], "device").await;
    check(&[(Fifo, "fifo", "")], "FIFO").await;
    check(&[(Regular, "twice", "x"), (Regular, "twice/file", "x")], "`twice`").await;
    check(&[(Regular, "tree/file", "x"), (Regular, "tree", "x")], "a directory with this name").await;
    check(&[(Regular, "file/below", "x")], "`file`").await;
    check(&[(Regular, "dir", "x")], "a directory with this name").await;
    check(&[(Regular, ".", "x")], "directory itself").await;
    check(&[(EntryType::GNUSparse, "sparse", "x")], "sparse").await;
    check(&[(EntryType::XHeader, "pax", "999 path=x\n"), (Regular, "a", "")], "pax").await;
    check(&[(EntryType::XHeader, "pax", "22 GNU.sparse.major=1\n"), (Regular, "a", "")], "sparse").await;
    check(&[(EntryType::GNULongName, "n", "../long"), (Regular, "a", "")], "`..`").await;
    check(&[(EntryType::GNULongName, "n", &"x/".repeat(40_000)), (Regular, "a", "")], "header above").await;
    check(&[(EntryType::new(b'Z'), "odd", "")], "unknown kind").await;
    // A link over a link, and a file over a link, replace it.
    put(&server, &format!("{url}/workspace/in"), archive(&[(Regular, "old", "new\n")])).await.ok();
    assert_eq!(server.output(&id, "cat in/old; cat out/file").await, "new\nsafe\n");
    // Headers that lie, and what is no tar at all.
    let mut lies = archive(&[(Regular, "a", "x")]);
    lies[124..136].copy_from_slice(b"77777777777\0");
    let mut sum = Header::new_gnu();
    sum.as_mut_bytes().copy_from_slice(&lies[..512]);
    sum.set_cksum();
    lies[..512].copy_from_slice(sum.as_bytes());
    for (bytes, words) in [
        (lies, "truncated"),
        (vec![7; 4096], "not a tar archive"),
        (b"hello".to_vec(), "not a tar"),
        (vec![0xff; 512], "not a tar"),
    ] {
        put(&server, &format!("{url}/workspace/in"), bytes).await.refused(400, "bad_request", words);
    }
    assert_eq!(server.output(&id, "ls -A in/a 2>&1 | wc -l").await, "1\n", "no part of a file is left");
    put(&server, &format!("{url}/workspace/in/file"), archive(&[])).await.refused(
        400,
        "bad_request",
        "not a directory",
    );
    put(&server, &format!("{url}relative"), archive(&[])).await.refused(400, "bad_request", "absolute");
    server.get(&format!("{url}/none")).await.refused(404, "not_found", "/none");
    server.get(&format!("{url}/dev/null")).await.refused(400, "bad_request", "/dev/null");
}

#[tokio::test]
async fn a_cut_archive_leaves_what_was_whole_and_says_so() {
    let (server, id, url) = boxed().await;
    let content = "x".repeat(5000);
    let whole = archive(&[
        (EntryType::Regular, "a", content.as_str()),
        (EntryType::Regular, "b", content.as_str()),
        (EntryType::Regular, "c", content.as_str()),
    ]);
    let cut = whole[..2 * 5632 + 1000].to_vec();
    let refused = put(&server, &format!("{url}/workspace/d"), cut).await;
    refused.refused(400, "bad_request", "the 2 members before it were unpacked and remain");
    assert_eq!(server.output(&id, "ls d; cat d/* | wc -c").await, "a\nb\n10000\n");
}

#[tokio::test]
async fn a_body_that_is_no_archive_or_too_much_of_one_is_refused() {
    let server = TestServer::start(&format!("{NATIVE} limits.max_file_bytes=1048576")).await;
    let id = server.spawn().await;
    let url = format!("/sandboxes/{id}/files/archive?path=/workspace/d");
    let answer = Answer::read(server.request(Method::POST, &url).body(archive(&[])).send().await.unwrap()).await;
    answer.refused(415, "unsupported_media_type", "");
    encoded(&server, &url, archive(&[]), "br").await.refused(400, "bad_request", "`Content-Encoding`");
    encoded(&server, &url, archive(&[]), "gzip").await.refused(400, "bad_request", "`Content-Encoding`");
    // A bomb: a thousandth of what it becomes. Of a body that is refused, 16 MiB are read on.
    let bomb = archive(&[(EntryType::Regular, "zeros", &"\0".repeat(8 << 20))]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gzip.write_all(&bomb).unwrap();
    for (encoding, bytes) in [("gzip", gzip.finish().unwrap()), ("zstd", zstd::encode_all(&bomb[..], 3).unwrap())] {
        assert!(bytes.len() < 100_000);
        encoded(&server, &url, bytes, encoding).await.refused(413, "payload_too_large", "limits.max_file_bytes");
    }
    put(&server, &url, bomb).await.refused(413, "payload_too_large", "");
    let fits = archive(&[(EntryType::Regular, "zeros", &"\0".repeat(1 << 19))]);
    assert_eq!(put(&server, &url, fits).await.ok(), json!({"members": 1, "bytes": 1 << 19}));
}

#[tokio::test]
async fn an_archive_is_unpacked_as_the_user_of_the_box_and_a_full_box_says_so() {
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn_with(json!({"disk_mb": 16})).await;
    let url = format!("/sandboxes/{id}/files/archive?path=/workspace/d");
    let large = archive(&[(EntryType::Regular, "a", "x"), (EntryType::Regular, "b", &"x".repeat(32 << 20))]);
    put(&server, &url, large).await.refused(507, "no_space", "");
    assert_eq!(server.output(&id, "ls -A d; stat -c '%u %a' d/a").await, "a\n0 640\n");
}
