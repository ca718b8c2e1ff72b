//! What went wrong, for the person at the terminal and for the calling script.

use std::process::ExitCode;

/// A failure of the service, of the connection, or of this machine.
const FAILED: u8 = 1;
/// The command line makes no sense.
const USAGE: u8 = 2;
/// `exec` or `run` itself failed: not the command in the box, whose own codes
/// lie beside it.
pub const EXEC_FAILED: u8 = 125;
/// What a shell reports for a program that writes to a pipe nobody reads.
const BROKEN_PIPE: u8 = 128 + 13;

/// Why a subcommand did not do what it was asked.
#[derive(Debug)]
pub struct Failure {
    /// What the process exits with.
    exit: u8,
    /// What a program can tell apart; none if there is nothing to say.
    said: Option<(String, String)>,
}

/// What every subcommand returns.
pub type Result<T = ExitCode> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with a code for programs and a message for people.
    pub fn new(code: &str, message: impl Into<String>) -> Failure {
        Failure { exit: FAILED, said: Some((code.to_owned(), message.into())) }
    }

    /// The command line makes no sense; `message` says what would.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure { exit: USAGE, said: Some(("usage".to_owned(), message.into())) }
    }

    /// Ends without a word, since the one who asked knows.
    pub fn silent(exit: u8) -> Failure {
        Failure { exit, said: None }
    }

    /// Something on this machine failed while doing `what`.
    pub fn io(what: impl std::fmt::Display, error: &std::io::Error) -> Failure {
        Failure::new("io_error", format!("{what}: {error}"))
    }

    /// Writing to stdout failed. A reader that has gone, such as `head`, is no
    /// reason to complain.
    pub fn stdout(error: &std::io::Error) -> Failure {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Failure::silent(BROKEN_PIPE)
        } else {
            Failure::io("the output cannot be written", error)
        }
    }

    /// The same, told apart from what a command in a box returns.
    #[must_use]
    pub fn of_exec(self) -> Failure {
        Failure { exit: if self.exit == FAILED { EXEC_FAILED } else { self.exit }, ..self }
    }

    /// What the process exits with.
    pub fn exit(&self) -> u8 {
        self.exit
    }

    /// The code for programs and the message for people, unless there is
    /// nothing to say.
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

/// What to do about an error of the server, where its message cannot know it.
fn hint(code: &str) -> Option<&'static str> {
    match code {
        "unauthorized" => Some("give the key by --api-key or TIDEBOX_API_KEY"),
        _ => None,
    }
}

#[cfg(test)]
mod test {
    use std::io::{Error as IoError, ErrorKind};

    use super::Failure;

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
        assert_eq!(unauthorized.said(), Some(("unauthorized", "no (give the key by --api-key or TIDEBOX_API_KEY)")));
        let failed = Failure::from(api_error(500, "provider_error"));
        assert_eq!(failed.said(), Some(("provider_error", "no (request r-1 in the server's log)")));
    }
}
