//! Files: reads and writes are streamed, and a write takes the place of a file at once.

use std::time::Duration;

use bytes::Bytes;
use domain::Timestamp;
use futures_util::{StreamExt, stream};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{CONTENT_TYPE, RANGE};
use reqwest::{Body, Method, Response, StatusCode};
use tokio::time::timeout;

use super::fault::{Fault, guest_fault};
use super::guest::E2bGuest;
use super::http::{self, LIST_BYTES_MAX, SMALL_BYTES_MAX};
use super::scripts;
use super::wire::{Empty, Entries, Entry, ListDir, Move, OfPath, OneEntry};
use crate::guest::MODE_MAX;
use crate::service::upload::watched;
use crate::service::words::words;
use crate::{ByteStream, Error, FileContent, FileInfo, Result};

const READ: &str = "read a file";
const WRITE: &str = "write a file";
const LOOK: &str = "read the metadata of a file";
const LIST: &str = "list a directory";
const DELETE: &str = "delete a file";
/// Mode of a new file.
const NEW_MODE: u32 = 0o644;
/// The longest silence of a download.
const SILENCE_MAX: std::time::Duration = std::time::Duration::from_secs(60);
/// Exit code of a program that is not there.
const CODE_NOT_FOUND: i32 = 127;

/// Converts the service's description of a file, or fails if no such file can exist.
pub(super) fn file_info(action: &'static str, entry: Entry) -> Result<FileInfo> {
    let (is_link, is_dir) = (entry.is_link(), entry.is_dir());
    let Entry { name, path, size, mode, owner, group, modified_time, symlink_target, .. } = entry;
    let text = |text: String| Some(text).filter(|text| !text.is_empty());
    let modified = modified_time.parse::<Timestamp>().ok();
    let info = modified.map(|modified| FileInfo {
        name: if path == "/" { "/".to_owned() } else { name },
        path,
        size,
        is_dir: is_dir && !is_link,
        is_symlink: is_link,
        target: symlink_target.filter(|_| is_link),
        modified,
        mode: mode & MODE_MAX,
        owner: text(owner),
        group: text(group),
    });
    info.filter(FileInfo::can_be).ok_or_else(|| Error::failed(action, "the service described a file that cannot be"))
}

fn absent(path: &str) -> Error {
    Error::NotFound(format!("{path}: no such file or directory"))
}

/// Names the path in an error that says no more than that it is not there.
fn named(error: Error, path: &str) -> Error {
    if matches!(error, Error::NotFound(_)) { absent(path) } else { error }
}

fn is_a_directory(path: &str) -> Error {
    Error::Invalid(format!("{path}: is a directory"))
}

/// Describes a file, or a link itself.
pub(super) async fn entry(guest: &E2bGuest, path: &str) -> Result<Entry> {
    let message = OfPath { path };
    let asked = guest.known.envd.unary::<OneEntry>("/filesystem.Filesystem/Stat", &message, SMALL_BYTES_MAX);
    guest.ask(LOOK, asked).await.map(|OneEntry { entry }| entry).map_err(|error| named(error, path))
}

/// Describes what a path leads to through links.
async fn followed(guest: &E2bGuest, path: &str) -> Result<Entry> {
    let found = entry(guest, path).await?;
    if !found.is_link() {
        return Ok(found);
    }
    match found.symlink_target {
        Some(target) if target.starts_with('/') && target != path => {
            let entry = entry(guest, &target).await?;
            if entry.is_link() { Err(absent(path)) } else { Ok(entry) }
        }
        _ => Err(absent(path)),
    }
}

/// Describes what a path leads to; see [`crate::Guest::resolve`].
pub(super) async fn resolve(guest: &E2bGuest, path: &str) -> Result<FileInfo> {
    file_info(LOOK, followed(guest, path).await?)
}

/// Lists a directory down to a depth.
pub(super) async fn list(guest: &E2bGuest, path: &str, depth: u32) -> Result<Vec<FileInfo>> {
    let message = ListDir { path, depth };
    let asked = guest.known.envd.unary::<Entries>("/filesystem.Filesystem/ListDir", &message, LIST_BYTES_MAX);
    let Entries { entries } = guest.ask(LIST, asked).await.map_err(|error| named(error, path))?;
    entries.into_iter().map(|entry| file_info(LIST, entry)).collect()
}

fn place(path: &str) -> String {
    format!("/files?path={}", utf8_percent_encode(path, NON_ALPHANUMERIC))
}

