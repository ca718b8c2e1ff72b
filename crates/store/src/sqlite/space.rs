//! Access mode and size of the store's files.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use domain::Chain;

use super::super::error::Result;
use super::connections::Connections;

/// Mode of every file of the store: the files contain images, labels and owners.
const MODE: u32 = 0o600;
/// Size in bytes that the write-ahead log may keep on the disk after a checkpoint.
pub(super) const WAL_BYTES_MAX: u64 = 8 << 20;
/// Pages freed by one step: a mebibyte, which takes milliseconds.
const STEP_PAGES: i64 = 256;
/// Free pages kept for later writes.
const SPARE_PAGES: i64 = 256;
/// Value of `PRAGMA auto_vacuum` with which free pages can be returned to the disk in steps.
const INCREMENTAL: i64 = 2;
/// Maximum size in bytes of a file that is rewritten at start-up so that it can shrink, which
/// takes seconds.
const REWRITE_BYTES_MAX: u64 = 2 << 30;
/// Free disk bytes that a rewrite needs for each byte of the file: a copy, and the log.
const REWRITE_ROOM: u64 = 3;

/// Size of the file that keeps room for the rows of removals: the log of some hundred of them.
const RESERVE_BYTES: u64 = 4 << 20;
/// Free disk bytes below which no such file is made, for each of its bytes.
const RESERVE_ROOM: u64 = 4;

/// Returns the paths of SQLite's files beside `path`.
fn beside(path: &Path) -> impl Iterator<Item = PathBuf> {
    ["-wal", "-shm", "-journal"].into_iter().map(move |end| with_end(path, end))
}

fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Returns the free bytes of the disk that the file is on.
fn free_bytes(path: &Path) -> u64 {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    rustix::fs::statvfs(folder).map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Takes disk space for the rows of removals, unless it is taken already or the disk has little left.
pub(super) fn keep_reserve(path: &Path) {
    let reserve = with_end(path, "-reserve");
    if reserve.exists() || free_bytes(path) < RESERVE_BYTES * RESERVE_ROOM {
        return;
    }
    let taken = OpenOptions::new().create_new(true).write(true).mode(MODE).open(&reserve).and_then(|file| {
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, RESERVE_BYTES).map_err(io::Error::from)
    });
    // Where the file system takes no space in advance, the empty file keeps this from being tried again.
    if let Err(error) = taken {
        tracing::debug!(error = %Chain(&error), "cannot reserve disk space for removals");
    }
}

/// Frees that space. Returns whether there was any.
pub(super) fn free_reserve(path: &Path) -> bool {
    let reserve = with_end(path, "-reserve");
    let bytes = reserve.metadata().map_or(0, |file| file.len());
    std::fs::remove_file(reserve).is_ok() && bytes > 0
}

