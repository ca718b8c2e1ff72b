//! What an Engine's refusals mean to a caller.

use std::time::Duration;

use bollard::errors::Error as ClientError;

use crate::Error;

/// How long a look at the Engine may take, however busy it is.
pub(super) const LOOK_WAIT: Duration = Duration::from_secs(10);
/// How long a change may take. Starting a box on an Engine that makes many at
/// once is what takes long.
pub(super) const CHANGE_WAIT: Duration = Duration::from_secs(60);

/// What a caller can do about an Engine that has no disk left.
pub(super) const FULL: &str =
    "the disk of the Docker Engine is full; remove images there (`docker image prune`) or make room on it";

/// So much of what an Engine says gets into the log: some of it is what a registry
/// said, or a path that a box has made, which may be anything.
pub(super) const SAID_CHARS_MAX: usize = 1000;

/// Waits for the whole answer to a short call. One that does not come is as if
/// the Engine could not be reached; whether the call was done is not known.
pub(super) async fn within<T>(
    wait: Duration,
    call: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    tokio::time::timeout(wait, call).await.unwrap_or(Err(ClientError::RequestTimeoutError))
}

/// The status and the text of an answer that is a refusal.
pub(super) fn refusal(error: &ClientError) -> Option<(u16, &str)> {
    if let ClientError::DockerResponseServerError { status_code, message } = error {
        return Some((*status_code, message));
    }
    None
}

/// The status of an answer that is a refusal.
pub(super) fn status(error: &ClientError) -> Option<u16> {
    refusal(error).map(|(status, _)| status)
}

/// The provider's own word for what went wrong while it was about to `action`.
pub(super) fn failed(action: &'static str, error: ClientError) -> Error {
    if is_unreachable(&error) {
        return Error::Unavailable(unreachable(&error));
    }
    match refusal(&error) {
        Some((_, message)) if is_full(message) => Error::Full(FULL.to_owned()),
        Some((status, message)) if message.len() > SAID_CHARS_MAX => {
            let said: String = message.chars().take(SAID_CHARS_MAX).collect();
            Error::failed(action, format!("the Engine answered {status}: {said}"))
        }
        _ => Error::failed(action, error),
    }
}

/// Whether the Engine itself was not reached, or went away.
pub(super) fn is_unreachable(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::IOError { .. } | ClientError::HyperResponseError { .. } | ClientError::RequestTimeoutError
    )
}

/// Says that the Engine does not answer, and why.
pub(super) fn unreachable(error: &ClientError) -> String {
    format!("the Docker Engine does not answer ({})", crate::Chain(error))
}

/// Whether the Engine has no disk left.
pub(super) fn is_full(message: &str) -> bool {
    message.contains("no space left on device") || message.contains("disk quota exceeded")
}
