//! Files: reads are streamed; writes are buffered if small and streamed if not.

use api::{TextEncoding, WriteFileRequest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use client::{FileStream, Range};
use domain::Timestamp;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};

use super::fault::fault;
use super::guest::CustomGuest;
use crate::guest::MODE_MAX;
use crate::service::upload::watched;
use crate::{
    ByteStream, Error, FileChange, FileChangeKind, FileChanges, FileContent, FileInfo, Guest, Result, Unpacked,
    WatchRow,
};

/// The largest file that is sent in one request with its mode. A larger one is streamed, and its
/// mode is set afterwards.
const WHOLE_BYTES_MAX: usize = 1024 * 1024;

/// Converts the remote service's description of a file, or fails if no such file can exist.
pub(super) fn file_info(action: &'static str, info: api::FileInfo) -> Result<FileInfo> {
    let said = mode_of(&info.mode).zip(info.mod_time.parse::<Timestamp>().ok()).map(|(mode, modified)| FileInfo {
        name: info.name,
        path: info.path,
        size: info.size,
        is_dir: info.is_dir,
        is_symlink: info.is_symlink,
        target: info.target,
        modified,
        mode,
        owner: None,
        group: None,
    });
    said.filter(FileInfo::can_be).ok_or_else(|| Error::failed(action, "the other service described an invalid file"))
}

fn mode_of(text: &str) -> Option<u32> {
    u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= MODE_MAX)
}

/// Opens a file; see [`Guest::read_file`].
pub(super) async fn read(guest: &CustomGuest, path: &str, offset: u64, length: Option<u64>) -> Result<FileContent> {
    const ACTION: &str = "read a file";
    let range = match (offset, length) {
        (0, None) => None,
        (start, None) => Some(Range { start, end: None }),
        // A range cannot be empty, so one byte is requested and dropped.
        (start, Some(length)) => Some(Range { start, end: Some(start.saturating_add(length.max(1) - 1)) }),
    };
    let client = &guest.remote.client;
    let stream = match guest.ask(ACTION, client.read_file(guest.sandbox(), path, range)).await {
        Err(Error::Gone) => return Err(guest.missing(path).await),
        opened => opened?,
    };
    let size = stream.size().unwrap_or(0);
    let told = (stream.mode().and_then(mode_of), stream.modified().and_then(|at| at.parse::<Timestamp>().ok()));
    let info = match told {
        (Some(mode), Some(modified)) => FileInfo {
            name: path.rsplit('/').find(|name| !name.is_empty()).unwrap_or("/").to_owned(),
            path: path.to_owned(),
            size,
            is_dir: false,
            is_symlink: false,
            target: None,
            modified,
            mode,
            owner: None,
            group: None,
        },
        // The service does not send the metadata with the content.
        _ => FileInfo { size, is_symlink: false, target: None, ..guest.stat(path).await? },
    };
    let bytes = if length == Some(0) { stream::empty().boxed() } else { pieces(ACTION, stream, length) };
    Ok(FileContent { info, bytes })
}

/// Returns the content, but no more than was requested.
pub(super) fn pieces(action: &'static str, stream: FileStream, length: Option<u64>) -> ByteStream {
    stream::unfold(Some((stream, length.unwrap_or(u64::MAX))), move |state| async move {
        let (mut stream, left) = state?;
        match stream.next().await {
            Ok(None) => None,
            Ok(Some(piece)) if piece.len() as u64 > left => {
                Some((Err(Error::failed(action, "the other service sent more than requested")), None))
            }
            Ok(Some(piece)) => {
                let left = left - piece.len() as u64;
                Some((Ok(piece), Some((stream, left))))
            }
            Err(error) => Some((Err(fault(action, None, error)), None)),
        }
    })
    .boxed()
}

/// Writes a file; see [`Guest::write_file`].
pub(super) async fn write(guest: &CustomGuest, path: &str, mode: Option<u32>, mut content: ByteStream) -> Result<()> {
    let mut begin: Vec<Bytes> = Vec::new();
    let mut is_whole = false;
    let mut bytes = 0;
    while !is_whole && bytes <= WHOLE_BYTES_MAX {
        match content.next().await {
            Some(piece) => {
                let piece = piece?;
                bytes += piece.len();
                begin.push(piece);
            }
            None => is_whole = true,
        }
    }
    let written = if is_whole {
        write_whole(guest, path, mode, &begin.concat()).await
    } else {
        write_stream(guest, path, stream::iter(begin.into_iter().map(Ok)).chain(content).boxed()).await
    };
    match written {
        Err(Error::Gone) => Err(guest.missing(path).await),
        Ok(()) if !is_whole => match mode {
            Some(mode) => guest.chmod(path, mode).await,
            None => Ok(()),
        },
        written => written,
    }
}

const WRITE: &str = "write a file";

