//! Logins of registries, for the Engine to use.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bollard::auth::DockerCredentials;
use secrecy::ExposeSecret;
use serde::Deserialize;
use tokio::io::AsyncWriteExt;

use crate::images::RegistryConfig;

/// What Docker calls its own registry in `config.json`.
const DOCKER_IO: &str = "https://index.docker.io/v1/";

/// The parts of `config.json` that are about logins.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ConfigFile {
    auths: BTreeMap<String, Auth>,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Auth {
    auth: Option<String>,
    identitytoken: Option<String>,
}

/// What a credential helper answers.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Helped {
    username: String,
    secret: String,
}

/// The login of `registry`: what is configured, or else what `config.json` has.
///
/// # Errors
/// What is wrong, for the caller; never with a secret.
pub(super) async fn of(
    registry: &str,
    registries: &BTreeMap<String, RegistryConfig>,
    docker_config: Option<&Path>,
) -> Result<Option<DockerCredentials>, String> {
    let configured = registries.get(registry).and_then(|config| Some((config.username.clone()?, &config.password)));
    if let Some((username, password)) = configured {
        let password = password.as_ref().map(|password| password.expose_secret().to_owned());
        return Ok(Some(login(registry, username, password.unwrap_or_default())));
    }
    let Some(path) = docker_config else { return Ok(None) };
    let text = match tokio::fs::read(path).await {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{} cannot be read for logins: {error}", path.display())),
    };
    let file: ConfigFile = serde_json::from_slice(&text)
        // Its text could hold a part of a secret.
        .map_err(|error| format!("{} makes no sense in line {}", path.display(), error.line()))?;
    let names: &[&str] = if registry == "docker.io" {
        &[DOCKER_IO, "docker.io", "index.docker.io", "registry-1.docker.io"]
    } else {
        &[registry]
    };
    for name in names {
        let helper = file.cred_helpers.get(*name).or(file.creds_store.as_ref());
        if let Some(helper) = helper
            && let Some(Helped { username, secret }) = ask(helper, name).await?
        {
            let token = username == "<token>";
            let mut login = login(registry, if token { String::new() } else { username }, secret);
            if token {
                login.identitytoken = login.password.take();
            }
            return Ok(Some(login));
        }
        let written = file.auths.iter().find(|(key, _)| is_for(key, name)).map(|(_, auth)| auth);
        if let Some(login) = written.and_then(|auth| decode(registry, auth)) {
            return Ok(Some(login));
        }
    }
    Ok(None)
}

/// Keys of `auths` are hosts, with or without a scheme and a path.
fn is_for(key: &str, name: &str) -> bool {
    let host = |text: &str| {
        let text = text.trim_start_matches("https://").trim_start_matches("http://");
        text.split('/').next().unwrap_or_default().to_owned()
    };
    key == name || host(key) == host(name)
}

fn decode(registry: &str, auth: &Auth) -> Option<DockerCredentials> {
    let pair = BASE64_STANDARD.decode(auth.auth.as_ref()?.trim()).ok()?;
    let pair = String::from_utf8(pair).ok()?;
    let (username, password) = pair.split_once(':')?;
    let mut login = login(registry, username.to_owned(), password.trim_end_matches('\0').to_owned());
    if auth.identitytoken.as_ref().is_some_and(|token| !token.is_empty()) {
        login.identitytoken.clone_from(&auth.identitytoken);
        login.password = None;
    }
    Some(login)
}

fn login(registry: &str, username: String, password: String) -> DockerCredentials {
    let serveraddress = if registry == "docker.io" { DOCKER_IO } else { registry };
    DockerCredentials {
        username: Some(username),
        password: Some(password),
        serveraddress: Some(serveraddress.to_owned()),
        ..DockerCredentials::default()
    }
}

/// Asks a credential helper. `None` if it knows no login.
async fn ask(helper: &str, name: &str) -> Result<Option<Helped>, String> {
    let failed = || format!("the credential helper docker-credential-{helper} does not work; see docker's config.json");
    if helper.is_empty() || helper.contains('/') {
        return Err(failed());
    }
    let mut command = tokio::process::Command::new(format!("docker-credential-{helper}"));
    command.arg("get").kill_on_drop(true);
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null());
    let mut child = command.spawn().map_err(|_| failed())?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read says why by its exit.
        let _ = stdin.write_all(format!("{name}\n").as_bytes()).await;
    }
    let output = tokio::time::timeout(std::time::Duration::from_secs(10), child.wait_with_output()).await;
    let output = output.map_err(|_| failed())?.map_err(|_| failed())?;
    if !output.status.success() {
        // Helpers say so on stdout when they know no login, which is no fault.
        let is_unknown = String::from_utf8_lossy(&output.stdout).contains("credentials not found");
        return if is_unknown { Ok(None) } else { Err(failed()) };
    }
    serde_json::from_slice(&output.stdout).map(Some).map_err(|_| failed())
}

#[cfg(test)]
mod test {
    use super::*;

    async fn found(registry: &str, json: &str) -> Option<(String, String, String)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), json).unwrap();
        let login = of(registry, &BTreeMap::new(), Some(file.path())).await.unwrap()?;
        Some((login.username.unwrap(), login.password.unwrap(), login.serveraddress.unwrap()))
    }

    #[tokio::test]
    async fn logins_of_dockers_own_file_are_found_by_host() {
        let json = format!(
            r#"{{"auths": {{"https://index.docker.io/v1/": {{"auth": "{}"}}, "r.example:5000": {{"auth": "{}"}}}}}}"#,
            BASE64_STANDARD.encode("ann:hub"),
            BASE64_STANDARD.encode("bob:a:b")
        );
        let login = |user: &str, password: &str, at: &str| Some((user.to_owned(), password.to_owned(), at.to_owned()));
        assert_eq!(found("docker.io", &json).await, login("ann", "hub", DOCKER_IO));
        assert_eq!(found("r.example:5000", &json).await, login("bob", "a:b", "r.example:5000"));
        assert_eq!(found("r.example", &json).await, None);
    }

    #[tokio::test]
    async fn what_is_configured_comes_before_dockers_own_file() {
        let config = RegistryConfig {
            username: Some("eve".to_owned()),
            password: Some("secret".into()),
            ..RegistryConfig::default()
        };
        let registries = BTreeMap::from([("r.example".to_owned(), config)]);
        let login = of("r.example", &registries, Some(Path::new("/nowhere"))).await.unwrap().unwrap();
        assert_eq!((login.username.as_deref(), login.password.as_deref()), (Some("eve"), Some("secret")));
        assert!(of("other", &registries, Some(Path::new("/nowhere"))).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_broken_file_is_said_without_its_text() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), r#"{"auths": "c2VjcmV0"}"#).unwrap();
        let error = of("r.example", &BTreeMap::new(), Some(file.path())).await.unwrap_err();
        assert!(error.contains("line 1") && !error.contains("c2VjcmV0"), "{error}");
    }
}
