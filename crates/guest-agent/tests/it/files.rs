//! Files of the box.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use bytes::Bytes;
use guest_protocol::{
    Chmod, Delete, FILE_HEADER, Failure, FailureKind, FileInfo, Glob, PathOnly, ReadFile, Rename, WriteFile,
};
use http_body_util::{BodyExt, Full};
use hyper::StatusCode;
use percent_encoding::percent_decode_str;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::harness::{Agent, Pieces, answer, eventually, header, within};

impl Agent {
    pub async fn read(&mut self, path: &str, offset: u64, length: Option<u64>) -> Result<(FileInfo, Bytes), Failure> {
        let (name, value) = header(&ReadFile { path: path.to_owned(), offset, length });
        let response = self.send("GET", "/file", Full::default().boxed_unsync(), &[(name, &value)]).await;
        if response.status() != StatusCode::OK {
            return Err(answer::<Value>(response).await.unwrap_err());
        }
        let info = response.headers()[FILE_HEADER].to_str().unwrap().to_owned();
        let info = serde_json::from_str(&percent_decode_str(&info).decode_utf8().unwrap()).unwrap();
        Ok((info, within(response.into_body().collect()).await.unwrap().to_bytes()))
    }

    pub async fn write(&mut self, path: &str, mode: Option<u32>, content: impl Into<Bytes>) -> Result<(), Failure> {
        let (name, value) = header(&WriteFile { path: path.to_owned(), mode, in_place: false, xattrs: None });
        let body = Full::new(content.into()).boxed_unsync();
        answer::<Value>(self.send("PUT", "/file", body, &[(name, &value)]).await).await.map(drop)
    }

    pub async fn delete(&mut self, path: &str, recursive: bool) -> Result<(), Failure> {
        self.ask::<Value>("/files/delete", &Delete { path: path.to_owned(), recursive }).await.map(drop)
    }

    pub async fn stat(&mut self, path: &str) -> Result<FileInfo, Failure> {
        self.ask("/files/stat", &PathOnly { path: path.to_owned() }).await
    }

    pub async fn list(&mut self, path: &str) -> Result<Vec<FileInfo>, Failure> {
        self.ask("/files/list", &PathOnly { path: path.to_owned() }).await
    }

    pub async fn glob(&mut self, pattern: &str) -> Result<Vec<String>, Failure> {
        self.ask("/files/glob", &Glob { pattern: pattern.to_owned() }).await
    }

    pub async fn rename(&mut self, old: &str, new: &str) -> Result<(), Failure> {
        let request = Rename { old_path: old.to_owned(), new_path: new.to_owned() };
        self.ask::<Value>("/files/move", &request).await.map(drop)
    }
}

