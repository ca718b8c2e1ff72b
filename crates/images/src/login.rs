//! Credentials for registries: those of the configuration, else Docker's, from its `config.json`
//! and its credential helpers.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

use crate::config::RegistryConfig;
use crate::error::{Error, Result};
use crate::name::is_docker_hub;

/// Timeout for a credential helper.
const PROGRAM_WAIT_MAX: Duration = Duration::from_secs(30);

/// Largest output of a credential helper, in bytes.
const PROGRAM_BYTES_MAX: u64 = 64 * 1024;

/// Largest accepted `config.json`, in bytes.
const CONFIG_BYTES_MAX: u64 = 1024 * 1024;

/// User name by which Docker marks the secret as a token.
const TOKEN_USER: &str = "<token>";

/// Key under which Docker keeps the login for its own registry.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// Credentials for one registry.
#[derive(Clone)]
pub enum Login {
    /// User name and password.
    Password {
        /// User name, as the registry knows it.
        username: String,
        /// Password of the user.
        password: SecretString,
    },
    /// Identity token, which is exchanged for access tokens.
    Identity(SecretString),
    /// Token that the registry itself takes.
    Bearer(SecretString),
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Login::Password { .. } => "Password",
            Login::Identity(_) => "Identity",
            Login::Bearer(_) => "Bearer",
        })
    }
}

/// Sources of credentials for registries.
#[derive(Debug)]
pub struct Logins {
    registries: BTreeMap<String, RegistryConfig>,
    docker_config: Option<PathBuf>,
}

/// Part of Docker's `config.json` about logins.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct DockerConfig {
    auths: HashMap<String, Auth>,
    cred_helpers: HashMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Auth {
    auth: Option<SecretString>,
    username: Option<String>,
    password: Option<SecretString>,
    identitytoken: Option<SecretString>,
    registrytoken: Option<SecretString>,
}

/// Answer of a credential helper.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: SecretString,
}

impl Logins {
    /// Returns the credentials of these registries, and of Docker's `config.json` if given.
    #[must_use]
    pub fn new(registries: BTreeMap<String, RegistryConfig>, docker_config: Option<PathBuf>) -> Self {
        Self { registries, docker_config }
    }

    /// Returns the credentials for a registry, by host and port; `None` for anonymous access.
    ///
    /// Docker's files are read each time, so that `docker login` needs no restart.
    ///
    /// # Errors
    /// [`Error::Invalid`] if Docker's files or a credential helper of theirs cannot be used.
    pub async fn find(&self, registry: &str) -> Result<Option<Login>> {
        if let Some(config) = self.registries.get(registry)
            && let Some(password) = &config.password
        {
            return Ok(Some(match &config.username {
                Some(username) => login(username.clone(), password.clone()),
                None => Login::Bearer(password.clone()),
            }));
        }
        let Some(path) = &self.docker_config else { return Ok(None) };
        let Some(docker) = read(path).await? else { return Ok(None) };
        let program = of(&docker.cred_helpers, registry).or(docker.creds_store.as_ref());
        if let Some(program) = program
            && let Some(login) = ask(program, registry).await?
        {
            return Ok(Some(login));
        }
        match of(&docker.auths, registry) {
            Some(auth) => auth.login(path, registry),
            None => Ok(None),
        }
    }
}

impl Auth {
    fn login(&self, path: &Path, registry: &str) -> Result<Option<Login>> {
        if let Some(token) = self.identitytoken.as_ref().filter(is_there) {
            return Ok(Some(Login::Identity(token.clone())));
        }
        if let Some(token) = self.registrytoken.as_ref().filter(is_there) {
            return Ok(Some(Login::Bearer(token.clone())));
        }
        if let (Some(username), Some(password)) = (&self.username, &self.password) {
            return Ok(Some(login(username.clone(), password.clone())));
        }
        let Some(auth) = self.auth.as_ref().filter(is_there) else { return Ok(None) };
        let auth = auth.expose_secret().trim_end();
        let pair = STANDARD.decode(auth).or_else(|_| STANDARD_NO_PAD.decode(auth)).ok();
        let pair = pair.and_then(|pair| String::from_utf8(pair).ok());
        let pair = pair.as_deref().and_then(|pair| pair.trim_end_matches('\0').split_once(':'));
        let Some((username, password)) = pair else {
            return Err(Error::Invalid(format!(
                "the login for `{registry}` in {} cannot be read; log in again with `docker login {registry}`",
                path.display()
            )));
        };
        Ok(Some(login(username.to_owned(), password.to_owned().into())))
    }
}

