//! State of the agent.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use guest_protocol::Boot;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};
use tokio::sync::Semaphore;

use crate::budget::Budget;
use crate::console::Console;
use crate::deadline::Deadline;
use crate::diverted::DivertedSockets;
use crate::egress::Egress;
use crate::exec::background::table::Background;
use crate::exec::control::Commands;
use crate::exec::reapers::Reapers;
use crate::failure::Result;
use crate::files::long_work::LONG_WORK_MAX;
use crate::files::watch::WATCHES_MAX;
use crate::files::watchers::Watchers;
use crate::known_ports::KnownPorts;
use crate::launch::machine::Kernel;
use crate::listeners::Listeners;
use crate::memory::Activity;
use crate::pids;
use crate::ptrace::TracerHandle;
use crate::size::{self, Size};
use crate::sockets::Sockets;
use crate::trust::Trust;

/// Maximum number of commands at once, including those whose children still write to the console.
const EXECS_MAX: usize = 1024;
/// Descriptors of a command: up to four pipes, or three copies of a terminal and a pipe. Their
/// other ends are open for a moment.
const DESCRIPTORS_PER_EXEC: usize = 4;
/// Descriptors for connections, files that are being transferred, `/proc`, and the runtime.
const DESCRIPTORS_RESERVED: usize = 256;
/// Maximum number of file operations at once. A stalled reader keeps its place until the server
/// cancels the operation.
pub(crate) const FILE_OPERATIONS_MAX: usize = 128;

/// Maximum number of connections to the box's ports at once.
const CONNECTIONS_MAX: usize = 1024;

/// Descriptors by which the agent sees the box beside its processes.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Count of the kills by the memory limit.
    pub(crate) oom_events: Option<OwnedFd>,
    /// Socket of netlink that lists the sockets of the box.
    pub(crate) sockets: Option<OwnedFd>,
    /// Sockets that the box's connections are led to.
    pub(crate) diverted: Option<DivertedSockets>,
    /// Kernel of the box, where it is a machine.
    pub(crate) kernel: Option<Kernel>,
    /// Files that show the size of the box.
    pub(crate) size: Option<Size>,
    /// Count of the processes that the limit refused.
    pub(crate) pids_events: Option<OwnedFd>,
}

/// State that all parts of the agent share. It belongs to the first thread, so nothing is locked.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) boot: Boot,
    pub(crate) pid: i32,
    pub(crate) reapers: Reapers,
    pub(crate) commands: Commands,
    pub(crate) background: Background,
    pub(crate) console: Console,
    pub(crate) oom_events: Option<OwnedFd>,
    pub(crate) kernel: Option<Kernel>,
    pub(crate) size: Option<Size>,
    pub(crate) pids_events: Option<OwnedFd>,
    /// True once the start is complete; see [`Agent::settle`].
    pub(crate) is_settled: Cell<bool>,
    /// Listener of the system call filter, on which calls wait for their turn, until the agent settles.
    pub(crate) turns: RefCell<Option<OwnedFd>>,
    pub(crate) dev_null: OwnedFd,
    /// Connection to the tracer, if the box is made by one.
    pub(crate) ties: Option<TracerHandle>,
    /// Limit on descriptors that commands get: the one that the agent was started with.
    pub(crate) descriptors: Rlimit,
    pub(crate) deadline: Deadline,
    pub(crate) activity: Rc<Activity>,
    pub(crate) budget: Rc<Budget>,
    pub(crate) execs: Arc<Semaphore>,
    pub(crate) file_operations: Arc<Semaphore>,
    /// Turns of file work on threads of its own.
    pub(crate) long_work: Arc<Semaphore>,
    /// Watches of files, without watchers.
    pub(crate) watches: Arc<Semaphore>,
    /// Watchers, which keep changes of files.
    pub(crate) watchers: Watchers,
    /// Turn of work that holds whole files in memory.
    pub(crate) whole_files: Arc<Semaphore>,
    pub(crate) connections: Arc<Semaphore>,
    pub(crate) egress: Egress,
    pub(crate) trust: Trust,
    pub(crate) listeners: Rc<Listeners>,
    pub(crate) sockets: Sockets,
    pub(crate) known_ports: KnownPorts,
}

impl Agent {
    /// Creates the state at the start, and raises the agent's own limit on descriptors.
    pub(crate) fn new(
        boot: Boot,
        seen: Seen,
        ties: Option<TracerHandle>,
        turns: Option<OwnedFd>,
    ) -> std::io::Result<Agent> {
        let Seen { oom_events, sockets, diverted, kernel, size, pids_events } = seen;
        let descriptors = raise_descriptors();
        let limit = getrlimit(Resource::Nofile)
            .current
            .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let execs = (limit.saturating_sub(DESCRIPTORS_RESERVED) / DESCRIPTORS_PER_EXEC).clamp(1, EXECS_MAX);
        Ok(Agent {
            pid: getpid().as_raw_nonzero().get(),
            reapers: Reapers::default(),
            commands: Commands::default(),
            // The files of a traced box are the host's for the agent.
            background: Background::new(boot.memory_mb, boot.traced.is_none()),
            console: Console::default(),
            oom_events,
            kernel,
            size,
            pids_events,
            is_settled: Cell::new(false),
            turns: RefCell::new(turns),
            ties,
            dev_null: rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?,
            descriptors,
            deadline: Deadline::new(boot.deadline_ms)?,
            activity: Rc::default(),
            budget: Budget::of(boot.memory_mb),
            execs: Arc::new(Semaphore::new(execs)),
            file_operations: Arc::new(Semaphore::new(FILE_OPERATIONS_MAX)),
            long_work: Arc::new(Semaphore::new(LONG_WORK_MAX)),
            watches: Arc::new(Semaphore::new(WATCHES_MAX)),
            watchers: Watchers::default(),
            whole_files: Arc::new(Semaphore::new(1)),
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            egress: Egress::new(boot.network, diverted),
            trust: Trust::default(),
            listeners: Rc::default(),
            sockets: Sockets::new(sockets),
            known_ports: KnownPorts::default(),
            boot,
        })
    }
}

impl Agent {
    /// Has commands that start from now on trust an authority.
    ///
    /// # Errors
    /// Internal if the box cannot hold its files.
    pub(crate) fn trust(&self, certificate: &str) -> Result<()> {
        // The root of a box that is traced has files of the host.
        self.trust.install(certificate, self.boot.traced.is_none())
    }

    /// Returns the variables that each process gets unless they are set otherwise.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        // A tracer holds the limit of a traced box.
        let Boot { traced, memory_mb, soft_memory_mb, .. } = &self.boot;
        let told = size::variables(if traced.is_some() { *memory_mb } else { *soft_memory_mb });
        self.egress.variables().iter().cloned().chain(self.trust.variables()).chain(told).collect()
    }

    /// Returns how often the limit refused a process or a thread of the box.
    pub(crate) fn pids_refused(&self) -> u64 {
        let of_machine = self.kernel.as_ref().map(|kernel| kernel.group.pids_events());
        pids::refusals(of_machine.or(self.pids_events.as_ref()))
    }

    /// Returns whether the agent itself listens at this address.
    pub(crate) fn is_own(&self, address: IpAddr, port: u16) -> bool {
        self.egress.is_own(address, port) || self.listeners.is_own(address, port)
    }
}

/// Raises the agent's limit on descriptors to its maximum and returns the previous limit.
fn raise_descriptors() -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    // On failure, fewer commands can run at once.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
    before
}
