//! Invalid requests whose cause a program can act on: images and commands of `prepare`.

use std::fmt;

use providers::ExitStatus;

/// Image that no box can be made from. Its text is for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InvalidImage {
    /// The image store refuses the name, the archive or the content, with the cause in its own
    /// words.
    Refused { cause: String },
    /// The provider refuses a box with the image `host`, which these other providers can make.
    Host { cause: String, providers: Vec<String> },
}

/// Command of `prepare` that failed or was ended. Its text is for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedCommand {
    /// Position in the list, from 1.
    pub number: usize,
    /// Start of the command line.
    pub command: String,
    pub exit: ExitStatus,
    /// End of what the command wrote to stderr.
    pub stderr: String,
}

impl fmt::Display for InvalidImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidImage::Refused { cause } => f.write_str(cause),
            InvalidImage::Host { cause, providers } if providers.is_empty() => {
                write!(f, "{cause}; no provider on this server supports it")
            }
            InvalidImage::Host { cause, providers } => {
                let providers: Vec<_> = providers.iter().map(|name| format!("`{name}`")).collect();
                let providers = providers.join(", ");
                write!(f, "{cause}; on this server, {providers} can make it")
            }
        }
    }
}

impl fmt::Display for FailedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command {} of `prepare` (`{}`) ", self.number, self.command)?;
        match self.exit {
            ExitStatus { timed_out: true, .. } => f.write_str(
                "did not end before its deadline; give it a longer `timeout` (`--prepare-timeout` on the command line)",
            ),
            ExitStatus { oom_killed: true, .. } => f.write_str("ran out of memory; give the sandbox more"),
            ExitStatus { pids_exhausted: true, code, .. } => {
                write!(f, "exited with status {code} at its process limit; give the sandbox more `pids`")
            }
            ExitStatus { code, .. } => write!(f, "exited with status {code}"),
        }?;
        if self.stderr.is_empty() { Ok(()) } else { write!(f, ": {}", self.stderr) }
    }
}
