//! The fake answers as Firecracker does.
//!
//! The expected answers were given by Firecracker 1.16 and 1.17. Where `FIRECRACKER_BIN` names one,
//! it is asked the same; nothing here needs KVM.

use std::path::Path;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use crate::fake::Fake;
use crate::process::Process;

/// Requests to a process that was just started, one after another, with their answers: a status,
/// and the reason of a refusal.
const BEFORE_THE_START: &[(&str, &str, &str, u16, &str)] = &[
    (
        "PUT",
        "/machine-config",
        r#"{"mem_size_mib":128}"#,
        400,
        "An error occurred when deserializing the json body of a request: missing field `vcpu_count` at line 1 column 20.",
    ),
    (
        "PUT",
        "/machine-config",
        r#"{"vcpu_count":0,"mem_size_mib":128}"#,
        400,
        "Machine config error: The number of vCPUs must be greater than 0, less than 32 and must be 1 or an even number if SMT is enabled.",
    ),
    (
        "PUT",
        "/machine-config",
        r#"{"vcpu_count":1,"mem_size_mib":0}"#,
        400,
        "Machine config error: The memory size (MiB) is either 0, or not a multiple of the configured page size.",
    ),
    (
        "PUT",
        "/machine-config",
        r#"{"vcpu_count":1,"mem_size_mib":128,"x":1}"#,
        400,
        "An error occurred when deserializing the json body of a request: unknown field `x`, expected one of `vcpu_count`, `mem_size_mib`, `smt`, `cpu_template`, `track_dirty_pages`, `huge_pages` at line 1 column 38.",
    ),
    (
        "PUT",
        "/machine-config",
        r#"{"vcpu_count":"#,
        400,
        "An error occurred when deserializing the json body of a request: EOF while parsing a value at line 1 column 14.",
    ),
    ("PUT", "/machine-config", r#"{"vcpu_count":2,"mem_size_mib":128}"#, 204, ""),
    (
        "PUT",
        "/actions",
        r#"{"action_type":"InstanceStart"}"#,
        400,
        "Start microvm error: Cannot start microvm without kernel configuration.",
    ),
    (
        "PUT",
        "/boot-source",
        r#"{"kernel_image_path":"absent","boot_args":"ro"}"#,
        400,
        "Boot source error: The kernel file cannot be opened: No such file or directory (os error 2)",
    ),
    ("PUT", "/boot-source", r#"{"kernel_image_path":"used","boot_args":"ro"}"#, 204, ""),
    (
        "PUT",
        "/drives/rootfs",
        r#"{"drive_id":"rootfs","path_on_host":"absent","is_root_device":true,"is_read_only":true}"#,
        400,
        "Drive config error: Unable to create the virtio block device: Virtio backend error: Error manipulating the backing file: No such file or directory (os error 2) absent",
    ),
    (
        "PUT",
        "/drives/other",
        r#"{"drive_id":"rootfs","path_on_host":"used","is_root_device":true,"is_read_only":true}"#,
        400,
        "The id from the path does not match the id from the body!",
    ),
    (
        "PUT",
        "/drives/a-b",
        r#"{"drive_id":"a-b","path_on_host":"used","is_root_device":true,"is_read_only":true}"#,
        400,
        "API Resource IDs can only contain alphanumeric characters and underscores.",
    ),
    (
        "PUT",
        "/drives/rootfs",
        r#"{"drive_id":"rootfs","path_on_host":"used","is_root_device":true,"is_read_only":true,"rate_limiter":{"bandwidth":{"size":1000,"refill_time":100}}}"#,
        204,
        "",
    ),
    (
        "PATCH",
        "/drives/rootfs",
        r#"{"drive_id":"rootfs","path_on_host":"used"}"#,
        400,
        "The requested operation is not supported before starting the microVM.",
    ),
    (
        "PUT",
        "/vsock",
        r#"{"guest_cid":3,"uds_path":"used"}"#,
        400,
        "Vsock config error: Cannot create backend for vsock device: Error binding to the host-side Unix socket: Address already in use (os error 98)",
    ),
    ("PUT", "/vsock", r#"{"guest_cid":3,"uds_path":"v.sock"}"#, 204, ""),
    ("PUT", "/entropy", "{}", 204, ""),
    (
        "PUT",
        "/entropy",
        r#"{"x":1}"#,
        400,
        "An error occurred when deserializing the json body of a request: unknown field `x`, expected `rate_limiter` at line 1 column 4.",
    ),
    (
        "PUT",
        "/actions",
        r#"{"action_type":"Nope"}"#,
        400,
        "An error occurred when deserializing the json body of a request: unknown variant `Nope`, expected one of `FlushMetrics`, `InstanceStart`, `SendCtrlAltDel` at line 1 column 21.",
    ),
    (
        "PUT",
        "/actions",
        r#"{"action_type":"SendCtrlAltDel"}"#,
        400,
        "The requested operation is not supported before starting the microVM.",
    ),
    (
        "PATCH",
        "/vm",
        r#"{"state":"Resumed"}"#,
        400,
        "The requested operation is not supported before starting the microVM.",
    ),
    (
        "PUT",
        "/snapshot/create",
        r#"{"snapshot_path":"s","mem_file_path":"m"}"#,
        400,
        "The requested operation is not supported before starting the microVM.",
    ),
    (
        "PUT",
        "/snapshot/load",
        r#"{"snapshot_path":"s","mem_backend":{"backend_type":"File","backend_path":"m"},"resume_vm":true}"#,
        400,
        "Load snapshot error: Loading a microVM snapshot not allowed after configuring boot-specific resources.",
    ),
    ("PUT", "/nope", "{}", 400, "Invalid request method and/or path: PUT nope."),
    ("DELETE", "/vm", "", 400, "Invalid request method and/or path: DELETE vm."),
];

async fn ask(socket: &Path, (method, path, body): (&str, &str, &str)) -> (u16, String) {
    let stream = UnixStream::connect(socket).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let request = Request::builder().method(method).uri(path).header("host", "firecracker");
    let asked = async move {
        let answer = sender.send_request(request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()).await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.into_body().collect().await.unwrap().to_bytes())
    };
    // The process may close the connection once it has answered.
    let ((status, content), _) = tokio::join!(asked, connection);
    let fault = serde_json::from_slice::<serde_json::Value>(&content).ok();
    let fault = fault.and_then(|fault| fault.get("fault_message")?.as_str().map(str::to_owned));
    (status, fault.unwrap_or_else(|| String::from_utf8_lossy(&content).into_owned()))
}

async fn answers_as_expected(socket: &Path, dir: &Path) {
    std::fs::write(dir.join("used"), vec![0; 4096]).unwrap();
    for &(method, path, body, status, reason) in BEFORE_THE_START {
        let answer = ask(socket, (method, path, body)).await;
        assert_eq!(answer, (status, reason.to_owned()), "{method} {path} {body}");
    }
}

/// Load of a snapshot that is not there, and its answer. The process ends.
const FAILED_LOAD: (&str, &str, &str) = (
    "PUT",
    "/snapshot/load",
    r#"{"snapshot_path":"s","mem_backend":{"backend_type":"File","backend_path":"m"},"resume_vm":true}"#,
);
const FAILED_LOAD_REASON: &str = "Load snapshot error: Failed to restore from snapshot: Failed to get snapshot state from file: Failed to open snapshot file: No such file or directory (os error 2)";

#[tokio::test]
async fn the_fake_answers_as_firecracker_before_the_start() {
    let fake = Fake::start();
    answers_as_expected(&fake.socket(), fake.dir()).await;
}

#[tokio::test]
async fn firecracker_answers_as_expected_before_the_start() {
    let Some(process) = Process::start().await else { return };
    answers_as_expected(&process.socket(), process.dir()).await;
}

#[tokio::test]
async fn the_fake_ends_after_a_failed_load() {
    let fake = Fake::start();
    assert_eq!(ask(&fake.socket(), FAILED_LOAD).await, (400, FAILED_LOAD_REASON.to_owned()));
    fake.ended().await;
    assert!(UnixStream::connect(fake.socket()).await.is_err());
}

#[tokio::test]
async fn firecracker_ends_after_a_failed_load() {
    let Some(mut process) = Process::start().await else { return };
    assert_eq!(ask(&process.socket(), FAILED_LOAD).await, (400, FAILED_LOAD_REASON.to_owned()));
    assert_eq!(process.child.wait().await.unwrap().code(), Some(1));
}