fn login(username: String, password: SecretString) -> Login {
    if username == TOKEN_USER { Login::Identity(password) } else { Login::Password { username, password } }
}

fn is_there(secret: &&SecretString) -> bool {
    !secret.expose_secret().is_empty()
}

async fn read(path: &Path) -> Result<Option<DockerConfig>> {
    let unreadable =
        |why: &str| Error::Invalid(format!("the logins in {} cannot be read: {why}; fix the file", path.display()));
    let file = match tokio::fs::File::open(path).await {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(&error.to_string())),
    };
    let bytes = bounded(file, CONFIG_BYTES_MAX).await.map_err(|error| unreadable(&error.to_string()))?;
    // The parser's error might quote a secret.
    serde_json::from_slice(&bytes).map(Some).map_err(|_| unreadable("it is not a Docker configuration in JSON"))
}

async fn bounded(from: impl AsyncRead + Unpin, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(bytes_max + 1).read_to_end(&mut bytes).await?;
    if bytes.len() as u64 > bytes_max {
        return Err(std::io::Error::other("it is too large"));
    }
    Ok(bytes)
}

/// Returns the entry for a registry, under any of the names that Docker has used for it.
fn of<'a, T>(entries: &'a HashMap<String, T>, registry: &str) -> Option<&'a T> {
    let direct = entries.get(registry);
    direct.or_else(|| {
        let mut keys: Vec<&String> = entries.keys().filter(|key| means(key, registry)).collect();
        keys.sort_unstable();
        entries.get(*keys.first()?)
    })
}

fn means(key: &str, registry: &str) -> bool {
    let host = key.strip_prefix("https://").or(key.strip_prefix("http://")).unwrap_or(key);
    let host = host.split('/').next().unwrap_or_default();
    host == registry || is_docker_hub(host) && is_docker_hub(registry)
}

/// Runs `docker-credential-<name>`; `None` if it has no credentials.
async fn ask(name: &str, registry: &str) -> Result<Option<Login>> {
    if name.is_empty() || !name.bytes().all(is_plain) {
        return Err(Error::Invalid("a credential helper in Docker's config.json has an invalid name".to_owned()));
    }
    let program = format!("docker-credential-{name}");
    let child = tokio::process::Command::new(&program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let mut child = child.map_err(|error| {
        let why = format!("it cannot be started ({error}); install it, or remove it from config.json");
        no_login(&program, registry, &why)
    })?;
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let server = if is_docker_hub(registry) { DOCKER_HUB_KEY } else { registry };
    let talk = async {
        if let Some(mut stdin) = stdin {
            // A program that does not read its input may answer all the same.
            let _ = stdin.write_all(server.as_bytes()).await;
        }
        let Some(stdout) = stdout else { return Ok((Vec::new(), false)) };
        let said = bounded(stdout, PROGRAM_BYTES_MAX).await?;
        Ok::<_, std::io::Error>((said, child.wait().await?.success()))
    };
    let (said, success) = match tokio::time::timeout(PROGRAM_WAIT_MAX, talk).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(no_login(&program, registry, &error.to_string())),
        Err(_) => {
            let why = format!("it took longer than {} seconds", PROGRAM_WAIT_MAX.as_secs());
            return Err(no_login(&program, registry, &why));
        }
    };
    if !success {
        // The protocol's answer for missing credentials.
        if String::from_utf8_lossy(&said).contains("credentials not found") {
            return Ok(None);
        }
        return Err(no_login(&program, registry, "it failed; run it by hand to see why"));
    }
    let answer: Answer = serde_json::from_slice(&said)
        .map_err(|_| no_login(&program, registry, "its output is not that of a credential helper"))?;
    Ok(Some(login(answer.username, answer.secret)))
}

