//! Users that share a box through slots.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use providers::{Error, OutputEvent, Spec};

use super::case::{Case, case};
use super::subject::{Inside, Subject, argv, eventually, sh, soon};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("a slot runs commands and keeps files", usable, Slots),
        case!("a slot runs real programs as a user of its own, in a home of its own", own_user, Slots, Processes),
        case!("adding a slot that runs finds it", add_again, Slots),
        case!("adding one slot many times at once makes one", add_at_once, Slots),
        case!("a box for slots that runs is found by a repeat, with its slots", host_again, Slots),
        case!("slots do not see the files of each other", apart, Slots),
        case!("slots do not see the processes of each other", own_processes, Slots, Processes),
        case!("a box that holds slots is in the inventory, and its slots are not", inventory, Slots),
        case!("the list of a box names its slots and no others", list, Slots),
        case!("removing a slot ends its commands, and those of its neighbours go on", remove_ends_commands, Slots),
        case!("a slot that was removed is gone", gone, Slots),
        case!("removing a slot that never was succeeds, and so does a repeat", remove_absent, Slots),
        case!("a slot can be made anew under its old id, empty", anew, Slots),
        case!("a slot in a box that is not there cannot be made", no_host, Slots),
        case!("a slot in a box that was not made for slots is refused", plain_host, Slots),
        case!("a slot that cannot be made leaves nothing", failed_add, Slots, Images),
        case!("dropping an addition leaves nothing that a removal does not remove", dropped_add, Slots),
        case!("stopping a box ends its slots", stop_host, Slots),
        case!("a box that ends by itself ends its slots", host_ends, Slots, Kill),
        case!("many slots can be added at once", many, Slots),
        case!("a second instance finds the slots of the first", reopened, Slots, Reopen),
        case!("a slot ends by itself at its deadline, and its neighbours go on", deadline, Slots, Deadlines),
        case!("a box for slots ends by itself at its deadline, with its slots", host_deadline, Slots, Deadlines),
    ]
}

async fn usable(subject: Subject) {
    let host = subject.host().await;
    let inside = subject.slot(&host).await;
    inside.write("/workspace/file", "kept").await;
    assert_eq!(inside.sh("cat /workspace/file; echo more > /tmp/more").await.text(), "kept");
    assert_eq!(inside.read("/tmp/more").await, b"more\n");
}

async fn own_user(subject: Subject) {
    let host = subject.host().await;
    let (one, other) = (subject.slot(&host).await, subject.slot(&host).await);
    let who = |inside: Inside| async move { inside.sh("id -u; pwd; cd; pwd").await.text().to_owned() };
    let (one_is, other_is) = (who(one.clone()).await, who(other).await);
    assert_ne!(one_is, other_is);
    let uid = one_is.lines().next().unwrap();
    assert!(uid.parse::<u32>().unwrap() > 0);
    assert!(one_is.ends_with("\n/workspace\n/home/user\n"), "{one_is}");
    one.write("/workspace/file", "").await;
    assert_eq!(one.sh("stat -c %u /workspace/file").await.text().trim(), uid);
    let as_root = providers::Command { user: Some("root".to_owned()), ..argv(&["/usr/bin/id"]) };
    let refused = one.guest.exec(as_root).await.map(|_| ());
    assert!(matches!(refused, Err(Error::NotSupported(_))), "{refused:?}");
    let as_itself = providers::Command { user: Some("user".to_owned()), ..argv(&["/usr/bin/id", "-u"]) };
    assert_eq!(one.run(as_itself).await.text().trim(), uid);
}

async fn add_again(subject: Subject) {
    let host = subject.host().await;
    let inside = subject.slot(&host).await;
    inside.write("/workspace/kept", "kept").await;
    subject.slots().add(&host, &inside.id, &subject.spec()).await.unwrap();
    assert_eq!(subject.slots().list(&host).await.unwrap().len(), 1);
    assert_eq!(subject.dial_slot(&host, inside.id).await.read("/workspace/kept").await, b"kept");
}

