//! `filesystem.Filesystem`: files and directories of a sandbox, as one of its users.

pub mod changes;
mod wire;

use axum::extract::Request;
use axum::response::Response;
use futures_util::{StreamExt, TryStreamExt, stream};
use providers::{FileInfo, XATTR_PATHS_MAX, Xattrs};
use serde_json::json;

use self::wire::{Entry, ListDir, Move, NO_KIND, PathOnly, kind};
use super::connect::{metered, unary};
use super::files::PREFIX;
use super::user::{Actor, actor};
use crate::control::Error;
use crate::http::error::{ApiError, Result, RpcCode, rpc};
use crate::http::request_memory::{LIST_BYTES, Meter};
use crate::http::state::Api;

/// Deepest list.
const DEPTH_MAX: u32 = 64;
/// Most entries of one list.
const ENTRIES_MAX: usize = 20_000;
/// Memory for an entry of a list besides its texts, which it has three times.
const ENTRY_BYTES: usize = 1024;
/// Memory for one pair of metadata besides its texts.
const PAIR_BYTES: usize = 100;
/// Links of a list that are followed at once.
const FOLLOWED_AT_ONCE: usize = 8;

/// Files of a sandbox, as a user sees them.
struct Files<'a> {
    api: &'a Api,
    id: &'a str,
    actor: Actor,
}

impl<'a> Files<'a> {
    async fn of(api: &'a Api, id: &'a str, user: Option<&str>) -> Result<Self> {
        Ok(Self { api, id, actor: actor(&api.control, id, user).await? })
    }

    fn user(&self) -> Option<&str> {
        self.actor.user.as_deref()
    }

    fn path(&self, path: &str) -> Result<String> {
        self.actor.absolute(path)
    }

    async fn stat(&self, path: &str) -> Result<Entry> {
        let info = self.api.control.stat_file_as(self.id, self.user(), path).await?;
        let metadata = self.metadata(std::slice::from_ref(&info)).await?.pop();
        Ok(self.entry(info).await?.with(metadata.unwrap_or_default()))
    }

    /// Returns the metadata of at most [`XATTR_PATHS_MAX`] files, in their order.
    async fn metadata(&self, files: &[FileInfo]) -> Result<Vec<Xattrs>, Error> {
        let paths: Vec<_> = files.iter().map(|info| info.path.clone()).collect();
        self.api.control.xattrs_as(self.id, self.user(), &paths, PREFIX).await
    }

