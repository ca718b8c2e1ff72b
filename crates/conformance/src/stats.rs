//! Resources that boxes use.

use std::time::Duration;

use domain::SandboxId;
use futures_util::StreamExt;
use providers::{BoxStats, OutputEvent};

use super::case::{Case, case};
use super::subject::{Inside, Subject, eventually, sh};

/// Work that takes a processor for some tenths of a second, in a process that ends after it.
const WORK: &str = "sh -c 'x=0; while [ $x -lt 200000 ]; do x=$((x+1)); done'; true";
/// Memory that a command holds in the case about it.
const HELD_BYTES: u64 = 40 << 20;
/// Processes that it holds.
const HELD_PROCESSES: u64 = 20;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(
            "the processor time of a box is that of its own work, after its processes have ended too",
            work,
            Processes,
            Measures
        ),
        case!("memory and processes of a box are counted while they are held", held, Processes, HostKernel, Measures),
        case!("a box that does not exist has no statistics, and the others keep their order", absent),
        case!("the processor time of a slot is that of its own work", work_of_slots, Slots, Processes),
    ]
}

async fn stats(subject: &Subject, ids: &[&SandboxId]) -> Vec<BoxStats> {
    let ids: Vec<SandboxId> = ids.iter().map(|id| (*id).clone()).collect();
    let found = subject.provider().stats(&ids).await.expect("boxes are measured");
    assert_eq!(found.len(), ids.len());
    found
}

fn cpu(stats: &BoxStats) -> Duration {
    stats.cpu.expect("the processor time is known")
}

/// Has the first of two boxes or slots work, and checks that it took a processor, and the second next
/// to nothing.
async fn check_work<F: Future<Output = Vec<BoxStats>>>(busy: &Inside, look: impl Fn() -> F) {
    let before = look().await;
    // Another service may answer with a look of shortly before, and the end of a start weighs more
    // where the machine is slow.
    eventually("the work is counted", || async {
        assert_eq!(busy.sh(WORK).await.code(), 0);
        let after = look().await;
        let took = |at: usize| cpu(&after[at]).saturating_sub(cpu(&before[at]));
        took(0) >= Duration::from_millis(50) && took(1) * 4 < took(0)
    })
    .await;
}

async fn work(subject: Subject) {
    let (busy, idle) = (subject.start().await, subject.start().await);
    // The agent's own start is over.
    idle.sh("true").await;
    check_work(&busy, || async { stats(&subject, &[&busy.id, &idle.id]).await }).await;
}

async fn work_of_slots(subject: Subject) {
    let host = subject.host().await;
    let (busy, idle) = (subject.slot(&host).await, subject.slot(&host).await);
    let ids = [busy.id.clone(), idle.id.clone()];
    let look = || async { subject.slots().slot_stats(&host, &ids).await.expect("slots are measured") };
    check_work(&busy, look).await;
}

async fn held(subject: Subject) {
    let inside = subject.start().await;
    let look = async || {
        let found = stats(&subject, &[&inside.id]).await[0];
        (found.memory_bytes.expect("memory is known"), found.processes.expect("processes are known"))
    };
    let (memory, processes) = look().await;
    let output = hold(&inside).await;
    eventually("what is held is counted", async || {
        let (more, many) = look().await;
        more >= memory + HELD_BYTES && many >= processes + HELD_PROCESSES
    })
    .await;
    drop(output);
    eventually("what is no longer held is not counted", async || {
        let (less, few) = look().await;
        less < memory + HELD_BYTES / 2 && few < processes + HELD_PROCESSES / 2
    })
    .await;
}

/// Starts a command that holds memory and processes until its output is dropped.
async fn hold(inside: &Inside) -> providers::OutputStream {
    // `tail` keeps the only line, and nothing reads it.
    let script = format!(
        "n=0; while [ $n -lt {HELD_PROCESSES} ]; do sleep 100 & n=$((n+1)); done; echo begun; \
         head -c {} /dev/zero | tail -n 1 | sleep 100",
        HELD_BYTES + (8 << 20)
    );
    let mut output = inside.guest.exec(sh(&script)).await.expect("a command starts");
    let first = output.next().await.expect("there is output").expect("the command runs");
    assert!(matches!(first, OutputEvent::Stdout(_)), "{first:?}");
    output
}

async fn absent(subject: Subject) {
    let (missing, inside) = (subject.id(), subject.start().await);
    assert_eq!(stats(&subject, &[&missing]).await, [BoxStats::default()]);
    let found = stats(&subject, &[&missing, &inside.id]).await;
    assert_eq!(found[0], BoxStats::default());
    assert_eq!(found[1].cpu.is_some(), stats(&subject, &[&inside.id]).await[0].cpu.is_some());
}
