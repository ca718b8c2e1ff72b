//! A machine from the start of its process to the first answer of its agent.

use std::io;
use std::time::Duration;

use firecracker::requests::{
    Action, BootSource, CreateSnapshot, Drive, DriveFile, Entropy, LoadSnapshot, MachineConfig, Memory, RateLimiter,
    State, Vsock,
};
use firecracker::{Api, vsock};
use guest_protocol::{MACHINE_AGENT_PORT, MACHINE_BOOT_PORT, MACHINE_LINE_BYTES_MAX, Machine, MachineReport, Restored};
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::agent_stream::{AgentStream, goes_on};
use super::work_dir::{API, CHANGES, IMAGE, INITRD, KERNEL, MEMORY, NEW_MEMORY, NEW_STATE, STATE, VSOCK, WorkDir};
use crate::agent::{AgentGuest, nothing_listens, unreached};
use crate::local::process::Process;
use crate::{Error, Result, disk};

/// Name of the phase in which a machine is made from files, in place of that in which it boots.
pub(super) const RESTORE_PHASE: &str = "restore";
/// Limit for the answer of a guest to a connection. One that boots has not seen it yet.
const CONNECT_WAIT: Duration = Duration::from_secs(1);
/// Limit for the box to be made in a machine that has booted.
const SETTLE_WAIT: Duration = Duration::from_secs(60);
/// Limit for an agent that was asked before to accept another connection.
const DIAL_WAIT: Duration = Duration::from_secs(10);
/// Limit for the processes of a box to stop. The agent has a shorter one of its own.
const FREEZE_WAIT: Duration = Duration::from_secs(30);
/// Limit for the agent of a machine that goes on to have the processes do so: in emulation it takes seconds.
const THAW_WAIT: Duration = Duration::from_secs(60);
/// Limit for it where the processes most likely never stopped.
const THAW_WAIT_UNSURE: Duration = Duration::from_secs(2);
/// Pause between two attempts.
const THAW_PAUSE: Duration = Duration::from_millis(20);
/// Pause between two looks at a process or guest that is starting.
const LOOK: Duration = Duration::from_millis(2);
/// Address of a guest on its vsock. Each machine has a vsock of its own.
const GUEST_CID: u32 = 3;
/// Command line of the guest's kernel: its errors go to the console; a failure of the kernel, or the end
/// of its first process, ends the machine at once; it looks for no keyboard. What follows the dashes is for
/// the first process, which also gets each word before them that a kernel does not know, unless there is a
/// `.` or `=` in it.
pub(super) const BOOT_ARGUMENTS: &str = "console=ttyS0 loglevel=4 reboot=k panic=-1 8250.nr_uarts=1 i8042.noaux i8042.nomux \
                              i8042.nopnp i8042.dumbkbd random.trust_cpu=on rcupdate.rcu_cpu_stall_suppress=1 \
                              -- machine";

/// Machine to boot.
#[derive(Debug)]
pub(super) struct Boot {
    pub(super) vcpus: u8,
    pub(super) memory_mb: u32,
    /// Limits of each drive.
    pub(super) limiter: Option<RateLimiter>,
    /// Limit for the process to start and the guest to listen: an eighth of a second is usual, in
    /// emulation it takes a minute.
    pub(super) wait: Duration,
    /// Parameters of the box in it.
    pub(super) machine: Machine,
}

/// Failure of a step, in words for the log.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step}: {cause}")]
pub(super) struct Failed {
    step: &'static str,
    cause: String,
}

fn at(step: &'static str) -> impl FnOnce(&dyn std::fmt::Display) -> Failed {
    move |cause| Failed { step, cause: cause.to_string() }
}

/// Returns what makes a [`Failed`] of the answer to `step`.
fn failed(step: &'static str) -> impl FnOnce(firecracker::Error) -> Failed {
    move |error| at(step)(&error)
}

/// Machine that waits for the line of the host.
#[derive(Debug)]
pub(super) struct Waiting {
    api: Api,
    /// Connection for the line.
    stream: UnixStream,
}

