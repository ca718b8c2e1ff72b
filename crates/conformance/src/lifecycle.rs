//! Starts and stops of boxes, and the inventory.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use providers::{Error, OutputEvent};

use super::case::{Case, case};
use super::subject::{Subject, eventually, sh, soon};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("a provider is healthy, within a second", healthy),
        case!("a box that was started runs commands", usable),
        case!("starting a box that runs finds it", start_again),
        case!("starting one box many times at once makes one", start_at_once),
        case!("many boxes start at once", many),
        case!("boxes do not see the files of others", apart),
        case!("stopping a box that never was succeeds", stop_absent),
        case!("stopping twice, and twice at once, succeeds", stop_twice),
        case!("a box that was stopped is gone", gone),
        case!("stopping a box ends its commands", stop_ends_commands),
        case!("a box can be made anew under its old id, empty", anew),
        case!("dropping a start leaves nothing that a stop does not remove", dropped_start),
        case!("a start that fails leaves nothing", failed_start, Images),
        case!("an image that is not there is refused by name", unknown_image, Images),
        case!("the inventory lists every box", inventory),
        case!("a box whose first process has ended is listed as not alive until it is stopped", not_alive, Kill),
        case!("a box whose first process was killed just now does not run", just_killed, Kill, Processes),
        case!("dropping a guest and dialling again changes nothing in the box", dial_again),
        case!("many can dial one box at once", dial_at_once),
        case!("a second instance finds the boxes of the first", reopened, Reopen),
        case!("a box ends by itself at its deadline", deadline, Deadlines),
        case!("a deadline can be moved again and again", deadline_moves),
    ]
}

async fn healthy(subject: Subject) {
    let health = tokio::time::timeout(Duration::from_secs(1), subject.provider().health()).await.unwrap();
    assert_eq!(health.error, None);
    assert!(!subject.provider().default_image().is_empty() && !subject.provider().name().is_empty());
    subject.provider().check(&subject.spec()).unwrap();
}

async fn usable(subject: Subject) {
    let inside = subject.start().await;
    assert_eq!(inside.sh("echo hello").await.text(), "hello\n");
}

async fn start_again(subject: Subject) {
    let inside = subject.start().await;
    inside.write("/workspace/kept", "kept").await;
    subject.provider().start(&inside.id, &subject.spec()).await.unwrap();
    assert_eq!(subject.provider().inventory().await.unwrap().len(), 1);
    assert_eq!(subject.dial(inside.id).await.read("/workspace/kept").await, b"kept");
}

async fn start_at_once(subject: Subject) {
    let (id, spec) = (subject.id(), subject.spec());
    for started in join_all((0..5).map(|_| subject.provider().start(&id, &spec))).await {
        started.unwrap();
    }
    assert_eq!(subject.provider().inventory().await.unwrap().len(), 1);
    assert_eq!(subject.dial(id).await.sh("true").await.code(), 0);
}

async fn many(subject: Subject) {
    let boxes = join_all((0..20).map(|_| subject.start())).await;
    let codes = join_all(boxes.iter().map(|inside| inside.sh("exit 7"))).await;
    assert!(codes.iter().all(|ran| ran.code() == 7));
    for stopped in join_all(boxes.iter().map(|inside| subject.provider().stop(&inside.id))).await {
        stopped.unwrap();
    }
    assert_eq!(subject.provider().inventory().await.unwrap(), []);
}

async fn apart(subject: Subject) {
    let (one, other) = (subject.start().await, subject.start().await);
    for path in ["/workspace/mine", "/tmp/mine", "/root/mine"] {
        one.write(path, "secret").await;
        assert!(!other.exists(path).await, "{path}");
    }
}

async fn stop_absent(subject: Subject) {
    subject.provider().stop(&subject.id()).await.unwrap();
}

async fn stop_twice(subject: Subject) {
    let inside = subject.start().await;
    let (one, other) = tokio::join!(subject.provider().stop(&inside.id), subject.provider().stop(&inside.id));
    one.unwrap();
    other.unwrap();
    subject.provider().stop(&inside.id).await.unwrap();
}

async fn gone(subject: Subject) {
    let inside = subject.start().await;
    subject.provider().stop(&inside.id).await.unwrap();
    assert!(matches!(subject.provider().guest(&inside.id).await, Err(Error::Gone)));
    assert!(matches!(subject.provider().guest(&subject.id()).await, Err(Error::Gone)));
    let exec = soon("a command in a box that is gone", inside.guest.exec(sh("true"))).await;
    assert!(matches!(exec.map(|_| ()), Err(Error::Gone)));
    let stat = soon("a look into a box that is gone", inside.guest.stat("/")).await;
    assert!(matches!(stat, Err(Error::Gone)), "{stat:?}");
    assert!(matches!(inside.guest.console(10).await, Err(Error::Gone)));
}

async fn stop_ends_commands(subject: Subject) {
    let inside = subject.start().await;
    let mut output = inside.guest.exec(sh("echo begun; sleep 100")).await.unwrap();
    assert_eq!(output.next().await.unwrap().unwrap(), OutputEvent::Stdout("begun\n".into()));
    subject.provider().stop(&inside.id).await.unwrap();
    let last = soon("the end of the output", output.next()).await;
    assert!(matches!(last, Some(Err(Error::Gone))), "{last:?}");
    assert!(output.next().await.is_none());
}

async fn anew(subject: Subject) {
    let inside = subject.start().await;
    inside.write("/workspace/old", "old").await;
    subject.provider().stop(&inside.id).await.unwrap();
    subject.provider().start(&inside.id, &subject.spec()).await.unwrap();
    assert!(!subject.dial(inside.id).await.exists("/workspace/old").await);
}

