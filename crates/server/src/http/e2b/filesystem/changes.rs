//! Changes of a directory, as a stream, and kept by watchers until they are asked for.

use axum::extract::Request;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64_URL;
use futures_util::{StreamExt, stream};
use providers::{FileChange, FileChangeKind, WatchRow};
use serde_json::{Value, json};

use super::Files;
use super::wire::{OfWatcher, Watch};
use crate::control::Error;
use crate::http::e2b::connect::{Cut, Messages, metered, server_stream, unary};
use crate::http::e2b::in_box::while_it_runs;
use crate::http::error::{ApiError, Result, RpcCode, rpc};
use crate::http::request_memory::LIST_BYTES;
use crate::http::state::Api;

/// Memory for an event besides its path, which it has twice.
const EVENT_BYTES: usize = 1024;

/// Checks that a path is a directory, and returns it without links and without a slash at its end.
async fn directory(files: &Files<'_>, path: &str) -> Result<String> {
    let path = files.path(path)?;
    let mut info = files.api.control.stat_file_as(files.id, files.user(), &path).await?;
    if info.is_symlink {
        info = files.api.control.resolve_file(files.id, files.user(), &path).await?;
    }
    if info.is_dir { Ok(path) } else { Err(rpc(RpcCode::InvalidArgument, format!("{path}: is not a directory"))) }
}

/// Sends the changes of a directory.
pub async fn watch_dir(api: &Api, id: &str, user: Option<&str>, request: Request) -> Response {
    server_stream(request, &api.stop, json!({"keepalive": {}}), |message, _| begin(api, id, user, message)).await
}

async fn begin(api: &Api, id: &str, user: Option<&str>, message: Watch) -> Result<Messages<Value>> {
    let files = Files::of(api, id, user).await?;
    let dir = directory(&files, &message.path).await?;
    let changes = api.control.watch_files_as(id, files.user(), &dir, message.recursive).await?;
    let looking = Looking {
        api: api.clone(),
        id: id.to_owned(),
        user: user.map(str::to_owned),
        dir,
        include_entry: message.include_entry,
    };
    let begun = stream::once(async { Ok(json!({"start": {}})) });
    let events = stream::unfold((changes, looking), |(mut changes, looking)| async move {
        let event = match changes.next().await? {
            Ok(WatchRow::Change(change)) => looking.event(&change).await.map(Some),
            // The protocol has no words for changes that are missing.
            Ok(WatchRow::Overflow) => Ok(None),
            Err(error) => {
                let error = looking.api.control.cut(&looking.id, error).await;
                let is_gone = matches!(error, Error::NotFound(..) | Error::Conflict(_));
                Err(if is_gone { Cut::Gone } else { error.into() })
            }
        };
        Some((event, (changes, looking)))
    });
    let events = events
        .filter_map(|event| async { event.map(|event| event.map(|event| json!({"filesystem": event}))).transpose() });
    Ok(while_it_runs(api, id, begun.chain(events).boxed()))
}

/// Description of changes for a client.
struct Looking {
    api: Api,
    id: String,
    user: Option<String>,
    dir: String,
    include_entry: bool,
}

impl Looking {
    async fn event(&self, change: &FileChange) -> Result<Value, Cut> {
        let mut event = event(change, &self.dir);
        if self.include_entry && !matches!(event["type"].as_str(), Some("EVENT_TYPE_REMOVE" | "EVENT_TYPE_RENAME")) {
            let files = Files::of(&self.api, &self.id, self.user.as_deref()).await?;
            // A file that has gone since has no entry.
            if let Ok(entry) = files.stat(&change.path).await {
                event["entry"] = serde_json::to_value(entry).unwrap_or_default();
            }
        }
        Ok(event)
    }
}

/// Returns the memory that a change takes as an event, and in the answer.
fn held(row: &WatchRow, include_entry: bool) -> usize {
    let WatchRow::Change(change) = row else { return 0 };
    // An entry has the path too, and as much besides as the event.
    (EVENT_BYTES + 2 * change.path.len()) * if include_entry { 3 } else { 1 }
}

fn event(change: &FileChange, dir: &str) -> Value {
    let kind = match change.kind {
        FileChangeKind::Created => "EVENT_TYPE_CREATE",
        FileChangeKind::Modified => "EVENT_TYPE_WRITE",
        FileChangeKind::Deleted if change.moved => "EVENT_TYPE_RENAME",
        FileChangeKind::Deleted => "EVENT_TYPE_REMOVE",
        FileChangeKind::Attributes => "EVENT_TYPE_CHMOD",
    };
    let name = change.path.strip_prefix(dir.trim_end_matches('/')).unwrap_or(&change.path);
    json!({"name": name.trim_start_matches('/'), "type": kind})
}

