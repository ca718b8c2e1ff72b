//! Findings about the programs of Firecracker's release.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use ::firecracker::{LEAST_VERSION, is_supported, version};
use tokio::process::Command;
use tokio::time::timeout;

use crate::doctor::finding::{Finding, Level};

const FIRECRACKER: &str = "firecracker";
const JAILER: &str = "jailer";
const MKE2FS: &str = "mke2fs";
/// Folders in which the server looks for what makes drives.
const SYSTEM_PATH: &str = "/usr/sbin:/sbin:/usr/bin:/bin";
/// Limit for a user namespace, which takes some milliseconds.
const NAMESPACE_WAIT: Duration = Duration::from_secs(10);
const INSTALL: &str = "download the x86_64 archive from Firecracker's releases page, and install its `firecracker` and \
                       `jailer` in /usr/local/bin";

/// Program that was found.
#[derive(Debug)]
pub struct Program {
    /// Absolute path.
    pub path: PathBuf,
    pub version: String,
}

/// Finds `firecracker`: at the given place, else on the `PATH`.
pub async fn firecracker(given: Option<&Path>) -> (Option<Program>, Finding) {
    let Some(path) = located(given.unwrap_or(Path::new(FIRECRACKER))) else {
        let fact = match given {
            Some(given) => format!("{} does not exist or is not a program", given.display()),
            None => "is not on the PATH".to_owned(),
        };
        return no_firecracker(fact, format!("{INSTALL}; or name it with --firecracker"));
    };
    let shown = path.display().to_string();
    match version(&path, "Firecracker").await {
        Err(error) => no_firecracker(format!("{shown} cannot be used: {error}"), INSTALL),
        Ok(version) if !is_supported(&version) => {
            let (major, minor) = LEAST_VERSION;
            no_firecracker(format!("{shown} is version {version}, but {major}.{minor} is the minimum"), INSTALL)
        }
        Ok(version) => {
            let finding = Finding::ok(FIRECRACKER, format!("version {version}, {shown}"));
            (Some(Program { path, version }), finding)
        }
    }
}

fn no_firecracker(fact: String, remedy: impl Into<String>) -> (Option<Program>, Finding) {
    (None, Finding::lacking(FIRECRACKER, Level::Missing, fact, remedy))
}

/// Finds `jailer`: at the given place, else beside Firecracker, else on the `PATH`. It is required where
/// machines run in jails.
pub async fn jailer(
    given: Option<&Path>,
    firecracker: Option<&Program>,
    is_required: bool,
) -> (Option<Program>, Finding) {
    let level = if is_required { Level::Missing } else { Level::Warn };
    let beside = firecracker.map(|program| program.path.with_file_name(JAILER)).filter(|path| is_program(path));
    let Some(path) = given.map_or_else(|| beside.or_else(|| located(Path::new(JAILER))), located) else {
        let fact = match given {
            Some(given) => format!("{} does not exist or is not a program", given.display()),
            None => "is neither next to firecracker nor on the PATH".to_owned(),
        };
        return no_jailer(level, fact);
    };
    let shown = path.display().to_string();
    let version = match version(&path, "Jailer").await {
        Ok(version) => version,
        Err(error) => return no_jailer(level, format!("{shown} cannot be used: {error}")),
    };
    match firecracker.filter(|program| program.version != version) {
        Some(program) => {
            let other = &program.version;
            let fact =
                format!("{shown} is version {version}, but firecracker {other}: install the same version of both");
            no_jailer(level, fact)
        }
        None => {
            let finding = Finding::ok(JAILER, format!("version {version}, {shown}"));
            (Some(Program { path, version }), finding)
        }
    }
}

fn no_jailer(level: Level, fact: String) -> (Option<Program>, Finding) {
    (None, Finding::lacking(JAILER, level, fact, INSTALL))
}

/// Finds what makes the drives of images, for which a server that is not root is root in a user namespace.
pub async fn drives(is_root: bool) -> Finding {
    const DRIVES: &str = "drives";
    let Some(path) = found_in(Path::new(MKE2FS), OsStr::new(SYSTEM_PATH)) else {
        let fact = format!("{MKE2FS} is missing; it is needed to make drives from images");
        return Finding::lacking(DRIVES, Level::Missing, fact, "apt-get install e2fsprogs");
    };
    if !is_root {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "true"]).env("PATH", SYSTEM_PATH).stdin(Stdio::null()).kill_on_drop(true);
        let refused = match timeout(NAMESPACE_WAIT, command.output()).await {
            Ok(Ok(output)) if output.status.success() => None,
            Ok(Ok(output)) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Ok(Err(error)) => Some(format!("unshare (util-linux): {error}")),
            Err(_) => Some("unshare does not exit".to_owned()),
        };
        if let Some(refused) = refused {
            let fact = format!("this user cannot create a user namespace, which drives from images need: {refused}");
            return Finding::lacking(
                DRIVES,
                Level::Missing,
                fact,
                "allow them (sysctl kernel.unprivileged_userns_clone=1, and on Ubuntu \
                 kernel.apparmor_restrict_unprivileged_userns=0), or run the server as root",
            );
        }
    }
    Finding::ok(DRIVES, format!("{} makes drives from images", path.display()))
}

