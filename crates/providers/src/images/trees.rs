//! Stands in until images are unpacked properly: applies layers without whiteouts.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub(super) path: PathBuf,
    pub(super) compression: Compression,
    #[expect(dead_code, reason = "a stand-in")]
    pub(super) diff_id: String,
}

pub(super) struct Bounds {
    #[expect(dead_code, reason = "a stand-in")]
    pub(super) bytes_max: u64,
    #[expect(dead_code, reason = "a stand-in")]
    pub(super) entries_max: u64,
}

#[derive(Debug)]
pub(super) struct Trees {
    dir: PathBuf,
}

impl Trees {
    pub(super) fn open(dir: &Path) -> io::Result<Trees> {
        let dir = dir.join("trees");
        fs::create_dir_all(&dir)?;
        Ok(Trees { dir })
    }

    fn place(&self, digest: &str) -> PathBuf {
        self.dir.join(digest.trim_start_matches("sha256:"))
    }

    pub(super) fn find(&self, digest: &str) -> Option<PathBuf> {
        let place = self.place(digest);
        place.join("tree.json").exists().then(|| place.join("root"))
    }

    pub(super) fn unpack(
        &self,
        digest: &str,
        layers: &[Layer],
        _bounds: &Bounds,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<PathBuf> {
        let place = self.place(digest);
        let root = place.join("root");
        let fails = |error| super::disk("unpack an image", error);
        fs::create_dir_all(&root).map_err(fails)?;
        for layer in layers {
            let file = File::open(&layer.path).map_err(fails)?;
            let bytes: Box<dyn Read> = match layer.compression {
                Compression::None => Box::new(file),
                Compression::Gzip => Box::new(flate2::read::GzDecoder::new(file)),
                Compression::Zstd => Box::new(zstd::Decoder::new(file).map_err(fails)?),
            };
            tar::Archive::new(bytes).unpack(&root).map_err(|error| match super::disk("unpack an image", error) {
                full @ Error::Full(_) => full,
                other => Error::Invalid(format!("a layer cannot be read: {other}")),
            })?;
            progress(1);
        }
        fs::write(place.join("tree.json"), b"{}").map_err(fails)?;
        Ok(root)
    }

    pub(super) fn remove(&self, digest: &str) -> io::Result<()> {
        std::process::Command::new("rm").arg("-rf").arg(self.place(digest)).status().map(drop)
    }

    pub(super) fn collect(&self) -> io::Result<u64> {
        Ok(0)
    }

    pub(super) fn bytes(&self, digest: &str) -> Option<u64> {
        self.find(digest).map(|_| 0)
    }
}
