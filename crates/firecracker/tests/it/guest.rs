//! A guest with a kernel of this host, in a real machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use firecracker::guest_kernel::{GuestKernel, newest_installed, prepare};
use firecracker::requests::{Action, BootSource, Drive, Entropy, MachineConfig, Vsock};
use firecracker::{Api, vsock};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio_util::task::TaskTracker;

use crate::process::{self, OUTPUT, Process};

/// Variable with the path of a guest's kernel; without it that is the newest that is installed.
const KERNEL: &str = "FIRECRACKER_KERNEL";
/// Variable with the folder of its modules; without it that is `/lib/modules/<release>`.
const MODULES: &str = "FIRECRACKER_MODULES";
/// Limit for a boot, which takes seconds in emulation.
const BOOT_WAIT: Duration = Duration::from_secs(60);
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Port on which the guest listens.
const PORT: u32 = 5000;

/// Returns Firecracker and a kernel for guests, if guests run here.
async fn can_boot() -> Option<(PathBuf, PathBuf)> {
    let binary = process::binary()?;
    if let Err(reason) = firecracker::probe(&binary).await {
        fixtures::skip("kvm", &reason.to_string());
        return None;
    }
    let kernel = std::env::var_os(KERNEL).map(PathBuf::from).or_else(|| newest_installed().unwrap());
    if kernel.is_none() {
        fixtures::skip("guest-kernel", &format!("{KERNEL} names no kernel, and none with its modules is in /boot"));
    }
    Some((binary, kernel?))
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Starts a machine with a disk that has the file `greeting`; returns when its guest has been told to
/// boot.
async fn boot(binary: &Path, guest: &GuestKernel, mke2fs: &Path) -> Process {
    let process = Process::of(binary).await;
    let files = process.dir().join("files");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("greeting"), "hello from the disk\n").unwrap();
    run(Command::new(mke2fs).args(["-q", "-t", "ext4", "-d"]).arg(files).arg(process.dir().join("disk")).arg("8M"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();

    let stream = UnixStream::connect(process.socket()).await.unwrap();
    let mut api = Api::new(stream, &TaskTracker::new()).await.unwrap();
    api.apply(&MachineConfig { vcpu_count: 1, mem_size_mib: 256 }).await.unwrap();
    api.apply(&BootSource {
        kernel_image_path: text(&guest.kernel),
        initrd_path: Some(text(&guest.initrd)),
        boot_args: "console=ttyS0 quiet loglevel=1 reboot=k panic=-1".to_owned(),
    })
    .await
    .unwrap();
    let drive_id = "disk".to_owned();
    let disk = Drive {
        drive_id,
        path_on_host: "disk".to_owned(),
        is_root_device: false,
        is_read_only: true,
        rate_limiter: None,
    };
    api.apply(&disk).await.unwrap();
    api.apply(&Vsock { guest_cid: 3, uds_path: "v.sock".to_owned() }).await.unwrap();
    api.apply(&Entropy {}).await.unwrap();
    api.apply(&Action::InstanceStart).await.unwrap();
    process
}

/// Opens a stream to the guest as soon as it listens.
async fn guest_stream(socket: &Path) -> UnixStream {
    loop {
        if let Ok(stream) = UnixStream::connect(socket).await
            && let Ok(stream) = vsock::open(stream, PORT, ANSWER_WAIT).await
        {
            return stream;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_guest_boots_a_kernel_of_this_host_and_has_all_that_it_needs() {
    let Some((binary, kernel)) = can_boot().await else { return };
    let Some(gcc) = fixtures::found("gcc", &[]) else { return };
    let Some(mke2fs) = fixtures::found("mke2fs", &[PathBuf::from("/usr/sbin/mke2fs")]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let init = folder.path().join("init");
    let source = folder.path().join("guest.c");
    std::fs::write(&source, include_str!("guest.c")).unwrap();
    run(Command::new(gcc).args(["-static", "-o"]).arg(&init).arg(source));
    let modules = std::env::var_os(MODULES).map(PathBuf::from);
    let guest =
        prepare(&kernel, modules.as_deref(), &std::fs::read(init).unwrap(), &folder.path().join("made")).unwrap();

    let mut process = boot(&binary, &guest, &mke2fs).await;
    let socket = process.dir().join("v.sock");
    let opened = tokio::time::timeout(BOOT_WAIT, async {
        tokio::select! {
            stream = guest_stream(&socket) => Some(stream),
            // It says on its console why.
            _ = process.child.wait() => None,
        }
    });
    let Ok(Some(mut stream)) = opened.await else { panic!("{}", output(&process)) };
    stream.write_all(b"hello through the socket").await.unwrap();
    let mut answer = [0; 24];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"hello through the socket");
    drop(stream);
    let ended = tokio::time::timeout(BOOT_WAIT, process.child.wait()).await;
    let output = output(&process);
    assert!(ended.unwrap().unwrap().success(), "{output}");
    let lines: Vec<&str> = output.lines().filter_map(|line| line.trim().strip_prefix("guest: ")).collect();
    let release = guest.release.unwrap();
    let expected = format!("kernel {release} with {} modules", guest.modules.len());
    assert_eq!(lines, [&expected, "hello from the disk", "all is well: Success"], "{output}");
}

fn output(process: &Process) -> String {
    String::from_utf8_lossy(&std::fs::read(process.dir().join(OUTPUT)).unwrap()).into_owned()
}
