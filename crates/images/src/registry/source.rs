//! A host that serves images, and the faults of asking it.

use std::sync::Arc;
use std::time::Duration;

use domain::Chain;
use reqwest::header::RETRY_AFTER;
use reqwest::{Client, Response, Url};

use crate::error::Error;

/// Reason why a request to a registry failed.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// Not found in the registry.
    Missing,
    /// Refused without a login, or with this one.
    Refused(String),
    /// Transient fault, with the shortest wait before a retry.
    Passing(String, Duration),
    /// Answer that does not fit the request, or cannot be used.
    Broken(String),
    /// Other error that neither a retry nor another source fixes.
    Ours(Arc<Error>),
}

/// Host that may serve an image.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Host and port as configured.
    pub(crate) registry: String,
    /// Base address, such as `https://registry-1.docker.io`.
    pub(super) base: Url,
    pub(super) repository: String,
    pub(super) client: Client,
}

impl Source {
    pub(super) fn url(&self, path: &str) -> Result<Url, Fault> {
        let text = format!("/v2/{}/{path}", self.repository);
        self.base.join(&text).map_err(|_| Fault::Broken(format!("`{text}` cannot be requested")))
    }

    /// Returns whether this address is of the registry itself: same scheme, host and port.
    pub(super) fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.base.origin()
    }

    /// Returns the fault of a source whose rate is too low.
    pub(crate) fn too_slow(&self) -> Fault {
        Fault::Passing(format!("`{}` sends data too slowly", self.registry), Duration::ZERO)
    }

    /// Converts an error in the middle of an answer, such as a cut connection.
    pub(crate) fn cut(&self, error: &reqwest::Error) -> Fault {
        unreachable(self, error)
    }
}

/// Reads a whole answer of at most `bytes_max` bytes.
pub(super) async fn bounded(mut response: Response, bytes_max: u64) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    loop {
        let chunk = response
            .chunk()
            .await
            .map_err(|_| Fault::Passing("the registry cut off its response".to_owned(), Duration::ZERO))?;
        let Some(chunk) = chunk else { return Ok(bytes) };
        if (bytes.len() + chunk.len()) as u64 > bytes_max {
            return Err(Fault::Broken(format!("the registry sends more than {bytes_max} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
}

/// Converts the error of a request without an answer; the cause goes to the log.
pub(super) fn unreachable(source: &Source, error: &reqwest::Error) -> Fault {
    tracing::debug!(registry = source.registry, error = %Chain(error), "registry request failed");
    if error.is_timeout() {
        return slow(source);
    }
    let mut what = if error.is_connect() { "cannot be reached" } else { "cut off its response" };
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let text = error.to_string();
        if text.contains("certificate") {
            // A retry fixes neither this fault nor the next one.
            return Fault::Broken(format!(
                "`{}` has a certificate that is not trusted (set `ca_file` to trust it)",
                source.registry
            ));
        }
        if text.contains("InvalidContentType") || text.contains("corrupt message") {
            return Fault::Broken(format!("`{}` does not use TLS (set `plain_http` to allow that)", source.registry));
        }
        if text.contains("dns error") || text.contains("lookup address") {
            what = "has no address (check the name)";
        }
        cause = error.source();
    }
    Fault::Passing(format!("`{}` {what}", source.registry), Duration::ZERO)
}

pub(super) fn slow(source: &Source) -> Fault {
    Fault::Passing(format!("`{}` does not answer in time", source.registry), Duration::ZERO)
}

/// Returns the wait that the registry asks for, at most 30 seconds.
pub(super) fn retry_after(response: &Response) -> Duration {
    const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
    let seconds = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    seconds.map_or(Duration::ZERO, |seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// Returns the host and port of an address, for a message.
pub(super) fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Returns whether a host and port is this machine, by its name alone.
pub(super) fn is_loopback(host: &str) -> bool {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback())
}
