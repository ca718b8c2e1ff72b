//! What was begun with a key ends with the key.

use std::time::{Duration, Instant};

use reqwest::{Method, Response};
use serde_json::{Value, json};

use super::{ADMIN, API, Key, server};
use crate::server::{MOCK, PATIENCE, TestServer};
use crate::websocket::{Socket, open_at};

/// Longest time from the end of a key to that of a stream: a second, and the delays of a busy machine.
const SOON: Duration = Duration::from_secs(5);

/// Reads until the stream ends, and returns whether it broke off.
async fn broke_off(mut response: Response) -> bool {
    loop {
        match tokio::time::timeout(PATIENCE, response.chunk()).await.expect("the stream ends") {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

async fn next(response: &mut Response) {
    tokio::time::timeout(PATIENCE, response.chunk()).await.expect("something comes").unwrap().unwrap();
}

#[tokio::test]
async fn answers_that_stream_break_off_when_their_key_is_revoked_and_no_others_do() {
    let server = server("").await;
    let (ann, other) = (Key::of(&server, "ann").await, Key::of(&server, "ann").await);
    let id = ann.spawn().await;
    let started = json!({"command": "echo on; sleep 600", "stream": true, "timeout": "600s"});
    let begin = async |key: &Key<'_>| {
        let mut exec = key.request(Method::POST, &format!("/sandboxes/{id}/exec")).json(&started).send().await.unwrap();
        let mut events = key.request(Method::GET, "/events").send().await.unwrap();
        next(&mut exec).await;
        next(&mut events).await;
        [exec, events]
    };
    let [exec, events] = begin(&ann).await;
    let [mut kept_exec, mut kept_events] = begin(&other).await;
    let waiting = ann.request(Method::POST, &format!("/sandboxes/{id}/exec"));
    let waiting = tokio::spawn(waiting.json(&json!({"command": "sleep 600", "timeout": "600s"})).send());
    server
        .until("three commands run", async || {
            let history = String::from_utf8(server.get("/events?last_event_id=0&follow=false").await.bytes).unwrap();
            history.matches("event: exec.started").count() == 3
        })
        .await;
    let began = Instant::now();
    ann.revoke().await;
    assert!(broke_off(exec).await && broke_off(events).await);
    let refused = tokio::time::timeout(PATIENCE, waiting).await.expect("it is answered").unwrap().unwrap();
    assert_eq!(refused.status(), 401, "a command that is waited for is ended too");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    other.post(&format!("/sandboxes/{id}/files"), json!({"path": "/tmp/a", "content": ""})).await.ok();
    next(&mut kept_events).await;
    drop((kept_exec.chunk(), kept_events));
}

#[tokio::test]
async fn a_stream_ends_within_a_second_when_its_key_expires() {
    let server = server("").await;
    let ann = Key::create(&server, json!({"owner_id": "ann", "ttl": "2s"})).await;
    let began = Instant::now();
    let mut events = ann.request(Method::GET, "/events").send().await.unwrap();
    next(&mut events).await;
    assert!(broke_off(events).await);
    let lasted = began.elapsed();
    assert!(lasted > Duration::from_secs(1) && lasted < Duration::from_secs(2) + SOON, "{lasted:?}");
}

/// Opens a WebSocket with a key.
async fn open(key: &Key<'_>, path: &str) -> Socket {
    let opened = open_at(key.server, path, &[("X-API-Key", &key.secret)]).await;
    opened.map_err(|refused| format!("{path}: {refused:?}")).unwrap()
}

/// Reads the last message before the WebSocket is closed.
async fn last(mut socket: Socket) -> Value {
    let mut last = Value::Null;
    while let Some(message) = socket.next().await {
        if let Ok(text) = message.to_text()
            && let Ok(message) = serde_json::from_str(text)
        {
            last = message;
        }
    }
    last
}

#[tokio::test]
async fn web_sockets_say_why_they_end() {
    let server = server("").await;
    let ann = Key::of(&server, "ann").await;
    let id = ann.spawn().await;
    let mut exec = open(&ann, &format!("/sandboxes/{id}/exec/ws")).await;
    exec.say(json!({"type": "start", "command": "echo on; sleep 600", "timeout": "600s"})).await;
    exec.next().await.unwrap();
    let background = json!({"command": "sleep 600", "background": true});
    let process = ann.post(&format!("/sandboxes/{id}/exec"), background).await.ok();
    let process = &process["process_id"];
    let attached = open(&ann, &format!("/sandboxes/{id}/processes/{process}/attach")).await;
    let began = Instant::now();
    ann.revoke().await;
    for socket in [exec, attached] {
        let last = last(socket).await;
        assert_eq!(last["code"], "unauthorized", "{last}");
        assert!(last["message"].as_str().unwrap().contains("the key was revoked"), "{last}");
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    let kept = server.get(&format!("/sandboxes/{id}/processes/{process}")).await.ok();
    assert_eq!(kept["state"], "running", "a process in the background is the sandbox's, not the key's");
    let refused = open_at(&server, &format!("/sandboxes/{id}/exec/ws"), &[("X-API-Key", &ann.secret)]).await;
    assert_eq!(refused.err().map(|(status, _)| status), Some(401));
}

#[tokio::test]
async fn a_page_sends_a_key_as_a_subprotocol() {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    let server = server("").await;
    let (ann, bob) = (Key::of(&server, "ann").await, Key::of(&server, "bob").await);
    let id = ann.spawn().await;
    for (key, expected) in [(&ann, None), (&bob, Some(404))] {
        let offer = format!("tidebox.v1, tidebox.key.{}", URL_SAFE_NO_PAD.encode(&key.secret));
        let opened = open_at(&server, &format!("/sandboxes/{id}/exec/ws"), &[("sec-websocket-protocol", &offer)]).await;
        assert_eq!(opened.err().map(|(status, _)| status), expected);
    }
}

/// Settings of a server whose boxes are real, with previews.
fn native() -> String {
    format!(
        "providers.default=native server.preview_domain=box.example auth.enabled=true auth.api_key={API} \
         auth.admin_api_key={ADMIN}"
    )
}

const APP: &str = "import http.server, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(self.headers.get('x-api-key')).encode() + b'\\n')
        while self.path == '/slow':
            self.wfile.write(b'.')
            self.wfile.flush()
            time.sleep(0.1)
    def log_message(self, *a):
        pass
http.server.ThreadingHTTPServer(('127.0.0.1', 3000), Handler).serve_forever()
";

#[tokio::test]
async fn a_preview_and_a_download_end_with_the_key_and_are_hidden_from_others() {
    let mut server = TestServer::start(&native()).await;
    server.key = Some(ADMIN.to_owned());
    let (ann, bob) = (Key::of(&server, "ann").await, Key::of(&server, "bob").await);
    let id = ann.spawn().await;
    server.write(&id, "/tmp/app.py", APP).await;
    server.output(&id, "exec python3 /tmp/app.py </dev/null >/dev/null 2>&1 &").await;
    server
        .until("the program listens", async || {
            !server.get(&format!("/sandboxes/{id}/ports")).await.ok().as_array().unwrap().is_empty()
        })
        .await;
    let preview = async |key: &str, path: &str| {
        let request = server.http.get(format!("{}{path}", server.url)).header("Host", format!("3000-{id}.box.example"));
        request.header("X-API-Key", key).send().await.unwrap()
    };
    let shown = preview(&ann.secret, "/").await.text().await.unwrap();
    assert_eq!(shown, "None\n", "the program does not get the key");
    assert_eq!(preview(&bob.secret, "/").await.status(), 404);
    let read_only = Key::create(&server, json!({"owner_id": "ann", "scopes": ["sandboxes:read"]})).await;
    assert_eq!(preview(&read_only.secret, "/").await.status(), 403);

    let short = Key::create(&server, json!({"owner_id": "ann", "ttl": "10m"})).await;
    let link = short.post(&format!("/sandboxes/{id}/preview"), json!({"port": 3000, "ttl": "1h"})).await.ok();
    assert!(link["expires_at"].as_str() <= short.listed().await["expires_at"].as_str(), "{link}");
    bob.post(&format!("/sandboxes/{id}/preview"), json!({"port": 3000})).await.refused(404, "not_found", &id);

    server.output(&id, "head -c 200000000 /dev/zero > /tmp/large").await;
    let mut slow = preview(&ann.secret, "/slow").await;
    next(&mut slow).await;
    let mut download =
        ann.request(Method::GET, &format!("/sandboxes/{id}/files?path=/tmp/large")).send().await.unwrap();
    next(&mut download).await;
    ann.revoke().await;
    let began = Instant::now();
    // This program speaks HTTP/1.0, where the end of the connection is the end of the answer.
    broke_off(slow).await;
    assert!(broke_off(download).await, "half a file does not look like a whole one");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    assert_eq!(preview(&ann.secret, "/").await.status(), 401);
    server.delete(&format!("/sandboxes/{id}")).await.ok();
}

#[tokio::test]
async fn the_memory_of_a_key_without_authentication_is_charged_to_its_owner() {
    let mut server = TestServer::start(&format!("{MOCK} auth.admin_api_key={ADMIN}")).await;
    server.key = Some(ADMIN.to_owned());
    let ann = Key::of(&server, "ann").await;
    let id = ann.spawn().await;
    let body = "x".repeat(200_000);
    ann.post(&format!("/sandboxes/{id}/files"), json!({"path": "/tmp/a", "content": body})).await.ok();
    let answer = ann.get(&format!("/sandboxes/{id}/files?path=/tmp/a")).await;
    assert_eq!(answer.bytes.len(), 200_000);
}
