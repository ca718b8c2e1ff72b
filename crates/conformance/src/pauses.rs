//! Boxes that are paused.

use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt};
use providers::{Error, OutputEvent, OutputStream, Provider};

use super::case::{Case, case};
use super::subject::{Inside, Subject, eventually, sh, soon};

/// Time in which a box that is not paused would have done something.
const QUIET: Duration = Duration::from_millis(300);
/// Time that the removal of a paused box may take beyond twice that of another: it waits for none of
/// its processes, and an Engine that does, waits for ten seconds.
const REMOVAL_MORE: Duration = Duration::from_secs(5);

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("a paused box does nothing, and goes on where it was", goes_on, Pauses, Processes),
        case!("a request to a paused box is answered once it goes on", waits, Pauses, Sleepers),
        case!("pausing and resuming may be repeated, and a box that does not exist is gone", repeated, Pauses),
        case!("a paused box is alive, and is removed as any other", removed, Pauses, Processes),
        case!("a box that an earlier process paused goes on", reopened, Pauses, Reopen),
        case!(
            "memory of a paused box is handed back, and nothing that it holds is lost",
            handed_back,
            Reclaim,
            Processes
        ),
        case!("a box goes on, or ends, while its memory is handed back", not_waited_for, Reclaim, Processes),
        case!("a box that is written to disk goes on where it was, with the time", on_disk, Suspend, Processes),
        case!(
            "a box on disk is paused and alive, for a later process too, and is removed as any other",
            found_on_disk,
            Suspend,
            Reopen
        ),
        case!("writing a box to disk may be repeated, and takes one that is paused", on_disk_again, Suspend),
    ]
}

async fn is_paused(provider: &dyn Provider, inside: &Inside) -> bool {
    let pauses = provider.pauses().expect("the need was checked");
    pauses.paused().await.expect("paused boxes are listed").contains(&inside.id)
}

/// Starts a command that counts without an end, as fast as it is read.
async fn counting(inside: &Inside) -> OutputStream {
    let script = "n=0; while :; do echo $n; n=$((n+1)); done";
    inside.guest.exec(sh(script)).await.expect("a command starts")
}

/// Appends the next piece of output.
async fn more(output: &mut OutputStream, text: &mut Vec<u8>) {
    match soon("more output", output.next()).await.expect("the command goes on").expect("it is read") {
        OutputEvent::Stdout(bytes) => text.extend_from_slice(&bytes),
        event @ (OutputEvent::Stderr(_) | OutputEvent::Exit(_)) => panic!("{event:?}"),
    }
}

async fn goes_on(subject: Subject) {
    let inside = subject.start().await;
    let (mut output, mut text) = (counting(&inside).await, Vec::new());
    more(&mut output, &mut text).await;
    soon("the pause", subject.pauses().pause(&inside.id)).await.expect("a box is paused");
    assert!(is_paused(subject.provider(), &inside).await);
    // What the box had sent may still be on its way.
    while let Ok(piece) = tokio::time::timeout(QUIET, more(&mut output, &mut text)).await {
        let () = piece;
    }
    let paused_at = text.len();
    assert!(tokio::time::timeout(QUIET, output.next()).await.is_err(), "a paused box has sent something");
    soon("the end of the pause", subject.pauses().resume(&inside.id)).await.expect("a box is resumed");
    assert!(!is_paused(subject.provider(), &inside).await);
    while text.len() < paused_at + 100_000 {
        more(&mut output, &mut text).await;
    }
    let text = String::from_utf8(text).expect("it is text");
    let whole = text.rsplit_once('\n').expect("there are lines").0;
    assert!(whole.lines().enumerate().all(|(at, line)| line == at.to_string()), "a line is lost, or there twice");
    drop(output);
    assert_eq!(inside.sh("echo here").await.text(), "here\n");
}

async fn waits(subject: Subject) {
    let inside = subject.start().await;
    inside.write("/tmp/file", "kept").await;
    subject.pauses().pause(&inside.id).await.expect("a box is paused");
    let mut read = Box::pin(inside.read("/tmp/file"));
    assert!(tokio::time::timeout(QUIET, &mut read).await.is_err(), "a paused box has answered");
    assert!(read.as_mut().now_or_never().is_none());
    subject.pauses().resume(&inside.id).await.expect("a box is resumed");
    assert_eq!(soon("the answer", read).await, b"kept");
}

