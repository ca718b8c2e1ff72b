//! Promises of streams to a guest.

use std::time::Duration;

use firecracker::requests::{Action, BootSource, CreateSnapshot, State, Vsock};
use firecracker::{Api, Error, vsock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio_util::task::TaskTracker;

use crate::fake::Fake;

const PORT: u32 = 5000;
/// More than any answer takes here.
const WAIT: Duration = Duration::from_secs(20);

async fn running() -> (Fake, Api) {
    let fake = Fake::start();
    std::fs::write(fake.dir().join("kernel"), []).unwrap();
    let mut api = Api::new(UnixStream::connect(fake.socket()).await.unwrap(), &TaskTracker::new()).await.unwrap();
    let (kernel_image_path, boot_args) = ("kernel".to_owned(), String::new());
    api.apply(&BootSource { kernel_image_path, initrd_path: None, boot_args }).await.unwrap();
    api.apply(&Vsock { guest_cid: 3, uds_path: "v.sock".to_owned() }).await.unwrap();
    api.apply(&Action::InstanceStart).await.unwrap();
    (fake, api)
}

async fn open(fake: &Fake, wait: Duration) -> firecracker::Result<UnixStream> {
    let stream = UnixStream::connect(fake.dir().join("v.sock")).await.unwrap();
    vsock::open(stream, PORT, wait).await
}

#[tokio::test]
async fn a_stream_carries_what_the_guest_sends_at_once_and_what_it_is_sent() {
    let (fake, _api) = running().await;
    let mut guest = fake.listen(PORT);
    let (opened, guests) = tokio::join!(open(&fake, WAIT), async {
        let mut stream = guest.recv().await.unwrap();
        stream.write_all(b"hello\nOK 1\n").await.unwrap();
        stream
    });
    let (mut opened, mut guests) = (opened.unwrap(), guests);
    let mut greeting = [0; 11];
    opened.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"hello\nOK 1\n");
    opened.write_all(b"answer").await.unwrap();
    drop(opened);
    let mut received = Vec::new();
    guests.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"answer");
}

#[tokio::test]
async fn a_port_on_which_nothing_listens_is_told_at_once() {
    let (fake, _api) = running().await;
    let refused = open(&fake, WAIT).await.unwrap_err();
    assert!(matches!(refused, Error::NotListening(PORT)), "{refused}");
}

#[tokio::test]
async fn a_paused_guest_is_given_up_and_answers_when_it_is_resumed() {
    let (fake, mut api) = running().await;
    let _guest = fake.listen(PORT);
    api.apply(&State::Paused).await.unwrap();
    let silent = open(&fake, Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(silent.to_string(), "no response within 50 ms");
    let (opened, resumed) = tokio::join!(open(&fake, WAIT), api.apply(&State::Resumed));
    assert!(opened.is_ok() && resumed.is_ok());
}

#[tokio::test]
async fn streams_end_after_a_snapshot_and_new_ones_are_opened() {
    let (fake, mut api) = running().await;
    let mut guest = fake.listen(PORT);
    let mut before = open(&fake, WAIT).await.unwrap();
    let _guests = guest.recv().await.unwrap();
    api.apply(&State::Paused).await.unwrap();
    let files = CreateSnapshot { snapshot_path: "s".to_owned(), mem_file_path: "m".to_owned() };
    api.apply(&files).await.unwrap();
    api.apply(&State::Resumed).await.unwrap();
    assert_eq!(before.read(&mut [0; 8]).await.unwrap(), 0);
    assert!(open(&fake, WAIT).await.is_ok());
}

#[tokio::test]
async fn a_killed_process_leaves_its_sockets_behind() {
    let (fake, _api) = running().await;
    fake.kill();
    fake.ended().await;
    assert!(fake.dir().join("v.sock").exists());
    assert!(UnixStream::connect(fake.dir().join("v.sock")).await.is_err());
}

#[tokio::test]
async fn what_does_not_answer_as_firecracker_is_malformed() {
    for line in ["OK\n", "OK x\n", "OK -1\n", "OK 4294967296\n", "ERR 1\n", "\n", "OK 1", "OK 000000000000000000001\n"]
    {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(line.as_bytes()).await.unwrap();
        theirs.shutdown().await.unwrap();
        let failed = vsock::open(ours, PORT, WAIT).await.unwrap_err();
        assert!(matches!(failed, Error::Malformed(_)), "{line:?}: {failed}");
    }
}