fn request_of(guest: &E2bGuest, method: Method, path: &str) -> reqwest::RequestBuilder {
    let user = utf8_percent_encode(guest.known.envd.user(), NON_ALPHANUMERIC).to_string();
    guest.known.envd.request(method, &format!("{}&username={user}", place(path)))
}

/// Opens a file; see [`crate::Guest::read_file`].
pub(super) async fn read(guest: &E2bGuest, path: &str, offset: u64, length: Option<u64>) -> Result<FileContent> {
    let entry = match followed(guest, path).await {
        // A link that goes round is told from one that leads nowhere by who opens it.
        Err(Error::NotFound(text)) => {
            drop(content(guest, path, 0, None, false).await?);
            return Err(Error::NotFound(text));
        }
        found => found?,
    };
    if entry.is_dir() {
        return Err(is_a_directory(path));
    }
    let name = path.rsplit('/').find(|name| !name.is_empty()).unwrap_or("/").to_owned();
    let info = FileInfo { name, path: path.to_owned(), ..file_info(READ, entry)? };
    // Files of the kernel have a size of 0, and content.
    let is_beyond = info.size > 0 && offset >= info.size;
    if is_beyond || length == Some(0) {
        return Ok(FileContent { info, bytes: stream::empty().boxed() });
    }
    let bytes = content(guest, path, offset, length, info.size > 0).await?;
    Ok(FileContent { info, bytes })
}

/// Returns the content of a file from `offset` on.
async fn content(guest: &E2bGuest, path: &str, offset: u64, length: Option<u64>, has_size: bool) -> Result<ByteStream> {
    let mut request = request_of(guest, Method::GET, path);
    if has_size && (offset > 0 || length.is_some()) {
        let end = length.map(|length| offset.saturating_add(length) - 1);
        let end = end.map(|end| end.to_string()).unwrap_or_default();
        request = request.header(RANGE, format!("bytes={offset}-{end}"));
    }
    let response = match guest.ask(READ, http::send_any(request, guest.remote.timeout)).await? {
        response if response.status() == StatusCode::RANGE_NOT_SATISFIABLE => return Ok(stream::empty().boxed()),
        response if response.status().is_success() => response,
        response => {
            let fault = http::refusal(response, guest.remote.timeout).await;
            return Err(named(guest.error(READ, fault).await, path));
        }
    };
    let is_part = response.status() == StatusCode::PARTIAL_CONTENT;
    let skip = if is_part { 0 } else { offset };
    let download = Download { guest: guest.clone(), response, skip, left: length.unwrap_or(u64::MAX), is_part };
    Ok(stream::unfold(Some(download), |download| async move {
        let mut download = download?;
        match download.next().await {
            Ok(Some(piece)) => Some((Ok(piece), Some(download))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    })
    .boxed())
}

/// Content of a file on its way.
struct Download {
    guest: E2bGuest,
    response: Response,
    /// Bytes that come before those that were asked for.
    skip: u64,
    left: u64,
    /// True if the service sends nothing but what was asked for.
    is_part: bool,
}

impl Download {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if self.left == 0 && !self.is_part {
                return Ok(None);
            }
            let piece = match timeout(SILENCE_MAX, self.response.chunk()).await {
                Ok(Ok(Some(piece))) => piece,
                Ok(Ok(None)) => return Ok(None),
                Ok(Err(error)) => return Err(self.guest.error(READ, http::failure(&error)).await),
                Err(_) => return Err(self.guest.error(READ, Fault::Timeout(SILENCE_MAX)).await),
            };
            let skipped = self.skip.min(piece.len() as u64);
            self.skip -= skipped;
            let piece = piece.slice(usize::try_from(skipped).unwrap_or(usize::MAX)..);
            if piece.is_empty() {
                continue;
            }
            if piece.len() as u64 > self.left {
                if self.is_part {
                    return Err(Error::failed(READ, "the service sent more than requested"));
                }
                let piece = piece.slice(..usize::try_from(self.left).unwrap_or(usize::MAX));
                self.left = 0;
                return Ok(Some(piece));
            }
            self.left -= piece.len() as u64;
            return Ok(Some(piece));
        }
    }
}

/// Streams content into a file, in its place.
pub(super) async fn overwrite(guest: &E2bGuest, path: &str, content: ByteStream) -> Result<()> {
    let (content, progress) = watched(content);
    let request = request_of(guest, Method::POST, path)
        .header(CONTENT_TYPE, "application/octet-stream")
        .body(Body::wrap_stream(content));
    let _permit = guest.permit().await?;
    let sent = async {
        match request.send().await {
            Ok(response) if response.status().is_success() => Ok(()),
            Ok(response) => Err(http::refusal(response, guest.remote.timeout).await),
            Err(error) => Err(http::failure(&error)),
        }
    };
    let answer = tokio::select! {
        answer = sent => answer,
        () = progress.stalled(guest.remote.timeout) => Err(Fault::Timeout(guest.remote.timeout)),
    };
    match (answer, progress.failure()) {
        (Err(_), Some(failure)) => Err(failure),
        (Err(fault), None) => Err(named(guest.error(WRITE, fault).await, path)),
        (Ok(()), _) => Ok(()),
    }
}

