//! Versions of the programs of a release.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

/// First version that is supported, its major and minor number: the first that gives the vsock of a
/// restored machine another path.
pub const LEAST_VERSION: (u32, u32) = (1, 16);
/// Limit for a program to say its version.
const WAIT: Duration = Duration::from_secs(5);
/// Maximum length of what is read of it: some lines.
const WORDS_MAX: u64 = 4096;

/// Failure of a program to say its version.
#[derive(Debug, thiserror::Error)]
pub enum NoVersion {
    /// The program does not start.
    #[error("it does not start: {0}")]
    Start(#[from] io::Error),
    /// It has not said anything in time.
    #[error("it did not print its version within {} s", .0.as_secs())]
    Silent(Duration),
    /// It is another program.
    #[error("it did not print a version of {0}, so it is another program")]
    Other(String),
}

/// Asks a program for its version, `1.16.1` say. `name` is the one before the version:
/// `Firecracker` or `Jailer`.
///
/// # Errors
/// If it does not start, does not answer, or is another program.
pub async fn version(program: &Path, name: &str) -> Result<String, NoVersion> {
    let mut command = Command::new(program);
    command.arg("--version").env_clear().kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn()?;
    let mut words = Vec::new();
    if let Some(output) = process.stdout.take() {
        let mut output = output.take(WORDS_MAX);
        tokio::time::timeout(WAIT, output.read_to_end(&mut words)).await.map_err(|_| NoVersion::Silent(WAIT))??;
    }
    let text = String::from_utf8_lossy(&words);
    let version = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_prefix('v'));
    version
        .filter(|version| version.starts_with(|first: char| first.is_ascii_digit()))
        .map(str::to_owned)
        .ok_or_else(|| NoVersion::Other(name.to_owned()))
}

/// Returns whether a version of Firecracker is [`LEAST_VERSION`] or a later one.
#[must_use]
pub fn is_supported(version: &str) -> bool {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().ok());
    let version = numbers.next().flatten().zip(numbers.next().flatten());
    version.is_some_and(|version| version >= LEAST_VERSION)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn versions_before_the_least_are_not_supported() {
        for version in ["1.16.0", "1.16.1", "1.17.0-dev", "2.0.0"] {
            assert!(is_supported(version), "{version}");
        }
        for version in ["1.15.9", "0.25.0", "1", "", "later", "99999999999.16"] {
            assert!(!is_supported(version), "{version}");
        }
    }

    #[tokio::test]
    async fn a_program_is_asked_and_another_is_not_taken_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        for (words, expected) in [
            ("echo Firecracker v1.16.1; echo; echo other words", "1.16.1"),
            ("echo Jailer v1.16.1", "it did not print a version of Firecracker, so it is another program"),
            ("echo Firecracker vX", "it did not print a version of Firecracker, so it is another program"),
            ("exec yes", "it did not print a version of Firecracker, so it is another program"),
            (":", "it did not print a version of Firecracker, so it is another program"),
        ] {
            fixtures::write_script(&program, words);
            let said = version(&program, "Firecracker").await.unwrap_or_else(|error| error.to_string());
            assert_eq!(said, expected, "{words}");
        }
        let absent = version(&folder.path().join("absent"), "Firecracker").await.unwrap_err().to_string();
        assert_eq!(absent, "it does not start: No such file or directory (os error 2)");
    }
}
