use domain::{SizeOptions, SpawnOptions, State};

use super::*;
use crate::control::Policy;
use crate::control::SpawnRequest;
use crate::test::harness::{self, TestApp, TestProvider};

const MIB: u64 = 1 << 20;
const RESERVE: u64 = 1000 * MIB;

struct Disks {
    app: TestApp,
    heavy: Arc<TestProvider>,
    guard: Guard,
}

impl Disks {
    async fn new() -> Self {
        let heavy = TestProvider::new("heavy");
        heavy.hold_removals();
        let policy = Policy { reserve_disk_bytes: RESERVE, reserve_inodes: 10_000, ..harness::policy() };
        let app = TestApp::builder().provider(heavy.clone()).policy(policy).start().await;
        Self { app, heavy, guard: Guard::new(REMOVAL_MAX) }
    }

    async fn a_box_of(&self, bytes: u64) -> SandboxId {
        self.a_box_with(0, DiskUsage { bytes, ..DiskUsage::default() }).await
    }

    async fn a_box_with(&self, disk_mb: u32, usage: DiskUsage) -> SandboxId {
        let size = SizeOptions { disk_mb: Some(disk_mb), ..SizeOptions::default() };
        let options = SpawnOptions { size, ..SpawnOptions::default() };
        let request = SpawnRequest { options, ..SpawnRequest::default() };
        let made = self.app.control.spawn(request).await.unwrap().sandbox.id;
        self.heavy.set_disk_usage(&made, usage);
        made
    }

    async fn look(&mut self, free: u64) -> Option<SandboxId> {
        self.look_at(Room { bytes: free, entries: None }).await
    }

    async fn look_at(&mut self, room: Room) -> Option<SandboxId> {
        let disk = Disk { device: 0, room, providers: vec!["heavy".to_owned()], images: None };
        self.guard.look(&self.app.control, &disk).await.unwrap()
    }
}

#[tokio::test]
async fn nobody_else_is_ended_while_what_the_hog_held_is_being_removed() {
    let mut disk = Disks::new().await;
    let neighbour = disk.a_box_of(60 * MIB).await;
    let hog = disk.a_box_of(500 * MIB).await;
    assert_eq!(disk.look(RESERVE).await, None, "there is enough");
    assert_eq!(disk.look(RESERVE - 400 * MIB).await, Some(hog));
    // Its files are removed slowly: the free space grows, and is not yet enough.
    for freed in [0, 0, 100, 399] {
        assert_eq!(disk.look(RESERVE - 400 * MIB + freed * MIB).await, None, "after {freed} MiB");
    }
    disk.heavy.finish_removals();
    while !disk.guard.coming.is_empty() {
        assert_eq!(disk.look(RESERVE + 100 * MIB).await, None);
        tokio::task::yield_now().await;
    }
    assert_eq!(disk.app.control.sandbox(neighbour.as_str()).await.unwrap().state, State::Running);
}

#[tokio::test]
async fn the_next_one_is_ended_where_what_comes_free_is_not_enough() {
    let mut disk = Disks::new().await;
    let second = disk.a_box_of(300 * MIB).await;
    let first = disk.a_box_of(500 * MIB).await;
    assert_eq!(disk.look(RESERVE - 700 * MIB).await, Some(first));
    assert_eq!(disk.look(RESERVE - 700 * MIB).await, Some(second), "500 MiB are to come, and 700 are short");
    assert_eq!(disk.look(RESERVE - 700 * MIB).await, None);
}

#[tokio::test]
async fn what_does_not_come_free_in_time_is_not_counted_on_for_ever() {
    let mut disk = Disks::new().await;
    disk.guard = Guard::new(Duration::from_millis(500));
    let second = disk.a_box_of(60 * MIB).await;
    let first = disk.a_box_of(500 * MIB).await;
    assert_eq!(disk.look(RESERVE - MIB).await, Some(first));
    // The removal of the first hangs.
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
    let heavy = TestProvider::new("heavy");
    heavy.hang();
    let started = tokio::time::Instant::now();
    let app = TestApp::builder().provider(TestProvider::new("mock")).start().await;
    let silent = app.control.spawn(SpawnRequest::default()).await.unwrap().sandbox.id;
    assert_eq!(measure(heavy.as_ref(), vec![silent]).await, []);
    assert!(started.elapsed() <= MEASURING_MAX + Duration::from_secs(1));
}

