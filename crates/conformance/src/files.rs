//! Operations on single files.

use futures_util::future::{join, join_all};
use futures_util::{StreamExt, stream};
use providers::{Command, Error, Result};

use super::case::{CASE_TIME_MAX, Case, case};
use super::subject::{Inside, Subject, noise, pieces, sh, soon};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("what is written is read again", round_trip),
        case!("a part of a file can be read", ranges),
        case!("a large file survives the round trip", large),
        case!("a thousand small files can be written at once", many),
        case!("thousands of reads that are left disturb nothing", left),
        case!("commands and requests see the same files", shared),
        case!("missing parents are made", parents),
        case!("a file keeps its mode unless another is asked for", modes, Modes),
        case!("a write that fails leaves what was there, and nothing else", atomic),
        case!("readers see the old content or the new, never a mixture", never_mixed),
        case!("a path that makes no sense is invalid", bad_paths),
        case!("what is not there is not found", absent),
        case!("only regular files are read", only_regular, Processes),
        case!("directories and devices are not read or written", not_regular),
        case!("names of any characters work", odd_names),
        case!("names that are no UTF-8 are listed, and hide nothing", no_utf8, Processes),
        case!("paths as long as the kernel takes them work", long_paths, Depth),
        case!("permission bits are set, through links", chmod, Modes),
        case!("the bits beyond the permissions are set", special_bits, SpecialBits),
    ]
}

fn is_invalid<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Invalid(_)))
}

fn is_absent<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::NotFound(_)))
}

async fn round_trip(subject: Subject) {
    let inside = subject.start().await;
    for content in [&b""[..], b"text\n", b"\0\xff\r\n", &noise(70_000)] {
        inside.write("/workspace/file", content).await;
        assert!(inside.read("/workspace/file").await == content);
        let info = inside.guest.stat("/workspace/file").await.unwrap();
        assert_eq!((info.size, info.is_dir, info.is_symlink), (content.len() as u64, false, false));
        assert_eq!((info.name.as_str(), info.path.as_str()), ("file", "/workspace/file"));
    }
}

async fn ranges(subject: Subject) {
    let inside = subject.start().await;
    let content = noise(300_000);
    inside.write("/workspace/file", &content).await;
    for (offset, length) in
        [(0, Some(0)), (0, Some(1)), (7, None), (100_000, Some(150_000)), (299_999, Some(10)), (300_000, None)]
    {
        let end = length.map_or(content.len(), |length: usize| (offset + length).min(content.len()));
        let part = inside.read_part("/workspace/file", offset as u64, length.map(|length| length as u64)).await;
        assert!(part == content[offset..end], "{offset} {length:?}");
    }
    assert!(inside.read_part("/workspace/file", u64::MAX, Some(u64::MAX)).await.is_empty());
    let info = inside.guest.read_file("/workspace/file", 5, Some(1)).await.unwrap().info;
    assert_eq!(info.size, 300_000);
}

async fn large(subject: Subject) {
    let inside = subject.start().await;
    let content = noise(16 * 1024 * 1024);
    inside.write("/workspace/large", &content).await;
    assert!(inside.read("/workspace/large").await == content);
    assert_eq!(inside.sh("cat large | wc -c").await.text().trim(), content.len().to_string());
}

async fn many(subject: Subject) {
    let inside = subject.start().await;
    let paths: Vec<String> = (0..1000).map(|n| format!("/workspace/many/{n:04}")).collect();
    join_all(paths.iter().map(|path| inside.write(path, path))).await;
    let entries = inside.guest.list("/workspace/many").await.unwrap();
    assert_eq!(entries.len(), 1000, "some are lost, or temporary files are left");
    for content in join_all(paths.iter().map(async |path| inside.read(path).await == path.as_bytes())).await {
        assert!(content);
    }
    // A thousand writes at once into one file leave one of the contents.
    join_all(paths.iter().map(|path| inside.write("/workspace/one", path))).await;
    assert!(paths.contains(&String::from_utf8(inside.read("/workspace/one").await).unwrap()));
    assert_eq!(inside.guest.list("/workspace").await.unwrap().len(), 2);
}

async fn left(subject: Subject) {
    let inside = subject.start().await;
    inside.write("/workspace/file", noise(1 << 20)).await;
    let waits = sh("until [ -e done ]; do sleep 0.1; done; echo ok");
    let beside = inside.run(Command { timeout: CASE_TIME_MAX, ..waits });
    let left = async || drop(inside.guest.read_file("/workspace/file", 0, None).await.unwrap());
    let requests = async {
        // More at a time than HTTP/2 remembers by itself, and more in all than it forgives.
        for _ in 0..25 {
            join_all((0..100).map(|_| left())).await;
        }
        inside.write("/workspace/done", "").await;
    };
    assert_eq!(join(beside, requests).await.0.text(), "ok\n");
}

