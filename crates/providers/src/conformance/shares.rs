//! What a box takes, others still have.

use super::lab::{argv, eventually};
use super::{Case, Lab, case};
use crate::{Command, TerminalSize};

/// More terminals than any box may have.
const TERMINALS: usize = 128;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("a box cannot take all terminals", terminals, Terminals, OwnTerminals),
        case!("the devices of a box are files of its own", devices, Processes, OwnDevices, HostKernel),
        case!("no core is dumped, whatever limit a program sets", core, Processes, HostKernel),
        case!("files of processes name no control group of the host", groups, Processes, OwnGroups),
    ]
}

async fn terminals(lab: Lab) {
    let (hog, other) = (lab.start().await, lab.start().await);
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

async fn devices(lab: Lab) {
    let (one, other) = (lab.start().await, lab.start().await);
    for device in ["null", "zero", "full", "random", "urandom"] {
        // Who has another file cannot wait for a lock on it.
        let script = format!("stat -c %d:%i /dev/{device} && test -c /dev/{device}");
        let (ours, theirs) = (one.sh(&script).await, other.sh(&script).await);
        assert_eq!((ours.code(), theirs.code()), (0, 0), "{ours:?} {theirs:?}");
        assert_ne!(ours.text(), theirs.text(), "{device}");
    }
}

async fn core(lab: Lab) {
    let inside = lab.start().await;
    for script in ["true", "ulimit -c 0", "ulimit -c unlimited", "ulimit -S -c 4096"] {
        let ran = inside.sh(&format!("{script} && grep -i 'core file size' /proc/self/limits")).await;
        assert_eq!(ran.code(), 0, "{script}: {ran:?}");
        // The one limit at which no program of the host is started for it.
        let limits: Vec<&str> = ran.text().split_whitespace().skip(4).collect();
        assert_eq!(limits, ["1", "1", "bytes"], "{script}");
    }
}

async fn groups(lab: Lab) {
    let inside = lab.start().await;
    // The files of the agent as it reads them, and those of a command.
    let of_the_agent = inside.read("/proc/self/cgroup").await;
    let of_a_command = inside.sh("cat /proc/self/cgroup /proc/1/cgroup").await;
    assert_eq!(of_a_command.code(), 0, "{of_a_command:?}");
    for text in [&String::from_utf8_lossy(&of_the_agent), of_a_command.text()] {
        for line in text.lines() {
            assert!(line.ends_with(":/"), "{line}");
        }
    }
}
