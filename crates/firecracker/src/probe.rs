//! Attempt to run a guest.
//!
//! That `/dev/kvm` is there and opens does not show that guests run: in some virtual machines a
//! guest dies of its first exception, as every kernel of Linux then does early in its start. The
//! guest here is a kernel of some bytes that has an exception and goes on, in milliseconds.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

/// Limit for the attempt, which takes 0.05 s, and 2 s in emulation.
const WAIT: Duration = Duration::from_secs(20);
/// Maximum length of what is read of the process's words.
const WORDS_MAX: u64 = 16 * 1024;
/// Words of the guest on its serial port.
const SAYS: &[u8] = b"ABC";
/// Words of the guest before its exception.
const SAYS_FIRST: &[u8] = b"A";

/// Failure of a guest to run.
#[derive(Debug, thiserror::Error)]
pub enum NoGuest {
    /// The program of Firecracker does not start, or its files cannot be written.
    #[error("Firecracker cannot be started: {0}")]
    Start(#[from] io::Error),
    /// The machine has ended before the guest has said anything, with the last words of Firecracker.
    #[error("no guest starts: {0}")]
    Ended(String),
    /// The guest has started, and died of its exception.
    #[error(
        "guests start but die at their first exception, as Linux would: this virtual machine offers incomplete nested \
         virtualization"
    )]
    Broken,
    /// The machine has not ended in time.
    #[error("a guest did not finish within {} s", .0.as_secs())]
    Silent(Duration),
}

/// Runs a guest with this program of Firecracker. It lasts milliseconds, and leaves nothing.
///
/// # Errors
/// If it does not run to its end. In a virtual machine that is often for want of nested
/// virtualization.
pub async fn probe(firecracker: &Path) -> Result<(), NoGuest> {
    probe_within(firecracker, WAIT).await
}

async fn probe_within(firecracker: &Path, wait: Duration) -> Result<(), NoGuest> {
    let folder = tempfile::tempdir()?;
    let kernel = folder.path().join("kernel");
    tokio::fs::write(&kernel, guest()).await?;
    let config = serde_json::json!({
        "boot-source": { "kernel_image_path": kernel, "boot_args": "" },
        "drives": [],
        "machine-config": { "vcpu_count": 1, "mem_size_mib": 16 },
    });
    tokio::fs::write(&folder.path().join("config"), config.to_string().into_bytes()).await?;

    let mut command = Command::new(firecracker);
    command.args(["--no-api", "--config-file", "config", "--id", "probe", "--log-path", "log", "--level", "Error"]);
    command.current_dir(&folder).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.kill_on_drop(true).spawn()?;
    let output = process.stdout.take();
    let errors = process.stderr.take();
    let run = async { tokio::join!(words(output), words(errors), process.wait()) };
    let (output, errors, status) = tokio::time::timeout(wait, run).await.map_err(|_| NoGuest::Silent(wait))?;
    let status = status?;
    if status.success() && output.starts_with(SAYS) {
        return Ok(());
    }
    if output.starts_with(SAYS_FIRST) {
        return Err(NoGuest::Broken);
    }
    let errors = String::from_utf8_lossy(&errors);
    let last = errors.lines().map(str::trim).rfind(|line| !line.is_empty());
    Err(NoGuest::Ended(last.map_or_else(|| status.to_string(), str::to_owned)))
}

/// Reads what a process says, up to the bound.
async fn words(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut words = Vec::new();
    if let Some(stream) = stream {
        // What was read before a failure is of use too.
        let _ = stream.take(WORDS_MAX).read_to_end(&mut words).await;
    }
    words
}

