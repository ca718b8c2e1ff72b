//! Starts and stops of boxes, and the inventory.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use providers::{Error, OutputEvent};

use super::case::{Case, case};
use super::lab::{Lab, eventually, sh, soon};

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
        case!("dropping a guest and dialling again changes nothing in the box", dial_again),
        case!("many can dial one box at once", dial_at_once),
        case!("a second instance finds the boxes of the first", reopened, Reopen),
        case!("a box ends by itself at its deadline", deadline, Deadlines),
        case!("a deadline can be moved again and again", deadline_moves),
    ]
}

async fn healthy(lab: Lab) {
    let health = tokio::time::timeout(Duration::from_secs(1), lab.provider().health()).await.unwrap();
    assert_eq!(health.error, None);
    assert!(!lab.provider().default_image().is_empty() && !lab.provider().name().is_empty());
    lab.provider().check(&lab.spec()).unwrap();
}

async fn usable(lab: Lab) {
    let inside = lab.start().await;
    assert_eq!(inside.sh("echo hello").await.text(), "hello\n");
}

async fn start_again(lab: Lab) {
    let inside = lab.start().await;
    inside.write("/workspace/kept", "kept").await;
    lab.provider().start(&inside.id, &lab.spec()).await.unwrap();
    assert_eq!(lab.provider().inventory().await.unwrap().len(), 1);
    assert_eq!(lab.dial(inside.id).await.read("/workspace/kept").await, b"kept");
}

async fn start_at_once(lab: Lab) {
    let (id, spec) = (lab.id(), lab.spec());
    for started in join_all((0..5).map(|_| lab.provider().start(&id, &spec))).await {
        started.unwrap();
    }
    assert_eq!(lab.provider().inventory().await.unwrap().len(), 1);
    assert_eq!(lab.dial(id).await.sh("true").await.code(), 0);
}

async fn many(lab: Lab) {
    let boxes = join_all((0..20).map(|_| lab.start())).await;
    let codes = join_all(boxes.iter().map(|inside| inside.sh("exit 7"))).await;
    assert!(codes.iter().all(|ran| ran.code() == 7));
    for stopped in join_all(boxes.iter().map(|inside| lab.provider().stop(&inside.id))).await {
        stopped.unwrap();
    }
    assert_eq!(lab.provider().inventory().await.unwrap(), []);
}

async fn apart(lab: Lab) {
    let (one, other) = (lab.start().await, lab.start().await);
    for path in ["/workspace/mine", "/tmp/mine", "/root/mine"] {
        one.write(path, "secret").await;
        assert!(!other.exists(path).await, "{path}");
    }
}

async fn stop_absent(lab: Lab) {
    lab.provider().stop(&lab.id()).await.unwrap();
}

async fn stop_twice(lab: Lab) {
    let inside = lab.start().await;
    let (one, other) = tokio::join!(lab.provider().stop(&inside.id), lab.provider().stop(&inside.id));
    one.unwrap();
    other.unwrap();
    lab.provider().stop(&inside.id).await.unwrap();
}

async fn gone(lab: Lab) {
    let inside = lab.start().await;
    lab.provider().stop(&inside.id).await.unwrap();
    assert!(matches!(lab.provider().guest(&inside.id).await, Err(Error::Gone)));
    assert!(matches!(lab.provider().guest(&lab.id()).await, Err(Error::Gone)));
    let exec = soon("a command in a box that is gone", inside.guest.exec(sh("true"))).await;
    assert!(matches!(exec.map(|_| ()), Err(Error::Gone)));
    let stat = soon("a look into a box that is gone", inside.guest.stat("/")).await;
    assert!(matches!(stat, Err(Error::Gone)), "{stat:?}");
    assert!(matches!(inside.guest.console(10).await, Err(Error::Gone)));
}

async fn stop_ends_commands(lab: Lab) {
    let inside = lab.start().await;
    let mut output = inside.guest.exec(sh("echo begun; sleep 100")).await.unwrap();
    assert_eq!(output.next().await.unwrap().unwrap(), OutputEvent::Stdout("begun\n".into()));
    lab.provider().stop(&inside.id).await.unwrap();
    let last = soon("the end of the output", output.next()).await;
    assert!(matches!(last, Some(Err(Error::Gone))), "{last:?}");
    assert!(output.next().await.is_none());
}

async fn anew(lab: Lab) {
    let inside = lab.start().await;
    inside.write("/workspace/old", "old").await;
    lab.provider().stop(&inside.id).await.unwrap();
    lab.provider().start(&inside.id, &lab.spec()).await.unwrap();
    assert!(!lab.dial(inside.id).await.exists("/workspace/old").await);
}

