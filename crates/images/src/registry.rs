//! HTTP requests to registries for manifests and blobs. No answer is trusted.

mod access;
mod source;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_RANGE, HeaderValue, LOCATION, RANGE};
use reqwest::{Client, Response, StatusCode, Url};
use tokio_rustls::rustls::crypto::ring;

use crate::config::{ImagesConfig, RegistryConfig};
use crate::error::{Error, Result};
use crate::login::Logins;
use crate::manifest;
use crate::name::{Name, host_of, is_docker_hub};
use access::Access;
pub(super) use source::{Fault, Source};
use source::{authority, bounded, is_loopback, retry_after, slow, unreachable};

/// Timeout for a connection to a registry.
const CONNECT_WAIT_MAX: Duration = Duration::from_secs(10);

/// Timeout for a whole manifest.
const DOCUMENT_WAIT_MAX: Duration = Duration::from_secs(60);

/// Most redirects followed from one request.
const REDIRECTS_MAX: usize = 5;

/// HTTP clients and credentials for all registries.
#[derive(Debug)]
pub(super) struct Registries {
    configs: BTreeMap<String, RegistryConfig>,
    stall_wait_max: Duration,
    access: Access,
    /// HTTP clients by the certificate that they trust besides the system's, and by whether they
    /// use a proxy.
    clients: Mutex<BTreeMap<(Option<PathBuf>, bool), Client>>,
}

impl Registries {
    pub(super) fn new(config: &ImagesConfig) -> Self {
        let logins = Logins::new(config.registries.clone(), config.docker_config.clone());
        Self {
            configs: config.registries.clone(),
            stall_wait_max: config.stall_timeout,
            access: Access::new(logins),
            clients: Mutex::default(),
        }
    }

    /// Returns the hosts to ask for an image, in order: mirrors, then the registry itself.
    pub(super) fn sources(&self, name: &Name) -> Result<Vec<Source>> {
        let registry = name.registry();
        let mirrors = self.config(registry).map(|config| config.mirrors.as_slice()).unwrap_or_default();
        let hosts = mirrors.iter().map(String::as_str).chain([registry]);
        hosts.map(|host| self.source(host, name.repository())).collect()
    }

    fn config(&self, registry: &str) -> Option<&RegistryConfig> {
        self.configs.get(registry).or_else(|| {
            let hub = is_docker_hub(registry);
            self.configs.iter().find(|(name, _)| hub && is_docker_hub(name)).map(|(_, config)| config)
        })
    }

    fn source(&self, registry: &str, repository: &str) -> Result<Source> {
        let config = self.config(registry);
        let ca_file = config.and_then(|config| config.ca_file.clone());
        let host = host_of(registry);
        let loopback = is_loopback(host);
        // As in Docker, a registry on this machine needs no TLS; any other needs `plain_http` to
        // go without.
        let plain = config.is_some_and(|config| config.plain_http) || loopback && ca_file.is_none();
        let scheme = if plain { "http" } else { "https" };
        let base = Url::parse(&format!("{scheme}://{host}"))
            .ok()
            .filter(|base| base.username().is_empty() && base.path() == "/" && base.query().is_none())
            .ok_or_else(|| Error::Invalid(format!("`{registry}` is not a registry host; write it as `host[:port]`")))?;
        let client = self.client(ca_file, !loopback)?;
        Ok(Source { registry: registry.to_owned(), base, repository: repository.to_owned(), client })
    }

    fn client(&self, ca_file: Option<PathBuf>, proxied: bool) -> Result<Client> {
        let mut clients = self.clients.lock();
        let key = (ca_file, proxied);
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        // An error says that the program has chosen one already.
        let _ = ring::default_provider().install_default();
        let mut builder = Client::builder()
            .connect_timeout(CONNECT_WAIT_MAX)
            .read_timeout(self.stall_wait_max)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .user_agent(concat!("tidebox/", env!("CARGO_PKG_VERSION")));
        if !proxied {
            builder = builder.no_proxy();
        }
        if let Some(path) = &key.0 {
            let pem = std::fs::read(path).map_err(|error| bad_certificate(path, error))?;
            let certificates = reqwest::Certificate::from_pem_bundle(&pem).unwrap_or_default();
            if certificates.is_empty() {
                return Err(bad_certificate(path, "the file contains no PEM certificate"));
            }
            builder = builder.tls_certs_merge(certificates);
        }
        let client = builder.build().map_err(|error| Error::failed("set up a client for registries", error))?;
        clients.insert(key, client.clone());
        Ok(client)
    }

