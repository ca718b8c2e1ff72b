//! The open store: its parts, and the ways to run work on them. Its methods for downloads, pulls,
//! imports and removals are in `fetch`, `pull`, `import` and `garbage`.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use domain::Asker;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::catalog::Catalog;
use crate::config::ImagesConfig;
use crate::desk::Desk;
use crate::disk;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::processors;
use crate::progress::State;
use crate::registry::Registries;
use crate::rootfs::Trees;

/// Open store, shared by the handles of it and by the tasks that work on it.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) config: ImagesConfig,
    pub(super) layout: Layout,
    pub(super) trees: Trees,
    pub(super) registries: Registries,
    pub(super) pulls: Pulls,
    /// One lock for each blob and tree being written, by digest.
    turns: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    pub(super) catalog: Catalog,
    /// Held while images are removed.
    pub(super) removals: tokio::sync::Mutex<()>,
}

impl Store {
    /// Opens the store in `config.dir`, creating it if needed, and removes what a crash left
    /// unfinished. Blocks.
    pub(super) fn open(config: ImagesConfig) -> Result<Store> {
        let layout = Layout::open(&config.dir).map_err(disk::failing("open"))?;
        let trees = Trees::open(&config.dir).map_err(disk::failing("open"))?;
        let catalog = Catalog::open(&config.dir, layout.clone(), trees.clone()).map_err(disk::failing("open"))?;
        Ok(Store {
            registries: Registries::new(&config),
            config,
            layout,
            trees,
            pulls: Pulls::default(),
            turns: Mutex::default(),
            catalog,
            removals: tokio::sync::Mutex::default(),
        })
    }

    /// Wraps `work` so that [`Pulls::close`] waits for it, even after its caller has gone.
    fn waited_for<T, W: FnOnce(&Store) -> T>(self: &Arc<Self>, work: W) -> impl FnOnce() -> T + use<T, W> {
        let store = Arc::clone(self);
        let under_way = self.pulls.tasks.token();
        move || {
            let done = work(&store);
            drop(under_way);
            done
        }
    }

    /// Runs blocking work off the async threads.
    pub(super) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        action: &'static str,
        work: impl FnOnce(&Store) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match tokio::task::spawn_blocking(self.waited_for(work)).await {
            Ok(done) => done,
            Err(error) => Err(Error::failed(action, error)),
        }
    }

    /// Runs CPU-heavy work on its own thread, of which few run at a time.
    pub(super) async fn long_work<T: Send + 'static>(
        self: &Arc<Self>,
        action: &'static str,
        work: impl FnOnce(&Store) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let done = processors::work(self.waited_for(work));
        done.await.map_err(|error| Error::failed(action, error))?
    }

    /// Fails unless more of the disk is free than the reserve.
    pub(super) fn room(&self) -> Result<()> {
        disk::room(&self.config.dir, self.config.reserve)
    }

    /// Returns the lock whose holder is the only writer of the blob or tree with that digest.
    pub(super) fn turn(&self, digest: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock();
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(digest).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        turns.insert(digest.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

/// Running pulls and imports.
#[derive(Debug, Default)]
pub(super) struct Pulls {
    pub(super) desk: Arc<Desk<watch::Receiver<State>>>,
    /// Callers of the running imports.
    pub(super) imports: Mutex<Vec<Option<Asker>>>,
    /// Tasks of pulls and imports, and their blocking work.
    pub(super) tasks: TaskTracker,
    /// Token that stops all of them.
    pub(super) stop: CancellationToken,
}

impl Pulls {
    /// Stops pulls and imports and waits until they have ended.
    pub(super) async fn close(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
