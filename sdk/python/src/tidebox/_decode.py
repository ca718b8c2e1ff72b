"""Decoders of streams: frames, lines and server-sent events. They read no socket."""

from __future__ import annotations

import base64
import codecs
import json
from collections.abc import Iterator
from typing import Any

from ._errors import ProtocolError
from ._models import Exit

FRAMES = "application/octet-stream"
LINES = "application/x-ndjson"
EVENTS = "text/event-stream"
# A frame of the server has at most 4 MiB, a line that in base64.
_MESSAGE_MAX = 64 * 1024
_LINE_MAX = 8 * 1024 * 1024

# A decoded piece of output: `stdout` or `stderr` with bytes, `gap` with a number, `exit` with its fields.
Raw = tuple[str, Any]


class OutputDecoder:
    """Decoder of output, as frames or lines. `position` is the number to continue from."""

    def __init__(self, media_type: str, position: int | None = None) -> None:
        self.position = position
        self._feed = self._frames if media_type == FRAMES else self._lines
        self._unread = bytearray()
        self._kind = 0
        self._left = 0
        self._split = LineSplitter()

    def feed(self, data: bytes) -> Iterator[Raw]:
        """Yields the pieces that the data completes."""
        try:
            yield from self._feed(data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"a part of the stream is malformed: {error!r}") from error

    def _frames(self, data: bytes) -> Iterator[Raw]:
        unread = self._unread
        view = memoryview(data)
        while view:
            if self._left and self._kind:
                piece = bytes(view[: self._left])
                view = view[len(piece) :]
                self._left -= len(piece)
                yield self._output("stdout" if self._kind == 1 else "stderr", piece)
                continue
            need = 5 + self._left - len(unread) if self._left else 5 - len(unread)
            unread += view[:need]
            view = view[need:]
            if not self._left:
                if len(unread) < 5:
                    return
                self._kind = unread[0]
                self._left = int.from_bytes(unread[1:5], "big")
                if self._kind > 2 or (self._kind == 0 and self._left > _MESSAGE_MAX):
                    raise ProtocolError(f"the stream has a frame of the unknown kind {self._kind}")
                if self._kind or not self._left:
                    unread.clear()
            elif len(unread) == 5 + self._left:
                message = parse_json(bytes(unread[5:]))
                unread.clear()
                self._left = 0
                yield from self._message(message)

    def _message(self, message: Any) -> Iterator[Raw]:
        kind = message.get("type") if isinstance(message, dict) else None
        if kind == "exit":
            yield "exit", Exit.parse(message)
        elif kind == "position":
            before, self.position = self.position, int(message["seq"])
            if before is not None and self.position > before:
                yield "gap", self.position - before
        elif kind == "error":
            yield "error", message

    def _output(self, stream: str, data: bytes) -> Raw:
        if self.position is not None:
            self.position += len(data)
        return stream, data

    def _lines(self, data: bytes) -> Iterator[Raw]:
        for line in self._split.feed(data):
            chunk = parse_object(line)
            stream, content = chunk.get("stream"), chunk.get("data", "")
            if chunk.get("seq") is not None:
                self.position = int(chunk["seq"])
            if stream == "exit":
                yield "exit", Exit.parse({**chunk, "exit_code": int(content)})
            elif stream == "gap":
                yield "gap", int(content)
            elif stream in ("stdout", "stderr") and content:
                yield stream, base64.b64decode(content)


class LineSplitter:
    """Splitter of bytes into lines. Empty lines are left out."""

    def __init__(self) -> None:
        self._unread = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields the lines that the data completes."""
        unread = self._unread
        unread += data
        if b"\n" in data:
            lines = unread.split(b"\n")
            unread[:] = lines.pop()
            for line in lines:
                if line.strip():
                    yield bytes(line)
        if len(unread) > _LINE_MAX:
            raise ProtocolError(f"a line of the stream has more than {_LINE_MAX} bytes")


class EventDecoder:
    """Decoder of server-sent events. Yields `(id, type, data)`, and `None` for a comment."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._id: str | None = None
        self._type = "message"
        self._data: list[str] = []

    def feed(self, data: bytes) -> Iterator[tuple[str | None, str, Any] | None]:
        """Yields the events that the data completes."""
        self._unread += data
        if len(self._unread) > _LINE_MAX:
            raise ProtocolError(f"an event of the stream has more than {_LINE_MAX} bytes")
        while (end := self._unread.find(b"\n")) >= 0:
            line = self._unread[:end].decode("utf-8", "replace").rstrip("\r")
            del self._unread[: end + 1]
            if line:
                name, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if name == "data":
                    self._data.append(value)
                elif name == "id":
                    self._id = value
                elif name == "event":
                    self._type = value
                elif not name:
                    yield None
            else:
                if self._data:
                    yield self._id, self._type, parse_json("\n".join(self._data).encode())
                self._id, self._type, self._data = None, "message", []


class TextDecoder:
    """Incremental decoder of output; `encoding` `None` leaves bytes as they are."""

    def __init__(self, encoding: str | None) -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding else None

    def decode(self, data: bytes, final: bool = False) -> Any:
        """Returns the text that is complete."""
        return data if self._decoder is None else self._decoder.decode(data, final)


def field(record: Any, name: str) -> Any:
    """Returns a field that every server of this API sends."""
    if not isinstance(record, dict) or name not in record:
        raise ProtocolError(f"the answer lacks `{name}`; is another service at the URL?")
    return record[name]


def parse_object(data: bytes) -> dict[str, Any]:
    """Parses a line that must be an object."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise ProtocolError("a line of the stream is not a JSON object")
    return value


def parse_json(data: bytes) -> Any:
    """Parses a piece of a stream."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise ProtocolError(f"a part of the stream is not JSON: {error}") from None