/// Times before the removals of a file that a write left.
const REMOVALS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(250), Duration::from_secs(1), Duration::from_secs(4)];

/// A file beside the one that is written, removed unless it has taken its place.
struct Temporary {
    guest: E2bGuest,
    path: Option<String>,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let Some(path) = self.path.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let guest = self.guest.clone();
            let tasks = guest.remote.tasks.clone();
            runtime.spawn(tasks.track_future(async move {
                // The service may still keep what came of a write that was cut, after a removal.
                for wait in REMOVALS {
                    tokio::time::sleep(wait).await;
                    // It may not be there at all.
                    let _ = remove(&guest, &path).await;
                }
            }));
        }
    }
}

/// Writes a file; see [`crate::Guest::write_file`]. The content comes into a file beside it, which then takes its place.
pub(super) async fn write(guest: &E2bGuest, path: &str, mode: Option<u32>, content: ByteStream) -> Result<()> {
    if path.ends_with('/') {
        return Err(is_a_directory(path));
    }
    let (target, old_mode) = target(guest, path).await?;
    check_place(&target)?;
    let beside = format!("{}.tidebox-{:016x}", folder(&target), rand::random::<u64>());
    let mut temporary = Temporary { guest: guest.clone(), path: Some(beside.clone()) };
    overwrite(guest, &beside, content).await?;
    let wanted = mode.or(old_mode).unwrap_or(NEW_MODE);
    if wanted != NEW_MODE {
        chmod(guest, &beside, wanted).await?;
    }
    rename(guest, &beside, &target).await?;
    temporary.path = None;
    Ok(())
}

/// Returns the folder of a path, with a slash at its end.
fn folder(path: &str) -> &str {
    path.rfind('/').map_or("/", |slash| &path[..=slash])
}

/// Returns the path of the file that is written, which is that of a link's target, and its mode if it exists.
async fn target(guest: &E2bGuest, path: &str) -> Result<(String, Option<u32>)> {
    let found = match entry(guest, path).await {
        Err(Error::NotFound(_)) => return Ok((path.to_owned(), None)),
        found => found?,
    };
    if !found.is_link() {
        return if found.is_dir() { Err(is_a_directory(path)) } else { Ok((path.to_owned(), Some(found.mode))) };
    }
    let said = found.symlink_target.unwrap_or_default();
    let target = if said.starts_with('/') { said } else { format!("{}{said}", folder(path)) };
    match entry(guest, &target).await {
        Err(Error::NotFound(_)) => Ok((target, None)),
        Err(error) => Err(error),
        Ok(found) if found.is_link() => Err(Error::Invalid(format!("{path}: too many links"))),
        Ok(found) if found.is_dir() => Err(is_a_directory(path)),
        Ok(found) => Ok((target, Some(found.mode))),
    }
}

/// Refuses places of devices and of the kernel, whose files nothing may take the place of.
fn check_place(path: &str) -> Result<()> {
    let is_of_system = ["/dev/", "/proc/", "/sys/"].iter().any(|of_system| path.starts_with(of_system));
    let is_memory = path.starts_with("/dev/shm/");
    if is_of_system && !is_memory {
        return Err(Error::Invalid(format!("{path}: is not a regular file")));
    }
    Ok(())
}

/// Sets the permission bits of a file, with the sandbox's `chmod`.
pub(super) async fn chmod(guest: &E2bGuest, path: &str, mode: u32) -> Result<()> {
    const ACTION: &str = "change the mode of a file";
    let mode = format!("{mode:04o}");
    let changed =
        guest.ask(ACTION, scripts::run(guest, guest.known.envd.user(), &["chmod", &mode, "--", path])).await?;
    match changed.code {
        0 => Ok(()),
        code => {
            followed(guest, path).await?;
            Err(match code {
                CODE_NOT_FOUND => {
                    Error::NotSupported("the sandbox's image has no `chmod`, which sets modes".to_owned())
                }
                _ => Error::Invalid(words(changed.output.trim())),
            })
        }
    }
}

