//! `tidebox cp`: files and directories into and out of a sandbox.

pub mod progress;
pub mod tree;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::task::Poll;

use api::FileInfo;
use clap::Args;
use client::{Client, FileStream};
use guest_protocol::file_text::{escaped, unescaped};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;

use self::progress::Shown;

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::signals::Signals;

/// Pieces of an archive that wait to be sent or written.
pub const QUEUE_PIECES: usize = 2;

/// Copy files between a sandbox and this machine
#[derive(Debug, Args)]
#[command(
    after_help = "One of SRC and DST is a file in a sandbox, written ID:/path; the other is a local file, or - for\n\
    stdin or stdout. Write a local file name that contains a colon as ./like:this. With -r, a directory\n\
    is copied recursively, with modes, times and links: into DST if DST is a directory, else as DST.\n\
    SRC/. copies the contents of SRC.\n\n\
    tidebox cp main.py sb-…:/workspace/main.py\n\
    tidebox cp sb-…:/workspace/result.csv .\n\
    tidebox cp -r src sb-…:/workspace"
)]
pub struct CpArgs {
    /// Copy directories recursively
    #[arg(short, long)]
    recursive: bool,
    /// Source
    #[arg(value_name = "SRC")]
    source: OsString,
    /// Destination
    #[arg(value_name = "DST")]
    destination: OsString,
}

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
pub enum Place {
    /// Stdin or stdout, written `-`.
    Standard,
    /// A file on this machine.
    Local(PathBuf),
    /// A file in a box.
    Remote { id: String, path: String },
}

pub async fn run(context: &Context, args: &CpArgs) -> Result {
    let source = place(&args.source)?;
    let destination = place(&args.destination)?;
    let mut signals = Signals::listen()?;
    let copy = async {
        if args.recursive && copy_directory(context, args, &source, &destination).await? {
            return Ok(());
        }
        match (&source, &destination) {
            (Place::Remote { .. }, Place::Remote { .. }) => Err(Failure::usage(
                "both paths are in boxes; copy via this machine: tidebox cp A:/x - | tidebox cp - B:/x",
            )),
            (from, Place::Remote { id, path }) => upload(&context.client, from, id, path).await,
            (Place::Remote { id, path }, to) => download(&context.client, id, path, to).await,
            _ => Err(Failure::usage("neither path is in a box; write one as ID:/path")),
        }
    };
    tokio::select! {
        // Returning drops the unfinished copy, so that no partial file stays.
        exit = signals.next() => Err(Failure::silent(exit)),
        result = copy => result.map(|()| ExitCode::SUCCESS),
    }
}

/// Copies a directory. Returns false if the source is none.
async fn copy_directory(context: &Context, args: &CpArgs, source: &Place, destination: &Place) -> Result<bool> {
    let client = &context.client;
    let mut shown = Shown::new(context.output);
    // As with cp, `src/.` is what is in `src`.
    let written = args.source.as_encoded_bytes();
    let is_content = written.ends_with(b"/.") || written.ends_with(b"..") || written == b".";
    let copied = match (source, destination) {
        (Place::Local(local), Place::Remote { id, path }) if local.is_dir() => {
            let path = if is_content { path.clone() } else { in_directory(client, id, path, local).await? };
            upload_directory(client, local, id, &path, &mut shown).await
        }
        (Place::Remote { id, path }, Place::Local(local)) => {
            let there = client.stat_file(id, path).await?;
            // A link at the end may lead to a directory.
            let is_dir = there.is_dir || there.is_symlink && client.list_files(id, path).await.is_ok();
            if !is_dir {
                return Ok(false);
            }
            let target = if is_content { local.clone() } else { target(local, path)? };
            download_directory(client, id, path, &target, &there, &mut shown).await
        }
        (Place::Remote { id, path }, Place::Standard) if client.stat_file(id, path).await?.is_dir => {
            Err(Failure::usage("cannot copy a directory to stdout; name a local directory"))
        }
        _ => return Ok(false),
    };
    shown.clear();
    let left_out = copied?;
    if left_out > 0 {
        context.output.remark(&format!("skipped {left_out} devices, FIFOs and sockets"));
    }
    Ok(true)
}

/// Sends a directory. Returns the number of files that were left out.
async fn upload_directory(client: &Client, local: &Path, id: &str, path: &str, shown: &mut Shown) -> Result<u64> {
    let (sender, mut receiver) = mpsc::channel(QUEUE_PIECES);
    let root = local.to_owned();
    let packing = tokio::task::spawn_blocking(move || tree::pack(&root, sender));
    let mut counting = shown.counting();
    let pieces = futures_util::stream::poll_fn(move |cx| {
        let piece = receiver.poll_recv(cx);
        if let Poll::Ready(Some(Ok(bytes))) = &piece {
            counting.add(bytes.len());
        }
        piece
    });
    // A server that refuses drops the pieces, which ends the packing.
    let sent = client.write_archive(id, path, pieces).await;
    let packed = packing.await.map_err(|error| Failure::new("io_error", error.to_string()))?;
    match (packed, sent) {
        (Err(error), _) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new("io_error", error.to_string()))
        }
        (packed, sent) => {
            sent?;
            packed.map_err(Failure::at(local))
        }
    }
}

