//! Tests of the Engine itself: unreachable, remote, restarted, or without a required feature.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::Resources;
use fixtures::Engine;
use fixtures::image::Image;
use fixtures::registry::Registry;
use images::{PullPolicy, RegistryConfig};
use providers::docker::{Docker, DockerConfig, DockerTls};
use providers::{Chain, Error, Isolation, Provider, Spec, capabilities};
use tokio::net::{TcpListener, UnixStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::docker::harness::{TestBox, TestProvider, furnish, new_id, new_store, spec};
use crate::test_box::eventually;

fn at(socket: impl Into<String>) -> DockerConfig {
    DockerConfig { socket: socket.into(), ..DockerConfig::new(new_store()) }
}

#[tokio::test]
async fn an_engine_that_is_not_there_is_unhealthy_within_a_second_and_says_what_to_do() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("tcp://{}", silent.local_addr().unwrap());
    for socket in ["/nowhere/docker.sock".to_owned(), "tcp://127.0.0.1:1".to_owned(), silent] {
        let docker = Docker::open(at(&socket)).await.unwrap();
        let began = Instant::now();
        let error = docker.health().await.error.expect("it is not healthy");
        assert!(began.elapsed() < Duration::from_secs(1), "{socket}: {:?}", began.elapsed());
        let place = socket.trim_start_matches("tcp://");
        assert!(error.contains(place) && error.contains("docker info"), "{error}");
        if socket.starts_with("/nowhere") {
            assert!(matches!(docker.start(&new_id(), &spec()).await, Err(Error::Unavailable(_))));
            assert!(matches!(docker.inventory().await, Err(Error::Unavailable(_))));
            assert!(matches!(docker.stop(&new_id()).await, Err(Error::Unavailable(_))));
        }
    }
}

#[tokio::test]
async fn an_engine_that_never_answers_is_given_up_by_every_look() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let docker = Docker::open(at(format!("tcp://{}", silent.local_addr().unwrap()))).await.unwrap();
    let began = Instant::now();
    let box_id = new_id();
    let (listed, guest, size) = tokio::join!(docker.inventory(), docker.guest(&box_id), docker.disk_usage(&box_id));
    for error in [listed.err(), guest.err()] {
        assert!(matches!(&error, Some(Error::Unavailable(text)) if text.contains("does not answer")), "{error:?}");
    }
    assert_eq!(size, None);
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
}

#[tokio::test]
async fn health_tells_version_runtimes_and_how_many_boxes_there_are() {
    let Some(provider) = TestProvider::new().await else { return };
    let _boxes = [provider.start().await, provider.start().await];
    let began = Instant::now();
    assert_eq!(provider.docker.health().await.error, None);
    assert!(began.elapsed() < Duration::from_secs(1));
    let backend = provider.docker.backend().unwrap();
    assert!(backend.version.starts_with(|c: char| c.is_ascii_digit()), "{backend:?}");
    assert!(backend.runtimes.contains(&"runc".to_owned()) && backend.runtimes.contains(&"runsc".to_owned()));
    assert_eq!(backend.runtime_count, 2);
    let capabilities = capabilities(&provider.docker);
    assert!(capabilities.contains(&"runtime_inventory") && capabilities.contains(&"container"), "{capabilities:?}");
    let facts = provider.docker.facts();
    assert_eq!(
        (facts.isolation, facts.runtime.as_str(), facts.network_mode.as_str()),
        (Isolation::Container, "runc", "none")
    );
}

#[tokio::test]
async fn what_the_engine_lacks_is_refused_by_name() {
    let Some(provider) = TestProvider::new().await else { return };
    let config = DockerConfig { runtime: "kata".to_owned(), ..provider.config.clone() };
    let error = Docker::open(config).await.unwrap().health().await.error.unwrap();
    assert!(error.contains("kata") && error.contains("runc"), "{error}");

    let bounded = Spec { resources: Resources { disk_mb: 64, ..spec().resources }, ..spec() };
    match provider.docker.check(&bounded) {
        Err(Error::NotSupported(text)) => assert!(text.contains("disk_mb") && text.contains("docker"), "{text}"),
        // This Engine has a storage driver that can limit the disk.
        other => assert!(provider.docker.facts().limits.iter().any(|(name, _)| *name == "disk_mb"), "{other:?}"),
    }
}

#[tokio::test]
async fn an_image_that_is_not_there_is_invalid_and_nothing_is_left() {
    let Some(provider) = TestProvider::with(|config| config.pull = PullPolicy::Never).await else { return };
    let unknown = Spec { image: "test/unknown:9".to_owned(), ..spec() };
    match provider.docker.start(&new_id(), &unknown).await {
        Err(Error::Invalid(text)) => assert!(text.contains("test/unknown:9") && text.contains("never"), "{text}"),
        other => panic!("{other:?}"),
    }
    for image in ["host", "../../containers/json", "a b", "Upper/Case"] {
        let refused = provider.docker.start(&new_id(), &Spec { image: image.to_owned(), ..spec() }).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{image}: {refused:?}");
    }
    assert_eq!(provider.docker.inventory().await.unwrap(), []);
}

