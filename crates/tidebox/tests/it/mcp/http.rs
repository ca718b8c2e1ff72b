//! The protocol over HTTP: who may use it.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::server::{NATIVE, TestServer, free_port};

pub const KEY: &str = "api-key-0123456789abcdef0123456789abcdef";

/// Server of the protocol, in front of a server with keys.
pub struct Served {
    pub server: TestServer,
    pub url: String,
    child: Child,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Served {
    pub async fn start(settings: &str, options: &[&str]) -> Self {
        let settings = format!("{NATIVE} server.path_proxy=true auth.enabled=true auth.api_key={KEY} {settings}");
        let mut server = TestServer::start(&settings).await;
        server.key = Some(KEY.to_owned());
        let mut child = mcp(&server, "127.0.0.1:0", options).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let said = stderr.lines().next().unwrap().unwrap();
        let url = said.rsplit(' ').next().unwrap().to_owned();
        assert!(url.starts_with("http://127.0.0.1:"), "{said}");
        Self { server, url, child }
    }

    fn request(&self, method: &str, params: Value) -> reqwest::RequestBuilder {
        let request = self.server.http.post(&self.url).header("Accept", "application/json, text/event-stream");
        request.json(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
    }

    /// Makes a request of the version without sessions.
    fn stateless(&self, method: &str, mut params: Value) -> reqwest::RequestBuilder {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        self.request(method, params).header("mcp-protocol-version", "2026-07-28").header("mcp-method", method)
    }
}

/// Returns the command of a server of the protocol. The operator's own key is not for callers.
fn mcp(server: &TestServer, address: &str, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidebox"));
    command.args(["mcp", "--listen", address]).args(options);
    command.env_clear().env("TIDEBOX_URL", &server.url).env("TIDEBOX_API_KEY", KEY);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn initialize() -> Value {
    json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}})
}

#[tokio::test]
async fn each_request_needs_a_key_of_its_own() {
    let served = Served::start("", &[]).await;
    for (header, value) in [("x-other", "1"), ("authorization", "Bearer wrong"), ("x-api-key", "wrong")] {
        let answer = served.request("initialize", initialize()).header(header, value).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{header}: {value}");
        assert_eq!(answer.headers()["www-authenticate"], "Bearer realm=\"tidebox\"");
        assert!(answer.text().await.unwrap().contains("Authorization: Bearer KEY"));
    }
    for (header, value) in [("authorization", format!("Bearer {KEY}")), ("x-api-key", KEY.to_owned())] {
        let answer = served.request("initialize", initialize()).header(header, value).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{header}");
        assert!(answer.text().await.unwrap().contains("\"serverInfo\""), "{header}");
    }
}

#[tokio::test]
async fn lists_may_be_kept_by_anyone() {
    let served = Served::start("", &[]).await;
    for method in ["tools/list", "resources/templates/list"] {
        let answer = served.stateless(method, json!({})).bearer_auth(KEY).send().await.unwrap();
        let text = answer.text().await.unwrap();
        assert!(text.contains("\"ttlMs\":3600000") && text.contains("\"cacheScope\":\"public\""), "{text}");
    }
}

#[tokio::test]
async fn web_pages_and_other_names_are_refused_unless_they_are_allowed() {
    let served = Served::start("", &["--allow-host", "mcp.test", "--allow-origin", "https://app.test:443"]).await;
    let mut seen = Vec::new();
    for (host, origin) in [
        (None, None),
        (Some("mcp.test"), None),
        (None, Some("https://app.test")),
        (Some("evil.test"), None),
        (None, Some("https://evil.test")),
        (None, Some("null")),
        (None, Some("http://localhost")),
    ] {
        let mut request = served.request("initialize", initialize()).header("x-api-key", KEY);
        for (name, value) in [("host", host), ("origin", origin)] {
            if let Some(value) = value {
                request = request.header(name, value);
            }
        }
        let answer = request.send().await.unwrap();
        seen.push(answer.status().as_u16());
        if answer.status() == StatusCode::FORBIDDEN {
            assert!(answer.text().await.unwrap().contains("--allow-host"));
        }
    }
    assert_eq!(seen, [200, 200, 200, 403, 403, 403, 403]);
}

#[tokio::test]
async fn a_server_without_keys_is_served_to_this_machine_alone() {
    let server = TestServer::start(NATIVE).await;
    let output = mcp(&server, &format!("0.0.0.0:{}", free_port()), &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("auth.enabled") && said.contains("127.0.0.1"), "{said}");
}

#[tokio::test]
async fn a_server_that_is_away_or_an_address_that_is_taken_is_named() {
    let server = TestServer::start(NATIVE).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = mcp(&server, &address, &[]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains(&address), "{said}");
    drop(taken);
    let mut away = mcp(&server, "127.0.0.1:0", &[]);
    let output = away.env("TIDEBOX_URL", format!("http://{address}")).output();
    let said = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(said.contains(&address), "{said}");
}

#[tokio::test]
async fn owners_see_their_own_sandboxes_alone() {
    let admin = "admin-key-0123456789abcdef0123456789abcdef";
    let served = Served::start(&format!("auth.admin_api_key={admin}"), &[]).await;
    let mut secrets = Vec::new();
    for owner in ["ada", "bob"] {
        let request = served.server.http.post(format!("{}/api/v1/admin/keys", served.server.url));
        let body = json!({"owner_id": owner, "scopes": ["sandboxes:read", "sandboxes:write"]});
        let answer = request.header("x-api-key", admin).json(&body).send().await.unwrap();
        let created: Value = answer.json().await.unwrap();
        secrets.push(created["secret"].as_str().unwrap().to_owned());
    }
    let call = async |secret: &str, tool: &str, arguments: Value| {
        let request = served.stateless("tools/call", json!({"name": tool, "arguments": arguments}));
        let answer = request.header("mcp-name", tool).bearer_auth(secret).send().await.unwrap();
        answer.text().await.unwrap()
    };
    let made = call(&secrets[0], "create_sandbox", json!({})).await;
    let id = made.split("Sandbox ").nth(1).unwrap_or_else(|| panic!("{made}")).split(':').next().unwrap().to_owned();
    assert!(call(&secrets[0], "list_sandboxes", json!({})).await.contains(&id));
    assert!(
        call(&secrets[0], "run_command", json!({"command": "echo of ada", "sandbox": id})).await.contains("of ada")
    );
    assert!(call(&secrets[1], "list_sandboxes", json!({})).await.contains("No sandbox"));
    for (tool, arguments) in [
        ("run_command", json!({"command": "echo of ada", "sandbox": id})),
        ("list_files", json!({"sandbox": id})),
        ("destroy_sandbox", json!({"sandbox": id})),
    ] {
        let refused = call(&secrets[1], tool, arguments).await;
        assert!(refused.contains("\"isError\":true") && !refused.contains("of ada"), "{tool}: {refused}");
    }
    assert!(call(&secrets[0], "destroy_sandbox", json!({"sandbox": id})).await.contains("is removed"));
}