fn no_login(program: &str, registry: &str, why: &str) -> Error {
    Error::Invalid(format!("`{program}` returned no login for `{registry}`: {why}"))
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

#[cfg(test)]
mod test {
    use super::*;

    fn shows(login: Option<Login>) -> String {
        match login {
            None => "nobody".to_owned(),
            Some(Login::Password { username, password }) => format!("{username}/{}", password.expose_secret()),
            Some(Login::Identity(token)) => format!("identity {}", token.expose_secret()),
            Some(Login::Bearer(token)) => format!("bearer {}", token.expose_secret()),
        }
    }

    async fn found(config: &str, registry: &str) -> Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, config).unwrap();
        Logins::new(BTreeMap::new(), Some(path)).find(registry).await.map(shows)
    }

    #[tokio::test]
    async fn logins_are_found_where_docker_writes_them() {
        let config = r#"{"auths": {
            "https://index.docker.io/v1/": {"auth": "aHViOnNlY3JldA=="},
            "localhost:5000": {"auth": "bWU6YTpi"},
            "https://ghcr.io": {"identitytoken": "it"},
            "quay.io": {"registrytoken": "rt"},
            "empty.io": {},
            "plain.io": {"username": "u", "password": "p"}
        }, "HttpHeaders": {"x": "y"}}"#;
        for (registry, login) in [
            ("docker.io", "hub/secret"),
            ("localhost:5000", "me/a:b"),
            ("localhost:5001", "nobody"),
            ("localhost", "nobody"),
            ("ghcr.io", "identity it"),
            ("quay.io", "bearer rt"),
            ("empty.io", "nobody"),
            ("plain.io", "u/p"),
        ] {
            assert_eq!(found(config, registry).await.unwrap(), login, "{registry}");
        }
    }

    #[tokio::test]
    async fn logins_that_cannot_be_read_are_an_error_without_the_secret() {
        for config in [
            r#"{"auths": {"a.io": {"auth": "s3cr3t!!"}}}"#,
            r#"{"auths": {"a.io": {"auth": ["s3cr3t"]}}}"#,
            r#"{"auths": s3cr3t"#,
            r#"{"credsStore": "../../bin/s3cr3t"}"#,
            r#"{"credsStore": "x; s3cr3t"}"#,
            r#"{"credHelpers": {"a.io": "tidebox-there-is-no-such"}}"#,
        ] {
            let Err(Error::Invalid(why)) = found(config, "a.io").await else { panic!("{config} is taken") };
            assert!(!why.contains("s3cr3t"), "{why}");
        }
    }

    #[tokio::test]
    async fn no_file_is_no_login() {
        let logins = Logins::new(BTreeMap::new(), Some("/nonexistent/config.json".into()));
        assert_eq!(shows(logins.find("a.io").await.unwrap()), "nobody");
    }

    #[tokio::test]
    async fn the_configuration_goes_before_docker() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        std::fs::write(&path, r#"{"auths": {"a.io": {"auth": "bWU6YTpi"}}}"#).unwrap();
        let config = |username: Option<&str>| RegistryConfig {
            username: username.map(str::to_owned),
            password: Some("pass-word".into()),
            ..RegistryConfig::default()
        };
        for (username, login) in
            [(Some("us"), "us/pass-word"), (Some("<token>"), "identity pass-word"), (None, "bearer pass-word")]
        {
            let registries = BTreeMap::from([("a.io".to_owned(), config(username))]);
            let logins = Logins::new(registries, Some(path.clone()));
            assert_eq!(shows(logins.find("a.io").await.unwrap()), login);
            let shown = format!("{logins:?} {:?}", logins.find("a.io").await);
            assert!(!shown.contains("pass-word"), "{shown}");
        }
    }
}
