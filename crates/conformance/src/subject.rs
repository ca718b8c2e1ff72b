//! Tools for the cases.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use domain::{Resources, SandboxId};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use providers::{
    ByteStream, Chain, Command, Error, ExitStatus, Guest, LimitKind, OutputEvent, Pauses, Provider, Result, Slots,
    SnapshotId, Snapshots, Spec,
};

use crate::coverage::Coverage;

/// Deadline of commands that should end by themselves. It bounds what hangs, and measures nothing.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The most retries of a stop while the backend does not answer in time.
const STOPS_MAX: usize = 3;
/// The longest wait for a condition. It bounds what hangs, and measures nothing.
pub(super) const EVENTUALLY: Duration = Duration::from_secs(60);

/// Features of a provider that some cases need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Boxes run real programs: a POSIX shell and the usual commands.
    Processes,
    /// Commands can run as another user than the box's own.
    Users,
    /// An image that the provider does not have is known; see [`Subject::unknown_image`].
    Images,
    /// Boxes can be made of images that the tests build; see [`Subject::images`].
    RealImages,
    /// A second instance finds the boxes of the first; see [`Subject::reopen`].
    Reopen,
    /// The first process of a box can be ended from outside; see [`Subject::kill`].
    Kill,
    /// A box ends by itself at its deadline.
    Deadlines,
    /// Users can share a box; see [`Provider::slots`].
    Slots,
    /// Connections out of a box are handed over; see [`Guest::egress`].
    Egress,
    /// Changes of a box's ports are reported; see [`Guest::watch_ports`].
    PortWatch,
    /// Ports of a box can be listened on from outside; see [`Guest::listen`].
    Listen,
    /// A command's stdin is passed on as it comes, however much comes.
    Stdin,
    /// A signal can stop a process.
    Stops,
    /// A command can be controlled while it runs; see [`Guest::exec_interactive`].
    Control,
    /// A command can have a terminal.
    Terminals,
    /// Commands can run in the background; see [`Guest::start_process`].
    Background,
    /// Such a command can wait for its readers.
    Lossless,
    /// Such a command can wait for each of its readers, and keeps what its caller noted.
    Notes,
    /// The end of such a command names the signal, and its process id then.
    ExitDetails,
    /// The image of a box has Bash.
    Bash,
    /// The users of a box are known, and files are worked on as one of them.
    Accounts,
    /// Changes of files can be kept until they are taken; see [`Guest::add_watcher`].
    Watchers,
    /// Paths can be as long as the kernel takes them, and directories be nested deeper.
    Depth,
    /// The terminals of a box are bounded.
    OwnTerminals,
    /// The devices of a box are files of its own.
    OwnDevices,
    /// A box sees control groups from its own group on.
    OwnGroups,
    /// The kernel of a box is that of the host, which acts on limits of processes.
    HostKernel,
    /// Boxes lie on this host's disk; see [`Provider::disk`].
    Disk,
    /// The provider bounds the disk of a box; see [`providers::Facts::limits`].
    DiskLimit,
    /// Files that processes of a box hold open can be seen from outside.
    HeldFiles,
    /// Boxes can be paused; see [`Provider::pauses`].
    Pauses,
    /// Memory of paused boxes can be handed back; see [`providers::Pauses::can_reclaim`].
    Reclaim,
    /// Paused boxes can be written to disk; see [`providers::Pauses::can_suspend`].
    Suspend,
    /// The state of boxes can be kept; see [`Provider::snapshots`].
    Snapshots,
    /// Snapshots have the files of boxes alone.
    FileSnapshots,
    /// A box that is made from a snapshot of files can have a disk limit.
    BoundedCopies,
    /// Snapshots have the memory of boxes, too; see [`providers::Snapshots::has_memory`].
    LiveSnapshots,
    /// A request to a paused box waits, and does not wake it.
    Sleepers,
    /// The output of background processes is shown; see [`Guest::console`].
    Console,
    /// Content of files is searched; see [`Guest::search`].
    Search,
    /// Directories are packed, described and watched; see [`Guest::archive`].
    Archives,
    /// Processor time and number of processes of a box are measured.
    Measures,
    /// The output of a background process is kept in its box, where a later instance finds it.
    KeptOutput,
    /// The text of a link is told, and not the file that it leads to.
    LinkTexts,
    /// The process that listens on a port is told.
    PortOwners,
    /// Permissions of files can be set.
    Modes,
    /// The bits of a mode beyond the permissions are told.
    SpecialBits,
    /// All that a command has started ends with it when its caller leaves, in whatever session it is.
    Sessions,
    /// The suite brings a program for the processors of the boxes.
    OwnProgram,
}

