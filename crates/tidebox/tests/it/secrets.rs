//! Secrets: sent to the hosts that they are bound to, and seen nowhere else.

mod hosts;
mod kept;
mod requests;

use std::path::Path;

use fixtures::Engine;
use fixtures::image::Image;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Builder, NATIVE, TestServer};
use hosts::Hosts;

const NOBODY: u32 = 65_534;
/// Image of the Engine of these tests.
const IMAGE: &str = "team/system:1";
/// Names that lead to the hosts of a test.
const NAMES: [&str; 3] = ["api.example", "a.wild.example", "other.example"];
/// Value of a secret.
const VALUE: &str = "sk-4f1c-value-that-no-box-may-see";

/// A server with hosts that it can reach.
struct Site {
    server: TestServer,
    hosts: Hosts,
    /// Folder with the certificate of the hosts' authority.
    _folder: tempfile::TempDir,
}

impl Site {
    async fn start(settings: &str, prepare: impl FnOnce(Builder) -> Builder) -> Site {
        let hosts = Hosts::start(&NAMES).await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("authority.pem");
        std::fs::write(&file, &hosts.authority).unwrap();
        open_to_all(folder.path());
        let names = NAMES.map(|name| format!("egress.hosts.{name}=127.0.0.1")).join(" ");
        let settings =
            format!("{settings} egress.internal=127.0.0.1:{} secrets.ca_file={} {names}", hosts.port, file.display());
        Site { server: prepare(TestServer::builder(&settings)).start().await, hosts, _folder: folder }
    }

    async fn native() -> Site {
        Site::start(NATIVE, |server| server).await
    }

    /// Stores a secret for `host`, in the form of a bearer.
    async fn save(&self, name: &str, value: &str, host: &str) {
        let secret = json!({"value": value, "hosts": [format!("{host}:{}", self.hosts.port)]});
        self.server.put(&format!("/secrets/{name}"), secret).await.ok();
    }

    /// Spawns a box that may connect to every host, with these secrets.
    async fn spawn(&self, secrets: &[&str]) -> String {
        self.server.spawn_with(json!({"egress": {"mode": "open", "secrets": secrets}})).await
    }

    /// Runs curl in a box and returns what it prints.
    async fn curl(&self, id: &str, arguments: &str) -> String {
        let arguments = arguments.replace("HERE", &format!("api.example:{}", self.hosts.port));
        let result = self.server.exec(id, &format!("curl --silent --show-error --max-time 20 {arguments} 2>&1")).await;
        result["stdout"].as_str().unwrap().to_owned()
    }
}

fn open_to_all(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn bearer(value: &str) -> String {
    format!("Bearer {value}")
}

/// Program that looks for a value in the memory and the environment of every process that it can
/// read, and in every file. It gets the value backwards, so that it does not find itself.
const SEARCH: &str = r#"
import os, sys
value = sys.argv[1][::-1].encode()
found = []
def look(path, read):
    try:
        if value in read():
            found.append(path)
    except (OSError, ValueError, OverflowError):
        pass
for pid in filter(str.isdigit, os.listdir('/proc')):
    if int(pid) == os.getpid():
        continue
    for name in ('environ', 'cmdline'):
        path = f'/proc/{pid}/{name}'
        look(path, lambda: open(path, 'rb').read())
    try:
        maps = open(f'/proc/{pid}/maps').readlines()
        memory = open(f'/proc/{pid}/mem', 'rb', 0)
    except OSError:
        continue
    for line in maps:
        begin, end = (int(part, 16) for part in line.split()[0].split('-'))
        if line.split()[1].startswith('r') and end - begin < 1 << 28:
            def read():
                memory.seek(begin)
                return memory.read(end - begin)
            look(f'/proc/{pid}/mem', read)
for root, folders, files in os.walk('/'):
    folders[:] = [f for f in folders if os.path.join(root, f) not in ('/proc', '/sys', '/usr', '/dev')]
    for name in files:
        path = os.path.join(root, name)
        if os.path.isfile(path) and not os.path.islink(path):
            look(path, lambda: open(path, 'rb').read())
print(found)
"#;

/// Checks that a value is in nothing that the server shows or stores.
async fn is_nowhere(server: &TestServer, id: &str, value: &str) {
    let secret = server.get("/secrets/key").await.ok();
    assert_eq!(secret.get("value"), None, "{secret}");
    let paths = [
        "/secrets".to_owned(),
        "/admin/audit?limit=1000".to_owned(),
        "/metrics".to_owned(),
        "/metrics/prometheus".to_owned(),
        "/diagnostics".to_owned(),
        "/sandboxes".to_owned(),
        format!("/sandboxes/{id}"),
        format!("/sandboxes/{id}/egress"),
        format!("/sandboxes/{id}/logs"),
    ];
    for path in paths {
        let answer = server.request(Method::GET, &path).send().await.unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        assert!(!answer.text().await.unwrap().contains(value), "{path}");
    }
    let events = server.request(Method::GET, "/events?replay=true").header("last-event-id", "0").send().await.unwrap();
    let mut seen = Vec::new();
    let mut events = events;
    // Those of the past come at once.
    while let Ok(Ok(Some(piece))) = tokio::time::timeout(std::time::Duration::from_secs(1), events.chunk()).await {
        seen.extend_from_slice(&piece);
    }
    assert!(!String::from_utf8_lossy(&seen).contains(value), "events");
    assert!(!server.log_text().contains(value), "the log");
    let mut folders = vec![server.data_dir()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                // A file of a box may end meanwhile.
                let content = std::fs::read(entry.path()).unwrap_or_default();
                let is_found = content.windows(value.len()).any(|window| window == value.as_bytes());
                assert!(!is_found, "{}", entry.path().display());
            }
        }
    }
}

