//! Sends what differs into a box.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;

use api::{AmendRequest, FileAttributes};
use client::Client;
use parking_lot::Mutex;
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;

use super::account::Done;
use super::listing::{Entry, Kind, Time, Tree, at, encoded, open_file, time_text};
use super::plan::Plan;
use crate::cp::QUEUE_PIECES;
use crate::cp::progress::Counting;
use crate::cp::tree::{Sink, Whole};
use crate::failure::{Failure, Result};

/// Maximum size of the files of one archive, in bytes: a server bounds what one request may unpack. A larger
/// file goes alone.
const ARCHIVE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Maximum number of members of one archive.
const ARCHIVE_MEMBERS_MAX: usize = 20_000;
/// Maximum number of paths of one request, and their size in bytes.
const PATHS_MAX: usize = 4000;
const PATHS_BYTES_MAX: usize = 200 * 1024;

/// Splits paths into parts for one request each.
pub fn parts<T: Clone>(paths: &[T], text: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = Vec::new();
    let mut bytes = 0;
    for path in paths {
        let size = text(path);
        let fits = parts.last().is_some_and(|part| part.len() < PATHS_MAX) && bytes + size <= PATHS_BYTES_MAX;
        if !fits {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += size;
        if let Some(part) = parts.last_mut() {
            part.push(path.clone());
        }
    }
    parts
}

/// Members of one archive.
#[derive(Debug, Default)]
struct Part {
    directories: Vec<Vec<u8>>,
    files: Vec<Vec<u8>>,
}

/// Makes the directory of a box like the one here.
pub async fn send(
    client: &Client,
    (root, tree): (OwnedFd, Arc<Tree>),
    (id, path): (&str, &str),
    plan: &Plan,
    counting: &Arc<Mutex<Counting>>,
) -> Result<Done> {
    let mut done = Done::default();
    let remove: Vec<String> = plan.remove.iter().map(|(path, _)| encoded(path)).collect();
    for remove in parts(&remove, String::len) {
        amend(client, id, AmendRequest { path: path.to_owned(), remove, attributes: Vec::new() }, &mut done).await?;
    }
    let has_archive = !plan.send.is_empty() || !plan.directories.is_empty();
    if has_archive {
        let root = Arc::new(root);
        for part in archives(plan, &tree) {
            let (files, bytes) =
                archive(client, (Arc::clone(&root), Arc::clone(&tree)), (id, path), part, counting).await?;
            done.sent += files;
            done.bytes += bytes;
        }
        done.sent += plan.directories.len() as u64;
    }
    let settle = plan.settle.iter().rev().filter(|_| !has_archive);
    let attributes: Vec<FileAttributes> = plan
        .attributes
        .iter()
        .chain(settle)
        .filter_map(|path| Some(attributes(path, tree.entries.get(path)?)))
        .collect();
    for attributes in parts(&attributes, |attributes| attributes.path.len()) {
        amend(client, id, AmendRequest { path: path.to_owned(), remove: Vec::new(), attributes }, &mut done).await?;
    }
    Ok(done)
}

fn attributes(path: &[u8], entry: &Entry) -> FileAttributes {
    FileAttributes {
        path: encoded(path),
        mode: Some(format!("{:04o}", entry.mode)),
        mtime: Some(time_text(entry.mtime)),
    }
}

async fn amend(client: &Client, id: &str, request: AmendRequest, done: &mut Done) -> Result<()> {
    let amended = client.amend_files(id, &request).await?;
    done.removed += amended.removed;
    done.changed += amended.changed;
    done.failed += amended.failed;
    let failures = amended.failures.into_iter().map(|failure| format!("{}: {}", failure.path, failure.message));
    done.failures.extend(failures);
    Ok(())
}

/// Divides what is sent. Directories come last, those in others before them, since what is made in one changes
/// its time.
fn archives(plan: &Plan, tree: &Tree) -> Vec<Part> {
    let mut parts = vec![Part::default()];
    let mut bytes = 0;
    for path in &plan.send {
        let size = match tree.entries.get(path).map(|entry| &entry.kind) {
            Some(Kind::File { size, .. }) => *size,
            _ => 0,
        };
        if let Some(part) = parts.last_mut()
            && !part.files.is_empty()
            && (bytes + size > ARCHIVE_BYTES_MAX || part.files.len() >= ARCHIVE_MEMBERS_MAX)
        {
            parts.push(Part::default());
            bytes = 0;
        }
        bytes += size;
        if let Some(part) = parts.last_mut() {
            part.files.push(path.clone());
        }
    }
    for directories in plan.settle.rchunks(ARCHIVE_MEMBERS_MAX) {
        match parts.last_mut().filter(|part| part.directories.is_empty()) {
            Some(part) => part.directories = directories.to_vec(),
            None => parts.push(Part { directories: directories.to_vec(), files: Vec::new() }),
        }
    }
    parts
}

/// Sends one archive. Returns the number of files and links, and of their bytes.
async fn archive(
    client: &Client,
    (root, tree): (Arc<OwnedFd>, Arc<Tree>),
    (id, path): (&str, &str),
    part: Part,
    counting: &Arc<Mutex<Counting>>,
) -> Result<(u64, u64)> {
    let (sender, mut receiver) = mpsc::channel(QUEUE_PIECES);
    let packing = tokio::task::spawn_blocking(move || {
        let failures = sender.clone();
        pack(&root, &tree, &part, sender).inspect_err(|error| {
            // A receiver that has left does not need it.
            let _ = failures.blocking_send(Err(io::Error::new(error.kind(), error.to_string())));
        })
    });
    let counted = Arc::clone(counting);
    let pieces = futures_util::stream::poll_fn(move |cx| {
        let piece = receiver.poll_recv(cx);
        if let Poll::Ready(Some(Ok(bytes))) = &piece {
            counted.lock().add(bytes.len());
        }
        piece
    });
    let sent = client.write_archive(id, path, pieces).await;
    let packed = packing.await.map_err(|error| Failure::new("io_error", error.to_string()))?;
    match (packed, sent) {
        // A server that refuses drops the pieces, which ends the packing.
        (Err(error), _) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new("io_error", error.to_string()))
        }
        (packed, sent) => {
            sent?;
            packed.map_err(|error| Failure::new("io_error", error.to_string()))
        }
    }
}

