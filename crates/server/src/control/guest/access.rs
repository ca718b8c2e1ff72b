//! Access to a running box: its guest, files and console.

use std::sync::Arc;
use std::time::Instant;

use domain::Timestamp;
use providers::{ByteStream, Chain, FileContent, FileInfo, Guest};
use serde_json::json;

use crate::control::error::{Error, Result, provider_error};
use crate::control::resource::Resource;
use crate::control::service::Control;
use crate::control::unavailable::Unavailable;
use crate::events::EventType;
use crate::operation_metrics::Operation;
use store::Sandbox;

/// Maximum number of console lines per request.
const CONSOLE_LINES_MAX: usize = 10_000;

/// Returns the name of a sandbox's provider for error texts, with the worker if it is remote.
fn runtime_name(sandbox: &Sandbox) -> String {
    if sandbox.worker.is_local() {
        return sandbox.provider.clone();
    }
    format!("{}/{}", sandbox.worker, sandbox.provider)
}

/// Converts a provider's or worker's failure to start or remove a box into the caller's error.
pub(in crate::control) fn runtime_error(sandbox: &Sandbox, error: providers::Error) -> Error {
    let error = if let providers::Error::NotAsked(error) = error { *error } else { error };
    if matches!(error, providers::Error::NoAnswer { .. }) && !sandbox.worker.is_local() {
        return no_answer(sandbox, &error);
    }
    provider_error(&runtime_name(sandbox), error)
}

