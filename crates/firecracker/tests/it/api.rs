//! Promises of the API's client.

use std::time::Duration;

use firecracker::requests::{
    Action, BootSource, CreateSnapshot, Drive, DriveFile, Entropy, LoadSnapshot, MachineConfig, Memory, RateLimiter,
    State, TokenBucket, Vsock, VsockPath,
};
use firecracker::{Api, Error};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::task::TaskTracker;

use crate::fake::Fake;
use crate::process::Process;

async fn connect(socket: &std::path::Path) -> Api {
    Api::new(UnixStream::connect(socket).await.unwrap(), &TaskTracker::new()).await.unwrap()
}

fn drive(path: &str) -> Drive {
    let bandwidth = Some(TokenBucket { size: 1 << 20, refill_time: 100 });
    Drive {
        drive_id: "rootfs".to_owned(),
        path_on_host: path.to_owned(),
        is_root_device: true,
        is_read_only: false,
        rate_limiter: Some(RateLimiter { bandwidth, ops: None }),
    }
}

/// Configures a machine by every request that is allowed before its start.
async fn configure(api: &mut Api, dir: &std::path::Path) {
    std::fs::write(dir.join("file"), vec![0; 4096]).unwrap();
    api.apply(&MachineConfig { vcpu_count: 2, mem_size_mib: 128 }).await.unwrap();
    let boot_args = "console=ttyS0".to_owned();
    let kernel =
        |initrd_path| BootSource { kernel_image_path: "file".to_owned(), initrd_path, boot_args: boot_args.clone() };
    api.apply(&kernel(None)).await.unwrap();
    api.apply(&kernel(Some("file".to_owned()))).await.unwrap();
    api.apply(&drive("file")).await.unwrap();
    api.apply(&Drive {
        rate_limiter: None,
        is_read_only: true,
        drive_id: "second".to_owned(),
        is_root_device: false,
        ..drive("file")
    })
    .await
    .unwrap();
    api.apply(&Vsock { guest_cid: 3, uds_path: "v.sock".to_owned() }).await.unwrap();
    api.apply(&Entropy {}).await.unwrap();
}