/// Receives a directory. Returns 0, since the box does not count what it leaves out.
async fn download_directory(
    client: &Client,
    id: &str,
    path: &str,
    local: &Path,
    there: &FileInfo,
    shown: &mut Shown,
) -> Result<u64> {
    let is_new = !local.exists();
    let mut content = client.read_archive(id, path).await?;
    if is_new {
        std::fs::create_dir(local).map_err(Failure::at(local))?;
    }
    let (sender, receiver) = mpsc::channel(QUEUE_PIECES);
    let root = local.to_owned();
    let unpacking = tokio::task::spawn_blocking(move || tree::unpack(&root, receiver));
    let mut counting = shown.counting();
    let received = async {
        while let Some(bytes) = content.next().await? {
            counting.add(bytes.len());
            if sender.send(bytes).await.is_err() {
                break;
            }
        }
        drop(sender);
        Ok::<_, Failure>(())
    };
    let received = received.await;
    let unpacked = unpacking.await.map_err(|error| Failure::new("io_error", error.to_string()))?;
    received?;
    unpacked.map_err(Failure::at(local))?;
    if let Some(mode) = u32::from_str_radix(&there.mode, 8).ok().filter(|_| is_new && there.is_dir) {
        std::fs::set_permissions(local, std::fs::Permissions::from_mode(mode & 0o777)).map_err(Failure::at(local))?;
    }
    Ok(0)
}

/// Reads one side of the command line. A path in a box that is no UTF-8 is taken in its escaped form.
pub fn place(written: &OsStr) -> Result<Place> {
    let text = written.to_str().map_or_else(|| escaped(written.as_bytes()), str::to_owned);
    match text.as_str() {
        "" => return Err(Failure::usage("the name is empty; write a file, -, or ID:/path")),
        "-" => return Ok(Place::Standard),
        _ => {}
    }
    match text.split_once(':') {
        Some(("", _)) => Err(Failure::usage(format!("`{text}` has no sandbox ID before the colon; write ID:/path"))),
        Some((id, path)) if !id.contains('/') => {
            if path.starts_with('/') {
                Ok(Place::Remote { id: id.to_owned(), path: path.to_owned() })
            } else {
                Err(Failure::usage(format!(
                    "`{text}`: paths in a box are absolute, such as {id}:/workspace/{path}; write a local file as \
                     ./{text}"
                )))
            }
        }
        _ => Ok(Place::Local(PathBuf::from(written))),
    }
}

async fn upload(client: &Client, from: &Place, id: &str, path: &str) -> Result<()> {
    let Place::Local(local) = from else {
        if path.ends_with('/') {
            return Err(Failure::usage(format!("`{path}` is a directory; append a file name, because stdin has none")));
        }
        client.write_file(id, path, tokio::io::stdin(), None).await?;
        return Ok(());
    };
    // Opening a FIFO waits for its writer, which tokio does on another thread.
    let file = tokio::fs::File::open(local).await.map_err(Failure::at(local))?;
    let metadata = file.metadata().await.map_err(Failure::at(local))?;
    if metadata.is_dir() {
        return Err(Failure::usage(format!(
            "`{0}` is a directory; copy it recursively with tidebox cp -r {0} {id}:{path}",
            local.display()
        )));
    }
    let path = in_directory(client, id, path, local).await?;
    let size = metadata.is_file().then_some(metadata.len());
    client.write_file(id, &path, file, size).await?;
    // An upload carries no mode, so the x bits are set after it.
    let mode = metadata.permissions().mode();
    if metadata.is_file() && mode & 0o111 != 0 {
        client.chmod_file(id, &path, &format!("{:o}", mode & 0o777)).await?;
    }
    Ok(())
}

/// Returns the path to write in the box: `path`, or below it under the local name if it is a
/// directory.
async fn in_directory(client: &Client, id: &str, path: &str, local: &Path) -> Result<String> {
    let into = path.ends_with('/') || client.stat_file(id, path).await.is_ok_and(|there| there.is_dir);
    if !into {
        return Ok(path.to_owned());
    }
    let name = local.file_name().map(|name| escaped(name.as_bytes())).ok_or_else(|| {
        Failure::usage(format!("`{}` has no file name to keep; write the file's path in the box", local.display()))
    })?;
    Ok(format!("{}/{name}", path.trim_end_matches('/')))
}

