//! Tests of the image store against registries: real ones, and some that lie, stall and break
//! off. Each time the error says what to do, and nothing unchecked is trusted.

mod crash;
mod fake_registry;
mod faults;
mod full_disk;
mod keep;
mod login;
mod mirrors;
mod real;
mod waiters;

use std::path::Path;
use std::time::Duration;

use fixtures::image::{Entry, Image};
use futures_util::StreamExt as _;
use images::Error;
use images::{Images, ImagesConfig, Progress};

/// A store in a folder of its own.
struct TestStore {
    folder: tempfile::TempDir,
}

impl TestStore {
    fn new() -> TestStore {
        TestStore { folder: tempfile::tempdir().unwrap() }
    }

    fn dir(&self) -> std::path::PathBuf {
        self.folder.path().join("images")
    }

    fn config(&self) -> ImagesConfig {
        // Longer than any test waits, even on a busy machine.
        ImagesConfig { pull_timeout: Duration::from_secs(300), ..ImagesConfig::new(self.dir()) }
    }

    fn open(&self) -> Images {
        self.open_with(|_| {})
    }

    fn open_with(&self, change: impl FnOnce(&mut ImagesConfig)) -> Images {
        let mut config = self.config();
        change(&mut config);
        Images::open(config).unwrap()
    }
}

/// Returns an image of one file.
fn small(content: &str) -> Image {
    Image::new(&[vec![Entry::file("hello", content)]])
}

/// Returns an image whose layer has about `bytes` bytes, compressed or not.
fn large(bytes: usize, seed: u64) -> Image {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let content: Vec<u8> = (0..bytes)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect();
    Image::new(&[vec![Entry::file("noise", content)]])
}

fn read(root: &Path, path: &str) -> String {
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// Pulls to the end, and returns the digest or the error.
async fn pull(images: &Images, name: &str) -> Result<String, Error> {
    let mut progress = images.pull(name).await?;
    loop {
        match progress.next().await {
            Some(Ok(Progress::Done(image))) => {
                assert!(progress.next().await.is_none(), "nothing follows the end");
                return Ok(image.digest);
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                assert!(progress.next().await.is_none(), "nothing follows an error");
                return Err(error);
            }
            None => panic!("the pull ends without an end"),
        }
    }
}

#[track_caller]
fn invalid<T>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Invalid(text)) => text,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it is taken"),
    }
}

#[track_caller]
fn unavailable<T>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Unavailable(text)) => text,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it is taken"),
    }
}

/// Checks that nothing of a failed pull is named or unpacked.
async fn nothing_is_trusted(store: &TestStore, images: &Images) {
    assert!(images.list().await.unwrap().is_empty());
    assert_eq!(std::fs::read_dir(store.dir().join("trees")).unwrap().count(), 0, "a tree is left");
}
