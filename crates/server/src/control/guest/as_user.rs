//! Work inside a running box as one of its users.

use std::sync::Arc;

use providers::{Account, ByteStream, FileChanges, FileContent, FileInfo, Guest, NewXattrs, WatchRow, Xattrs};
use serde_json::json;

use crate::control::error::Result;
use crate::control::service::Control;
use crate::events::EventType;
use crate::operation_metrics::Operation;
use store::Sandbox;

impl Control {
    /// Runs one operation inside a running sandbox as a user, and records it.
    async fn inside_as<T, F>(
        &self,
        operation: Operation,
        id: &str,
        user: Option<&str>,
        act: impl FnOnce(Arc<dyn Guest>) -> F,
    ) -> Result<(Sandbox, T)>
    where
        F: Future<Output = providers::Result<T>>,
    {
        let act = |guest: Arc<dyn Guest>| async move {
            let guest = user.map_or(Ok(Arc::clone(&guest)), |user| guest.acting_as(user))?;
            act(guest).await
        };
        self.inside(operation, id, act).await
    }

    /// Returns an account of a sandbox; see [`Guest::account`].
    ///
    /// # Errors
    /// As [`Guest::account`].
    pub async fn account(&self, id: &str, user: Option<&str>) -> Result<Account> {
        let find = |guest: Arc<dyn Guest>| async move { guest.account(user).await };
        self.inside(Operation::Account, id, find).await.map(|(_, account)| account)
    }

