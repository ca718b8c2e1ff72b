//! The data plane of a sandbox: its address, its token, and requests to it.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION};
use reqwest::{Client, Method, RequestBuilder};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connect::{self, Messages};
use super::fault::Fault;
use super::http;

/// Port of the data plane.
pub(super) const PORT: u16 = 49983;

/// The place of the data planes of all sandboxes.
#[derive(Debug, Clone)]
pub(super) enum DataPlane {
    /// One address, where headers name the sandbox; without a slash at its end.
    Url(String),
    /// A domain below which each sandbox has a name.
    Domain(String),
}

/// The data plane of one sandbox.
#[derive(Clone)]
pub(super) struct Envd {
    http: Client,
    /// Without a slash at its end.
    base: String,
    sandbox: String,
    token: Option<SecretString>,
    /// User whose rights commands and work on files have.
    user: String,
    timeout: Duration,
}

impl Envd {
    /// Makes the data plane of a sandbox. `domain` is what the service says of it.
    pub(super) fn new(
        http: Client,
        plane: &DataPlane,
        sandbox: &str,
        domain: Option<&str>,
        token: Option<SecretString>,
        user: String,
        timeout: Duration,
    ) -> Envd {
        let base = match plane {
            DataPlane::Url(url) => url.clone(),
            DataPlane::Domain(given) => format!("https://{PORT}-{sandbox}.{}", domain.unwrap_or(given)),
        };
        Envd { http, base, sandbox: sandbox.to_owned(), token, user, timeout }
    }

    /// Returns the user whose rights commands and work on files have.
    pub(super) fn user(&self) -> &str {
        &self.user
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Makes a request without the token.
    fn open_request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http
            .request(method, format!("{}{path}", self.base))
            .header("e2b-sandbox-id", &self.sandbox)
            .header("e2b-sandbox-port", PORT)
            .header(ACCEPT_ENCODING, "identity")
    }

    /// Makes a request to `path`, which is encoded already.
    pub(super) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.open_request(method, path);
        match &self.token {
            Some(token) => request.header("x-access-token", token.expose_secret()),
            None => request,
        }
    }

    fn call(&self, method: &str, user: &str) -> RequestBuilder {
        let user = format!("Basic {}", BASE64.encode(format!("{user}:")));
        self.request(Method::POST, method).header(AUTHORIZATION, user)
    }

    /// Makes a unary call as the usual user.
    pub(super) async fn unary<T: DeserializeOwned>(
        &self,
        method: &str,
        message: &impl Serialize,
        bytes_max: usize,
    ) -> Result<T, Fault> {
        connect::unary(self.call(method, &self.user), message, bytes_max, self.timeout).await
    }

    /// Makes a unary call as another user.
    pub(super) async fn unary_as<T: DeserializeOwned>(
        &self,
        user: &str,
        method: &str,
        message: &impl Serialize,
        bytes_max: usize,
    ) -> Result<T, Fault> {
        connect::unary(self.call(method, user), message, bytes_max, self.timeout).await
    }

    /// Makes a unary call that may take as long as `after`.
    pub(super) async fn patient<T: DeserializeOwned>(
        &self,
        method: &str,
        message: &impl Serialize,
        after: Duration,
    ) -> Result<T, Fault> {
        connect::unary(self.call(method, &self.user), message, http::SMALL_BYTES_MAX, after).await
    }

    /// Makes a call as `user` that is answered with a stream. `timeout` is the deadline of what it is about.
    pub(super) async fn stream<T: DeserializeOwned>(
        &self,
        method: &str,
        user: &str,
        message: &impl Serialize,
        timeout: Option<Duration>,
    ) -> Result<Messages<T>, Fault> {
        connect::server_stream(self.call(method, user), message, timeout, self.timeout).await
    }

    /// Returns whether the sandbox runs: false for one that is paused or gone.
    pub(super) async fn is_healthy(&self) -> Result<bool, Fault> {
        let answer = http::send_any(self.open_request(Method::GET, "/health"), self.timeout).await?;
        if answer.status().is_success() {
            return Ok(true);
        }
        let fault = http::refusal(answer, self.timeout).await;
        if fault.is_status(502) || fault.is_status(404) { Ok(false) } else { Err(fault) }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn base(plane: &DataPlane, domain: Option<&str>) -> String {
        let (http, _) = client::open_http("http://127.0.0.1", client::Options::default()).unwrap();
        let user = "root".to_owned();
        Envd::new(http, plane, "far-1", domain, None, user, Duration::from_secs(1)).base
    }

    #[test]
    fn a_sandbox_has_a_host_name_below_its_domain_unless_all_have_one_address() {
        let below = DataPlane::Domain("e2b.app".to_owned());
        assert_eq!(base(&below, None), "https://49983-far-1.e2b.app");
        assert_eq!(base(&below, Some("boxes.example:8443")), "https://49983-far-1.boxes.example:8443");
        let url = DataPlane::Url("http://127.0.0.1:7423".to_owned());
        assert_eq!(base(&url, Some("boxes.example")), "http://127.0.0.1:7423");
    }
}
