//! `tidebox sync`: a directory into a sandbox, or out of one, of which only what differs is sent.

mod account;
mod below;
mod listing;
mod plan;
mod receive;
mod send;
mod steps;

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use client::{Client, FileStream};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use self::account::{Change, Done};
use self::below::{Below, MODE_TAKEN};
use self::listing::{Entry, Kind, Manifest, Tree, at, shown};
use self::plan::{Plan, Rules, plan};
use crate::context::Context;
use crate::cp::progress::Shown;
use crate::cp::{Place, place};
use crate::failure::{Failure, Result};
use crate::image::progress::bytes;
use crate::output::harmless;
use crate::signals::Signals;

/// Mode bits of a file.
const MODE_ALL: u32 = 0o7777;
/// Bytes of a file that are read at once.
const PIECE_BYTES: usize = 256 * 1024;
/// Number of failures that are shown.
const FAILURES_SHOWN: usize = 10;

/// Synchronize a directory to or from a sandbox, sending only the differences
#[derive(Debug, Args)]
#[command(
    after_help = "One of SRC and DST is a directory in a sandbox, written ID:/path; the other is a local directory.\n\
    The contents of SRC are copied into DST, which is created if it is missing. Files with the same size\n\
    and time count as equal. Files that exist only in DST are kept, unless --delete is given.\n\n\
    tidebox sync . sb-…:/workspace/project\n\
    tidebox sync --delete sb-…:/workspace/results results"
)]
pub struct SyncArgs {
    /// Compare the contents of files with the same size, regardless of their times
    #[arg(short, long)]
    checksum: bool,
    /// Remove files and directories from DST that SRC does not have
    #[arg(long)]
    delete: bool,
    /// Print the changes without making them
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Source
    #[arg(value_name = "SRC")]
    source: OsString,
    /// Destination
    #[arg(value_name = "DST")]
    destination: OsString,
}

pub async fn run(context: &Context, args: &SyncArgs) -> Result {
    let mut signals = Signals::listen()?;
    let sync = async {
        match (place(&args.source)?, place(&args.destination)?) {
            (Place::Local(local), Place::Remote { id, path }) => upload(context, args, &local, &id, &path).await,
            (Place::Remote { id, path }, Place::Local(local)) => download(context, args, &id, &path, &local).await,
            (Place::Remote { .. }, Place::Remote { .. }) => {
                Err(Failure::usage("both directories are in boxes; synchronize via a local directory"))
            }
            _ => Err(Failure::usage("write one of SRC and DST as ID:/path, and the other as a local directory")),
        }
    };
    let done = tokio::select! {
        // What is not whole has no name of its own yet, and the next run finishes it.
        exit = signals.next() => return Err(Failure::silent(exit)),
        done = sync => done?,
    };
    report(context, &done)
}

async fn upload(context: &Context, args: &SyncArgs, local: &Path, id: &str, path: &str) -> Result<Done> {
    let client = &context.client;
    let root = steps::open_root(local).map_err(Failure::at(local))?;
    let (source, target) = tokio::join!(listed(&root, local), described(client, id, path, args.checksum));
    let source = source?;
    let target = match target {
        // The directory is made; a sandbox is not.
        Err(Described::Refused(client::Error::Api { code, .. })) if code == "not_found" => {
            client.sandbox(id).await?;
            Tree::default()
        }
        target => target?,
    };
    let rules = Rules { delete: args.delete, mode: MODE_ALL };
    let Differs { source, plan } = compared(&root, source, target, rules, args.checksum, true).await?;
    if args.dry_run {
        return Ok(tried(&source, &plan));
    }
    let mut shown = Shown::new(context.output);
    let counting = Arc::new(Mutex::new(shown.counting()));
    let done = send::send(client, (root, Arc::clone(&source)), (id, path), &plan, &counting).await;
    shown.clear();
    Ok(with(done?, &source, &plan))
}

