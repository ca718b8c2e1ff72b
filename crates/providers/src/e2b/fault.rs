//! Failures of requests to the cloud, and their conversion into errors of this provider.

use std::time::Duration;

use crate::Error;
use crate::service::words::words;

/// Name of the action of requesting a new sandbox.
pub(super) const START: &str = "start a box";

/// A failure of a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// There is no connection, and nothing was sent.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// No answer came in time. The request may have been carried out.
    #[error("no answer within {} seconds", .0.as_secs())]
    Timeout(Duration),
    /// The connection ended before the answer did.
    #[error("the connection was cut: {0}")]
    Cut(String),
    /// The answer does not follow the protocol.
    #[error("the answer is not one of E2B's API: {0}")]
    Protocol(String),
    /// The request was refused with an HTTP status.
    #[error("status {status}: {message}")]
    Status {
        status: u16,
        message: String,
        /// Seconds of `Retry-After`.
        retry_after: Option<u64>,
    },
    /// A remote procedure call has failed, with a code of Connect.
    #[error("{code}: {message}")]
    Rpc { code: String, message: String },
}

impl Fault {
    /// Returns whether the request was refused with this status.
    pub(super) fn is_status(&self, wanted: u16) -> bool {
        matches!(self, Fault::Status { status, .. } if *status == wanted)
    }

    /// Returns whether a remote procedure call has failed with this code.
    pub(super) fn is_code(&self, wanted: &str) -> bool {
        matches!(self, Fault::Rpc { code, .. } if code == wanted)
    }

    /// Returns whether the end of the sandbox may be the reason.
    pub(super) fn may_be_the_end(&self) -> bool {
        match self {
            Fault::Cut(_) | Fault::Connect(_) => true,
            Fault::Status { status, .. } => matches!(status, 404 | 502),
            Fault::Rpc { code, .. } => code == "unavailable",
            Fault::Timeout(_) | Fault::Protocol(_) => false,
        }
    }
}

/// Converts the failure of a request to the control plane.
///
/// The status decides. The message is passed on only where a caller can change something; any other
/// message becomes a source, for the log.
pub(super) fn control_fault(action: &'static str, fault: Fault) -> Error {
    let Fault::Status { status, message, retry_after } = &fault else { return without_answer(action, fault) };
    let said = words(message);
    let retry = retry_after.map(|seconds| format!("; it accepts requests again in {seconds} s")).unwrap_or_default();
    match status {
        400 | 413 | 422 => Error::Invalid(said),
        401 => Error::Unavailable(
            "the service behind it rejects our API key; its operator has to check `providers.e2b.api_key`".to_owned(),
        ),
        403 => {
            tracing::warn!(action, reason = said, "the service behind the provider e2b refuses the account");
            Error::Unavailable(
                "the service behind it refuses this account or its key; its operator has to check the account, see the \
                 log"
                    .to_owned(),
            )
        }
        // There is no sandbox yet, so the message is about something that the request names.
        404 if action == START => Error::Invalid(said),
        404 => Error::Gone,
        409 => Error::Conflict(said),
        429 => Error::Exhausted(format!("the service behind this provider has reached a limit: {said}{retry}")),
        503 => Error::Unavailable(format!("the service behind it is busy: {said}{retry}")),
        507 if action == START => Error::Full(said),
        507 => Error::NoSpace,
        _ => Error::failed(action, fault),
    }
}

