//! Package managers in a sandbox, against an internet of the test's own: each works where the
//! policy has its host, and is refused where it does not.

mod internet;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use fixtures::Engine;
use fixtures::image::Image;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Builder, NATIVE, TestServer};
use internet::Internet;

const NOBODY: u32 = 65_534;
/// Image of the Engine of these tests.
const IMAGE: &str = "team/tools:1";

/// Programs of the machine that go into it, from where Node.js and Go are installed, since Debian's
/// packages of them have hundreds of megabytes. Go looks for the folder of its tools.
const OF_MACHINE: [&str; 8] = [
    "usr/bin/node",
    "usr/bin/npm",
    "usr/lib/node_modules/npm",
    "usr/local/bin/node",
    "usr/local/bin/npm",
    "usr/local/lib/node_modules/npm",
    "usr/local/go/bin/go",
    "usr/local/go/pkg/tool/",
];

/// Longest time of a refusal.
const REFUSAL: Duration = Duration::from_secs(30);

/// A program that gets something from a host.
struct Tool {
    name: &'static str,
    host: &'static str,
    /// Shell line that gets it, with few attempts; `$HERE` is the host with its port.
    gets: &'static str,
    /// Shell line that succeeds if it is there.
    has: &'static str,
    /// Words that the program shows of a refusal.
    shows: &'static str,
}

/// Words of the proxy's reason, as a program shows them that passes it on.
const REASON: &str = "is refused: the egress policy does not allow it; add it to `egress.allow`";
/// Words of a program that passes on nothing but the status of the answer to `CONNECT`.
const STATUS: &str = "403";

const TOOLS: [Tool; 7] = [
    Tool {
        name: "curl",
        host: "web.example",
        gets: "curl --silent --show-error --output page https://$HERE/page",
        has: "grep -q 'hello from web.example' page",
        shows: STATUS,
    },
    Tool {
        name: "git",
        host: "git.example",
        gets: "git clone https://$HERE/repository.git clone",
        has: "grep -q 'from the repository' clone/file",
        shows: STATUS,
    },
    Tool {
        name: "pip3",
        host: "pypi.example",
        // Without a retry it says nothing of the reason.
        gets: "pip3 install --retries 1 --disable-pip-version-check --no-cache-dir --target python \
               --index-url https://$HERE/simple tidepy",
        has: "PYTHONPATH=python python3 -c 'import tidepy'",
        shows: REASON,
    },
    Tool {
        name: "npm",
        host: "npm.example",
        gets: "npm install --prefix node --fetch-retries 0 --no-audit --no-fund --no-update-notifier \
               --registry https://$HERE/ tidejs",
        has: "cd node && node -e 'require(\"tidejs\")'",
        shows: REASON,
    },
    Tool {
        name: "cargo",
        host: "crates.example",
        gets: "cd crate && CARGO_REGISTRIES_OWN_INDEX=sparse+https://$HERE/ CARGO_NET_RETRY=0 cargo fetch",
        has: "ls .cargo/registry/src/*/tiders-1.0.0/src/lib.rs",
        shows: STATUS,
    },
    Tool {
        name: "go",
        host: "go.example",
        gets: "cd module && GOPROXY=https://$HERE GONOSUMDB='*' GOFLAGS=-mod=mod GOTOOLCHAIN=local go mod download",
        has: "ls go/pkg/mod/code.example/tidego@v1.0.0/a.go",
        shows: REASON,
    },
    Tool {
        name: "apt-get",
        host: "deb.example",
        gets: "mkdir -p apt/lists/partial apt/archives/partial && \
               echo \"deb [trusted=yes] https://$HERE/debian ./\" >apt/sources && \
               apt-get -o APT::Sandbox::User= -o Dir::State=$HOME/apt -o Dir::State::status=/dev/null \
               -o Dir::Cache=$HOME/apt -o Dir::Etc::sourcelist=$HOME/apt/sources -o Dir::Etc::sourceparts=- \
               -o Acquire::https::CaInfo=$HOME/authority.pem -o Acquire::Retries=0 -o APT::Update::Error-Mode=any \
               update",
        has: "ls apt/lists/*_Packages*",
        shows: REASON,
    },
];

/// Variables that make the programs trust the authority, and find what the image has elsewhere.
const SETUP: &str = r#"
export HOME=/workspace/home PATH=/workspace/home/bin:$PATH:/usr/local/go/bin
cd "$HOME" || exit
A=$HOME/authority.pem
export CURL_CA_BUNDLE=$A SSL_CERT_FILE=$A PIP_CERT=$A NODE_EXTRA_CA_CERTS=$A npm_config_cafile=$A
export CARGO_HTTP_CAINFO=$A GIT_SSL_CAINFO=$A
"#;

/// Compiler that answers what `cargo fetch` asks of one: the real one has hundreds of megabytes.
const RUSTC: &str = r#"#!/bin/sh
if [ "$1" = -vV ]; then
  printf '%s\n' 'rustc 1.95.0' 'binary: rustc' 'commit-hash: unknown' 'commit-date: unknown' \
    'host: x86_64-unknown-linux-gnu' 'release: 1.95.0' 'LLVM version: 22.1.2'
else
  printf '%s\n' ___ lib___.rlib lib___.so lib___.so lib___.a lib___.so /usr off ___ unix 'target_os="linux"'
fi
"#;

const CRATE: &str = r#"
[package]
name = "own"
version = "1.0.0"
edition = "2021"

[dependencies]
tiders = { version = "1", registry = "own" }
"#;

/// Runs a line of a tool and returns its exit code, and both outputs together.
async fn run(server: &TestServer, id: &str, line: &str) -> (i64, String) {
    let result = server.exec(id, &format!("{SETUP}{{ {line}; }} 2>&1")).await;
    (result["exit_code"].as_i64().unwrap(), result["stdout"].as_str().unwrap().to_owned())
}

