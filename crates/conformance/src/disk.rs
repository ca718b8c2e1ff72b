//! Measurement of the host's disk that boxes use.

use providers::{Command, DiskUsage};

use super::case::{Case, case};
use super::subject::{Inside, Subject, eventually, sh};

/// Bytes that no box uses by itself. File systems report them with small deviations.
const MUCH: u64 = 20 << 20;
/// Number of entries that no box makes by itself.
const MANY: u64 = 500;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("what a box writes is counted, be it in files or in entries", counted, Processes, Disk),
        case!("a file with many names is counted once", once, Processes, Disk),
        case!("a file that was removed and is still open is counted", held, Processes, HeldFiles),
    ]
}

async fn usage(subject: &Subject, inside: &Inside) -> DiskUsage {
    subject.provider().disk_usage(&inside.id).await.expect("what a box takes is known")
}

async fn counted(subject: Subject) {
    let inside = subject.start().await;
    let before = usage(&subject, &inside).await;
    inside.sh("head -c 20971520 /dev/zero > /workspace/file; sync").await;
    inside.sh("i=0; while [ $i -lt 500 ]; do : > /workspace/$i; i=$((i + 1)); done").await;
    let after = usage(&subject, &inside).await;
    assert!(after.bytes >= before.bytes + MUCH, "{before:?} {after:?}");
    assert!((before.entries + MANY..before.entries + MANY + 50).contains(&after.entries), "{before:?} {after:?}");
    inside.sh("rm -r /workspace/*").await;
    let again = usage(&subject, &inside).await;
    assert!(again.bytes < before.bytes + MUCH / 2 && again.entries < before.entries + 50, "{before:?} {again:?}");
}

async fn once(subject: Subject) {
    let inside = subject.start().await;
    inside
        .sh("head -c 20971520 /dev/zero > /workspace/0; for i in 1 2 3 4 5; do ln /workspace/0 /workspace/$i; done")
        .await;
    let found = usage(&subject, &inside).await;
    assert!((MUCH..2 * MUCH).contains(&found.bytes), "{found:?}");
}

async fn held(subject: Subject) {
    let inside = subject.start().await;
    let before = usage(&subject, &inside).await;
    let script = "exec 3>/workspace/file; rm /workspace/file; head -c 20971520 /dev/zero >&3; : > /workspace/ready; \
                  while [ -e /workspace/ready ]; do sleep 0.1; done";
    let measure = async {
        eventually("the file is held", async || inside.exists("/workspace/ready").await).await;
        let after = usage(&subject, &inside).await;
        inside.sh("rm /workspace/ready").await;
        after
    };
    let (_, after) = tokio::join!(inside.run(Command { terminal: None, ..sh(script) }), measure);
    assert!(after.bytes >= before.bytes + MUCH, "{before:?} {after:?}");
    assert!(usage(&subject, &inside).await.bytes < before.bytes + MUCH / 2);
}