/// Place of a process that has been started, and the bound on what it may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Starting<'a> {
    pub(super) room: &'a WorkDir,
    pub(super) process: &'a Process,
    pub(super) tasks: &'a TaskTracker,
}

/// Boots a machine.
pub(super) async fn boot(at: Starting<'_>, boot: &Boot) -> std::result::Result<Waiting, Failed> {
    let deadline = Instant::now() + boot.wait;
    let mut api = api(at, deadline).await?;
    configure(&mut api, boot).await?;
    let stream = listening(at, deadline).await?;
    Ok(Waiting { api, stream })
}

/// Makes a machine from the files of a template, whose drive for changes has `drive_bytes`.
pub(super) async fn restore(at: Starting<'_>, boot: &Boot, drive_bytes: u64) -> std::result::Result<Waiting, Failed> {
    let deadline = Instant::now() + boot.wait;
    let mut api = api(at, deadline).await?;
    load(&mut api, drive_bytes != boot.machine.disk_bytes).await?;
    let stream = listening(at, deadline).await?;
    Ok(Waiting { api, stream })
}

/// Loads the machine that is saved in the room, and has it go on; with another drive for changes, if its
/// size is not the one that the machine knows.
async fn load(api: &mut Api, is_resized: bool) -> std::result::Result<(), Failed> {
    let saved = LoadSnapshot {
        snapshot_path: STATE.to_owned(),
        mem_backend: Memory::File(MEMORY.to_owned()),
        resume_vm: !is_resized,
        vsock_override: None,
    };
    api.apply(&saved).await.map_err(failed("load the saved machine"))?;
    if is_resized {
        let drive = DriveFile { drive_id: CHANGES.to_owned(), path_on_host: CHANGES.to_owned() };
        api.apply(&drive).await.map_err(failed("attach the drive of the box"))?;
        api.apply(&State::Resumed).await.map_err(failed("resume the saved machine"))?;
    }
    Ok(())
}

/// Writes a machine to the files `new-state` and `new-memory` of its room. It goes on afterwards, also on error.
/// Returns whether they are whole; if not, they are removed.
pub(super) async fn save(
    at: Starting<'_>,
    boot: &Boot,
    waiting: Waiting,
) -> std::result::Result<(Waiting, bool), Failed> {
    let Waiting { mut api, stream } = waiting;
    // The machine that is made of the files must not wait for this connection.
    drop(stream);
    let saved = write(&mut api).await;
    let deadline = Instant::now() + boot.wait;
    if let Err(error) = &saved {
        tracing::warn!(%error, "cannot write a machine to files");
        // What stays goes with the box.
        let _ = at.room.remove([NEW_STATE, NEW_MEMORY]);
    }
    let stream = listening(at, deadline).await?;
    Ok((Waiting { api, stream }, saved.is_ok()))
}

async fn write(api: &mut Api) -> std::result::Result<(), Failed> {
    api.apply(&State::Paused).await.map_err(failed("pause the machine"))?;
    let written = api.apply(&new_files()).await.map_err(failed("write the machine"));
    api.apply(&State::Resumed).await.map_err(failed("resume the machine"))?;
    written
}

/// Writes a machine with a box to the files `new-state` and `new-memory` of its room, and has `copy` take
/// what else belongs to that moment. The processes of the box stand still in these files: none runs in a
/// machine that is made of them before that is renewed. Afterwards, and on error, the machine goes on; unless
/// `is_last`, and it was written. Returns also whether it is known to go on.
pub(super) async fn keep<T>(
    room: &WorkDir,
    tasks: &TaskTracker,
    is_last: bool,
    copy: impl Future<Output = Result<T>>,
) -> (Result<T>, bool) {
    const ACTION: &str = "write a machine to files";
    let mut api = match connected(room, ACTION, tasks).await {
        Ok(api) => api,
        Err(error) => return (Err(error), false),
    };
    if let Err(error) = freeze(room).await {
        // They go on by themselves, unless it was the answer that was lost.
        thaw(room, THAW_WAIT_UNSURE).await;
        return (Err(error), true);
    }
    let written = async {
        api.apply(&State::Paused).await?;
        api.apply(&new_files()).await
    };
    let kept = match written.await {
        Ok(()) => copy.await,
        Err(error) => Err(refused(ACTION, error)),
    };
    if is_last && kept.is_ok() {
        return (kept, false);
    }
    match api.apply(&State::Resumed).await {
        Ok(()) => {
            thaw(room, THAW_WAIT).await;
            (kept, true)
        }
        Err(error) => (kept.and(Err(refused(ACTION, error))), false),
    }
}

