"""Errors of the SDK."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._models import Execution, Result


class TideboxError(Exception):
    """Root of all errors of this package.

    `code` is for programs, `retryable` says whether the same call may succeed later without a change.
    """

    code: str = "error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        request_id: str | None = None,
        retryable: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        self.status = status
        self.request_id = request_id
        self.retryable = retryable
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.message} (request {self.request_id})" if self.request_id else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.message, dict(self.__dict__))


def _restore(cls: type[TideboxError], message: str, state: dict[str, Any]) -> TideboxError:
    error = cls.__new__(cls)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class ApiError(TideboxError):
    """Refusal by the server. `message` says what to change."""


class BadRequestError(ApiError):
    """The request is not valid."""

    code = "bad_request"


class NotSupportedError(ApiError):
    """The provider of the sandbox cannot do this."""

    code = "not_supported"


class UnauthorizedError(ApiError):
    """The API key is missing or wrong; set `api_key` or `TIDEBOX_API_KEY`."""

    code = "unauthorized"


class ForbiddenError(ApiError):
    """The key, the host or the origin does not allow this."""

    code = "forbidden"


class NotFoundError(ApiError):
    """The object does not exist, or has ended."""

    code = "not_found"


class ApiTimeoutError(ApiError):
    """A wait ended at its deadline, or the request body stalled."""

    code = "timeout"


class ConflictError(ApiError):
    """The name or key is taken, or the state of the object forbids this."""

    code = "conflict"


class PayloadTooLargeError(ApiError):
    """The body is larger than the server accepts."""

    code = "payload_too_large"


class ResourceLimitError(ApiError):
    """A limit is reached; with `retry_after`, there were too many requests."""

    code = "resource_limit"


class ProviderError(ApiError):
    """The provider of the sandbox failed; the server's log has the cause."""

    code = "provider_error"


class InternalError(ApiError):
    """The server failed; its log has the cause under `request_id`."""

    code = "internal"


class UnavailableError(ApiError):
    """A provider, worker or the server is unavailable at the moment."""

    code = "unavailable"


class NoSpaceError(ApiError):
    """The sandbox or the data folder of the server is full."""

    code = "no_space"


class InvalidArgument(TideboxError, ValueError):
    """An argument cannot be sent; no request was made."""

    code = "invalid_argument"


class ConnectionFailed(TideboxError):
    """No connection to the server could be made."""

    code = "connection_failed"


class RequestTimeout(TideboxError):
    """The answer did not come within the request's deadline; the request may have been carried out."""

    code = "request_timeout"


class StreamInterrupted(TideboxError):
    """The connection broke or fell silent before the answer was complete."""

    code = "stream_interrupted"


class ProtocolError(TideboxError):
    """The answer is not that of a Tidebox server, for example a page of a proxy."""

    code = "protocol_error"


class CommandFailed(TideboxError):
    """A command ended with another exit code than 0. `result` has its output."""

    code = "command_failed"

    def __init__(self, result: Result[Any]) -> None:
        self.result = result
        self.exit_code = result.exit_code
        self.stdout = result.stdout
        self.stderr = result.stderr
        reason = "exceeded its deadline" if result.timed_out else f"ended with exit code {result.exit_code}"
        tail = result.stderr or result.stdout
        if isinstance(tail, bytes):
            tail = tail.decode("utf-8", "replace")
        tail = tail.strip()[-400:]
        super().__init__(f"the command {reason}{': ' + tail if tail else ''}")


class CodeFailed(TideboxError):
    """Code raised an error, or did not come to its end. `execution` has its output."""

    code = "code_failed"

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        error = execution.error
        reason = f"{error.name}: {error.value}" if error else f"its outcome is `{execution.outcome}`"
        super().__init__(f"the code failed: {reason}")


_CLASSES: dict[str, type[ApiError]] = {
    cls.code: cls
    for cls in (
        BadRequestError,
        NotSupportedError,
        UnauthorizedError,
        ForbiddenError,
        NotFoundError,
        ApiTimeoutError,
        ConflictError,
        PayloadTooLargeError,
        ResourceLimitError,
        ProviderError,
        InternalError,
        UnavailableError,
        NoSpaceError,
    )
}


def api_error(
    code: str, message: str, *, status: int, request_id: str | None = None, retry_after: float | None = None
) -> ApiError:
    """Returns the error of an API code."""
    retryable = code in ("timeout", "unavailable") or status in (502, 503, 504)
    retryable = retryable or (status == 429 and retry_after is not None)
    cls = _CLASSES.get(code, ApiError)
    return cls(
        message,
        code=code,
        status=status,
        request_id=request_id,
        retryable=retryable,
        retry_after=retry_after,
    )


def first_words(body: bytes) -> str:
    """Returns the beginning of a body that is not Tidebox's, without its markup."""
    text = body[:8192].decode("utf-8", "replace")
    text = re.sub(r"<(script|style)\b.*?(</\1>|$)|<[^>]*>", " ", text, flags=re.S | re.I)
    return " ".join(text.split())[:160]
