//! Boxes that are kept in files, with a Firecracker that makes none.

use std::time::Duration;

use ::firecracker::Api;
use ::firecracker::requests::State;
use providers::{Chain, Error, Provider, SandboxId, Snapshots};
use rustix::process::{Signal, kill_process, test_kill_process};

use tokio::net::UnixStream;
use tokio_util::task::TaskTracker;

use super::fake::{FakeProvider, spec};
use super::lifecycle::{is_empty, pid};
use crate::test_box::{eventually, new_id, new_snapshot_id};

const WAKE: [&str; 2] = ["PUT /snapshot/load", "PATCH /vm"];

fn snapshots(provider: &providers::firecracker::Firecracker) -> &dyn Snapshots {
    provider.snapshots().unwrap()
}

/// Starts a box and writes it to disk.
async fn suspended(provider: &FakeProvider) -> SandboxId {
    let id = new_id();
    provider.firecracker.start(&id, &spec()).await.unwrap();
    let pauses = provider.firecracker.pauses().unwrap();
    pauses.pause(&id).await.unwrap();
    pauses.suspend(&id).await.unwrap();
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn a_box_of_a_snapshot_goes_on_from_its_files_and_has_a_drive_of_its_own() {
    let Some(provider) = FakeProvider::new().await else { return };
    let (origin, copy, snapshot) = (new_id(), new_id(), new_snapshot_id());
    provider.firecracker.start(&origin, &spec()).await.unwrap();
    std::fs::write(provider.boxes().join(origin.as_str()).join("vm/changes"), "of the origin").unwrap();
    let taken = snapshots(&provider.firecracker).take(&origin, &snapshot).await.unwrap();
    assert!(taken.has_memory && taken.size_bytes > 0, "{taken:?}");
    assert_eq!(provider.firecracker.pauses().unwrap().paused().await.unwrap(), []);
    provider.firecracker.guest(&origin).await.unwrap();
    // A machine that stands still answers nothing, so the first came before that and the second after it.
    assert_eq!([provider.asked("/freeze"), provider.asked("/thaw")], [1, 1]);
    provider.firecracker.stop(&origin).await.unwrap();

    let later = provider.reopen().await;
    assert_eq!(snapshots(&later).list().await.unwrap(), std::slice::from_ref(&snapshot));
    let for_another = snapshots(&later).image_settings(&snapshot).await;
    assert!(matches!(for_another, Err(Error::NotSupported(_))), "{for_another:?}");
    let mut of = spec();
    of.snapshot = Some(snapshot.clone());
    later.check(&of).unwrap();
    let started = later.start(&copy, &of).await.unwrap();
    assert!(started.phases.iter().any(|phase| phase.name == "restore"), "{started:?}");
    assert_eq!(provider.requests(&copy), WAKE);
    let drive = provider.boxes().join(copy.as_str()).join("vm/changes");
    assert_eq!(std::fs::read_to_string(&drive).unwrap(), "of the origin");
    std::fs::write(&drive, "of the copy").unwrap();
    let kept = provider.folder.path().join("firecracker/snapshots").join(snapshot.as_str());
    assert_eq!(std::fs::read_to_string(kept.join("changes")).unwrap(), "of the origin");

    let mut other = of.clone();
    other.resources.memory_mb *= 2;
    let refused = later.check(&other).unwrap_err().to_string();
    assert!(refused.contains("cannot change"), "{refused}");
    snapshots(&later).remove(&snapshot).await.unwrap();
    later.guest(&copy).await.unwrap();
    let missing = later.start(&new_id(), &of).await.unwrap_err();
    assert!(matches!(missing, Error::NotFound(_)), "{missing:?}");
    later.stop(&copy).await.unwrap();
    later.idle().await;
    is_empty(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_whose_files_changed_makes_no_box_and_says_so() {
    let Some(provider) = FakeProvider::new().await else { return };
    let (origin, snapshot, mut of) = (new_id(), new_snapshot_id(), spec());
    of.resources.disk_mb = 16;
    provider.firecracker.start(&origin, &of).await.unwrap();
    snapshots(&provider.firecracker).take(&origin, &snapshot).await.unwrap();
    let dir = provider.folder.path().join("firecracker/snapshots").join(snapshot.as_str());
    of.snapshot = Some(snapshot.clone());
    for name in ["state", "memory", "changes"] {
        let path = dir.join(name);
        let before = std::fs::read(&path).unwrap();
        let mut bytes = before.clone();
        bytes[0] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let failed = provider.firecracker.start(&new_id(), &of).await.unwrap_err();
        let text = Chain(&failed).to_string();
        assert!(
            text.contains(&format!("the file {name} of the saved machine has changed since it was written")),
            "{text}"
        );
        std::fs::write(&path, before).unwrap();
    }
    let made = new_id();
    provider.firecracker.start(&made, &of).await.unwrap();
    for id in [made, origin] {
        provider.firecracker.stop(&id).await.unwrap();
    }
    snapshots(&provider.firecracker).remove(&snapshot).await.unwrap();
    is_empty(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_cannot_be_written_leaves_the_box_running_and_nothing_else() {
    let Some(provider) = FakeProvider::new().await else { return };
    provider.fail("create");
    let (origin, snapshot) = (new_id(), new_snapshot_id());
    provider.firecracker.start(&origin, &spec()).await.unwrap();
    let failed = snapshots(&provider.firecracker).take(&origin, &snapshot).await.unwrap_err();
    assert!(matches!(failed, Error::Full(_)), "{failed:?}");
    assert_eq!(snapshots(&provider.firecracker).list().await.unwrap(), []);
    assert_eq!(provider.requests(&origin).last().unwrap(), "PATCH /vm", "it goes on");
    assert_eq!(provider.firecracker.pauses().unwrap().paused().await.unwrap(), []);
    let left = ["new-state", "new-memory"].map(|name| provider.boxes().join(origin.as_str()).join("vm").join(name));
    assert_eq!(left.map(|path| path.exists()), [false; 2]);
    provider.firecracker.guest(&origin).await.unwrap();
    provider.firecracker.stop(&origin).await.unwrap();
    is_empty(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspended_box_has_no_process_and_a_later_server_has_it_go_on() {
    let Some(provider) = FakeProvider::new().await else { return };
    let id = new_id();
    provider.firecracker.start(&id, &spec()).await.unwrap();
    let pauses = provider.firecracker.pauses().unwrap();
    assert!(matches!(pauses.suspend(&id).await, Err(Error::Conflict(_))), "it is not paused");
    pauses.pause(&id).await.unwrap();
    let process = pid(&provider, &id);
    for _ in 0..2 {
        pauses.suspend(&id).await.unwrap();
    }
    eventually("its process has ended", async || test_kill_process(process).is_err()).await;
    for firecracker in [provider.firecracker.clone(), provider.reopen().await] {
        let found = firecracker.inventory().await.unwrap();
        assert!(found.len() == 1 && found[0].id == id && found[0].alive, "{found:?}");
        let pauses = firecracker.pauses().unwrap();
        assert_eq!(pauses.paused().await.unwrap(), std::slice::from_ref(&id));
        pauses.pause(&id).await.unwrap();
        let taken = snapshots(&firecracker).take(&id, &new_snapshot_id()).await;
        assert!(matches!(taken, Err(Error::Conflict(_))), "{taken:?}");
    }
    let later = provider.reopen().await;
    let pauses = later.pauses().unwrap();
    for _ in 0..2 {
        pauses.resume(&id).await.unwrap();
    }
    assert_eq!(provider.requests(&id)[..2], WAKE);
    assert_eq!(pauses.paused().await.unwrap(), []);
    later.guest(&id).await.unwrap();
    pauses.pause(&id).await.unwrap();
    pauses.suspend(&id).await.unwrap();
    later.stop(&id).await.unwrap();
    later.idle().await;
    is_empty(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_box_on_disk_goes_on_where_the_control_groups_of_the_server_are_others() {
    let Some(provider) = FakeProvider::new().await else { return };
    let id = suspended(&provider).await;
    let folder = provider.boxes().join(id.as_str());
    let texts = || ["box.json", "machine.json"].map(|name| std::fs::read_to_string(folder.join(name)).unwrap());
    let as_they_are = texts();
    let has_groups = as_they_are.iter().all(|text| text.contains("/tidebox/"));
    assert!(has_groups || !crate::processes::is_root(), "{as_they_are:?}");
    for (name, text) in ["box.json", "machine.json"].into_iter().zip(&as_they_are) {
        // As after a restart of the host, when nothing makes the groups above those of the boxes anew.
        std::fs::write(folder.join(name), text.replace("/tidebox/", "/gone/tidebox/")).unwrap();
    }
    let later = provider.reopen().await;
    later.pauses().unwrap().resume(&id).await.unwrap();
    later.guest(&id).await.unwrap();
    assert_eq!(texts(), as_they_are);
    later.stop(&id).await.unwrap();
    later.idle().await;
    is_empty(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_box_that_cannot_go_on_from_disk_stays_there() {
    let Some(provider) = FakeProvider::new().await else { return };
    let id = suspended(&provider).await;
    provider.fail("load");
    let pauses = provider.firecracker.pauses().unwrap();
    let failed = pauses.resume(&id).await.unwrap_err();
    let text = Chain(&failed).to_string();
    assert!(text.contains("CPU template is not supported"), "{text}");
    assert!(provider.firecracker.inventory().await.unwrap()[0].alive);
    provider.fail("");
    pauses.resume(&id).await.unwrap();
    provider.firecracker.guest(&id).await.unwrap();
    kill_process(pid(&provider, &id), Signal::KILL).unwrap();
    let is_dead = async || provider.firecracker.inventory().await.unwrap().iter().all(|found| !found.alive);
    eventually("once it went on, it can end", is_dead).await;
    provider.firecracker.stop(&id).await.unwrap();
    is_empty(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_box_on_disk_goes_on_after_a_server_that_was_killed_between_its_process_and_its_groups() {
    let Some(provider) = FakeProvider::new().await else { return };
    let id = suspended(&provider).await;
    let machine = std::fs::read(provider.boxes().join(id.as_str()).join("machine.json")).unwrap();
    let machine: serde_json::Value = serde_json::from_slice(&machine).unwrap();
    let groups = machine["vmm"]["cgroups"].as_array().unwrap();
    for group in groups {
        std::fs::create_dir(group["path"].as_str().unwrap()).unwrap();
    }
    let later = provider.reopen().await;
    later.pauses().unwrap().resume(&id).await.unwrap();
    later.guest(&id).await.unwrap();
    later.stop(&id).await.unwrap();
    later.idle().await;
    is_empty(&provider).await;
    assert!(groups.iter().all(|group| !std::fs::exists(group["path"].as_str().unwrap()).unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_box_that_went_on_from_disk_and_does_not_answer_is_not_ended() {
    let Some(mut provider) = FakeProvider::new().await else { return };
    let id = suspended(&provider).await;
    provider.fail("mute");
    provider.config.boot_timeout = Duration::from_secs(2);
    let later = provider.reopen().await;
    let failed = later.pauses().unwrap().resume(&id).await.unwrap_err();
    let text = Chain(&failed).to_string();
    assert!(text.contains("cannot reach the agent of a machine that was loaded"), "{text}");
    assert!(later.inventory().await.unwrap()[0].alive);
    test_kill_process(pid(&provider, &id)).unwrap();
    // It has the time of then until its agent hears of another.
    let unrenewed = provider.boxes().join(id.as_str()).join("unrenewed");
    assert!(unrenewed.exists());
    assert_eq!(later.pauses().unwrap().paused().await.unwrap(), std::slice::from_ref(&id));
    later.stop(&id).await.unwrap();
    later.idle().await;
    is_empty(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_box_whose_processes_do_not_stop_is_not_kept_and_goes_on() {
    let Some(provider) = FakeProvider::new().await else { return };
    let (id, snapshot) = (new_id(), new_snapshot_id());
    provider.firecracker.start(&id, &spec()).await.unwrap();
    let before = provider.requests(&id).len();
    provider.refuse(Some("/freeze"));
    let refused = snapshots(&provider.firecracker).take(&id, &snapshot).await.unwrap_err();
    assert!(matches!(&refused, Error::Conflict(text) if text == "not now"), "{refused:?}");
    let asked = provider.requests(&id).split_off(before);
    assert!(!asked.contains(&"PUT /snapshot/create".to_owned()), "{asked:?}");
    let pauses = provider.firecracker.pauses().unwrap();
    assert_eq!(pauses.paused().await.unwrap(), []);
    pauses.pause(&id).await.unwrap();
    pauses.suspend(&id).await.unwrap_err();
    assert_eq!(pauses.paused().await.unwrap(), std::slice::from_ref(&id), "it is paused as it was");
    provider.refuse(None);
    pauses.suspend(&id).await.unwrap();
    pauses.resume(&id).await.unwrap();
    snapshots(&provider.firecracker).take(&id, &snapshot).await.unwrap();
    provider.firecracker.guest(&id).await.unwrap();
    provider.firecracker.stop(&id).await.unwrap();
    snapshots(&provider.firecracker).remove(&snapshot).await.unwrap();
    provider.firecracker.idle().await;
    is_empty(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_box_that_was_cut_off_after_it_went_on_from_disk_gets_the_time_with_the_next_request() {
    let Some(provider) = FakeProvider::new().await else { return };
    let id = suspended(&provider).await;
    provider.firecracker.pauses().unwrap().resume(&id).await.unwrap();
    let folder = provider.boxes().join(id.as_str());
    let marks = ["unrenewed", "paused"].map(|name| folder.join(name));
    assert_eq!(marks.clone().map(|mark| mark.exists()), [false; 2]);
    let before = provider.asked("/restored");
    // As a server leaves it that was killed right after the machine went on.
    marks.iter().for_each(|mark| std::fs::write(mark, []).unwrap());
    let later = provider.reopen().await;
    assert_eq!(later.pauses().unwrap().paused().await.unwrap(), std::slice::from_ref(&id));
    later.pauses().unwrap().resume(&id).await.unwrap();
    assert_eq!(provider.asked("/restored"), before + 1);
    assert_eq!(marks.map(|mark| mark.exists()), [false; 2]);
    later.stop(&id).await.unwrap();
    later.idle().await;
    is_empty(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_outlived_the_writing_of_its_box_is_ended_by_the_next_attempt() {
    let Some(provider) = FakeProvider::new().await else { return };
    let id = new_id();
    provider.firecracker.start(&id, &spec()).await.unwrap();
    provider.firecracker.pauses().unwrap().pause(&id).await.unwrap();
    let folder = provider.boxes().join(id.as_str());
    let kept = suspended(&provider).await;
    // As a server leaves it that was killed between the last file and the end of the process.
    let files = provider.boxes().join(kept.as_str()).join("suspended");
    std::fs::create_dir(folder.join("suspended")).unwrap();
    for file in std::fs::read_dir(files).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.join("suspended").join(file.file_name())).unwrap();
    }
    let process = pid(&provider, &id);
    test_kill_process(process).unwrap();
    let later = provider.reopen().await;
    later.pauses().unwrap().suspend(&id).await.unwrap();
    eventually("its process has ended", async || test_kill_process(process).is_err()).await;
    for id in [id, kept] {
        later.stop(&id).await.unwrap();
    }
    later.idle().await;
    is_empty(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_killed_while_it_wrote_a_box_to_disk_leaves_one_that_goes_on() {
    let Some(provider) = FakeProvider::new().await else { return };
    let id = new_id();
    provider.firecracker.start(&id, &spec()).await.unwrap();
    let pauses = provider.firecracker.pauses().unwrap();
    pauses.pause(&id).await.unwrap();
    // Files that are unfinished, and a process that is still there.
    let folder = provider.boxes().join(id.as_str());
    std::fs::create_dir(folder.join("suspended")).unwrap();
    for file in ["suspended/state", "vm/new-state", "vm/new-memory"] {
        std::fs::write(folder.join(file), "half").unwrap();
    }
    let process = pid(&provider, &id);
    let later = provider.reopen().await;
    let pauses = later.pauses().unwrap();
    pauses.resume(&id).await.unwrap();
    later.guest(&id).await.unwrap();
    assert_eq!(pid(&provider, &id), process, "it had not been written");
    // As one that was killed after Firecracker had paused the machine.
    for takes_a_snapshot in [false, true] {
        let folder = provider.boxes().join(id.as_str());
        std::fs::write(folder.join("paused"), "").unwrap();
        let mut api = Api::new(UnixStream::connect(folder.join("vm/api.sock")).await.unwrap(), &TaskTracker::new())
            .await
            .unwrap();
        api.apply(&State::Paused).await.unwrap();
        let later = provider.reopen().await;
        let pauses = later.pauses().unwrap();
        assert_eq!(pauses.paused().await.unwrap(), std::slice::from_ref(&id));
        if takes_a_snapshot {
            let snapshot = new_snapshot_id();
            snapshots(&later).take(&id, &snapshot).await.unwrap();
            snapshots(&later).remove(&snapshot).await.unwrap();
        }
        pauses.resume(&id).await.unwrap();
        later.guest(&id).await.unwrap();
    }
    pauses.pause(&id).await.unwrap();
    pauses.suspend(&id).await.unwrap();
    pauses.resume(&id).await.unwrap();
    later.guest(&id).await.unwrap();
    later.stop(&id).await.unwrap();
    later.idle().await;
    is_empty(&provider).await;
}