async fn shared(subject: Subject) {
    let inside = subject.start().await;
    inside.write("/workspace/in", "from outside\n").await;
    let ran = inside.sh("cat in; echo from inside > out; mkdir -p d/e; touch d/e/f").await;
    assert_eq!(ran.text(), "from outside\n");
    assert_eq!(inside.read("/workspace/out").await, b"from inside\n");
    assert_eq!(inside.read("/workspace/d/e/f").await, b"");
    assert_eq!(inside.sh("rm -r d; ls").await.text(), "in\nout\n");
}

async fn parents(subject: Subject) {
    let inside = subject.start().await;
    inside.write("/workspace/a/b/c/file", "x").await;
    for path in ["/workspace/a", "/workspace/a/b", "/workspace/a/b/c"] {
        let info = inside.guest.stat(path).await.unwrap();
        assert_eq!((info.is_dir, info.mode), (true, 0o755), "{path}");
    }
    assert!(is_invalid(inside.guest.write_file("/workspace/a/b/c/file/below", None, pieces(b"x")).await));
}

async fn modes(subject: Subject) {
    let inside = subject.start().await;
    let mode = async |path: &str| inside.guest.stat(path).await.unwrap().mode;
    inside.write("/workspace/file", "x").await;
    assert_eq!(mode("/workspace/file").await, 0o644);
    inside.guest.write_file("/workspace/file", Some(0o600), pieces(b"y")).await.unwrap();
    assert_eq!(mode("/workspace/file").await, 0o600);
    inside.write("/workspace/file", "z").await;
    assert_eq!(mode("/workspace/file").await, 0o600);
    inside.guest.write_file("/workspace/run", Some(0o755), pieces(b"#!/bin/sh\nexit 6\n")).await.unwrap();
    assert_eq!(inside.sh("./run").await.code(), 6);
    assert!(is_invalid(inside.guest.write_file("/workspace/file", Some(0o10000), pieces(b"")).await));
}

async fn atomic(subject: Subject) {
    let inside = subject.start().await;
    inside.write("/workspace/file", "old").await;
    let broken = || {
        let fault = stream::iter([Err(Error::Invalid("the content broke".to_owned()))]);
        pieces(&noise(500_000)).chain(fault).boxed()
    };
    for path in ["/workspace/file", "/workspace/new"] {
        assert!(is_invalid(soon("a write that fails", inside.guest.write_file(path, None, broken())).await));
    }
    // A writer that is dropped in the middle.
    let stuck = pieces(&noise(500_000)).chain(stream::pending()).boxed();
    let write = inside.guest.write_file("/workspace/file", None, stuck);
    assert!(tokio::time::timeout(std::time::Duration::from_millis(200), write).await.is_err());
    super::subject::eventually("nothing is left of it", || async {
        inside.guest.list("/workspace").await.unwrap().len() == 1
    })
    .await;
    assert_eq!(inside.read("/workspace/file").await, b"old");
}

async fn never_mixed(subject: Subject) {
    let inside = subject.start().await;
    let contents = [vec![b'a'; 200_000], vec![b'b'; 300_000]];
    inside.write("/workspace/file", &contents[0]).await;
    let writes = async {
        for round in 0..20 {
            inside.write("/workspace/file", &contents[round % 2]).await;
        }
    };
    let reads = async {
        for _ in 0..25 {
            assert!(contents.contains(&inside.read("/workspace/file").await));
        }
    };
    tokio::join!(writes, reads);
}

async fn bad_paths(subject: Subject) {
    let inside = subject.start().await;
    let long = format!("/{}", "a/".repeat(2048));
    for path in ["", "relative", "./x", "../x", "/a\0b", &long] {
        let guest = &inside.guest;
        assert!(is_invalid(guest.read_file(path, 0, None).await), "read {path:?}");
        assert!(is_invalid(guest.write_file(path, None, pieces(b"x")).await), "write {path:?}");
        assert!(is_invalid(guest.delete(path, true).await), "delete {path:?}");
        assert!(is_invalid(guest.list(path).await), "list {path:?}");
        assert!(is_invalid(guest.stat(path).await), "stat {path:?}");
        assert!(is_invalid(guest.rename(path, "/tmp/x").await), "rename {path:?}");
        assert!(is_invalid(guest.rename("/etc/passwd", path).await), "rename to {path:?}");
        assert!(is_invalid(guest.chmod(path, 0o644).await), "chmod {path:?}");
        assert!(is_invalid(guest.glob(path).await), "glob {path:?}");
    }
    let name = format!("/workspace/{}", "a".repeat(256));
    assert!(is_invalid(inside.guest.write_file(&name, None, pieces(b"x")).await));
}