async fn download(context: &Context, args: &SyncArgs, id: &str, path: &str, local: &Path) -> Result<Done> {
    let client = &context.client;
    let source = described(client, id, path, args.checksum).await?;
    let is_new = !local.exists();
    if is_new && args.dry_run {
        let rules = Rules { delete: false, mode: MODE_TAKEN };
        let plan = plan(&source, &Tree::default(), &rules, None).map_err(Failure::at(local))?;
        return Ok(tried(&source, &plan));
    }
    if is_new {
        std::fs::create_dir(local).map_err(Failure::at(local))?;
    }
    let root = steps::open_root(local).map_err(Failure::at(local))?;
    let mut target = listed(&root, local).await?;
    if !target.temporary.is_empty() && !args.dry_run {
        let mut below = Below::new(root.try_clone().map_err(Failure::at(local))?);
        for path in &target.temporary {
            below.remove(path, false).map_err(Failure::at(local))?;
        }
        target = listed(&root, local).await?;
    }
    let rules = Rules { delete: args.delete, mode: MODE_TAKEN };
    let Differs { source, plan } = compared(&root, source, target, rules, args.checksum, false).await?;
    if args.dry_run {
        return Ok(tried(&source, &plan));
    }
    let mut shown = Shown::new(context.output);
    let counting = Mutex::new(shown.counting());
    let plan = Arc::new(plan);
    let done = receive::receive(client, (id, path), (root, Arc::clone(&source)), Arc::clone(&plan), &counting).await;
    shown.clear();
    Ok(with(done?, &source, &plan))
}

/// Lists the directory here.
async fn listed(root: &OwnedFd, local: &Path) -> Result<Tree> {
    let root = root.try_clone().map_err(Failure::at(local))?;
    let listed = tokio::task::spawn_blocking(move || listing::local(&root)).await;
    listed.map_err(|error| Failure::new("io_error", error.to_string()))?.map_err(Failure::at(local))
}

/// Fault of the description of a box's directory.
enum Described {
    Refused(client::Error),
    /// With the reason why it is not to be believed.
    Bad(String),
}

impl From<Described> for Failure {
    fn from(fault: Described) -> Failure {
        match fault {
            Described::Refused(error) => error.into(),
            Described::Bad(reason) => Failure::new(
                "protocol_error",
                format!("the manifest of the sandbox's directory cannot be used: {reason}"),
            ),
        }
    }
}

impl From<client::Error> for Described {
    fn from(error: client::Error) -> Self {
        Described::Refused(error)
    }
}

async fn described(client: &Client, id: &str, path: &str, checksum: bool) -> std::result::Result<Tree, Described> {
    let mut content: FileStream = client.read_manifest(id, path, checksum).await?;
    let mut manifest = Manifest::default();
    while let Some(bytes) = content.next().await? {
        manifest.take(&bytes).map_err(Described::Bad)?;
    }
    manifest.end().map_err(Described::Bad)
}

/// Outcome of a comparison.
struct Differs {
    source: Arc<Tree>,
    plan: Plan,
}

/// Compares two trees on a thread of its own, where contents may be read.
async fn compared(
    root: &OwnedFd,
    source: Tree,
    target: Tree,
    rules: Rules,
    checksum: bool,
    source_is_local: bool,
) -> Result<Differs> {
    let root = root.try_clone().map_err(|error| Failure::io("the directory", &error))?;
    let compared = tokio::task::spawn_blocking(move || {
        let plan = if checksum {
            plan(
                &source,
                &target,
                &rules,
                Some(&mut |path, entry, there| has_digest(&root, path, if source_is_local { there } else { entry })),
            )?
        } else {
            plan(&source, &target, &rules, None)?
        };
        Ok::<_, std::io::Error>(Differs { source: Arc::new(source), plan })
    });
    compared
        .await
        .map_err(|error| Failure::new("io_error", error.to_string()))?
        .map_err(|error| Failure::new("io_error", error.to_string()))
}

