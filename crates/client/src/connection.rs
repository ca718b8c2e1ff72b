//! Connection to a server: addresses, credentials, deadlines, and the parsing that all answers
//! share.

use std::path::Path;
use std::time::Duration;

use api::ErrorBody;
use bytes::{Bytes, BytesMut};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_rustls::rustls::crypto::ring;

use crate::error::{innermost, local_read_error};
use crate::{Error, Result, tls};

/// Header of the API key.
const API_KEY: &str = "x-api-key";
/// Longest time to connect: long enough for one lost packet on a slow network, short enough to wait
/// for.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// TCP keep-alive: idle time before the first probe, time between probes, and probes that may be
/// lost before the peer counts as dead.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(5), 4);
/// Connections kept open for the next request.
const IDLE_MAX: usize = 32;
/// Largest JSON request that the API accepts, in bytes.
const REQUEST_BYTES_MAX: usize = 1024 * 1024;
/// Largest error body that is read, in bytes: no Tidebox server sends more.
const ERROR_BYTES_MAX: usize = 64 * 1024;
/// Characters quoted from an error body that is not Tidebox's.
const QUOTED_CHARS_MAX: usize = 200;

/// Makes ring the provider of cryptography for TLS in this process, unless the program has chosen
/// one already. Every [`Client`] does it; call it before you make a client of `reqwest` yourself.
pub fn install_crypto() {
    // An error says that there is one.
    let _ = ring::default_provider().install_default();
}

/// Settings of a connection, for [`Client::open`]. The defaults are those of the command line.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// API key, sent as `X-API-Key`; spaces around it are dropped. `None` sends none.
    pub api_key: Option<&'a str>,
    /// Owner that requests are charged to, sent as `X-User-ID`; spaces around it are dropped.
    /// `None` sends none.
    pub user_id: Option<&'a str>,
    /// PEM file of the authorities that may sign an `https` server's certificate, or of that
    /// certificate itself, instead of the authorities that the system trusts.
    pub ca_file: Option<&'a Path>,
    /// Longest time from a request to the end of its answer, for calls that only look something up
    /// or change a value. Connecting takes at most this time too, and at most five seconds.
    /// [`Client::ANSWER_MAX`] by default.
    pub answer_max: Duration,
    /// Longest silence of a stream of output, of a file's content or of a pull's progress; events
    /// have [`EventStream::SILENCE_MAX`](crate::EventStream::SILENCE_MAX). [`Client::SILENCE_MAX`]
    /// by default.
    pub silence_max: Duration,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            api_key: None,
            user_id: None,
            ca_file: None,
            answer_max: Client::ANSWER_MAX,
            silence_max: Client::SILENCE_MAX,
        }
    }
}

impl std::fmt::Debug for Options<'_> {
    /// Formats the options without the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("ca_file", &self.ca_file).finish_non_exhaustive()
    }
}

/// A connection to one server, with a method for each call of the API. Cheap to clone; clones share
/// their connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    /// URL of the Unix socket that is used instead of TCP.
    socket: Option<String>,
    headers: HeaderMap,
    answer_max: Duration,
    silence_max: Duration,
}

/// Limit on the part of an answer that is kept in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Size {
    /// One object: 1 MiB. A sandbox with the most labels has a quarter of it.
    Small,
    /// A list of objects: 32 MiB.
    List,
    /// Buffered output, 256 MiB: two streams of 8 MiB, each byte escaped, and room for a raised
    /// `limits.max_output_bytes`.
    Output,
}

impl Size {
    fn bytes_max(self) -> usize {
        match self {
            Size::Small => 1 << 20,
            Size::List => 32 << 20,
            Size::Output => 256 << 20,
        }
    }
}

/// Deadline of an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// [`Options::answer_max`]: the server answers from memory.
    Short,
    /// No deadline while the connection lives: the answer waits for work to be done.
    Long,
}

