//! A fake process of Firecracker, as strict as the real one.
//!
//! It has no guest: a test takes the streams that come to a port. Paths are looked up in its folder.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

const BEFORE: &str = "The requested operation is not supported before starting the microVM.";
const AFTER: &str = "The requested operation is not supported after starting the microVM.";

/// Streams to a port that the test has not taken yet.
const STREAMS_MAX: usize = 16;

/// A fake process. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Fake {
    dir: TempDir,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    settings: Mutex<Settings>,
    phase: watch::Sender<Phase>,
    ports: Mutex<HashMap<u32, mpsc::Sender<UnixStream>>>,
    /// Ends the streams of the guest.
    streams: Mutex<CancellationToken>,
    end: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Debug, Default)]
struct Settings {
    is_configured: bool,
    has_kernel: bool,
    drives: Vec<String>,
    vsock: Option<UnixListener>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    NotStarted,
    Running,
    Paused,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "fields that the fake only parses")]
struct Machine {
    vcpu_count: u8,
    mem_size_mib: usize,
    smt: Option<bool>,
    cpu_template: Option<String>,
    track_dirty_pages: Option<bool>,
    huge_pages: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "fields that the fake only parses")]
struct Boot {
    kernel_image_path: String,
    initrd_path: Option<String>,
    boot_args: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "fields that the fake only parses")]
struct Drive {
    drive_id: String,
    path_on_host: String,
    is_root_device: Option<bool>,
    is_read_only: Option<bool>,
    rate_limiter: Option<Limiter>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "fields that the fake only parses")]
struct Limiter {
    bandwidth: Option<Bucket>,
    ops: Option<Bucket>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "fields that the fake only parses")]
struct Bucket {
    size: u64,
    one_time_burst: Option<u64>,
    refill_time: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "fields that the fake only parses")]
struct Entropy {
    rate_limiter: Option<Limiter>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "fields that the fake only parses")]
struct Vsock {
    guest_cid: u32,
    uds_path: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VsockPath {
    uds_path: String,
}

#[derive(Debug, Deserialize)]
enum ActionType {
    FlushMetrics,
    InstanceStart,
    SendCtrlAltDel,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Action {
    action_type: ActionType,
}

#[derive(Debug, Deserialize)]
enum Wanted {
    Paused,
    Resumed,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Vm {
    state: Wanted,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    snapshot_path: String,
    mem_file_path: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "fields that the fake only parses")]
struct Memory {
    backend_type: String,
    backend_path: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    snapshot_path: String,
    mem_backend: Memory,
    #[serde(default)]
    resume_vm: bool,
    vsock_override: Option<VsockPath>,
}

impl Fake {
    /// Starts a fake in a folder of its own.
    pub(crate) fn start() -> Fake {
        let dir = tempfile::tempdir().unwrap();
        let inner = Arc::new(Inner {
            dir: dir.path().to_owned(),
            settings: Mutex::default(),
            phase: watch::Sender::new(Phase::NotStarted),
            ports: Mutex::default(),
            streams: Mutex::default(),
            end: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let listener = UnixListener::bind(dir.path().join("api.sock")).unwrap();
        let served = Arc::clone(&inner);
        inner.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                served.tasks.spawn(serve(Arc::clone(&served), stream));
            }
        });
        Fake { dir, inner }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    /// Listens on a port of the guest.
    pub(crate) fn listen(&self, port: u32) -> mpsc::Receiver<UnixStream> {
        let (sender, streams) = mpsc::channel(STREAMS_MAX);
        self.inner.ports.lock().insert(port, sender);
        streams
    }

    /// Ends the process, as a signal does: nothing is removed.
    pub(crate) fn kill(&self) {
        self.inner.end.cancel();
    }