/// Converts the failure of a request to the inside of a sandbox that still runs.
pub(super) fn guest_fault(action: &'static str, fault: Fault) -> Error {
    match &fault {
        Fault::Rpc { code, message } => {
            let said = words(message);
            match code.as_str() {
                "invalid_argument" | "unauthenticated" | "permission_denied" | "out_of_range" => Error::Invalid(said),
                "not_found" => Error::NotFound(said),
                "already_exists" | "aborted" | "failed_precondition" => Error::Conflict(said),
                "resource_exhausted" if says_full(message) => Error::NoSpace,
                "resource_exhausted" => Error::Exhausted(said),
                "unimplemented" => Error::NotSupported(said),
                "unavailable" => Error::Unavailable(said),
                "internal" if says_full(message) => Error::NoSpace,
                _ => Error::failed(action, fault),
            }
        }
        Fault::Status { status, message, .. } => match status {
            400 => Error::Invalid(words(message)),
            401 => Error::Unavailable("the sandbox rejects its access token".to_owned()),
            404 => Error::NotFound(words(message)),
            413 => Error::TooLarge(words(message)),
            507 => Error::NoSpace,
            502 => Error::Unavailable("the sandbox cannot be reached at the service behind it".to_owned()),
            _ => control_fault(action, fault),
        },
        Fault::Connect(_) | Fault::Timeout(_) | Fault::Cut(_) | Fault::Protocol(_) => without_answer(action, fault),
    }
}

fn says_full(message: &str) -> bool {
    message.to_ascii_lowercase().contains("no space left")
}

fn without_answer(action: &'static str, fault: Fault) -> Error {
    if let Fault::Connect(reason) = &fault {
        return Error::Unavailable(format!("the service behind it cannot be reached: {}", words(reason)));
    }
    Error::NoAnswer { action, source: fault.into() }
}

#[cfg(test)]
mod test {
    use super::*;

    fn kind(error: &Error) -> String {
        format!("{error:?}").split(['(', ' ']).next().unwrap_or_default().to_owned()
    }

    fn status(status: u16) -> Fault {
        Fault::Status { status, message: "max 1h".to_owned(), retry_after: Some(7) }
    }

    #[test]
    fn each_status_of_the_control_plane_becomes_the_error_that_it_means() {
        for (number, expected) in [
            (400, "Invalid"),
            (401, "Unavailable"),
            (403, "Unavailable"),
            (404, "Gone"),
            (409, "Conflict"),
            (413, "Invalid"),
            (429, "Exhausted"),
            (500, "Failed"),
            (502, "Failed"),
            (503, "Unavailable"),
            (507, "NoSpace"),
            (418, "Failed"),
        ] {
            assert_eq!(kind(&control_fault("try", status(number))), expected, "{number}");
        }
        assert_eq!(kind(&control_fault(START, status(404))), "Invalid");
        assert_eq!(kind(&control_fault(START, status(507))), "Full");
    }

    #[test]
    fn a_limit_says_when_to_come_again() {
        for number in [429, 503] {
            let text = control_fault("try", status(number)).to_string();
            assert!(text.contains("7 s") && text.contains("max 1h"), "{text}");
        }
    }

    #[test]
    fn each_code_of_a_call_becomes_the_error_that_it_means() {
        for (code, message, expected) in [
            ("invalid_argument", "x", "Invalid"),
            ("unauthenticated", "no such user", "Invalid"),
            ("not_found", "x", "NotFound"),
            ("already_exists", "x", "Conflict"),
            ("resource_exhausted", "too much", "Exhausted"),
            ("resource_exhausted", "write /x: no space left on device", "NoSpace"),
            ("internal", "write /x: No space left on device", "NoSpace"),
            ("internal", "x", "Failed"),
            ("unimplemented", "x", "NotSupported"),
            ("unavailable", "x", "Unavailable"),
            ("surprise", "x", "Failed"),
        ] {
            let fault = Fault::Rpc { code: code.to_owned(), message: message.to_owned() };
            assert_eq!(kind(&guest_fault("try", fault)), expected, "{code} {message}");
        }
        assert_eq!(kind(&guest_fault("try", status(507))), "NoSpace");
        assert_eq!(kind(&guest_fault("try", status(404))), "NotFound");
    }

    #[test]
    fn what_is_not_meant_for_the_caller_stays_in_the_log() {
        for fault in [
            Fault::Status { status: 500, message: "password=hunter2".to_owned(), retry_after: None },
            Fault::Status { status: 401, message: "password=hunter2".to_owned(), retry_after: None },
            Fault::Status { status: 403, message: "unpaid: hunter2".to_owned(), retry_after: None },
            Fault::Protocol("<html>hunter2".to_owned()),
            Fault::Cut("hunter2".to_owned()),
        ] {
            let text = control_fault("try", fault).to_string();
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