async fn write_whole(guest: &CustomGuest, path: &str, mode: Option<u32>, content: &[u8]) -> Result<()> {
    let request = WriteFileRequest {
        path: path.to_owned(),
        content: BASE64.encode(content),
        mode: mode.map(|mode| format!("{mode:04o}")),
        encoding: TextEncoding::Base64,
    };
    let client = guest.writing()?;
    guest.ask(WRITE, client.write_file_whole(guest.sandbox(), &request)).await.map(|_| ())
}

async fn write_stream(guest: &CustomGuest, path: &str, content: ByteStream) -> Result<()> {
    let client = guest.writing()?;
    let written = upload(guest, WRITE, content, |content| async move {
        client.write_file_stream(guest.sandbox(), path, content, None).await
    });
    written.await.map(|_| ())
}

/// Opens an archive; see [`Guest::archive`].
pub(super) async fn archive(guest: &CustomGuest, path: &str) -> Result<ByteStream> {
    const ACTION: &str = "pack a directory";
    let archive = guest.ask_of(ACTION, path, guest.remote.client.read_archive(guest.sandbox(), path)).await?;
    Ok(pieces(ACTION, archive, None))
}

/// Unpacks an archive; see [`Guest::unpack`].
pub(super) async fn unpack(guest: &CustomGuest, path: &str, archive: ByteStream) -> Result<Unpacked> {
    let client = guest.writing()?;
    let unpacked = upload(guest, "unpack an archive", archive, |content| async move {
        client.write_archive(guest.sandbox(), path, content).await
    });
    match unpacked.await {
        Ok(api::Unpacked { members, bytes }) => Ok(Unpacked { members, bytes }),
        Err(Error::Gone) => Err(guest.missing(path).await),
        Err(error) => Err(error),
    }
}

/// Watches files; see [`Guest::watch`].
pub(super) async fn watch(guest: &CustomGuest, path: &str, recursive: bool) -> Result<FileChanges> {
    const ACTION: &str = "watch files";
    let changes = guest.ask_of(ACTION, path, guest.remote.client.watch_files(guest.sandbox(), path, recursive)).await?;
    let changes = stream::unfold(Some(changes), |changes| async move {
        let mut changes = changes?;
        match changes.next().await {
            Ok(None) => None,
            Ok(Some(change)) => Some((row(ACTION, change), Some(changes))),
            Err(error) => Some((Err(fault(ACTION, None, error)), None)),
        }
    });
    Ok(changes.boxed())
}

/// Converts a change, or fails if it cannot be.
fn row(action: &'static str, change: api::FileChange) -> Result<WatchRow> {
    let kind = match change.kind.as_str() {
        "overflow" => return Ok(WatchRow::Overflow),
        "created" => FileChangeKind::Created,
        "modified" => FileChangeKind::Modified,
        "deleted" => FileChangeKind::Deleted,
        "attributes" => FileChangeKind::Attributes,
        _ => return Err(Error::failed(action, "the other service reported a change of an unknown kind")),
    };
    let path =
        change.path.ok_or_else(|| Error::failed(action, "the other service reported a change without a file"))?;
    Ok(WatchRow::Change(FileChange { kind, path, is_dir: change.is_dir, moved: false }))
}

/// Streams content by `send`. Waits for `content` without a limit, and for each step of the service
/// for at most the provider's time-out.
async fn upload<T, F: Future<Output = client::Result<T>>>(
    guest: &CustomGuest,
    action: &'static str,
    content: ByteStream,
    send: impl FnOnce(BoxStream<'static, std::io::Result<Bytes>>) -> F,
) -> Result<T> {
    let (content, progress) = watched(content);
    let _permit = guest.permit().await?;
    let answer = tokio::select! {
        answer = send(content) => answer,
        () = progress.stalled(guest.remote.timeout) => Err(client::Error::Timeout { after: guest.remote.timeout }),
    };
    match (answer, progress.failure()) {
        (Err(client::Error::Io(_)), Some(failure)) => Err(failure),
        (answer, _) => answer.map_err(|error| fault(action, guest.remote.boxes.generation(&guest.id), error)),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn info(path: &str, name: &str, mode: &str, mod_time: &str) -> api::FileInfo {
        api::FileInfo {
            name: name.to_owned(),
            path: path.to_owned(),
            size: 1,
            is_dir: false,
            mod_time: mod_time.to_owned(),
            mode: mode.to_owned(),
            is_symlink: false,
            target: None,
        }
    }

    #[test]
    fn a_file_that_cannot_be_is_refused() {
        const NOW: &str = "2026-01-01T00:00:00.000Z";
        assert_eq!(file_info("look", info("/a", "a", "0644", NOW)).unwrap().mode, 0o644);
        assert!(file_info("look", info("/", "/", "1777", NOW)).is_ok());
        for bad in [
            info("/a", "a", "10000", NOW),
            info("/a", "a", "rwx", NOW),
            info("/a", "a", "", NOW),
            info("/a", "a", "0644", "yesterday"),
            info("a", "a", "0644", NOW),
            info("/a", "", "0644", NOW),
            info("/a", "../a", "0644", NOW),
            info("/a\0", "a", "0644", NOW),
        ] {
            assert!(file_info("look", bad.clone()).is_err(), "{bad:?}");
        }
    }
}
