//! Secrets: sent to the hosts that they are bound to, and seen nowhere else.

mod hosts;

use std::path::Path;

use fixtures::Engine;
use fixtures::image::Image;
use reqwest::Method;
use serde_json::{Value, json};

use crate::cli::tidebox;
use crate::server::{Answer, Builder, MOCK, NATIVE, TestServer};
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

#[tokio::test]
async fn each_form_is_sent_in_its_header_in_the_place_of_what_the_box_sends() {
    let site = Site::native().await;
    let Site { server, hosts, .. } = &site;
    let host = format!("api.example:{}", hosts.port);
    for (name, secret) in [
        ("bearer", json!({"value": "one", "hosts": [host]})),
        ("basic", json!({"value": "two", "hosts": [host], "header": "X-Basic", "form": "basic:ann"})),
        ("plain", json!({"value": "three four", "hosts": [host], "header": "x-api-key"})),
        ("wild", json!({"value": "five", "hosts": [format!("*.wild.example:{}", hosts.port)], "header": "x-wild"})),
        ("second", json!({"value": "six", "hosts": [host], "header": "authorization"})),
        (
            "narrow",
            json!({"value": "seven", "hosts": [host, format!("a.wild.example:{}", hosts.port)], "header": "x-narrow"}),
        ),
    ] {
        server.put(&format!("/secrets/{name}"), secret).await.ok();
    }
    let narrow = format!("narrow@a.wild.example:{}", hosts.port);
    let id = site.spawn(&["bearer", "basic", "plain", "wild", "second", &narrow]).await;
    let own = "-H 'x-api-key: mine' -H 'X-API-Key: again' -H 'connection: x-api-key'";
    assert_eq!(site.curl(&id, &format!("{own} https://HERE/")).await, "ok\n");
    let asked = hosts.asked().remove(0);
    assert_eq!(asked.header("authorization"), ["Bearer one"], "the first of two for a header counts");
    assert_eq!(asked.header("x-basic"), ["Basic YW5uOnR3bw=="]);
    assert_eq!(asked.header("x-api-key"), ["three four"]);
    assert!(asked.header("x-wild").is_empty() && asked.header("x-narrow").is_empty(), "{asked:?}");
    assert_eq!(site.curl(&id, &format!("https://a.wild.example:{}/", hosts.port)).await, "ok\n");
    let asked = hosts.asked().remove(0);
    assert_eq!((asked.header("x-wild"), asked.header("x-narrow")), (vec!["five"], vec!["seven"]));
    assert!(asked.header("authorization").is_empty());
}

#[tokio::test]
async fn a_change_counts_from_the_next_request_on() {
    let site = Site::native().await;
    let Site { server, hosts, .. } = &site;
    site.save("key", "first", "api.example").await;
    // The box has no secret at first, and trusts no authority.
    let id = site.spawn(&[]).await;
    assert!(site.curl(&id, "https://HERE/").await.contains("certificate"));
    assert_eq!(hosts.asked().len(), 0);
    let egress = format!("/sandboxes/{id}/egress");
    let shown = server.put(&egress, json!({"mode": "open", "secrets": ["key"]})).await.ok();
    assert_eq!(shown["policy"], json!({"mode": "open", "secrets": ["key"]}));
    assert_eq!(site.curl(&id, "https://HERE/").await, "ok\n");
    assert_eq!(hosts.asked()[0].header("authorization"), [bearer("first")]);
    // On one connection that is kept: a request after each line.
    let client = format!(
        "import http.client, os, ssl, sys\n\
         proxy = os.environ['HTTPS_PROXY'].split('//')[1].split(':')\n\
         c = http.client.HTTPSConnection(proxy[0], int(proxy[1]))\n\
         c.set_tunnel('api.example', {})\n\
         for line in sys.stdin:\n    c.request('GET', '/'); print(c.getresponse().read(), flush=True)\n",
        hosts.port
    );
    server.write(&id, "/workspace/client.py", &client).await;
    server.output(&id, "mkfifo in; (python3 client.py <in >out 2>&1 &) ; (sleep 600 >in &)").await;
    let mut seen = 0;
    let mut next = async || {
        seen += 1;
        server.output(&id, "echo >in").await;
        let out = "wc -l <out 2>/dev/null || echo 0";
        server.until("an answer", async || server.output(&id, out).await.trim() == seen.to_string()).await;
        let asked = hosts.asked();
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked[0].header("authorization").join("|")
    };
    assert_eq!(next().await, bearer("first"));
    site.save("key", "second", "api.example").await;
    assert_eq!(next().await, bearer("second"));
    server.put(&egress, json!({"mode": "open"})).await.ok();
    assert_eq!(next().await, "");
    server.put(&egress, json!({"mode": "open", "secrets": ["key"]})).await.ok();
    assert_eq!(next().await, bearer("second"));
    server.delete("/secrets/key").await.ok();
    assert_eq!(next().await, "");
    // A new connection goes to the host itself, whose certificate the box does not trust.
    assert!(site.curl(&id, "https://HERE/").await.contains("certificate"));
}

