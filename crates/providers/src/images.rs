//! The image store: images of registries and archives, unpacked and shared by
//! every provider that needs a root file system on disk.

mod config;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use config::{ImagesConfig, PullPolicy, RegistryConfig};

use guest_protocol::Defaults;

/// An image that is on disk, whole, and stays there while this is held.
#[derive(Debug, Clone)]
pub struct Held {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    digest: String,
    root: PathBuf,
    run: Run,
}

/// What an image says of running it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Run {
    /// Environment, working directory and user.
    pub defaults: Defaults,
    /// Its entry point with its command; empty if it has neither.
    pub entrypoint: Vec<String>,
}

impl Held {
    /// The digest of its manifest, `sha256:…`: what to write down to hold it again.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.inner.digest
    }

    /// Its root file system: one directory that nobody ever changes, owned as the
    /// image says where we are root, and all ours otherwise.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.inner.root
    }

    /// What it says of running it.
    #[must_use]
    pub fn run(&self) -> &Run {
        &self.inner.run
    }
}
