//! Connections out of a box.

use futures_util::StreamExt;
use providers::{EgressReason, EgressRequest, EgressRequests, Error, Spec};

use super::case::{Case, case};
use super::connection::{Connection, input};
use super::exec::DIRECT;
use super::subject::{Inside, Subject, argv, eventually, noise, soon};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(
            "a connection out of a box is asked for with the host and the port as they were written",
            asked,
            Processes,
            Egress
        ),
        case!(
            "bytes of a connection out of a box are passed on unchanged, both ways at once",
            unchanged,
            Processes,
            Egress
        ),
        case!(
            "the end of one way of a connection out of a box is not that of the other",
            half_closed,
            Processes,
            Egress
        ),
        case!("many connections out of a box do not mix", many, Processes, Egress),
        case!("a refused connection shows its process the status and the message", refused, Processes, Egress),
        case!("a request that is dropped is refused", dropped_request, Processes, Egress),
        case!("dropping a connection out of a box ends it in the box", dropped_connection, Processes, Egress),
        case!("a process that has hung up cannot be answered", hung_up, Processes, Egress),
        case!("before anything receives, the proxy refuses every connection", before, Processes, Egress),
        case!("a later receiver ends the earlier one, and connections go on", later, Processes, Egress),
        case!("without a receiver connections wait for the next one, and are then refused", without, Processes, Egress),
        case!("the end of a box ends its connections out and their receiver", box_ends, Processes, Egress),
        case!("the proxy speaks plain HTTP and SOCKS5 too", protocols, Processes, Egress),
        case!("the proxy is no port of the box", not_a_port, Processes, Egress),
        case!("a command's own variables stand over those of the proxy", variables, Processes, Egress),
        case!("an authority is found by each later program, and a later one takes its place", trust, Processes, Egress),
        case!("a box trusts the authority of its spec from the start", trust_from_the_start, Processes, Egress),
        case!("each slot has a proxy of its own", slots, Slots, Processes, Egress),
        case!("nothing asks for connections in a box that runs nothing", silent, Egress),
    ]
}