/// Stops the processes of a box.
async fn freeze(room: &WorkDir) -> Result<()> {
    let frozen = async { dial(room).await?.freeze().await };
    let frozen = tokio::time::timeout(FREEZE_WAIT, frozen).await;
    frozen.unwrap_or_else(|_| Err(Error::Unavailable("the agent of the box does not answer; try again".to_owned())))
}

/// Has the processes of a box go on whose machine does.
async fn thaw(room: &WorkDir, wait: Duration) {
    let thawed = async {
        loop {
            // The first connections may be among those that end when the machine goes on.
            let error = match async { dial(room).await?.thaw().await }.await {
                Ok(()) => return,
                Err(error) => error,
            };
            tracing::debug!(error = %crate::Chain(&error), "cannot resume the processes of a box; retrying later");
            let has_ended = room.connect(VSOCK).await.is_err_and(|error| nothing_listens(&error));
            if has_ended || matches!(error, Error::NotFound(_) | Error::NotSupported(_)) {
                return;
            }
            tokio::time::sleep(THAW_PAUSE).await;
        }
    };
    if tokio::time::timeout(wait, thawed).await.is_err() {
        tracing::warn!(
            "the agent of a box that was written to files does not answer; its processes resume by themselves"
        );
    }
}

/// Lets a machine and its processes go on that a server has left paused, with what it has not learned yet.
pub(super) async fn go_on(room: &WorkDir, tasks: &TaskTracker, renewed: &Restored) -> Result<()> {
    let was_halted = release(room, tasks).await?;
    if room.is_marked_unrenewed() {
        renew(room, renewed).await?;
        room.unmark_unrenewed();
    } else {
        // A server may also have been killed right before or after the machine stood still.
        thaw(room, if was_halted { THAW_WAIT } else { THAW_WAIT_UNSURE }).await;
    }
    Ok(())
}

/// Lets a machine go on that a server has paused which was killed while it wrote the machine to files.
/// Returns whether it was one: the processes of its box still stand still.
async fn release(room: &WorkDir, tasks: &TaskTracker) -> Result<bool> {
    const ACTION: &str = "resume a machine";
    let mut api = connected(room, ACTION, tasks).await?;
    let is_paused = api.instance().await.map_err(|error| refused(ACTION, error))?.state == "Paused";
    if is_paused {
        // Without this the vsock would pass nothing on any more.
        let written = api.apply(&new_files()).await.map_err(|error| refused(ACTION, error));
        // On a full disk they may hold the last that was free.
        room.remove([NEW_STATE, NEW_MEMORY]).map_err(|error| Error::failed(ACTION, error))?;
        written?;
        api.apply(&State::Resumed).await.map_err(|error| refused(ACTION, error))?;
    }
    Ok(is_paused)
}

fn new_files() -> CreateSnapshot {
    CreateSnapshot { snapshot_path: NEW_STATE.to_owned(), mem_file_path: NEW_MEMORY.to_owned() }
}