/// Begins to keep the changes of a directory.
pub async fn create_watcher(api: &Api, id: &str, user: Option<&str>, request: Request) -> Response {
    unary(request, |message: Watch| async move {
        let files = Files::of(api, id, user).await?;
        let dir = directory(&files, &message.path).await?;
        let number = api.control.add_watcher(id, files.user(), &dir, message.recursive).await?;
        Ok(json!({"watcherId": Watcher { number, include_entry: message.include_entry, dir }.id()}))
    })
    .await
}

/// Returns the changes since the last time.
pub async fn watcher_events(api: &Api, id: &str, user: Option<&str>, request: Request) -> Response {
    metered(request, |message: OfWatcher, meter| async move {
        let Watcher { number, include_entry, dir } = Watcher::of(&message.watcher_id)?;
        meter.hold(LIST_BYTES).await?;
        let rows = api.control.watcher_changes(id, number).await?;
        meter.hold(rows.iter().map(|row| held(row, include_entry)).sum()).await?;
        let looking =
            Looking { api: api.clone(), id: id.to_owned(), user: user.map(str::to_owned), dir, include_entry };
        let mut events = Vec::new();
        for row in rows {
            let WatchRow::Change(change) = row else { continue };
            events.push(looking.event(&change).await.map_err(|cut| match cut {
                Cut::Error(error) => error,
                Cut::Gone => rpc(RpcCode::Unavailable, "the sandbox was not found"),
            })?);
        }
        Ok(json!({"events": events}))
    })
    .await
}

/// Ends a watcher.
pub async fn remove_watcher(api: &Api, id: &str, request: Request) -> Response {
    unary(request, |message: OfWatcher| async move {
        api.control.remove_watcher(id, Watcher::of(&message.watcher_id)?.number).await.map_err(ApiError::from)?;
        Ok(json!({}))
    })
    .await
}

/// A watcher, with what its changes are described by. All of it is in its id, so that nothing is kept here.
#[derive(Debug, PartialEq, Eq)]
struct Watcher {
    number: u64,
    include_entry: bool,
    dir: String,
}

impl Watcher {
    fn id(&self) -> String {
        let form = if self.include_entry { 'e' } else { 'n' };
        format!("{}-{form}-{}", self.number, BASE64_URL.encode(&self.dir))
    }

    fn of(id: &str) -> Result<Self> {
        let read = || {
            let (number, rest) = id.split_once('-')?;
            let (form, dir) = rest.split_once('-')?;
            let include_entry = match form {
                "e" => true,
                "n" => false,
                _ => return None,
            };
            let dir = String::from_utf8(BASE64_URL.decode(dir).ok()?).ok()?;
            Some(Self { number: number.parse().ok()?, include_entry, dir })
        };
        read().ok_or_else(|| rpc(RpcCode::NotFound, "there is no such watcher"))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_change_is_named_by_its_path_below_the_directory() {
        let change = |path: &str, kind, moved| FileChange { kind, path: path.to_owned(), is_dir: false, moved };
        use FileChangeKind::{Attributes, Created, Deleted, Modified};
        for (dir, path, kind, moved, expected) in [
            ("/a", "/a/b", Created, false, json!({"name": "b", "type": "EVENT_TYPE_CREATE"})),
            ("/a", "/a/b", Created, true, json!({"name": "b", "type": "EVENT_TYPE_CREATE"})),
            ("/a/", "/a/b/c", Modified, false, json!({"name": "b/c", "type": "EVENT_TYPE_WRITE"})),
            ("/", "/b", Deleted, false, json!({"name": "b", "type": "EVENT_TYPE_REMOVE"})),
            ("/a", "/a/b", Deleted, true, json!({"name": "b", "type": "EVENT_TYPE_RENAME"})),
            ("/a", "/a/b", Attributes, false, json!({"name": "b", "type": "EVENT_TYPE_CHMOD"})),
        ] {
            assert_eq!(event(&change(path, kind, moved), dir), expected);
        }
    }

    #[test]
    fn the_id_of_a_watcher_holds_all_of_it_and_no_other_text_is_one() {
        let watcher = Watcher { number: 7, include_entry: true, dir: "/a-b/\u{e4}".to_owned() };
        assert_eq!(Watcher::of(&watcher.id()).unwrap(), watcher);
        for text in ["", "7", "7-e", "7-x-Lw", "x-e-Lw", "7-e-!", "-7-e-Lw"] {
            assert_eq!(Watcher::of(text).unwrap_err().rpc_code().0, RpcCode::NotFound, "{text}");
        }
    }
}