/// Sends requests to hosts with a secret and without one, and looks for its value.
async fn a_secret_reaches_its_host_alone(site: &Site) {
    let Site { server, hosts, .. } = site;
    let port = hosts.port;
    site.save("key", VALUE, "api.example").await;
    let id = site.spawn(&["key"]).await;
    // Each trusts the server's certificate by itself, and a key of the box is replaced.
    for line in [
        format!("curl --silent --show-error -H 'Authorization: Bearer placeholder' https://api.example:{port}/"),
        format!("curl --silent --show-error http://api.example:{port}/"),
        format!(
            "python3 -c 'import urllib.request as u; print(u.urlopen(\"https://api.example:{port}/\").read().decode())'"
        ),
    ] {
        let result = server.exec(&id, &format!("{line} 2>&1")).await;
        assert_eq!(result["stdout"].as_str().unwrap().trim(), "ok", "{line}: {result}");
        let asked = hosts.asked();
        assert_eq!(asked.len(), 1, "{line}: {asked:?}");
        assert_eq!((asked[0].host.as_str(), asked[0].header("authorization")), ("api.example", vec![&*bearer(VALUE)]));
    }
    // Another host, and the same server by its address. Their certificates are not ours.
    for other in [format!("other.example:{port}"), format!("127.0.0.1:{port}")] {
        let refused = server.exec(&id, &format!("curl --silent --noproxy '' https://{other}/")).await;
        assert_eq!(refused["exit_code"], 60, "{other}: {refused}");
        assert_eq!(
            server.output(&id, &format!("curl --silent --noproxy '' --insecure https://{other}/")).await,
            "ok\n"
        );
    }
    let redirected =
        format!("curl --silent --insecure --location --max-redirs 1 https://other.example:{port}/redirect");
    assert_eq!(server.output(&id, &redirected).await, "ok\n");
    let asked = hosts.asked();
    assert!(asked.len() == 4 && asked.iter().all(|asked| asked.header("authorization").is_empty()), "{asked:?}");
    let backwards: String = VALUE.chars().rev().collect();
    server.write(&id, "/workspace/search.py", SEARCH).await;
    assert_eq!(server.output(&id, &format!("python3 search.py {backwards}")).await, "[]\n");
    is_nowhere(server, &id, VALUE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_reaches_its_host_alone_from_a_native_box() {
    a_secret_reaches_its_host_alone(&Site::native().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_reaches_its_host_alone_from_a_native_box_of_an_ordinary_user() {
    if rustix::process::geteuid().is_root() {
        a_secret_reaches_its_host_alone(&Site::start(NATIVE, |server| server.user(NOBODY)).await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_reaches_its_host_alone_from_a_box_of_proot() {
    if fixtures::found("proot", &[]).is_some() {
        let proot = "providers.native.enabled=false providers.proot.enabled=true providers.default=proot";
        a_secret_reaches_its_host_alone(&Site::start(proot, |server| server).await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_reaches_its_host_from_a_container_whose_entry_point_trusts_the_authority_too() {
    let Some(image) = Image::alpine_like() else { return };
    let Some(engine) = Engine::start() else { return };
    let image =
        image.with("Entrypoint", json!(["sh", "-c", "echo file $SSL_CERT_FILE; cat $SSL_CERT_FILE; sleep 600"]));
    engine.load(IMAGE, &image);
    let settings = format!(
        "providers.native.enabled=false providers.docker.enabled=true providers.default=docker \
         providers.docker.pull=never defaults.image={IMAGE} providers.docker.socket={}",
        engine.socket().display()
    );
    let site = Site::start(&settings, |server| server).await;
    let Site { server, hosts, .. } = &site;
    site.save("key", VALUE, "api.example").await;
    let id = server.spawn_with(json!({"entrypoint": true, "egress": {"mode": "open", "secrets": ["key"]}})).await;
    assert_eq!(server.output(&id, &format!("busybox wget -q -O - http://api.example:{}/", hosts.port)).await, "ok\n");
    let asked = hosts.asked();
    assert_eq!(asked[0].header("authorization"), [bearer(VALUE)]);
    let files = server.output(&id, "cat $SSL_CERT_FILE $NODE_EXTRA_CA_CERTS").await;
    assert_eq!(files.matches("BEGIN CERTIFICATE").count(), 2, "the image has no authorities of its own: {files}");
    let (_, container) = engine.api("GET", "/containers/json", b"");
    let name = serde_json::from_slice::<Value>(&container).unwrap()[0]["Id"].as_str().unwrap().to_owned();
    let (_, inspected) = engine.api("GET", &format!("/containers/{name}/json"), b"");
    assert!(!String::from_utf8_lossy(&inspected).contains(VALUE));
    server
        .until("the entry point's output", async || {
            let logs = server.get(&format!("/sandboxes/{id}/logs")).await.ok().to_string();
            logs.contains("file /run/tidebox/all.pem") && logs.contains("BEGIN CERTIFICATE")
        })
        .await;
    is_nowhere(server, &id, VALUE).await;
}