/// Makes a machine with a box from the files in the room, and connects to its agent. `loaded` is called when
/// the machine is there and before it goes on.
pub(super) async fn wake(
    at: Starting<'_>,
    wait: Duration,
    renewed: &Restored,
    loaded: impl FnOnce() -> io::Result<()>,
) -> std::result::Result<AgentGuest, Failed> {
    const STEP: &str = "reach the agent of a machine that was loaded";
    let deadline = Instant::now() + wait;
    let mut api = api(at, deadline).await?;
    let saved = LoadSnapshot {
        snapshot_path: STATE.to_owned(),
        mem_backend: Memory::File(MEMORY.to_owned()),
        resume_vm: false,
        vsock_override: None,
    };
    api.apply(&saved).await.map_err(failed("load the saved machine"))?;
    loaded().map_err(|error| self::at("configure the loaded machine")(&error))?;
    api.apply(&State::Resumed).await.map_err(failed("resume the saved machine"))?;
    loop {
        // The first connections may be among those that end when the machine goes on.
        let renewing = tokio::time::timeout_at(deadline, renew(at.room, renewed)).await;
        match renewing.unwrap_or_else(|_| Err(Error::Unavailable("it takes too long".to_owned()))) {
            Ok(guest) => return Ok(guest),
            Err(error) if Instant::now() >= deadline => return Err(self::at(STEP)(&crate::Chain(&error))),
            Err(_) => look(at.process, deadline, STEP).await?,
        }
    }
}

/// Connects to the agent of a machine that was loaded, and has its box differ from the one that was saved.
pub(super) async fn renew(room: &WorkDir, renewed: &Restored) -> Result<AgentGuest> {
    let guest = dial(room).await?;
    guest.renew(&Restored { now_ns: now_ns(), ..renewed.clone() }).await?;
    Ok(guest)
}

/// Has a machine make its box, and connects to the agent.
pub(super) async fn settle(
    room: &WorkDir,
    waiting: Waiting,
    machine: &Machine,
) -> std::result::Result<AgentGuest, Failed> {
    order_box(waiting.stream, machine).await?;
    dial(room).await.map_err(|error| at("reach the agent")(&crate::Chain(&error)))
}

async fn configure(api: &mut Api, boot: &Boot) -> std::result::Result<(), Failed> {
    let size = MachineConfig { vcpu_count: boot.vcpus, mem_size_mib: boot.memory_mb };
    api.apply(&size).await.map_err(failed("set the size of the machine"))?;
    let source = BootSource {
        kernel_image_path: KERNEL.to_owned(),
        initrd_path: Some(INITRD.to_owned()),
        boot_args: BOOT_ARGUMENTS.to_owned(),
    };
    api.apply(&source).await.map_err(failed("set the kernel of the machine"))?;
    for (name, is_read_only) in [(IMAGE, true), (CHANGES, false)] {
        let drive = Drive {
            drive_id: name.to_owned(),
            path_on_host: name.to_owned(),
            // The agent mounts it.
            is_root_device: false,
            is_read_only,
            rate_limiter: boot.limiter,
        };
        api.apply(&drive).await.map_err(failed("attach a drive"))?;
    }
    let socket = Vsock { guest_cid: GUEST_CID, uds_path: VSOCK.to_owned() };
    api.apply(&socket).await.map_err(failed("attach the vsock"))?;
    api.apply(&Entropy {}).await.map_err(failed("attach the source of random numbers"))?;
    api.apply(&Action::InstanceStart).await.map_err(failed("start the machine"))
}

/// Connects to the API of a process that is starting.
async fn api(starting: Starting<'_>, deadline: Instant) -> std::result::Result<Api, Failed> {
    const STEP: &str = "reach the API of Firecracker";
    loop {
        match starting.room.connect(API).await {
            Ok(stream) => return Api::new(stream, starting.tasks).await.map_err(|error| at(STEP)(&error)),
            Err(error) if nothing_listens(&error) => {}
            Err(error) => return Err(at(STEP)(&error)),
        }
        look(starting.process, deadline, STEP).await?;
    }
}

/// Pauses before the next look, unless the process has ended or it is too late.
async fn look(process: &Process, deadline: Instant, step: &'static str) -> std::result::Result<(), Failed> {
    if process.has_ended() {
        return Err(at(step)(&"the process has ended"));
    }
    if Instant::now() >= deadline {
        return Err(at(step)(&"it takes too long"));
    }
    tokio::time::sleep(LOOK).await;
    Ok(())
}