    /// Downloads a manifest or an index, by tag or digest. Its digest is not checked yet.
    pub(super) async fn manifest(&self, source: &Source, version: &str) -> Result<Vec<u8>, Fault> {
        let read = async {
            let response = self.get(source, &format!("manifests/{version}"), 0).await?;
            bounded(response, manifest::DOCUMENT_BYTES_MAX).await
        };
        tokio::time::timeout(DOCUMENT_WAIT_MAX, read).await.unwrap_or_else(|_| Err(slow(source)))
    }

    /// Requests a blob from an offset on; returns the offset that the answer begins at: 0 if the
    /// registry ignores ranges.
    pub(super) async fn blob(&self, source: &Source, digest: &str, offset: u64) -> Result<(Response, u64), Fault> {
        let response = self.get(source, &format!("blobs/{digest}"), offset).await?;
        if response.status() != StatusCode::PARTIAL_CONTENT {
            return Ok((response, 0));
        }
        let range = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
        let begins = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse::<u64>().ok());
        if begins == Some(offset) {
            Ok((response, offset))
        } else {
            Err(Fault::Broken(format!("`{}` sent a different range than requested", source.registry)))
        }
    }

    /// Sends a request, with the login and the redirects that it needs.
    async fn get(&self, source: &Source, path: &str, offset: u64) -> Result<Response, Fault> {
        let url = source.url(path)?;
        let known = self.access.known(source);
        let response = self.follow(source, url.clone(), known.clone(), offset).await?;
        // Only the registry itself says where its login goes: a host that it redirects to could
        // name its own token service.
        if response.status() != StatusCode::UNAUTHORIZED || !source.is_own(response.url()) {
            return self.judge(source, response, known.is_some());
        }
        let challenge = response.headers().clone();
        drop(response);
        let key = self.access.earn(source, &challenge, known.as_ref()).await?;
        let response = self.follow(source, url, Some(key), offset).await?;
        self.judge(source, response, true)
    }

    /// Sends a request and follows redirects. The credentials go to the registry alone.
    async fn follow(
        &self,
        source: &Source,
        mut url: Url,
        key: Option<HeaderValue>,
        offset: u64,
    ) -> Result<Response, Fault> {
        for _ in 0..=REDIRECTS_MAX {
            let mut request = source.client.get(url.clone());
            if url.path().contains("/manifests/") {
                request = request.header(ACCEPT, manifest::ACCEPT);
            }
            if offset > 0 {
                request = request.header(RANGE, format!("bytes={offset}-"));
            }
            if let Some(key) = key.as_ref().filter(|_| source.is_own(&url)) {
                request = request.header(AUTHORIZATION, key);
            }
            let response = request.send().await.map_err(|error| unreachable(source, &error))?;
            if !response.status().is_redirection() || response.status() == StatusCode::NOT_MODIFIED {
                return Ok(response);
            }
            let location = response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
            let next = location
                .and_then(|location| url.join(location).ok())
                .ok_or_else(|| bad_redirect(source, "to an invalid address"))?;
            let was_safe = url.scheme() == "https";
            let safe = next.scheme() == "https";
            if !safe && (was_safe || next.scheme() != "http") {
                return Err(bad_redirect(source, "from https to an insecure address"));
            }
            url = next;
            // Credentials in a redirect address are not configured ones.
            if url.set_username("").and(url.set_password(None)).is_err() {
                return Err(bad_redirect(source, "to an invalid address"));
            }
        }
        Err(Fault::Broken(format!("`{}` redirects more than {REDIRECTS_MAX} times", source.registry)))
    }

    fn judge(&self, source: &Source, response: Response, with_key: bool) -> Result<Response, Fault> {
        let status = response.status();
        tracing::debug!(registry = source.registry, path = response.url().path(), %status, "registry answered");
        match status {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
            StatusCode::NOT_FOUND => Err(Fault::Missing),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if !source.is_own(response.url()) => {
                Err(Fault::Refused(format!(
                    "`{}` redirects to `{}`, which answers {}; the login is not sent there",
                    source.registry,
                    authority(response.url()),
                    status.as_u16()
                )))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                if with_key {
                    self.access.forget(source);
                }
                Err(Fault::Refused(format!("`{}` denies access to this login", source.registry)))
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT | StatusCode::RANGE_NOT_SATISFIABLE => {
                let text = format!("`{}` limits requests", source.registry);
                Err(Fault::Passing(text, retry_after(&response)))
            }
            _ if status.is_server_error() => Err(Fault::Passing(
                format!("`{}` answers {}", source.registry, status.as_u16()),
                retry_after(&response),
            )),
            StatusCode::BAD_REQUEST if source.base.scheme() == "http" => {
                Err(Fault::Broken(format!("`{}` answers 400; if it uses TLS, set its `ca_file`", source.registry)))
            }
            _ => Err(Fault::Broken(format!("`{}` answers {}", source.registry, status.as_u16()))),
        }
    }
}

