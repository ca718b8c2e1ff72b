//! Folders that are ready to become a box's: making files takes a file system
//! its time, the more so after many were removed, and a caller waits for it.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::task::TaskTracker;

use super::record::BoxFolder;

/// How many are kept. A burst beyond it waits for its folders as if there were
/// no stock.
const READY_MAX: usize = 16;

/// The folders, and what makes new ones.
#[derive(Debug)]
pub(super) struct Stock {
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
    ready: Vec<PathBuf>,
    made: u64,
    is_filling: bool,
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes folders until there are enough; on an error the next call tries again.
    fn fill(&self) {
        loop {
            let path = {
                let mut state = self.state();
                if state.ready.len() >= READY_MAX {
                    state.is_filling = false;
                    return;
                }
                state.made += 1;
                self.dir.join(state.made.to_string())
            };
            let made = self.make(&path);
            let mut state = self.state();
            if let Err(error) = made {
                state.is_filling = false;
                tracing::debug!(%error, "cannot make a folder in advance");
                return;
            }
            state.ready.push(path);
        }
    }

    fn make(&self, path: &Path) -> io::Result<()> {
        let folder = BoxFolder::at(path.to_owned());
        folder.make()?;
        folder.touch()?;
        let layers = folder.layers();
        open_dir(&layers)?;
        for overlay in &self.overlays {
            open_dir(&layers.join(overlay))?;
            for part in ["upper", "work"] {
                open_dir(&layers.join(overlay).join(part))?;
            }
        }
        Ok(())
    }
}

/// A directory that everybody may enter, whatever our own umask is.
fn open_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o755).create(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

impl Stock {
    /// A stock in `dir`, which is empty, for boxes with these overlays.
    pub(super) fn new(dir: PathBuf, overlays: Vec<String>, tasks: TaskTracker) -> Self {
        Self { shared: Arc::new(Shared { dir, overlays, state: Mutex::default() }), tasks }
    }

    /// Makes `folder`, from the stock if there is any.
    ///
    /// # Errors
    /// If the folder cannot be made, or is there already.
    pub(super) fn take(&self, folder: &BoxFolder) -> io::Result<()> {
        loop {
            let Some(ready) = self.shared.state().ready.pop() else { return folder.make() };
            // Renaming replaces an empty directory only, and a box's never is.
            match std::fs::rename(ready, folder.path()) {
                // Somebody has cleaned up here, a later server for one.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                taken => return taken,
            }
        }
    }

    /// Fills up in the background.
    pub(super) fn refill(&self) {
        let mut state = self.shared.state();
        if state.is_filling || state.ready.len() >= READY_MAX {
            return;
        }
        state.is_filling = true;
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn_blocking(move || shared.fill());
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
        let stock = Stock::new(base.clone(), vec!["root".to_owned(), "usr".to_owned()], tasks.clone());
        let empty = BoxFolder::at(dir.path().join("a"));
        stock.take(&empty).unwrap();
        assert!(empty.exists(), "without a stock it is made all the same");
        for _ in 0..2 {
            stock.refill();
            tasks.wait().await;
            assert_eq!(std::fs::read_dir(&base).unwrap().count(), READY_MAX);
            let folder = BoxFolder::at(dir.path().join("b"));
            stock.take(&folder).unwrap();
            assert!(folder.layers().join("usr/work").is_dir());
            assert_eq!((folder.read(), folder.pid()), (None, None), "it says nothing of a box yet");
            crate::removal::remove_tree(folder.path()).unwrap();
        }
        crate::removal::remove_tree(&base).unwrap();
        std::fs::create_dir(&base).unwrap();
        let folder = BoxFolder::at(dir.path().join("d"));
        stock.take(&folder).unwrap();
        assert!(folder.exists(), "a stock that somebody has removed is no stock");
    }
}