async fn add_at_once(subject: Subject) {
    let (host, id, spec) = (subject.host().await, subject.slot_id(), subject.spec());
    for added in join_all((0..5).map(|_| subject.slots().add(&host, &id, &spec))).await {
        added.unwrap();
    }
    assert_eq!(subject.slots().list(&host).await.unwrap().len(), 1);
    assert_eq!(subject.dial_slot(&host, id).await.sh("true").await.code(), 0);
}

async fn host_again(subject: Subject) {
    let host = subject.host().await;
    let inside = subject.slot(&host).await;
    subject.slots().start_host(&host, &subject.roomy()).await.unwrap();
    assert_eq!(subject.provider().inventory().await.unwrap().len(), 1);
    assert_eq!(inside.sh("true").await.code(), 0);
}

async fn apart(subject: Subject) {
    let host = subject.host().await;
    let (one, other) = (subject.slot(&host).await, subject.slot(&host).await);
    for path in ["/workspace/mine", "/tmp/mine", "/home/user/mine", "/var/tmp/mine", "/dev/shm/mine"] {
        match one.guest.write_file(path, None, super::subject::pieces(b"secret")).await {
            // Not every kind of box has all of these folders.
            Ok(()) | Err(Error::Invalid(_) | Error::NotFound(_)) => {}
            Err(error) => panic!("{path}: {error}"),
        }
        assert!(!other.exists(path).await, "{path}");
    }
    assert!(one.exists("/workspace/mine").await && one.exists("/tmp/mine").await);
}

async fn own_processes(subject: Subject) {
    let host = subject.host().await;
    let (one, other) = (subject.slot(&host).await, subject.slot(&host).await);
    assert_eq!(one.sh("sleep 4242 & true").await.code(), 0);
    let seen = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '";
    assert!(one.sh(seen).await.text().contains("sleep 4242"));
    assert!(!other.sh(seen).await.text().contains("sleep 4242"));
}

async fn inventory(subject: Subject) {
    let host = subject.host().await;
    subject.slot(&host).await;
    let found = subject.provider().inventory().await.unwrap();
    assert!(matches!(&found[..], [only] if only.id == host && only.alive), "{found:?}");
}

async fn list(subject: Subject) {
    let (host, elsewhere) = (subject.host().await, subject.host().await);
    let mut expected = [subject.slot(&host).await.id, subject.slot(&host).await.id];
    subject.slot(&elsewhere).await;
    expected.sort();
    let mut found = subject.slots().list(&host).await.unwrap();
    found.sort_by(|a, b| a.id.cmp(&b.id));
    assert!(found.iter().all(|found| found.alive), "{found:?}");
    assert!(found.iter().map(|found| &found.id).eq(&expected), "{found:?}");
    assert_eq!(subject.slots().list(&subject.slot_id()).await.unwrap(), []);
}

async fn remove_ends_commands(subject: Subject) {
    let host = subject.host().await;
    let (one, other) = (subject.slot(&host).await, subject.slot(&host).await);
    let mut ending = one.guest.exec(sh("echo begun; sleep 100")).await.unwrap();
    let mut staying = other.guest.exec(sh("echo begun; sleep 1; echo stays")).await.unwrap();
    for output in [&mut ending, &mut staying] {
        assert_eq!(output.next().await.unwrap().unwrap(), OutputEvent::Stdout("begun\n".into()));
    }
    subject.slots().remove(&host, &one.id).await.unwrap();
    let last = soon("the end of the output", ending.next()).await;
    assert!(matches!(last, Some(Err(Error::Gone))), "{last:?}");
    assert_eq!(staying.next().await.unwrap().unwrap(), OutputEvent::Stdout("stays\n".into()));
    assert!(matches!(staying.next().await, Some(Ok(OutputEvent::Exit(exit))) if exit.code == 0));
}

