"""Handshake and frames of WebSockets."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from typing import Any

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def handshake() -> tuple[dict[str, str], str]:
    """Returns the headers of a handshake, and the `Sec-WebSocket-Accept` that answers it."""
    key = base64.b64encode(os.urandom(16))
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": key.decode(),
        "sec-websocket-protocol": "tidebox.v1",
    }
    return headers, base64.b64encode(hashlib.sha1(key + _GUID).digest()).decode()


class Codec:
    """Frames of a WebSocket, for one reader and one writer at a time."""

    def __init__(self) -> None:
        from wsproto.connection import Connection, ConnectionType

        self._connection = Connection(ConnectionType.CLIENT)
        self._text = ""

    def receive(self, data: bytes) -> Iterator[tuple[str, Any]]:
        """Yields `(kind, value)`: `bytes`, `text`, `pong` with bytes to send, and `close` with its code."""
        from wsproto import events

        self._connection.receive_data(data or None)
        for event in self._connection.events():
            if isinstance(event, events.BytesMessage):
                yield "bytes", bytes(event.data)
            elif isinstance(event, events.TextMessage):
                self._text += event.data
                if event.message_finished:
                    text, self._text = self._text, ""
                    yield "text", text
            elif isinstance(event, events.Ping):
                yield "pong", self._connection.send(event.response())
            elif isinstance(event, events.CloseConnection):
                yield "close", event.code

    def binary(self, data: bytes) -> bytes:
        """Returns a frame of bytes."""
        from wsproto.events import BytesMessage

        return self._connection.send(BytesMessage(data=data))

    def text(self, text: str) -> bytes:
        """Returns a frame of text."""
        from wsproto.events import TextMessage

        return self._connection.send(TextMessage(data=text))
