//! Machines that are made from the files of another one.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use fixtures::suite::PLAIN;
use providers::{Guest, Provider, Result, SandboxId};

use super::harness::TestProvider;
use super::suite::TEMPLATES_MB;
use crate::test_box::{BoxAccess, TestBox, eventually, new_id, new_snapshot_id, spec_of};

/// Longest difference between the clock of a new machine and that of the host, in seconds.
const CLOCK_SECONDS_MAX: u64 = 5;

impl BoxAccess for &TestProvider {
    async fn guest(&self, id: &SandboxId) -> Result<Arc<dyn Guest>> {
        self.firecracker.guest(id).await
    }
}

#[expect(clippy::print_stdout, reason = "what it takes is of interest, and differs from host to host")]
fn show(text: std::fmt::Arguments<'_>) {
    println!("{text}");
}

/// Starts a box, and returns it with the names of the phases of its start.
async fn start(provider: &TestProvider) -> (TestBox<&TestProvider>, Vec<&'static str>) {
    let id = new_id();
    let started = provider.firecracker.start(&id, &spec_of(PLAIN)).await.unwrap();
    show(format_args!("{id}: {:?}", started.phases));
    (TestBox { place: provider, id }, started.phases.iter().map(|phase| phase.name).collect())
}

/// Asserts that the box has the time of the host.
async fn has_the_time(made: &TestBox<&TestProvider>) {
    let now = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let before = now();
    let time: u64 = made.text("date +%s").await.trim().parse().unwrap();
    assert!((before - CLOCK_SECONDS_MAX..=now() + CLOCK_SECONDS_MAX).contains(&time), "{time} at {before}");
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_of_one_template_differ_in_all_that_must_and_see_no_write_of_each_other() {
    let Some(provider) = TestProvider::new(crate::processes::is_root(), TEMPLATES_MB).await else { return };
    let (first, phases) = start(&provider).await;
    assert_eq!(phases, ["image", "box", "agent"]);
    let templates = provider.folder().join("templates");
    let is_finished = || {
        let mut found = std::fs::read_dir(&templates).unwrap().map(|entry| entry.unwrap().path());
        found.any(|dir| !dir.to_str().unwrap().contains(".new-") && dir.join("machine.json").exists())
    };
    eventually("the template is finished", async || is_finished()).await;
    let (second, phases) = start(&provider).await;
    assert_eq!(phases, ["image", "restore", "agent"]);
    let (third, phases) = start(&provider).await;
    assert_eq!(phases, ["image", "restore", "agent"]);
    differ(&[&first, &second, &third]).await;
    keep_apart(&[&first, &second, &third]).await;
}

/// Asserts that the boxes differ in all that must, and have the time of the host.
async fn differ(all: &[&TestBox<&TestProvider>]) {
    for question in [
        "head -c 16 /dev/urandom | od -An -tx1",
        "cat /proc/sys/kernel/random/uuid",
        "hostname",
        "cat /etc/machine-id",
        "mktemp -u",
    ] {
        let mut answers = Vec::new();
        for made in all {
            answers.push(made.text(question).await);
        }
        answers.sort_unstable();
        answers.dedup();
        assert_eq!(answers.len(), all.len(), "{question}: {answers:?}");
    }
    for made in all {
        has_the_time(made).await;
        made.text("getent hosts $(hostname) || grep -q $(hostname) /etc/hosts").await;
    }
}

/// Program that notes a hundred times a second what its box is called, with a random number. It starts no other
/// program, which would take longer than that.
const NOTE: &str = "(while read name < /proc/sys/kernel/hostname && read up _ < /proc/uptime; do \
                    read number < /proc/sys/kernel/random/uuid; \
                    [ \"$up\" = \"$last\" ] || echo $name $number; last=$up; done > /workspace/notes)";

/// Asserts that no program of the copies ran before its machine was made to differ from that of `origin`. Both
/// run [`NOTE`].
async fn none_ran_as_another(origin: &TestBox<&TestProvider>, copies: &[TestBox<&TestProvider>]) {
    let name = origin.text("hostname").await;
    let of_origin = origin.text("cat /workspace/notes").await;
    for copy in copies {
        let of_copy = copy.text("cat /workspace/notes").await;
        let own: Vec<&str> = of_copy
            .lines()
            .zip(of_origin.lines())
            .skip_while(|(copy, origin)| copy == origin)
            .map(|(copy, _)| copy)
            .collect();
        assert!(!own.is_empty(), "{of_copy}");
        // The line of that moment may have been begun.
        let before: Vec<_> = own.iter().skip(1).filter(|line| line.starts_with(name.trim())).collect();
        assert!(before.is_empty(), "{before:?}");
    }
}

/// Asserts that no box sees the writes of another.
async fn keep_apart(all: &[&TestBox<&TestProvider>]) {
    for made in all {
        made.text(&format!("echo {} > /workspace/own; echo {} > /etc/own", made.id, made.id)).await;
    }
    for made in all {
        assert_eq!(made.text("sync; cat /workspace/own /etc/own").await, format!("{0}\n{0}\n", made.id));
    }
}

/// Asserts that no program of a box can make a control group namespace, in which it could lift the bound on
/// processes, and stop the agent.
async fn has_no_group_namespaces(made: &TestBox<&TestProvider>) {
    let most = "/proc/sys/user/max_cgroup_namespaces";
    assert_eq!(made.text(&format!("(echo 9 > {most}) 2>/dev/null; cat {most}")).await, "0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn boxes_of_a_snapshot_go_on_with_its_processes_and_differ_in_all_that_must() {
    let Some(provider) = TestProvider::new(crate::processes::is_root(), 0).await else { return };
    let (origin, _) = start(&provider).await;
    origin.text("echo kept > /workspace/file; (while :; do echo on >> /workspace/ticks; sleep 0.1; done) >/dev/null 2>&1 & echo $! > /workspace/pid").await;
    origin.text(&format!("{NOTE} 2>/dev/null &")).await;
    let (snapshot, snapshots) = (new_snapshot_id(), provider.firecracker.snapshots().unwrap());
    let began = Instant::now();
    let taken = snapshots.take(&origin.id, &snapshot).await.unwrap();
    show(format_args!("snapshot: {:?}, {taken:?}", began.elapsed()));
    assert!(taken.has_memory);
    let mut of = spec_of(PLAIN);
    of.snapshot = Some(snapshot.clone());
    let mut copies = Vec::new();
    for _ in 0..2 {
        let id = new_id();
        let started = provider.firecracker.start(&id, &of).await.unwrap();
        show(format_args!("{id}: {:?}", started.phases));
        copies.push(TestBox { place: &provider, id });
    }
    let all = [&origin, &copies[0], &copies[1]];
    for made in all {
        assert_eq!(made.text("cat /workspace/file").await, "kept\n");
        made.text("kill -0 $(cat /workspace/pid); n=$(wc -l < /workspace/ticks); until [ $(wc -l < /workspace/ticks) -gt $n ]; do sleep 0.1; done").await;
    }
    differ(&all).await;
    keep_apart(&all).await;
    none_ran_as_another(&origin, &copies).await;
    for made in all {
        has_no_group_namespaces(made).await;
    }
    for made in all {
        provider.firecracker.stop(&made.id).await.unwrap();
    }
    snapshots.remove(&snapshot).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_box_goes_on_from_disk_with_its_processes_and_the_time() {
    let Some(provider) = TestProvider::new(crate::processes::is_root(), 0).await else { return };
    let (made, _) = start(&provider).await;
    made.text("(while :; do echo on >> /workspace/ticks; sleep 0.1; done) >/dev/null 2>&1 & echo $! > /workspace/pid")
        .await;
    let hostname = made.text("hostname").await;
    let pauses = provider.firecracker.pauses().unwrap();
    for round in 0..2 {
        pauses.pause(&made.id).await.unwrap();
        let began = Instant::now();
        pauses.suspend(&made.id).await.unwrap();
        show(format_args!("round {round}: written in {:?}", began.elapsed()));
        assert!(provider.firecracker.guest(&made.id).await.is_err());
        let began = Instant::now();
        pauses.resume(&made.id).await.unwrap();
        show(format_args!("round {round}: went on in {:?}", began.elapsed()));
        has_the_time(&made).await;
        assert_eq!(made.text("hostname").await, hostname);
        made.text("kill -0 $(cat /workspace/pid); n=$(wc -l < /workspace/ticks); until [ $(wc -l < /workspace/ticks) -gt $n ]; do sleep 0.1; done").await;
    }
    provider.firecracker.stop(&made.id).await.unwrap();
}
