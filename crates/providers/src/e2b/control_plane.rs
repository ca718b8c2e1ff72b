//! The control plane: sandboxes by HTTP and JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Client, Method, RequestBuilder};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::fault::Fault;
use super::http::{self, LIST_BYTES_MAX, SMALL_BYTES_MAX};

/// The most characters of an id: with a port before it, it is a label of a host name.
const ID_CHARS_MAX: usize = 57;
/// The most bytes of a name or a token that the service gives.
const TEXT_BYTES_MAX: usize = 4096;

/// A request for a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NewSandbox {
    #[serde(rename = "templateID")]
    pub(super) template_id: String,
    /// Lifetime in seconds.
    pub(super) timeout: u64,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) auto_pause: bool,
    #[serde(rename = "allow_internet_access")]
    pub(super) allow_internet_access: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<Network>,
}

/// Rules on connections out of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Network {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) allow_out: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) deny_out: Vec<String>,
    pub(super) allow_public_traffic: bool,
}

/// A sandbox that was made, or connected to.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Made {
    #[serde(rename = "sandboxID")]
    pub(super) sandbox_id: String,
    pub(super) envd_access_token: Option<String>,
    pub(super) domain: Option<String>,
}

/// A sandbox as the service describes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Described {
    #[serde(rename = "sandboxID")]
    pub(super) sandbox_id: String,
    pub(super) state: String,
    #[serde(default)]
    pub(super) metadata: Option<BTreeMap<String, String>>,
    pub(super) started_at: Option<String>,
    pub(super) envd_access_token: Option<String>,
    pub(super) domain: Option<String>,
    #[serde(rename = "memoryMB")]
    pub(super) memory_mb: Option<u64>,
    pub(super) cpu_count: Option<u64>,
}

impl Described {
    /// Returns the value of a label.
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.metadata.as_ref()?.get(name).map(String::as_str)
    }

    /// Returns whether it can be used: a paused one is resumed for that.
    pub(super) fn is_running(&self) -> bool {
        matches!(self.state.as_str(), "running" | "paused")
    }
}

/// A sample of what a sandbox uses.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metric {
    pub(super) mem_used: Option<u64>,
    pub(super) disk_used: Option<u64>,
}

/// Sandboxes on a page, and the token of the next page.
pub(super) type Page = (Vec<Described>, Option<String>);

/// The control plane of an account.
pub(super) struct ControlPlane {
    pub(super) http: Client,
    /// Base URL without a slash at its end.
    pub(super) base: String,
    pub(super) api_key: SecretString,
    /// The longest wait for an answer.
    pub(super) timeout: Duration,
}

impl ControlPlane {
    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.base)).header("x-api-key", self.api_key.expose_secret())
    }

    async fn json<T: DeserializeOwned>(&self, request: RequestBuilder, bytes_max: usize) -> Result<T, Fault> {
        http::json(request, bytes_max, self.timeout).await
    }

    /// Sends a request whose answer has nothing to read.
    async fn order(&self, request: RequestBuilder) -> Result<(), Fault> {
        http::send(request, self.timeout).await.map(drop)
    }

    /// Makes a sandbox. A repeat with the same `key` returns the same one.
    pub(super) async fn create(&self, key: &str, new: &NewSandbox) -> Result<Made, Fault> {
        let request = self.request(Method::POST, "/v2/sandboxes").header("idempotency-key", key).json(new);
        let made: Made = self.json(request, SMALL_BYTES_MAX).await?;
        check_made(made)
    }

    /// Describes a sandbox.
    pub(super) async fn sandbox(&self, id: &str) -> Result<Described, Fault> {
        let described: Described =
            self.json(self.request(Method::GET, &format!("/sandboxes/{id}")), SMALL_BYTES_MAX).await?;
        if described.sandbox_id != id {
            return Err(Fault::Protocol("it described another sandbox".to_owned()));
        }
        check_token(described.envd_access_token.as_deref())?;
        check_domain(described.domain.as_deref())?;
        Ok(described)
    }

    /// Lists a page of the sandboxes with these labels, running and paused.
    pub(super) async fn list(&self, labels: &[(&str, &str)], limit: u32, token: Option<&str>) -> Result<Page, Fault> {
        let mut query = format!("?state=running%2Cpaused&limit={limit}&metadata={}", metadata(labels));
        if let Some(token) = token {
            query.push_str("&nextToken=");
            query.push_str(&encoded(token));
        }
        let listed = async {
            let response =
                http::send(self.request(Method::GET, &format!("/v2/sandboxes{query}")), self.timeout).await?;
            let next = response.headers().get("x-next-token").and_then(|value| value.to_str().ok()).map(str::to_owned);
            let sandboxes: Vec<Described> = http::parse(&http::body(response, LIST_BYTES_MAX).await?)?;
            for sandbox in &sandboxes {
                check_id(&sandbox.sandbox_id)?;
            }
            Ok((sandboxes, next.filter(|next| !next.is_empty() && next.len() <= TEXT_BYTES_MAX)))
        };
        tokio::time::timeout(self.timeout, listed).await.unwrap_or(Err(Fault::Timeout(self.timeout)))
    }

    /// Ends a sandbox.
    pub(super) async fn kill(&self, id: &str) -> Result<(), Fault> {
        self.order(self.request(Method::DELETE, &format!("/sandboxes/{id}"))).await
    }

    /// Sets the lifetime of a sandbox from now on, in seconds.
    pub(super) async fn set_timeout(&self, id: &str, seconds: u64) -> Result<(), Fault> {
        let request = self.request(Method::POST, &format!("/sandboxes/{id}/timeout"));
        self.order(request.json(&json!({"timeout": seconds}))).await
    }

    /// Resumes a sandbox that is paused, with a lifetime of at least these seconds.
    pub(super) async fn connect(&self, id: &str, seconds: u64) -> Result<Made, Fault> {
        let request = self.request(Method::POST, &format!("/v2/sandboxes/{id}/connect"));
        let made: Made = self.json(request.json(&json!({"timeout": seconds})), SMALL_BYTES_MAX).await?;
        if made.sandbox_id != id {
            return Err(Fault::Protocol("it connected to another sandbox".to_owned()));
        }
        check_made(made)
    }

    /// Pauses a sandbox.
    pub(super) async fn pause(&self, id: &str) -> Result<(), Fault> {
        self.order(self.request(Method::POST, &format!("/sandboxes/{id}/pause")).json(&json!({}))).await
    }

    /// Returns the samples of what a sandbox uses, the newest last.
    pub(super) async fn metrics(&self, id: &str) -> Result<Vec<Metric>, Fault> {
        self.json(self.request(Method::GET, &format!("/sandboxes/{id}/metrics")), LIST_BYTES_MAX).await
    }

    /// Checks that the service accepts requests, and the key. Reads nothing of the answer.
    pub(super) async fn probe(&self, labels: &[(&str, &str)]) -> Result<(), Fault> {
        self.list(labels, 1, None).await.map(drop)
    }
}