fn bad_certificate(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::Invalid(format!("the certificate {} cannot be used: {why}", path.display()))
}

fn bad_redirect(source: &Source, why: &str) -> Fault {
    Fault::Broken(format!("`{}` redirects {why}", source.registry))
}

#[cfg(test)]
mod test {
    use super::*;

    fn bases(registries: &[(&str, RegistryConfig)], name: &str) -> Vec<String> {
        let mut config = ImagesConfig::new("/nonexistent");
        config.registries = registries.iter().map(|(name, config)| ((*name).to_owned(), config.clone())).collect();
        let sources = Registries::new(&config).sources(&Name::parse(name).unwrap()).unwrap();
        sources.iter().map(|source| source.url("manifests/x").unwrap().to_string()).collect()
    }

    #[test]
    fn only_this_machine_is_spoken_to_without_tls_unasked() {
        for (name, url) in [
            ("a", "https://registry-1.docker.io/v2/library/a/manifests/x"),
            ("localhost:5000/a", "http://localhost:5000/v2/a/manifests/x"),
            ("127.1.2.3/a", "http://127.1.2.3/v2/a/manifests/x"),
            ("localhost.example.com/a", "https://localhost.example.com/v2/a/manifests/x"),
            ("127.0.0.1.example.com/a", "https://127.0.0.1.example.com/v2/a/manifests/x"),
            ("10.0.0.1:5000/a", "https://10.0.0.1:5000/v2/a/manifests/x"),
        ] {
            assert_eq!(bases(&[], name), [url]);
        }
        let plain = RegistryConfig { plain_http: true, ..RegistryConfig::default() };
        assert_eq!(bases(&[("10.0.0.1:5000", plain)], "10.0.0.1:5000/a"), ["http://10.0.0.1:5000/v2/a/manifests/x"]);
    }

    #[test]
    fn mirrors_are_asked_first_each_in_its_own_way() {
        let mirrored = RegistryConfig {
            mirrors: vec!["mirror.lan:5000".to_owned(), "other.lan".to_owned()],
            ..RegistryConfig::default()
        };
        let plain = RegistryConfig { plain_http: true, ..RegistryConfig::default() };
        assert_eq!(
            bases(&[("docker.io", mirrored), ("mirror.lan:5000", plain)], "python"),
            [
                "http://mirror.lan:5000/v2/library/python/manifests/x",
                "https://other.lan/v2/library/python/manifests/x",
                "https://registry-1.docker.io/v2/library/python/manifests/x",
            ]
        );
    }
}
