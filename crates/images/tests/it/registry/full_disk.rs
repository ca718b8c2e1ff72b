//! Disks that fill up during a pull, an unpack or an import, by bytes and by files. Each time the
//! error says so, all parts of the failed work are removed, existing images stay usable, and the
//! same work succeeds once there is room.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fixtures::found;

use super::fake_registry::FakeRegistry;
use super::*;

/// Script that mounts the disk in a mount namespace of its own, so that nothing stays mounted.
const ON_A_SMALL_DISK: &str =
    r#"mount -t tmpfs -o "$SIZE_OF_A_TEST" tmpfs "$STORE_OF_A_TEST" && exec "$0" --exact "$1" --ignored --nocapture"#;

/// Runs another test of this program in a process of its own, on a disk of this size.
fn on_a_disk(size: &str, test: &str, names: &[String]) {
    let Some(unshare) = found("unshare", &[]) else { return };
    let can = Command::new(&unshare).args(["--mount", "true"]).stderr(Stdio::null()).status();
    if !can.is_ok_and(|can| can.success()) {
        fixtures::skip("unshare", "no mount namespace can be made here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let ran = Command::new(unshare)
        .args(["--mount", "--propagation", "private", "sh", "-c", ON_A_SMALL_DISK])
        .arg(std::env::current_exe().unwrap())
        .arg(format!("registry::full_disk::{test}"))
        .env("STORE_OF_A_TEST", folder.path())
        .env("SIZE_OF_A_TEST", size)
        .env("IMAGE_OF_A_TEST", names.join(" "))
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && stdout.contains("WORKS"), "{stdout}{stderr}");
}

/// The small disk, in the process that has it.
struct Disk {
    folder: PathBuf,
    names: Vec<String>,
}

impl Disk {
    /// Returns `None` in a process without such a disk.
    fn here() -> Option<Disk> {
        let folder = PathBuf::from(std::env::var_os("STORE_OF_A_TEST")?);
        let names = std::env::var("IMAGE_OF_A_TEST").unwrap();
        Some(Disk { folder, names: names.split(' ').map(str::to_owned).collect() })
    }

    fn open(&self) -> Images {
        Images::open(ImagesConfig::new(self.folder.join("images"))).unwrap()
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    /// Fills the disk completely.
    fn fill(&self) {
        let mut filler = std::fs::File::create(self.filler()).unwrap();
        let full = std::iter::repeat_with(|| std::io::Write::write(&mut filler, &[1; 4096])).find_map(Result::err);
        assert_eq!(full.map(|error| error.kind()), Some(std::io::ErrorKind::StorageFull));
    }

    fn grow(&self, size: &str) {
        let grown = Command::new("mount").arg("-o").arg(format!("remount,{size}")).arg(&self.folder).status();
        assert!(grown.unwrap().success(), "the disk cannot be made larger");
    }

    /// Counts the entries of each of the [`FOLDERS`], except empty folders.
    fn count(&self) -> [usize; 5] {
        let is_something = |entry: &std::io::Result<std::fs::DirEntry>| {
            std::fs::read_dir(entry.as_ref().unwrap().path()).map_or(true, |mut below| below.next().is_some())
        };
        let entries = |folder| std::fs::read_dir(self.folder.join("images").join(folder)).unwrap();
        FOLDERS.map(|folder| entries(folder).filter(is_something).count())
    }

    /// Returns the bytes in use on the disk.
    fn used(&self) -> u64 {
        let disk = rustix::fs::statvfs(&self.folder).unwrap();
        (disk.f_blocks - disk.f_bfree) * disk.f_frsize
    }

    /// Checks that everything can be removed once nothing is in use: no blob, file or name stays.
    async fn everything_goes(&self, images: Images) {
        images.prune(true).await.unwrap();
        assert!(images.list().await.unwrap().is_empty());
        assert_eq!(self.count(), [0; 5]);
        assert_eq!(images.prune(true).await.unwrap(), Default::default(), "there is no more to free");
    }
}

/// Folders of a store that use disk space.
const FOLDERS: [&str; 5] = ["blobs/sha256", "ingest", "trees", "files", "trash"];

#[track_caller]
fn full<T>(result: Result<T, Error>) {
    match result {
        Err(Error::Full(text)) => {
            assert!(text.contains("full"), "{text}");
            assert!(text.contains("tidebox image prune") && text.contains("free disk space"), "{text}");
        }
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("there was room"),
    }
}

/// Returns an image that is small to download and has `bytes` bytes of files, which are no holes.
fn hollow(bytes: usize) -> Image {
    Image::new(&[vec![Entry::file("ones", vec![1; bytes])]])
}

fn read_all(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[tokio::test]
async fn a_disk_that_fills_up_in_the_middle_of_a_pull_leaves_a_store_that_works() {
    let fake = FakeRegistry::good();
    // The registry already has the first image's layer, so that it fills the disk although there
    // was room. The second image has room once the first is removed.
    let (first, second) = (large(2_000_000, 1), small("there is room"));
    let names = [fake.put(&first, "large", "1"), fake.put(&second, "small", "1")];
    on_a_disk("size=3m", "fill_in_a_pull", &names);
}

#[tokio::test]
#[ignore = "another test runs it in a process of its own"]
async fn fill_in_a_pull() {
    let Some(disk) = Disk::here() else { return };
    let images = disk.open();
    // It fits once, but not also unpacked.
    full(images.take(&disk.names[0]).await);
    assert!(images.list().await.unwrap().is_empty());
    // Now the disk is full before the layer is here: the room is there when it is
    // looked for, and gone when it is needed.
    std::fs::write(disk.filler(), vec![0; 500_000]).unwrap();
    let mut progress = images.pull(&disk.names[0]).await.unwrap();
    let mut last = None;
    while let Some(item) = progress.next().await {
        if matches!(item, Ok(Progress::Downloading { .. })) && disk.filler().metadata().unwrap().len() == 500_000 {
            let _ = std::fs::write(disk.filler(), vec![0; 2_900_000]);
        }
        last = Some(item);
    }
    full(last.unwrap());
    std::fs::remove_file(disk.filler()).unwrap();
    assert!(images.list().await.unwrap().is_empty());
    assert_eq!(disk.count(), [0; 5], "nothing takes the room");
    let held = images.take(&disk.names[1]).await.unwrap();
    assert_eq!(read(held.root(), "hello"), "there is room");
    drop((held, images));
    let images = disk.open();
    assert_eq!(images.list().await.unwrap().len(), 1);
    disk.everything_goes(images).await;
    println!("WORKS");
}

#[tokio::test]
async fn a_disk_that_fills_up_in_the_middle_of_an_unpack_takes_nothing_from_other_images() {
    let fake = FakeRegistry::good();
    let names = [fake.put(&small("was here before"), "small", "1"), fake.put(&hollow(30 << 20), "hollow", "1")];
    on_a_disk("size=4m", "fill_in_an_unpack", &names);
}

#[tokio::test]
#[ignore = "another test runs it in a process of its own"]
async fn fill_in_an_unpack() {
    let Some(disk) = Disk::here() else { return };
    let images = disk.open();
    let [small, hollow] = disk.names.as_slice() else { panic!() };
    images.take(small).await.unwrap();
    let before = (disk.count(), disk.used());
    // Often enough to fill it by what stays, if something did.
    for _ in 0..3 {
        full(images.take(hollow).await);
        assert_eq!((disk.count(), disk.used()), before);
    }
    // Boxes of what is here are made all the same, with no room at all.
    disk.fill();
    full(images.take(hollow).await);
    assert_eq!(read(images.take(small).await.unwrap().root(), "hello"), "was here before");
    std::fs::remove_file(disk.filler()).unwrap();
    disk.grow("size=100m");
    let held = images.take(hollow).await.unwrap();
    assert_eq!(held.root().join("ones").metadata().unwrap().len(), 30 << 20);
    drop(held);
    disk.everything_goes(images).await;
    println!("WORKS");
}

#[tokio::test]
async fn a_disk_that_fills_up_in_the_middle_of_an_import_keeps_nothing_of_the_archive() {
    on_a_disk("size=4m", "fill_in_an_import", &[]);
}

#[tokio::test]
#[ignore = "another test runs it in a process of its own"]
async fn fill_in_an_import() {
    let Some(disk) = Disk::here() else { return };
    let images = disk.open();
    let pieces = |archive: &[u8]| -> images::Archive {
        let pieces: Vec<_> = archive.chunks(64 << 10).map(|piece| Ok(bytes::Bytes::copy_from_slice(piece))).collect();
        futures_util::stream::iter(pieces).boxed()
    };
    images.import(Some("small:1"), pieces(&fixtures::image::layer(&[Entry::file("hello", "kept")]))).await.unwrap();
    let before = (disk.count(), disk.used());
    // One is larger than the disk, one when its layers are put beside it, and one when
    // these are unpacked.
    let too_large = large(6_000_000, 1).docker_save(&["large:1"]);
    let twice = large(2_500_000, 2).docker_save(&["twice:1"]);
    let hollow = hollow(30 << 20).oci_tar("docker.io/library/hollow:1");
    let root = fixtures::image::Packing::Gzip.pack(&fixtures::image::layer(&[Entry::file("x", vec![1; 30 << 20])]));
    let archives = [(None, too_large), (None, twice), (None, hollow), (Some("root:1"), root)];
    for (name, archive) in &archives {
        full(images.import(*name, pieces(archive)).await);
        assert_eq!((disk.count(), disk.used()), before);
    }
    assert_eq!(read(images.take("small:1").await.unwrap().root(), "hello"), "kept");
    disk.grow("size=200m");
    for (name, archive) in &archives {
        images.import(*name, pieces(archive)).await.unwrap();
    }
    assert_eq!(images.list().await.unwrap().len(), 5);
    disk.everything_goes(images).await;
    println!("WORKS");
}

#[tokio::test]
async fn a_disk_that_may_hold_no_more_files_is_full() {
    let fake = FakeRegistry::good();
    let entries: Vec<_> = (0..400).map(|number| Entry::file(format!("file-{number}"), format!("{number}"))).collect();
    on_a_disk("size=20m,nr_inodes=200", "run_out_of_files", &[fake.put(&Image::new(&[entries]), "many", "1")]);
}

#[tokio::test]
#[ignore = "another test runs it in a process of its own"]
async fn run_out_of_files() {
    let Some(disk) = Disk::here() else { return };
    let images = disk.open();
    full(images.take(&disk.names[0]).await);
    assert_eq!(disk.count(), [0; 5]);
    disk.grow("size=20m,nr_inodes=5000");
    let held = images.take(&disk.names[0]).await.unwrap();
    assert_eq!(read(held.root(), "file-399"), "399");
    drop(held);
    disk.everything_goes(images).await;
    println!("WORKS");
}

#[tokio::test]
async fn images_can_be_removed_from_a_disk_that_is_full_to_the_last_byte() {
    let fake = FakeRegistry::good();
    let (first, second) = (large(300_000, 1), large(300_000, 2));
    on_a_disk("size=4m", "remove_from_a_full_disk", &[fake.put(&first, "a", "1"), fake.put(&second, "b", "1")]);
}

#[tokio::test]
#[ignore = "another test runs it in a process of its own"]
async fn remove_from_a_full_disk() {
    let Some(disk) = Disk::here() else { return };
    let images = disk.open();
    let content = images.take(&disk.names[0]).await.map(|held| read_all(&held.root().join("noise"))).unwrap();
    images.take(&disk.names[1]).await.unwrap();
    disk.fill();
    images.remove(&disk.names[0]).await.unwrap();
    disk.fill();
    assert_eq!(images.prune(true).await.unwrap().images.len(), 1);
    std::fs::remove_file(disk.filler()).unwrap();
    // And the store goes on as if it had had room.
    let images = disk.open();
    assert!(images.list().await.unwrap().is_empty());
    assert_eq!(read_all(&images.take(&disk.names[0]).await.unwrap().root().join("noise")), content);
    disk.everything_goes(images).await;
    println!("WORKS");
}

#[tokio::test]
async fn what_has_to_stay_free_stays_free_while_an_image_is_unpacked() {
    let fake = FakeRegistry::good();
    let names = [fake.put(&hollow(20 << 20), "fits", "1"), fake.put(&hollow(60 << 20), "hollow", "1")];
    on_a_disk("size=96m", "reach_the_reserve", &names);
}

#[tokio::test]
#[ignore = "another test runs it in a process of its own"]
async fn reach_the_reserve() {
    const RESERVE: u64 = 48 << 20;
    let Some(disk) = Disk::here() else { return };
    let mut config = ImagesConfig::new(disk.folder.join("images"));
    config.reserve.bytes = RESERVE;
    let images = Images::open(config).unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let watching = {
        let (folder, over) = (disk.folder.clone(), Arc::clone(&over));
        std::thread::spawn(move || {
            let mut least = u64::MAX;
            while !over.load(Ordering::SeqCst) {
                let disk = rustix::fs::statvfs(&folder).unwrap();
                least = least.min(disk.f_bavail * disk.f_frsize);
                std::thread::sleep(Duration::from_millis(1));
            }
            least
        })
    };
    full(images.take(&disk.names[1]).await);
    let archive = fixtures::image::Packing::Zstd.pack(&fixtures::image::layer(&[Entry::file("x", vec![1; 60 << 20])]));
    let pieces = futures_util::stream::once(async move { Ok(bytes::Bytes::from(archive)) }).boxed();
    full(images.import(Some("root:1"), pieces).await);
    over.store(true, Ordering::SeqCst);
    let least = watching.join().unwrap();
    // What is on its way from thread to thread when it is looked.
    assert!(least > RESERVE - (16 << 20), "{least} bytes were free");
    assert_eq!(disk.count(), [0; 5]);
    let held = images.take(&disk.names[0]).await.unwrap();
    drop(held);
    disk.everything_goes(images).await;
    println!("WORKS");
}

#[tokio::test]
async fn inodes_that_have_to_stay_free_stay_free_while_an_image_is_unpacked() {
    let fake = FakeRegistry::good();
    let many = |count: u32| Image::new(&[(0..count).map(|n| Entry::file(format!("{n}"), "")).collect()]);
    let names = [fake.put(&many(4000), "fits", "1"), fake.put(&many(9000), "many", "1")];
    on_a_disk("size=200m,nr_inodes=20000", "reach_the_reserve_of_inodes", &names);
}

#[tokio::test]
#[ignore = "another test runs it in a process of its own"]
async fn reach_the_reserve_of_inodes() {
    const RESERVE: u64 = 14_000;
    let Some(disk) = Disk::here() else { return };
    let mut config = ImagesConfig::new(disk.folder.join("images"));
    config.reserve.inodes = RESERVE;
    let images = Images::open(config).unwrap();
    let (fits, many) = (disk.names[0].clone(), disk.names[1].clone());
    full(images.take(&many).await);
    assert_eq!(disk.count(), [0; 5]);
    let held = images.take(&fits).await.unwrap();
    let left = || rustix::fs::statvfs(&disk.folder).unwrap().f_favail;
    assert!(left() > RESERVE, "{} inodes were free", left());
    // What images leave is made again by those that nothing holds.
    let fill = |count: u64| {
        for n in 0..count {
            std::fs::File::create(disk.folder.join(format!("other-{n}"))).unwrap();
        }
    };
    fill(left() - RESERVE + 10);
    assert_eq!(images.idle_usage().await.unwrap().entries, 0);
    assert!(images.make_room().await.unwrap().images.is_empty(), "a box holds it");
    drop(held);
    assert!(images.idle_usage().await.unwrap().entries >= 4000);
    assert_eq!(images.make_room().await.unwrap().images.len(), 1);
    assert!(left() > RESERVE, "{} inodes were free", left());
    println!("WORKS");
}
