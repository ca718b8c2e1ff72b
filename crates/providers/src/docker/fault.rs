//! Conversion of an Engine's refusals to errors for callers.

use std::time::Duration;

use bollard::errors::Error as ClientError;

use crate::Error;

/// Limit for reading from the Engine, however busy it is.
pub(super) const LOOK_WAIT: Duration = Duration::from_secs(10);
/// Limit for a change. Starting a box takes long on an Engine that makes many at once.
pub(super) const CHANGE_WAIT: Duration = Duration::from_secs(60);

/// Error text for an Engine with a full disk, with advice.
pub(super) const FULL: &str =
    "the disk of the Docker Engine is full; remove images there (`docker image prune`) or free disk space";

/// Error text for a box that goes on while the Engine ends it.
const LATE: &str = "the Docker Engine did not stop the container in time; its processes are still exiting";

/// Most characters of an Engine's message in the log: parts of it come from a registry, or from a
/// path that a box has made, which may be anything.
pub(super) const SAID_CHARS_MAX: usize = 1000;

/// Waits for the whole answer to a short call. A missing answer counts as an unreachable Engine;
/// it is unknown whether the call was done.
pub(super) async fn within<T>(
    wait: Duration,
    call: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    tokio::time::timeout(wait, call).await.unwrap_or(Err(ClientError::RequestTimeoutError))
}

/// Returns the status and the message of a refusal.
pub(super) fn refusal(error: &ClientError) -> Option<(u16, &str)> {
    if let ClientError::DockerResponseServerError { status_code, message } = error {
        return Some((*status_code, message));
    }
    None
}

/// Returns the status of a refusal.
pub(super) fn status(error: &ClientError) -> Option<u16> {
    refusal(error).map(|(status, _)| status)
}

/// Converts an error of `action` into the provider's.
pub(super) fn failed(action: &'static str, error: ClientError) -> Error {
    if is_unreachable(&error) {
        return Error::Unavailable(unreachable(&error));
    }
    match refusal(&error) {
        Some((_, message)) if is_full(message) => Error::Full(FULL.to_owned()),
        Some((_, message)) if is_late(message) => Error::Unavailable(LATE.to_owned()),
        Some((status, message)) if message.len() > SAID_CHARS_MAX => {
            let said: String = message.chars().take(SAID_CHARS_MAX).collect();
            Error::failed(action, format!("the Engine answered {status}: {said}"))
        }
        _ => Error::failed(action, error),
    }
}

/// Returns whether the Engine was not reached, or went away.
pub(super) fn is_unreachable(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::IOError { .. } | ClientError::HyperResponseError { .. } | ClientError::RequestTimeoutError
    )
}

/// Returns the message that the Engine does not answer, with the cause.
pub(super) fn unreachable(error: &ClientError) -> String {
    format!("the Docker Engine does not answer ({})", crate::Chain(error))
}

/// Returns whether the message says that the Engine's disk is full.
pub(super) fn is_full(message: &str) -> bool {
    message.contains("no space left on device") || message.contains("disk quota exceeded")
}

/// Returns whether the message says that the Engine has killed a container and not seen its end,
/// for which it waits 12 s, or that it still waits. A runtime with a kernel of its own can take
/// longer on a busy host.
fn is_late(message: &str) -> bool {
    message.contains("did not receive an exit event")
        || message.starts_with("removal of container ") && message.ends_with(" is already in progress")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_box_that_the_engine_cannot_end_in_time_is_tried_again() {
        let said = |message: &str| {
            let message = message.to_owned();
            failed("remove a box", ClientError::DockerResponseServerError { status_code: 500, message })
        };
        let late = "Could not kill running container a1, cannot remove - tried to kill container, but did not receive \
                    an exit event";
        for late in [late, "removal of container box-1 is already in progress"] {
            assert!(matches!(said(late), Error::Unavailable(_)), "{late}");
        }
        assert!(matches!(said("driver failed to remove root filesystem"), Error::Failed { .. }));
    }
}
