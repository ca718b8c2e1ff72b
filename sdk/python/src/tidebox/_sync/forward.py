"""Forwarding of a local TCP port to a port of a sandbox. `_async/forward.py` is its twin."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from typing import Any, Self

from .._errors import TideboxError, api_error
from .._websocket import Codec
from .connection import Connection

_PIECE = 64 * 1024
EOF = '{"type":"eof"}'


class Forward:
    """Local TCP listener, whose connections lead to a port of a sandbox. Enter it with `with`."""

    def __init__(self, connection: Connection, path: str, address: str, local_port: int) -> None:
        self._connection = connection
        self._path = path
        self._listener: socket.socket | None = None
        self._pairs: set[_Pair] = set()
        self.address = address
        self.local_port = local_port
        self.error: TideboxError | None = None
        """Error of the newest connection that failed."""

    def __enter__(self) -> Self:
        self._listener = socket.create_server((self.address, self.local_port))
        self.local_port = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, args=(self._listener,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops to listen, and closes the connections."""
        listener, self._listener = self._listener, None
        if listener is not None:
            # `close` alone does not wake the thread that accepts.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for pair in list(self._pairs):
            pair.abort()

    def _listen(self, listener: socket.socket) -> None:
        while True:
            try:
                local, _ = listener.accept()
            except OSError:
                return
            pair = _Pair(self._connection, self._path, local)
            self._pairs.add(pair)
            threading.Thread(target=self._serve, args=(pair,), daemon=True).start()

    def _serve(self, pair: _Pair) -> None:
        try:
            pair.run()
        except TideboxError as error:
            self.error = error
            pair.abort()
        except OSError:
            pair.abort()
        finally:
            pair.local.close()
            self._pairs.discard(pair)


class _Pair:
    """A local connection and the WebSocket that carries it."""

    def __init__(self, connection: Connection, path: str, local: socket.socket) -> None:
        self._connection = connection
        self._path = path
        self.local = local
        self._codec = Codec()
        self._state = threading.Lock()
        self._lock = threading.Lock()
        self._pongs: list[bytes] = []
        self._remote: socket.socket | None = None

    def abort(self) -> None:
        """Resets both connections, which wakes their threads."""
        with contextlib.suppress(OSError):
            self.local.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for sock in (self.local, self._remote):
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        response, stream = self._connection.upgrade(self._path)
        try:
            self._remote = stream.get_extra_info("socket")
            sender = threading.Thread(target=self._send, args=(stream,), daemon=True)
            sender.start()
            self._receive(stream)
        finally:
            response.close()

    def _send(self, stream: Any) -> None:
        try:
            while data := self.local.recv(_PIECE):
                self._write(stream, lambda data=data: self._codec.binary(data))
            self._write(stream, lambda: self._codec.text(EOF))
        except (OSError, TideboxError):
            self.abort()

    def _write(self, stream: Any, frame: Any = None) -> None:
        with self._lock:
            try:
                if frame is not None:
                    with self._state:
                        data = frame()
                    stream.write(data)
                while self._pongs:
                    stream.write(self._pongs.pop(0))
            except Exception as error:
                raise self._connection.cut(error) from error

    def _receive(self, stream: Any) -> None:
        while True:
            try:
                data = stream.read(_PIECE, timeout=self._connection.config.stream_timeout)
            except Exception as error:
                raise self._connection.cut(error) from error
            with self._state:
                events = list(self._codec.receive(data))
            for kind, value in events:
                if kind == "bytes":
                    self.local.sendall(value)
                elif kind == "pong":
                    # A writer that waits for the sandbox must not keep this reader from reading.
                    self._pongs.append(value)
                    if not self._lock.locked():
                        self._write(stream)
                elif kind == "text":
                    message = json.loads(value)
                    if message.get("type") == "error":
                        raise api_error(message.get("code", ""), message.get("message", ""), status=101)
                    with contextlib.suppress(OSError):
                        self.local.shutdown(socket.SHUT_WR)
                elif kind == "close":
                    return
            if not data:
                raise self._connection.cut(EOFError("the server closed the connection"))