/// Creates the file if it is new, and denies other users access to it and to the files beside
/// it, regardless of the umask. SQLite gives new files beside it the same mode.
pub(super) fn keep_to_ourselves(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(MODE).open(path)?;
    restrict(&file)?;
    for path in beside(path) {
        match File::open(&path) {
            Ok(file) => restrict(&file)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn restrict(file: &File) -> io::Result<()> {
    if file.metadata()?.permissions().mode() & 0o777 == MODE {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(MODE))
}

/// Prepares the file so that it can shrink. A file of an earlier release is rewritten once for
/// that, if there is room. Otherwise it stays usable and does not shrink.
pub(super) async fn prepare(writer: &Connections, path: &Path) -> Result<()> {
    let mode: i64 = sqlx::query_scalar("PRAGMA auto_vacuum").fetch_one(writer).await?;
    if mode == INCREMENTAL {
        return Ok(());
    }
    let bytes = path.metadata().map_or(0, |file| file.len());
    let free = free_bytes(path);
    if bytes > REWRITE_BYTES_MAX || free < bytes.saturating_mul(REWRITE_ROOM) {
        tracing::warn!(
            bytes,
            free,
            "the store's file will not shrink; to change that, stop the server, make room for a copy, and run `PRAGMA \
             auto_vacuum = INCREMENTAL; VACUUM;` on it"
        );
        return Ok(());
    }
    let mut writer = writer.acquire().await?;
    sqlx::raw_sql("PRAGMA auto_vacuum = INCREMENTAL").execute(&mut *writer).await?;
    if let Err(error) = sqlx::raw_sql("VACUUM").execute(&mut *writer).await {
        tracing::warn!(error = %Chain(&error), bytes, "the store's file will not shrink until the next start");
    }
    Ok(())
}

/// Returns one step of free pages to the disk, and truncates the log once it is large. Returns
/// whether there are more free pages.
pub(super) async fn give_back(writer: &Connections, path: &Path) -> Result<bool> {
    let mut writer = writer.acquire().await?;
    let mode: i64 = sqlx::query_scalar("PRAGMA auto_vacuum").fetch_one(&mut *writer).await?;
    let free: i64 = sqlx::query_scalar("PRAGMA freelist_count").fetch_one(&mut *writer).await?;
    let step = if mode == INCREMENTAL { (free - SPARE_PAGES).clamp(0, STEP_PAGES) } else { 0 };
    if step > 0 {
        // One row for each page: only reading all rows frees all pages.
        let sql = format!("PRAGMA incremental_vacuum({step})");
        sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&mut *writer).await?;
    }
    let is_last = step < STEP_PAGES;
    let log = beside(path).next().and_then(|log| log.metadata().ok()).map_or(0, |log| log.len());
    if log > WAL_BYTES_MAX || is_last && step > 0 {
        // Only a checkpoint shortens the file itself.
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").fetch_all(&mut *writer).await?;
    }
    Ok(!is_last)
}

#[cfg(test)]
mod test {
    use domain::{Caps, Metadata, SandboxId, WorkerId};

    use super::super::Sqlite;
    use super::*;
    use crate::Maintenance as _;
    use crate::clock::from_ms;
    use crate::{Admitted, Change, Kept, KeptRows, NewSandbox, Sandbox, Store as _};

    #[test]
    fn space_for_removals_is_taken_freed_once_and_taken_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        assert!(!free_reserve(&path), "nothing is taken yet");
        for _ in 0..2 {
            keep_reserve(&path);
            let reserve = with_end(&path, "-reserve");
            assert_eq!((reserve.metadata().unwrap().len(), mode(&reserve)), (RESERVE_BYTES, MODE));
            assert!(free_reserve(&path) && !free_reserve(&path));
        }
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    async fn fill(store: &Sqlite, rows: u16) {
        for n in 0..rows {
            let mut entropy = [7; 10];
            entropy[..2].copy_from_slice(&n.to_be_bytes());
            let sandbox = Sandbox {
                id: SandboxId::from_entropy(entropy),
                metadata: Metadata::from([("k".to_owned(), "x".repeat(16_000))]),
                ..crate::suite::sandbox(0, None)
            };
            let id = sandbox.id.clone();
            let placement = crate::suite::placement();
            let new = NewSandbox {
                egress: domain::SandboxEgress::default(),
                sandbox,
                caps: Caps::default(),
                key: None,
                placement,
                pool: None,
            };
            assert_eq!(store.admit(&new).await.unwrap(), Admitted::Yes(WorkerId::local()));
            store.apply(&id, Change::Broke { error: "x".into(), at: from_ms(n.into()) }).await.unwrap();
        }
    }

    #[tokio::test]
    async fn the_file_shrinks_after_rows_went() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let many = KeptRows { total: 10_000, per_owner: 10_000 };
        let kept = Kept { failed: many, destroyed: many };
        let store = Sqlite::open(&path, [7; 10]).await.unwrap().keeping(kept);
        crate::suite::here(&store).await;
        fill(&store, 600).await;
        while store.give_back().await.unwrap() {}
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").fetch_all(&store.writer).await.unwrap();
        let full = path.metadata().unwrap().len();
        assert!(full > 9_000_000, "{full}");
        assert_eq!(store.purge_ended(from_ms(600), from_ms(600)).await.unwrap(), 600);
        let mut steps = 0;
        while store.give_back().await.unwrap() {
            steps += 1;
        }
        assert!(steps > 3, "it is given back step by step: {steps}");
        let left = path.metadata().unwrap().len();
        assert!(left < 2_500_000, "{left} of {full}");
        let log = beside(&path).next().unwrap().metadata().unwrap().len();
        assert!(log <= WAL_BYTES_MAX, "{log}");
        store.close().await;
    }

    #[tokio::test]
    async fn a_file_of_an_earlier_release_is_rewritten_once_so_that_it_can_shrink() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let store = Sqlite::open(&path, [7; 10]).await.unwrap();
        sqlx::raw_sql("PRAGMA auto_vacuum = NONE; VACUUM").execute(&store.writer).await.unwrap();
        store.close().await;
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let store = Sqlite::open(&path, [8; 10]).await.unwrap();
        let mode: i64 = sqlx::query_scalar("PRAGMA auto_vacuum").fetch_one(&store.writer).await.unwrap();
        assert_eq!(mode, INCREMENTAL);
        store.check().await.unwrap();
        store.close().await;
    }

    #[tokio::test]
    async fn the_files_of_the_store_are_for_us_alone_new_or_old() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.db");
        let store = Sqlite::open(&path, [7; 10]).await.unwrap();
        let files = || std::iter::once(path.clone()).chain(beside(&path)).filter(|path| path.exists());
        assert!(files().count() >= 3, "the file, its log and its index are there");
        for file in files() {
            assert_eq!(mode(&file), MODE, "{}", file.display());
            std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        }
        let other = Sqlite::open(&path, [7; 10]).await.unwrap();
        for file in files() {
            assert_eq!(mode(&file), MODE, "{}", file.display());
        }
        other.close().await;
        store.close().await;
    }
}
