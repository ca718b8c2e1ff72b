//! Shared parts of the tests of `custom`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::{Resources, SandboxId};
use futures_util::{StreamExt, stream};
use providers::custom::{Custom, CustomConfig, SecretString};
use providers::{Command, Error, Guest, OutputEvent, Provider, Result, Spec};
use serde_json::{Value, json};

use crate::custom::fake_service::{FakeService, Received, Reply};

/// Time-out of an answer in these tests.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(700);
/// The longest time that a call may take, even on a busy machine.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

pub(crate) fn config(url: &str) -> CustomConfig {
    CustomConfig {
        name: "far".to_owned(),
        base_url: url.to_owned(),
        api_key: Some(SecretString::from("hunter2")),
        ca_file: None,
        timeout: TIMEOUT,
        remote_provider: None,
        label: "ours".to_owned(),
    }
}

pub(crate) fn patient(url: &str) -> Custom {
    Custom::open(CustomConfig { timeout: BOUND, ..config(url) }).unwrap()
}

pub(crate) fn id(n: u8) -> SandboxId {
    SandboxId::from_entropy([n; 10])
}

pub(crate) fn labels(id: &SandboxId) -> Value {
    json!({"tidebox.id": id.as_str(), "tidebox.store": "ours"})
}

pub(crate) fn spec() -> Spec {
    Spec {
        image: "default".to_owned(),
        resources: Resources { memory_mb: 64, vcpus: 1, disk_mb: 0, pids: 64 },
        entrypoint: false,
        metadata: Default::default(),
        lifetime: Duration::from_secs(60),
        trust: None,
        snapshot: None,
        is_copy: false,
        egress: Vec::new(),
        asker: None,
    }
}

pub(crate) fn argv(argv: &[&str]) -> Command {
    Command {
        argv: argv.iter().map(|&arg| arg.to_owned()).collect(),
        env: Default::default(),
        workdir: None,
        user: None,
        timeout: Duration::from_secs(5),
        stdin: None,
        terminal: None,
    }
}

/// Waits for `work`, which must end by itself.
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, work).await.unwrap_or_else(|_| panic!("took too long: {what}"))
}

#[track_caller]
pub(crate) fn failed<T>(what: &str, result: Result<T>) -> String {
    // The error of a start also says whether the service received the request.
    let result = result.map_err(|error| if let Error::NotAsked(error) = error { *error } else { error });
    match result {
        Err(error @ (Error::Failed { .. } | Error::NoAnswer { .. })) => error.to_string(),
        Err(error) => panic!("{what}: {error:?}"),
        Ok(_) => panic!("{what} succeeded"),
    }
}

/// Returns the name of the error's variant.
pub(crate) fn kind<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => "Ok".to_owned(),
        Err(error) => format!("{error:?}").split(['(', ' ']).next().unwrap_or_default().to_owned(),
    }
}

/// Makes every call that a guest has, and returns the results.
pub(crate) async fn everything(guest: &Arc<dyn Guest>) -> Vec<(&'static str, String)> {
    let content = || stream::iter([Ok(Bytes::from_static(b"content"))]).boxed();
    let large = || stream::repeat_with(|| Ok(Bytes::from_static(&[7; 100_000]))).take(30).boxed();
    let to_the_end = async {
        let mut output = guest.exec(argv(&["true"])).await?;
        loop {
            match output.next().await {
                Some(Ok(OutputEvent::Exit(_))) => return Ok(()),
                Some(event) => event.map(|_| ())?,
                None => panic!("an output without an end"),
            }
        }
    };
    let whole = async {
        let mut bytes = guest.read_file("/f", 0, None).await?.bytes;
        while let Some(piece) = bytes.next().await {
            piece?;
        }
        Ok(())
    };
    vec![
        ("exec", kind(soon("exec", to_the_end).await)),
        ("read", kind(soon("read", whole).await)),
        ("read a part", kind(soon("read a part", guest.read_file("/f", 1, Some(5))).await)),
        ("write", kind(soon("write", guest.write_file("/f", None, content())).await)),
        ("write much", kind(soon("write much", guest.write_file("/f", Some(0o600), large())).await)),
        ("delete", kind(soon("delete", guest.delete("/f", true)).await)),
        ("list", kind(soon("list", guest.list("/")).await)),
        ("stat", kind(soon("stat", guest.stat("/f")).await)),
        ("rename", kind(soon("rename", guest.rename("/f", "/g")).await)),
        ("chmod", kind(soon("chmod", guest.chmod("/f", 0o600)).await)),
        ("glob", kind(soon("glob", guest.glob("/*")).await)),
        ("console", kind(soon("console", guest.console(5)).await)),
        ("ports", kind(soon("ports", guest.ports()).await)),
        ("connect", kind(soon("connect", guest.connect(80, content())).await)),
        ("set_deadline", kind(soon("set_deadline", guest.set_deadline(Duration::from_secs(9))).await)),
    ]
}

/// Returns whether the request is for the inside of a sandbox.
pub(crate) fn is_inside(asked: &Received) -> bool {
    ["/exec", "/files", "/logs", "/ports", "/extend"].iter().any(|part| asked.line.contains(part))
}

/// Starts a box at a service that answers requests for its inside with `tell`.
pub(crate) async fn inside(
    tell: impl Fn(&Received) -> Reply + Send + Sync + 'static,
) -> (FakeService, Custom, Arc<dyn Guest>) {
    let service = FakeService::telling(move |asked| is_inside(asked).then(|| tell(asked)));
    let custom = patient(&service.url);
    custom.start(&id(1), &spec()).await.unwrap();
    let guest = custom.guest(&id(1)).await.unwrap();
    (service, custom, guest)
}

pub(crate) fn raw(status: &str, content_type: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}
