"""Forwarding of a local TCP port to a port of a sandbox. `_sync/forward.py` is its twin."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any, Self

from .._errors import TideboxError, api_error
from .._websocket import Codec
from .connection import AsyncConnection

_PIECE = 64 * 1024
EOF = '{"type":"eof"}'


class AsyncForward:
    """Local TCP listener, whose connections lead to a port of a sandbox. Enter it with `async with`."""

    def __init__(self, connection: AsyncConnection, path: str, address: str, local_port: int) -> None:
        self._connection = connection
        self._path = path
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.address = address
        self.local_port = local_port
        self.error: TideboxError | None = None
        """Error of the newest connection that failed."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self.address, self.local_port)
        self.local_port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stops to listen, and closes the connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await _Pair(self._connection, self._path, reader, writer).run()
            writer.close()
        except TideboxError as error:
            self.error = error
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            # Resets the connection, unless it has ended.
            writer.transport.abort()
            self._tasks.discard(task)


class _Pair:
    """A local connection and the WebSocket that carries it."""

    def __init__(
        self,
        connection: AsyncConnection,
        path: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._connection = connection
        self._path = path
        self._reader = reader
        self._writer = writer
        self._codec = Codec()
        self._lock = asyncio.Lock()
        self._pongs: list[bytes] = []

    async def run(self) -> None:
        response, stream = await self._connection.upgrade(self._path)
        try:
            async with asyncio.TaskGroup() as group:
                sender = group.create_task(self._send(stream))
                await self._receive(stream)
                sender.cancel()
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await response.aclose()

    async def _send(self, stream: Any) -> None:
        while data := await self._reader.read(_PIECE):
            await self._write(stream, self._codec.binary(data))
        await self._write(stream, self._codec.text(EOF))

    async def _write(self, stream: Any, data: bytes) -> None:
        async with self._lock:
            try:
                await stream.write(data)
                while self._pongs:
                    await stream.write(self._pongs.pop(0))
            except Exception as error:
                raise self._connection.cut(error) from error

    async def _receive(self, stream: Any) -> None:
        while True:
            try:
                data = await stream.read(_PIECE, timeout=self._connection.config.stream_timeout)
            except Exception as error:
                raise self._connection.cut(error) from error
            for kind, value in self._codec.receive(data):
                if kind == "bytes":
                    self._writer.write(value)
                    await self._writer.drain()
                elif kind == "pong":
                    # A writer that waits for the sandbox must not keep this reader from reading.
                    self._pongs.append(value)
                    if not self._lock.locked():
                        await self._write(stream, b"")
                elif kind == "text":
                    message = json.loads(value)
                    if message.get("type") == "error":
                        raise api_error(message.get("code", ""), message.get("message", ""), status=101)
                    with contextlib.suppress(OSError):
                        self._writer.write_eof()
                elif kind == "close":
                    return
            if not data:
                raise self._connection.cut(EOFError("the server closed the connection"))