pub fn kind<T: std::fmt::Debug>(result: Result<T, Failure>) -> FailureKind {
    result.unwrap_err().kind
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn mode(path: &str) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[tokio::test]
async fn what_is_written_is_read_back_whole_and_in_parts() {
    let mut agent = Agent::start().await;
    let path = agent.path("a/b/c.bin");
    let content: Vec<u8> = (0..3_000_000_u32).flat_map(|n| n.to_le_bytes()).collect();
    agent.write(&path, None, content.clone()).await.unwrap();
    assert_eq!((mode(&path), mode(&agent.path("a/b"))), (0o644, 0o755));
    let (info, read) = agent.read(&path, 0, None).await.unwrap();
    assert!(read == content);
    assert_eq!((info.size, info.name.as_str(), info.mode), (12_000_000, "c.bin", 0o644));
    assert_eq!(agent.read(&path, 5, Some(700_000)).await.unwrap().1, content[5..700_005]);
    assert_eq!(agent.read(&path, 11_999_999, Some(10)).await.unwrap().1, content[11_999_999..]);
    assert_eq!(agent.read(&path, 12_000_001, None).await.unwrap().1.len(), 0);
    assert_eq!(agent.read(&path, u64::MAX, None).await.unwrap().1.len(), 0);
    let (_, version) = agent.read("/proc/version", 0, None).await.unwrap();
    assert!(version.starts_with(b"Linux"));
    agent.end().await;
}

#[tokio::test]
async fn only_regular_files_are_read_and_nobody_is_waited_for() {
    let mut agent = Agent::start().await;
    let (fifo, dir) = (agent.path("fifo"), agent.path("dir"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    fs::create_dir(&dir).unwrap();
    symlink("loop", agent.path("loop")).unwrap();
    let (looped, socket, missing) = (agent.path("loop"), agent.path("agent.sock"), agent.path("missing"));
    for path in [&fifo, &dir, "/dev/zero", "/dev/tty", &socket, &looped, "", "relative", "/a\0", "/../../etc"] {
        assert_eq!(kind(agent.read(path, 0, None).await), FailureKind::Invalid, "{path}");
    }
    for path in [missing.as_str(), "/etc/passwd/x"] {
        assert_eq!(kind(agent.read(path, 0, None).await), FailureKind::NotFound, "{path}");
    }
    for path in [&fifo, &dir, &socket, &looped, "/", "/tmp/", "/tmp/..", "/etc/passwd/x", "/proc/nothing"] {
        assert_eq!(kind(agent.write(path, None, "x").await), FailureKind::Invalid, "{path}");
    }
    assert_eq!(kind(agent.write(&missing, Some(0o10000), "x").await), FailureKind::Invalid);
    let long = format!("{}/{}", agent.path(""), "x".repeat(256));
    assert_eq!(kind(agent.write(&long, None, "x").await), FailureKind::Invalid);
    agent.end().await;
}

#[tokio::test]
async fn a_write_keeps_mode_and_owner_and_goes_through_links() {
    let mut agent = Agent::start().await;
    let (file, link, dangling) = (agent.path("file"), agent.path("d/link"), agent.path("dangling"));
    fs::write(&file, "old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o4751)).unwrap();
    std::os::unix::fs::chown(&file, Some(1234), Some(4321)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o4751)).unwrap();
    fs::create_dir(agent.path("d")).unwrap();
    symlink("../file", &link).unwrap();
    symlink(agent.path("made/later"), &dangling).unwrap();
    agent.write(&link, None, "new").await.unwrap();
    let metadata = fs::metadata(&file).unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (1234, 4321, 0o4751));
    assert_eq!(fs::read(&file).unwrap(), b"new");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    agent.write(&dangling, Some(0o600), "x").await.unwrap();
    assert_eq!(mode(&agent.path("made/later")), 0o600);
    agent.end().await;
}

#[tokio::test]
async fn an_interrupted_write_leaves_what_was_there_and_nothing_else() {
    let mut agent = Agent::start().await;
    let file = agent.path("file");
    fs::write(&file, "old").unwrap();
    let before = names(agent.dir.path());
    for path in [file.clone(), agent.path("new/deep/file")] {
        let mut second = agent.connect().await;
        let (name, value) = header(&WriteFile { path, mode: None, in_place: false, xattrs: None });
        let (sender, receiver) = mpsc::channel(1);
        let request = hyper::Request::put("http://box/file")
            .header(guest_protocol::VERSION_HEADER, guest_protocol::VERSION.to_string())
            .header(name, &value)
            .body(Pieces(receiver).boxed_unsync())
            .unwrap();
        let pending = second.send_request(request);
        sender.send(Bytes::from(vec![1; 1_000_000])).await.unwrap();
        eventually("it is being written", || names(agent.dir.path()) != before).await;
        assert_eq!(fs::read(&file).unwrap(), b"old");
        drop(pending);
        eventually("all is as before", || names(agent.dir.path()) == before).await;
        assert_eq!(fs::read(&file).unwrap(), b"old");
    }
    agent.end().await;
}

#[tokio::test]
async fn a_full_file_system_says_so_and_keeps_the_old_file() {
    let mut agent = Agent::start().await;
    let mounted = agent.path("small");
    fs::create_dir(&mounted).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    if rustix::mount::mount("none", &mounted, "tmpfs", flags, Some(c"size=1m")).is_err() {
        println!("skipped: nothing can be mounted here");
        return agent.end().await;
    }
    let file = format!("{mounted}/file");
    fs::write(&file, "old").unwrap();
    let result = agent.write(&file, None, vec![1; 2_000_000]).await;
    let (kept, there) = (fs::read(&file).unwrap(), names(Path::new(&mounted)));
    // A move to another file system is a copy.
    let (source, target) = (agent.path("source"), format!("{mounted}/target"));
    fs::write(&source, "moved").unwrap();
    let moved = agent.rename(&source, &target).await;
    let content = fs::read(&target);
    rustix::mount::unmount(&mounted, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(kind(result), FailureKind::NoSpace);
    assert_eq!((kept.as_slice(), there), (&b"old"[..], vec!["file".to_owned()]));
    moved.unwrap();
    assert_eq!(content.unwrap(), b"moved");
    assert!(!Path::new(&source).exists());
    agent.end().await;
}

#[tokio::test]
async fn a_deep_tree_is_removed_and_links_are_not_followed() {
    let mut agent = Agent::start().await;
    let (tree, outside) = (agent.path("tree"), agent.path("outside"));
    fs::create_dir(&outside).unwrap();
    fs::write(agent.path("outside/kept"), "x").unwrap();
    let script = "import os, sys\nos.mkdir(sys.argv[1]); os.chdir(sys.argv[1])\n\
        for n in range(10000):\n os.mkdir('d'); os.symlink(sys.argv[2], 'link'); open('file', 'w').close(); os.chdir('d')";
    let exec = agent.command(&["python3", "-c", script, &tree, &outside]);
    let output = agent.exec(&exec).await;
    assert_eq!(output.code(), 0, "{output:?}");
    assert_eq!(kind(agent.delete(&tree, false).await), FailureKind::Invalid);
    agent.delete(&tree, true).await.unwrap();
    assert!(!Path::new(&tree).exists());
    let link = agent.path("link");
    symlink(&outside, &link).unwrap();
    agent.delete(&link, true).await.unwrap();
    assert_eq!(names(Path::new(&outside)), ["kept"]);
    assert_eq!(kind(agent.delete(&link, true).await), FailureKind::NotFound);
    for path in ["/", "//", "/tmp/..", "/proc/self/root/.", "/.", ""] {
        assert_eq!(kind(agent.delete(path, true).await), FailureKind::Invalid, "{path}");
    }
    agent.end().await;
}

#[tokio::test]
async fn a_wide_tree_is_removed_and_listed_in_order() {
    let mut agent = Agent::start().await;
    let wide = agent.path("wide");
    fs::create_dir(&wide).unwrap();
    for n in 0..3000 {
        fs::create_dir(format!("{wide}/{n}")).unwrap();
        fs::write(format!("{wide}/{n}/file"), "x").unwrap();
    }
    symlink("nowhere", format!("{wide}/zz")).unwrap();
    let entries = agent.list(&wide).await.unwrap();
    assert_eq!(entries.len(), 3001);
    assert!(entries.is_sorted_by_key(|entry| entry.name.clone()));
    let link = entries.last().unwrap();
    assert!(link.is_symlink && !link.is_dir && link.target.as_deref() == Some("nowhere"));
    assert_eq!(link.path, format!("{wide}/zz"));
    agent.delete(&format!("{wide}/"), true).await.unwrap();
    assert_eq!(kind(agent.list(&wide).await), FailureKind::NotFound);
    assert_eq!(kind(agent.list("/etc/passwd").await), FailureKind::Invalid);
    agent.end().await;
}

#[tokio::test]
async fn stat_shows_the_thing_itself() {
    let mut agent = Agent::start().await;
    let dir = agent.path("dir");
    fs::create_dir(&dir).unwrap();
    symlink("/etc", agent.path("dir/link")).unwrap();
    let info = agent.stat(&format!("{dir}/./x/..//link")).await;
    assert_eq!(kind(info), FailureKind::NotFound, "the kernel resolves the path");
    let info = agent.stat(&format!("{dir}/../dir//link")).await.unwrap();
    assert_eq!((info.name.as_str(), info.path.as_str()), ("link", format!("{dir}/link").as_str()));
    assert!(info.is_symlink && info.target.as_deref() == Some("/etc"));
    let root = agent.stat("/").await.unwrap();
    assert_eq!((root.name.as_str(), root.path.as_str(), root.is_dir), ("/", "/", true));
    let file = agent.path("dir/file");
    fs::write(&file, "x").unwrap();
    let chmod = |mode| Chmod { path: file.clone(), mode };
    agent.ask::<Value>("/files/chmod", &chmod(0o4711)).await.unwrap();
    assert_eq!(agent.stat(&file).await.unwrap().mode, 0o4711);
    assert_eq!(kind(agent.ask::<Value>("/files/chmod", &chmod(0o10000)).await), FailureKind::Invalid);
    agent.end().await;
}

#[tokio::test]
async fn a_move_replaces_files_and_makes_parents() {
    let mut agent = Agent::start().await;
    let (a, b, dir) = (agent.path("a"), agent.path("p/q/b"), agent.path("dir"));
    fs::write(&a, "a").unwrap();
    fs::create_dir(&dir).unwrap();
    fs::write(agent.path("dir/x"), "x").unwrap();
    agent.rename(&a, &b).await.unwrap();
    fs::write(&a, "again").unwrap();
    agent.rename(&a, &b).await.unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"again");
    let (missing, nowhere) = (agent.path("missing"), agent.path("n/o/where"));
    assert_eq!(kind(agent.rename(&missing, &nowhere).await), FailureKind::NotFound);
    assert!(!Path::new(&agent.path("n")).exists());
    for (old, new) in [(&b, &dir), (&dir, &agent.path("dir/in/itself")), (&dir, &b)] {
        assert_eq!(kind(agent.rename(old, new).await), FailureKind::Invalid, "{old} {new}");
    }
    agent.end().await;
}

#[tokio::test]
async fn glob_finds_what_a_shell_would_and_no_more() {
    let mut agent = Agent::start().await;
    let root = agent.dir.path().to_str().unwrap().to_owned();
    for dir in ["a/b/c", "x/b"] {
        fs::create_dir_all(format!("{root}/g/{dir}")).unwrap();
    }
    for file in ["a/one.txt", "a/b/two.txt", "a/b/c/three.rs", "x/b/four.txt"] {
        fs::write(format!("{root}/g/{file}"), "").unwrap();
    }
    symlink("/", format!("{root}/g/a/everything")).unwrap();
    for (pattern, expected) in [
        ("g/*", vec!["a", "x"]),
        ("g/**/*.txt", vec!["a/b/two.txt", "a/one.txt", "x/b/four.txt"]),
        ("g/*/b/*.{txt,rs}", vec!["a/b/two.txt", "x/b/four.txt"]),
        ("g/{a/b,x}/*", vec!["a/b/c", "a/b/two.txt", "x/b"]),
        ("g/a/on?.t[xy]t", vec!["a/one.txt"]),
        ("g/a/one.txt", vec!["a/one.txt"]),
        ("g/a/none", vec![]),
        ("g/nowhere/**", vec![]),
    ] {
        let expected: Vec<String> = expected.into_iter().map(|path| format!("{root}/g/{path}")).collect();
        assert_eq!(agent.glob(&format!("{root}/{pattern}")).await.unwrap(), expected, "{pattern}");
    }
    for pattern in ["", "relative/*", "/a[", "/a{b", "/tmp/\\"] {
        assert_eq!(kind(agent.glob(pattern).await), FailureKind::Invalid, "{pattern}");
    }
    assert!(agent.glob("/*/version").await.unwrap().is_empty(), "/proc is not entered");
    assert_eq!(agent.glob("/proc/versio?").await.unwrap(), ["/proc/version"]);
    for n in 0..=10_000 {
        fs::write(format!("{root}/many-{n}"), "").unwrap();
    }
    assert_eq!(kind(agent.glob(&format!("{root}/many-*")).await), FailureKind::Invalid);
    agent.end().await;
}
