//! Folders prepared in advance for boxes, with the sockets of their agents. Creating files takes time while a caller waits, the
//! more after many were removed.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use crate::local::folder::BoxFolder;
use crate::local::parts::Parts;
use crate::local::refill::refill_soon;
use crate::local::removals::Removals;

/// Most folders kept ready. A larger burst makes its folders on demand.
const READY_MAX: usize = 16;
/// Number of the next folder. No two have one name: a provider would take that of a later one, whose
/// socket it does not have.
static MADE: AtomicU64 = AtomicU64::new(1);

/// Prepared folders and the task that makes new ones.
#[derive(Debug)]
pub(super) struct PreparedDirs {
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    /// Names of the overlays that every box has.
    overlays: Vec<String>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ready: Vec<Ready>,
    is_filling: bool,
}

/// Folder of no box yet, and the socket in it.
#[derive(Debug)]
struct Ready {
    path: PathBuf,
    listener: UnixListener,
}

impl Shared {
    fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Makes folders until [`READY_MAX`] are ready. Stops on an error; the next call tries again.
    fn fill(&self) {
        loop {
            let path = {
                let mut state = self.state();
                if state.ready.len() >= READY_MAX {
                    state.is_filling = false;
                    return;
                }
                self.dir.join(format!("{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed)))
            };
            let made = self.make(&path);
            let mut state = self.state();
            match made {
                Ok(listener) => state.ready.push(Ready { path, listener }),
                Err(error) => {
                    state.is_filling = false;
                    tracing::debug!(%error, "cannot make a folder in advance");
                    return;
                }
            }
        }
    }

    fn make(&self, path: &Path) -> io::Result<UnixListener> {
        let folder = BoxFolder::at(path.to_owned());
        folder.make()?;
        folder.touch()?;
        let layers = layers(&folder);
        open_dir(&layers)?;
        for overlay in &self.overlays {
            open_dir(&layers.join(overlay))?;
            for part in ["upper", "work"] {
                open_dir(&layers.join(overlay).join(part))?;
            }
        }
        folder.listen()
    }
}

/// Returns the folder of a box's changes.
pub(super) fn layers(folder: &BoxFolder) -> PathBuf {
    folder.path().join("layers")
}

/// Makes a directory that every user may enter, independent of the server's umask.
pub(super) fn open_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o755).create(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

impl PreparedDirs {
    /// Returns a stock in the data folder, and has it filled. That of an earlier server, which was
    /// made for its own layers, goes to the trash.
    pub(super) fn open(parts: &Parts) -> io::Result<Self> {
        let dir = parts.folders.base.join("stock");
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        for entry in std::fs::read_dir(&dir)? {
            std::fs::rename(entry?.path(), parts.folders.trash.join(Removals::name("stock")))?;
        }
        let stock = Self::new(dir, parts.host_rootfs.overlays(), parts.removals.tasks());
        stock.refill();
        Ok(stock)
    }

    /// Returns a stock in `dir`, which must be empty, for boxes with these overlays.
    fn new(dir: PathBuf, overlays: Vec<String>, tasks: TaskTracker) -> Self {
        Self { shared: Arc::new(Shared { dir, overlays, state: Mutex::default() }), tasks }
    }

    /// Makes `folder`, from a ready one if there is any, and returns the socket in it.
    ///
    /// # Errors
    /// If the folder cannot be made, or is there already.
    pub(super) fn take(&self, folder: &BoxFolder) -> io::Result<UnixListener> {
        loop {
            let Some(Ready { path, listener }) = self.shared.state().ready.pop() else {
                folder.make()?;
                return folder.listen();
            };
            // Renaming replaces an empty directory only, and a box's never is.
            match std::fs::rename(path, folder.path()) {
                // Removed from outside, for example by a later server.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                taken => return taken.map(|()| listener),
            }
        }
    }

    /// Refills the stock in the background.
    pub(super) fn refill(&self) {
        let mut state = self.shared.state();
        if state.is_filling || state.ready.len() >= READY_MAX {
            return;
        }
        state.is_filling = true;
        let shared = Arc::clone(&self.shared);
        refill_soon(&self.tasks, move || shared.fill());
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[tokio::test]
    async fn a_folder_from_the_stock_is_a_whole_one_and_the_stock_fills_up_again() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = TaskTracker::new();
        tasks.close();
        let base = dir.path().join("stock");
        std::fs::create_dir(&base).unwrap();
        let stock = PreparedDirs::new(base.clone(), vec!["root".to_owned(), "usr".to_owned()], tasks.clone());
        let empty = BoxFolder::at(dir.path().join("a"));
        stock.take(&empty).unwrap();
        assert!(empty.exists(), "without a stock it is made all the same");
        for _ in 0..2 {
            stock.refill();
            tasks.wait().await;
            assert_eq!(std::fs::read_dir(&base).unwrap().count(), READY_MAX);
            let folder = BoxFolder::at(dir.path().join("b"));
            let listener = stock.take(&folder).unwrap();
            assert!(layers(&folder).join("usr/work").is_dir());
            assert_eq!((folder.read(), folder.pid()), (None, None), "it says nothing of a box yet");
            let _connected = folder.connect().await.unwrap();
            assert!(listener.accept().is_ok(), "the socket has moved with its folder");
            host_disk::remove_tree(folder.path()).unwrap();
        }
        host_disk::remove_tree(&base).unwrap();
        std::fs::create_dir(&base).unwrap();
        let folder = BoxFolder::at(dir.path().join("d"));
        stock.take(&folder).unwrap();
        assert!(folder.exists(), "a removed stock counts as empty");
    }

    #[tokio::test]
    async fn a_folder_of_a_later_stock_in_the_same_place_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = TaskTracker::new();
        let base = dir.path().join("stock");
        tasks.close();
        std::fs::create_dir(&base).unwrap();
        let [earlier, later] = [(); 2].map(|()| PreparedDirs::new(base.clone(), Vec::new(), tasks.clone()));
        earlier.refill();
        tasks.wait().await;
        host_disk::remove_tree(&base).unwrap();
        std::fs::create_dir(&base).unwrap();
        later.refill();
        tasks.wait().await;
        let folder = BoxFolder::at(dir.path().join("a"));
        let listener = earlier.take(&folder).unwrap();
        let _connected = folder.connect().await.unwrap();
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_ok(), "the socket is that of the folder");
    }
}