async fn absent(subject: Subject) {
    let inside = subject.start().await;
    for path in ["/workspace/none", "/none/at/all"] {
        assert!(is_absent(inside.guest.read_file(path, 0, None).await));
        assert!(is_absent(inside.guest.delete(path, false).await));
        assert!(is_absent(inside.guest.delete(path, true).await));
        assert!(is_absent(inside.guest.list(path).await));
        assert!(is_absent(inside.guest.stat(path).await));
        assert!(is_absent(inside.guest.rename(path, "/tmp/x").await));
        assert!(is_absent(inside.guest.chmod(path, 0o644).await));
    }
}

async fn only_regular(subject: Subject) {
    let inside = subject.start().await;
    assert_eq!(inside.sh("mkfifo fifo; ln -s fifo link").await.code(), 0);
    for path in ["/workspace/fifo", "/workspace/link", "/dev/zero", "/dev/random"] {
        assert!(is_invalid(soon(path, inside.guest.read_file(path, 0, None)).await), "{path}");
    }
    // A file of the kernel has a size of 0 and yet content.
    assert!(inside.read("/proc/self/status").await.starts_with(b"Name:"));
}

async fn not_regular(subject: Subject) {
    let inside = subject.start().await;
    for path in ["/", "/workspace", "/workspace/", "/dev/null"] {
        assert!(is_invalid(soon(path, inside.guest.read_file(path, 0, None)).await), "read {path}");
        assert!(is_invalid(soon(path, inside.guest.write_file(path, None, pieces(b"x"))).await), "write {path}");
    }
    assert_eq!(inside.run(sh("echo x > /dev/null; cat /dev/null")).await.code(), 0);
}

async fn odd_names(subject: Subject) {
    let inside = subject.start().await;
    let long = "n".repeat(250);
    let odd =
        ["a b", "ünï ☃", "new\nline", "tab\t\u{1}", "100%41", "-rf", "*", "quote\"'\\", ".hidden", "\u{7f}", &long];
    for name in odd {
        comes_and_goes(&inside, &format!("/workspace/{name}")).await;
    }
    let roundabout = "/workspace/./x/../../workspace//plain";
    inside.sh("mkdir -p x").await;
    inside.write(roundabout, "content").await;
    assert_eq!(inside.guest.stat(roundabout).await.unwrap().path, "/workspace/plain");
}

async fn no_utf8(subject: Subject) {
    let inside = subject.start().await;
    let made = inside.sh("cd /workspace; mkdir -p d && cd d && echo x > \"$(printf 'a\\377')\" && echo y > plain && ln -s \"$(printf 'to\\376')\" z").await;
    assert_eq!(made.code(), 0, "{made:?}");
    let listed = inside.guest.list("/workspace/d").await.unwrap();
    let seen: Vec<_> = listed.iter().map(|info| (info.name.as_str(), info.target.as_deref())).collect();
    assert_eq!(seen, [(r"a\xff", None), ("plain", None), ("z", Some(r"to\xfe"))]);
    assert_eq!(
        inside.guest.glob("/workspace/d/*").await.unwrap(),
        [r"/workspace/d/a\xff", "/workspace/d/plain", "/workspace/d/z"]
    );
    // The text of the name finds the file.
    assert_eq!(inside.read(r"/workspace/d/a\xff").await, b"x\n");
    inside.guest.rename(r"/workspace/d/a\xff", r"/workspace/d/b\x80\x5cxff").await.unwrap();
    assert_eq!(inside.sh(r"cat /workspace/d/b?\\xff").await.code(), 0);
    assert_eq!(inside.read("/workspace/d/plain").await, b"y\n");
    inside.guest.delete("/workspace/d", true).await.unwrap();
    assert!(!inside.exists("/workspace/d").await);
}

async fn long_paths(subject: Subject) {
    let name = "n".repeat(250);
    comes_and_goes(&subject.start().await, &format!("/{name}").repeat(16)).await;
}

async fn comes_and_goes(inside: &Inside, path: &str) {
    inside.write(path, "content").await;
    assert_eq!(inside.read(path).await, b"content", "{path:?}");
    assert_eq!(inside.guest.stat(path).await.unwrap().path, path);
    inside.guest.delete(path, false).await.unwrap();
    assert!(!inside.exists(path).await);
}

async fn chmod(subject: Subject) {
    let inside = subject.start().await;
    inside.write("/workspace/file", "x").await;
    assert_eq!(inside.sh("ln -s file link").await.code(), 0);
    for mode in [0o600, 0o755, 0o000, 0o777] {
        inside.guest.chmod("/workspace/link", mode).await.unwrap();
        assert_eq!(inside.guest.stat("/workspace/file").await.unwrap().mode, mode);
    }
    assert!(inside.guest.stat("/workspace/link").await.unwrap().is_symlink);
    assert!(is_invalid(inside.guest.chmod("/workspace/file", 0o10000).await));
}

async fn special_bits(subject: Subject) {
    let inside = subject.start().await;
    inside.guest.chmod("/workspace", 0o1777).await.unwrap();
    assert_eq!(inside.guest.stat("/workspace").await.unwrap().mode, 0o1777);
}
