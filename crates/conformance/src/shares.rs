//! Shared resources of the host that one box must leave to others.

use futures_util::StreamExt;
use providers::{Command, KernelShare, TerminalSize};

use super::case::{Case, case};
use super::program::Argument::{Number, Text};
use super::program::calling;
use super::subject::{Inside, Subject, argv, eventually, sh};

/// More terminals than any box may have.
const TERMINALS: usize = 128;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("a box cannot take all terminals", terminals, Terminals, OwnTerminals),
        case!("the devices of a box are files of its own", devices, Processes, OwnDevices, HostKernel),
        case!("no core is dumped, whatever limit a program sets", core, Processes, HostKernel),
        case!("open files of a box are counted", open_files, Processes, HeldFiles),
        case!("what programs leave to each other goes with their box", lasting, Processes, OwnProgram),
        case!("files of processes name no control group of the host", groups, Processes, OwnGroups),
    ]
}

async fn terminals(subject: Subject) {
    let (hog, other) = (subject.start().await, subject.start().await);
    let command = || Command { terminal: Some(TerminalSize { cols: 80, rows: 24 }), ..argv(&["/bin/sleep", "100"]) };
    let mut taken = Vec::new();
    while let Ok(begun) = hog.guest.exec_interactive(command()).await {
        taken.push(begun);
        assert!(taken.len() < TERMINALS, "a box has any number of terminals");
    }
    assert!(!taken.is_empty());
    let begun = other.guest.exec_interactive(Command { argv: argv(&["/bin/true"]).argv, ..command() }).await.unwrap();
    drop((begun, taken));
    eventually("the terminals can be had again", || async { hog.guest.exec_interactive(command()).await.is_ok() })
        .await;
}

async fn devices(subject: Subject) {
    let (one, other) = (subject.start().await, subject.start().await);
    for device in ["null", "zero", "full", "random", "urandom"] {
        // A process with another inode cannot wait for a lock on this one.
        let script = format!("stat -c %d:%i /dev/{device} && test -c /dev/{device}");
        let (ours, theirs) = (one.sh(&script).await, other.sh(&script).await);
        assert_eq!((ours.code(), theirs.code()), (0, 0), "{ours:?} {theirs:?}");
        assert_ne!(ours.text(), theirs.text(), "{device}");
    }
}

async fn core(subject: Subject) {
    let inside = subject.start().await;
    for script in ["true", "ulimit -c 0", "ulimit -c unlimited", "ulimit -S -c 4096"] {
        let ran = inside.sh(&format!("{script} && grep -i 'core file size' /proc/self/limits")).await;
        assert_eq!(ran.code(), 0, "{script}: {ran:?}");
        // The only limit at which the kernel starts no program of the host for a dump.
        let limits: Vec<&str> = ran.text().split_whitespace().skip(4).collect();
        assert_eq!(limits, ["1", "1", "bytes"], "{script}");
    }
}

async fn groups(subject: Subject) {
    let inside = subject.start().await;
    // The agent's files as it reads them itself, and those of a command.
    let of_the_agent = inside.read("/proc/self/cgroup").await;
    let of_a_command = inside.sh("cat /proc/self/cgroup /proc/1/cgroup").await;
    assert_eq!(of_a_command.code(), 0, "{of_a_command:?}");
    for text in [&String::from_utf8_lossy(&of_the_agent), of_a_command.text()] {
        for line in text.lines() {
            assert!(line.ends_with(":/"), "{line}");
        }
    }
}

async fn open_files(subject: Subject) {
    const PROCESSES: u64 = 20;
    let inside = subject.start().await;
    let count = async || subject.provider().kernel_usage(&inside.id, KernelShare::OpenFiles).await;
    let before = count().await.expect("what a box has open is known");
    let script = format!("i=0; while [ $i -lt {PROCESSES} ]; do sleep 100 & i=$((i + 1)); done; wait");
    let mut output = inside.guest.exec(sh(&script)).await.unwrap();
    // Each process has at least its three standard streams.
    eventually("the files are counted", async || count().await.is_some_and(|now| now >= before + 3 * PROCESSES)).await;
    subject.provider().stop(&inside.id).await.unwrap();
    while output.next().await.is_some() {}
}

/// Returns programs for `x86_64` that make a shared segment, a set of semaphores and two kinds of
/// queues under a fixed key or name, and fail if it is in use.
fn makers() -> [(&'static str, Vec<u8>); 4] {
    const KEY: u32 = 0x7b0c_5eed;
    /// Read, write, create, exclusively.
    const NEW: u32 = 0o3600;
    const OPEN_NEW: u32 = 0o302;
    let number = Number;
    [
        ("segment", calling(29, [number(KEY), number(4096), number(NEW), number(0)])),
        ("semaphores", calling(64, [number(KEY), number(1), number(NEW), number(0)])),
        ("messages", calling(68, [number(KEY), number(NEW), number(0), number(0)])),
        ("queue", calling(240, [Text("tidebox-lasting"), number(OPEN_NEW), number(0o600), number(0)])),
    ]
}

/// Runs each of the programs in a box and returns the exit codes, which are error numbers.
async fn make_all(inside: &Inside) -> Vec<(&'static str, i32)> {
    let mut made = Vec::new();
    for (name, program) in makers() {
        let path = format!("/tmp/{name}");
        inside.write(&path, program).await;
        inside.guest.chmod(&path, 0o755).await.unwrap();
        made.push((name, inside.run(argv(&[&path])).await.code()));
    }
    made
}

async fn lasting(subject: Subject) {
    const NO_SUCH_CALL: i32 = 38;
    let (first, second) = (subject.start().await, subject.start().await);
    let made = make_all(&first).await;
    for (name, errno) in &made {
        assert!([0, NO_SUCH_CALL].contains(errno), "{name}: {errno}");
    }
    assert_eq!(make_all(&second).await, made, "what another box has made is in the way");
    subject.provider().stop(&first.id).await.unwrap();
    subject.provider().stop(&second.id).await.unwrap();
    assert_eq!(make_all(&subject.start().await).await, made, "it outlives its box");
}