async fn dropped_start(lab: Lab) {
    for wait_us in [0, 100, 500, 1000, 2000, 3000, 5000, 10_000] {
        let (id, spec) = (lab.id(), lab.spec());
        let _ = tokio::time::timeout(Duration::from_micros(wait_us), lab.provider().start(&id, &spec)).await;
        lab.provider().stop(&id).await.unwrap();
        assert_eq!(lab.provider().inventory().await.unwrap(), [], "dropped after {wait_us} µs");
        // Nothing is left that blocks another box with this id.
        lab.provider().start(&id, &spec).await.unwrap();
        lab.provider().stop(&id).await.unwrap();
    }
}

async fn failed_start(lab: Lab) {
    let (id, spec) = (lab.id(), lab.missing_image());
    assert!(lab.provider().start(&id, &spec).await.is_err());
    assert_eq!(lab.provider().inventory().await.unwrap(), []);
    lab.provider().start(&id, &lab.spec()).await.unwrap();
}

async fn unknown_image(lab: Lab) {
    let (id, spec) = (lab.id(), lab.missing_image());
    // If a registry has to be asked, the start returns the error.
    let refused = match lab.provider().check(&spec) {
        Ok(()) => lab.provider().start(&id, &spec).await.map(drop),
        refused => refused,
    };
    let Err(Error::Invalid(message)) = refused else { panic!("it is not refused: {refused:?}") };
    assert!(message.contains(&spec.image), "{message}");
}

async fn inventory(lab: Lab) {
    let mut expected = Vec::new();
    for _ in 0..3 {
        expected.push(lab.start().await.id);
    }
    let found = lab.provider().inventory().await.unwrap();
    assert!(found.iter().all(|found| found.alive));
    let mut found: Vec<_> = found.into_iter().map(|found| found.id).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

async fn not_alive(lab: Lab) {
    let inside = lab.start().await;
    let mut output = inside.guest.exec(sh("echo begun; sleep 100")).await.unwrap();
    assert!(output.next().await.unwrap().is_ok());
    lab.kill_first(&inside.id).await;
    let last = soon("the end of the output", output.next()).await;
    assert!(matches!(last, Some(Err(Error::Gone))), "{last:?}");
    let (provider, id) = (lab.provider(), &inside.id);
    eventually("the box is listed as not alive", || async {
        provider.inventory().await.unwrap().iter().any(|found| found.id == *id && !found.alive)
    })
    .await;
    assert!(matches!(provider.guest(id).await, Err(Error::Gone)));
    provider.stop(id).await.unwrap();
    assert_eq!(provider.inventory().await.unwrap(), []);
}

async fn dial_again(lab: Lab) {
    let inside = lab.start().await;
    assert_eq!(inside.sh("(sleep 0.7; echo done > /tmp/done) & true").await.code(), 0);
    let id = inside.id.clone();
    drop(inside);
    let inside = lab.dial(id).await;
    eventually("the background process goes on", || inside.exists("/tmp/done")).await;
}

async fn dial_at_once(lab: Lab) {
    let inside = lab.start().await;
    for guest in join_all((0..10).map(|_| lab.dial(inside.id.clone()))).await {
        assert_eq!(guest.sh("exit 4").await.code(), 4);
    }
}

async fn reopened(lab: Lab) {
    let inside = lab.start().await;
    inside.write("/workspace/kept", "kept").await;
    let second = lab.second().await;
    let found = second.inventory().await.unwrap();
    assert!(found.iter().any(|found| found.id == inside.id && found.alive), "{found:?}");
    let guest = second.guest(&inside.id).await.unwrap();
    assert_eq!(guest.stat("/workspace/kept").await.unwrap().size, 4);
    // Both instances can use the box, and the second can remove it.
    assert_eq!(inside.sh("cat /workspace/kept").await.text(), "kept");
    second.stop(&inside.id).await.unwrap();
    assert_eq!(second.inventory().await.unwrap(), []);
    assert!(matches!(lab.provider().guest(&inside.id).await, Err(Error::Gone)));
}

async fn deadline(lab: Lab) {
    let inside = lab.start().await;
    inside.guest.set_deadline(Duration::from_millis(300)).await.unwrap();
    let (provider, id) = (lab.provider(), &inside.id);
    eventually("the box has ended", || async {
        provider.inventory().await.unwrap().iter().all(|found| found.id != *id || !found.alive)
    })
    .await;
}

async fn deadline_moves(lab: Lab) {
    let inside = lab.start().await;
    inside.guest.set_deadline(Duration::from_millis(400)).await.unwrap();
    inside.guest.set_deadline(Duration::from_secs(3600)).await.unwrap();
    assert_eq!(inside.sh("sleep 0.8; echo alive").await.text(), "alive\n");
}
