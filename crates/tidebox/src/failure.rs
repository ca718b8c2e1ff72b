//! Failures, for the person at the terminal and for the calling script.

use std::path::Path;
use std::process::ExitCode;

/// Exit code for a failure of the service, of the connection, or of this machine.
const FAILED: u8 = 1;
/// Exit code for wrong usage of the command line.
const USAGE: u8 = 2;
/// Exit code if `exec` or `run` itself failed, not the command in the box, whose own codes lie
/// beside it.
const EXEC_FAILED: u8 = 125;
/// Exit code that a shell reports for a program ended by SIGPIPE.
const BROKEN_PIPE: u8 = 128 + 13;

/// Returns the command's own exit code, or [`EXEC_FAILED`] for a code that no process of this
/// system could have.
pub fn exit_code(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(EXEC_FAILED)
}

/// Failure of a subcommand.
#[derive(Debug)]
pub struct Failure {
    /// Exit code of the process.
    exit: u8,
    /// Code for programs and message for people; absent if there is nothing to say.
    said: Option<(String, String)>,
}

/// Result of every subcommand.
pub type Result<T = ExitCode> = std::result::Result<T, Failure>;

impl Failure {
    /// Makes a failure with a code for programs and a message for people.
    pub fn new(code: &str, message: impl Into<String>) -> Failure {
        Failure { exit: FAILED, said: Some((code.to_owned(), message.into())) }
    }

    /// Makes a failure of wrong usage; `message` says what would be right.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure { exit: USAGE, said: Some(("usage".to_owned(), message.into())) }
    }

    /// Makes a failure without a message, for a user who knows the reason.
    pub fn silent(exit: u8) -> Failure {
        Failure { exit, said: None }
    }

    /// Makes a failure of this machine while doing `what`.
    pub fn io(what: impl std::fmt::Display, error: &std::io::Error) -> Failure {
        Failure::new("io_error", format!("{what}: {error}"))
    }

    /// Returns a function that makes a failure of the local file or directory at `path`.
    pub fn at(path: &Path) -> impl Fn(std::io::Error) -> Failure {
        move |error| Failure::io(path.display(), &error)
    }

    /// Makes a failure of writing to stdout. It is silent if the reader has gone, such as `head`.
    pub fn stdout(error: &std::io::Error) -> Failure {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Failure::silent(BROKEN_PIPE)
        } else {
            Failure::io("the output cannot be written", error)
        }
    }

    /// Changes the exit code to [`EXEC_FAILED`], to differ from what a command in a box returns.
    #[must_use]
    pub fn of_exec(self) -> Failure {
        Failure { exit: if self.exit == FAILED { EXEC_FAILED } else { self.exit }, ..self }
    }

    /// Returns the exit code of the process.
    pub fn exit(&self) -> u8 {
        self.exit
    }

    /// Returns the code for programs and the message for people, unless there is nothing to say.
    pub fn said(&self) -> Option<(&str, &str)> {
        self.said.as_ref().map(|(code, message)| (code.as_str(), message.as_str()))
    }
}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Failure {
        let mut message = error.to_string();
        if let client::Error::Api { status, code, request_id, .. } = &error {
            if let Some(hint) = hint(code) {
                message = format!("{message} ({hint})");
            }
            if let (500.., Some(id)) = (status, request_id) {
                message = format!("{message} (request {id} in the server's log)");
            }
        }
        let exit = if matches!(error, client::Error::Argument { .. }) { USAGE } else { FAILED };
        Failure { exit, said: Some((error.code().to_owned(), message)) }
    }
}

/// Returns what to do about an error of the server, where the server's message cannot know it.
fn hint(code: &str) -> Option<&'static str> {
    match code {
        "unauthorized" => Some("pass the key with --api-key or TIDEBOX_API_KEY"),
        _ => None,
    }
}

#[cfg(test)]
mod test {
    use std::io::{Error as IoError, ErrorKind};

    use super::{Failure, exit_code};

    fn api_error(status: u16, code: &str) -> client::Error {
        client::Error::Api {
            status,
            code: code.to_owned(),
            message: "no".to_owned(),
            request_id: Some("r-1".to_owned()),
        }
    }

    #[test]
    fn exit_codes_tell_who_failed() {
        let connect = || client::Error::Connect { url: "http://h".to_owned(), reason: "refused".to_owned() };
        let argument = || client::Error::Argument { name: "the sandbox id", reason: "is empty".to_owned() };
        for (failure, exit, exit_of_exec) in [
            (Failure::from(connect()), 1, 125),
            (Failure::from(api_error(404, "not_found")), 1, 125),
            (Failure::from(argument()), 2, 2),
            (Failure::usage("no"), 2, 2),
            (Failure::silent(130), 130, 130),
            (Failure::stdout(&IoError::from(ErrorKind::BrokenPipe)), 141, 141),
            (Failure::stdout(&IoError::from(ErrorKind::StorageFull)), 1, 125),
        ] {
            assert_eq!(failure.exit(), exit, "{failure:?}");
            assert_eq!(failure.of_exec().exit(), exit_of_exec);
        }
    }

    #[test]
    fn a_reader_that_has_gone_is_no_reason_to_complain() {
        assert_eq!(Failure::stdout(&IoError::from(ErrorKind::BrokenPipe)).said(), None);
    }

    #[test]
    fn messages_say_what_to_do_and_where_to_look() {
        let unauthorized = Failure::from(api_error(401, "unauthorized"));
        assert_eq!(unauthorized.said(), Some(("unauthorized", "no (pass the key with --api-key or TIDEBOX_API_KEY)")));
        let failed = Failure::from(api_error(500, "provider_error"));
        assert_eq!(failed.said(), Some(("provider_error", "no (request r-1 in the server's log)")));
    }

    #[test]
    fn the_commands_exit_code_passes_through_unchanged() {
        for code in 0..=255 {
            assert_eq!(i32::from(exit_code(code)), code);
        }
        for code in [-1, 256, i32::MAX, i32::MIN] {
            assert_eq!(exit_code(code), 125, "{code}");
        }
    }
}