fn load(vsock: Option<&str>, resume_vm: bool) -> LoadSnapshot {
    LoadSnapshot {
        snapshot_path: "s".to_owned(),
        mem_backend: Memory::File("m".to_owned()),
        resume_vm,
        vsock_override: vsock.map(|path| VsockPath { uds_path: path.to_owned() }),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_follow_each_other_at_once_are_all_answered() {
    /// Enough that one is sent before the connection has seen the end of the answer before.
    const REQUESTS: u32 = 2_000;
    let fake = Fake::start();
    let mut api = connect(&fake.socket()).await;
    for number in 1..=REQUESTS {
        let answered = api.apply(&MachineConfig { vcpu_count: 1, mem_size_mib: number }).await;
        assert!(answered.is_ok(), "request {number}: {answered:?}");
    }
}

#[tokio::test]
async fn a_machine_is_started_paused_kept_and_resumed() {
    let fake = Fake::start();
    let mut api = connect(&fake.socket()).await;
    configure(&mut api, fake.dir()).await;
    assert_eq!(api.instance().await.unwrap().state, "Not started");
    api.apply(&Action::InstanceStart).await.unwrap();
    assert_eq!(api.instance().await.unwrap().state, "Running");
    let files = CreateSnapshot { snapshot_path: "s".to_owned(), mem_file_path: "m".to_owned() };
    let refused = api.apply(&files).await.unwrap_err();
    assert!(matches!(&refused, Error::Refused(reason) if reason.ends_with("unavailable while running")), "{refused}");
    api.apply(&State::Paused).await.unwrap();
    assert_eq!(api.instance().await.unwrap().state, "Paused");
    api.apply(&files).await.unwrap();
    api.apply(&State::Resumed).await.unwrap();
    assert_eq!(api.instance().await.unwrap().state, "Running");
    assert!(fake.dir().join("s").exists() && fake.dir().join("m").exists());
}

#[tokio::test]
async fn a_machine_is_restored_with_its_own_vsock() {
    let fake = Fake::start();
    for name in ["s", "m", "disk"] {
        std::fs::write(fake.dir().join(name), []).unwrap();
    }
    let mut api = connect(&fake.socket()).await;
    api.apply(&load(Some("own.sock"), false)).await.unwrap();
    assert_eq!(api.instance().await.unwrap().state, "Paused");
    let file = DriveFile { drive_id: "rootfs".to_owned(), path_on_host: "disk".to_owned() };
    let unknown = api.apply(&file).await.unwrap_err();
    assert!(matches!(unknown, Error::Refused(_)), "{unknown}");
    api.apply(&State::Resumed).await.unwrap();
    assert!(fake.dir().join("own.sock").exists() && !fake.dir().join("v.sock").exists());
}

#[tokio::test]
async fn a_failed_load_says_why_and_ends_the_process() {
    let fake = Fake::start();
    let mut api = connect(&fake.socket()).await;
    for name in ["s", "m", "v.sock"] {
        std::fs::write(fake.dir().join(name), []).unwrap();
    }
    let refused = api.apply(&load(None, true)).await.unwrap_err();
    assert!(matches!(&refused, Error::Refused(reason) if reason.contains("Address already in use")), "{refused}");
    fake.ended().await;
    let gone = api.instance().await.unwrap_err();
    assert!(matches!(gone, Error::Gone(_)), "{gone}");
}

#[tokio::test]
async fn firecracker_takes_every_request_that_is_allowed_before_the_start() {
    let Some(process) = Process::start().await else { return };
    let mut api = connect(&process.socket()).await;
    configure(&mut api, process.dir()).await;
    let instance = api.instance().await.unwrap();
    assert_eq!((instance.id.as_str(), instance.state.as_str()), ("likeness", "Not started"));
    // Of these it parses the whole body first.
    let files = CreateSnapshot { snapshot_path: "s".to_owned(), mem_file_path: "m".to_owned() };
    let later = [
        api.apply(&State::Paused).await,
        api.apply(&State::Resumed).await,
        api.apply(&files).await,
        api.apply(&DriveFile { drive_id: "rootfs".to_owned(), path_on_host: "file".to_owned() }).await,
        api.apply(&Action::SendCtrlAltDel).await,
    ];
    for refused in later {
        let refused = refused.unwrap_err().to_string();
        assert_eq!(refused, "Firecracker: The requested operation is not supported before starting the microVM.");
    }
    let refused = api.apply(&load(Some("own.sock"), true)).await.unwrap_err().to_string();
    assert!(refused.contains("not allowed after configuring"), "{refused}");
    // Its own words for a kernel that is none.
    let refused = api.apply(&Action::InstanceStart).await.unwrap_err();
    assert!(matches!(&refused, Error::Refused(reason) if reason.contains("Start microvm error")), "{refused}");
}

/// Answers the first request with `answer`, and then with nothing.
async fn answered(answer: Vec<u8>, closes: bool) -> Error {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("api.sock")).unwrap();
    let mut api = connect(&dir.path().join("api.sock")).await;
    let (mut stream, _) = listener.accept().await.unwrap();
    let answers = async move {
        let mut request = [0; 4096];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        // The client may hang up before it has all.
        let _ = stream.write_all(&answer).await;
        if closes { None } else { Some(stream) }
    };
    let (failed, _open) = tokio::join!(api.instance(), answers);
    failed.unwrap_err()
}

#[tokio::test]
async fn an_answer_without_end_is_refused() {
    let mut answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n".to_vec();
    answer.resize(1 << 20, b' ');
    let failed = answered(answer, false).await;
    assert!(matches!(&failed, Error::Malformed(reason) if reason.contains("more than 65536 bytes")), "{failed}");
}

#[tokio::test]
async fn what_is_not_http_is_malformed_and_what_ends_is_gone() {
    for garbage in ["\0\0\0\0\r\n\r\n", "SSH-2.0-x\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"] {
        let failed = answered(garbage.as_bytes().to_vec(), false).await;
        assert!(matches!(failed, Error::Malformed(_)), "{garbage:?}: {failed}");
    }
    for cut in ["", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"] {
        let failed = answered(cut.as_bytes().to_vec(), true).await;
        assert!(matches!(failed, Error::Gone(_)), "{cut:?}: {failed}");
    }
    let failed = answered(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n".to_vec(), false).await;
    assert_eq!(
        failed.to_string(),
        "unexpected response from Firecracker: status 500 Internal Server Error without a reason"
    );
}

#[tokio::test(start_paused = true)]
async fn a_process_that_does_not_answer_is_given_up() {
    let failed = answered(Vec::new(), false).await;
    assert!(matches!(failed, Error::Silent(wait) if wait == Duration::from_secs(10)), "{failed}");
}
