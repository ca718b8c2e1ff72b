//! A machine from the start of its process to the first answer of its agent.

use std::io;
use std::time::Duration;

use firecracker::requests::{Action, BootSource, Drive, Entropy, MachineConfig, RateLimiter, State, Vsock};
use firecracker::{Api, vsock};
use guest_protocol::{MACHINE_AGENT_PORT, MACHINE_BOOT_PORT, MACHINE_LINE_BYTES_MAX, Machine, MachineReport};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::room::{API, CHANGES, IMAGE, INITRD, KERNEL, Room, VSOCK};
use crate::agent::AgentGuest;
use crate::local::process::Process;
use crate::{Error, Result};

/// Limit for the answer of a guest to a connection. One that boots has not seen it yet.
const CONNECT_WAIT: Duration = Duration::from_secs(1);
/// Limit for the box to be made in a machine that has booted.
const SETTLE_WAIT: Duration = Duration::from_secs(60);
/// Limit for an agent that was asked before to accept another connection.
const DIAL_WAIT: Duration = Duration::from_secs(10);
/// Pause between two looks at a process or guest that is starting.
const LOOK: Duration = Duration::from_millis(2);
/// Address of a guest on its vsock. Each machine has a vsock of its own.
const GUEST_CID: u32 = 3;
/// Command line of the guest's kernel: its errors go to the console; a failure of the kernel, or the end
/// of its first process, ends the machine at once; it looks for no keyboard. What follows the dashes is
/// for the first process.
const BOOT_ARGUMENTS: &str = "console=ttyS0 loglevel=4 reboot=k panic=-1 8250.nr_uarts=1 i8042.noaux i8042.nomux \
                              i8042.nopnp i8042.dumbkbd random.trust_cpu=on -- machine";

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

/// Boots a machine whose process has been started, makes the box in it, and connects to its agent.
pub(super) async fn boot(
    room: &Room,
    process: &Process,
    boot: &Boot,
    tasks: &TaskTracker,
) -> std::result::Result<AgentGuest, Failed> {
    let deadline = Instant::now() + boot.wait;
    let api = api(room, process, deadline, tasks).await?;
    configure(api, boot).await?;
    settle(room, process, deadline, &boot.machine).await?;
    dial(room).await.map_err(|error| at("reach the agent")(&crate::Chain(&error)))
}

async fn configure(mut api: Api, boot: &Boot) -> std::result::Result<(), Failed> {
    let failed = |step| move |error: firecracker::Error| at(step)(&error);
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
async fn api(
    room: &Room,
    process: &Process,
    deadline: Instant,
    tasks: &TaskTracker,
) -> std::result::Result<Api, Failed> {
    const STEP: &str = "reach the API of Firecracker";
    loop {
        match room.connect(API).await {
            Ok(stream) => return Api::new(stream, tasks).await.map_err(|error| at(STEP)(&error)),
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(at(STEP)(&error)),
        }
        look(process, deadline, STEP).await?;
    }
}

fn is_absent(error: &io::Error) -> bool {
    [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused].contains(&error.kind())
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

/// Waits until the guest listens, and has it make the box.
async fn settle(
    room: &Room,
    process: &Process,
    deadline: Instant,
    machine: &Machine,
) -> std::result::Result<(), Failed> {
    const STEP: &str = "boot the guest";
    let stream = loop {
        let stream = room.connect(VSOCK).await.map_err(|error| at(STEP)(&error))?;
        match vsock::open(stream, MACHINE_BOOT_PORT, CONNECT_WAIT).await {
            Ok(stream) => break stream,
            Err(firecracker::Error::NotListening(_) | firecracker::Error::Silent(_)) => {}
            Err(error) => return Err(at(STEP)(&error)),
        }
        look(process, deadline, STEP).await?;
    };
    let report = tokio::time::timeout(SETTLE_WAIT, order(stream, machine)).await;
    match report.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(MachineReport::Ready) => Ok(()),
        Ok(MachineReport::Failed { step, errno }) => {
            let cause = io::Error::from_raw_os_error(errno);
            Err(at("make the box in the machine")(&format_args!("cannot {step}: {cause}")))
        }
        Err(error) => Err(at("make the box in the machine")(&error)),
    }
}

/// Sends the line, and returns the answer.
async fn order(mut stream: tokio::net::UnixStream, machine: &Machine) -> io::Result<MachineReport> {
    let mut line = serde_json::to_vec(machine)?;
    line.push(b'\n');
    if line.len() > MACHINE_LINE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the environment of the image is too large"));
    }
    stream.write_all(&line).await?;
    let mut answer = Vec::new();
    BufReader::new(stream).take(MACHINE_LINE_BYTES_MAX as u64).read_until(b'\n', &mut answer).await?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Opens a connection to the agent of a machine.
pub(super) async fn dial(room: &Room) -> Result<AgentGuest> {
    const ACTION: &str = "reach the agent";
    let stream = room.connect(VSOCK).await;
    let stream = stream.map_err(|error| if is_absent(&error) { Error::Gone } else { Error::failed(ACTION, error) })?;
    match vsock::open(stream, MACHINE_AGENT_PORT, DIAL_WAIT).await {
        Ok(stream) => AgentGuest::connect(stream).await,
        Err(firecracker::Error::NotListening(_)) => Err(Error::Gone),
        Err(error) => Err(Error::failed(ACTION, error)),
    }
}

/// Stops the processors of a machine, or lets them go on; either may be repeated.
pub(super) async fn change_state(room: &Room, state: State, tasks: &TaskTracker) -> Result<()> {
    const ACTION: &str = "pause or resume a machine";
    let stream = room.connect(API).await;
    let stream = stream.map_err(|error| if is_absent(&error) { Error::Gone } else { Error::failed(ACTION, error) })?;
    let changed = async { Api::new(stream, tasks).await?.apply(&state).await };
    changed.await.map_err(|error| {
        if matches!(error, firecracker::Error::Gone(_)) {
            return Error::Gone;
        }
        if matches!(error, firecracker::Error::Silent(_)) {
            return Error::Unavailable("Firecracker does not answer in time; try again".to_owned());
        }
        Error::failed(ACTION, error)
    })
}