    /// Waits until the process has ended.
    pub(crate) async fn ended(&self) {
        self.inner.end.cancelled().await;
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Answers the requests of a connection until the process ends; the request that ends it is answered
/// before.
async fn serve(inner: Arc<Inner>, stream: UnixStream) {
    let answer = service_fn(|request| {
        let inner = Arc::clone(&inner);
        async move { Ok::<_, hyper::Error>(inner.answer(request).await) }
    });
    let mut connection =
        std::pin::pin!(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    tokio::select! {
        _ = connection.as_mut() => return,
        () = inner.end.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}

impl Inner {
    /// Runs `work` until the process ends.
    fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let end = self.end.clone();
        self.tasks.spawn(async move {
            end.run_until_cancelled(work).await;
        });
    }

    async fn answer(self: &Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        if (&method, path.as_str()) == (&Method::GET, "/") {
            let state = match *self.phase.borrow() {
                Phase::NotStarted => "Not started",
                Phase::Running => "Running",
                Phase::Paused => "Paused",
            };
            let instance =
                format!(r#"{{"id":"fake","state":"{state}","vmm_version":"1.16.1","app_name":"Firecracker"}}"#);
            return Response::new(Full::new(instance.into()));
        }
        let outcome = self.change(&method, &path, &body);
        let mut answer = Response::new(Full::default());
        *answer.status_mut() = http::StatusCode::NO_CONTENT;
        if let Err(reason) = outcome {
            *answer.status_mut() = http::StatusCode::BAD_REQUEST;
            *answer.body_mut() = serde_json::json!({ "fault_message": reason }).to_string().into();
        }
        answer
    }

    fn change(self: &Arc<Self>, method: &Method, path: &str, body: &[u8]) -> Result<(), String> {
        let phase = *self.phase.borrow();
        match (method.as_str(), path.trim_start_matches('/').split_once('/').unwrap_or((&path[1..], ""))) {
            ("PUT", ("machine-config", "")) => {
                let machine: Machine = parse(body)?;
                self.before(phase)?;
                if !(1..=32).contains(&machine.vcpu_count) {
                    return Err("Machine config error: The number of vCPUs must be greater than 0, less than 32 and must be 1 or an even number if SMT is enabled.".to_owned());
                }
                if machine.mem_size_mib == 0 {
                    return Err("Machine config error: The memory size (MiB) is either 0, or not a multiple of the configured page size.".to_owned());
                }
                self.settings.lock().is_configured = true;
            }
            ("PUT", ("boot-source", "")) => {
                let boot: Boot = parse(body)?;
                self.before(phase)?;
                let opened = self.open(&boot.kernel_image_path);
                opened.map_err(|error| format!("Boot source error: The kernel file cannot be opened: {error}"))?;
                let mut settings = self.settings.lock();
                (settings.is_configured, settings.has_kernel) = (true, true);
            }
            ("PUT" | "PATCH", ("drives", id)) => {
                if !id.chars().all(|char| char.is_ascii_alphanumeric() || char == '_') {
                    return Err("API Resource IDs can only contain alphanumeric characters and underscores.".to_owned());
                }
                let drive: Drive = parse(body)?;
                if drive.drive_id != id {
                    return Err("The id from the path does not match the id from the body!".to_owned());
                }
                let is_new = method == Method::PUT;
                if is_new {
                    self.before(phase)?
                } else {
                    after(phase)?
                }
                if !is_new && !self.settings.lock().drives.contains(&drive.drive_id) {
                    return Err(format!("Block device update error: no drive {id}"));
                }
                self.open(&drive.path_on_host).map_err(|error| {
                    format!("Drive config error: Unable to create the virtio block device: Virtio backend error: Error manipulating the backing file: {error} {}", drive.path_on_host)
                })?;
                let mut settings = self.settings.lock();
                settings.is_configured = true;
                settings.drives.push(drive.drive_id);
            }
            ("PUT", ("vsock", "")) => {
                let vsock: Vsock = parse(body)?;
                self.before(phase)?;
                let bound = self.bind(&vsock.uds_path);
                let bound = bound
                    .map_err(|error| format!("Vsock config error: Cannot create backend for vsock device: {error}"))?;
                let mut settings = self.settings.lock();
                (settings.is_configured, settings.vsock) = (true, Some(bound));
            }
            ("PUT", ("entropy", "")) => {
                parse::<Entropy>(body)?;
                self.before(phase)?;
                self.settings.lock().is_configured = true;
            }
            ("PUT", ("actions", "")) => match parse::<Action>(body)?.action_type {
                ActionType::InstanceStart => {
                    self.before(phase)?;
                    if !self.settings.lock().has_kernel {
                        return Err(
                            "Start microvm error: Cannot start microvm without kernel configuration.".to_owned()
                        );
                    }
                    self.run();
                }
                ActionType::SendCtrlAltDel => {
                    after(phase)?;
                    self.end.cancel();
                }
                ActionType::FlushMetrics => after(phase)?,
            },
            ("PATCH", ("vm", "")) => {
                let vm: Vm = parse(body)?;
                after(phase)?;
                self.phase.send_replace(match vm.state {
                    Wanted::Paused => Phase::Paused,
                    Wanted::Resumed => Phase::Running,
                });
            }
            ("PUT", ("snapshot", "create")) => {
                let create: Create = parse(body)?;
                after(phase)?;
                if phase != Phase::Paused {
                    return Err("Create snapshot error: Cannot save the microVM state: Operation not allowed: save/restore unavailable while running".to_owned());
                }
                for path in [create.snapshot_path, create.mem_file_path] {
                    fs::write(self.dir.join(path), b"fake")
                        .map_err(|error| format!("Create snapshot error: {error}"))?;
                }
                // The device is reset: the streams end when the guest runs again, and not before.
                let streams = std::mem::take(&mut *self.streams.lock());
                let mut phases = self.phase.subscribe();
                self.spawn(async move {
                    let _ = phases.wait_for(|phase| *phase == Phase::Running).await;
                    streams.cancel();
                });
            }
            ("PUT", ("snapshot", "load")) => {
                let load: Load = parse(body)?;
                self.before(phase)?;
                if self.settings.lock().is_configured {
                    return Err("Load snapshot error: Loading a microVM snapshot not allowed after configuring boot-specific resources.".to_owned());
                }
                if let Err(reason) = self.load(&load) {
                    self.end.cancel();
                    return Err(format!("Load snapshot error: Failed to restore from snapshot: {reason}"));
                }
            }
            _ => return Err(format!("Invalid request method and/or path: {method} {}.", path.trim_start_matches('/'))),
        }
        Ok(())
    }

    fn before(&self, phase: Phase) -> Result<(), String> {
        if phase == Phase::NotStarted { Ok(()) } else { Err(AFTER.to_owned()) }
    }

    fn open(&self, path: &str) -> io::Result<fs::File> {
        fs::File::open(self.dir.join(path))
    }

    fn bind(&self, path: &str) -> Result<UnixListener, String> {
        UnixListener::bind(self.dir.join(path))
            .map_err(|error| format!("Error binding to the host-side Unix socket: {error}"))
    }

    fn load(self: &Arc<Self>, load: &Load) -> Result<(), String> {
        let state = self.open(&load.snapshot_path);
        state.map_err(|error| {
            format!("Failed to get snapshot state from file: Failed to open snapshot file: {error}")
        })?;
        self.open(&load.mem_backend.backend_path).map_err(|error| format!("Failed to load guest memory: {error}"))?;
        let path = load.vsock_override.as_ref().map_or("v.sock", |vsock| &vsock.uds_path);
        let vsock = self.bind(path).map_err(|error| format!("VsockUnixBackend: {error}"))?;
        self.settings.lock().vsock = Some(vsock);
        self.run();
        if !load.resume_vm {
            self.phase.send_replace(Phase::Paused);
        }
        Ok(())
    }

    /// Starts the guest, and answers on its vsock.
    fn run(self: &Arc<Self>) {
        self.phase.send_replace(Phase::Running);
        let Some(listener) = self.settings.lock().vsock.take() else { return };
        let inner = Arc::clone(self);
        self.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let bridged = Arc::clone(&inner);
                inner.spawn(async move {
                    let _ = bridged.bridge(stream).await;
                });
            }
        });
    }

    /// Opens the stream that a connection to the vsock asks for.
    async fn bridge(&self, mut stream: UnixStream) -> io::Result<()> {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            line.push(stream.read_u8().await?);
        }
        let _ = self.phase.subscribe().wait_for(|phase| *phase == Phase::Running).await;
        let port =
            String::from_utf8_lossy(&line).trim_end().strip_prefix("CONNECT ").and_then(|port| port.parse().ok());
        let Some(port) = port.and_then(|port: u32| self.ports.lock().get(&port).cloned()) else { return Ok(()) };
        let (mut ours, theirs) = UnixStream::pair()?;
        stream.write_all(b"OK 1073741824\n").await?;
        if port.send(theirs).await.is_err() {
            return Ok(());
        }
        let streams = self.streams.lock().clone();
        streams.run_until_cancelled(copy_bidirectional(&mut stream, &mut ours)).await;
        Ok(())
    }
}

fn after(phase: Phase) -> Result<(), String> {
    if phase == Phase::NotStarted { Err(BEFORE.to_owned()) } else { Ok(()) }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body)
        .map_err(|error| format!("An error occurred when deserializing the json body of a request: {error}."))
}
