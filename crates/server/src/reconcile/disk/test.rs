use super::*;
use crate::control::{Policy, SpawnRequest};
use crate::test::lab::{self, Lab, Puppet};

const MIB: u64 = 1 << 20;
const RESERVE: u64 = 1000 * MIB;

struct Disk {
    lab: Lab,
    heavy: Arc<Puppet>,
    guard: Guard,
}

impl Disk {
    async fn new() -> Self {
        let heavy = Puppet::new("heavy");
        heavy.keep_what_is_removed();
        let policy = Policy { reserve_disk_bytes: RESERVE, ..lab::policy() };
        let lab = Lab::new(vec![Arc::clone(&heavy) as Arc<dyn Provider>], policy).await;
        Self { lab, heavy, guard: Guard::new(REMOVAL_MAX) }
    }

    async fn a_box_of(&self, bytes: u64) -> SandboxId {
        let made = self.lab.control.spawn(SpawnRequest::default()).await.unwrap().sandbox.id;
        self.heavy.weigh(&made, bytes);
        made
    }

    async fn look(&mut self, free: u64) -> Option<SandboxId> {
        self.guard.look(&self.lab.control, free).await.unwrap()
    }
}

#[tokio::test]
async fn nobody_else_is_ended_while_what_the_hog_held_is_being_removed() {
    let mut disk = Disk::new().await;
    let neighbour = disk.a_box_of(60 * MIB).await;
    let hog = disk.a_box_of(500 * MIB).await;
    assert_eq!(disk.look(RESERVE).await, None, "there is enough");
    assert_eq!(disk.look(RESERVE - 400 * MIB).await, Some(hog));
    // Its files go slowly: more and more is free, and never enough yet.
    for freed in [0, 0, 100, 399] {
        assert_eq!(disk.look(RESERVE - 400 * MIB + freed * MIB).await, None, "after {freed} MiB");
    }
    disk.heavy.let_go();
    while !disk.guard.coming.is_empty() {
        assert_eq!(disk.look(RESERVE + 100 * MIB).await, None);
        tokio::task::yield_now().await;
    }
    assert_eq!(disk.lab.control.sandbox(neighbour.as_str()).await.unwrap().state, State::Running);
}

#[tokio::test]
async fn the_next_one_is_ended_where_what_comes_free_is_not_enough() {
    let mut disk = Disk::new().await;
    let second = disk.a_box_of(300 * MIB).await;
    let first = disk.a_box_of(500 * MIB).await;
    assert_eq!(disk.look(RESERVE - 700 * MIB).await, Some(first));
    assert_eq!(disk.look(RESERVE - 700 * MIB).await, Some(second), "500 MiB are to come, and 700 are short");
    assert_eq!(disk.look(RESERVE - 700 * MIB).await, None);
}

#[tokio::test]
async fn what_does_not_come_free_in_time_is_not_counted_on_for_ever() {
    let mut disk = Disk::new().await;
    disk.guard = Guard::new(Duration::from_millis(500));
    let second = disk.a_box_of(60 * MIB).await;
    let first = disk.a_box_of(500 * MIB).await;
    assert_eq!(disk.look(RESERVE - MIB).await, Some(first));
    // The clean-up of the first hangs.
    let started = std::time::Instant::now();
    let next = loop {
        match disk.look(RESERVE - MIB).await {
            None => tokio::task::yield_now().await,
            next => break next,
        }
    };
    assert_eq!(next, Some(second));
    assert!(started.elapsed() >= Duration::from_millis(400), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_does_not_measure_its_boxes_does_not_hold_up_the_look() {
    let heavy = Puppet::new("heavy");
    heavy.hang();
    let started = tokio::time::Instant::now();
    assert_eq!(measure(heavy.as_ref(), vec![SandboxId::from_entropy([1; 10])]).await, None);
    assert!(started.elapsed() <= MEASURING_MAX + Duration::from_secs(1));
}

#[tokio::test]
async fn small_boxes_are_not_what_fills_a_disk() {
    let mut disk = Disk::new().await;
    disk.a_box_of(HOG_BYTES_MIN - 1).await;
    assert_eq!(disk.look(0).await, None);
}