#[tokio::test]
async fn small_boxes_are_not_what_fills_a_disk() {
    let mut disk = Disks::new().await;
    disk.a_box_of(HOG_BYTES_MIN - 1).await;
    assert_eq!(disk.look(0).await, None);
}

#[tokio::test]
async fn a_bound_of_its_own_spares_no_box_that_fills_the_disk() {
    let mut disk = Disks::new().await;
    disk.a_box_of(100 * MIB).await;
    let hog = disk.a_box_with(16_000_000, DiskUsage { bytes: 900 * MIB, ..DiskUsage::default() }).await;
    assert_eq!(disk.look(RESERVE - MIB).await, Some(hog));
}

#[tokio::test]
async fn the_advice_fits_the_box_that_is_ended() {
    for (disk_mb, held, advice) in [
        (0, 900, "spawn with `disk_mb`"),
        (2000, 900, "spawn with less `disk_mb`"),
        (0, 24, "the operator has to free space"),
        (64, 24, "the operator has to free space"),
    ] {
        let mut disk = Disks::new().await;
        let usage = DiskUsage { bytes: held * MIB, ..DiskUsage::default() };
        let ended = disk.a_box_with(disk_mb, usage).await;
        assert_eq!(disk.look(0).await, Some(ended.clone()));
        let told = disk.app.control.sandbox(ended.as_str()).await.unwrap().error.unwrap();
        assert!(told.contains(&format!("it held {held} MiB")) && told.contains(advice), "{told}");
    }
}

#[tokio::test]
async fn the_box_with_the_most_entries_is_ended_where_inodes_are_short() {
    let mut disk = Disks::new().await;
    disk.a_box_with(0, DiskUsage { bytes: 800 * MIB, entries: 50, is_cut: false }).await;
    let hog = disk.a_box_with(0, DiskUsage { bytes: 0, entries: 19_141, is_cut: false }).await;
    let short = Room { bytes: 2 * RESERVE, entries: Some(9_999) };
    assert_eq!(disk.look_at(Room { entries: Some(10_000), ..short }).await, None, "there are enough");
    assert_eq!(disk.look_at(Room { entries: None, ..short }).await, None, "they are not counted there");
    assert_eq!(disk.look_at(short).await, Some(hog.clone()));
    assert_eq!(disk.look_at(short).await, None, "enough of them are to come");
    let told = disk.app.control.sandbox(hog.as_str()).await.unwrap().error.unwrap();
    assert!(told.contains("19141 files and directories") && told.contains("disk_mb"), "{told}");
}

#[tokio::test]
async fn many_entries_do_not_hide_what_a_box_holds() {
    let mut disk = Disks::new().await;
    disk.a_box_of(500 * MIB).await;
    let uncounted = DiskUsage { bytes: MIB, entries: 300_000, is_cut: true };
    let hog = disk.a_box_with(0, uncounted).await;
    assert_eq!(disk.look(RESERVE - MIB).await, Some(hog));
}

#[tokio::test]
async fn only_boxes_on_the_disk_that_is_short_are_ended() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()];
    let (here, there) = (TestProvider::new("here"), TestProvider::new("there"));
    here.set_disk_dir(dirs[0].path());
    there.set_disk_dir(dirs[1].path());
    let unseen = TestProvider::new("unseen");
    let app = TestApp::builder().provider(here).provider(there).provider(unseen).start().await;
    let found: Vec<Vec<String>> = disks(&app.control, dirs[0].path()).into_iter().map(|disk| disk.providers).collect();
    assert_eq!(found, [vec!["here".to_owned(), "unseen".to_owned()], vec!["there".to_owned()]]);
}

#[tokio::test]
async fn the_room_is_looked_at_more_often_near_the_reserve() {
    let policy = Policy { reserve_disk_bytes: RESERVE, reserve_inodes: 10_000, ..harness::policy() };
    let is_near = |bytes, entries| {
        Disk { device: 0, room: Room { bytes, entries }, providers: vec![], images: None }.is_near(&policy)
    };
    assert!(!is_near(5 * RESERVE, None) && !is_near(5 * RESERVE, Some(50_000)));
    assert!(is_near(3 * RESERVE, None) && is_near(5 * RESERVE, Some(30_000)));
}
