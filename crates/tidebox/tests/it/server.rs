//! A server for each test, with its own port, data and configuration, that leaves nothing behind.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

/// The longest wait for any condition.
pub const PATIENCE: Duration = Duration::from_secs(50);
/// Settings for the provider whose boxes are memory: for the rules of the API.
pub const MOCK: &str = "providers.native.enabled=false providers.mock.enabled=true providers.default=mock";
/// Settings for the provider whose boxes are real.
pub const NATIVE: &str = "providers.default=native";

pub struct TestServer {
    pub url: String,
    pub http: reqwest::Client,
    /// API key for every request, once it is set.
    pub key: Option<String>,
    process: Option<Child>,
    command: Vec<String>,
    /// Further variables of the process.
    environment: Vec<(&'static str, PathBuf)>,
    settings: Vec<(String, String)>,
    user: Option<u32>,
    log: Arc<Mutex<Vec<String>>>,
    dir: tempfile::TempDir,
    expected_trouble: Vec<&'static str>,
    images_disk: Option<String>,
}

/// Shell script that makes a small disk for the images, in a mount namespace that ends with the
/// server.
const WITH_IMAGES_DISK: &str =
    r#"mkdir -p "$1/images" && mount -t tmpfs -o "$2" tmpfs "$1/images" && shift 2 && exec "$@""#;

/// An answer with its whole body.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: reqwest::header::HeaderMap,
    pub bytes: Vec<u8>,
}

impl Answer {
    pub async fn read(response: Response) -> Self {
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = response.bytes().await.expect("an answer arrives whole").to_vec();
        Self { status, headers, bytes }
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {}", String::from_utf8_lossy(&self.bytes)))
    }

    /// Returns the body of a success as JSON; fails on any other status.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert!(self.status.is_success(), "{} {}", self.status, String::from_utf8_lossy(&self.bytes));
        self.json()
    }

    /// Checks the status, code and message of an error.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str, words: &str) {
        let body = self.json();
        let keys: Vec<&String> = body.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["code", "message"], "{body}");
        assert_eq!((self.status.as_u16(), body["code"].as_str().unwrap()), (status, code), "{body}");
        assert!(body["message"].as_str().unwrap().contains(words), "{body} lacks `{words}`");
    }
}

/// A server that is not started yet.
pub struct Builder(TestServer);

impl Builder {
    /// Sets another command than `serve`.
    pub fn command(mut self, command: &str) -> Self {
        self.0.command = command.split_whitespace().map(str::to_owned).collect();
        self
    }

    /// Requires this API key, and sends it with every request.
    pub fn key(mut self, key: &str) -> Self {
        self.0.set("auth.enabled", "true");
        self.0.set("auth.api_key", key);
        self.0.key = Some(key.to_owned());
        self
    }

    /// Sets a further variable of the process, to a path.
    pub fn env(mut self, name: &'static str, path: &Path) -> Self {
        self.0.environment.push((name, path.to_owned()));
        self
    }

    /// Runs the server as another user, who owns the data folder.
    pub fn user(mut self, user: u32) -> Self {
        std::os::unix::fs::chown(self.0.dir.path(), Some(user), Some(user)).unwrap();
        self.0.user = Some(user);
        self
    }

    /// Allows errors in the log that contain these words.
    pub fn expecting(mut self, words: &'static str) -> Self {
        self.0.expect_trouble(words);
        self
    }

    /// Places the images on a separate disk, made with these options: `size=20m`. Returns `None`
    /// if this user may not mount one.
    pub fn images_on(mut self, disk: &str) -> Option<Self> {
        let unshare = fixtures::found("unshare", &[])?;
        if !Command::new(unshare).args(["--mount", "true"]).stderr(Stdio::null()).status().unwrap().success() {
            fixtures::skip("unshare", "no mount namespace can be made here");
            return None;
        }
        self.0.images_disk = Some(disk.to_owned());
        Some(self)
    }

    pub async fn start(self) -> TestServer {
        let Self(mut server) = self;
        server.launch().await;
        server
    }
}