    /// Describes a file. A link has the type of what it leads to, and none if it leads nowhere.
    async fn entry(&self, mut info: FileInfo) -> Result<Entry> {
        if !info.is_symlink {
            let kind = kind(info.is_dir);
            return Ok(Entry::of(info, kind, None));
        }
        match self.api.control.resolve_file(self.id, self.user(), &info.path).await {
            Ok(target) => Ok(Entry::of(info, kind(target.is_dir), Some(target.path))),
            Err(Error::NoFile(_) | Error::Invalid(_)) => {
                let target = info.target.take();
                Ok(Entry::of(info, NO_KIND, target))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the entries of a directory down to a depth, the entries of each directory right after it. The request
    /// holds memory for all that are kept.
    async fn list(&self, path: &str, depth: u32, meter: &Meter) -> Result<Vec<Entry>> {
        // For the listing of a directory that is under way.
        meter.hold(LIST_BYTES).await?;
        let mut found: Vec<FileInfo> = Vec::new();
        let mut listed = Listed { entries: 0, meter };
        let mut open = vec![listed.kept(self.entries(path).await?).await?];
        while let Some(entries) = open.last_mut() {
            let Some(entry) = entries.next() else {
                open.pop();
                continue;
            };
            if entry.is_dir && open.len() < depth as usize {
                match self.entries(&entry.path).await {
                    // The directory was removed during the walk, or may not be read.
                    Err(Error::NoFile(_) | Error::Invalid(_)) => {}
                    entries => open.push(listed.kept(entries?).await?),
                }
            }
            found.push(entry);
        }
        let mut metadata = Vec::with_capacity(found.len());
        for files in found.chunks(XATTR_PATHS_MAX) {
            let more = self.metadata(files).await?;
            meter
                .hold(more.iter().flatten().map(|(key, value)| 2 * (PAIR_BYTES + key.len() + value.len())).sum())
                .await?;
            metadata.extend(more);
        }
        let entries = stream::iter(found.into_iter().zip(metadata));
        let entries = entries.map(|(info, metadata)| async { Ok(self.entry(info).await?.with(metadata)) });
        entries.buffered(FOLLOWED_AT_ONCE).try_collect().await
    }

    async fn entries(&self, path: &str) -> Result<Vec<FileInfo>, Error> {
        self.api.control.list_files_as(self.id, self.user(), path).await
    }
}

/// Account of the entries that a list keeps.
struct Listed<'a> {
    entries: usize,
    meter: &'a Meter,
}

impl Listed<'_> {
    /// Returns the entries of one more directory, for which the request holds memory.
    ///
    /// # Errors
    /// `resource_exhausted` for too many, of this and the other directories together.
    async fn kept(&mut self, entries: Vec<FileInfo>) -> Result<std::vec::IntoIter<FileInfo>> {
        self.entries += entries.len();
        if self.entries > ENTRIES_MAX {
            let fault = format!("more than {ENTRIES_MAX} entries; list a smaller directory, or less deep");
            return Err(rpc(RpcCode::ResourceExhausted, fault));
        }
        self.meter.hold(entries.iter().map(held).sum()).await?;
        Ok(entries.into_iter())
    }
}

/// Returns the memory that a file takes as it is listed, as it is described, and in the answer.
fn held(info: &FileInfo) -> usize {
    let texts = info.name.len() + info.path.len() + info.target.as_ref().map_or(0, String::len);
    ENTRY_BYTES + 3 * texts
}

/// Describes a file of a sandbox.
pub async fn stat(api: &Api, id: &str, user: Option<&str>, request: Request) -> Response {
    unary(request, |PathOnly { path }| async move {
        let files = Files::of(api, id, user).await?;
        Ok(json!({"entry": files.stat(&files.path(&path)?).await?}))
    })
    .await
}

/// Lists a directory.
pub async fn list_dir(api: &Api, id: &str, user: Option<&str>, request: Request) -> Response {
    metered(request, |ListDir { path, depth }, meter| async move {
        let files = Files::of(api, id, user).await?;
        if depth > DEPTH_MAX {
            return Err(rpc(RpcCode::InvalidArgument, format!("`depth` must be at most {DEPTH_MAX}")));
        }
        Ok(json!({"entries": files.list(&files.path(&path)?, depth.max(1), &meter).await?}))
    })
    .await
}

/// Makes a directory, with its parents.
pub async fn make_dir(api: &Api, id: &str, user: Option<&str>, request: Request) -> Response {
    unary(request, |PathOnly { path }| async move {
        let files = Files::of(api, id, user).await?;
        let path = files.path(&path)?;
        api.control.make_dir(id, files.user(), &path).await?;
        Ok(json!({"entry": files.stat(&path).await?}))
    })
    .await
}

/// Moves a file or directory. The parents of its new place are made.
pub async fn move_file(api: &Api, id: &str, user: Option<&str>, request: Request) -> Response {
    unary(request, |Move { source, destination }| async move {
        let files = Files::of(api, id, user).await?;
        let (source, destination) = (files.path(&source)?, files.path(&destination)?);
        // What is missing is told before anything is made for it.
        api.control.stat_file_as(id, files.user(), &source).await?;
        if let Some((parent, _)) = destination.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
            match api.control.make_dir(id, files.user(), parent).await {
                Ok(()) | Err(Error::Conflict(_) | Error::NotSupported(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        api.control.move_file_as(id, files.user(), &source, &destination).await?;
        Ok(json!({"entry": files.stat(&destination).await?}))
    })
    .await
}

/// Removes a file, or a directory with its content. A missing path is not an error.
pub async fn remove(api: &Api, id: &str, user: Option<&str>, request: Request) -> Response {
    unary(request, |PathOnly { path }| async move {
        let files = Files::of(api, id, user).await?;
        match api.control.delete_file_as(id, files.user(), &files.path(&path)?, true).await {
            Ok(()) | Err(Error::NoFile(_)) => Ok(json!({})),
            Err(error) => Err(ApiError::from(error)),
        }
    })
    .await
}

#[cfg(test)]
mod test {
    use domain::Timestamp;

    use super::*;
    use crate::budget::{Budget, Caller};

    fn entries(count: usize) -> Vec<FileInfo> {
        let info = FileInfo {
            name: "a".to_owned(),
            path: "/a".to_owned(),
            size: 0,
            is_dir: true,
            is_symlink: false,
            target: None,
            modified: Timestamp::UNIX_EPOCH,
            mode: 0o755,
            owner: None,
            group: None,
        };
        vec![info; count]
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_has_memory_for_all_that_it_keeps_and_a_bound() {
        let budget = Budget::new(1 << 30);
        let meter = Meter::new(budget.account(Caller::Address(None), None));
        let mut listed = Listed { entries: 0, meter: &meter };
        assert_eq!(listed.kept(entries(ENTRIES_MAX / 2)).await.unwrap().len(), ENTRIES_MAX / 2);
        assert!(budget.stats().used_bytes as usize >= ENTRIES_MAX / 2 * ENTRY_BYTES);
        // Those of other levels count, whether they were described or not.
        let refused = listed.kept(entries(ENTRIES_MAX / 2 + 1)).await.unwrap_err();
        assert_eq!(refused.rpc_code().0, RpcCode::ResourceExhausted);
        let small = Budget::new(1 << 20);
        let meter = Meter::new(small.account(Caller::Address(None), None));
        let refused = Listed { entries: 0, meter: &meter }.kept(entries(2000)).await.unwrap_err();
        assert_eq!(refused.rpc_code().0, RpcCode::ResourceExhausted);
    }
}