async fn gone(subject: Subject) {
    let host = subject.host().await;
    let inside = subject.slot(&host).await;
    subject.slots().remove(&host, &inside.id).await.unwrap();
    assert!(matches!(subject.slots().slot_guest(&host, &inside.id).await, Err(Error::Gone)));
    assert!(matches!(subject.slots().slot_guest(&host, &subject.slot_id()).await, Err(Error::Gone)));
    assert!(matches!(subject.slots().slot_guest(&subject.slot_id(), &inside.id).await, Err(Error::Gone)));
    let exec = soon("a command in a slot that is gone", inside.guest.exec(sh("true"))).await;
    assert!(matches!(exec.map(|_| ()), Err(Error::Gone)));
    assert_eq!(subject.slots().list(&host).await.unwrap(), []);
}

async fn remove_absent(subject: Subject) {
    let host = subject.host().await;
    let inside = subject.slot(&host).await;
    subject.slots().remove(&host, &subject.slot_id()).await.unwrap();
    subject.slots().remove(&subject.slot_id(), &inside.id).await.unwrap();
    assert_eq!(inside.sh("true").await.code(), 0);
    let (one, other) =
        tokio::join!(subject.slots().remove(&host, &inside.id), subject.slots().remove(&host, &inside.id));
    one.unwrap();
    other.unwrap();
    subject.slots().remove(&host, &inside.id).await.unwrap();
}

async fn anew(subject: Subject) {
    let host = subject.host().await;
    let inside = subject.slot(&host).await;
    inside.write("/workspace/old", "old").await;
    subject.slots().remove(&host, &inside.id).await.unwrap();
    subject.slots().add(&host, &inside.id, &subject.spec()).await.unwrap();
    let inside = subject.dial_slot(&host, inside.id).await;
    assert!(!inside.exists("/workspace/old").await);
    inside.write("/workspace/new", "new").await;
}

async fn no_host(subject: Subject) {
    let (absent, stopped) = (subject.id(), subject.host().await);
    subject.provider().stop(&stopped).await.unwrap();
    for host in [absent, stopped] {
        let added = subject.slots().add(&host, &subject.slot_id(), &subject.spec()).await;
        assert!(matches!(added, Err(Error::Gone)), "{added:?}");
    }
}

async fn plain_host(subject: Subject) {
    let plain = subject.start().await;
    let added = subject.slots().add(&plain.id, &subject.slot_id(), &subject.spec()).await;
    assert!(matches!(added, Err(Error::Invalid(_))), "{added:?}");
    assert_eq!(subject.slots().list(&plain.id).await.unwrap(), []);
}

async fn failed_add(subject: Subject) {
    let host = subject.host().await;
    let added = subject.slots().add(&host, &subject.slot_id(), &subject.missing_image()).await;
    assert!(matches!(added, Err(Error::Invalid(_))), "{added:?}");
    assert_eq!(subject.slots().list(&host).await.unwrap(), []);
}

async fn dropped_add(subject: Subject) {
    let (host, id, spec) = (subject.host().await, subject.slot_id(), subject.spec());
    for after_ms in [0, 1, 2, 4, 8] {
        let add = subject.slots().add(&host, &id, &spec);
        let _ = tokio::time::timeout(Duration::from_millis(after_ms), add).await;
        subject.slots().remove(&host, &id).await.unwrap();
        assert_eq!(subject.slots().list(&host).await.unwrap(), []);
    }
    subject.slots().add(&host, &id, &spec).await.unwrap();
    assert_eq!(subject.dial_slot(&host, id).await.sh("true").await.code(), 0);
}

async fn ends_with_its_box(subject: &Subject, host: &providers::SandboxId, inside: &Inside) {
    assert!(matches!(subject.slots().slot_guest(host, &inside.id).await, Err(Error::Gone)));
    let stat = soon("a look into a slot that has ended", inside.guest.stat("/")).await;
    assert!(matches!(stat, Err(Error::Gone)), "{stat:?}");
}

