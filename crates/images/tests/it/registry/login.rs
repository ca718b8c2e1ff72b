//! Logins: their owners, the hosts that receive them, and the hosts that never do.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use fixtures::found;
use fixtures::registry::Registry;
use images::{ImagesConfig, RegistryConfig};
use serde_json::json;

use super::fake_registry::{FakeRegistry, Say};
use super::*;

const PASSWORD: &str = "correct-horse-battery";

fn login(config: &mut ImagesConfig, registry: &str, username: Option<&str>, password: &str) {
    let login = RegistryConfig {
        username: username.map(str::to_owned),
        password: Some(password.to_owned().into()),
        ..RegistryConfig::default()
    };
    config.registries.insert(registry.to_owned(), login);
}

fn docker_config(store: &TestStore, content: &serde_json::Value) -> PathBuf {
    let path = store.folder.path().join("config.json");
    std::fs::write(&path, content.to_string()).unwrap();
    path
}

#[tokio::test]
async fn a_registry_with_a_login_is_read_with_it_and_not_without() {
    let Some(registry) = Registry::with_login("me", PASSWORD) else { return };
    let name = registry.push(&small("private"), "team/app", "1");
    let store = TestStore::new();
    let images = store.open();
    let text = invalid(images.take(&name).await);
    assert!(text.contains("requires a login") && text.contains("docker login"), "{text}");
    drop(images);

    let images = store.open_with(|config| login(config, registry.address(), Some("me"), "wrong-horse-battery"));
    let error = images.take(&name).await.unwrap_err();
    let shown = format!("{error} {error:?} {images:?}");
    assert!(shown.contains("denies access to this login"), "{shown}");
    assert!(!shown.contains("wrong-horse") && !shown.contains(&STANDARD.encode("me:wrong-horse-battery")), "{shown}");
    nothing_is_trusted(&store, &images).await;
    drop(images);

    let images = store.open_with(|config| login(config, registry.address(), Some("me"), PASSWORD));
    assert_eq!(read(images.take(&name).await.unwrap().root(), "hello"), "private");
    assert!(!format!("{images:?}").contains(PASSWORD));
    let text = invalid(images.take(&name.replace(":1", ":2")).await);
    assert!(text.contains("check the name"), "{text}");
}

#[tokio::test]
async fn a_login_of_docker_works_without_a_restart() {
    let Some(registry) = Registry::with_login("me", PASSWORD) else { return };
    let name = registry.push(&small("private"), "team/app", "1");
    let store = TestStore::new();
    let path = docker_config(&store, &json!({"auths": {}}));
    let images = store.open_with(|config| config.docker_config = Some(path));
    invalid(images.take(&name).await);
    let auth = STANDARD.encode(format!("me:{PASSWORD}"));
    docker_config(&store, &json!({"auths": {registry.address(): {"auth": auth}}}));
    images.take(&name).await.unwrap();
}

/// Makes the command that runs a test of this program in a process of its own.
pub(crate) fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command
}

