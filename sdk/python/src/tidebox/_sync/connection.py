# Generated from _async by generate.py. Do not edit.
"""Requests to the server: deadlines, retries, and the errors of answers."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx2

from .._config import CONNECT_MAX, RETRY_AFTER_MAX, Config
from .._encode import with_seconds
from .._errors import (
    ConnectionFailed,
    InvalidArgument,
    NotFoundError,
    ProtocolError,
    RequestTimeout,
    StreamInterrupted,
    TideboxError,
    api_error,
    first_words,
)
from . import _io

_BODY_MAX = 256 * 1024 * 1024


class Connection:
    """Connection to one server, shared by everything that a client makes."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._pool = _io.Pool(config)

    def close(self) -> None:
        """Closes the connections."""
        self._pool.close()

    def json(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        repeat: bool | None = None,
    ) -> Any:
        """Returns the JSON of an answer."""
        return (
            self.full(
                method, path, body, content=content, headers=headers, timeout=timeout, repeat=repeat
            )
        )[0]

    def full(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        repeat: bool | None = None,
        text: bool = False,
    ) -> tuple[Any, Mapping[str, str]]:
        """Returns the JSON (or text) of an answer, and its headers."""
        request = _Request(method, path, body, content, headers, timeout or self.config.timeout)

        def read(response: httpx2.Response, deadline: float) -> tuple[Any, Mapping[str, str]]:
            data = self._read(response, deadline)
            if text:
                return data.decode("utf-8", "replace"), response.headers
            answer = self._parse(response, data)
            # Lists of files may be long, and have no durations.
            return answer if "/files" in request.path else with_seconds(answer), response.headers

        return self._repeat(request, read, repeat)  # type: ignore[no-any-return]

    def open(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        repeat: bool | None = None,
        media: tuple[str, ...] = (),
    ) -> Body:
        """Returns an answer whose body is read piece by piece. It must be closed."""
        sent = {"accept-encoding": "identity", **(headers or {})}
        request = _Request(method, path, body, content, sent, timeout or self.config.timeout)

        def keep(response: httpx2.Response, deadline: float) -> Body:
            kind = _media(response)
            if media and kind not in media:
                raise self._foreign(response, self._read(response, deadline))
            return Body(self, response, kind)

        return self._repeat(request, keep, repeat)  # type: ignore[no-any-return]

    def upgrade(self, path: str) -> tuple[httpx2.Response, Any]:
        """Opens a WebSocket, and returns the answer with its raw stream."""
        from .._websocket import handshake

        headers, accept = handshake()
        request = _Request("GET", path, None, None, headers, self.config.timeout)
        deadline = time.monotonic() + request.timeout
        response = self._send(request, deadline)
        if response.status_code != 101:
            try:
                self._check(response, deadline)
                raise ProtocolError(
                    f"{self.config.address} answers {response.status_code} instead of a WebSocket"
                )
            finally:
                response.close()
        if response.headers.get("sec-websocket-accept") != accept:
            response.close()
            raise ProtocolError("the WebSocket handshake does not match the request")
        return response, response.extensions["network_stream"]

    def _repeat(self, request: _Request, finish: Callable[..., Any], repeat: bool | None) -> Any:
        """Sends a request, again if that is safe, and passes the answer on."""
        if repeat is None:
            repeat = request.method in ("GET", "PUT", "DELETE") and request.is_repeatable
        left = self.config.retries if repeat else 0
        deadline = time.monotonic() + request.timeout
        attempt, was_lost = 0, False
        while True:
            response: httpx2.Response | None = None
            kept = False
            try:
                response = self._send(request, deadline)
                self._check(response, deadline)
                result = finish(response, deadline)
                kept = isinstance(result, Body)
                return result
            except NotFoundError:
                # The answer of the first deletion was lost, but it was carried out.
                if was_lost and request.method == "DELETE":
                    return {"status": "deleted"}, {}
                raise
            except TideboxError as error:
                was_lost = was_lost or isinstance(error, StreamInterrupted)
                pause = self._pause(error, attempt)
                if left <= 0 or pause is None or time.monotonic() + pause >= deadline:
                    raise
            finally:
                if response is not None and not kept:
                    response.close()
            left -= 1
            attempt += 1
            _io.sleep(pause)

    @staticmethod
    def _pause(error: TideboxError, attempt: int) -> float | None:
        """Returns how long to wait before the request is sent again, or `None` if it should not be."""
        if error.retry_after is not None:
            return error.retry_after if error.retry_after <= RETRY_AFTER_MAX else None
        if not isinstance(error, (ConnectionFailed, StreamInterrupted)) and error.status not in (
            502,
            503,
            504,
        ):
            return None
        return float(0.2 * 2**attempt * random.uniform(0.5, 1.5))

    def _send(self, request: _Request, deadline: float) -> httpx2.Response:
        client = self._pool.get()
        left = max(deadline - time.monotonic(), 0.001)
        silence = self.config.stream_timeout
        timeout = httpx2.Timeout(
            connect=min(left, CONNECT_MAX), read=left, write=min(left, silence), pool=left
        )
        if request.content is not None:
            timeout.write = silence
        try:
            built = client.build_request(
                request.method,
                f"{self.config.url}/api/v1{request.path}",
                content=_io.chunks(request.content) if request.is_stream else request.content or request.json,
                headers=request.headers,
                timeout=timeout,
            )
            return client.send(built, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            raise ConnectionFailed(
                f"cannot connect to {self.config.address}: {_reason(error)}; is the server running? "
                "Start it with `tidebox serve`, or set `url` or TIDEBOX_URL",
                retryable=True,
            ) from error
        except httpx2.TimeoutException as error:
            raise self.late(request.timeout) from error
        except (
            httpx2.InvalidURL,
            httpx2.LocalProtocolError,
            httpx2.UnsupportedProtocol,
            UnicodeError,
        ) as error:
            raise InvalidArgument(f"the request cannot be sent: {error}") from error
        except _io.BROKEN as error:
            raise self.broken(error, "before the answer came; it may have been carried out") from error

    def late(self, after: float) -> RequestTimeout:
        """Returns the error of an answer that did not come."""
        return RequestTimeout(
            f"{self.config.address} did not answer within {after:g} seconds; set a longer `request_timeout`, "
            "or `timeout` of the client",
            retryable=True,
        )

    def broken(self, error: Exception, what: str) -> TideboxError:
        """Returns the error of a broken connection."""
        if isinstance(error, httpx2.RemoteProtocolError) and not _is_cut(error):
            return ProtocolError(f"{self.config.address} does not speak HTTP as expected: {_reason(error)}")
        return StreamInterrupted(f"the connection to {self.config.address} broke {what}: {_reason(error)}")

    def cut(self, error: Exception) -> TideboxError:
        """Returns the error of a WebSocket that broke."""
        reason = _reason(error)
        return StreamInterrupted(f"the connection to {self.config.address} broke: {reason}")

    def _check(self, response: httpx2.Response, deadline: float) -> None:
        """Raises the error that an answer carries."""
        status = response.status_code
        if status < 300:
            return
        data = self._read(response, deadline)
        retry_after = _retry_after(response.headers.get("retry-after"))
        if 300 <= status < 400:
            target = response.headers.get("location", "nowhere")
            raise ProtocolError(
                f"{self.config.address} redirects to {target}; set `url` to the address of the server itself",
                status=status,
            )
        try:
            fields = json.loads(data)
            code, message = str(fields["code"]), str(fields["message"])
        except (ValueError, TypeError, KeyError):
            raise self._foreign(response, data, retry_after) from None
        raise api_error(
            code,
            message,
            status=status,
            request_id=response.headers.get("x-request-id"),
            retry_after=retry_after,
        )

    def _foreign(
        self, response: httpx2.Response, data: bytes, retry_after: float | None = None
    ) -> ProtocolError:
        status = response.status_code
        return ProtocolError(
            f"{self.config.address} does not answer like a Tidebox server, but with status {status}, "
            f"`{_media(response) or 'no type'}` and: {first_words(data) or '(nothing)'}. "
            "Is the URL right, and is a proxy between?",
            status=status,
            request_id=response.headers.get("x-request-id"),
            retryable=status in (502, 503, 504),
            retry_after=retry_after,
        )

    def _read(self, response: httpx2.Response, deadline: float) -> bytes:
        data = bytearray()
        try:
            for piece in response.iter_bytes():
                data += piece
                if len(data) > _BODY_MAX:
                    raise ProtocolError(f"the answer has more than {_BODY_MAX} bytes")
                if time.monotonic() > deadline:
                    raise RequestTimeout("the answer was not complete within the deadline", retryable=True)
        except httpx2.TimeoutException as error:
            raise RequestTimeout("the answer was not complete within the deadline", retryable=True) from error
        except _io.BROKEN as error:
            raise self.broken(error, "before the answer was complete") from error
        except httpx2.DecodingError as error:
            raise ProtocolError(f"the answer cannot be decompressed: {error}") from error
        return bytes(data)

    def _parse(self, response: httpx2.Response, data: bytes) -> Any:
        kind = _media(response)
        if kind in ("", "application/json"):
            try:
                return json.loads(data)
            except ValueError:
                pass
        raise self._foreign(response, data)


class Body:
    """Body of an answer that is read piece by piece."""

    def __init__(self, connection: Connection, response: httpx2.Response, media_type: str) -> None:
        self.connection = connection
        self.media_type = media_type
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        # The request's deadline was for its head. From here on only silence counts.
        response.request.extensions["timeout"]["read"] = connection.config.stream_timeout

    def pieces(self) -> Iterator[bytes]:
        """Yields the pieces as they come."""
        try:
            for piece in self._response.iter_raw():
                yield piece
        except httpx2.TimeoutException as error:
            raise StreamInterrupted(
                f"{self.connection.config.address} sent nothing for "
                f"{self.connection.config.stream_timeout:g} seconds"
            ) from error
        except _io.BROKEN as error:
            raise self.connection.broken(error, "in a stream") from error
        except httpx2.StreamError as error:
            raise StreamInterrupted(f"the stream was closed: {error}") from error

    def close(self) -> None:
        """Closes the connection, unless the body was read to its end."""
        self._response.close()


class _Request:
    """Request that may be sent more than once."""

    def __init__(
        self,
        method: str,
        path: str,
        body: object,
        content: Any,
        headers: Mapping[str, str] | None,
        timeout: float,
    ) -> None:
        self.method = method
        self.path = path
        self.headers = dict(headers or {})
        self.timeout = timeout
        self.json: bytes | None = None
        self.content = content
        self.is_stream = content is not None and not isinstance(content, bytes)
        self.is_repeatable = not self.is_stream
        if body is not None:
            try:
                self.json = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
            except (TypeError, ValueError) as error:
                raise InvalidArgument(f"an argument cannot be written as JSON: {error}") from error
            self.headers["content-type"] = "application/json"


def _media(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _reason(error: BaseException) -> str:
    """Returns the innermost cause, such as `Connection refused`."""
    while (inner := error.__cause__ or error.__context__) is not None and str(inner):
        error = inner
    return str(error) or type(error).__name__


def _is_cut(error: Exception) -> bool:
    """Tells an end of the connection from bytes that are not HTTP; the library has one class for both."""
    return "disconnected" in str(error) or "closed" in str(error)


def _retry_after(value: str | None) -> float | None:
    try:
        return max(float(value), 0.0) if value is not None else None
    except ValueError:
        return None
