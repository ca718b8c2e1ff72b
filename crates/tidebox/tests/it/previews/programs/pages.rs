//! Pages of sandboxes in a real browser.

use super::*;
use crate::server::http_client;

/// Spawns a sandbox with the site on port 3000.
async fn with_site(server: &TestServer) -> String {
    let id = server.spawn().await;
    server.write(&id, "/workspace/site.py", SITE).await;
    start(server, &id, "exec python3 /workspace/site.py 3000").await;
    id
}

/// Checks that everything on the page of the site works, and that its console shows no error.
async fn works(browser: &mut Chromium) {
    let expected = json!(["rgb(1, 2, 3)", ["event 0", "event 1", "event 2"], [1000, "over a socket"], true]);
    assert_eq!(browser.evaluate("seen").await, expected);
    assert_eq!(browser.complaints(), [""; 0]);
}

#[tokio::test]
async fn a_browser_shows_a_page_with_its_files_events_and_socket_and_no_error() {
    let Some(mut browser) = Chromium::start().await else { return };
    let server = TestServer::start(NATIVE).await;
    let id = with_site(&server).await;
    let (_, port) = server.url.rsplit_once(':').unwrap();
    browser.open(&format!("http://3000-{id}.localhost:{port}/")).await;
    works(&mut browser).await;
    // Were there an error, it would show.
    assert_eq!(browser.evaluate("fetch('/missing').then(answer => answer.status)").await, 404);
    server
        .until("the console shows the error", async || {
            browser.evaluate("0").await;
            browser.complaints().iter().any(|complaint| complaint.contains("/missing"))
        })
        .await;
}

#[tokio::test]
async fn a_browser_opens_a_link_and_its_cookie_opens_all_that_the_page_asks_for() {
    let Some(mut browser) = Chromium::start().await else { return };
    let server = TestServer::builder(NATIVE).key(KEY).start().await;
    let id = with_site(&server).await;
    let link = link(&server, &id).await;
    browser.open(&link).await;
    works(&mut browser).await;
    let (bare, _) = link.split_once('?').unwrap();
    assert_eq!(browser.evaluate("[location.href, document.cookie, document.referrer]").await, json!([bare, "", ""]));
    browser.open(bare).await;
    works(&mut browser).await;
    let asked = server.output(&id, "cat /workspace/log").await;
    assert!(!asked.contains("tbp-") && asked.contains("GET /socket"), "{asked}");
}

#[tokio::test]
async fn a_browser_lets_no_page_of_a_sandbox_use_the_api_of_a_server_without_keys() {
    let Some(mut browser) = Chromium::start().await else { return };
    let server = TestServer::start(NATIVE).await;
    let (own, other) = (with_site(&server).await, server.spawn().await);
    let (_, port) = server.url.rsplit_once(':').unwrap();
    browser.open(&format!("http://3000-{own}.localhost:{port}/")).await;
    let api = format!("{}/api/v1/sandboxes/{other}", server.url);
    let attempts = format!(
        "(async () => {{
            const ask = (path, options) => fetch('{api}' + path, options)
                .then(answer => answer.type + answer.status, () => 'refused');
            const command = JSON.stringify({{command: 'touch /workspace/taken'}});
            const json = {{'Content-Type': 'application/json'}};
            const socket = new Promise(done => {{
                const socket = new WebSocket('{api}/exec/ws'.replace('http', 'ws'));
                socket.onopen = () => done('open');
                socket.onerror = () => done('refused');
            }});
            return [
                await ask('', {{}}),
                await ask('/exec', {{method: 'POST', headers: json, body: command}}),
                await ask('/exec', {{method: 'POST', mode: 'no-cors', body: command}}),
                await ask('', {{method: 'DELETE'}}),
                await socket,
            ];
        }})()"
    );
    let outcome = browser.evaluate(&attempts).await;
    assert_eq!(outcome, json!(["refused", "refused", "opaque0", "refused", "refused"]));
    assert_eq!(server.output(&other, "ls /workspace").await, "", "the page acted on another sandbox");
    for id in [own, other] {
        server.delete(&format!("/sandboxes/{id}")).await.ok();
    }
}

/// Checks that a page of one sandbox gets nothing of another, whose cookie the browser has. Below one
/// domain all are of one site for a browser, which sends the cookie along.
async fn keeps_cookies_apart(browser: &mut Chromium, server: &TestServer) {
    let (own, other) = (with_site(server).await, with_site(server).await);
    browser.open(&link(server, &own).await).await;
    works(browser).await;
    let before = server.output(&own, "cat /workspace/log").await;
    browser.open(&link(server, &other).await).await;
    works(browser).await;
    let (scheme, address) = server.url.split_once("://").unwrap();
    let target = format!("{scheme}://{}:{}", host(&own), address.rsplit_once(':').unwrap().1);
    let attempts = format!(
        "(async () => {{
            const socket = new Promise(done => {{
                const socket = new WebSocket('{target}/socket'.replace('http', 'ws'));
                socket.onopen = () => done('open');
                socket.onerror = () => done('refused');
            }});
            const hidden = new Promise(done => {{
                const image = new Image();
                image.onload = image.onerror = () => done('asked');
                image.referrerPolicy = 'no-referrer';
                image.src = '{target}/image';
            }});
            const ask = (path, options) => fetch('{target}' + path, {{credentials: 'include', ...options}})
                .then(answer => answer.type, () => 'refused');
            const headers = {{'Accept': 'text/html'}};
            return [
                await socket,
                await hidden,
                await ask('/open', {{mode: 'no-cors'}}),
                await ask('/hidden', {{mode: 'no-cors', referrerPolicy: 'no-referrer', headers}}),
                await ask('/posted', {{mode: 'no-cors', method: 'POST', body: 'x'}}),
                await ask('/read', {{}}),
            ];
        }})()"
    );
    let outcome = browser.evaluate(&attempts).await;
    assert_eq!(outcome, json!(["refused", "asked", "opaque", "opaque", "opaque", "refused"]));
    assert_eq!(server.output(&own, "cat /workspace/log").await, before, "the program of the other sandbox was asked");
    // A link that a person follows is another thing.
    browser.open(&format!("{target}/")).await;
    works(browser).await;
    for id in [own, other] {
        server.delete(&format!("/sandboxes/{id}")).await.ok();
    }
}

#[tokio::test]
async fn a_browser_lets_no_page_of_another_sandbox_use_the_cookie_over_plain_http() {
    let Some(mut browser) = Chromium::start().await else { return };
    keeps_cookies_apart(&mut browser, &server(true).await).await;
}

#[tokio::test]
async fn a_browser_lets_no_page_of_another_sandbox_use_the_cookie_over_https() {
    let Some(mut browser) = Chromium::start().await else { return };
    let names = ["127.0.0.1".to_owned(), format!("*.{DOMAIN}")];
    let (made, folder) = (rcgen::generate_simple_self_signed(names).unwrap(), tempfile::tempdir().unwrap());
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = format!("server.tls.cert_file={} server.tls.key_file={}", cert.display(), key.display());
    let settings = format!("{NATIVE} server.preview_domain={DOMAIN} {tls}");
    let mut server = TestServer::builder(&settings).key(KEY).start().await;
    let trusted = reqwest::Certificate::from_pem(made.cert.pem().as_bytes()).unwrap();
    server.http = http_client().add_root_certificate(trusted).build().unwrap();
    keeps_cookies_apart(&mut browser, &server).await;
    // Sockets have connections of HTTP/1.1 beside.
    let protocol = browser.evaluate("performance.getEntriesByType('navigation')[0].nextHopProtocol").await;
    assert_eq!(protocol, "h2");
}