#[tokio::test]
async fn a_box_trusts_its_authority_also_after_the_server_was_killed() {
    let mut site = Site::native().await;
    site.save("key", VALUE, "api.example").await;
    let id = site.spawn(&["key"]).await;
    let before = site.server.output(&id, "cat $NODE_EXTRA_CA_CERTS").await;
    assert_eq!(site.curl(&id, "https://HERE/").await, "ok\n");
    site.server.kill();
    site.server.launch().await;
    site.server.until("a request to go through", async || site.curl(&id, "https://HERE/").await == "ok\n").await;
    let asked = site.hosts.asked();
    assert_eq!(asked.last().unwrap().header("authorization"), [bearer(VALUE)]);
    // Also a program that began before, with the certificate of then.
    site.server.write(&id, "/workspace/before.pem", &before).await;
    assert_eq!(site.curl(&id, "--cacert before.pem https://HERE/").await, "ok\n");
    // The authority of one box is not that of another.
    let other = site.spawn(&["key"]).await;
    site.server.write(&other, "/workspace/before.pem", &before).await;
    assert!(site.curl(&other, "--cacert before.pem https://HERE/").await.contains("certificate"));
}

#[tokio::test]
async fn requests_that_are_not_for_the_host_or_cannot_be_read_in_one_way_reach_nothing() {
    let site = Site::native().await;
    let Site { server, hosts, .. } = &site;
    site.save("key", VALUE, "api.example").await;
    let id = site.spawn(&["key"]).await;
    let port = hosts.port;
    let client = format!(
        "import os, socket, ssl, sys\n\
         proxy = os.environ['HTTPS_PROXY'].split('//')[1].split(':')\n\
         s = socket.create_connection((proxy[0], int(proxy[1])))\n\
         s.sendall(b'CONNECT api.example:{port} HTTP/1.1\\r\\nHost: api.example:{port}\\r\\n\\r\\n')\n\
         assert b'200' in s.recv(4096)\n\
         s = ssl.create_default_context().wrap_socket(s, server_hostname='api.example')\n\
         s.settimeout(20)\n\
         s.sendall(eval(sys.argv[1]))\n\
         out = b''\n\
         try:\n    \
             while b'\\r\\n\\r\\n' not in out:\n        \
                 piece = s.recv(4096)\n        \
                 if not piece: break\n        \
                 out += piece\n\
         except OSError as error:\n    out += repr(error).encode()\n\
         print(out.split(b'\\r\\n')[0].decode())\n"
    );
    server.write(&id, "/workspace/client.py", &client).await;
    let ask = async |request: &str| server.output(&id, &format!("python3 client.py \"b'{request}'\"")).await;
    let host = format!("Host: api.example:{port}\\r\\n");
    assert_eq!(ask(&format!("GET / HTTP/1.1\\r\\n{host}\\r\\n")).await, "HTTP/1.1 200 OK\n");
    assert_eq!(ask(&format!("GET / HTTP/1.1\\r\\nHost: API.Example.:{port}\\r\\n\\r\\n")).await, "HTTP/1.1 200 OK\n");
    assert_eq!(ask(&format!("GET https://api.example:{port}/ HTTP/1.1\\r\\n{host}\\r\\n")).await, "HTTP/1.1 200 OK\n");
    assert_eq!(hosts.asked().len(), 3);
    for (name, request, status) in [
        ("another host", "GET / HTTP/1.1\\r\\nHost: other.example\\r\\n\\r\\n".to_owned(), "403"),
        ("no host", "GET / HTTP/1.1\\r\\n\\r\\n".to_owned(), "403"),
        ("two hosts", format!("GET / HTTP/1.1\\r\\n{host}{host}\\r\\n"), "403"),
        ("two hosts that differ", format!("GET / HTTP/1.1\\r\\n{host}Host: other.example\\r\\n\\r\\n"), "403"),
        ("another in the line", format!("GET https://other.example/ HTTP/1.1\\r\\n{host}\\r\\n"), "403"),
        ("a user before the host", format!("GET https://api.example@other.example/ HTTP/1.1\\r\\n{host}\\r\\n"), "403"),
        ("a user in the host", "GET / HTTP/1.1\\r\\nHost: other.example@api.example\\r\\n\\r\\n".to_owned(), "403"),
        ("trace", format!("TRACE / HTTP/1.1\\r\\n{host}\\r\\n"), "403"),
        ("connect", format!("CONNECT api.example:{port} HTTP/1.1\\r\\n{host}\\r\\n"), "403"),
        ("a folded line", format!("GET / HTTP/1.1\\r\\n{host}a: b\\r\\n c\\r\\n\\r\\n"), "400"),
        (
            "two lengths",
            format!("POST / HTTP/1.1\\r\\n{host}Content-Length: 1\\r\\nContent-Length: 2\\r\\n\\r\\nab"),
            "400",
        ),
        ("a space before a colon", format!("GET / HTTP/1.1\\r\\n{host}a : b\\r\\n\\r\\n"), "400"),
    ] {
        let answer = ask(&request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{name}: {answer}");
        let asked = hosts.asked();
        assert!(asked.is_empty(), "{name}: {asked:?}");
    }
    // The answer to a head without end may be lost with the connection, which is closed at once.
    let endless = ask(&format!("GET / HTTP/1.1\\r\\n{host}a: ' + b'x' * 1000000 + b'\\r\\n\\r\\n")).await;
    assert!(!endless.starts_with("HTTP/1.1 200") && hosts.asked().is_empty(), "{endless}");
    // Two ways to tell a length: the host gets one of them.
    let both = format!(
        "POST /echo HTTP/1.1\\r\\n{host}Content-Length: 40\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\nGET /inner HTTP/1.1\\r\\n\\r\\n"
    );
    ask(&both).await;
    for asked in hosts.asked() {
        let lengths = asked.header("content-length").len() + asked.header("transfer-encoding").len();
        assert!(lengths <= 1 && !asked.head.contains("/inner"), "{asked:?}");
    }
    let twice = ask(&format!("GET /twice HTTP/1.1\\r\\n{host}\\r\\n")).await;
    assert!(twice.starts_with("HTTP/1.1 502"), "{twice}");
    // The name in TLS has to be that of the host too.
    let named = site.curl(&id, &format!("--connect-to ::api.example:{port} https://other.example:{port}/")).await;
    assert!(named.contains("TLS") || named.contains("alert") || named.contains("access denied"), "{named}");
    assert!(hosts.asked().iter().all(|asked| asked.host == "api.example"));
}

#[tokio::test]
async fn the_policy_decides_on_hosts_with_secrets_as_on_others() {
    let site = Site::native().await;
    let Site { server, hosts, .. } = &site;
    site.save("key", VALUE, "api.example").await;
    let policy = json!({"mode": "allow-list", "allow": ["other.example"], "secrets": ["key"]});
    let id = server.spawn_with(json!({"egress": policy})).await;
    assert!(site.curl(&id, "https://HERE/").await.contains("403"));
    let (_, words) = (0, site.curl(&id, "http://HERE/").await);
    assert!(words.contains("the egress policy does not allow it"), "{words}");
    assert!(hosts.asked().is_empty());
    let egress = server.get(&format!("/sandboxes/{id}/egress")).await.ok();
    assert_eq!((&egress["allowed"], &egress["denied"]), (&json!(0), &json!(2)), "{egress}");
}

#[tokio::test]
async fn a_host_without_a_certificate_that_the_server_trusts_gets_no_request() {
    let site = Site::native().await;
    let Site { server, .. } = &site;
    let impostor = Hosts::start(&["api.example"]).await;
    let secret = json!({"value": VALUE, "hosts": [format!("api.example:{}", impostor.port)]});
    server.put("/secrets/key", secret).await.ok();
    let internal = server.exec(&site.spawn(&["key"]).await, "true").await;
    assert_eq!(internal["exit_code"], 0);
    // The operator lets the port of the impostor through.
    let mut site = site;
    let value = format!("127.0.0.1:{},127.0.0.1:{}", site.hosts.port, impostor.port);
    site.server.terminate();
    site.server.set("egress.internal", &value);
    site.server.launch().await;
    let id = site.spawn(&["key"]).await;
    let line = format!("curl --silent --show-error https://api.example:{}/ 2>&1", impostor.port);
    let answer = site.server.output(&id, &line).await;
    assert!(answer.contains("TLS with the host has failed") && answer.contains("certificate"), "{answer}");
    assert!(impostor.asked().is_empty());
}

#[tokio::test]
async fn streams_and_bodies_of_any_size_pass_both_ways() {
    let site = Site::native().await;
    let Site { server, hosts, .. } = &site;
    site.save("key", VALUE, "api.example").await;
    let id = site.spawn(&["key"]).await;
    server.output(&id, "head -c 30000000 /dev/urandom >body").await;
    for upload in ["--data-binary @body", "-H 'Transfer-Encoding: chunked' --data-binary @body", "-T body"] {
        assert_eq!(
            site.curl(&id, &format!("{upload} https://HERE/echo -o back; cmp body back && echo same")).await,
            "same\n"
        );
        let asked = hosts.asked().remove(0);
        assert_eq!((asked.body.len(), asked.header("authorization")), (30_000_000, vec![&*bearer(VALUE)]), "{upload}");
        assert!(asked.header("expect").is_empty());
    }
    // The first event comes before the last.
    let events = site.curl(&id, "--no-buffer https://HERE/events | head -n 1").await;
    assert_eq!(events, "data: 1\n");
    let client = format!(
        "import os, socket, ssl\n\
         proxy = os.environ['HTTPS_PROXY'].split('//')[1].split(':')\n\
         s = socket.create_connection((proxy[0], int(proxy[1])))\n\
         s.sendall(b'CONNECT api.example:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')\n\
         assert b'200' in s.recv(4096)\n\
         s = ssl.create_default_context().wrap_socket(s, server_hostname='api.example')\n\
         s.sendall(b'GET /switch HTTP/1.1\\r\\nHost: api.example\\r\\nConnection: Upgrade\\r\\nUpgrade: echo\\r\\n\\r\\n')\n\
         f = s.makefile('rb')\n\
         print(f.readline().decode().strip())\n\
         while f.readline() != b'\\r\\n': pass\n\
         print(f.read(5).decode())\n\
         s.sendall(b'there')\n\
         print(f.read(5).decode())\n",
        port = hosts.port
    );
    server.write(&id, "/workspace/switch.py", &client).await;
    assert_eq!(server.output(&id, "python3 switch.py 2>&1").await, "HTTP/1.1 101 Switching Protocols\nhello\nthere\n");
    assert_eq!(hosts.asked().last().unwrap().header("authorization"), [bearer(VALUE)]);
}

#[tokio::test]
async fn what_is_no_secret_is_refused_and_says_what_to_change() {
    let server = TestServer::start(MOCK).await;
    let put = async |body: Value| server.put("/secrets/key", body).await;
    for (body, words) in [
        (json!({"value": "", "hosts": ["a.example"]}), "`value` must be"),
        (json!({"value": "line\n", "hosts": ["a.example"]}), "line break"),
        (json!({"value": " a", "hosts": ["a.example"]}), "`value` must be"),
        (json!({"value": "ä", "hosts": ["a.example"]}), "`value` must be"),
        (json!({"value": "x".repeat(8193), "hosts": ["a.example"]}), "8192"),
        (json!({"value": "a", "hosts": [], "form": "plain"}), "`header` and `form` are for requests"),
        (json!({"value": "a", "header": "x-key"}), "`header` and `form` are for requests"),
        (json!({"value": "a\0", "hosts": []}), "without NUL"),
        (json!({"value": "a", "hosts": vec!["a.example"; 101]}), "`hosts` may name at most 100"),
        (json!({"value": "a", "hosts": ["*"]}), "`hosts[0]`"),
        (json!({"value": "a", "hosts": ["*.com"]}), "wildcard"),
        (json!({"value": "a", "hosts": ["10.0.0.1"]}), "is an address"),
        (json!({"value": "a", "hosts": ["10.0.0.0/8"]}), "is an address"),
        (json!({"value": "a", "hosts": ["a.example:80"]}), "plain HTTP"),
        (json!({"value": "a", "hosts": ["a.example"], "header": "Host"}), "`header` must be"),
        (json!({"value": "a", "hosts": ["a.example"], "header": "transfer-encoding"}), "`header` must be"),
        (json!({"value": "a", "hosts": ["a.example"], "header": "a b"}), "`header` must be"),
        (json!({"value": "a", "hosts": ["a.example"], "header": ""}), "`header` must be"),
        (json!({"value": "a", "hosts": ["a.example"], "form": "digest"}), "`form` must be"),
        (json!({"value": "a", "hosts": ["a.example"], "form": "basic:a:b"}), "`user` must"),
        (json!({"value": "a", "hosts": ["a.example"], "owners": ["a b"]}), "`owners[0]`"),
        (json!({"value": "a", "hosts": ["a.example"], "placeholder": "b"}), "placeholder"),
        (json!({"hosts": ["a.example"]}), "value"),
    ] {
        put(body.clone()).await.refused(400, "bad_request", words);
    }
    for name in ["a%20b", "a%2Fb", &"x".repeat(65)] {
        let answer = server.put(&format!("/secrets/{name}"), json!({"value": "a", "hosts": ["a.example"]})).await;
        answer.refused(400, "bad_request", "name of a secret");
    }
    assert_eq!(server.get("/secrets").await.ok(), json!([]));
    server.get("/secrets/key").await.refused(404, "not_found", "secret `key` does not exist");
    server.delete("/secrets/key").await.refused(404, "not_found", "secret `key` does not exist");
    // A policy names secrets that are there.
    for body in [json!({"egress": {"mode": "open", "secrets": ["key"]}})] {
        server.post("/sandboxes", body.clone()).await.refused(404, "not_found", "secret `key` does not exist");
        let template = json!({"name": "t", "egress": body["egress"]});
        server.post("/templates", template).await.refused(404, "not_found", "secret `key` does not exist");
    }
    for (secrets, words) in [
        (json!(["a b"]), "`egress.secrets[0]`: `a b` names no secret"),
        (json!([""]), "names no secret"),
        (json!(["key@*"]), "names a host that"),
        (json!(vec!["key"; 51]), "it may name 50"),
    ] {
        let body = json!({"egress": {"mode": "open", "secrets": secrets}});
        server.post("/sandboxes", body).await.refused(400, "bad_request", words);
    }
    let none = json!({"egress": {"mode": "none", "secrets": ["key"]}});
    server.post("/sandboxes", none).await.refused(400, "bad_request", "`egress.secrets` has no use");
}

#[tokio::test]
async fn a_secret_is_shown_without_its_value_and_kept_with_the_time_of_its_first_save() {
    let server = TestServer::start(MOCK).await;
    let first = server.put("/secrets/b", json!({"value": "1", "hosts": ["B.example", "*.c.example:8443"]})).await.ok();
    assert_eq!(first["hosts"], json!(["b.example", "*.c.example:8443"]));
    assert_eq!((&first["header"], &first["form"]), (&json!("authorization"), &json!("bearer")));
    server.put("/secrets/a", json!({"value": "1", "hosts": ["a.example"], "header": "X-Key"})).await.ok();
    let again = json!({"value": "2", "hosts": ["b.example"], "form": "basic:ann", "owners": ["ann"]});
    let second = server.put("/secrets/b", again).await.ok();
    assert_eq!(second["created_at"], first["created_at"]);
    assert_eq!((&second["form"], &second["owners"]), (&json!("basic:ann"), &json!(["ann"])));
    let all = server.get("/secrets").await.ok();
    let names: Vec<&str> = all.as_array().unwrap().iter().map(|secret| secret["name"].as_str().unwrap()).collect();
    assert_eq!((names, &all[0]["form"]), (vec!["a", "b"], &json!("plain")));
    assert_eq!(server.get("/secrets/b").await.ok(), second);
    server.delete("/secrets/b").await.ok();
    assert_eq!(server.get("/secrets").await.ok().as_array().unwrap().len(), 1);
    let audit = server.get("/admin/audit").await.ok();
    let actions: Vec<&str> = audit
        .as_array()
        .or(audit["entries"].as_array())
        .unwrap()
        .iter()
        .map(|entry| entry["action"].as_str().unwrap())
        .collect();
    assert_eq!(actions.iter().filter(|action| **action == "secrets.save").count(), 3, "{actions:?}");
    assert!(actions.contains(&"secrets.delete"));
}

#[tokio::test]
async fn only_the_admin_key_opens_secrets_and_only_their_owners_use_them() {
    let settings =
        format!("{NATIVE} auth.enabled=true auth.api_key={} auth.admin_api_key={}", "a".repeat(32), "b".repeat(32));
    let server = TestServer::builder(&settings).key(&"a".repeat(32)).start().await;
    let body = json!({"value": VALUE, "hosts": ["api.example"], "owners": ["ann"]});
    server.put("/secrets/key", body.clone()).await.refused(401, "unauthorized", "");
    server.get("/secrets").await.refused(401, "unauthorized", "");
    let saved = server.request(Method::PUT, "/secrets/key").header("x-admin-api-key", "b".repeat(32)).json(&body);
    assert!(Answer::read(saved.send().await.unwrap()).await.ok()["name"] == "key");
    let egress = json!({"mode": "open", "secrets": ["key"]});
    let id = server.spawn_with(json!({"owner_id": "ann", "egress": egress})).await;
    for owner in [json!({"owner_id": "bob", "egress": egress}), json!({"egress": egress})] {
        server.post("/sandboxes", owner).await.refused(404, "not_found", "secret `key` does not exist");
    }
    let other = server.spawn_with(json!({"owner_id": "bob"})).await;
    let put = server.put(&format!("/sandboxes/{other}/egress"), egress.clone()).await;
    put.refused(404, "not_found", "secret `key` does not exist");
    server.put(&format!("/sandboxes/{id}/egress"), egress).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_without_hosts_is_for_the_commands_that_name_it_and_stored_nowhere_else() {
    let server = TestServer::start(NATIVE).await;
    server.put("/secrets/key", json!({"value": VALUE, "owners": ["ann"]})).await.ok();
    server.put("/secrets/lines", json!({"value": "one\n two\n"})).await.ok();
    server.put("/secrets/bound", json!({"value": "three", "hosts": ["api.example"]})).await.ok();
    let id = server.spawn_with(json!({"owner_id": "ann"})).await;
    let exec = async |id: &str, variables: Value| {
        let command = json!({"command": "env; cat /proc/1/environ /proc/1/cmdline", "env": {"OWN": "1", "A": "plain"}, "env_secret": variables});
        server.post(&format!("/sandboxes/{id}/exec"), command).await
    };
    let shown = exec(&id, json!({"A": "key", "B": "lines"})).await.ok();
    let output = shown["stdout"].as_str().unwrap();
    for line in [&format!("A={VALUE}\n"), "B=one\n two\n\n", "OWN=1\n"] {
        assert!(output.contains(line), "{line}: {output}");
    }
    assert_eq!(output.matches(VALUE).count(), 1, "{output}");
    // The next command has none of it.
    assert!(!server.output(&id, "env").await.contains(VALUE));
    let arguments = ["exec", "-n", "--env-secret", "A=key", &id, "--", "printenv", "A"];
    let output = tokio::task::block_in_place(|| tidebox(&server, &arguments, b""));
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{VALUE}\n"), "{output:?}");
    let other = server.spawn_with(json!({"owner_id": "bob"})).await;
    exec(&other, json!({"A": "key"})).await.refused(404, "not_found", "secret `key` does not exist");
    exec(&id, json!({"A": "none"})).await.refused(404, "not_found", "secret `none` does not exist");
    exec(&id, json!({"A": "a b"})).await.refused(400, "bad_request", "`env_secret.A`: `a b` names no secret");
    exec(&id, json!({"A": "bound"})).await.refused(400, "bad_request", "never enters a sandbox");
    let policy = json!({"mode": "open", "secrets": ["key"]});
    server.put(&format!("/sandboxes/{id}/egress"), policy).await.refused(400, "bad_request", "bound to no host");
    is_nowhere(&server, &id, VALUE).await;
}

#[tokio::test]
async fn secrets_open_with_the_key_that_they_were_sealed_with_only() {
    let mut site = Site::native().await;
    site.save("key", VALUE, "api.example").await;
    let id = site.spawn(&["key"]).await;
    assert_eq!(site.curl(&id, "https://HERE/").await, "ok\n");
    site.server.terminate();
    let key = site.server.data_dir().join("secrets.key");
    let own = std::fs::read(&key).unwrap();
    assert_eq!(own.len(), 32);
    std::fs::write(&key, [7; 32]).unwrap();
    site.server.expect_trouble("sealed with another key");
    site.server.expect_trouble("a request failed");
    site.server.launch().await;
    let policy = json!({"egress": {"mode": "open", "secrets": ["key"]}});
    let other = site.server.spawn_with(policy).await;
    let answer = site.curl(&other, "https://HERE/").await;
    assert!(answer.contains("secret for it cannot be read"), "{answer}");
    assert!(site.hosts.asked().iter().all(|asked| asked.header("authorization") == [bearer(VALUE)]));
    site.server.terminate();
    std::fs::write(&key, own).unwrap();
    site.server.launch().await;
    site.server.until("a request to go through", async || site.curl(&id, "https://HERE/").await == "ok\n").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_keeps_secrets() {
    let server = TestServer::start(MOCK).await;
    let line = |arguments: &[&str], stdin: &[u8]| tidebox(&server, arguments, stdin);
    let set = ["secret", "set", "key", "--host", "api.example", "--header", "X-Key"];
    let output = tokio::task::block_in_place(|| line(&set, b"the value\n"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("x-key") && !text.contains("the value"), "{text}");
    let listed = String::from_utf8(line(&["secret", "list"], b"").stdout).unwrap();
    assert!(listed.contains("key") && listed.contains("api.example") && listed.contains("plain"), "{listed}");
    let refused = line(&["secret", "set", "key", "--host", "api.example"], b"");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("`value` must be"), "{refused:?}");
    assert_eq!(line(&["secret", "delete", "key"], b"").stdout, b"key\n");
    let gone = line(&["secret", "get", "key"], b"");
    assert!(String::from_utf8_lossy(&gone.stderr).contains("does not exist"), "{gone:?}");
}