    /// Reads a regular file as a user; see [`Guest::read_file`].
    ///
    /// # Errors
    /// As [`Guest::read_file`].
    pub async fn read_file_as(
        &self,
        id: &str,
        user: Option<&str>,
        path: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<FileContent> {
        let using = self.pauses.in_use.begin(id, Operation::FileRead);
        let read = |guest: Arc<dyn Guest>| async move { guest.read_file(path, offset, length).await };
        let (_, content) = self.inside_as(Operation::FileRead, id, user, read).await?;
        Ok(FileContent { bytes: using.until_the_end(content.bytes), ..content })
    }

    /// Writes into a file as a user; see [`Guest::overwrite_file`].
    ///
    /// # Errors
    /// As [`Guest::overwrite_file`].
    pub async fn overwrite_file(
        &self,
        id: &str,
        user: Option<&str>,
        path: &str,
        xattrs: NewXattrs,
        content: ByteStream,
    ) -> Result<()> {
        let write = |guest: Arc<dyn Guest>| async move { guest.overwrite_file(path, Some(xattrs), content).await };
        let (sandbox, ()) = self.inside_as(Operation::FileWrite, id, user, write).await?;
        self.publish(EventType::FileWritten, Some(&sandbox.id), json!({"path": path}));
        Ok(())
    }

    /// Makes a directory as a user; see [`Guest::make_dir`].
    ///
    /// # Errors
    /// As [`Guest::make_dir`].
    pub async fn make_dir(&self, id: &str, user: Option<&str>, path: &str) -> Result<()> {
        let make = |guest: Arc<dyn Guest>| async move { guest.make_dir(path).await };
        self.inside_as(Operation::FileMakeDir, id, user, make).await.map(|_| ())
    }

    /// Removes a file or directory as a user; see [`Guest::delete`].
    ///
    /// # Errors
    /// As [`Guest::delete`].
    pub async fn delete_file_as(&self, id: &str, user: Option<&str>, path: &str, recursive: bool) -> Result<()> {
        let delete = |guest: Arc<dyn Guest>| async move { guest.delete(path, recursive).await };
        let (sandbox, ()) = self.inside_as(Operation::FileDelete, id, user, delete).await?;
        self.publish(EventType::FileDeleted, Some(&sandbox.id), json!({"path": path}));
        Ok(())
    }

    /// Lists the entries of a directory as a user; see [`Guest::list`].
    ///
    /// # Errors
    /// As [`Guest::list`].
    pub async fn list_files_as(&self, id: &str, user: Option<&str>, path: &str) -> Result<Vec<FileInfo>> {
        let list = |guest: Arc<dyn Guest>| async move { guest.list(path).await };
        self.inside_as(Operation::FileList, id, user, list).await.map(|(_, entries)| entries)
    }

    /// Returns the metadata of one file as a user sees it; see [`Guest::stat`].
    ///
    /// # Errors
    /// As [`Guest::stat`].
    pub async fn stat_file_as(&self, id: &str, user: Option<&str>, path: &str) -> Result<FileInfo> {
        let stat = |guest: Arc<dyn Guest>| async move { guest.stat(path).await };
        self.inside_as(Operation::FileStat, id, user, stat).await.map(|(_, info)| info)
    }

    /// Returns the metadata of what a path leads to; see [`Guest::resolve`].
    ///
    /// # Errors
    /// As [`Guest::resolve`].
    pub async fn resolve_file(&self, id: &str, user: Option<&str>, path: &str) -> Result<FileInfo> {
        let resolve = |guest: Arc<dyn Guest>| async move { guest.resolve(path).await };
        self.inside_as(Operation::FileStat, id, user, resolve).await.map(|(_, info)| info)
    }

    /// Returns the extended attributes of files as a user sees them; see [`Guest::xattrs`].
    ///
    /// # Errors
    /// As [`Guest::xattrs`].
    pub async fn xattrs_as(&self, id: &str, user: Option<&str>, paths: &[String], prefix: &str) -> Result<Vec<Xattrs>> {
        let read = |guest: Arc<dyn Guest>| async move { guest.xattrs(paths, prefix).await };
        self.inside_as(Operation::FileStat, id, user, read).await.map(|(_, xattrs)| xattrs)
    }

    /// Moves a file or directory as a user; see [`Guest::rename`].
    ///
    /// # Errors
    /// As [`Guest::rename`].
    pub async fn move_file_as(&self, id: &str, user: Option<&str>, old: &str, new: &str) -> Result<()> {
        let rename = |guest: Arc<dyn Guest>| async move { guest.rename(old, new).await };
        self.inside_as(Operation::FileMove, id, user, rename).await.map(|_| ())
    }

    /// Watches a file or a directory as a user; see [`Guest::watch`].
    ///
    /// # Errors
    /// As [`Guest::watch`].
    pub async fn watch_files_as(
        &self,
        id: &str,
        user: Option<&str>,
        path: &str,
        recursive: bool,
    ) -> Result<FileChanges> {
        let watch = |guest: Arc<dyn Guest>| async move { guest.watch(path, recursive).await };
        self.inside_as(Operation::FileWatch, id, user, watch).await.map(|(_, changes)| changes)
    }

    /// Begins a watch whose changes are kept; see [`Guest::add_watcher`].
    ///
    /// # Errors
    /// As [`Guest::add_watcher`].
    pub async fn add_watcher(&self, id: &str, user: Option<&str>, path: &str, recursive: bool) -> Result<u64> {
        let add = |guest: Arc<dyn Guest>| async move { guest.add_watcher(path, recursive).await };
        self.inside_as(Operation::FileWatch, id, user, add).await.map(|(_, watcher)| watcher)
    }

    /// Takes the changes of a watcher; see [`Guest::watcher_changes`].
    ///
    /// # Errors
    /// As [`Guest::watcher_changes`].
    pub async fn watcher_changes(&self, id: &str, watcher: u64) -> Result<Vec<WatchRow>> {
        let take = |guest: Arc<dyn Guest>| async move { guest.watcher_changes(watcher).await };
        self.inside(Operation::FileWatch, id, take).await.map(|(_, rows)| rows)
    }

    /// Ends a watcher; see [`Guest::remove_watcher`].
    ///
    /// # Errors
    /// As [`Guest::remove_watcher`].
    pub async fn remove_watcher(&self, id: &str, watcher: u64) -> Result<()> {
        let remove = |guest: Arc<dyn Guest>| async move { guest.remove_watcher(watcher).await };
        self.inside(Operation::FileWatch, id, remove).await.map(|_| ())
    }
}
