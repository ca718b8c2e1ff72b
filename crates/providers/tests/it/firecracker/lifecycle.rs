//! The life of a machine, with a Firecracker that makes none.

use providers::firecracker::Firecracker;
use providers::{Chain, Error, Pauses, Provider, Spec};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::fake::{FakeProvider, spec};
use crate::test_box::{eventually, new_id};

pub(super) fn pid(provider: &FakeProvider, id: &providers::SandboxId) -> Pid {
    let text = std::fs::read_to_string(provider.boxes().join(id.as_str()).join("pid")).unwrap();
    Pid::from_raw(text.split_whitespace().next().unwrap().parse().unwrap()).unwrap()
}

/// Asserts that nothing of any box is left.
pub(super) async fn is_empty(provider: &FakeProvider) {
    provider.firecracker.idle().await;
    assert_eq!(provider.firecracker.inventory().await.unwrap(), []);
    assert_eq!(std::fs::read_dir(provider.boxes()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_started_found_by_a_later_server_and_removed_whole() {
    let Some(provider) = FakeProvider::new().await else { return };
    assert_eq!(provider.firecracker.health().await.error, None);
    let facts = provider.firecracker.facts();
    assert_eq!((facts.runtime.as_str(), facts.network_mode.as_str()), ("firecracker 1.16.1", "loopback"));
    let id = new_id();
    provider.firecracker.start(&id, &spec()).await.unwrap();
    provider.firecracker.guest(&id).await.unwrap();
    let process = pid(&provider, &id);
    let disk = provider.firecracker.disk_usage(&id).await.unwrap();
    assert!(disk.bytes < 8 << 20, "the files that all boxes share are not its own: {disk:?}");

    let later = provider.reopen().await;
    let found = later.inventory().await.unwrap();
    assert!(found.len() == 1 && found[0].id == id && found[0].alive, "{found:?}");
    later.guest(&id).await.unwrap();
    later.start(&id, &spec()).await.unwrap();
    assert_eq!(pid(&provider, &id), process, "it was started once");
    later.stop(&id).await.unwrap();
    later.idle().await;
    eventually("its process ends", async || test_kill_process(process).is_err()).await;
    assert!(matches!(provider.firecracker.guest(&id).await, Err(Error::Gone)));
    provider.firecracker.stop(&id).await.unwrap();
    is_empty(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_fails_at_any_step_leaves_nothing_and_the_log_has_the_reason() {
    let Some(provider) = FakeProvider::new().await else { return };
    for (fault, reason) in [
        ("start", "Cannot build the microVM: no memory"),
        ("boot", "Kernel panic - not syncing: nothing to run"),
        ("settle", "cannot mount an overlay: No such device"),
    ] {
        provider.fail(fault);
        let failed = provider.firecracker.start(&new_id(), &spec()).await.unwrap_err();
        let text = Chain(&failed).to_string();
        assert!(matches!(failed, Error::Failed { .. }) && text.contains(reason), "{fault}: {text}");
        is_empty(&provider).await;
    }
    provider.fail("");
    let id = new_id();
    provider.firecracker.start(&id, &spec()).await.unwrap();
    provider.firecracker.stop(&id).await.unwrap();
    is_empty(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_was_killed_is_not_alive_and_is_removed() {
    let Some(provider) = FakeProvider::new().await else { return };
    let id = new_id();
    provider.firecracker.start(&id, &spec()).await.unwrap();
    kill_process(pid(&provider, &id), Signal::KILL).unwrap();
    let is_dead = async || provider.firecracker.inventory().await.unwrap().iter().all(|found| !found.alive);
    eventually("it is not alive", is_dead).await;
    assert!(matches!(provider.firecracker.guest(&id).await, Err(Error::Gone)));
    provider.firecracker.stop(&id).await.unwrap();
    is_empty(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_machine_is_known_by_a_later_server_and_goes_on() {
    let Some(provider) = FakeProvider::new().await else { return };
    let id = new_id();
    provider.firecracker.start(&id, &spec()).await.unwrap();
    let pauses: &dyn Pauses = provider.firecracker.pauses().unwrap();
    for _ in 0..2 {
        pauses.pause(&id).await.unwrap();
        assert_eq!(pauses.paused().await.unwrap(), std::slice::from_ref(&id));
    }
    let later = provider.reopen().await;
    let pauses = later.pauses().unwrap();
    assert_eq!(pauses.paused().await.unwrap(), std::slice::from_ref(&id));
    pauses.resume(&id).await.unwrap();
    assert_eq!(pauses.paused().await.unwrap(), []);
    later.guest(&id).await.unwrap();
    pauses.pause(&id).await.unwrap();
    later.stop(&id).await.unwrap();
    later.idle().await;
    assert!(matches!(pauses.resume(&id).await, Err(Error::Gone)));
    provider.firecracker.stop(&id).await.unwrap();
    is_empty(&provider).await;
}

const RESTORE: [&str; 1] = ["PUT /snapshot/load"];
const RESTORE_RESIZED: [&str; 3] = ["PUT /snapshot/load", "PATCH /drives/changes", "PATCH /vm"];

fn boots(requests: &[String]) -> bool {
    requests.contains(&"PUT /actions".to_owned()) && !requests.contains(&RESTORE[0].to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_machine_of_an_image_and_a_size_is_the_template_of_later_ones() {
    let Some(provider) = FakeProvider::new().await else { return };
    assert_eq!(provider.templates().len(), 0, "a probe boots");
    let start = async |firecracker: &Firecracker, change: fn(&mut Spec)| {
        let (id, mut spec) = (new_id(), spec());
        change(&mut spec);
        firecracker.start(&id, &spec).await.unwrap();
        firecracker.guest(&id).await.unwrap();
        let requests = provider.requests(&id);
        firecracker.stop(&id).await.unwrap();
        requests
    };
    let first = start(&provider.firecracker, |_| ()).await;
    assert!(boots(&first) && first.contains(&"PUT /snapshot/create".to_owned()), "{first:?}");
    let template = provider.template(1).await;
    eventually("it is listed", async || provider.firecracker.image_snapshots().unwrap().snapshots.len() == 1).await;
    let listed = provider.firecracker.image_snapshots().unwrap();
    let (one, kernel) = (&listed.snapshots[0], provider.firecracker.kernel());
    assert!(listed.fallbacks == 0 && one.size_bytes > 0 && one.image.starts_with("sha256:"), "{listed:?}");
    assert_eq!((&one.kernel, kernel.as_deref()), (&kernel, Some("6.1.0-fake")));
    assert_eq!(start(&provider.firecracker, |_| ()).await, RESTORE);
    let larger = start(&provider.firecracker, |spec| spec.resources.disk_mb = 512).await;
    assert_eq!(larger, RESTORE_RESIZED, "a drive of another size");
    let other = start(&provider.firecracker, |spec| spec.resources.memory_mb += 128).await;
    assert!(boots(&other), "memory of another size: {other:?}");
    provider.template(2).await;
    let later = provider.reopen().await;
    assert_eq!(start(&later, |_| ()).await, RESTORE, "of a later server");
    std::fs::create_dir(template.with_file_name(".new-x")).unwrap();
    std::fs::remove_file(template.join("machine.json")).unwrap();
    provider.reopen().await;
    assert_eq!(provider.templates().len(), 1, "what is unfinished is removed");
    is_empty(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_cannot_be_used_is_removed_and_the_machine_boots() {
    for spoil in ["load", "agent", "a bit", "cut short", "no memory"] {
        let Some(provider) = FakeProvider::new().await else { return };
        let (first, second) = (new_id(), new_id());
        provider.firecracker.start(&first, &spec()).await.unwrap();
        let template = provider.template(1).await;
        let memory = template.join("memory");
        match spoil {
            "load" | "agent" => provider.fail(spoil),
            "a bit" => {
                let mut bytes = std::fs::read(&memory).unwrap();
                bytes[70_000] ^= 1;
                std::fs::write(&memory, bytes).unwrap();
            }
            "cut short" => std::fs::File::options().write(true).open(&memory).unwrap().set_len(4096).unwrap(),
            _ => std::fs::remove_file(&memory).unwrap(),
        }
        provider.firecracker.start(&second, &spec()).await.unwrap();
        provider.firecracker.guest(&second).await.unwrap();
        let requests = provider.requests(&second);
        assert!(boots(&requests), "{spoil}: {requests:?}");
        assert_eq!(provider.firecracker.image_snapshots().unwrap().fallbacks, 1, "{spoil}");
        let makes_another = requests.contains(&"PUT /snapshot/create".to_owned());
        assert_eq!(
            makes_another,
            !["load", "agent"].contains(&spoil),
            "only a machine that was to boot is made a template: {requests:?}"
        );
        for id in [first, second] {
            provider.firecracker.stop(&id).await.unwrap();
        }
        is_empty(&provider).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_cannot_be_written_to_files_goes_on() {
    let Some(provider) = FakeProvider::new().await else { return };
    provider.fail("create");
    for (attempt, expected) in [("the first", 1), ("the next, after which none is made for a while", 0)] {
        let id = new_id();
        provider.firecracker.start(&id, &spec()).await.unwrap();
        provider.firecracker.guest(&id).await.unwrap();
        let tries = provider.requests(&id).iter().filter(|request| request.as_str() == "PUT /snapshot/create").count();
        assert_eq!(tries, expected, "{attempt}");
        provider.firecracker.stop(&id).await.unwrap();
    }
    assert_eq!(provider.templates().len(), 0);
    is_empty(&provider).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_machine_can_be_is_refused_by_name() {
    let Some(provider) = FakeProvider::new().await else { return };
    let refused = |change: fn(&mut providers::Spec)| {
        let mut spec = spec();
        change(&mut spec);
        provider.firecracker.check(&spec).unwrap_err().to_string()
    };
    assert!(refused(|spec| spec.image = "host".to_owned()).contains("native and proot have it"));
    assert!(refused(|spec| spec.resources.memory_mb = 32).contains("memory_mb is 32"));
    assert!(refused(|spec| spec.resources.vcpus = 33).contains("vcpus is 33"));
}