#[tokio::test]
async fn a_registry_that_is_down_is_unavailable() {
    let Some(provider) = TestProvider::new().await else { return };
    let there = Spec { image: "127.0.0.1:1/app:1".to_owned(), ..spec() };
    match provider.docker.start(&new_id(), &there).await {
        Err(Error::NoImage(text)) => assert!(text.contains("127.0.0.1:1"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_registry_that_is_slow_is_not_waited_for_longer_than_configured() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let registry = silent.local_addr().unwrap();
    let Some(provider) = TestProvider::with(|config| config.pull_timeout = Duration::from_millis(300)).await else {
        return;
    };
    let there = Spec { image: format!("{registry}/app:1"), ..spec() };
    match provider.docker.start(&new_id(), &there).await {
        Err(Error::NoImage(text)) => assert!(text.contains("continues"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_image_is_pulled_with_the_login_and_refusals_say_what_to_do() {
    let Some(image) = Image::alpine_like() else { return };
    let Some(registry) = Registry::with_login("ann", "a?>~secret") else { return };
    let name = registry.push(&image, "team/alpine", "1");
    let with = |password: Option<&str>| {
        let login = RegistryConfig {
            username: password.map(|_| "ann".to_owned()),
            password: password.map(Into::into),
            ..RegistryConfig::default()
        };
        let registries = [(registry.address().to_owned(), login)].into();
        TestProvider::with(|config| config.registries = registries)
    };
    for (password, said) in [(None, "requires a login"), (Some("wrong"), "rejects the login")] {
        let Some(provider) = with(password).await else { return };
        match provider.docker.start(&new_id(), &Spec { image: name.clone(), ..spec() }).await {
            Err(Error::Invalid(text)) => {
                assert!(text.contains(said) && text.contains(registry.address()) && !text.contains("wrong"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
    let provider = with(Some("a?>~secret")).await.unwrap();
    // Concurrent starts share one pull.
    let spec = Spec { image: name.clone(), ..spec() };
    let ids = [new_id(), new_id(), new_id()];
    let started = futures_util::future::join_all(ids.iter().map(|id| provider.docker.start(id, &spec))).await;
    assert!(started.iter().all(Result::is_ok), "{started:?}");
    TestBox::of(&provider.docker, ids[0].clone()).text("busybox true").await;
    let unknown = Spec { image: name.replace("alpine:1", "alpine:2"), ..spec };
    match provider.docker.start(&new_id(), &unknown).await {
        Err(Error::Invalid(text)) => assert!(text.contains("alpine:2"), "{text}"),
        other => panic!("{other:?}"),
    }
    let Some(strict) = TestProvider::with(|config| config.allowed_registries = vec!["r.example".to_owned()]).await
    else {
        return;
    };
    let refused = strict.docker.start(&new_id(), &unknown).await;
    assert!(matches!(&refused, Err(Error::Invalid(text)) if text.contains("r.example")), "{refused:?}");
}

/// The volume is the one that holds the agent.
#[tokio::test]
async fn a_volume_that_was_removed_is_made_again() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    provider.docker.stop(&sandbox.id).await.unwrap();
    let filter = format!("%7B%22label%22%3A%5B%22tidebox.store%3D{}%22%5D%7D", provider.config.store_id.as_str());
    let (_, volumes) = provider.engine.api("GET", &format!("/volumes?filters={filter}"), b"");
    let volumes: serde_json::Value = serde_json::from_slice(&volumes).unwrap();
    let volumes = volumes["Volumes"].as_array().unwrap();
    assert_eq!(volumes.len(), 1, "a box leaves no volume but the agent's: {volumes:?}");
    let name = volumes[0]["Name"].as_str().unwrap();
    assert_eq!(provider.engine.api("DELETE", &format!("/volumes/{name}"), b"").0, 204);
    provider.start().await.text("true").await;
}

#[tokio::test]
async fn a_box_leaves_nothing_behind_and_goes_in_well_under_a_second() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    let (_, inspected) =
        provider.engine.api("GET", &format!("/containers/{}/json", provider.container(&sandbox.id)), b"");
    let inspected: serde_json::Value = serde_json::from_slice(&inspected).unwrap();
    let container = inspected["Id"].as_str().unwrap().to_owned();
    assert_eq!(inspected["HostConfig"]["LogConfig"]["Type"], "none");
    let began = Instant::now();
    provider.docker.stop(&sandbox.id).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let left = std::process::Command::new("find").arg("/sys/fs/cgroup").args(["-name", &container]).output().unwrap();
    assert_eq!(String::from_utf8(left.stdout).unwrap(), "");
    assert!(!std::fs::read_to_string("/proc/self/mounts").unwrap().contains(&container));
}

pub(crate) async fn proxied(socket: PathBuf, tls: Option<TlsAcceptor>) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (socket, tls) = (socket.clone(), tls.clone());
            connections.spawn(async move {
                let mut engine = UnixStream::connect(socket).await.unwrap();
                // Connections that the client or the Engine breaks off need no handling here.
                match tls {
                    None => {
                        let mut stream = stream;
                        let _ = tokio::io::copy_bidirectional(&mut stream, &mut engine).await;
                    }
                    Some(tls) => {
                        let Ok(mut stream) = tls.accept(stream).await else { return };
                        let _ = tokio::io::copy_bidirectional(&mut stream, &mut engine).await;
                    }
                }
            });
        }
    });
    (address, tasks)
}

#[tokio::test]
async fn an_engine_on_tcp_works_like_one_on_a_socket() {
    let Some(provider) = TestProvider::new().await else { return };
    let (address, _proxy) = proxied(provider.engine.socket(), None).await;
    let docker =
        Docker::open(DockerConfig { socket: format!("tcp://{address}"), ..provider.config.clone() }).await.unwrap();
    assert_eq!(docker.health().await.error, None);
    let id = new_id();
    docker.start(&id, &spec()).await.unwrap();
    assert_eq!(TestBox::of(&docker, id).text("echo far").await, "far\n");
}

#[tokio::test]
async fn the_engine_relays_only_to_a_server_that_cannot_reach_the_agent_itself() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    // Processes that the Engine has started in the container, one for each connection.
    let relays = || {
        let (status, answer) =
            provider.engine.api("GET", &format!("/containers/{}/json", provider.container(&sandbox.id)), b"");
        assert_eq!(status, 200);
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
        answer["ExecIDs"].as_array().map_or(0, Vec::len)
    };
    let near = TestBox::of(&provider.reopen().await, sandbox.id.clone());
    assert_eq!(near.text("echo near").await, "near\n");
    assert_eq!(relays(), 0);
    let (address, _proxy) = proxied(provider.engine.socket(), None).await;
    let far = DockerConfig { socket: format!("tcp://{address}"), ..provider.config.clone() };
    for count in 1..=3 {
        let far = TestBox::of(&Docker::open(far.clone()).await.unwrap(), sandbox.id.clone());
        assert_eq!(far.text("echo far").await, "far\n");
        assert!(relays() >= 1, "{count}");
    }
}

#[tokio::test]
async fn an_engine_behind_tls_is_known_by_its_certificate_and_we_by_ours() {
    let Some(provider) = TestProvider::new().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority_cert = authority.self_signed(&authority_key).unwrap();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let signed = |name: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.signed_by(&key, &issuer).unwrap(), key)
    };
    let (engine_cert, engine_key) = signed("127.0.0.1");
    let (own_cert, own_key) = signed("client");
    let write = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let tls = DockerTls {
        ca: write("ca.pem", authority_cert.pem()),
        cert: Some(write("cert.pem", own_cert.pem())),
        key: Some(write("key.pem", own_key.serialize_pem())),
    };
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(authority_cert.der().to_vec())).unwrap();
    let crypto = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&crypto)).build().unwrap();
    let server = ServerConfig::builder_with_provider(crypto)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![engine_cert.der().clone()], PrivateKeyDer::try_from(engine_key.serialize_der()).unwrap())
        .unwrap();
    let (address, _proxy) = proxied(provider.engine.socket(), Some(TlsAcceptor::from(Arc::new(server)))).await;
    let config = DockerConfig { socket: format!("tcp://{address}"), ..provider.config.clone() };

    let docker = Docker::open(DockerConfig { tls: Some(tls.clone()), ..config.clone() }).await.unwrap();
    assert_eq!(docker.health().await.error, None);
    let id = new_id();
    docker.start(&id, &spec()).await.unwrap();
    assert_eq!(TestBox::of(&docker, id).text("echo safe").await, "safe\n");

    // Without TLS, without a client certificate, and with an authority that did not sign the
    // Engine's.
    let (_, other_key) = signed("other");
    let other = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&other_key).unwrap();
    let strange = DockerTls { ca: write("other.pem", other.pem()), ..tls.clone() };
    for tls in [None, Some(DockerTls { cert: None, key: None, ..tls.clone() }), Some(strange)] {
        let docker = Docker::open(DockerConfig { tls: tls.clone(), ..config.clone() }).await.unwrap();
        assert!(docker.health().await.error.is_some(), "{tls:?}");
    }
    let half = Docker::open(DockerConfig { tls: Some(DockerTls { key: None, ..tls }), ..config }).await;
    assert!(matches!(&half, Err(Error::Invalid(text)) if text.contains("providers.docker.tls")), "{half:?}");
}