/// The connection: address, credentials and headers.
impl Client {
    /// Default of [`Options::answer_max`]: 30 seconds.
    pub const ANSWER_MAX: Duration = Duration::from_secs(30);
    /// Default of [`Options::silence_max`]: 60 seconds, in which the server sends four keep-alive
    /// chunks.
    pub const SILENCE_MAX: Duration = Duration::from_secs(60);

    /// Creates a client of the server at `base_url`. No request is sent.
    ///
    /// `base_url` is an `http` or `https` address such as `http://127.0.0.1:7423`, which may have a
    /// prefix path, or a Unix socket such as `unix:///run/tidebox/socket`. `api_key` is sent as
    /// `X-API-Key`, `user_id` (the owner that requests are charged to) as `X-User-ID`. Proxies
    /// named by the environment are used unless the server is on this machine.
    ///
    /// # Errors
    /// [`Error::Argument`] if one of the values cannot be used.
    pub fn new(base_url: &str, api_key: Option<&str>, user_id: Option<&str>) -> Result<Client> {
        Client::open(base_url, Options { api_key, user_id, ..Options::default() })
    }

    /// Creates a client of the server at `base_url`, as [`Client::new`] takes it, with all options.
    /// Reads the CA file, of at most 4 MiB; no request is sent.
    ///
    /// # Errors
    /// [`Error::Argument`] if one of the values cannot be used, or the CA file cannot be read or
    /// holds no certificate.
    pub fn open(base_url: &str, options: Options<'_>) -> Result<Client> {
        let socket = socket_of(base_url)?;
        // Over a socket, the name only fills the `Host` header.
        let base = base_url_of(if socket.is_some() { "http://localhost" } else { base_url })?;
        let mut headers = HeaderMap::new();
        for (name, header, value) in
            [("the API key", API_KEY, options.api_key), ("the user id", "x-user-id", options.user_id)]
        {
            if let Some(value) = value {
                let mut value = header_value(name, value.trim())?;
                value.set_sensitive(true);
                headers.insert(HeaderName::from_static(header), value);
            }
        }
        let mut builder = builder(&base, &options)?;
        if let Some(socket) = &socket {
            builder = builder.unix_socket(socket.as_str());
        }
        let http = build(builder)?;
        let Options { answer_max, silence_max, .. } = options;
        let socket = socket.map(|path| format!("unix://{path}"));
        Ok(Client { http, base, socket, headers, answer_max, silence_max })
    }

    /// Returns a client that shares this connection and sends one more header with every request,
    /// such as `X-Lease-Generation` or `Idempotency-Key`. A header of the same name is replaced.
    ///
    /// # Errors
    /// [`Error::Argument`] if `name` is not the name of a header or a header cannot carry `value`.
    pub fn with_header(&self, name: &'static str, value: &str) -> Result<Client> {
        let header = HeaderName::try_from(name)
            .map_err(|_| Error::Argument { name, reason: "is not the name of a header".into() })?;
        let mut client = self.clone();
        client.headers.insert(header, header_value(name, value)?);
        Ok(client)
    }

    /// Returns a client that shares this connection and sends no API key, for [`Client::with_header`] to set another.
    #[must_use]
    pub fn without_key(&self) -> Client {
        let mut client = self.clone();
        client.headers.remove(API_KEY);
        client
    }

    /// Returns [`Options::silence_max`].
    pub(crate) fn silence_max(&self) -> Duration {
        self.silence_max
    }

    /// Returns the address of the server, without a trailing slash; `unix://` and a path for a Unix
    /// socket.
    #[must_use]
    pub fn base_url(&self) -> &str {
        self.socket.as_deref().unwrap_or_else(|| self.root())
    }

