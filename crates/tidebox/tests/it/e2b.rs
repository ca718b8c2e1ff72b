//! The front for E2B's SDKs, over HTTP as they speak it.

mod builds;
mod control;
mod data;
mod files;
mod interpreter;
mod lives;
mod process;
mod rpc;
mod sdk;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::server::{Answer, MOCK, TestServer, http_client};

const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

/// Server with a client of E2B's.
struct E2b {
    server: TestServer,
    http: reqwest::Client,
}

impl E2b {
    /// Starts a server that asks for a key.
    async fn start(settings: &str) -> Self {
        let settings = format!("{settings} auth.enabled=true auth.api_key={KEY}");
        let server = TestServer::builder(&settings).key(KEY).start().await;
        Self { server, http: http_client().build().unwrap() }
    }

    async fn mock() -> Self {
        Self::start(MOCK).await
    }

    /// Begins a request without any credential.
    fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.server.url))
    }

    /// Begins a request to the control plane.
    fn asking(&self, method: Method, path: &str) -> RequestBuilder {
        self.bare(method, path).header("X-API-KEY", KEY)
    }

    async fn get(&self, path: &str) -> Answer {
        answer(self.asking(Method::GET, path)).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        answer(self.asking(Method::POST, path).json(&body)).await
    }

    async fn delete(&self, path: &str) -> Answer {
        answer(self.asking(Method::DELETE, path)).await
    }

    /// Makes a sandbox.
    async fn create(&self, mut body: Value) -> Sandbox {
        body["templateID"] = body.get("templateID").cloned().unwrap_or_else(|| json!("base"));
        let made = self.post("/v2/sandboxes", body).await;
        assert_eq!(made.status, 201, "{}", made.json());
        Sandbox::of(made.json())
    }

    /// Begins a request to the data plane of a sandbox, addressed by headers.
    fn inside(&self, method: Method, path: &str, sandbox: &Sandbox) -> RequestBuilder {
        let request = self.bare(method, path).header("E2b-Sandbox-Id", &sandbox.id).header("E2b-Sandbox-Port", "49983");
        request.header("X-Access-Token", &sandbox.token)
    }

    /// Makes a unary call.
    async fn call(&self, sandbox: &Sandbox, method: &str, body: Value) -> Answer {
        answer(self.inside(Method::POST, &format!("/{method}"), sandbox).json(&body)).await
    }
}

/// A sandbox, as the answer that made it says.
#[derive(Debug, Clone)]
struct Sandbox {
    id: String,
    token: String,
    answer: Value,
}

impl Sandbox {
    fn of(answer: Value) -> Self {
        let text = |name: &str| answer[name].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        Self { id: text("sandboxID"), token: text("envdAccessToken"), answer }
    }
}

async fn answer(request: RequestBuilder) -> Answer {
    Answer::read(request.send().await.unwrap()).await
}

/// Checks an error of the control plane, or of a route of the data plane that is no call.
#[track_caller]
fn refused(answer: &Answer, status: u16, words: &str) {
    let body = answer.json();
    assert_eq!(answer.status, status, "{body}");
    assert_eq!(body["code"], status, "{body}");
    let message = body["message"].as_str().unwrap();
    assert!(message.contains(words), "{body} lacks `{words}`");
}
