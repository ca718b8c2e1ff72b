# Generated from _async by generate.py. Do not edit.
"""Streams: output of commands and processes, server-sent events."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from .._decode import EVENTS, FRAMES, LINES, EventDecoder, OutputDecoder, TextDecoder
from .._errors import ApiError, NotFoundError, StreamInterrupted, TideboxError, api_error
from .._models import Exit, Gap, Output
from . import _io
from .connection import Body, Connection

T = TypeVar("T")
ACCEPT = {"accept": f"{FRAMES}, {LINES};q=0.5"}
# Longest time for which a broken stream is reopened.
RESUME_MAX = 45.0


class Stream(Generic[T]):
    """Stream that opens at the first item, or at once with `with`. Leaving it closes it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._body: Body | None = None
        self._items: Iterator[T] | None = None

    def __enter__(self) -> Self:
        if self._items is None:
            self._start()
            self._items = self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[T]:
        self.__enter__()
        assert self._items is not None
        try:
            for item in self._items:
                yield item
        finally:
            self.close()

    def close(self) -> None:
        """Closes the stream."""
        body, self._body = self._body, None
        if body is not None:
            body.close()

    def _start(self) -> None:
        raise NotImplementedError

    def _read(self) -> Iterator[T]:
        raise NotImplementedError


class CommandStream(Stream[Output[Any] | Exit]):
    """Output of a command: pieces `Output`, and `Exit` at the end. Leaving it kills the command."""

    def __init__(
        self, connection: Connection, path: str, body: Mapping[str, Any], encoding: str | None
    ) -> None:
        super().__init__(connection)
        self._path = path
        self._request = {**body, "stream": True, "exit_event": True, "encoding": "base64"}
        self._encoding = encoding
        self.request_timeout: float | None = None

    def _start(self) -> None:
        self._body = self._connection.open(
            "POST",
            self._path,
            self._request,
            headers=ACCEPT,
            timeout=self.request_timeout,
            media=(FRAMES, LINES),
        )

    def _read(self) -> Iterator[Output[Any] | Exit]:
        assert self._body is not None
        decoder = OutputDecoder(self._body.media_type)
        texts = {name: TextDecoder(self._encoding) for name in ("stdout", "stderr")}
        end: Exit | None = None
        pieces = self._body.pieces()
        for data in pieces:
            for kind, value in decoder.feed(data):
                if kind in texts:
                    piece = texts[kind].decode(value)
                    if piece:
                        yield Output(kind, piece)  # type: ignore[arg-type]
                elif kind == "exit":
                    for name, text in texts.items():
                        rest = text.decode(b"", True)
                        if rest:
                            yield Output(name, rest)  # type: ignore[arg-type]
                    end = value
                elif kind == "error":
                    raise _told(value)
                elif kind == "gap":
                    raise StreamInterrupted(f"{value} bytes of the command's output were lost")
            if end is not None:
                yield end
                # The end of the body follows at once. Without it the connection could not be used again.
                with contextlib.suppress(StreamInterrupted):
                    for _ in pieces:
                        pass
                return
        raise StreamInterrupted(
            "the stream of the command ended before the command did; its exit code is unknown"
        )


class ProcessOutput(Stream[Output[Any] | Gap | Exit]):
    """Output of a background process: pieces `Output`, `Gap` and `Exit`.

    It resumes from its position after a cut. Leaving it leaves the process running. `position` is the
    number to continue from later.
    """

    def __init__(
        self, connection: Connection, path: str, position: int, follow: bool, encoding: str | None
    ) -> None:
        super().__init__(connection)
        self._path = path
        self._follow = follow
        self._encoding = encoding
        self.position = position

    def _start(self) -> None:
        follow = "true" if self._follow else "false"
        self._body = self._connection.open(
            "GET",
            f"{self._path}/output?from={self.position}&follow={follow}&encoding=base64",
            headers=ACCEPT,
            media=(FRAMES, LINES),
        )

    def _read(self) -> Iterator[Output[Any] | Gap | Exit]:
        texts = {name: TextDecoder(self._encoding) for name in ("stdout", "stderr")}
        while True:
            assert self._body is not None
            decoder = OutputDecoder(self._body.media_type, self.position)
            try:
                for data in self._body.pieces():
                    for kind, value in decoder.feed(data):
                        self.position = decoder.position or 0
                        if kind in texts:
                            piece = texts[kind].decode(value)
                            if piece:
                                yield Output(kind, piece)  # type: ignore[arg-type]
                        elif kind == "exit":
                            for name, text in texts.items():
                                rest = text.decode(b"", True)
                                if rest:
                                    yield Output(name, rest)  # type: ignore[arg-type]
                            yield value
                            return
                        elif kind == "gap":
                            yield Gap(value)
                        elif kind == "error":
                            raise _told(value)
                if not self._follow:
                    return
                cut: TideboxError = StreamInterrupted("the stream ended before the process did")
            except StreamInterrupted as error:
                cut = error
            self.close()
            reopen(self._start, cut)