fn pack(
    root: &OwnedFd,
    tree: &Tree,
    part: &Part,
    sender: mpsc::Sender<io::Result<bytes::Bytes>>,
) -> io::Result<(u64, u64)> {
    let mut builder = Builder::new(Sink::new(sender));
    let mut files = 0;
    let mut bytes = 0;
    for path in &part.files {
        let Some(entry) = tree.entries.get(path) else { continue };
        if let Some(size) = member(&mut builder, root, path, entry).map_err(at(path))? {
            files += 1;
            bytes += size;
        }
    }
    for path in &part.directories {
        let Some(entry) = tree.entries.get(path) else { continue };
        time(&mut builder, entry.mtime)?;
        let name = if path.is_empty() { Path::new("./").to_owned() } else { name(path).join("") };
        builder.append_data(&mut header(EntryType::Directory, entry.mode, entry.mtime), name, io::empty())?;
    }
    builder.finish()?;
    builder.get_mut().send()?;
    Ok((files, bytes))
}

/// Packs a file or a link. Returns its size; `None` if it is gone.
fn member(builder: &mut Builder<Sink>, root: &OwnedFd, path: &[u8], entry: &Entry) -> io::Result<Option<u64>> {
    match &entry.kind {
        Kind::Link { target } => {
            time(builder, entry.mtime)?;
            let mut header = header(EntryType::Symlink, entry.mode, entry.mtime);
            builder.append_link(&mut header, name(path), name(target))?;
            Ok(Some(0))
        }
        Kind::File { first: Some(first), .. } if first != path => {
            builder.append_link(&mut header(EntryType::Link, entry.mode, entry.mtime), name(path), name(first))?;
            Ok(Some(0))
        }
        Kind::File { .. } => {
            let (file, stat) = match open_file(root, path) {
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => return Ok(None),
                opened => opened?,
            };
            let mtime = (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0));
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            time(builder, mtime)?;
            let mut header = header(EntryType::Regular, stat.st_mode & 0o7777, mtime);
            header.set_size(size);
            builder.append_data(&mut header, name(path), Whole { file: File::from(file), left: size })?;
            Ok(Some(size))
        }
        Kind::Directory | Kind::Other => Ok(None),
    }
}

fn name(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// Adds the time of the next member where its header cannot hold it.
fn time(builder: &mut Builder<Sink>, mtime: Time) -> io::Result<()> {
    if mtime.1 == 0 && mtime.0 >= 0 {
        return Ok(());
    }
    builder.append_pax_extensions([("mtime", time_text(mtime).as_bytes())])
}

fn header(kind: EntryType, mode: u32, (seconds, _): Time) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(u64::try_from(seconds).unwrap_or(0));
    header.set_size(0);
    header
}
