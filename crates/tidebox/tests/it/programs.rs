//! Programs that people run in sandboxes of the default size.

use std::path::{Path, PathBuf};
use std::process::Command;

use reqwest::Method;
use serde_json::Value;

use crate::server::{NATIVE, TestServer};

/// Returns the folder of programs that `.ci/run` has installed below the target folder.
pub fn installed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("ci").join(name)
}

pub fn is_there(path: &Path, name: &str) -> bool {
    if !path.exists() {
        fixtures::skip(name, &format!("`{}` is not installed; `.ci/run` installs it", path.display()));
        return false;
    }
    true
}

/// Returns the command for a program in Python that imports the SDK in this folder.
pub fn python(packages: &Path, program: &str) -> Command {
    let mut command = Command::new("/usr/bin/python3");
    let folder = packages.display().to_string();
    command.arg("-c").arg(format!("import sys; sys.path.insert(0, {folder:?})\n{program}"));
    command
}

/// Returns whether Debian's Python has a module; the test is skipped without it.
pub fn has_module(module: &str) -> bool {
    let mut python = Command::new("/usr/bin/python3");
    let has = python.args(["-c", &format!("import {module}")]).output().is_ok_and(|output| output.status.success());
    if !has {
        let reason = format!("/usr/bin/python3 has no {module}; `.ci/run` installs it");
        fixtures::skip(&module.to_lowercase(), &reason);
    }
    has
}

/// Copies a folder of this machine into a sandbox.
pub async fn copy(server: &TestServer, id: &str, folder: &Path, to: &str) {
    let packed = Command::new("tar").arg("--create").arg("--directory").arg(folder).arg(".").output().unwrap();
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    let put = server.request(Method::PUT, &format!("/sandboxes/{id}/files{to}.tar"));
    assert!(put.body(packed.stdout).send().await.unwrap().status().is_success());
    server.output(id, &format!("mkdir -p {to} && tar --extract --file {to}.tar --directory {to} && rm {to}.tar")).await;
}

/// Runs a script in a sandbox and returns what it printed.
async fn run(server: &TestServer, id: &str, script: &str) -> String {
    server.write(id, "/tmp/script.sh", script).await;
    server.output(id, "sh /tmp/script.sh").await
}

#[tokio::test]
async fn runtimes_take_heaps_that_fit_a_box() {
    if [fixtures::found("java", &[]), fixtures::found("node", &[])].contains(&None) {
        return;
    }
    let server = TestServer::start(NATIVE).await;
    for memory_mb in [512_u64, 1024] {
        let id = server.spawn_with(serde_json::json!({"memory_mb": memory_mb, "vcpus": 1})).await;
        let half = (memory_mb << 20) / 2;
        let flags = server.output(&id, "java -XX:+PrintFlagsFinal -version 2>/dev/null").await;
        let heap = flags.lines().find(|line| line.contains(" MaxHeapSize ")).unwrap_or_else(|| panic!("{flags}"));
        let heap: u64 = heap.split_whitespace().nth(3).unwrap().parse().unwrap();
        assert!(heap <= half, "java takes a heap of {heap} bytes in {memory_mb} MiB");
        let told = server.output(&id, "node -p 'v8.getHeapStatistics().heap_size_limit'").await;
        let heap: u64 = told.trim().parse().unwrap();
        assert!(heap <= half * 3 / 2, "node takes a heap of {heap} bytes in {memory_mb} MiB");
        // What does not fit is an error of the program, and not the end of its process.
        let filled = server.exec(&id, FILL).await;
        assert_eq!((&filled["exit_code"], &filled["oom_killed"]), (&1.into(), &Value::Null), "{filled}");
        assert!(filled["stderr"].as_str().unwrap().contains("java.lang.OutOfMemoryError"), "{filled}");
        server.delete(&format!("/sandboxes/{id}")).await.ok();
    }
}

/// Program of Java that takes memory without end.
const FILL: &str = "mkdir -p /tmp/fill && cd /tmp/fill && cat >Fill.java <<'END' && java Fill.java
import java.util.ArrayList;

class Fill {
    public static void main(String[] words) {
        var all = new ArrayList<byte[]>();
        while (true) {
            all.add(new byte[1 << 20]);
        }
    }
}
END";

#[tokio::test]
async fn postgresql_joins_in_several_processes() {
    if fixtures::found("psql", &[]).is_none() {
        return;
    }
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let told = run(&server, &id, include_str!("programs/postgresql.sh")).await;
    let lines: Vec<&str> = told.lines().collect();
    let [workers, join, memory, count] = lines[..] else { panic!("{told}") };
    assert_eq!([workers, join, count], ["Workers Launched: 2", "Parallel Hash Join", "1000000"]);
    let shared_kib: u64 = memory.strip_prefix("Memory Usage: ").unwrap().parse().unwrap();
    assert!(shared_kib > 64 * 1024, "the processes share less than fits anywhere: {shared_kib} KiB");
}

#[tokio::test]
async fn an_ssh_server_gives_a_terminal() {
    if fixtures::found("sshd", &[PathBuf::from("/usr/sbin/sshd")]).is_none() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return fixtures::skip("root", "the server of OpenSSH changes to a user of its own, and the box has one user");
    }
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let told = run(&server, &id, include_str!("programs/sshd.sh")).await;
    assert_eq!(told.replace('\r', ""), "/dev/pts/0\nroot\n");
}

#[tokio::test]
async fn maven_compiles_tests_and_packs() {
    let repository = installed("maven");
    if fixtures::found("maven", &[repository.join("installed")]).is_none() {
        return;
    }
    let server = TestServer::start(NATIVE).await;
    let id = server.spawn().await;
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/maven");
    copy(&server, &id, &repository.join("repository"), "/workspace/repository").await;
    copy(&server, &id, &project, "/workspace/project").await;
    let build = "cd /workspace/project && mvn --offline --batch-mode --no-transfer-progress \
                 -Dmaven.repo.local=/workspace/repository package";
    let told = server.output(&id, build).await;
    assert!(told.contains("Tests run: 1, Failures: 0") && told.contains("BUILD SUCCESS"), "{told}");
    assert_eq!(server.output(&id, "java -cp /workspace/project/target/sample-1.jar tide.Sum").await, "sum 42\n");
}