/// Moves a file or directory.
pub(super) async fn rename(guest: &E2bGuest, old: &str, new: &str) -> Result<()> {
    let message = Move { source: old, destination: new };
    let moved = guest.known.envd.unary::<Empty>("/filesystem.Filesystem/Move", &message, SMALL_BYTES_MAX);
    guest.ask("move a file", moved).await.map(drop).map_err(|error| named(error, old))
}

/// Makes a directory; see [`crate::Guest::make_dir`].
pub(super) async fn make_dir(guest: &E2bGuest, path: &str) -> Result<()> {
    let message = OfPath { path };
    let made = guest.known.envd.unary::<Empty>("/filesystem.Filesystem/MakeDir", &message, SMALL_BYTES_MAX);
    guest.ask("make a directory", made).await.map(drop)
}

async fn remove(guest: &E2bGuest, path: &str) -> Result<()> {
    let message = OfPath { path };
    let removed = guest.known.envd.unary::<Empty>("/filesystem.Filesystem/Remove", &message, SMALL_BYTES_MAX);
    guest.ask(DELETE, removed).await.map(drop)
}

/// Removes a file, a directory or a link; see [`crate::Guest::delete`].
pub(super) async fn delete(guest: &E2bGuest, path: &str, recursive: bool) -> Result<()> {
    let entry = entry(guest, path).await?;
    if entry.path == "/" || path.trim_matches('/').is_empty() {
        return Err(Error::Invalid("/: the root directory cannot be removed".to_owned()));
    }
    if recursive || entry.is_link() || !entry.is_dir() {
        return remove(guest, path).await;
    }
    // The service removes directories with all that is in them.
    let removed = guest.ask(DELETE, scripts::run(guest, guest.known.envd.user(), &["rmdir", "--", path])).await?;
    match removed.code {
        0 => Ok(()),
        CODE_NOT_FOUND if list(guest, path, 1).await?.is_empty() => remove(guest, path).await,
        _ => Err(Error::Invalid(format!("{path}: is a directory that is not empty"))),
    }
}

/// Reads a whole file of the kernel, of at most `bytes_max` bytes; empty if it is not there.
pub(super) async fn small(guest: &E2bGuest, path: &str, bytes_max: usize) -> Result<Bytes> {
    let request = request_of(guest, Method::GET, path);
    let read = async { http::body(http::send(request, guest.remote.timeout).await?, bytes_max).await };
    let _permit = guest.permit().await?;
    match read.await {
        Ok(bytes) => Ok(bytes),
        Err(fault) if fault.is_status(404) => match guest.remote.still_runs(&guest.known).await {
            Ok(true) => Ok(Bytes::new()),
            Ok(false) => Err(Error::Gone),
            Err(_) => Err(guest_fault(READ, fault)),
        },
        Err(fault) => Err(guest.error(READ, fault).await),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn entry(change: impl FnOnce(&mut Entry)) -> Entry {
        let mut entry = Entry {
            name: "a".to_owned(),
            kind: "FILE_TYPE_FILE".to_owned(),
            path: "/a".to_owned(),
            size: 3,
            mode: 0o644,
            modified_time: "2026-01-01T00:00:00.000Z".to_owned(),
            ..Entry::default()
        };
        change(&mut entry);
        entry
    }

    #[test]
    fn a_link_is_a_link_whatever_its_target_is() {
        let link = entry(|entry| {
            entry.kind = "FILE_TYPE_DIRECTORY".to_owned();
            entry.symlink_target = Some("/d".to_owned());
        });
        let info = file_info("look", link).unwrap();
        assert!(info.is_symlink && !info.is_dir && info.target.as_deref() == Some("/d"));
        let dir = file_info("look", entry(|entry| entry.kind = "FILE_TYPE_DIRECTORY".to_owned())).unwrap();
        assert!(dir.is_dir && !dir.is_symlink && dir.owner.is_none());
    }

    #[test]
    fn a_file_that_cannot_be_is_refused() {
        for change in [
            (|entry| entry.path = "a".to_owned()) as fn(&mut Entry),
            |entry| entry.name = "../a".to_owned(),
            |entry| entry.name = String::new(),
            |entry| entry.path = "/a\0".to_owned(),
            |entry| entry.modified_time = "yesterday".to_owned(),
        ] {
            assert!(file_info("look", entry(change)).is_err());
        }
    }

    #[test]
    fn nothing_takes_the_place_of_a_device() {
        for path in ["/dev/null", "/proc/self/mem", "/sys/x"] {
            assert!(matches!(check_place(path), Err(Error::Invalid(_))), "{path}");
        }
        for path in ["/device", "/dev/shm/a", "/home/dev/x"] {
            check_place(path).unwrap();
        }
    }
}