type Reopen = Arc<dyn Fn() -> BoxFuture<'static, Arc<dyn Provider>> + Send + Sync>;
type Kill = Arc<dyn Fn(SandboxId) -> BoxFuture<'static, ()> + Send + Sync>;

/// A provider under test, with the suite's means to act on it. Clones share it.
#[derive(Clone)]
pub struct Subject {
    provider: Arc<dyn Provider>,
    spec: Spec,
    lacks: Vec<(Need, &'static str)>,
    unknown_image: Option<String>,
    images: Option<(String, String)>,
    reopen: Option<Reopen>,
    kill: Option<Kill>,
    small_memory_mb: u32,
    suite: &'static str,
    coverage: Coverage,
    made: Arc<Mutex<Vec<SandboxId>>>,
    taken: Arc<Mutex<Vec<SnapshotId>>>,
    next: Arc<AtomicU32>,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("provider", &self.provider).finish_non_exhaustive()
    }
}

impl Subject {
    /// Makes a subject for a provider that holds no box. `spec` is that of most boxes.
    pub fn new(provider: Arc<dyn Provider>, spec: Spec) -> Subject {
        Subject {
            provider,
            spec,
            lacks: Vec::new(),
            unknown_image: None,
            images: None,
            reopen: None,
            kill: None,
            small_memory_mb: 64,
            suite: "",
            coverage: Coverage::Whole,
            made: Arc::default(),
            taken: Arc::default(),
            next: Arc::default(),
        }
    }

    /// Declares that the provider lacks a feature by its nature, and why.
    #[must_use]
    pub fn without(mut self, need: Need, reason: &'static str) -> Subject {
        self.lacks.push((need, reason));
        self
    }

    /// Sets the name of an image that the provider does not have.
    #[must_use]
    pub fn unknown_image(mut self, image: &str) -> Subject {
        self.unknown_image = Some(image.to_owned());
        self
    }

    /// Sets the names of two images that the provider has: `full` and `scratch` of the crate
    /// `fixtures`, module `suite`.
    #[must_use]
    pub fn images(mut self, full: &str, scratch: &str) -> Subject {
        self.images = Some((full.to_owned(), scratch.to_owned()));
        self
    }

    /// Sets the function that opens a second instance over the same boxes, as a new process
    /// would.
    #[must_use]
    pub fn reopen(
        mut self,
        reopen: impl Fn() -> BoxFuture<'static, Arc<dyn Provider>> + Send + Sync + 'static,
    ) -> Subject {
        self.reopen = Some(Arc::new(reopen));
        self
    }

    /// Sets the function that ends the first process of a box behind the provider's back.
    #[must_use]
    pub fn kill(mut self, kill: impl Fn(SandboxId) -> BoxFuture<'static, ()> + Send + Sync + 'static) -> Subject {
        self.kill = Some(Arc::new(kill));
        self
    }

    /// Sets the memory of a small box, in MiB: 64 unless what the runtime itself needs counts for the box.
    #[must_use]
    pub fn with_small_memory_mb(mut self, mb: u32) -> Subject {
        self.small_memory_mb = mb;
        self
    }