/// Returns whether a file here has the digest of `remote`; false if the sandbox reports no digest.
fn has_digest(root: &OwnedFd, path: &[u8], remote: &Entry) -> std::io::Result<bool> {
    let Kind::File { sha256: Some(expected), .. } = &remote.kind else { return Ok(false) };
    Ok(sha256(root, path).map_err(at(path))? == *expected)
}

/// Returns the digest of a file here.
fn sha256(root: &OwnedFd, path: &[u8]) -> std::io::Result<String> {
    let (file, _) = listing::open_file(root, path)?;
    let mut file = File::from(file);
    let mut hash = Sha256::new();
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn with(done: Done, source: &Tree, plan: &Plan) -> Done {
    let Plan { equal, extra, left_out, .. } = *plan;
    Done { equal, extra, left_out, unreadable: source.unreadable, ..done }
}

/// Returns the account of a dry run.
fn tried(source: &Tree, plan: &Plan) -> Done {
    let made: std::collections::HashSet<&Vec<u8>> = plan.directories.iter().collect();
    let settle: Vec<&Vec<u8>> = plan.settle.iter().filter(|path| !made.contains(path)).collect();
    let mut changes: Vec<Change> = plan.remove.iter().map(|(path, _)| change("remove", path)).collect();
    changes.extend(plan.directories.iter().map(|path| change("make", path)));
    changes.extend(plan.send.iter().map(|path| change("send", path)));
    changes.extend(plan.attributes.iter().map(|path| change("set", path)));
    changes.extend(settle.iter().map(|path| change("set", path)));
    let done = Done {
        sent: (plan.send.len() + plan.directories.len()) as u64,
        bytes: plan.send.iter().map(|path| content_bytes(source, path)).sum(),
        removed: plan.remove.len() as u64,
        changed: (plan.attributes.len() + settle.len()) as u64,
        changes,
        dry_run: true,
        ..Done::default()
    };
    with(done, source, plan)
}

/// Returns the bytes that are sent for a path: those of the file, at the first of its names.
fn content_bytes(source: &Tree, path: &[u8]) -> u64 {
    match source.entries.get(path).map(|entry| &entry.kind) {
        Some(Kind::File { size, first, .. }) if first.as_ref().is_none_or(|first| first == path) => *size,
        _ => 0,
    }
}

fn change(action: &'static str, path: &[u8]) -> Change {
    Change { action, path: shown(path) }
}

fn report(context: &Context, done: &Done) -> Result {
    context.output.print(done, text)?;
    for failure in done.failures.iter().take(FAILURES_SHOWN) {
        context.output.remark(&harmless(failure));
    }
    let mut faults = Vec::new();
    if done.unreadable > 0 {
        faults.push(format!("{} cannot be read, so nothing was removed", done.unreadable));
    }
    if done.missing > 0 {
        faults.push(format!("{} disappeared or could not be read", done.missing));
    }
    if done.failed > 0 {
        faults.push(format!("{} could not be changed", done.failed));
    }
    if faults.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new("incomplete", format!("the directories still differ: of the files, {}", faults.join(", "))))
}

fn text(done: &Done) -> String {
    let mut text: String =
        done.changes.iter().map(|change| format!("{} {}\n", change.action, harmless(&change.path))).collect();
    let mut did = Vec::new();
    if done.sent > 0 {
        did.push(format!("send {} ({})", done.sent, bytes(done.bytes)));
    }
    if done.removed > 0 {
        did.push(format!("remove {}", done.removed));
    }
    if done.changed > 0 {
        did.push(format!("set mode or time of {}", done.changed));
    }
    if did.is_empty() {
        did.push("nothing to send".to_owned());
    }
    text.push_str(&format!("{}; {} are equal", did.join(", "), done.equal));
    if done.extra > 0 {
        text.push_str(&format!("; {} only in DST stay", done.extra));
    }
    if done.left_out > 0 {
        text.push_str(&format!("; skipped {} devices, FIFOs and sockets", done.left_out));
    }
    text
}