/// Address at which the guest is loaded, the lowest that Firecracker takes.
const ADDRESS: u64 = 0x10_0000;
/// The guest's instructions. Firecracker starts them with 64 bits, a stack, and their segment at 8.
const CODE: [u8; 31] = [
    0xba, 0xf8, 0x03, 0x00, 0x00, //      mov  $0x3f8, %edx       the serial port
    0xb0, b'A', 0xee, //                  mov  $'A', %al; out %al, %dx
    0x0f, 0x01, 0x1d, 0x31, 0x00, 0, 0,    //lidt TABLE - 16(%rip)
    0xcc, //                              int3
    0xb0, b'C', 0xee, //                  mov  $'C', %al; out %al, %dx
    0xb0, 0xfe, 0xe6, 0x64, //            mov  $0xfe, %al; out %al, $0x64   the reset
    0xf4, 0xeb, 0xfd, //                  hlt; jmp to it
    // The handler of the exception.
    0xb0, b'B', 0xee, //                  mov  $'B', %al; out %al, %dx
    0x48, 0xcf, //                        iretq
];
const HANDLER: u64 = 26;
/// Offset of the table of exceptions, behind the pointer to it at 64.
const TABLE: u64 = 80;
/// Number of the exception, a breakpoint.
const BREAKPOINT: usize = 3;

/// Returns the guest, an ELF kernel.
fn guest() -> Vec<u8> {
    const HEADER_LEN: u16 = 64;
    const SEGMENT_LEN: u16 = 56;
    const ENTRY_LEN: usize = 16;
    let mut program = CODE.to_vec();
    program.resize(64, 0);
    program.extend_from_slice(&(((BREAKPOINT + 1) * ENTRY_LEN - 1) as u16).to_le_bytes());
    program.extend_from_slice(&(ADDRESS + TABLE).to_le_bytes());
    program.resize(TABLE as usize + BREAKPOINT * ENTRY_LEN, 0);
    let handler = (ADDRESS + HANDLER).to_le_bytes();
    program.extend_from_slice(&[handler[0], handler[1], 8, 0, 0, 0x8e, handler[2], handler[3]]);
    program.extend_from_slice(&[0; 8]);

    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    let start = u64::from(HEADER_LEN + SEGMENT_LEN);
    let len = program.len() as u64;
    // Executable, x86-64, version, entry, segments, no sections, flags.
    file.extend_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]);
    [ADDRESS, HEADER_LEN.into(), 0].iter().for_each(|field: &u64| file.extend_from_slice(&field.to_le_bytes()));
    file.extend_from_slice(&[0; 4]);
    [HEADER_LEN, SEGMENT_LEN, 1, 0, 0, 0].iter().for_each(|field| file.extend_from_slice(&field.to_le_bytes()));
    // One segment to be loaded, which may be read, written and executed.
    file.extend_from_slice(&[1, 0, 0, 0, 7, 0, 0, 0]);
    [start, ADDRESS, ADDRESS, len, len, 1].iter().for_each(|field| file.extend_from_slice(&field.to_le_bytes()));
    file.extend_from_slice(&program);
    file
}

#[cfg(test)]
mod test {
    use super::*;

    /// Returns the failure with a program in Firecracker's place that does this.
    async fn failure(script: &str, wait: Duration) -> String {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("firecracker");
        fixtures::write_script(&program, script);
        match probe_within(&program, wait).await {
            Ok(()) => "none".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn a_failure_says_how_far_the_guest_came() {
        let broken = NoGuest::Broken.to_string();
        for (script, expected) in [
            ("printf ABC", "none"),
            ("printf ABCD; test -s kernel && grep -q 'boot-source.*/kernel' config", "none"),
            ("printf ABC; exit 1", &broken),
            ("printf A", &broken),
            ("echo; echo first >&2; echo ' last' >&2; echo >&2; exit 1", "no guest starts: last"),
            ("exit 3", "no guest starts: exit status: 3"),
            ("printf BC", "no guest starts: exit status: 0"),
            // More than is read of it, and it ends of the closed pipe.
            ("exec yes", "no guest starts: signal: 13 (SIGPIPE)"),
        ] {
            assert_eq!(failure(script, WAIT).await, expected, "{script}");
        }
        let silent = failure("exec sleep 60", Duration::from_millis(100)).await;
        assert_eq!(silent, "a guest did not finish within 0 s");
        let absent = probe(Path::new("/absent")).await.unwrap_err().to_string();
        assert_eq!(absent, "Firecracker cannot be started: No such file or directory (os error 2)");
    }
}