    /// Names this run of the suite, and sets the share of it that runs unless the variable `TIDEBOX_SUITES` has
    /// the name.
    #[must_use]
    pub fn covered_by(mut self, suite: &'static str, coverage: Coverage) -> Subject {
        self.suite = suite;
        self.coverage = coverage;
        self
    }

    /// Returns the share of the suite that runs.
    pub(super) fn coverage(&self) -> Coverage {
        self.coverage.for_suite(self.suite)
    }

    pub(super) fn suite(&self) -> &'static str {
        self.suite
    }

    #[must_use]
    pub fn provider(&self) -> &dyn Provider {
        &*self.provider
    }

    /// Returns why cases with this need are skipped, or `None` if they are not.
    pub(super) fn lacks(&self, need: Need) -> Option<String> {
        let is_missing = match need {
            Need::Images => self.unknown_image.is_none(),
            Need::RealImages => self.images.is_none(),
            Need::Reopen => self.reopen.is_none(),
            Need::Kill => self.kill.is_none(),
            Need::Slots => self.provider.slots().is_none(),
            Need::Pauses => self.provider.pauses().is_none(),
            Need::Reclaim => !self.provider.pauses().is_some_and(Pauses::can_reclaim),
            Need::Suspend => !self.provider.pauses().is_some_and(Pauses::can_suspend),
            Need::Snapshots => self.provider.snapshots().is_none(),
            Need::FileSnapshots => self.provider.snapshots().is_none_or(Snapshots::has_memory),
            Need::LiveSnapshots => !self.provider.snapshots().is_some_and(Snapshots::has_memory),
            Need::DiskLimit => !self.provider.facts().limits.contains(&("disk_mb", LimitKind::Hard)),
            Need::Disk | Need::HeldFiles => self.provider.disk().is_none(),
            Need::OwnProgram => cfg!(not(target_arch = "x86_64")),
            Need::Processes
            | Need::Users
            | Need::Egress
            | Need::PortWatch
            | Need::Listen
            | Need::Deadlines
            | Need::Stdin
            | Need::Stops
            | Need::Control
            | Need::Terminals
            | Need::Sleepers
            | Need::Console
            | Need::Search
            | Need::Archives
            | Need::Measures
            | Need::KeptOutput
            | Need::LinkTexts
            | Need::PortOwners
            | Need::Modes
            | Need::SpecialBits
            | Need::Sessions
            | Need::Background
            | Need::Lossless
            | Need::Notes
            | Need::ExitDetails
            | Need::Bash
            | Need::Accounts
            | Need::Watchers
            | Need::Depth
            | Need::BoundedCopies
            | Need::OwnTerminals
            | Need::OwnDevices
            | Need::OwnGroups
            | Need::HostKernel => false,
        };
        let told = self.lacks.iter().find(|(lacking, _)| *lacking == need).map(|(_, reason)| (*reason).to_owned());
        told.or_else(|| is_missing.then(|| format!("the subject has no way for {need:?}")))
    }

    pub(super) fn spec(&self) -> Spec {
        self.spec.clone()
    }

    pub(super) fn small_memory_mb(&self) -> u32 {
        self.small_memory_mb
    }

    pub(super) fn missing_image(&self) -> Spec {
        Spec { image: self.unknown_image.clone().expect("the need was checked"), ..self.spec() }
    }

    /// Returns the spec of a box whose image has every setting.
    pub(super) fn full_image(&self) -> Spec {
        let (full, _) = self.images.clone().expect("the need was checked");
        Spec { image: full, ..self.spec() }
    }

    /// Returns the spec of a box whose image has next to nothing in it.
    pub(super) fn scratch_image(&self) -> Spec {
        let (_, scratch) = self.images.clone().expect("the need was checked");
        Spec { image: scratch, ..self.spec() }
    }

    pub(super) async fn second(&self) -> Arc<dyn Provider> {
        (self.reopen.as_ref().expect("the need was checked"))().await
    }

    pub(super) async fn kill_first(&self, id: &SandboxId) {
        (self.kill.as_ref().expect("the need was checked"))(id.clone()).await;
    }

    /// Returns a new id. Its box is stopped after the case.
    pub(super) fn id(&self) -> SandboxId {
        let id = self.slot_id();
        self.made.lock().push(id.clone());
        id
    }

    /// Returns a new id for a slot, which is removed with its box.
    pub(super) fn slot_id(&self) -> SandboxId {
        SandboxId::from_entropy(self.entropy())
    }

    fn entropy(&self) -> [u8; 10] {
        let mut entropy = [0; 10];
        entropy[..4].copy_from_slice(&std::process::id().to_be_bytes());
        entropy[6..].copy_from_slice(&self.next.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        entropy
    }

    /// Starts a box with the usual spec.
    pub(super) async fn start(&self) -> Inside {
        self.start_as(&self.spec).await
    }

    /// Starts a box with this spec.
    pub(super) async fn start_as(&self, spec: &Spec) -> Inside {
        let id = self.id();
        self.provider
            .start(&id, spec)
            .await
            .unwrap_or_else(|error| panic!("a box starts: {}", providers::Chain(&error)));
        self.dial(id).await
    }

    /// Opens the inside of a running box.
    pub(super) async fn dial(&self, id: SandboxId) -> Inside {
        let guest = self.provider.guest(&id).await.expect("a box that runs has an inside");
        Inside { id, guest }
    }

    pub(super) fn slots(&self) -> &dyn Slots {
        self.provider.slots().expect("the need was checked")
    }

    pub(super) fn pauses(&self) -> &dyn Pauses {
        self.provider.pauses().expect("the need was checked")
    }

    pub(super) fn snapshots(&self) -> &dyn Snapshots {
        self.provider.snapshots().expect("the need was checked")
    }

    /// Returns a new id for a snapshot, which is removed after the case.
    pub(super) fn snapshot_id(&self) -> SnapshotId {
        let id = SnapshotId::from_entropy(self.entropy());
        self.taken.lock().push(id.clone());
        id
    }

    /// Returns the spec of a box with room for eight slots of the usual size.
    pub(super) fn roomy(&self) -> Spec {
        const SLOTS: u32 = 8;
        let one = self.spec.resources;
        let times = |value: u32| value.saturating_mul(SLOTS);
        let resources =
            Resources { memory_mb: times(one.memory_mb), vcpus: times(one.vcpus), disk_mb: 0, pids: times(one.pids) };
        Spec { resources, ..self.spec() }
    }

    /// Starts a box that holds slots.
    pub(super) async fn host(&self) -> SandboxId {
        let id = self.id();
        self.slots().start_host(&id, &self.roomy()).await.expect("a box for slots starts");
        id
    }

    /// Adds a slot with the usual spec.
    pub(super) async fn slot(&self, host: &SandboxId) -> Inside {
        let id = self.slot_id();
        self.slots().add(host, &id, &self.spec).await.expect("a slot is added");
        self.dial_slot(host, id).await
    }

    /// Opens the inside of a slot.
    pub(super) async fn dial_slot(&self, host: &SandboxId, id: SandboxId) -> Inside {
        let guest = self.slots().slot_guest(host, &id).await.expect("a slot has an inside");
        Inside { id, guest }
    }

    /// Stops every box of a case that has ended, and removes its snapshots. Retries while the backend is unavailable, as
    /// [`Provider::stop`] requires.
    pub(super) async fn stop_all(&self) -> Result<(), String> {
        let made = std::mem::take(&mut *self.made.lock());
        for id in made {
            let mut stopped = self.provider.stop(&id).await;
            for _ in 0..STOPS_MAX {
                if !matches!(stopped, Err(Error::Unavailable(_))) {
                    break;
                }
                stopped = self.provider.stop(&id).await;
            }
            stopped.map_err(|error| format!("{id} cannot be stopped: {}", Chain(&error)))?;
        }
        let taken = std::mem::take(&mut *self.taken.lock());
        for id in taken {
            let removed = self.snapshots().remove(&id).await;
            removed.map_err(|error| format!("{id} cannot be removed: {}", Chain(&error)))?;
        }
        Ok(())
    }
}