/// Starts an Engine of its own with a box, ends the Engine and starts it again.
async fn restarted(settings: &str, kill: bool) -> Option<(Engine, Docker, providers::SandboxId)> {
    let mut engine = Engine::start_with(settings)?;
    furnish(&engine);
    let docker = Docker::open(at(engine.socket().display().to_string())).await.unwrap();
    let id = new_id();
    docker.start(&id, &spec()).await.unwrap_or_else(|error| panic!("{}", Chain(&error)));
    let sandbox = TestBox::of(&docker, id.clone());
    sandbox.text("echo kept > /tmp/kept").await;
    if kill {
        engine.kill()
    } else {
        engine.stop()
    }
    let error = docker.health().await.error.expect("an Engine that was ended is not healthy");
    assert!(error.contains("does not answer"), "{error}");
    assert!(
        matches!(docker.inventory().await, Err(Error::Unavailable(_))),
        "boxes of an Engine that is away are not gone"
    );
    // A box that keeps running answers as long as its connection does not depend on the Engine.
    let goes_on = TestBox::of(&docker, id.clone());
    if settings.is_empty() {
        eventually("the kept connection has ended", || async {
            matches!(docker.guest(&id).await, Err(Error::Unavailable(_)))
        })
        .await;
    } else {
        assert_eq!(goes_on.text("cat /tmp/kept").await, "kept\n");
    }
    engine.start_again();
    assert_eq!(docker.health().await.error, None);
    Some((engine, docker, id))
}