async fn repeated(subject: Subject) {
    let (inside, missing) = (subject.start().await, subject.id());
    let pauses = subject.pauses();
    pauses.resume(&inside.id).await.expect("a box that runs is resumed");
    for _ in 0..3 {
        pauses.pause(&inside.id).await.expect("a box is paused");
        pauses.pause(&inside.id).await.expect("a paused box is paused");
        pauses.resume(&inside.id).await.expect("a box is resumed");
        pauses.resume(&inside.id).await.expect("a box that runs is resumed");
        assert!(inside.exists("/tmp").await);
    }
    assert!(matches!(pauses.pause(&missing).await, Err(Error::Gone)));
    assert!(matches!(pauses.resume(&missing).await, Err(Error::Gone)));
    assert!(!pauses.paused().await.expect("paused boxes are listed").contains(&missing));
}

async fn on_disk(subject: Subject) {
    let (inside, pauses) = (subject.start().await, subject.pauses());
    let script = "cd /workspace; (while :; do echo on >> ticks; sleep 0.05; done) >/dev/null 2>&1 & echo $! > pid";
    inside.sh(script).await;
    pauses.pause(&inside.id).await.expect("a box is paused");
    soon("the disk", pauses.suspend(&inside.id)).await.expect("a box is written to disk");
    soon("the end of the pause", pauses.resume(&inside.id)).await.expect("a box goes on");
    assert!(!is_paused(subject.provider(), &inside).await);
    let inside = subject.dial(inside.id).await;
    let goes_on = "cd /workspace; n=$(wc -l < ticks); i=0
        while [ $(wc -l < ticks) -le $n ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done; kill -0 $(cat pid) && echo $i";
    let ran = inside.sh(goes_on).await;
    assert!(ran.text().trim().parse::<u32>().is_ok_and(|waits| waits < 100), "{ran:?}");
    let now = std::time::UNIX_EPOCH.elapsed().expect("it is after 1970").as_secs();
    let time: u64 = inside.sh("date +%s").await.text().trim().parse().expect("a number");
    assert!(time.abs_diff(now) <= 5, "{time} at {now}");
}

async fn found_on_disk(subject: Subject) {
    let (one, other, pauses) = (subject.start().await, subject.start().await, subject.pauses());
    one.write("/workspace/file", "kept").await;
    for inside in [&one, &other] {
        pauses.pause(&inside.id).await.expect("a box is paused");
        soon("the disk", pauses.suspend(&inside.id)).await.expect("a box is written to disk");
    }
    let second = subject.second().await;
    for provider in [subject.provider(), second.as_ref()] {
        let found = provider.inventory().await.expect("boxes are listed");
        for inside in [&one, &other] {
            assert!(found.iter().any(|found| found.id == inside.id && found.alive), "{found:?}");
            assert!(is_paused(provider, inside).await);
        }
    }
    second.stop(&other.id).await.expect("a box is removed");
    second.pauses().expect("it pauses too").resume(&one.id).await.expect("a box goes on");
    let guest = second.guest(&one.id).await.expect("it has an inside");
    assert_eq!(Inside { id: one.id, guest }.read("/workspace/file").await, b"kept");
}

async fn on_disk_again(subject: Subject) {
    let (inside, pauses) = (subject.start().await, subject.pauses());
    assert!(matches!(pauses.suspend(&inside.id).await, Err(Error::Conflict(_))), "it is not paused");
    assert!(matches!(pauses.suspend(&subject.id()).await, Err(Error::Gone)));
    inside.write("/workspace/file", "kept").await;
    for _ in 0..2 {
        pauses.pause(&inside.id).await.expect("a box is paused");
        for _ in 0..2 {
            soon("the disk", pauses.suspend(&inside.id)).await.expect("a box is written to disk");
        }
        pauses.pause(&inside.id).await.expect("a box on disk is paused");
        for _ in 0..2 {
            soon("the end of the pause", pauses.resume(&inside.id)).await.expect("a box goes on");
        }
        assert_eq!(subject.dial(inside.id.clone()).await.read("/workspace/file").await, b"kept");
    }
}

/// Starts a box with many processes, which all have to end, and a command that counts.
async fn busy(subject: &Subject) -> (Inside, OutputStream) {
    let inside = subject.start().await;
    inside.sh("n=0; while [ $n -lt 20 ]; do sleep 1000 & n=$((n+1)); done").await;
    let mut output = counting(&inside).await;
    more(&mut output, &mut Vec::new()).await;
    (inside, output)
}

async fn removal(subject: &Subject, inside: &Inside) -> Duration {
    let begun = Instant::now();
    subject.provider().stop(&inside.id).await.expect("a box is removed");
    begun.elapsed()
}

async fn removed(subject: Subject) {
    let (running, _output) = busy(&subject).await;
    let plain = removal(&subject, &running).await;
    let (inside, mut output) = busy(&subject).await;
    subject.pauses().pause(&inside.id).await.expect("a box is paused");
    let found = subject.provider().inventory().await.expect("there is an inventory");
    assert!(found.iter().any(|found| found.id == inside.id && found.alive), "{found:?}");
    let took = removal(&subject, &inside).await;
    assert!(took < 2 * plain + REMOVAL_MORE, "{took:?}, and {plain:?} for a box that runs");
    assert!(matches!(subject.pauses().resume(&inside.id).await, Err(Error::Gone)));
    let ends = async {
        while let Some(event) = output.next().await {
            if event.is_err() {
                return true;
            }
        }
        false
    };
    assert!(soon("the end of the output", ends).await, "the output ends with the box");
}

async fn reopened(subject: Subject) {
    let inside = subject.start().await;
    inside.write("/tmp/file", "kept").await;
    subject.pauses().pause(&inside.id).await.expect("a box is paused");
    let second = subject.second().await;
    assert!(is_paused(second.as_ref(), &inside).await);
    let found = second.inventory().await.expect("there is an inventory");
    assert!(found.iter().any(|found| found.id == inside.id && found.alive), "{found:?}");
    second.pauses().expect("the need was checked").resume(&inside.id).await.expect("a box is resumed");
    eventually("the second process reaches the box", || async { second.guest(&inside.id).await.is_ok() }).await;
    assert_eq!(inside.read("/tmp/file").await, b"kept");
}

/// Bytes of the file whose memory is handed back.
const FILE_BYTES: u64 = 96 << 20;

/// Starts a box that holds files in memory, and returns what it says of their content.
async fn full_of_files(subject: &Subject) -> (Inside, String) {
    let inside = subject.start().await;
    inside.sh(&format!("head -c {FILE_BYTES} /dev/urandom > /workspace/file")).await;
    assert_eq!(inside.sh("wc -c < /workspace/file").await.text().trim(), FILE_BYTES.to_string());
    let digest = inside.sh("sha256sum < /workspace/file").await.text().to_owned();
    assert_eq!(digest.split_whitespace().next().map(str::len), Some(64), "{digest}");
    (inside, digest)
}

async fn handed_back(subject: Subject) {
    let (inside, digest) = full_of_files(&subject).await;
    let pauses = subject.pauses();
    pauses.check_reclaim(&inside.id).await.expect("memory can be handed back");
    pauses.pause(&inside.id).await.expect("a box is paused");
    let first = soon("the reclaim", pauses.reclaim(&inside.id)).await.expect("memory is handed back");
    let freed = first.memory_before_bytes.saturating_sub(first.memory_after_bytes);
    assert!(freed > FILE_BYTES / 2, "{first:?}");
    assert!(is_paused(subject.provider(), &inside).await);
    let again = soon("the reclaim", pauses.reclaim(&inside.id)).await.expect("a repeat succeeds");
    assert!(again.memory_before_bytes < first.memory_before_bytes, "{first:?}, then {again:?}");
    pauses.resume(&inside.id).await.expect("a box is resumed");
    assert_eq!(inside.sh("sha256sum < /workspace/file").await.text(), digest);
    let missing = subject.id();
    assert!(matches!(pauses.check_reclaim(&missing).await, Err(Error::Gone)));
    assert!(matches!(pauses.reclaim(&missing).await, Err(Error::Gone)));
}

async fn not_waited_for(subject: Subject) {
    let (inside, digest) = full_of_files(&subject).await;
    let pauses = subject.pauses();
    // Another service ends the reclaim of a box that is not paused any more.
    let is_ended = |error: &Error| matches!(error, Error::Gone | Error::Conflict(_));
    pauses.pause(&inside.id).await.expect("a box is paused");
    let (reclaimed, resumed) = tokio::join!(pauses.reclaim(&inside.id), pauses.resume(&inside.id));
    resumed.expect("a box is resumed");
    assert!(reclaimed.as_ref().err().is_none_or(is_ended), "{reclaimed:?}");
    // There, the reclaim may have been the later one, which pauses the box first.
    pauses.resume(&inside.id).await.expect("a box is resumed");
    assert_eq!(inside.sh("sha256sum < /workspace/file").await.text(), digest);
    pauses.pause(&inside.id).await.expect("a box is paused");
    assert!(pauses.reclaim(&inside.id).now_or_never().is_none(), "it takes a while, and is given up");
    let (reclaimed, stopped) = tokio::join!(pauses.reclaim(&inside.id), subject.provider().stop(&inside.id));
    stopped.expect("a box is removed");
    assert!(reclaimed.as_ref().err().is_none_or(is_ended), "{reclaimed:?}");
}