/// Returns the error for a worker that does not answer. The request can be retried: it is
/// identified by the sandbox's id.
pub(in crate::control) fn no_answer(sandbox: &Sandbox, error: &(dyn std::error::Error + 'static)) -> Error {
    let worker = &sandbox.worker;
    tracing::warn!(id = %sandbox.id, %worker, error = %Chain(error), "a worker does not answer");
    Unavailable::WorkerSilent { worker: worker.clone(), sandbox: sandbox.id.clone() }.into()
}

impl Control {
    /// Connects to the guest of a running sandbox.
    pub(in crate::control) async fn guest(self: &Control, sandbox: &Sandbox) -> Result<Arc<dyn Guest>> {
        let runtime = self.runtime_of(sandbox).await?;
        match runtime.guest(&sandbox.id).await {
            Ok(guest) => Ok(guest),
            // Nothing was done yet, so the caller can retry.
            Err(error @ (providers::Error::Failed { .. } | providers::Error::NoAnswer { .. }))
                if !sandbox.worker.is_local() =>
            {
                Err(no_answer(sandbox, &error))
            }
            Err(error) => Err(self.guest_error(sandbox, error)),
        }
    }

    /// Converts a guest's failure into the caller's error. If the box is gone, requests an
    /// inventory of the provider at once, ahead of the reconciler's interval.
    pub(in crate::control) fn guest_error(&self, sandbox: &Sandbox, error: providers::Error) -> Error {
        if matches!(error, providers::Error::Gone) {
            if sandbox.worker.is_local()
                && let Some(entry) = self.registry.get(&sandbox.provider)
            {
                entry.lost_one.notify_one();
            }
            return Error::NotFound(Resource::Sandbox, sandbox.id.to_string());
        }
        provider_error(&runtime_name(sandbox), error)
    }

    /// Returns the caller's error for a stream out of a box that broke off.
    pub async fn cut(&self, id: &str, error: providers::Error) -> Error {
        match self.living(id).await {
            Ok(sandbox) => self.guest_error(&sandbox, error),
            Err(error) => error,
        }
    }

    /// Runs one operation inside a running sandbox, and records it.
    pub(in crate::control) async fn inside<T, F>(
        &self,
        operation: Operation,
        id: &str,
        act: impl FnOnce(Arc<dyn Guest>) -> F,
    ) -> Result<(Sandbox, T)>
    where
        F: Future<Output = providers::Result<T>>,
    {
        let _using = self.pauses.in_use.begin(id, operation);
        let sandbox = self.usable(id).await?;
        let started = Instant::now();
        let outcome = async {
            let guest = self.guest(&sandbox).await?;
            act(guest).await.map_err(|error| self.guest_error(&sandbox, error))
        }
        .await;
        self.record(operation, &sandbox.provider, outcome.is_ok(), started);
        outcome.map(|value| (sandbox, value))
    }

    /// Reads a regular file; see [`Guest::read_file`].
    ///
    /// # Errors
    /// As [`Guest::read_file`].
    pub async fn read_file(&self, id: &str, path: &str, offset: u64, length: Option<u64>) -> Result<FileContent> {
        let using = self.pauses.in_use.begin(id, Operation::FileRead);
        let read = |guest: Arc<dyn Guest>| async move { guest.read_file(path, offset, length).await };
        let (_, content) = self.inside(Operation::FileRead, id, read).await?;
        Ok(FileContent { bytes: using.until_the_end(content.bytes), ..content })
    }

    /// Writes a file, completely or not at all; see [`Guest::write_file`].
    ///
    /// # Errors
    /// As [`Guest::write_file`].
    pub async fn write_file(&self, id: &str, path: &str, mode: Option<u32>, content: ByteStream) -> Result<()> {
        let write = |guest: Arc<dyn Guest>| async move { guest.write_file(path, mode, content).await };
        let (sandbox, ()) = self.inside(Operation::FileWrite, id, write).await?;
        self.publish(EventType::FileWritten, Some(&sandbox.id), json!({"path": path}));
        Ok(())
    }

    /// Removes a file or directory; see [`Guest::delete`].
    ///
    /// # Errors
    /// As [`Guest::delete`].
    pub async fn delete_file(&self, id: &str, path: &str, recursive: bool) -> Result<()> {
        let delete = |guest: Arc<dyn Guest>| async move { guest.delete(path, recursive).await };
        let (sandbox, ()) = self.inside(Operation::FileDelete, id, delete).await?;
        self.publish(EventType::FileDeleted, Some(&sandbox.id), json!({"path": path}));
        Ok(())
    }

    /// Lists the entries of a directory; see [`Guest::list`].
    ///
    /// # Errors
    /// As [`Guest::list`].
    pub async fn list_files(&self, id: &str, path: &str) -> Result<Vec<FileInfo>> {
        let list = |guest: Arc<dyn Guest>| async move { guest.list(path).await };
        self.inside(Operation::FileList, id, list).await.map(|(_, entries)| entries)
    }

    /// Returns the metadata of one file; see [`Guest::stat`].
    ///
    /// # Errors
    /// As [`Guest::stat`].
    pub async fn stat_file(&self, id: &str, path: &str) -> Result<FileInfo> {
        let stat = |guest: Arc<dyn Guest>| async move { guest.stat(path).await };
        self.inside(Operation::FileStat, id, stat).await.map(|(_, info)| info)
    }

    /// Moves a file or directory; see [`Guest::rename`].
    ///
    /// # Errors
    /// As [`Guest::rename`].
    pub async fn move_file(&self, id: &str, old: &str, new: &str) -> Result<()> {
        let rename = |guest: Arc<dyn Guest>| async move { guest.rename(old, new).await };
        self.inside(Operation::FileMove, id, rename).await.map(|_| ())
    }

    /// Sets permission bits; see [`Guest::chmod`].
    ///
    /// # Errors
    /// As [`Guest::chmod`].
    pub async fn chmod_file(&self, id: &str, path: &str, mode: u32) -> Result<()> {
        let chmod = |guest: Arc<dyn Guest>| async move { guest.chmod(path, mode).await };
        self.inside(Operation::FileChmod, id, chmod).await.map(|_| ())
    }

    /// Returns the paths that match a pattern; see [`Guest::glob`].
    ///
    /// # Errors
    /// As [`Guest::glob`].
    pub async fn glob_files(&self, id: &str, pattern: &str) -> Result<Vec<String>> {
        let glob = |guest: Arc<dyn Guest>| async move { guest.glob(pattern).await };
        self.inside(Operation::FileGlob, id, glob).await.map(|(_, paths)| paths)
    }

    /// Returns the newest `lines` console lines.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than 10,000.
    pub async fn console(&self, id: &str, lines: usize) -> Result<Vec<String>> {
        if lines > CONSOLE_LINES_MAX {
            return Err(Error::Invalid(format!("`lines` must be at most {CONSOLE_LINES_MAX}")));
        }
        let console = |guest: Arc<dyn Guest>| async move { guest.console(lines).await };
        self.inside(Operation::Logs, id, console).await.map(|(_, lines)| lines)
    }

    /// Returns the time before which rows of ended sandboxes are deleted.
    pub(crate) fn retention_ends_before(&self) -> Timestamp {
        let kept_ms = i64::try_from(self.policy.retention.as_millis()).unwrap_or(i64::MAX);
        store::clock::from_ms(self.now().as_millisecond().saturating_sub(kept_ms))
    }
}