async fn dropped_start(subject: Subject) {
    for wait_us in [0, 100, 500, 1000, 2000, 3000, 5000, 10_000] {
        let (id, spec) = (subject.id(), subject.spec());
        let _ = tokio::time::timeout(Duration::from_micros(wait_us), subject.provider().start(&id, &spec)).await;
        subject.provider().stop(&id).await.unwrap();
        assert_eq!(subject.provider().inventory().await.unwrap(), [], "dropped after {wait_us} µs");
        // Nothing is left that blocks another box with this id.
        subject.provider().start(&id, &spec).await.unwrap();
        subject.provider().stop(&id).await.unwrap();
    }
}

async fn failed_start(subject: Subject) {
    let (id, spec) = (subject.id(), subject.missing_image());
    assert!(subject.provider().start(&id, &spec).await.is_err());
    assert_eq!(subject.provider().inventory().await.unwrap(), []);
    subject.provider().start(&id, &subject.spec()).await.unwrap();
}

async fn unknown_image(subject: Subject) {
    let (id, spec) = (subject.id(), subject.missing_image());
    // If a registry has to be asked, the start returns the error.
    let refused = match subject.provider().check(&spec) {
        Ok(()) => subject.provider().start(&id, &spec).await.map(drop),
        refused => refused,
    };
    let Err(Error::Invalid(message)) = refused else { panic!("it is not refused: {refused:?}") };
    assert!(message.contains(&spec.image), "{message}");
}

async fn inventory(subject: Subject) {
    let mut expected = Vec::new();
    for _ in 0..3 {
        expected.push(subject.start().await.id);
    }
    let found = subject.provider().inventory().await.unwrap();
    assert!(found.iter().all(|found| found.alive));
    assert!(expected.iter().all(|id| subject.provider().runs(id) != Some(false)));
    let mut found: Vec<_> = found.into_iter().map(|found| found.id).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

async fn just_killed(subject: Subject) {
    // A process ends after all others of its box, which takes long if they have much memory.
    let inside = subject.start().await;
    let much =
        "for i in 1 2 3 4 5 6 7 8; do (x=$(head -c 4000000 /dev/zero | tr '\\0' x); echo $i; sleep 100) & done; wait";
    let mut output = inside.guest.exec(sh(much)).await.unwrap();
    assert!(output.next().await.unwrap().is_ok());
    subject.kill_first(&inside.id).await;
    assert_ne!(subject.provider().runs(&inside.id), Some(true));
}

async fn not_alive(subject: Subject) {
    let inside = subject.start().await;
    let mut output = inside.guest.exec(sh("echo begun; sleep 100")).await.unwrap();
    assert!(output.next().await.unwrap().is_ok());
    subject.kill_first(&inside.id).await;
    let last = soon("the end of the output", output.next()).await;
    assert!(matches!(last, Some(Err(Error::Gone))), "{last:?}");
    let (provider, id) = (subject.provider(), &inside.id);
    eventually("the box is listed as not alive", || async {
        provider.inventory().await.unwrap().iter().any(|found| found.id == *id && !found.alive)
    })
    .await;
    assert!(matches!(provider.guest(id).await, Err(Error::Gone)));
    assert_ne!(provider.runs(id), Some(true));
    provider.stop(id).await.unwrap();
    assert_eq!(provider.inventory().await.unwrap(), []);
    assert_ne!(provider.runs(id), Some(true));
}

async fn dial_again(subject: Subject) {
    let inside = subject.start().await;
    assert_eq!(inside.sh("(sleep 0.7; echo done > /tmp/done) & true").await.code(), 0);
    let id = inside.id.clone();
    drop(inside);
    let inside = subject.dial(id).await;
    eventually("the background process goes on", || inside.exists("/tmp/done")).await;
}

async fn dial_at_once(subject: Subject) {
    let inside = subject.start().await;
    for guest in join_all((0..10).map(|_| subject.dial(inside.id.clone()))).await {
        assert_eq!(guest.sh("exit 4").await.code(), 4);
    }
}

async fn reopened(subject: Subject) {
    let inside = subject.start().await;
    inside.write("/workspace/kept", "kept").await;
    let second = subject.second().await;
    let found = second.inventory().await.unwrap();
    assert!(found.iter().any(|found| found.id == inside.id && found.alive), "{found:?}");
    let guest = second.guest(&inside.id).await.unwrap();
    assert_eq!(guest.stat("/workspace/kept").await.unwrap().size, 4);
    // Both instances can use the box, and the second can remove it.
    assert_eq!(inside.sh("cat /workspace/kept").await.text(), "kept");
    second.stop(&inside.id).await.unwrap();
    assert_eq!(second.inventory().await.unwrap(), []);
    assert!(matches!(subject.provider().guest(&inside.id).await, Err(Error::Gone)));
}

async fn deadline(subject: Subject) {
    let inside = subject.start().await;
    inside.guest.set_deadline(Duration::from_millis(300)).await.unwrap();
    let (provider, id) = (subject.provider(), &inside.id);
    eventually("the box has ended", || async {
        provider.inventory().await.unwrap().iter().all(|found| found.id != *id || !found.alive)
    })
    .await;
}

async fn deadline_moves(subject: Subject) {
    let inside = subject.start().await;
    inside.guest.set_deadline(Duration::from_secs(1)).await.unwrap();
    inside.guest.set_deadline(Duration::from_secs(3600)).await.unwrap();
    assert_eq!(inside.sh("sleep 1.3; echo alive").await.text(), "alive\n");
}