/// Connects to the proxy, with the connection as stdin and stdout of `/workspace/$1`.
const CONNECT: &str = r#"
proxy=${http_proxy#http://}
case $proxy in *@*) user=${proxy%@*}; AUTH="Proxy-Authorization: Basic $(printf %s "$user" | base64)
" ;; esac
export AUTH
port=${proxy##*:}
if command -v perl > /dev/null
then exec perl -e 'use IO::Socket::INET; $c = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$ARGV[0]") or die $!;
  open STDIN, "<&", $c; open STDOUT, ">&", $c; close $c; exec "/bin/sh", $ARGV[1]' "$port" "/workspace/$1"
else exec busybox nc 127.0.0.1 "$port" -e /bin/sh "/workspace/$1"
fi
"#;
/// Functions of the programs that run there.
const FUNCTIONS: &str = r#"
cr=$(printf '\r')
# Asks with the first line $1, and headers $2.
ask() { printf '%s\r\n%s%s\r\n' "$1" "${AUTH:+${AUTH%?}$cr
}" "$2"; }
head() { while IFS= read -r line && line=${line%$cr} && [ -n "$line" ]; do printf '%s\n' "$line"; done; }
tunnel() { ask "CONNECT $1 HTTP/1.1" "Host: $1$cr
"; head > "/workspace/$NAME.head"; }
"#;

/// Runs `script` with a connection to the proxy as its stdin and stdout. Its file `$NAME.done` says that
/// it has ended.
async fn client(inside: &Inside, name: &str, script: &str) {
    inside.write("/workspace/connect", CONNECT).await;
    let script = format!("NAME={name}\n{FUNCTIONS}\n{script}\necho > /workspace/{name}.done\n");
    inside.write(&format!("/workspace/{name}"), script).await;
    let run = format!("sh /workspace/connect {name} > /workspace/{name}.log 2>&1 < /dev/null &");
    let begun = inside.sh(&run).await;
    assert_eq!(begun.code(), 0, "{begun:?}");
}

/// Returns what the program wrote into a file, once it has ended.
async fn result(inside: &Inside, name: &str, file: &str) -> String {
    let done = format!("/workspace/{name}.done");
    eventually("the program has ended", || inside.exists(&done)).await;
    String::from_utf8(inside.read(&format!("/workspace/{name}{file}")).await).unwrap()
}

async fn receive(inside: &Inside) -> EgressRequests {
    soon("a receiver", inside.guest.egress()).await.unwrap()
}

async fn next(requests: &mut EgressRequests) -> EgressRequest {
    soon("a request", requests.next()).await.unwrap().unwrap()
}

async fn accept(request: EgressRequest) -> Connection {
    let (sender, input) = input();
    let output = soon("a connection", request.answer.accept(input)).await.unwrap();
    Connection::new(sender, output)
}

async fn asked(subject: Subject) {
    let inside = subject.start().await;
    let mut requests = receive(&inside).await;
    let asked = ["a.example:443", "Upper.Example.:1", "127.0.0.1:80", "[2001:db8::1]:65535", "0x7f.1:22"];
    for (number, authority) in asked.into_iter().enumerate() {
        client(&inside, &format!("c{number}"), &format!("tunnel {authority}")).await;
        let request = next(&mut requests).await;
        let (host, port) = authority.rsplit_once(':').unwrap();
        let host = host.trim_matches(['[', ']']);
        assert_eq!((request.host.as_str(), request.port.to_string().as_str()), (host, port));
        let _connection = accept(request).await;
        let head = result(&inside, &format!("c{number}"), ".head").await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    }
}

async fn unchanged(subject: Subject) {
    let inside = subject.start().await;
    let mut requests = receive(&inside).await;
    let sent = noise(3_000_000);
    inside.write("/workspace/noise", &sent).await;
    client(&inside, "c", "tunnel a.example:443\ncat /workspace/noise &\ncat > /workspace/back; wait").await;
    let mut connection = accept(next(&mut requests).await).await;
    connection.exchange(&sent).await;
    result(&inside, "c", ".head").await;
    assert!(inside.read("/workspace/back").await == sent);
}

async fn half_closed(subject: Subject) {
    let inside = subject.start().await;
    let mut requests = receive(&inside).await;
    client(&inside, "c", "tunnel a.example:443\nwc -c").await;
    let mut connection = accept(next(&mut requests).await).await;
    connection.send("12345").await;
    connection.send("678").await;
    connection.sender = None;
    assert_eq!(std::str::from_utf8(&connection.rest().await).unwrap().trim(), "8");
}

async fn many(subject: Subject) {
    let inside = subject.start().await;
    let mut requests = receive(&inside).await;
    let mut connections = Vec::new();
    for number in 0..12 {
        client(&inside, &format!("c{number}"), &format!("tunnel host-{number}:443\nread -r a; echo {number} $a")).await;
    }
    for _ in 0..12 {
        let request = next(&mut requests).await;
        let number = request.host.strip_prefix("host-").unwrap().to_owned();
        connections.push((number, accept(request).await));
    }
    for (number, connection) in &mut connections {
        connection.send(format!("to {number}\n")).await;
    }
    for (number, connection) in connections.iter_mut().rev() {
        connection.sender = None;
        assert_eq!(connection.rest().await, format!("{number} to {number}\n").as_bytes());
    }
}

async fn refused(subject: Subject) {
    let inside = subject.start().await;
    let mut requests = receive(&inside).await;
    for (number, (reason, status)) in [
        (EgressReason::Denied, 403),
        (EgressReason::Malformed, 400),
        (EgressReason::Busy, 429),
        (EgressReason::Unreachable, 502),
        (EgressReason::Timeout, 504),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("c{number}");
        client(&inside, &name, "tunnel a.example:443\nread -r line; echo \"$line\" > /workspace/$NAME.body").await;
        let message = format!("a.example:443 is refused for reason {number}");
        next(&mut requests).await.answer.refuse(reason, &message).await.unwrap();
        let head = result(&inside, &name, ".head").await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} {message}\n")), "{head}");
        assert!(head.to_ascii_lowercase().contains("content-type: text/plain"), "{head}");
        assert_eq!(result(&inside, &name, ".body").await.trim(), message);
    }
}

async fn dropped_request(subject: Subject) {
    let inside = subject.start().await;
    let mut requests = receive(&inside).await;
    client(&inside, "c", "tunnel a.example:443").await;
    drop(next(&mut requests).await);
    let head = result(&inside, "c", ".head").await;
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
}

async fn dropped_connection(subject: Subject) {
    let inside = subject.start().await;
    let mut requests = receive(&inside).await;
    client(&inside, "c", "tunnel a.example:443\ncat").await;
    let mut connection = accept(next(&mut requests).await).await;
    connection.echo().await;
    assert!(!inside.exists("/workspace/c.done").await);
    drop(connection);
    result(&inside, "c", ".head").await;
}

async fn hung_up(subject: Subject) {
    let inside = subject.start().await;
    let mut requests = receive(&inside).await;
    client(&inside, "c", "ask 'CONNECT a.example:443 HTTP/1.1'; echo $$ > /workspace/pid; exec sleep 60").await;
    let request = next(&mut requests).await;
    eventually("the pid is known", || inside.exists("/workspace/pid")).await;
    inside.sh("kill -9 $(cat /workspace/pid)").await;
    client(&inside, "d", "tunnel b.example:443").await;
    // It has connected later, so the end of the other one is seen before.
    accept(next(&mut requests).await).await;
    let answered = request.answer.accept(input().1).await.map(|_| ());
    assert!(matches!(answered, Err(Error::NotFound(_))), "{answered:?}");
}

async fn before(subject: Subject) {
    let inside = subject.start().await;
    if inside.sh("echo $http_proxy").await.text().trim().is_empty() {
        // The box has another network, and a proxy from the first receiver on.
        return;
    }
    client(&inside, "c", "tunnel a.example:443").await;
    let head = result(&inside, "c", ".head").await;
    assert!(head.starts_with("HTTP/1.1 403 this sandbox has no network"), "{head}");
}

async fn later(subject: Subject) {
    let inside = subject.start().await;
    let mut first = receive(&inside).await;
    client(&inside, "c", "tunnel a.example:443\ncat").await;
    let mut connection = accept(next(&mut first).await).await;
    client(&inside, "d", "tunnel b.example:443").await;
    let unanswered = next(&mut first).await;
    let mut second = receive(&inside).await;
    let end = soon("the end of the first receiver", first.next()).await;
    assert!(end.is_none(), "{end:?}");
    // What has no answer is asked again.
    let again = next(&mut second).await;
    assert_eq!((again.host.as_str(), again.port), ("b.example", 443));
    accept(again).await;
    drop(unanswered);
    connection.echo().await;
    client(&inside, "e", "tunnel c.example:443").await;
    assert_eq!(next(&mut second).await.host, "c.example");
}

async fn without(subject: Subject) {
    let inside = subject.start().await;
    drop(receive(&inside).await);
    client(&inside, "c", "tunnel a.example:443").await;
    let mut requests = receive(&inside).await;
    accept(next(&mut requests).await).await;
    assert!(result(&inside, "c", ".head").await.starts_with("HTTP/1.1 200"));
    drop(requests);
    client(&inside, "d", "tunnel a.example:443").await;
    let head = result(&inside, "d", ".head").await;
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
}

async fn box_ends(subject: Subject) {
    let inside = subject.start().await;
    let mut requests = receive(&inside).await;
    client(&inside, "c", "tunnel a.example:443\ncat").await;
    let mut connection = accept(next(&mut requests).await).await;
    connection.echo().await;
    subject.provider().stop(&inside.id).await.unwrap();
    let last = soon("the end of the connection", connection.output.next()).await;
    assert!(matches!(last, None | Some(Err(_))), "{last:?}");
    let last = soon("the end of the receiver", requests.next()).await;
    assert!(matches!(last, None | Some(Err(Error::Gone))), "{last:?}");
    let again = inside.guest.egress().await.map(|_| ());
    assert!(matches!(again, Err(Error::Gone)), "{again:?}");
}

async fn protocols(subject: Subject) {
    let inside = subject.start().await;
    let mut requests = receive(&inside).await;
    let plain = "ask 'GET http://a.example:8080/x?y HTTP/1.1' \"Host: b.example$cr\nX-Own: 1$cr\n\"; head > /workspace/$NAME.head";
    client(&inside, "c", plain).await;
    let request = next(&mut requests).await;
    assert_eq!((request.host.as_str(), request.port), ("a.example", 8080));
    let mut connection = accept(request).await;
    let mut asked = Vec::new();
    while !asked.ends_with(b"\r\n\r\n") {
        asked.extend_from_slice(&soon("a request", connection.output.next()).await.unwrap().unwrap());
    }
    let asked = String::from_utf8(asked).unwrap();
    let mut lines: Vec<_> = asked.trim_end().lines().collect();
    lines[1..].sort_unstable();
    assert_eq!(lines, ["GET /x?y HTTP/1.1", "Host: a.example:8080", "X-Own: 1"]);
    connection.send("HTTP/1.1 204 Nothing\r\nX-Host: 2\r\n\r\n").await;
    let head = result(&inside, "c", ".head").await;
    assert!(head.starts_with("HTTP/1.1 204 Nothing\n") && head.contains("X-Host: 2"), "{head}");
    // With a user and a password of 7 and 32 characters, as in the variables, or without.
    let socks = "proxy=${http_proxy#http://}; user=${proxy%@*}; skip() { dd bs=1 count=$1 > /dev/null; }\n\
        case $proxy in *@*) printf '\\005\\001\\002'; skip 2\n\
        printf '\\001\\007%s\\040%s' ${user%:*} ${user#*:}; skip 2 ;;\n\
        *) printf '\\005\\001\\000'; skip 2 ;; esac\n\
        printf '\\005\\001\\000\\003\\011c.example\\001\\273'; dd bs=1 count=10 > /workspace/$NAME.head; cat";
    client(&inside, "s", socks).await;
    let request = next(&mut requests).await;
    assert_eq!((request.host.as_str(), request.port), ("c.example", 443));
    let mut connection = accept(request).await;
    connection.echo().await;
    connection.sender = None;
    assert_eq!(result(&inside, "s", ".head").await.as_bytes(), [5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
}

async fn not_a_port(subject: Subject) {
    let inside = subject.start().await;
    let _requests = receive(&inside).await;
    let port = inside.sh("echo ${http_proxy##*:}").await.text().trim().parse().unwrap();
    assert_eq!(inside.guest.ports().await.unwrap(), []);
    let reached = inside.guest.connect(port, input().1).await.map(|_| ());
    assert!(matches!(reached, Err(Error::NotFound(_))), "{reached:?}");
}

async fn variables(subject: Subject) {
    let inside = subject.start().await;
    let _requests = receive(&inside).await;
    let show = "echo \"$http_proxy|$HTTP_PROXY|$https_proxy|$HTTPS_PROXY|$ALL_PROXY\"";
    let ran = inside.sh(show).await;
    let url = ran.text().trim().split('|').next().unwrap().to_owned();
    assert!(url.starts_with("http://") && url.contains("127.0.0.1:"), "{url}");
    assert_eq!(ran.text().trim(), [url.as_str(); 5].join("|"));
    assert_eq!(inside.sh("echo $no_proxy $NO_PROXY").await.text().trim(), [DIRECT; 2].join(" "));
    let mut own = argv(&["/bin/sh", "-c", show]);
    own.env.insert("HTTP_PROXY".to_owned(), "http://own.example".to_owned());
    own.env.insert("https_proxy".to_owned(), String::new());
    assert_eq!(inside.run(own).await.text().trim(), format!("|http://own.example|||{url}"));
}

/// Variables that name files of authorities.
const AUTHORITY_VARIABLES: [&str; 9] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "DENO_CERT",
];

/// Text in the place of a certificate, which no box reads.
fn certificate(name: &str) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{name}\n-----END CERTIFICATE-----\n")
}

/// Returns the end of the file that a variable names.
async fn authorities(inside: &Inside, variable: &str) -> String {
    inside.sh(&format!("tail -n 3 \"${variable}\"; wc -l <\"${variable}\"")).await.text().to_owned()
}

async fn trust(subject: Subject) {
    let inside = subject.start().await;
    assert_eq!(inside.sh("echo \"$SSL_CERT_FILE$NODE_EXTRA_CA_CERTS\"").await.text(), "\n");
    let lines = async |variable| -> usize {
        let text = authorities(&inside, variable).await;
        text.lines().last().and_then(|count| count.trim().parse().ok()).expect("a number of lines")
    };
    inside.guest.trust(&certificate("first")).await.unwrap();
    let before = lines("SSL_CERT_FILE").await;
    for name in ["second", "second"] {
        inside.guest.trust(&certificate(name)).await.unwrap();
        for variable in AUTHORITY_VARIABLES {
            let end = authorities(&inside, variable).await;
            assert!(end.starts_with(&certificate(name)), "{variable}: {end}");
        }
        assert_eq!(lines("NODE_EXTRA_CA_CERTS").await, 3);
        assert!(lines("SSL_CERT_FILE").await <= before + 3, "nothing is added twice");
    }
    let mut own = argv(&["/bin/sh", "-c", "echo $SSL_CERT_FILE $CURL_CA_BUNDLE"]);
    own.env.insert("SSL_CERT_FILE".to_owned(), "/own".to_owned());
    let ran = inside.run(own).await;
    assert!(ran.text().starts_with("/own /"), "{}", ran.text());
}

async fn trust_from_the_start(subject: Subject) {
    let spec = Spec { trust: Some(certificate("given")), ..subject.spec() };
    let inside = subject.start_as(&spec).await;
    let end = authorities(&inside, "SSL_CERT_FILE").await;
    assert!(end.starts_with(&certificate("given")), "{end}");
}

async fn silent(subject: Subject) {
    let inside = subject.start().await;
    let mut requests = receive(&inside).await;
    let mut second = receive(&inside).await;
    let none = tokio::time::timeout(std::time::Duration::from_millis(50), second.next()).await;
    assert!(none.is_err(), "{none:?}");
    subject.provider().stop(&inside.id).await.unwrap();
    for requests in [&mut requests, &mut second] {
        let last = soon("the end of the receiver", requests.next()).await;
        assert!(matches!(last, None | Some(Err(Error::Gone))), "{last:?}");
    }
}

async fn slots(subject: Subject) {
    let host = subject.host().await;
    let (one, other) = (subject.slot(&host).await, subject.slot(&host).await);
    let (mut of_one, mut of_other) = (receive(&one).await, receive(&other).await);
    client(&one, "c", "tunnel one.example:443\ncat").await;
    client(&other, "c", "tunnel other.example:443\ncat").await;
    for (requests, name) in [(&mut of_one, "one.example"), (&mut of_other, "other.example")] {
        let request = next(requests).await;
        assert_eq!(request.host, name);
        let mut connection = accept(request).await;
        connection.send(name).await;
        assert_eq!(connection.read(name.len()).await, name.as_bytes());
    }
    assert_eq!(one.guest.ports().await.unwrap(), []);
}