fn helper(store: &TestStore, name: &str, script: &str) {
    let bin = store.folder.path().join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    let program = bin.join(format!("docker-credential-{name}"));
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the result of a pull in a process whose `PATH` has the helpers.
fn taken_with_helpers(store: &TestStore, name: &str) -> String {
    let path = std::env::var_os("PATH").unwrap();
    let paths = [store.folder.path().join("bin")].into_iter().chain(std::env::split_paths(&path));
    let ran = again("registry::login::take_in_a_process_of_its_own")
        .env("PATH", std::env::join_paths(paths).unwrap())
        .env("STORE_OF_A_TEST", store.folder.path())
        .env("IMAGE_OF_A_TEST", name)
        .output()
        .unwrap();
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

#[tokio::test]
#[ignore = "another test runs it in a process of its own"]
async fn take_in_a_process_of_its_own() {
    let Some(folder) = std::env::var_os("STORE_OF_A_TEST") else { return };
    let folder = PathBuf::from(folder);
    let mut config = ImagesConfig::new(folder.join("images"));
    config.docker_config = Some(folder.join("config.json"));
    let taken = Images::open(config).unwrap().take(&std::env::var("IMAGE_OF_A_TEST").unwrap()).await;
    println!("TAKEN {:?}", taken.map(|held| held.digest().to_owned()).map_err(|error| error.to_string()));
}

#[tokio::test]
async fn a_credential_program_is_asked_for_the_login() {
    let Some(registry) = Registry::with_login("me", PASSWORD) else { return };
    let name = registry.push(&small("private"), "team/app", "1");
    let address = registry.address();
    let answer = json!({"ServerURL": address, "Username": "me", "Secret": PASSWORD});
    let good = format!("read server; test \"$1 $server\" = \"get {address}\" || exit 3; echo '{answer}'");
    let store = TestStore::new();
    helper(&store, "good", &good);
    helper(&store, "none", "cat >/dev/null; echo credentials not found in native keychain; exit 1");
    helper(&store, "loud", "cat >/dev/null; yes secret");
    helper(&store, "broken", "cat >/dev/null; echo 'secret: not JSON'");
    helper(&store, "fails", "cat >/dev/null; echo secret; exit 1");
    let auths = json!({address: {"auth": STANDARD.encode(format!("me:{PASSWORD}"))}});
    for (config, says) in [
        (json!({"credsStore": "good"}), "Ok("),
        (json!({"credsStore": "broken", "credHelpers": {address: "good"}}), "Ok("),
        (json!({"credsStore": "none", "auths": auths}), "Ok("),
        (json!({"credsStore": "none"}), "requires a login"),
        (json!({"credsStore": "loud"}), "too large"),
        (json!({"credsStore": "broken"}), "not that of a credential helper"),
        (json!({"credsStore": "fails"}), "run it by hand"),
        (json!({"credsStore": "is-not-here"}), "cannot be started"),
        (json!({"credsStore": "../bin/docker-credential-good"}), "has an invalid name"),
    ] {
        docker_config(&store, &config);
        let said = taken_with_helpers(&store, &name);
        assert!(said.contains(says), "{config}: {said}");
        assert!(!said.contains("secret"), "what the program said is shown: {said}");
        let images = store.open();
        if says == "Ok(" {
            images.remove(&name).await.unwrap();
        }
    }
}

/// Makes a registry that requires a token, with its token service.
fn with_tokens(refuses: impl Fn(&super::fake_registry::Asked) -> bool + Send + Sync + 'static) -> FakeRegistry {
    FakeRegistry::telling(move |asked| {
        if asked.path.starts_with("/token") {
            return Some(match refuses(asked) {
                true => Say::Answer(401, Vec::new(), b"{}".to_vec()),
                false => {
                    Say::Answer(200, Vec::new(), json!({"access_token": "t0ken", "expires_in": 300}).to_string().into())
                }
            });
        }
        if asked.header("authorization") == "Bearer t0ken" {
            return None;
        }
        let challenge = format!(
            "www-authenticate: Bearer realm=\"http://{}/token\",service=\"the registry\",scope=\"repository:app:pull\"",
            asked.header("host")
        );
        Some(Say::Answer(401, vec![challenge], b"{}".to_vec()))
    })
}

#[tokio::test]
async fn a_token_is_fetched_once_and_used_for_everything() {
    let fake = with_tokens(|_| false);
    let name = fake.put(&small("x"), "app", "1");
    let store = TestStore::new();
    store.open().take(&name).await.unwrap();
    let tokens: Vec<_> = fake.asked().into_iter().filter(|asked| asked.path.starts_with("/token")).collect();
    assert_eq!(tokens.len(), 1);
    assert_eq!(tokens[0].method, "GET");
    assert!(tokens[0].path.contains("service=the+registry"), "{}", tokens[0].path);
    assert!(tokens[0].path.contains("scope=repository%3Aapp%3Apull"), "{}", tokens[0].path);
    assert_eq!(tokens[0].header("authorization"), "", "asked without a login");
    assert_eq!(fake.asked().len(), 5, "refused once, then a token, then the image");
}

#[tokio::test]
async fn a_login_buys_the_token_and_goes_nowhere_else() {
    let basic = format!("Basic {}", STANDARD.encode(format!("me:{PASSWORD}")));
    let wanted = basic.clone();
    let fake = with_tokens(move |asked| asked.header("authorization") != wanted);
    let name = fake.put(&small("x"), "app", "1");
    let store = TestStore::new();
    let images = store.open();
    let text = invalid(images.take(&name).await);
    assert!(text.contains("requires a login"), "{text}");
    drop(images);
    let images = store.open_with(|config| login(config, fake.address(), Some("me"), "wr0ng"));
    let text = invalid(images.take(&name).await);
    assert!(text.contains("rejects the login") && !text.contains("wr0ng"), "{text}");
    drop(images);
    let images = store.open_with(|config| login(config, fake.address(), Some("me"), PASSWORD));
    images.take(&name).await.unwrap();
    for asked in fake.asked().iter().filter(|asked| !asked.path.starts_with("/token")) {
        assert!(!asked.header("authorization").starts_with("Basic"), "{asked:?}");
    }
}

#[tokio::test]
async fn an_identity_token_is_posted_and_never_in_an_address() {
    let fake = with_tokens(|asked| {
        let body = String::from_utf8_lossy(&asked.body).into_owned();
        !(asked.method == "POST"
            && body.contains("grant_type=refresh%5Ftoken")
            && body.contains("refresh_token=1dentity%2F"))
    });
    let name = fake.put(&small("x"), "app", "1");
    let store = TestStore::new();
    let path = docker_config(&store, &json!({"auths": {fake.address(): {"identitytoken": "1dentity/"}}}));
    store.open_with(|config| config.docker_config = Some(path)).take(&name).await.unwrap();
    assert!(fake.asked().iter().all(|asked| !asked.path.contains("1dentity")));
}

#[tokio::test]
async fn a_token_that_is_configured_is_used_as_it_is() {
    let fake = with_tokens(|_| true);
    let name = fake.put(&small("x"), "app", "1");
    let store = TestStore::new();
    store.open_with(|config| login(config, fake.address(), None, "t0ken")).take(&name).await.unwrap();
    assert!(fake.asked().iter().all(|asked| !asked.path.starts_with("/token")));
}

#[tokio::test]
async fn a_redirect_to_another_host_carries_no_key() {
    let storage = Arc::new(FakeRegistry::good());
    let image = small("elsewhere");
    storage.put(&image, "app", "1");
    let elsewhere = storage.address().to_owned();
    let basic = format!("Basic {}", STANDARD.encode(format!("me:{PASSWORD}")));
    let fake = FakeRegistry::telling(move |asked| {
        if asked.header("authorization") != basic {
            return Some(Say::Answer(401, vec!["www-authenticate: Basic realm=\"x\"".to_owned()], Vec::new()));
        }
        let there = vec![format!("location: http://{elsewhere}{}", asked.path)];
        match asked.path.strip_suffix("?here") {
            None if asked.is_blob() => Some(Say::Answer(307, there, Vec::new())),
            // On the same host the key is sent too.
            None => Some(Say::Answer(302, vec![format!("location: {}?here", asked.path)], Vec::new())),
            Some(_) => None,
        }
    });
    let name = fake.put(&image, "app", "1");
    let store = TestStore::new();
    store.open_with(|config| login(config, fake.address(), Some("me"), PASSWORD)).take(&name).await.unwrap();
    assert_eq!(storage.blobs_asked(), 2, "what was redirected came from there");
    for asked in storage.asked() {
        assert_eq!(asked.header("authorization"), "", "{asked:?}");
    }
}

#[tokio::test]
async fn whoever_is_redirected_to_names_no_place_for_the_login() {
    for kind in ["/blobs/", "/manifests/"] {
        for scheme in ["Bearer", "Basic"] {
            let evil = Arc::new(FakeRegistry::telling(move |asked| {
                let realm = format!("http://{}/evil-token", asked.header("host"));
                let challenge = vec![format!("www-authenticate: {scheme} realm=\"{realm}\"")];
                Some(Say::Answer(401, challenge, b"{\"token\": \"x\"}".to_vec()))
            }));
            let there = evil.address().to_owned();
            let fake = FakeRegistry::telling(move |asked| {
                let location = format!("location: http://{there}{}", asked.path);
                asked.path.contains(kind).then(|| Say::Answer(307, vec![location], Vec::new()))
            });
            let name = fake.put(&small("x"), "app", "1");
            let store = TestStore::new();
            let auth = STANDARD.encode(format!("bob:{PASSWORD}"));
            let path = docker_config(&store, &json!({"auths": {fake.address(): {"auth": auth}}}));
            let images = store.open_with(|config| config.docker_config = Some(path));
            let text = invalid(images.take(&name).await);
            assert!(text.contains(evil.address()) && text.contains(fake.address()), "{text}");
            assert!(!evil.asked().is_empty());
            for asked in evil.asked() {
                let shown = format!("{asked:?}");
                assert!(!shown.contains(&auth) && !shown.contains("bob") && !shown.contains("evil-token"), "{shown}");
            }
        }
    }
}

#[tokio::test]
async fn a_token_service_that_redirects_takes_no_login_along() {
    let evil = FakeRegistry::good();
    let there = evil.address().to_owned();
    let fake = FakeRegistry::telling(move |asked| {
        if asked.path.starts_with("/token") {
            return Some(Say::Answer(307, vec![format!("location: http://{there}/token")], Vec::new()));
        }
        let realm = format!("http://{}/token", asked.header("host"));
        Some(Say::Answer(401, vec![format!("www-authenticate: Bearer realm=\"{realm}\"")], Vec::new()))
    });
    let store = TestStore::new();
    let images = store.open_with(|config| login(config, fake.address(), Some("me"), PASSWORD));
    let text = invalid(images.take(&format!("{}/app:1", fake.address())).await);
    assert!(text.contains("token service") && text.contains("307"), "{text}");
    assert!(evil.asked().is_empty(), "{:?}", evil.asked());
}

#[tokio::test]
async fn a_login_for_a_registry_goes_to_none_of_its_mirrors() {
    let challenged = |asked: &super::fake_registry::Asked| {
        let realm = format!("http://{}/token", asked.header("host"));
        Say::Answer(401, vec![format!("www-authenticate: Bearer realm=\"{realm}\"")], Vec::new())
    };
    let mirror = FakeRegistry::telling(move |asked| Some(challenged(asked)));
    let fake = FakeRegistry::good();
    let name = fake.put(&small("x"), "app", "1");
    let store = TestStore::new();
    let images = store.open_with(|config| {
        login(config, fake.address(), Some("me"), PASSWORD);
        config.registries.get_mut(fake.address()).unwrap().mirrors = vec![mirror.address().to_owned()];
    });
    images.take(&name).await.unwrap();
    assert!(mirror.asked().iter().any(|asked| asked.path.starts_with("/token")));
    for asked in mirror.asked() {
        assert!(asked.header("authorization").is_empty() && !asked.path.contains("account"), "{asked:?}");
    }
}

fn openssl(openssl: &PathBuf, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut child = Command::new(openssl)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "openssl {arguments:?}");
    done.stdout
}

#[tokio::test]
async fn a_real_registry_takes_the_tokens_of_its_service() {
    let Some(program) = found("openssl", &[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (key, certificate) = (folder.path().join("key.pem"), folder.path().join("cert.pem"));
    let (key_path, certificate_path) = (key.to_str().unwrap().to_owned(), certificate.to_str().unwrap());
    #[rustfmt::skip]
    openssl(&program, &[
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tests",
        "-keyout", &key_path, "-out", certificate_path,
    ], b"");
    let der = openssl(&program, &["x509", "-in", certificate_path, "-outform", "DER"], b"");
    let header = json!({"typ": "JWT", "alg": "RS256", "x5c": [STANDARD.encode(der)]}).to_string();
    let token = move |actions: &[&str]| {
        let claims = json!({
            "iss": "tests", "sub": "me", "aud": "registry", "jti": "1",
            "iat": 1, "nbf": 1, "exp": 4_102_444_800u64,
            "access": [{"type": "repository", "name": "app", "actions": actions}],
        });
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(&header), URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = openssl(&program, &["dgst", "-sha256", "-sign", &key_path], signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    };
    let pusher = token(&["pull", "push"]);
    let basic = format!("Basic {}", STANDARD.encode(format!("me:{PASSWORD}")));
    let service = FakeRegistry::telling(move |asked| {
        if asked.header("authorization") != basic {
            return Some(Say::Answer(401, Vec::new(), Vec::new()));
        }
        let right = asked.path.contains("scope=repository%3Aapp%3Apull") && asked.path.contains("service=registry");
        let token = if right { token(&["pull"]) } else { token(&[]) };
        Some(Say::Answer(200, Vec::new(), json!({"token": token}).to_string().into()))
    });
    let realm = format!("http://{}/token", service.address());
    let Some(registry) = Registry::with_tokens(&realm, &certificate, &pusher) else { return };
    let name = registry.push(&small("by token"), "app", "1");
    let store = TestStore::new();
    let images = store.open();
    invalid(images.take(&name).await);
    drop(images);
    let images = store.open_with(|config| login(config, registry.address(), Some("me"), PASSWORD));
    assert_eq!(read(images.take(&name).await.unwrap().root(), "hello"), "by token");
    assert_eq!(service.asked().len(), 2, "one in vain, and one for everything");
}
