//! `tidebox firecracker`, as a process.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use super::*;

/// Host with programs in the place of Firecracker's, and a kernel without modules.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new() -> Host {
        let host = Host { dir: tempfile::tempdir().unwrap() };
        // The second word is that of the guest of a probe.
        let words = "case $1 in --version) echo Firecracker v1.16.1;; *) printf ABC;; esac";
        fixtures::write_script(&host.path("firecracker"), words);
        fixtures::write_script(&host.path("jailer"), "echo Jailer v1.16.1");
        let mut kernel = vec![0; 64];
        kernel[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        (kernel[16], kernel[18], kernel[56]) = (2, 62, 1);
        kernel.extend_from_slice(b"Linux version 6.1.0-own (a@b) #1");
        fs::write(host.path("vmlinux"), kernel).unwrap();
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn shown(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn setup(&self, args: &[&str]) -> Output {
        let mut command = tidebox("http://127.0.0.1:1", &["firecracker", "setup"]);
        command.args(args).current_dir(self.dir.path()).env("HOME", self.dir.path());
        command.env("TIDEBOX_DATA_DIR", self.path("data"));
        finish(command.spawn().expect("it starts"))
    }
}

/// Returns the level, the fact and the remedy of each finding, by its area.
fn findings(report: &serde_json::Value) -> HashMap<&str, (&str, &str, &str)> {
    let by_area = report["findings"].as_array().unwrap().iter().map(|finding| {
        let text = |field: &str| finding[field].as_str().unwrap_or_default();
        assert_eq!(text("level") == "ok", text("remedy").is_empty(), "{finding}");
        (text("area"), (text("level"), text("fact"), text("remedy")))
    });
    by_area.collect()
}

#[test]
fn setup_prepares_a_kernel_and_prints_the_settings() {
    let host = Host::new();
    let (firecracker, jailer, kernel) = (host.shown("firecracker"), host.shown("jailer"), host.shown("vmlinux"));
    // Paths are taken from where it is run.
    let args = ["--firecracker", "./firecracker", "--kernel", "vmlinux"];
    let output = host.setup(&[&args[..], &["--output", "json"]].concat());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = findings(&report);
    assert_eq!(found["firecracker"], ("ok", &*format!("version 1.16.1, {firecracker}"), ""));
    assert_eq!(found["jailer"], ("ok", &*format!("version 1.16.1, {jailer}"), ""));
    assert_eq!(found["drives"].0, "ok", "{report}");
    assert_eq!(found["kernel"], ("ok", &*format!("6.1.0-own with 0 modules, made from {kernel}"), ""));
    // Where there is no device, no guest is tried.
    assert_eq!(found.get("guest").map(|guest| guest.0), (found["kvm"].0 == "ok").then_some("ok"));
    assert!(found.contains_key("processor") && found.contains_key("user"), "{report}");
    let is_missing = found.values().any(|(level, ..)| *level == "missing");
    assert_eq!(output.status.code(), Some(i32::from(is_missing)), "{report}");

    let made = PathBuf::from(report["kernel"]["kernel"].as_str().unwrap());
    assert!(made.starts_with(host.path("data/firecracker/kernels")) && made.ends_with("vmlinux"), "{made:?}");
    assert_eq!(fs::read(&made).unwrap(), fs::read(&kernel).unwrap());
    let initrd = fs::read(made.with_file_name("initrd")).unwrap();
    let agent = providers::agent_program();
    assert!(initrd.windows(agent.len()).any(|part| part == agent), "the agent is the first program");
    let mode = |path: &str| fs::metadata(host.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(["data", "data/firecracker", "data/firecracker/kernels"].map(mode), [0o700; 3]);

    let output = host.setup(&args);
    let text = String::from_utf8(output.stdout).unwrap();
    let settings = format!(
        "\nSet in tidebox.yaml:\n\nproviders:\n  firecracker:\n    binary: {firecracker}\n    kernel: {kernel}\n    \
         jailer:\n      binary: {jailer}\n"
    );
    assert!(text.ends_with(&settings), "{text}");
    assert!(text.contains(&format!("  ok      firecracker version 1.16.1, {firecracker}\n")), "{text}");
}

#[test]
fn setup_says_what_is_missing_and_prints_no_settings() {
    let host = Host::new();
    fixtures::write_script(&host.path("firecracker"), "echo Firecracker v1.15.0");
    let output = host.setup(&["--firecracker", "./firecracker", "--kernel", "firecracker"]);
    assert_eq!(end(&output), (Some(1), String::new()));
    let text = String::from_utf8(output.stdout).unwrap();
    let firecracker = host.shown("firecracker");
    for line in [
        format!("  missing firecracker {firecracker} is version 1.15.0, but 1.16 is the minimum\n"),
        format!("  missing kernel      no guest kernel can be made from {firecracker}\n"),
        format!("-> {firecracker} is not a kernel: use a bzImage, such as /boot/vmlinuz-<release>,"),
    ] {
        assert!(text.contains(&line), "{line}\n{text}");
    }
    assert!(!text.contains("tidebox.yaml"), "{text}");
}

#[test]
fn setup_reads_the_configuration_and_refuses_one_with_faults() {
    let host = Host::new();
    fs::write(host.path("config.yaml"), "data_dir: relative\n").unwrap();
    let mut command = tidebox("http://127.0.0.1:1", &["firecracker", "setup", "--config", "config.yaml"]);
    let output = finish(command.current_dir(host.dir.path()).spawn().unwrap());
    let (code, stderr) = end(&output);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.starts_with("tidebox: data_dir"), "{stderr}");
}