/// Returns an unused port, so that a server can come back on the same one. It is below those that the
/// kernel hands out, and each call returns another: nobody takes it before the server does.
pub fn free_port() -> u16 {
    /// First port, and number of ports.
    const RANGE: (u16, u16) = (20_000, 12_000);
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Programs of tests that run at the same time begin at different places.
    let begin = std::process::id() % u32::from(RANGE.1);
    loop {
        let offset = (begin + u32::from(NEXT.fetch_add(1, Ordering::Relaxed))) % u32::from(RANGE.1);
        let port = RANGE.0 + u16::try_from(offset).unwrap();
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl TestServer {
    /// Starts a server with settings `key=value …`, as the user the tests run as.
    pub async fn start(settings: &str) -> Self {
        Self::builder(settings).start().await
    }

    /// Prepares a server with settings `key=value …`.
    pub fn builder(settings: &str) -> Builder {
        let dir = tempfile::Builder::new().prefix("tidebox-test-").tempdir().unwrap();
        // Boxes of PRoot have users of their own, who must be able to traverse the folder.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        let settings = settings
            .split_whitespace()
            .map(|pair| pair.split_once('=').expect("settings are key=value"))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Builder(Self {
            url: String::new(),
            http: http(),
            key: None,
            process: None,
            command: vec!["serve".to_owned()],
            environment: Vec::new(),
            settings,
            user: None,
            log: Arc::default(),
            dir,
            expected_trouble: Vec::new(),
            images_disk: None,
        })
    }

    /// Makes that disk larger.
    pub fn grow_images_disk(&self, disk: &str) {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.pid().to_string(), "mount", "-o", &format!("remount,{disk}")]);
        assert!(command.arg(self.data_dir().join("images")).status().unwrap().success(), "the disk does not grow");
    }

    /// Returns the number of entries in a folder of that disk, without empty folders.
    pub fn entries_on_images_disk(&self, folder: &str) -> usize {
        let seen = format!("/proc/{}/root{}", self.pid(), self.data_dir().join("images").join(folder).display());
        let is_something = |entry: &std::io::Result<std::fs::DirEntry>| {
            std::fs::read_dir(entry.as_ref().unwrap().path()).map_or(true, |mut below| below.next().is_some())
        };
        std::fs::read_dir(seen).unwrap().filter(is_something).count()
    }

    /// Allows errors in the log that contain these words.
    pub fn expect_trouble(&mut self, words: &'static str) {
        self.expected_trouble.push(words);
    }

    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the server runs").id()
    }

    /// Sends the server a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Returns the resident memory of the server, in KiB.
    pub fn resident_kib(&self) -> u64 {
        self.memory_kib("VmRSS:")
    }

    /// Returns the most resident memory that the server has had, in KiB.
    pub fn peak_kib(&self) -> u64 {
        self.memory_kib("VmHWM:")
    }

    fn memory_kib(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Starts the process, at first or after [`TestServer::kill`].
    pub async fn launch(&mut self) {
        let tidebox = std::env::var("TIDEBOX_TEST_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_tidebox").to_owned());
        let mut command = match &self.images_disk {
            None => Command::new(&tidebox),
            Some(disk) => {
                let mut command = Command::new("unshare");
                command.args(["--mount", "--propagation", "private", "sh", "-c", WITH_IMAGES_DISK, "sh"]);
                command.arg(self.data_dir()).args([disk, &tidebox]);
                command
            }
        };
        command
            .args(&self.command)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", self.dir.path())
            .env("TIDEBOX_SYSTEM_CONFIG", "")
            .env("TIDEBOX_DATA_DIR", self.data_dir())
            .env("TIDEBOX_SERVER_PORT", "0")
            .env("TIDEBOX_LOGGING_FORMAT", "json")
            // Most tests must not depend on the other runtimes of this machine.
            .env("TIDEBOX_PROVIDERS_DOCKER_ENABLED", "false")
            .env("TIDEBOX_PROVIDERS_PROOT_ENABLED", "false")
            // Nor on a registry that no test has started.
            .env("TIDEBOX_IMAGES_PULL", "never")
            // Nor on the free space of the disk.
            .env("TIDEBOX_LIMITS_RESERVE_DISK_MB", "0")
            .env("TIDEBOX_LIMITS_RESERVE_INODES", "0")
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        for (key, value) in &self.settings {
            command.env(format!("TIDEBOX_{}", key.replace('.', "_").to_uppercase()), value);
        }
        command.envs(self.environment.iter().map(|(name, path)| (name, path)));
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        // Connections to the previous process are dead.
        self.http = http();
        let mut process = command.spawn().expect("the binary starts");
        let address = watch(process.stderr.take().unwrap(), Arc::clone(&self.log));
        self.process = Some(process);
        match address.recv_timeout(PATIENCE) {
            Ok(url) => self.url = url,
            Err(_) => {
                // Not within the panic, which would poison the log for the clean-up.
                let log = self.log_text();
                panic!("the server did not start:\n{log}");
            }
        }
    }

    /// Changes a setting for the next [`TestServer::launch`].
    pub fn set(&mut self, key: &str, value: &str) {
        self.settings.retain(|(known, _)| known != key);
        self.settings.push((key.to_owned(), value.to_owned()));
    }

    /// Ends the process as a crash would.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("the server runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// Ends the process with SIGTERM and returns its exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(self.process.as_ref().expect("the server runs"));
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.end()
    }

    /// Waits for the end of a process after its signal and returns its exit code.
    pub fn end(&mut self) -> Option<i32> {
        self.process.take().expect("the server runs").wait().unwrap().code()
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        with_key(self.http.request(method, format!("{}/api/v1{path}", self.url)), self.key.as_deref())
    }

    pub async fn get(&self, path: &str) -> Answer {
        Answer::read(self.request(Method::GET, path).send().await.unwrap()).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        Answer::read(self.request(Method::POST, path).json(&body).send().await.unwrap()).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        Answer::read(self.request(Method::PUT, path).json(&body).send().await.unwrap()).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        Answer::read(self.request(Method::DELETE, path).send().await.unwrap()).await
    }

    /// Spawns a sandbox with the defaults and returns its id.
    pub async fn spawn(&self) -> String {
        self.spawn_with(json!({})).await
    }

    pub async fn spawn_with(&self, body: Value) -> String {
        let answer = self.post("/sandboxes", body).await;
        assert_eq!(answer.status, 201, "{}", answer.json());
        answer.json()["id"].as_str().unwrap().to_owned()
    }

    /// Runs a shell line and returns the result.
    pub async fn exec(&self, id: &str, line: &str) -> Value {
        self.post(&format!("/sandboxes/{id}/exec"), json!({"command": line})).await.ok()
    }

    /// Runs a shell line that must succeed and returns its stdout.
    pub async fn output(&self, id: &str, line: &str) -> String {
        let result = self.exec(id, line).await;
        assert_eq!(result["exit_code"], 0, "{line}: {result}");
        result["stdout"].as_str().unwrap().to_owned()
    }

    pub async fn write(&self, id: &str, path: &str, content: &str) {
        self.post(&format!("/sandboxes/{id}/files"), json!({"path": path, "content": content})).await.ok();
    }

    /// Polls until `reached` returns true; fails after [`PATIENCE`].
    pub async fn until(&self, what: &str, mut reached: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !reached().await {
            assert!(Instant::now() < deadline, "{what} did not come about; the log:\n{}", self.log_text());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub fn log_text(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// Returns the folders in which providers keep their boxes.
    fn provider_dirs(&self) -> [PathBuf; 3] {
        [self.data_dir().join("native"), self.data_dir().join("proot"), self.dir.path().join("data-proot")]
    }

    /// Ends the boxes of a server that a failed test has killed.
    fn end_boxes(&self) {
        let boxes = self.provider_dirs().map(|dir| std::fs::read_dir(dir.join("boxes")));
        for entry in boxes.into_iter().flatten().flatten().flatten() {
            let pid = std::fs::read_to_string(entry.path().join("pid")).unwrap_or_default();
            let pid = pid.split(' ').next().and_then(|pid| pid.parse().ok()).and_then(rustix::process::Pid::from_raw);
            if let Some(pid) = pid {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }

    /// Lists what a server with this data has left on the host.
    fn leftovers(&self) -> String {
        let mut left = String::new();
        for dir in self.provider_dirs() {
            for what in ["boxes", "trash"] {
                for entry in std::fs::read_dir(dir.join(what)).into_iter().flatten().flatten() {
                    let _ = writeln!(left, "of {what}: {}", entry.path().display());
                }
            }
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = self.dir.path().to_str().unwrap().to_owned();
        for line in mounts.lines().filter(|line| line.contains(&root)) {
            let _ = writeln!(left, "mount: {line}");
        }
        left
    }
}

/// Returns the object with `[key]` in place of each of these values, which differ from run to run.
#[track_caller]
pub fn redacted(mut object: Value, keys: &[&str]) -> Value {
    for key in keys {
        let value = object.get_mut(key).unwrap_or_else(|| panic!("there is no {key}"));
        *value = json!(format!("[{key}]"));
    }
    object
}

/// Returns the builder of an HTTP client.
pub fn http_client() -> reqwest::ClientBuilder {
    client::install_crypto();
    reqwest::Client::builder()
}

fn http() -> reqwest::Client {
    http_client().timeout(Duration::from_secs(300)).build().unwrap()
}

/// Keeps the log and finds the line with the server's address.
fn watch(stderr: impl std::io::Read + Send + 'static, log: Arc<Mutex<Vec<String>>>) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if let Some((_, rest)) = line.split_once("ready on http") {
                let rest: String = rest.chars().take_while(|c| !matches!(c, '"' | ' ')).collect();
                let _ = send.send(format!("http{rest}"));
            }
            log.lock().unwrap().push(line);
        }
    });
    receive
}

impl Drop for TestServer {
    /// Destroys the remaining sandboxes through the API, ends the server, and fails the test if
    /// anything stays or the log has errors.
    fn drop(&mut self) {
        if let Some(process) = &self.process {
            // A test that failed may have left it stopped, when it would never end.
            let pid = rustix::process::Pid::from_child(process);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::CONT);
            let key = self.settings.iter().find(|(name, _)| name == "auth.api_key").map(|(_, key)| key.clone());
            destroy_all(&self.url, key.unwrap_or_default());
            let code = self.terminate();
            if !std::thread::panicking() {
                assert_eq!(code, Some(0), "the server ends well:\n{}", self.log_text());
            }
        }
        if std::thread::panicking() {
            self.end_boxes();
            eprintln!("the server's log:\n{}", self.log_text());
            return;
        }
        let left = self.leftovers();
        assert!(left.is_empty(), "something is left:\n{left}");
        let is_trouble = |line: &&String| line.contains("\"ERROR\"") || line.contains("panicked");
        let log = self.log.lock().unwrap();
        let trouble: Vec<&String> = log
            .iter()
            .filter(is_trouble)
            .filter(|line| !self.expected_trouble.iter().any(|words| line.contains(words)))
            .collect();
        assert!(trouble.is_empty(), "the server complained: {trouble:#?}");
    }
}

fn with_key(request: RequestBuilder, key: Option<&str>) -> RequestBuilder {
    match key {
        Some(key) => request.header("X-API-Key", key),
        None => request,
    }
}

/// Destroys every sandbox, blocking: `drop` may run inside a runtime.
fn destroy_all(url: &str, key: String) {
    let url = url.to_owned();
    let done = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let http = http_client().timeout(PATIENCE).build().unwrap();
            let Ok(answer) = http.get(format!("{url}/api/v1/sandboxes")).header("x-api-key", &key).send().await else {
                return;
            };
            let Ok(sandboxes) = answer.json::<Vec<Value>>().await else { return };
            for sandbox in sandboxes {
                let id = sandbox["id"].as_str().unwrap_or_default();
                let _ = http.delete(format!("{url}/api/v1/sandboxes/{id}")).header("x-api-key", &key).send().await;
            }
        });
    });
    let _ = done.join();
}