    /// Returns the prefix of all request URLs.
    fn root(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Returns whether the server is on this machine: at a loopback address, `localhost` or a Unix
    /// socket.
    #[must_use]
    pub fn is_local(&self) -> bool {
        is_loopback(&self.base)
    }

    /// Creates a request to `path` below `/api/v1`, which must already be encoded.
    pub(crate) fn request(&self, method: Method, path: &str, patience: Patience) -> RequestBuilder {
        let url = format!("{}/api/v1{path}", self.root());
        let request = self.http.request(method, url).headers(self.headers.clone());
        match patience {
            Patience::Short => request.timeout(self.answer_max),
            Patience::Long => request,
        }
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.call(self.request(Method::GET, path, Patience::Short), Size::Small).await
    }

    pub(crate) async fn get_list<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.call(self.request(Method::GET, path, Patience::Short), Size::List).await
    }

    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str, patience: Patience) -> Result<T> {
        self.call(self.request(Method::DELETE, path, patience), Size::Small).await
    }

    pub(crate) async fn send_json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
        patience: Patience,
    ) -> Result<T> {
        self.call(self.with_json(self.request(method, path, patience), body)?, Size::Small).await
    }

    /// Adds a JSON body, unless the server would refuse its size.
    pub(crate) fn with_json(&self, request: RequestBuilder, body: &impl Serialize) -> Result<RequestBuilder> {
        self.with_json_up_to(REQUEST_BYTES_MAX, request, body)
    }

    /// Adds a JSON body on a route with another limit on its size.
    pub(crate) fn with_json_up_to(
        &self,
        bytes_max: usize,
        request: RequestBuilder,
        body: &impl Serialize,
    ) -> Result<RequestBuilder> {
        let body = serde_json::to_vec(body).map_err(|error| Error::Argument {
            name: "the request",
            reason: format!("cannot be encoded as JSON: {error}"),
        })?;
        if body.len() > bytes_max {
            return Err(Error::TooLarge { bytes: body.len(), bytes_max });
        }
        Ok(request.header(CONTENT_TYPE, "application/json").body(body))
    }

    /// Sends and reads a whole JSON answer.
    pub(crate) async fn call<T: DeserializeOwned>(&self, request: RequestBuilder, size: Size) -> Result<T> {
        let response = self.send(request).await?;
        self.json(response, size).await
    }

    /// Sends a request; an answer that is not a success becomes an error.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = self.send_any(request).await?;
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(response).await) }
    }

    /// Sends a request; an answer of any status is returned.
    pub(crate) async fn send_any(&self, request: RequestBuilder) -> Result<Response> {
        request.send().await.map_err(|error| self.failure(&error))
    }

    /// Reads a whole JSON answer.
    pub(crate) async fn json<T: DeserializeOwned>(&self, response: Response, size: Size) -> Result<T> {
        self.check_type(&response, "application/json")?;
        let body = self.body(response, size.bytes_max()).await?;
        serde_json::from_slice(&body).map_err(|error| self.protocol(format!("unexpected JSON: {error}")))
    }

    /// Refuses an answer whose content type is another, such as the page of a proxy.
    pub(crate) fn check_type(&self, response: &Response, wanted: &str) -> Result<()> {
        let Some(found) = response.headers().get(CONTENT_TYPE) else { return Ok(()) };
        let found = String::from_utf8_lossy(found.as_bytes());
        let essence = found.split(';').next().unwrap_or_default().trim();
        if essence.eq_ignore_ascii_case(wanted) {
            return Ok(());
        }
        Err(self.protocol(format!("it sent `{}` instead of {wanted}", quoted(&found))))
    }

    /// Reads a whole text answer.
    pub(crate) async fn text(&self, response: Response) -> Result<String> {
        let body = self.body(response, Size::List.bytes_max()).await?;
        String::from_utf8(body.into()).map_err(|_| self.protocol("the response is not UTF-8".to_owned()))
    }

    /// Returns the error that a response carries.
    pub(crate) async fn refusal(&self, response: Response) -> Error {
        let status = response.status();
        let request_id = response.headers().get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        let body = match self.body(response, ERROR_BYTES_MAX).await {
            Ok(body) => body,
            Err(error) => return error,
        };
        match serde_json::from_slice::<ErrorBody>(&body) {
            Ok(ErrorBody { code, message }) => Error::Api { status: status.as_u16(), code, message, request_id },
            Err(_) => {
                let text = String::from_utf8_lossy(&body);
                self.protocol(format!("status {status} with the body `{}`", quoted(text.trim())))
            }
        }
    }

    pub(crate) fn protocol(&self, reason: String) -> Error {
        Error::Protocol { url: self.base_url().to_owned(), reason }
    }

    async fn body(&self, mut response: Response, bytes_max: usize) -> Result<Bytes> {
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failure(&error))? {
            if body.len() + chunk.len() > bytes_max {
                return Err(self.protocol(format!("the response is larger than {bytes_max} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }

    fn failure(&self, error: &reqwest::Error) -> Error {
        if let Some(local) = local_read_error(error) {
            Error::Io(local)
        } else if error.is_connect() {
            Error::Connect { url: self.base_url().to_owned(), reason: innermost(error) }
        } else if error.is_timeout() {
            Error::Timeout { after: self.answer_max }
        } else {
            Error::Cut { what: "the response was complete", reason: innermost(error) }
        }
    }
}

/// Creates an HTTP client for a service with another API at `base_url`, by the rules of [`Client::open`] on proxies,
/// authorities, redirects and the time to connect. It sends no credentials and sets no other deadline. Returns it with
/// the URL.
///
/// # Errors
/// [`Error::Argument`] if the URL cannot be used, or the CA file cannot be read or holds no certificate.
pub fn open_http(base_url: &str, options: Options<'_>) -> Result<(reqwest::Client, Url)> {
    let base = base_url_of(base_url)?;
    Ok((build(builder(&base, &options)?)?, base))
}

/// Returns the settings that all HTTP clients share.
fn builder(base: &Url, options: &Options<'_>) -> Result<reqwest::ClientBuilder> {
    install_crypto();
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("tidebox/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_MAX.min(options.answer_max))
        .pool_max_idle_per_host(IDLE_MAX)
        .tcp_keepalive(KEEPALIVE.0)
        .tcp_keepalive_interval(KEEPALIVE.1)
        .tcp_keepalive_retries(KEEPALIVE.2)
        // The API never redirects, and the key must not follow a redirect.
        .redirect(reqwest::redirect::Policy::none());
    if is_loopback(base) {
        builder = builder.no_proxy();
    }
    Ok(if let Some(path) = options.ca_file {
        builder.tls_backend_preconfigured(tls::trusting(path)?)
    } else if base.scheme() == "http" {
        // Without TLS no authorities are needed, and a small image may not have any.
        builder.tls_certs_only([])
    } else {
        builder
    })
}

fn build(builder: reqwest::ClientBuilder) -> Result<reqwest::Client> {
    builder.build().map_err(|error| Error::Argument {
        name: "the environment",
        reason: format!("does not allow creating an HTTP client: {}", innermost(&error)),
    })
}

/// Returns the beginning of an untrusted text, safe for a terminal.
fn quoted(text: &str) -> String {
    text.chars().take(QUOTED_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn header_value(name: &'static str, value: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(value).map_err(|_| Error::Argument {
        name,
        reason: "has characters that are not allowed in an HTTP header; use printable ASCII".into(),
    })
}

/// Returns the path in `unix://<path>`, or `None` for another URL.
fn socket_of(text: &str) -> Result<Option<String>> {
    let Some(path) = text.trim().strip_prefix("unix://") else { return Ok(None) };
    if !path.starts_with('/') || path.contains('\0') {
        return Err(invalid_url(format!(
            "`{}` needs an absolute path; write it like unix:///run/tidebox/socket",
            text.trim()
        )));
    }
    Ok(Some(path.to_owned()))
}

fn base_url_of(text: &str) -> Result<Url> {
    let example = "write it like http://127.0.0.1:7423";
    let url =
        Url::parse(text.trim()).map_err(|error| invalid_url(format!("`{text}` is not valid: {error}; {example}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid_url(format!("`{text}` has the scheme `{}`; {example}", url.scheme())));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid_url(
            "contains a user name or password, which is not supported; set TIDEBOX_API_KEY instead".into(),
        ));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(invalid_url(format!("`{text}` has a query or a fragment; {example}")));
    }
    Ok(url)
}

fn invalid_url(reason: String) -> Error {
    Error::Argument { name: "the server's URL", reason }
}

/// Returns whether a URL leads to this machine.
#[must_use]
pub fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod test {
    use super::{Client, Options};

    fn refused(url: &str) -> String {
        Client::new(url, None, None).unwrap_err().to_string()
    }

    #[test]
    fn addresses_that_cannot_work_say_what_would() {
        assert!(refused("localhost:7423").contains("http://127.0.0.1:7423"));
        assert!(refused("").contains("http://127.0.0.1:7423"));
        assert!(refused("ftp://x").contains("ftp"));
        assert!(refused("http://x/?a=b").contains("query"));
        let secret = refused("http://user:hunter2@x");
        assert!(!secret.contains("hunter2"), "{secret}");
    }

    #[test]
    fn a_trailing_slash_and_a_prefix_are_fine() {
        for (given, base) in [
            ("http://h:1", "http://h:1"),
            ("http://h:1/", "http://h:1"),
            ("http://h:1/tidebox/", "http://h:1/tidebox"),
            ("https://h/", "https://h"),
            (" http://h:1\n", "http://h:1"),
        ] {
            assert_eq!(Client::new(given, None, None).unwrap().base_url(), base);
        }
    }

    #[test]
    fn a_socket_is_named_by_its_path_and_is_local() {
        let client = Client::new("unix:///run/tide box/s", None, None).unwrap();
        assert_eq!(client.base_url(), "unix:///run/tide box/s");
        assert!(client.is_local());
        assert!(refused("unix://run/s").contains("unix:///run"), "{}", refused("unix://run/s"));
        assert!(refused("unix://").contains("absolute"));
    }

    #[test]
    fn a_key_that_no_header_can_carry_is_refused_and_not_shown() {
        let error = Client::new("http://h", Some("se\ncret"), None).unwrap_err().to_string();
        assert!(error.contains("API key") && !error.contains("cret"), "{error}");
    }

    #[test]
    fn a_key_is_not_shown_by_debug() {
        let client = Client::new("http://h", Some("hunter2"), None).unwrap();
        assert!(!format!("{client:?}").contains("hunter2"));
        let options = Options { api_key: Some("hunter2"), ..Options::default() };
        assert!(!format!("{options:?}").contains("hunter2"));
    }

    #[test]
    fn a_header_that_cannot_be_sent_is_refused() {
        let client = Client::new("http://h", None, None).unwrap();
        assert!(client.with_header("Idempotency-Key", "a b").is_ok());
        assert!(client.with_header("Idempotency-Key", "a\nb").is_err());
        assert!(client.with_header("no header", "a").is_err());
    }

    #[test]
    fn a_ca_file_without_certificates_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let open = || Client::open("https://h", Options { ca_file: Some(&path), ..Options::default() });
        for (content, words) in [
            (None, "cannot be read"),
            (Some(""), "contains no certificate"),
            (Some("no pem"), "contains no certificate"),
            (Some("-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n"), "PEM"),
        ] {
            if let Some(content) = content {
                std::fs::write(&path, content).unwrap();
            }
            let error = open().unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("ca.pem"), "{error}");
        }
    }

    #[test]
    fn only_this_machine_is_local() {
        for (url, local) in [
            ("http://127.0.0.1:1", true),
            ("http://127.9.9.9", true),
            ("http://localhost", true),
            ("http://[::1]:1", true),
            ("http://localhost.example", false),
            ("http://10.0.0.1", false),
        ] {
            assert_eq!(Client::new(url, None, None).unwrap().is_local(), local, "{url}");
        }
    }
}