/// Encodes labels for the query: each name and value once, as a form, and the form as a value.
fn metadata(labels: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = labels
        .iter()
        .map(|(name, value)| format!("{}={}", encoded(&encoded(name)), encoded(&encoded(value))))
        .collect();
    encoded(&pairs.join("&"))
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn check_made(made: Made) -> Result<Made, Fault> {
    check_id(&made.sandbox_id)?;
    check_token(made.envd_access_token.as_deref())?;
    check_domain(made.domain.as_deref())?;
    Ok(made)
}

/// Checks that an id can stand in a path and in a host name.
fn check_id(id: &str) -> Result<(), Fault> {
    let fits = (1..=ID_CHARS_MAX).contains(&id.len());
    let is_label = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if fits && is_label { Ok(()) } else { Err(Fault::Protocol("the id of a sandbox cannot be one".to_owned())) }
}

/// Checks that a token can stand in a header.
fn check_token(token: Option<&str>) -> Result<(), Fault> {
    let is_fit = |token: &str| token.len() <= TEXT_BYTES_MAX && token.bytes().all(|byte| byte.is_ascii_graphic());
    if token.is_none_or(is_fit) { Ok(()) } else { Err(Fault::Protocol("an access token cannot be one".to_owned())) }
}

/// Checks that a domain is one, maybe with a port.
fn check_domain(domain: Option<&str>) -> Result<(), Fault> {
    let is_fit = |domain: &str| {
        domain.len() <= 253
            && domain.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b':'))
    };
    if domain.is_none_or(is_fit) { Ok(()) } else { Err(Fault::Protocol("a domain cannot be one".to_owned())) }
}

/// Returns a description as JSON writes it, for tests.
#[cfg(test)]
pub(super) fn described(value: serde_json::Value) -> Described {
    serde_json::from_value(value).expect("it describes a sandbox")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn labels_are_encoded_three_times() {
        assert_eq!(metadata(&[("k", "v w")]), "k%3Dv%252520w");
        assert_eq!(metadata(&[("a", "b"), ("c", "d")]), "a%3Db%26c%3Dd");
        assert_eq!(metadata(&[("x.y", "1")]), "x%25252Ey%3D1");
    }

    #[test]
    fn what_cannot_be_an_id_a_token_or_a_domain_is_refused() {
        for id in ["", "a/b", "a b", "..", "a.b", "a?b", &"x".repeat(58)] {
            assert!(check_id(id).is_err(), "{id}");
        }
        for id in ["sb-mzxw6ytbojtg633c", "ixyz123", "A_b"] {
            check_id(id).unwrap();
        }
        assert!(check_token(Some("a\nb")).is_err() && check_token(Some("a b")).is_err());
        check_token(None).unwrap();
        assert!(check_domain(Some("a/b")).is_err() && check_domain(Some("a@b")).is_err());
        check_domain(Some("boxes.example.org:8443")).unwrap();
    }

    #[test]
    fn a_description_may_lack_what_is_optional() {
        let least = described(json!({"sandboxID": "a", "state": "running", "surprise": 1, "metadata": null}));
        assert!(least.is_running() && least.label("x").is_none());
        assert!(!described(json!({"sandboxID": "a", "state": "killed"})).is_running());
    }
}
