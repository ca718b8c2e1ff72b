//! Builds the agent, a static program, so that it can be embedded in whatever
//! links this crate: one `cargo build` makes one file that runs.
//!
//! A cargo of its own, with a target folder of its own, since the outer cargo
//! holds the lock of the other. It is shared by all profiles: the agent is
//! always built with the profile `agent`.

use std::env;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let manifest_dir = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let workspace = manifest_dir.ancestors().nth(2).expect("crates/providers lies two folders below the workspace");
    // Relative, so that a target folder that two clones share, or that is moved, watches the clone that is built.
    for watched in
        ["crates/guest-agent/src", "crates/guest-agent/Cargo.toml", "crates/guest-protocol", "Cargo.toml", "Cargo.lock"]
    {
        println!("cargo::rerun-if-changed=../../{watched}");
    }

    let target = variable("TARGET");
    let target_dir = target_dir();
    let mut cargo = Command::new(variable("CARGO"));
    // What the outer cargo tells its build scripts is not meant for another cargo.
    for (name, _) in env::vars() {
        if name.starts_with("CARGO_FEATURE_") || name.starts_with("CARGO_CFG_") || name.starts_with("CARGO_MAKEFLAGS") {
            cargo.env_remove(name);
        }
    }
    let status = cargo
        .current_dir(workspace)
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        // Not position-independent: fewer relocations and dirty pages, and each
        // box starts two such programs.
        .env("CARGO_ENCODED_RUSTFLAGS", ["-Ctarget-feature=+crt-static", "-Crelocation-model=static"].join("\u{1f}"))
        .args(["build", "--package", "guest-agent", "--profile", "agent", "--target", &target, "--target-dir"])
        .arg(&target_dir)
        .status()
        .expect("cargo can be run");
    assert!(status.success(), "the agent does not build");

    let agent = target_dir.join(&target).join("agent").join("guest-agent");
    let packed = PathBuf::from(variable("OUT_DIR")).join("guest-agent.gz");
    pack(&agent, &packed).expect("the agent can be packed");
    println!("cargo::rustc-env=TIDEBOX_AGENT={}", packed.display());
}

/// Compresses the agent, to less than half: a twentieth of the file that embeds it.
fn pack(agent: &Path, packed: &Path) -> std::io::Result<()> {
    let mut encoder = flate2::write::GzEncoder::new(std::fs::File::create(packed)?, flate2::Compression::best());
    encoder.write_all(&std::fs::read(agent)?)?;
    encoder.finish().map(drop)
}

/// `<target>/agent-build`, found from `OUT_DIR`, which is
/// `<target>/[<triple>/]<profile>/build/<package>/out`.
fn target_dir() -> PathBuf {
    let out_dir = PathBuf::from(variable("OUT_DIR"));
    let build = out_dir.ancestors().find(|dir| dir.ends_with("build")).expect("OUT_DIR lies below a build folder");
    let profile = build.parent().unwrap_or(Path::new("/"));
    let mut root = profile.parent().unwrap_or(Path::new("/"));
    if root.ends_with(variable("TARGET")) {
        root = root.parent().unwrap_or(root);
    }
    root.join("agent-build")
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
