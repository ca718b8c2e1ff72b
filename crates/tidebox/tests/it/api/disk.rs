//! A disk that boxes fill, with bytes or with files.

use std::path::Path;

use fixtures::image::{Entry, Packing, layer};
use reqwest::Method;
use serde_json::json;

use crate::server::{Answer, NATIVE, TestServer};

/// A small disk that no other test fills or frees.
pub(super) struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    pub(super) fn of_megabytes(size: u32) -> Self {
        Self::with(&format!("size={size}m"))
    }

    fn with(options: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("tidebox-disk-").tempdir().unwrap();
        let mount = ["-t", "tmpfs", "-o", &format!("{options},mode=711"), "tidebox-test"];
        let mounted = std::process::Command::new("mount").args(mount).arg(dir.path()).status();
        assert!(mounted.unwrap().success(), "a test of real boxes runs as root");
        Self(dir)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes every inode, or every byte, until the result is dropped.
    fn fill(&self, with: Filling) -> Filled {
        let dir = self.path().join("filling");
        std::fs::create_dir(&dir).unwrap();
        match with {
            Filling::Files => {
                let full = (0..).find_map(|n| std::fs::File::create(dir.join(n.to_string())).err()).unwrap();
                assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
            }
            Filling::Bytes => {
                let full =
                    std::io::copy(&mut std::io::repeat(1), &mut std::fs::File::create(dir.join("file")).unwrap());
                assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
            }
        }
        Filled(dir)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazy, so that what a failed test has left on the disk goes too.
        let _ = std::process::Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[derive(Debug, Clone, Copy)]
enum Filling {
    Files,
    Bytes,
}

struct Filled(std::path::PathBuf);

impl Drop for Filled {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

async fn server_on(disk: &SmallDisk, settings: &str) -> TestServer {
    TestServer::start(&format!("{settings} data_dir={}", disk.path().join("data").display())).await
}

#[tokio::test]
async fn boxes_that_were_promised_the_same_room_are_ended_by_what_they_hold() {
    let disk = SmallDisk::of_megabytes(600);
    let server = server_on(&disk, &format!("{NATIVE} limits.reserve_disk_mb=300")).await;
    let refused = server.post("/sandboxes", json!({"disk_mb": 300})).await;
    refused.refused(429, "resource_limit", "limits.reserve_disk_mb");
    // Each was within the free space, and both together are not.
    let [small, large] =
        [server.spawn_with(json!({"disk_mb": 220})).await, server.spawn_with(json!({"disk_mb": 220})).await];
    let innocent = server.spawn().await;
    server.output(&innocent, "head -c 40M /dev/zero > f").await;
    server.output(&small, "head -c 60M /dev/zero > f").await;
    server.post(&format!("/sandboxes/{large}/exec"), json!({"command": "head -c 210M /dev/zero > f"})).await;
    // The kernel would write the data back within half a minute; boxes cannot trigger it.
    rustix::fs::sync();
    let failed = server.get(&format!("/sandboxes/{large}/wait?state=failed&timeout=30s")).await.ok();
    assert!(failed["error"].as_str().unwrap().contains("MiB when the server's disk had less"), "{failed}");
    for id in [&innocent, &small] {
        assert_eq!(server.output(id, "echo still here").await, "still here\n");
    }
}

#[tokio::test]
async fn the_box_that_takes_the_inodes_is_ended_and_its_neighbours_are_not() {
    let disk = SmallDisk::with("size=600m,nr_inodes=20000");
    let server = server_on(&disk, &format!("{NATIVE} limits.reserve_inodes=5000")).await;
    let large = server.spawn().await;
    server.output(&large, "head -c 100M /dev/zero > f").await;
    let hog = server.spawn().await;
    let command = json!({"command": "i=0; while [ $i -lt 19141 ]; do : > f$i || exit; i=$((i+1)); done"});
    server.post(&format!("/sandboxes/{hog}/exec"), command).await;
    let failed = server.get(&format!("/sandboxes/{hog}/wait?state=failed&timeout=30s")).await.ok();
    assert!(failed["error"].as_str().unwrap().contains("files and directories"), "{failed}");
    let make = async || server.exec(&large, "mkdir -p d && touch d/f").await["exit_code"] == 0;
    server.until("a neighbour can make files again", make).await;
    server.until("there is room again", async || server.post("/sandboxes", json!({})).await.status == 201).await;
}

#[tokio::test]
async fn a_spawn_on_a_full_disk_is_507_and_works_again_once_there_is_room() {
    for (provider, filling) in
        [("native", Filling::Files), ("native", Filling::Bytes), ("proot", Filling::Files), ("proot", Filling::Bytes)]
    {
        if provider == "proot" && fixtures::found("proot", &[]).is_none() {
            continue;
        }
        let disk = SmallDisk::with("size=64m,nr_inodes=6000");
        let is_proot = provider == "proot";
        let server =
            server_on(&disk, &format!("providers.default={provider} providers.proot.enabled={is_proot}")).await;
        let spawned = server.spawn().await;
        let full = disk.fill(filling);
        // Boxes made ahead are used up first.
        let mut refused = server.post("/sandboxes", json!({})).await;
        for _ in 0..20 {
            if refused.status != 201 {
                break;
            }
            refused = server.post("/sandboxes", json!({})).await;
        }
        refused.refused(507, "no_space", "free space on it");
        drop(full);
        server.until("there is room again", async || server.post("/sandboxes", json!({})).await.status == 201).await;
        assert_eq!(server.output(&spawned, "echo still here").await, "still here\n");
    }
}

/// The boxes hold nothing whose removal makes room for a row of the store.
#[tokio::test]
async fn sandboxes_are_removed_while_the_disk_is_full_to_the_last_byte() {
    let disk = SmallDisk::with("size=128m,nr_inodes=20000");
    let mut server = server_on(&disk, &format!("{NATIVE} limits.reserve_disk_mb=0")).await;
    server.expect_trouble("cannot be written");
    let ids = [server.spawn().await, server.spawn().await, server.spawn().await];
    let full = disk.fill(Filling::Bytes);
    for id in &ids {
        server.delete(&format!("/sandboxes/{id}")).await.ok();
        server.get(&format!("/sandboxes/{id}")).await.refused(404, "not_found", id);
    }
    drop(full);
    server.spawn().await;
}

#[tokio::test]
async fn no_box_is_made_while_the_reserve_of_inodes_is_reached() {
    let disk = SmallDisk::with("size=200m,nr_inodes=6000");
    let server = server_on(&disk, &format!("{NATIVE} limits.reserve_inodes=5999")).await;
    server.post("/sandboxes", json!({})).await.refused(507, "no_space", "limits.reserve_inodes");
}

/// Asks for the import of a root directory with these files.
async fn import(server: &TestServer, name: &str, entries: &[Entry]) -> Answer {
    let archive = Packing::Gzip.pack(&layer(entries));
    let request = server.request(Method::POST, &format!("/images/import?name={name}"));
    Answer::read(request.header("content-type", "application/gzip").body(archive).send().await.unwrap()).await
}

#[tokio::test]
async fn images_take_no_inode_that_boxes_need() {
    let disk = SmallDisk::with("size=600m,nr_inodes=40000");
    let server = server_on(&disk, &format!("{NATIVE} limits.reserve_inodes=10000")).await;
    let innocent = server.spawn().await;
    server.output(&innocent, "for i in $(seq 1500); do : > f$i; done").await;
    let many = |image: u32| (0..8000).map(|file| Entry::file(format!("{image}/{file}"), "")).collect::<Vec<_>>();
    for image in 0..2 {
        assert_eq!(import(&server, &format!("m{image}"), &many(image)).await.status, 201);
    }
    for image in 2..5 {
        import(&server, &format!("m{image}"), &many(image)).await.refused(507, "no_space", "inodes are free");
        assert!(rustix::fs::statvfs(disk.path()).unwrap().f_favail > 20_000, "all of it is given back");
    }
    assert_eq!(server.output(&innocent, "ls | wc -l").await, "1500\n");
    server.spawn().await;
}

#[tokio::test]
async fn an_image_that_no_box_holds_goes_before_a_box_that_takes_less() {
    let disk = SmallDisk::of_megabytes(600);
    let server = server_on(&disk, &format!("{NATIVE} limits.reserve_disk_mb=100")).await;
    let [first, second] = [server.spawn().await, server.spawn().await];
    import(&server, "large:1", &[Entry::file("ones", vec![1; 250 << 20])]).await.ok();
    server.output(&first, "head -c 110M /dev/zero > f").await;
    server.output(&second, "head -c 160M /dev/zero > f").await;
    server.until("the image has gone", async || server.get("/images").await.ok().as_array().unwrap().is_empty()).await;
    for id in [&first, &second] {
        assert_eq!(server.output(id, "ls").await, "f\n");
    }
}