/// Returns the absolute path of a program: a name alone is looked for on the `PATH`.
fn located(name: &Path) -> Option<PathBuf> {
    if name.components().count() == 1 && !name.is_absolute() {
        return found_in(name, &std::env::var_os("PATH").unwrap_or_default());
    }
    is_program(name).then(|| std::path::absolute(name).ok())?
}

/// Returns the absolute path of a program in one of these folders.
fn found_in(name: &Path, folders: &OsStr) -> Option<PathBuf> {
    let found = std::env::split_paths(folders).map(|folder| folder.join(name)).find(|path| is_program(path))?;
    std::path::absolute(found).ok()
}

fn is_program(path: &Path) -> bool {
    const EXECUTABLE: u32 = 0o111;
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & EXECUTABLE != 0)
}

#[cfg(test)]
mod test {
    use super::*;

    /// Folder with programs that say versions.
    fn release(firecracker: &str, jailer: Option<&str>) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let says = [(FIRECRACKER, "Firecracker", Some(firecracker)), (JAILER, "Jailer", jailer)];
        for (file, name, version) in says.into_iter().filter_map(|(file, name, version)| Some((file, name, version?))) {
            fixtures::write_script(&folder.path().join(file), &format!("echo {name} {version}"));
        }
        folder
    }

    /// Returns the facts about the two programs of a folder, each with whether it was found.
    async fn facts(folder: &tempfile::TempDir) -> [(bool, String); 2] {
        let (program, firecracker) = firecracker(Some(&folder.path().join(FIRECRACKER))).await;
        let given = folder.path().join(JAILER);
        let given = program.is_none().then_some(given.as_path());
        let (found, jailer) = jailer(given, program.as_ref(), true).await;
        for finding in [&firecracker, &jailer] {
            assert_eq!(finding.level == Level::Ok, finding.remedy.is_none(), "{finding:?}");
        }
        let prefix = format!("{}/", folder.path().display());
        let short = |fact: &str| fact.replace(&prefix, "");
        [(program.is_some(), short(&firecracker.fact)), (found.is_some(), short(&jailer.fact))]
    }

    #[tokio::test]
    async fn programs_of_one_supported_release_are_found_beside_each_other() {
        let yes = |fact: &str| (true, fact.to_owned());
        let no = |fact: &str| (false, fact.to_owned());
        let other = "jailer cannot be used: it did not print a version of Jailer, so it is another program";
        for (firecracker, jailer, expected) in [
            ("v1.16.1", Some("v1.16.1"), [yes("version 1.16.1, firecracker"), yes("version 1.16.1, jailer")]),
            (
                "v1.17.0",
                Some("v1.16.1"),
                [
                    yes("version 1.17.0, firecracker"),
                    no("jailer is version 1.16.1, but firecracker 1.17.0: install the same version of both"),
                ],
            ),
            (
                "v1.15.9",
                Some("v1.15.9"),
                [no("firecracker is version 1.15.9, but 1.16 is the minimum"), yes("version 1.15.9, jailer")],
            ),
            ("v1.16.0", Some("1.16.0"), [yes("version 1.16.0, firecracker"), no(other)]),
            (
                "none",
                None,
                [
                    no(
                        "firecracker cannot be used: it did not print a version of Firecracker, so it is another program",
                    ),
                    no("jailer does not exist or is not a program"),
                ],
            ),
        ] {
            assert_eq!(facts(&release(firecracker, jailer)).await, expected);
        }
    }

    #[test]
    fn a_path_is_made_absolute_and_a_name_looked_for() {
        let shell = located(Path::new("sh")).unwrap();
        assert!(shell.is_absolute() && shell.ends_with("sh"), "{shell:?}");
        assert_eq!(located(&shell), Some(shell));
        let folder = tempfile::tempdir().unwrap();
        for name in ["no-such-program", "/nowhere/program", "/etc/passwd", "src"] {
            assert_eq!(located(Path::new(name)), None, "{name}");
        }
        assert_eq!(located(folder.path()), None);
    }
}
