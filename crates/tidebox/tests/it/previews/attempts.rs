//! Attempts against a preview, with their outcomes.

use fixtures::Engine;
use fixtures::image::Image;

use super::*;

/// Outcome that an attempt has to have.
enum Outcome {
    /// The program got the request. What it tells has these words, and lacks those.
    Passed(&'static str, &'static str),
    /// The server or the program answers with one of these statuses, and the program's answer is
    /// not there.
    Refused(&'static [u16]),
    /// The status and words of what came back.
    Came(u16, &'static str),
}
use Outcome::{Came, Passed, Refused};

/// The request of an attempt: `{H}` is the host of the preview, `{ID}` the sandbox, `{D}` the domain,
/// `{T}` a token for this port, `{K}` the key.
struct Attempt {
    what: &'static str,
    request: &'static str,
    outcome: Outcome,
}

const fn attempt(what: &'static str, request: &'static str, outcome: Outcome) -> Attempt {
    Attempt { what, request, outcome }
}

/// Attempts with hosts of all shapes.
const HOSTS: &[Attempt] = &[
    attempt("the name itself", "GET / HTTP/1.1\r\nHost: {H}\r\n\r\n", Passed("Host: {H}", "x-forwarded-for: 6")),
    attempt("with a port", "GET / HTTP/1.1\r\nHost: {H}:1234\r\n\r\n", Passed("Host: {H}:1234", "\u{0}")),
    attempt("with the dot of the root", "GET / HTTP/1.1\r\nHost: {H}.\r\n\r\n", Passed("GET / ", "\u{0}")),
    attempt("in upper case", "GET / HTTP/1.1\r\nHost: 3000-{IDUP}.BOX.EXAMPLE\r\n\r\n", Passed("GET / ", "\u{0}")),
    attempt("over HTTP/1.0", "GET / HTTP/1.0\r\nHost: {H}\r\n\r\n", Passed("GET / HTTP/1.1", "\u{0}")),
    attempt("in absolute form", "GET http://{H}/x HTTP/1.1\r\nHost: {H}\r\n\r\n", Passed("GET /x ", "\u{0}")),
    attempt("port 0", "GET / HTTP/1.1\r\nHost: 0-{ID}.{D}\r\n\r\n", Refused(&[400])),
    attempt("port 65536", "GET / HTTP/1.1\r\nHost: 65536-{ID}.{D}\r\n\r\n", Refused(&[400])),
    attempt("a port with a sign", "GET / HTTP/1.1\r\nHost: +3000-{ID}.{D}\r\n\r\n", Refused(&[400])),
    attempt("a second spelling of the port", "GET / HTTP/1.1\r\nHost: 03000-{ID}.{D}\r\n\r\n", Refused(&[400])),
    attempt("no port", "GET /api/v1/sandboxes HTTP/1.1\r\nHost: {ID}.{D}\r\n\r\n", Refused(&[400])),
    attempt("half an id", "GET / HTTP/1.1\r\nHost: 3000-sb-abc.{D}\r\n\r\n", Refused(&[400])),
    attempt("a user before the host", "GET / HTTP/1.1\r\nHost: a@{H}\r\n\r\n", Refused(&[400])),
    attempt("a label before it", "GET / HTTP/1.1\r\nHost: a.{H}\r\n\r\n", Refused(&[400])),
    attempt("an encoded dot", "GET / HTTP/1.1\r\nHost: 3000-{ID}%2e{D}\r\n\r\n", Refused(&[400])),
    attempt(
        "a domain of elsewhere behind it",
        "GET / HTTP/1.1\r\nHost: {H}.evil.example\r\n\r\n",
        Refused(&[400, 403]),
    ),
    attempt("another domain", "GET / HTTP/1.1\r\nHost: 3000-{ID}.evil.example\r\n\r\n", Refused(&[403])),
    attempt("two hosts", "GET / HTTP/1.1\r\nHost: {H}\r\nHost: {H}x\r\n\r\n", Refused(&[400])),
    attempt("the API's host and this one", "GET / HTTP/1.1\r\nHost: localhost\r\nHost: {H}\r\n\r\n", Refused(&[400])),
    attempt(
        "another host in the target",
        "GET http://localhost/api/v1/sandboxes HTTP/1.1\r\nHost: {H}\r\n\r\n",
        Refused(&[400]),
    ),
    attempt("this host in the target alone", "GET http://{H}/ HTTP/1.1\r\nHost: localhost\r\n\r\n", Refused(&[400])),
    attempt("no host", "GET / HTTP/1.1\r\n\r\n", Refused(&[400])),
    attempt(
        "a sandbox that is not there",
        "GET / HTTP/1.1\r\nHost: 3000-sb-aaaaaaaaaaaaaaaa.{D}\r\n\r\n",
        Refused(&[404]),
    ),
    attempt("a port that nothing listens on", "GET / HTTP/1.1\r\nHost: 3001-{ID}.{D}\r\n\r\n", Refused(&[502])),
    attempt(
        "a way to the API by its path",
        "GET /../../api/v1/sandboxes HTTP/1.1\r\nHost: {H}\r\n\r\n",
        Passed("GET /../../api/v1/sandboxes ", "\u{0}"),
    ),
    attempt("a forwarded host", "GET / HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Host: {H}\r\n\r\n", Refused(&[404])),
    attempt("CONNECT", "CONNECT {H}:3000 HTTP/1.1\r\nHost: {H}:3000\r\n\r\n", Refused(&[400])),
];

/// Attempts to make two readers see different requests.
const SMUGGLING: &[Attempt] = &[
    attempt(
        "both lengths",
        "POST / HTTP/1.1\r\nHost: {H}\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: {H}\r\n\r\n",
        Passed("\"body\": 0", "smuggled"),
    ),
    attempt(
        "two lengths",
        "POST / HTTP/1.1\r\nHost: {H}\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        Refused(&[400]),
    ),
    attempt("a length with a sign", "POST / HTTP/1.1\r\nHost: {H}\r\nContent-Length: +3\r\n\r\nabc", Refused(&[400])),
    attempt(
        "a coding in disguise",
        "POST / HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        Refused(&[400]),
    ),
    attempt(
        "a coding twice",
        "POST / HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        Refused(&[400]),
    ),
    attempt(
        "a space before the colon",
        "POST / HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        Refused(&[400]),
    ),
    attempt(
        "a folded line",
        "GET / HTTP/1.1\r\nHost: {H}\r\nX-A: 1\r\n Transfer-Encoding: chunked\r\n\r\n",
        Refused(&[400]),
    ),
    attempt("a bare CR in a value", "GET / HTTP/1.1\r\nHost: {H}\r\nX-A: 1\rX-B: 2\r\n\r\n", Refused(&[400])),
    attempt("a NUL in a value", "GET / HTTP/1.1\r\nHost: {H}\r\nX-A: 1\0\r\n\r\n", Refused(&[400])),
    attempt(
        "a bad size of a chunk",
        "POST / HTTP/1.1\r\nHost: {H}\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        Refused(&[0, 400, 502]),
    ),
    attempt(
        "a bare LF is a line's end for the program as well",
        "GET / HTTP/1.1\nHost: {H}\nX-A: 1\n\n",
        Passed("x-a: 1", "\\n"),
    ),
    // From the program's side.
    attempt(
        "an answer with both lengths",
        // HTTP/1.1 200 OK, Content-Length: 1, Transfer-Encoding: chunked, a chunk `ok`.
        "GET /raw/485454502f312e3120323030204f4b0d0a436f6e74656e742d4c656e6774683a20310d0a5472616e736665722d456e636f64696e673a206368756e6b65640d0a0d0a320d0a6f6b0d0a300d0a0d0a HTTP/1.1\r\nHost: {H}\r\nConnection: close\r\n\r\n",
        Came(502, ""),
    ),
    attempt(
        "an answer with two lengths",
        // HTTP/1.1 200 OK, Content-Length: 1, Content-Length: 2.
        "GET /raw/485454502f312e3120323030204f4b0d0a436f6e74656e742d4c656e6774683a20310d0a436f6e74656e742d4c656e6774683a20320d0a0d0a6f6b HTTP/1.1\r\nHost: {H}\r\n\r\n",
        Came(502, ""),
    ),
    attempt("an answer that is no HTTP", "GET /raw/68656c6c6f0d0a0d0a HTTP/1.1\r\nHost: {H}\r\n\r\n", Came(502, "")),
    attempt("no answer", "GET /raw/ HTTP/1.1\r\nHost: {H}\r\n\r\n", Came(502, "")),
    attempt(
        "a switch that was not asked for",
        // HTTP/1.1 101 X, Connection: upgrade, Upgrade: x.
        "GET /raw/485454502f312e3120313031205820590d0a436f6e6e656374696f6e3a20757067726164650d0a557067726164653a20780d0a0d0a HTTP/1.1\r\nHost: {H}\r\n\r\n",
        Came(502, ""),
    ),
];

/// Attempts to get headers to the program, or from it, that must not arrive.
const HEADERS: &[Attempt] = &[
    attempt(
        "keys",
        "GET / HTTP/1.1\r\nHost: {H}\r\nX-API-Key: {K}\r\nX-Admin-API-Key: {K}\r\n\r\n",
        Passed("GET / ", "{K}"),
    ),
    attempt(
        "a key as a bearer",
        "GET / HTTP/1.1\r\nHost: {H}\r\nAuthorization: Bearer {K}\r\n\r\n",
        Passed("GET / ", "{K}"),
    ),
    attempt(
        "the program's own bearer",
        "GET / HTTP/1.1\r\nHost: {H}\r\nAuthorization: Bearer its-own\r\n\r\n",
        Passed("Bearer its-own", "\u{0}"),
    ),
    attempt(
        "a token as a header",
        "GET / HTTP/1.1\r\nHost: {H}\r\nX-Preview-Token: {T}\r\n\r\n",
        Passed("GET / ", "{T}"),
    ),
    attempt(
        "a token in the query",
        "POST /?a=1&token={T} HTTP/1.1\r\nHost: {H}\r\nContent-Length: 0\r\n\r\n",
        Passed("POST /?a=1 ", "{T}"),
    ),
    attempt(
        "a token in the page before",
        "GET / HTTP/1.1\r\nHost: {H}\r\nReferer: http://{H}/?token={T}\r\n\r\n",
        Passed("referer: http://{H}/", "{T}"),
    ),
    attempt("the program's own token", "GET /?token=own HTTP/1.1\r\nHost: {H}\r\n\r\n", Passed("/?token=own", "\u{0}")),
    attempt(
        "our cookie",
        "GET / HTTP/1.1\r\nHost: {H}\r\nCookie: a=1; tidebox-preview={T}; b=2\r\n\r\n",
        Passed("cookie: a=1; b=2", "{T}"),
    ),
    attempt(
        "a made-up address",
        "GET / HTTP/1.1\r\nHost: {H}\r\nX-Forwarded-For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\n\r\n",
        Passed("x-forwarded-for: 127.0.0.1", "6.6.6.6"),
    ),
    attempt(
        "a made-up scheme",
        "GET / HTTP/1.1\r\nHost: {H}\r\nX-Forwarded-Proto: https\r\n\r\n",
        Passed("x-forwarded-proto: http\"", "https"),
    ),
    attempt(
        "headers between neighbours",
        "GET / HTTP/1.1\r\nHost: {H}\r\nConnection: x-a, host\r\nX-A: 1\r\nKeep-Alive: 5\r\nProxy-Authorization: Basic x\r\n\r\n",
        Passed("host: {H}", "x-a: 1"),
    ),
    attempt("an upgrade that is none", "GET / HTTP/1.1\r\nHost: {H}\r\nUpgrade: h2c\r\n\r\n", Passed("GET / ", "h2c")),
    attempt(
        "a loop",
        "GET / HTTP/1.1\r\nHost: {H}\r\nVia: 1.1 tidebox, 1.1 tidebox, 1.1 tidebox\r\nVia: 1.1 tidebox, 1.1 tidebox\r\n\r\n",
        Refused(&[508]),
    ),
    attempt(
        "a preflight, which is the program's",
        "OPTIONS / HTTP/1.1\r\nHost: {H}\r\nOrigin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n\r\n",
        Passed("OPTIONS / ", "\u{0}"),
    ),
    attempt("a method of the program's own", "BREW /pot HTTP/1.1\r\nHost: {H}\r\n\r\n", Passed("BREW /pot ", "\u{0}")),
    attempt("cookies for its neighbours", "GET / HTTP/1.1\r\nHost: {H}\r\n\r\n", Came(200, "set-cookie: own=1\r\n")),
    attempt(
        "the head alone",
        "HEAD /zeros/12345 HTTP/1.1\r\nHost: {H}\r\nConnection: close\r\n\r\n",
        Came(200, "content-length: 12345"),
    ),
];

/// Runs the attempts, and returns what went otherwise than expected.
async fn failures(server: &TestServer, id: &str, port: u16, attempts: &[Attempt]) -> Vec<String> {
    let token = token(server, id).await;
    let host = format!("{port}-{id}.{DOMAIN}");
    let upper = id.to_uppercase();
    let filled = |text: &str| {
        let names =
            [("{H}", host.as_str()), ("{IDUP}", &upper), ("{ID}", id), ("{D}", DOMAIN), ("{T}", &token), ("{K}", KEY)];
        names.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    };
    let mut failed = Vec::new();
    for Attempt { what, request, outcome } in attempts {
        let reply = raw(server, &filled(request)).await;
        let told = reply.body.to_lowercase();
        let is_of_program = told.contains("\"line\":");
        let is_as_expected = match outcome {
            Passed(words, absent) => {
                let has = |words: &str| told.contains(&filled(words).to_lowercase());
                reply.status == 200 && is_of_program && has(words) && !has(absent)
            }
            Refused(statuses) => statuses.contains(&reply.status) && !is_of_program,
            Came(status, words) => {
                reply.status == *status && format!("{}\r\n", reply.head).to_lowercase().contains(words)
            }
        };
        if !is_as_expected {
            failed.push(format!("{what}: {reply:?}"));
        }
        let marks = ["access-control-allow-origin", "tidebox-preview="];
        if marks.iter().any(|mark| is_of_program && reply.head.contains(mark)) {
            failed.push(format!("{what}: a header of the API's or a cookie by our name: {}", reply.head));
        }
    }
    failed
}

#[tokio::test]
async fn of_all_attempts_on_a_native_sandbox_only_the_honest_reach_the_program() {
    let server = server(false).await;
    let id = serving(&server).await;
    for attempts in [HOSTS, SMUGGLING, HEADERS] {
        let failed = failures(&server, &id, 3000, attempts).await;
        assert!(failed.is_empty(), "{failed:#?}");
    }
}

#[tokio::test]
async fn with_keys_on_nothing_reaches_a_program_without_one() {
    let server = server(true).await;
    let id = serving(&server).await;
    for Attempt { what, request, .. } in HOSTS {
        let request = request.replace("{H}", &host(&id)).replace("{IDUP}", &id.to_uppercase()).replace("{ID}", &id);
        let reply = raw(&server, &request.replace("{D}", DOMAIN)).await;
        assert!(!reply.body.contains("\"line\":") && matches!(reply.status, 400 | 401), "{what}: {reply:?}");
    }
    let keyed = |key: &str| format!("X-API-Key: {key}\r\nAuthorization: Bearer its-own\r\n");
    let told = get(&server, &host(&id), "/", &keyed(KEY)).await;
    assert!(told.body.contains("Bearer its-own") && !told.body.contains(KEY), "{told:?}");
    assert_eq!(get(&server, &host(&id), "/", &keyed("wrong")).await.status, 401);
}

/// Image of the Engine of the test below.
const IMAGE: &str = "team/system:1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_all_attempts_on_a_container_only_the_honest_reach_the_program() {
    let Some(image) = Image::alpine_like() else { return };
    let Some(engine) = Engine::start() else { return };
    engine.load(IMAGE, &image);
    let settings = format!(
        "providers.native.enabled=false providers.docker.enabled=true providers.default=docker \
         providers.docker.pull=never defaults.image={IMAGE} providers.docker.socket={} \
         server.preview_domain={DOMAIN} auth.api_key={KEY}",
        engine.socket().display()
    );
    let server = TestServer::start(&settings).await;
    let id = server.spawn().await;
    server.write(&id, "/tmp/app.sh", include_str!("app.sh")).await;
    let serve = "exec busybox nc -ll -p 3000 -e sh /tmp/app.sh </dev/null >/dev/null 2>&1 &";
    server.output(&id, serve).await;
    server
        .until("the program listens", async || {
            server.get(&format!("/sandboxes/{id}/ports")).await.ok().as_array().is_some_and(|ports| !ports.is_empty())
        })
        .await;
    for attempts in [HOSTS, SMUGGLING, HEADERS] {
        let failed = failures(&server, &id, 3000, attempts).await;
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