/// Writes what the tools need into the sandbox, and returns those that are there.
async fn furnish(server: &TestServer, id: &str, authority: &str) -> Vec<&'static Tool> {
    server.write(id, "/workspace/home/authority.pem", authority).await;
    server.write(id, "/workspace/home/bin/rustc", RUSTC).await;
    server.write(id, "/workspace/home/crate/Cargo.toml", CRATE).await;
    server.write(id, "/workspace/home/crate/src/lib.rs", "").await;
    let module = "module own\n\ngo 1.19\n\nrequire code.example/tidego v1.0.0\n";
    server.write(id, "/workspace/home/module/go.mod", module).await;
    // The machine's own is in a home folder, which a box does not see.
    let cargo = std::fs::read(env!("CARGO")).unwrap();
    let put = server.request(Method::PUT, &format!("/sandboxes/{id}/files/workspace/home/bin/cargo"));
    assert!(put.body(cargo).send().await.unwrap().status().is_success());
    assert_eq!(run(server, id, "chmod 755 bin/*").await.0, 0);
    let mut there = Vec::new();
    for tool in &TOOLS {
        if run(server, id, &format!("command -v {}", tool.name)).await.0 == 0 {
            there.push(tool);
        } else {
            fixtures::skip(tool.name, &format!("a box of the image `host` has no `{}`", tool.name));
        }
    }
    there
}

/// Returns the newest decision about a host.
async fn decision(server: &TestServer, id: &str, host: &str) -> Value {
    let egress = server.get(&format!("/sandboxes/{id}/egress")).await.ok();
    let decisions = egress["decisions"].as_array().unwrap();
    decisions.iter().find(|decision| decision["host"] == host).cloned().unwrap_or_else(|| panic!("{host}: {egress}"))
}

/// Runs each tool without its host in the policy, and with it.
async fn try_tools(prepare: impl FnOnce(&str) -> Builder) {
    let hosts = TOOLS.map(|tool| tool.host);
    let internet = Internet::start(&hosts).await;
    let port = internet.port;
    let mut settings = format!("egress.internal=127.0.0.1:{port}");
    for host in hosts {
        write!(settings, " egress.hosts.{host}=127.0.0.1").unwrap();
    }
    let server = prepare(&settings).start().await;
    let allowing = |hosts: &[&str]| {
        let allow: Vec<String> = hosts.iter().map(|host| format!("{host}:{port}")).collect();
        json!({"mode": "allow-list", "allow": allow})
    };
    let id = server.spawn_with(json!({"egress": allowing(&["else.example"])})).await;
    let tools = furnish(&server, &id, &internet.authority).await;
    for Tool { name, host, gets, has, shows } in &tools {
        let start = Instant::now();
        let (code, output) = run(&server, &id, &format!("HERE={host}:{port}; {gets}")).await;
        assert!(code != 0 && output.contains(shows), "{name} ended with {code}:\n{output}");
        assert!(start.elapsed() < REFUSAL, "{name} took {:?}:\n{output}", start.elapsed());
        if *shows == REASON {
            assert!(output.contains(&format!("egress to {host}:{port} {REASON}")), "{name}:\n{output}");
        }
        assert_ne!(run(&server, &id, has).await.0, 0, "{name}");
        assert!(!internet.was_asked(host), "{name}");
        let decision = decision(&server, &id, host).await;
        assert!(decision["reason"].as_str().unwrap().contains("policy"), "{name}: {decision}");
    }
    // What a program shows that sends the request itself to the proxy: the whole answer.
    let (_, output) = run(&server, &id, &format!("curl --silent http://web.example:{port}/")).await;
    assert_eq!(output.trim(), format!("egress to web.example:{port} {REASON}"));

    server.put(&format!("/sandboxes/{id}/egress"), allowing(&hosts)).await.ok();
    for Tool { name, host, gets, has, .. } in &tools {
        let (code, output) = run(&server, &id, &format!("HERE={host}:{port}; {gets}")).await;
        assert_eq!(code, 0, "{name}:\n{output}");
        assert_eq!(run(&server, &id, has).await.0, 0, "{name}:\n{output}");
        assert!(internet.was_asked(host), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn package_managers_work_where_the_policy_has_their_host_on_native() {
    try_tools(|settings| TestServer::builder(&format!("{NATIVE} {settings}"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn package_managers_work_where_the_policy_has_their_host_on_native_of_an_ordinary_user() {
    if rustix::process::geteuid().is_root() {
        try_tools(|settings| TestServer::builder(&format!("{NATIVE} {settings}")).user(NOBODY)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn package_managers_work_where_the_policy_has_their_host_on_proot() {
    if fixtures::found("proot", &[]).is_some() {
        let proot = "providers.native.enabled=false providers.proot.enabled=true providers.default=proot";
        try_tools(|settings| TestServer::builder(&format!("{proot} {settings}"))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn package_managers_work_where_the_policy_has_their_host_in_a_container_without_a_network() {
    if !fixtures::runs_here("docker-packages") {
        return;
    }
    let Some(engine) = Engine::start() else { return };
    let Some(image) = Image::debian_with(&["apt", "ca-certificates", "curl", "git", "python3-pip"]) else { return };
    engine.load(IMAGE, &image.and_of_machine(&OF_MACHINE));
    let docker = format!(
        "providers.native.enabled=false providers.docker.enabled=true providers.default=docker \
         providers.docker.pull=never defaults.image={IMAGE} providers.docker.socket={}",
        engine.socket().display()
    );
    try_tools(|settings| TestServer::builder(&format!("{docker} {settings}"))).await;
}