/// Output and exit of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ran {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) exit: ExitStatus,
}

impl Ran {
    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("the output is text")
    }

    pub(super) fn code(&self) -> i32 {
        self.exit.code
    }
}

/// A box and its inside.
#[derive(Clone)]
pub(super) struct Inside {
    pub(super) id: SandboxId,
    pub(super) guest: Arc<dyn Guest>,
}

impl Inside {
    /// Runs a command line to its end.
    pub(super) async fn sh(&self, script: &str) -> Ran {
        self.run(sh(script)).await
    }

    /// Runs a command to its end.
    pub(super) async fn run(&self, command: Command) -> Ran {
        let what = format!("{command:?}");
        let mut events = self.guest.exec(command).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(event) = events.next().await {
            match event.unwrap_or_else(|error| panic!("{what}: {error}")) {
                OutputEvent::Stdout(bytes) => {
                    assert!(!bytes.is_empty(), "an empty piece of output");
                    stdout.extend_from_slice(&bytes);
                }
                OutputEvent::Stderr(bytes) => {
                    assert!(!bytes.is_empty(), "an empty piece of output");
                    stderr.extend_from_slice(&bytes);
                }
                OutputEvent::Exit(exit) => {
                    assert!(events.next().await.is_none(), "something follows the exit");
                    return Ran { stdout, stderr, exit };
                }
            }
        }
        panic!("{what}: the output ended without an exit");
    }