#[tokio::test(flavor = "multi_thread")]
async fn boxes_end_with_an_engine_that_is_stopped_and_can_be_made_again() {
    let Some((_engine, docker, id)) = restarted("", false).await else { return };
    let found = docker.inventory().await.unwrap();
    assert!(found.len() == 1 && !found[0].alive, "{found:?}");
    assert!(matches!(docker.guest(&id).await, Err(Error::Gone)));
    docker.start(&id, &spec()).await.unwrap();
    TestBox::of(&docker, id.clone()).refuses("test -e /tmp/kept").await;
    docker.stop(&id).await.unwrap();
    assert_eq!(docker.inventory().await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn boxes_outlive_an_engine_that_restores_them() {
    for kill in [false, true] {
        let Some((_engine, docker, id)) = restarted("\"live-restore\": true,", kill).await else { return };
        let found = docker.inventory().await.unwrap();
        assert!(found.len() == 1 && found[0].alive, "{found:?}");
        let sandbox = TestBox::of(&docker, id.clone());
        eventually("the box answers", || async { docker.guest(&sandbox.id).await.is_ok() }).await;
        assert_eq!(sandbox.text("cat /tmp/kept").await, "kept\n");
        docker.stop(&id).await.unwrap();
    }
}

/// Environment variable that is set in the test's second process, which is then killed.
const LEFT: &str = "TIDEBOX_TEST_LEFT_ENGINE";

#[tokio::test]
async fn the_engine_of_these_tests_ends_with_them_even_when_they_are_killed() {
    use std::io::{BufRead, BufReader, Write};
    if std::env::var_os(LEFT).is_some() {
        let Some(engine) = Engine::start() else { return };
        furnish(&engine);
        let docker = Docker::open(at(engine.socket().display().to_string())).await.unwrap();
        docker.start(&new_id(), &spec()).await.unwrap();
        println!("folder {}", engine.folder().display());
        std::io::stdout().flush().unwrap();
        std::future::pending::<()>().await;
    }
    let Some(_) = crate::docker::harness::engine() else { return };
    let name = "the_engine_of_these_tests_ends_with_them_even_when_they_are_killed";
    let mut child =
        fixtures::again(module_path!(), name).env(LEFT, "1").stdout(std::process::Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let folder =
        lines.map_while(Result::ok).find_map(|line| line.split_once("folder ").map(|(_, at)| PathBuf::from(at)));
    let folder = folder.unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the folder of the Engine is gone", || async { !folder.exists() }).await;
    let name = folder.file_name().unwrap().to_string_lossy().into_owned();
    assert!(!std::fs::read_to_string("/proc/self/mounts").unwrap().contains(&name));
    let left = std::process::Command::new("find").arg("/sys/fs/cgroup").args(["-name", &format!("{name}*")]).output();
    assert_eq!(String::from_utf8(left.unwrap().stdout).unwrap(), "");
    // The watcher deletes the folder, then ends.
    eventually("no process names the Engine", || async {
        std::fs::read_dir("/proc").unwrap().flatten().all(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            !String::from_utf8_lossy(&line).contains(&name)
        })
    })
    .await;
}
