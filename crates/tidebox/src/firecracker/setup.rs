//! `tidebox firecracker setup`: findings, the guest kernel, and the settings to make.

use std::path::{Path, PathBuf, absolute};
use std::process::ExitCode;

use ::firecracker::probe;
use clap::Args;
use serde::Serialize;
use server::config::{Config, load};

use super::settings::Settings;
use super::wanted::Wanted;
use super::{host, kernel, programs};
use crate::config::layers::{EXIT_FAULT, Layers};
use crate::doctor::finding::{Finding, Level};
use crate::failure::{Failure, Result};
use crate::output::{Output, note};

/// Report what is missing for virtual machines, prepare the guest kernel, and print the settings
///
/// Run it on the server's host, as the server's user. Prints a line per finding: what was found, or what is missing
/// and how to get it. Makes the guest kernel from a kernel of this host and stores it in the server's data folder,
/// where the server finds it. Changes nothing else.
///
/// Exits with 1 if something that every machine needs is missing, and with 2 if the configuration has faults.
#[derive(Debug, Args)]
pub struct SetupArgs {
    /// Firecracker program; if omitted, providers.firecracker.binary, else firecracker on the PATH
    #[arg(long, value_name = "FILE")]
    firecracker: Option<PathBuf>,
    /// Jailer program; if omitted, providers.firecracker.jailer.binary, else jailer next to firecracker, else jailer on
    /// the PATH
    #[arg(long, value_name = "FILE")]
    jailer: Option<PathBuf>,
    /// Kernel of this host to make the guest kernel from: a bzImage, or an uncompressed ELF kernel; if omitted,
    /// providers.firecracker.kernel, else the newest kernel in /boot that has its modules in /lib/modules
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Folder of the kernel's modules; if omitted, providers.firecracker.modules, else /lib/modules/RELEASE. An ELF
    /// kernel with everything built in needs no modules
    #[arg(long, value_name = "FOLDER")]
    modules: Option<PathBuf>,
    #[command(flatten)]
    layers: Layers,
}

/// Result as programs read it.
#[derive(Debug, Default, Serialize)]
struct Report {
    findings: Vec<Finding>,
    /// Prepared kernel; absent if it cannot be made.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<kernel::Prepared>,
    /// Keys to set; absent if something is missing that one of them names.
    #[serde(skip_serializing_if = "Option::is_none")]
    settings: Option<Settings>,
}

pub fn run(args: SetupArgs, output: Output) -> Result {
    let loaded = match load(&args.layers.inputs()) {
        Ok(loaded) => loaded,
        Err(faults) => {
            faults.iter().for_each(|fault| note(&format!("tidebox: {fault}")));
            return Ok(ExitCode::from(EXIT_FAULT));
        }
    };
    let configured = Wanted::of(&loaded.config);
    let wanted = Wanted {
        firecracker: args.firecracker.or(configured.firecracker),
        jailer: args.jailer.or(configured.jailer),
        kernel: args.kernel.or(configured.kernel),
        modules: args.modules.or(configured.modules),
        ..configured
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("the runtime cannot be started", &error))?;
    let report = runtime.block_on(look(&wanted, &loaded.config));
    let is_missing = report.findings.iter().any(|finding| finding.level == Level::Missing);
    output.print(&report, shown)?;
    Ok(if is_missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn look(wanted: &Wanted, config: &Config) -> Report {
    let is_root = rustix::process::geteuid().is_root();
    let is_jailed = wanted.jail.unwrap_or(is_root);
    let (mut findings, can_virtualize) = host::findings(is_jailed);
    let (program, found) = programs::firecracker(wanted.firecracker.as_deref()).await;
    findings.push(found);
    let (jailer, found) = programs::jailer(wanted.jailer.as_deref(), program.as_ref(), is_jailed).await;
    findings.push(found);
    findings.push(programs::drives(is_root).await);
    if let Some(program) = program.as_ref().filter(|_| can_virtualize) {
        findings.push(guest(&program.path).await);
    }
    let modules = wanted.modules.as_deref();
    let (kernel, found) = kernel::prepare(wanted.kernel.as_deref(), modules, &config.data_dir);
    findings.push(found);
    let settings = program.zip(kernel.as_ref()).map(|(program, kernel)| Settings {
        binary: program.path,
        kernel: kernel.source.clone(),
        modules: modules.map(absolute_or_same),
        jailer: jailer.map(|jailer| jailer.path),
    });
    Report { findings, kernel, settings }
}

/// Runs a guest of some bytes: files alone do not show that one runs.
async fn guest(firecracker: &Path) -> Finding {
    match probe(firecracker).await {
        Ok(()) => Finding::ok("guest", "a guest runs"),
        Err(error) => Finding::lacking(
            "guest",
            Level::Missing,
            error.to_string(),
            "use a physical machine with virtualization, or a virtual machine with nested virtualization",
        ),
    }
}

fn absolute_or_same(path: &Path) -> PathBuf {
    absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn shown(report: &Report) -> String {
    let mut text: String = report.findings.iter().map(Finding::shown).collect();
    if let Some(settings) = &report.settings {
        text += "\nSet in tidebox.yaml:\n\n";
        text += &settings.yaml();
    }
    text
}