    pub(super) async fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let written = self.guest.write_file(path, None, pieces(content.as_ref())).await;
        written.unwrap_or_else(|error| panic!("write {path}: {error}"));
    }

    pub(super) async fn read(&self, path: &str) -> Vec<u8> {
        self.read_part(path, 0, None).await
    }

    pub(super) async fn read_part(&self, path: &str, offset: u64, length: Option<u64>) -> Vec<u8> {
        let opened = self.guest.read_file(path, offset, length).await;
        let mut bytes = opened.unwrap_or_else(|error| panic!("read {path}: {error}")).bytes;
        let mut content = Vec::new();
        while let Some(piece) = bytes.next().await {
            content.extend_from_slice(&piece.unwrap_or_else(|error| panic!("read {path}: {error}")));
        }
        content
    }

    pub(super) async fn exists(&self, path: &str) -> bool {
        match self.guest.stat(path).await {
            Ok(_) => true,
            Err(providers::Error::NotFound(_)) => false,
            Err(error) => panic!("stat {path}: {error}"),
        }
    }
}

/// Makes the command for a shell script.
pub(super) fn sh(script: &str) -> Command {
    argv(&["/bin/sh", "-c", script])
}

/// Makes the command for a program and its arguments.
pub(super) fn argv(argv: &[&str]) -> Command {
    Command {
        argv: argv.iter().map(|&arg| arg.to_owned()).collect(),
        env: BTreeMap::new(),
        workdir: None,
        user: None,
        timeout: TIMEOUT,
        stdin: None,
        terminal: None,
    }
}

/// Returns the bytes as a stream of uneven pieces.
pub(super) fn pieces(bytes: &[u8]) -> ByteStream {
    let pieces: Vec<Result<Bytes>> = bytes.chunks(50_001).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    stream::iter(pieces).boxed()
}

/// Returns pseudorandom bytes, in which a wrong offset shows.
pub(super) fn noise(len: usize) -> Vec<u8> {
    let mut state: u32 = 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// Waits until `condition` holds.
pub(super) async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(EVENTUALLY, wait).await.unwrap_or_else(|_| panic!("never came true: {what}"));
}

/// Waits for `work`, which must be quick.
pub(super) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(EVENTUALLY, work).await.unwrap_or_else(|_| panic!("took too long: {what}"))
}