async fn stop_host(subject: Subject) {
    let host = subject.host().await;
    let inside = subject.slot(&host).await;
    let mut output = inside.guest.exec(sh("echo begun; sleep 100")).await.unwrap();
    assert_eq!(output.next().await.unwrap().unwrap(), OutputEvent::Stdout("begun\n".into()));
    subject.provider().stop(&host).await.unwrap();
    let last = soon("the end of the output", output.next()).await;
    assert!(matches!(last, Some(Err(Error::Gone))), "{last:?}");
    ends_with_its_box(&subject, &host, &inside).await;
    assert_eq!(subject.slots().list(&host).await.unwrap(), []);
    // Its slots must not come back with a box of the same id.
    subject.slots().start_host(&host, &subject.roomy()).await.unwrap();
    assert_eq!(subject.slots().list(&host).await.unwrap(), []);
}

async fn host_ends(subject: Subject) {
    let host = subject.host().await;
    let inside = subject.slot(&host).await;
    subject.kill_first(&host).await;
    slots_have_ended(&subject, &host).await;
    ends_with_its_box(&subject, &host, &inside).await;
    subject.provider().stop(&host).await.unwrap();
    assert_eq!(subject.slots().list(&host).await.unwrap(), []);
}

async fn slots_have_ended(subject: &Subject, host: &providers::SandboxId) {
    eventually("the slots have ended", || async {
        let found = subject.slots().list(host).await.unwrap();
        !found.is_empty() && found.iter().all(|found| !found.alive)
    })
    .await;
}

async fn many(subject: Subject) {
    let host = subject.host().await;
    let slots = join_all((0..8).map(|_| subject.slot(&host))).await;
    let codes = join_all(slots.iter().map(|inside| inside.sh("exit 7"))).await;
    assert!(codes.iter().all(|ran| ran.code() == 7));
    for removed in join_all(slots.iter().map(|inside| subject.slots().remove(&host, &inside.id))).await {
        removed.unwrap();
    }
    assert_eq!(subject.slots().list(&host).await.unwrap(), []);
}

async fn reopened(subject: Subject) {
    let host = subject.host().await;
    let (inside, other) = (subject.slot(&host).await, subject.slot(&host).await);
    inside.write("/workspace/kept", "kept").await;
    let second = subject.second().await;
    let slots = second.slots().unwrap();
    assert_eq!(slots.list(&host).await.unwrap().iter().filter(|found| found.alive).count(), 2);
    let guest = slots.slot_guest(&host, &inside.id).await.unwrap();
    assert_eq!(guest.stat("/workspace/kept").await.unwrap().size, 4);
    slots.remove(&host, &inside.id).await.unwrap();
    assert_eq!(other.sh("true").await.code(), 0);
    let third = subject.slot_id();
    slots.add(&host, &third, &subject.spec()).await.unwrap();
    assert_eq!(subject.dial_slot(&host, third).await.sh("true").await.code(), 0);
    second.stop(&host).await.unwrap();
    assert!(matches!(subject.slots().slot_guest(&host, &other.id).await, Err(Error::Gone)));
}

async fn deadline(subject: Subject) {
    let host = subject.host().await;
    let (inside, other) = (subject.slot(&host).await, subject.slot(&host).await);
    inside.guest.set_deadline(Duration::from_millis(300)).await.unwrap();
    eventually("the slot has ended", || async {
        subject.slots().list(&host).await.unwrap().iter().any(|found| found.id == inside.id && !found.alive)
    })
    .await;
    assert_eq!(other.sh("true").await.code(), 0);
    subject.slots().remove(&host, &inside.id).await.unwrap();
    // A lifetime set at the start counts like any other.
    let brief = Spec { lifetime: Duration::from_secs(2), ..subject.spec() };
    let id = subject.slot_id();
    subject.slots().add(&host, &id, &brief).await.unwrap();
    eventually("the brief slot has ended", || async {
        subject.slots().list(&host).await.unwrap().iter().any(|found| found.id == id && !found.alive)
    })
    .await;
}

async fn host_deadline(subject: Subject) {
    let host = subject.host().await;
    subject.slot(&host).await;
    let guest = subject.provider().guest(&host).await.unwrap();
    guest.set_deadline(Duration::from_millis(300)).await.unwrap();
    slots_have_ended(&subject, &host).await;
}
