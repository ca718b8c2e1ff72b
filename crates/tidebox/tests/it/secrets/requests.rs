//! Requests to hosts that secrets are bound to.

use super::*;

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
async fn as_root_a_program_that_knows_no_proxy_gets_secrets_put_in_as_well() {
    if !rustix::process::geteuid().is_root() {
        return fixtures::skip("root", "only root can divert connections");
    }
    let site = Site::start(&format!("{NATIVE} providers.native.transparent_egress=true"), |server| server).await;
    site.save("key", VALUE, "api.example").await;
    let id = site.spawn(&["key"]).await;
    let full = bearer(VALUE);
    for (host, sent) in [("api.example", vec![full.as_str()]), ("a.wild.example", vec![])] {
        let insecure = if sent.is_empty() { "--insecure" } else { "" };
        let seen = site.curl(&id, &format!("--noproxy '*' {insecure} https://{host}:{}/", site.hosts.port)).await;
        assert_eq!((seen.as_str(), site.hosts.asked().remove(0).header("authorization")), ("ok\n", sent), "{host}");
    }
    is_nowhere(&site.server, &id, VALUE).await;
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
    let trusted = "grep -c BEGIN /etc/ssl/certs/ca-certificates.crt";
    let count = site.server.output(&id, trusted).await;
    assert_eq!(site.curl(&id, "https://HERE/").await, "ok\n");
    site.server.kill();
    site.server.launch().await;
    site.server.until("a request to go through", async || site.curl(&id, "https://HERE/").await == "ok\n").await;
    let sent_again = async || site.server.output(&id, "cat $NODE_EXTRA_CA_CERTS").await != before;
    site.server.until("the certificate to be sent again", sent_again).await;
    assert_eq!(site.server.output(&id, trusted).await, count);
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

/// Returns a program that sends the bytes of its argument to `api.example`, and prints the first line of the answer.
fn client(port: u16) -> String {
    format!(
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
    )
}

#[tokio::test]
async fn requests_that_are_not_for_the_host_or_cannot_be_read_in_one_way_reach_nothing() {
    let site = Site::native().await;
    let Site { server, hosts, .. } = &site;
    site.save("key", VALUE, "api.example").await;
    let port = hosts.port;
    let plain = json!({"value": "theirs", "hosts": [format!("api.example:{port}")], "header": "x-secret"});
    server.put("/secrets/plain", plain).await.ok();
    let id = site.spawn(&["key", "plain"]).await;
    server.write(&id, "/workspace/client.py", &client(port)).await;
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
        // It is answered before it ends, and read on so that the answer is not lost.
        ("a long head", format!("GET / HTTP/1.1\\r\\n{host}a: ' + b'x' * 1000000 + b'\\r\\n\\r\\n"), "431"),
    ] {
        let answer = ask(&request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{name}: {answer}");
        let asked = hosts.asked();
        assert!(asked.is_empty(), "{name}: {asked:?}");
    }
    // Two ways to tell a length: the host gets one of them.
    let both = format!(
        "POST /echo HTTP/1.1\\r\\n{host}Content-Length: 40\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\nGET /inner HTTP/1.1\\r\\n\\r\\n"
    );
    ask(&both).await;
    for asked in hosts.asked() {
        let lengths = asked.header("content-length").len() + asked.header("transfer-encoding").len();
        assert!(lengths <= 1 && !asked.head.contains("/inner"), "{asked:?}");
    }
    // Trailers have the rules of headers.
    let trailed = format!(
        "POST /echo HTTP/1.1\\r\\n{host}Transfer-Encoding: chunked\\r\\nTrailer: x-secret, x-sum\\r\\n\\r\\n2\\r\\nab\\r\\n0\\r\\nX-Secret: mine\\r\\nX-Sum: 7\\r\\n\\r\\n"
    );
    assert_eq!(ask(&trailed).await, "HTTP/1.1 200 OK\n");
    let asked = hosts.asked();
    assert_eq!((asked[0].body.as_slice(), asked[0].header("x-secret")), (&b"ab"[..], vec!["theirs"]));
    assert!(asked[0].trailers.contains("x-sum: 7") && !asked[0].trailers.contains("mine"), "{asked:?}");
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
    assert!(answer.contains("TLS with the host failed") && answer.contains("certificate"), "{answer}");
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