/// Waits until the guest listens for the line of the host, and connects for it.
async fn listening(starting: Starting<'_>, deadline: Instant) -> std::result::Result<UnixStream, Failed> {
    const STEP: &str = "boot the guest";
    loop {
        let stream = starting.room.connect(VSOCK).await.map_err(|error| at(STEP)(&error))?;
        match vsock::open(stream, MACHINE_BOOT_PORT, CONNECT_WAIT).await {
            Ok(stream) => return Ok(stream),
            Err(firecracker::Error::NotListening(_) | firecracker::Error::Silent(_)) => {}
            Err(error) => return Err(at(STEP)(&error)),
        }
        look(starting.process, deadline, STEP).await?;
    }
}

/// Has the machine make its box.
async fn order_box(stream: UnixStream, machine: &Machine) -> std::result::Result<(), Failed> {
    const STEP: &str = "make the box in the machine";
    let report = tokio::time::timeout(SETTLE_WAIT, order(stream, machine)).await;
    match report.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(MachineReport::Ready) => Ok(()),
        Ok(MachineReport::Failed { step, errno }) => {
            let cause = io::Error::from_raw_os_error(errno);
            Err(at(STEP)(&format_args!("cannot {step}: {cause}")))
        }
        Err(error) => Err(at(STEP)(&error)),
    }
}

/// Returns the line for a machine, with the time as it is.
///
/// # Errors
/// If it is too long.
pub(super) fn line(machine: &Machine) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&Machine { now_ns: now_ns(), ..machine.clone() })?;
    line.push(b'\n');
    if line.len() > MACHINE_LINE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the environment of the image is too large"));
    }
    Ok(line)
}

/// Sends the line, and returns the answer.
async fn order(mut stream: UnixStream, machine: &Machine) -> io::Result<MachineReport> {
    // Only now: the boot has taken time.
    stream.write_all(&line(machine)?).await?;
    let mut answer = Vec::new();
    BufReader::new(stream).take(MACHINE_LINE_BYTES_MAX as u64).read_until(b'\n', &mut answer).await?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Opens a connection to the agent of a machine.
pub(super) async fn dial(room: &WorkDir) -> Result<AgentGuest> {
    const ACTION: &str = "reach the agent";
    let stream = room.connect(VSOCK).await.map_err(|error| unreached(ACTION, error))?;
    match vsock::open(stream, MACHINE_AGENT_PORT, DIAL_WAIT).await {
        Ok(stream) => AgentGuest::connect(AgentStream::new(stream, goes_on(room.clone()))).await,
        Err(firecracker::Error::NotListening(_)) => Err(Error::Gone),
        Err(error) => Err(Error::failed(ACTION, error)),
    }
}

/// Connects to the API of a machine that runs.
async fn connected(room: &WorkDir, action: &'static str, tasks: &TaskTracker) -> Result<Api> {
    let stream = room.connect(API).await.map_err(|error| unreached(action, error))?;
    Api::new(stream, tasks).await.map_err(|error| refused(action, error))
}

/// Converts an error of the API of a machine that runs.
fn refused(action: &'static str, error: firecracker::Error) -> Error {
    if matches!(error, firecracker::Error::Gone(_)) {
        return Error::Gone;
    }
    if matches!(error, firecracker::Error::Silent(_)) {
        return Error::Unavailable("Firecracker does not answer in time; try again".to_owned());
    }
    if matches!(&error, firecracker::Error::Refused(said) if disk::says_full(said)) {
        return disk::full();
    }
    Error::failed(action, error)
}

/// Returns the time of this host's wall clock as it is, which is to be that of a guest, in nanoseconds
/// since 1970.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    u64::try_from(now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)).unwrap_or_default()
}

#[cfg(test)]
mod test {
    use super::BOOT_ARGUMENTS;

    #[test]
    fn the_first_process_gets_no_word_of_the_kernels() {
        let (of_the_kernel, of_the_process) = BOOT_ARGUMENTS.split_once(" -- ").unwrap();
        assert_eq!(of_the_process, "machine");
        for word in of_the_kernel.split(' ') {
            assert!(word.contains(['.', '=']), "a kernel that does not know `{word}` gives it to its first process");
        }
    }
}