async fn download(client: &Client, id: &str, path: &str, to: &Place) -> Result<()> {
    let local = match to {
        Place::Standard | Place::Remote { .. } => {
            let content = client.read_file(id, path, None).await?;
            return pour(content, &mut tokio::io::stdout(), |error| Failure::stdout(&error)).await;
        }
        Place::Local(local) => target(local, path)?,
    };
    let there = tokio::fs::metadata(&local).await.ok();
    let content = client.read_file(id, path, None).await?;
    if there.as_ref().is_some_and(|there| !there.is_file()) {
        let mut file = tokio::fs::OpenOptions::new().write(true).open(&local).await.map_err(Failure::at(&local))?;
        return pour(content, &mut file, Failure::at(&local)).await;
    }
    // Written beside the target and renamed at the end: the old content stays until the new
    // content is whole. A link keeps its target.
    let resolved = tokio::fs::canonicalize(&local).await.unwrap_or(local.clone());
    let directory = resolved.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = there.map_or(0o666, |there| there.permissions().mode() & 0o777);
    let partial = tempfile::Builder::new()
        .prefix(".tidebox-")
        .permissions(std::fs::Permissions::from_mode(mode))
        .tempfile_in(directory)
        .map_err(Failure::at(&local))?;
    let mut file = tokio::fs::File::from_std(partial.reopen().map_err(Failure::at(&local))?);
    pour(content, &mut file, Failure::at(&local)).await?;
    partial.persist(&resolved).map_err(|error| Failure::io(local.display(), &error.error))?;
    Ok(())
}

/// Returns the local file to write: in a directory, under the name that it has in the box.
fn target(local: &Path, path: &str) -> Result<PathBuf> {
    let trailing = local.as_os_str().as_encoded_bytes().ends_with(b"/");
    if !local.is_dir() {
        return if trailing {
            Err(Failure::usage(format!("`{}` is not a local directory; create it first", local.display())))
        } else {
            Ok(local.to_owned())
        };
    }
    match path.trim_end_matches('/').rsplit('/').next() {
        Some(name) if !matches!(name, "" | "." | "..") => Ok(local.join(OsString::from_vec(unescaped(name)))),
        _ => Err(Failure::usage(format!("`{path}` does not name a file"))),
    }
}

async fn pour<W: AsyncWrite + Unpin>(
    mut content: FileStream,
    to: &mut W,
    failed: impl Fn(std::io::Error) -> Failure,
) -> Result<()> {
    while let Some(bytes) = content.next().await? {
        to.write_all(&bytes).await.map_err(&failed)?;
    }
    to.flush().await.map_err(failed)
}

#[cfg(test)]
mod test {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::{Path, PathBuf};

    use super::{Place, place, target};

    #[test]
    fn each_side_is_read_as_what_it_looks_like() {
        let remote = |id: &str, path: &str| Place::Remote { id: id.to_owned(), path: path.to_owned() };
        let local = |path: &str| Place::Local(PathBuf::from(path));
        for (text, expected) in [
            ("-", Place::Standard),
            ("file", local("file")),
            ("./-", local("./-")),
            ("/abs/file", local("/abs/file")),
            ("./with:colon", local("./with:colon")),
            ("/abs/with:/colon", local("/abs/with:/colon")),
            ("dir/a:b", local("dir/a:b")),
            ("sb-1:/file", remote("sb-1", "/file")),
            ("sb-1:/a:b", remote("sb-1", "/a:b")),
            ("sb-1:/", remote("sb-1", "/")),
            ("sb-1:/with space%?#é", remote("sb-1", "/with space%?#é")),
        ] {
            assert_eq!(place(text.as_ref()).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_could_mean_two_things_is_refused_with_both_ways_out() {
        for text in ["", ":", ":/x", "sb-1:", "sb-1:x", "a:b:c"] {
            assert_eq!(place(text.as_ref()).unwrap_err().exit(), 2, "{text}");
        }
        let odd = OsStr::from_bytes(b"sb-1:/caf\xe9");
        assert_eq!(place(odd).unwrap(), Place::Remote { id: "sb-1".to_owned(), path: r"/caf\xe9".to_owned() });
        let failure = place("sb-1:out.txt".as_ref()).unwrap_err();
        let message = failure.said().unwrap().1;
        assert!(message.contains("sb-1:/workspace/out.txt") && message.contains("./sb-1:out.txt"), "{message}");
    }

    #[test]
    fn a_directory_here_keeps_the_name_of_the_file() {
        let here = tempfile::tempdir().unwrap();
        assert_eq!(target(here.path(), "/a/b.txt").unwrap(), here.path().join("b.txt"));
        let odd = here.path().join(OsStr::from_bytes(b"caf\xe9"));
        assert_eq!(target(here.path(), r"/a/caf\xe9").unwrap(), odd);
        assert_eq!(target(&here.path().join("new"), "/a/b.txt").unwrap(), here.path().join("new"));
        assert!(target(Path::new("/no/such/directory/"), "/a").is_err());
        for path in ["/", "/..", "/a/..", "/."] {
            assert!(target(here.path(), path).is_err(), "{path}");
        }
    }
}