class EventStream(Stream[dict[str, Any]]):
    """Server-sent events. `last_id` is the id to continue from later."""

    def __init__(
        self,
        connection: Connection,
        path: str,
        *,
        last_id: int | None = None,
        resume: bool = True,
        follow: bool = True,
    ) -> None:
        super().__init__(connection)
        self._path = path
        self._resume = resume and follow
        self._waits_for_comment = not resume
        self._pending: list[Any] = []
        self._decoder = EventDecoder()
        self._pieces: Iterator[bytes] | None = None
        self._opened: str | None = None
        self.last_id = last_id

    def _start(self) -> None:
        headers = {"accept": EVENTS}
        if self.last_id is not None:
            headers["last-event-id"] = str(self.last_id)
        elif self._opened is not None:
            # No event has come yet that could be resumed after. Events from before the opening are dropped.
            headers["last-event-id"] = "0"
        self._decoder = EventDecoder()
        self._body = self._connection.open("GET", self._path, headers=headers, media=(EVENTS,))
        self._pieces = self._body.pieces()
        self._opened = self._opened or server_time(self._body.headers.get("date"))
        if self._waits_for_comment:
            # The server's first comment says that the watch has begun.
            for data in self._pieces:
                self._pending = list(self._decoder.feed(data))
                if self._pending:
                    return

    def _read(self) -> Iterator[dict[str, Any]]:
        while True:
            assert self._pieces is not None
            try:
                for found in self._pending:
                    if found is not None:
                        yield found[2]
                for data in self._pieces:
                    for found in self._decoder.feed(data):
                        if found is None:
                            continue
                        is_first = self.last_id is None
                        if found[0] is not None and found[0].isdigit():
                            self.last_id = int(found[0])
                        if is_first and self._is_old(found[2]):
                            self.last_id = None
                            continue
                        yield found[2]
                if not self._resume:
                    return
                cut: TideboxError = StreamInterrupted("the stream of events ended")
            except StreamInterrupted as error:
                cut = error
                if not self._resume:
                    raise
            self.close()
            reopen(self._start, cut)

    def _is_old(self, event: Any) -> bool:
        """Returns whether an event is from before the stream was opened."""
        time_ = event.get("timestamp") if isinstance(event, dict) else None
        return self._opened is not None and isinstance(time_, str) and time_ < self._opened


def server_time(date: str | None) -> str | None:
    """Returns the server's time, in whole seconds, as events have it."""
    try:
        return parsedate_to_datetime(date).strftime("%Y-%m-%dT%H:%M:%S") if date else None
    except ValueError:
        return None


def reopen(start: Callable[[], Any], cut: TideboxError) -> None:
    """Reopens a broken stream, and tries for at most 45 seconds."""
    began, pause = time.monotonic(), 0.1
    while True:
        try:
            start()
            return
        except NotFoundError:
            raise
        except ApiError as error:
            if not error.retryable:
                raise
        except TideboxError:
            pass
        if time.monotonic() - began > RESUME_MAX:
            raise cut
        _io.sleep(pause)
        pause = min(pause * 2, 2.0)


def _told(message: Mapping[str, Any]) -> ApiError:
    return api_error(str(message.get("code", "internal")), str(message.get("message", "")), status=200)
