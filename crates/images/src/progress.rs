//! Progress of a pull: what its task publishes, and what its waiters see.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::image::{Image, ImageGuard};

/// Progress of a pull.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Registry being asked for the manifest.
    Resolving,
    /// Layers being downloaded from the registry.
    Downloading {
        /// Bytes in the store, including those of earlier attempts and of other images.
        bytes: u64,
        /// Bytes of all layers and the configuration.
        bytes_total: u64,
    },
    /// Layers being unpacked to disk.
    Unpacking {
        /// Bytes of the layers unpacked so far, counted as they were downloaded.
        bytes: u64,
    },
    /// Image ready in the store; the last item.
    Done(Image),
}

/// State of a pull, shared by its waiters.
#[derive(Debug, Clone)]
pub(super) enum State {
    Going(Progress),
    /// Image with a handle, so that the waiters find it in the store.
    Done(Image, ImageGuard),
    Failed(Arc<Error>),
}

/// Counter of downloaded bytes, which publishes the progress of a pull.
#[derive(Debug)]
pub(super) struct Meter {
    bytes: AtomicU64,
    total: u64,
    state: watch::Sender<State>,
}

impl Meter {
    pub(super) fn new(total: u64, state: watch::Sender<State>) -> Self {
        Self { bytes: AtomicU64::new(0), total, state }
    }

    pub(super) fn add(&self, bytes: u64) {
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.show(bytes);
    }

    pub(super) fn take_back(&self, bytes: u64) {
        let bytes = self.bytes.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        self.show(bytes);
    }

    fn show(&self, bytes: u64) {
        self.state.send_replace(State::Going(Progress::Downloading { bytes, bytes_total: self.total }));
    }
}

/// Returns the progress of a pull as a stream that ends with it.
pub(super) fn watching(pull: watch::Receiver<State>) -> BoxStream<'static, Result<Progress>> {
    let items = futures_util::stream::unfold(Some((pull, true)), |watching| async move {
        let (mut pull, first) = watching?;
        if !first && pull.changed().await.is_err() {
            return Some((Err(broke_off()), None));
        }
        let state = pull.borrow_and_update().clone();
        match state {
            State::Going(progress) => Some((Ok(progress), Some((pull, false)))),
            State::Done(image, _) => Some((Ok(Progress::Done(image)), None)),
            State::Failed(error) => Some((Err(error.again()), None)),
        }
    });
    items.boxed()
}

/// Returns the error for a pull whose task ended without a result.
pub(super) fn broke_off() -> Error {
    Error::failed("pull an image", "its task ended without a result")
}
