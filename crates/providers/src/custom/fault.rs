//! Conversion of the remote service's failures into errors of this provider.

use client::Error as Remote;

use crate::Error;
use crate::service::words::words;

/// Name of the action of requesting a new box.
pub(super) const START: &str = "start a box";

/// Converts the failure of a request about a box with this `generation`.
///
/// The error code decides. The message is passed on only if the API means it for a caller who can
/// change something; any other message becomes a source, for the log. A request that was
/// certainly not carried out is `Unavailable`; one that may have been is `NoAnswer`.
pub(super) fn fault(action: &'static str, generation: Option<u64>, error: Remote) -> Error {
    let Remote::Api { code, message, .. } = &error else { return without_answer(action, error) };
    let words = words(message);
    match code.as_str() {
        "bad_request" | "payload_too_large" => Error::Invalid(words),
        "not_supported" => Error::NotSupported(words),
        // There is no box yet, so the message is about something that the request names.
        "not_found" if action == START => Error::Invalid(words),
        "not_found" => Error::Gone,
        // Without a box, the disk that holds the boxes is meant.
        "no_space" if action == START => Error::Full(words),
        "no_space" => Error::NoSpace,
        "resource_limit" => Error::Exhausted(format!("the service behind this provider has reached a limit: {words}")),
        "unavailable" => Error::Unavailable(words),
        "unauthorized" | "forbidden" => Error::Unavailable(
            "the service behind it rejects our credentials; its operator has to check the API key".to_owned(),
        ),
        "conflict" => Error::Conflict(match generation {
            Some(generation) => {
                format!("another holder may now have this sandbox: {words} (our generation: {generation})")
            }
            None => words,
        }),
        _ => Error::failed(action, error),
    }
}

fn without_answer(action: &'static str, error: Remote) -> Error {
    match error {
        Remote::Argument { name, reason } => Error::Invalid(format!("{name} {reason}")),
        Remote::TooLarge { bytes, bytes_max } => {
            Error::Invalid(format!("the request has {bytes} bytes, but at most {bytes_max} can be forwarded"))
        }
        Remote::Connect { reason, .. } => {
            Error::Unavailable(format!("the service behind it cannot be reached: {}", self::words(&reason)))
        }
        error @ Remote::Api { .. } => Error::failed(action, error),
        error @ (Remote::Timeout { .. } | Remote::Protocol { .. } | Remote::Cut { .. } | Remote::Io(_)) => {
            Error::NoAnswer { action, source: error.into() }
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn api(status: u16, code: &str, message: &str) -> Remote {
        Remote::Api { status, code: code.to_owned(), message: message.to_owned(), request_id: None }
    }

    #[test]
    fn each_code_becomes_the_error_that_it_means() {
        let kind = |error: &Error| format!("{error:?}").split(['(', ' ']).next().unwrap_or_default().to_owned();
        for (status, code, expected) in [
            (400, "bad_request", "Invalid"),
            (413, "payload_too_large", "Invalid"),
            (400, "not_supported", "NotSupported"),
            (501, "not_supported", "NotSupported"),
            (404, "not_found", "Gone"),
            (409, "conflict", "Conflict"),
            (429, "resource_limit", "Exhausted"),
            (507, "no_space", "NoSpace"),
            (503, "unavailable", "Unavailable"),
            (401, "unauthorized", "Unavailable"),
            (403, "forbidden", "Unavailable"),
            (500, "provider_error", "Failed"),
            (500, "internal", "Failed"),
            (408, "timeout", "Failed"),
            (418, "never_heard_of", "Failed"),
            (200, "", "Failed"),
        ] {
            assert_eq!(kind(&fault("try", None, api(status, code, "x"))), expected, "{code}");
        }
    }

    #[test]
    fn a_spawn_without_room_is_told_in_the_other_services_words() {
        let refused = fault(START, None, api(507, "no_space", "the disk has 3 MiB left"));
        assert!(matches!(&refused, Error::Full(text) if text.contains("3 MiB")), "{refused}");
    }

    #[test]
    fn a_stale_generation_is_told_and_is_not_gone() {
        let Error::Conflict(text) = fault("try", Some(7), api(409, "conflict", "stale")) else {
            panic!("not a conflict")
        };
        assert!(text.contains("stale") && text.contains('7'), "{text}");
    }

    #[test]
    fn what_is_not_meant_for_the_caller_stays_in_the_log() {
        for (status, code) in [(500, "provider_error"), (500, "internal"), (418, "surprise"), (401, "unauthorized")] {
            let text = fault("try", None, api(status, code, "password=hunter2")).to_string();
            assert!(!text.contains("hunter2"), "{text}");
        }
        let protocol = Remote::Protocol { url: "http://10.0.0.1".to_owned(), reason: "<html>hunter2".to_owned() };
        let text = fault("try", None, protocol).to_string();
        assert!(!text.contains("hunter2") && !text.contains("10.0.0.1"), "{text}");
    }
}
