"""What differs between the asynchronous and the synchronous SDK. `_sync/_io.py` is its twin."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import ssl
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
)
from functools import wraps
from types import TracebackType
from typing import IO, Any, Generic, ParamSpec, TypeVar

import httpx2

from .._config import Config
from .._transport import CHUNK, options

P = ParamSpec("P")
T = TypeVar("T")

Lock = asyncio.Lock
sleep = asyncio.sleep
# TLS errors may come without a wrapper.
BROKEN = (httpx2.TransportError, ssl.SSLError)
HttpClient = httpx2.AsyncClient
Data = str | bytes | bytearray | IO[bytes] | Iterable[bytes] | AsyncIterable[bytes]


_Clients = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[HttpClient, AsyncGenerator[None, None]]]


class Pool:
    """HTTP clients of a connection: one for each event loop, none from before a fork."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._pid = os.getpid()
        self._clients: _Clients = weakref.WeakKeyDictionary()

    def get(self) -> HttpClient:
        """Returns the client of the running loop."""
        if self._pid != os.getpid():
            self._clients = weakref.WeakKeyDictionary()
            self._pid = os.getpid()
        loop = asyncio.get_running_loop()
        found = self._clients.get(loop)
        if found is None:
            # Sockets of a loop that was closed in another way are closed with their objects.
            for other in [other for other in self._clients if other.is_closed()]:
                del self._clients[other]
            client = make_client(self._config)
            guard = _until_the_loop_ends(client)
            # Runs to the `yield`, so that the loop knows the generator.
            with contextlib.suppress(StopIteration):
                guard.__anext__().__await__().send(None)
            found = self._clients[loop] = client, guard
        return found[0]

    async def close(self) -> None:
        """Closes the connections of the running loop."""
        found = self._clients.pop(asyncio.get_running_loop(), None)
        if found is not None and self._pid == os.getpid():
            await found[1].aclose()


def make_client(config: Config) -> HttpClient:
    """Makes an HTTP client."""
    transport, client = options(config)
    return HttpClient(transport=httpx2.AsyncHTTPTransport(**transport) if transport else None, **client)


async def _until_the_loop_ends(client: HttpClient) -> AsyncGenerator[None, None]:
    """Closes a client when `asyncio.run` ends the async generators of its loop."""
    try:
        yield
    finally:
        await client.aclose()


class Opening(Generic[T]):
    """Call that makes an object: `await` it, or use it with `async with`."""

    def __init__(self, call: Coroutine[Any, Any, T]) -> None:
        self._call = call
        self._value: Any = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._call.__await__()

    async def __aenter__(self) -> T:
        self._value = await self._call
        return await self._value.__aenter__()  # type: ignore[no-any-return]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._value.__aexit__(kind, error, trace)


def opening(call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Opening[T]]:
    """Lets a call be awaited or entered."""

    @wraps(call)
    def opened(*args: P.args, **kwargs: P.kwargs) -> Opening[T]:
        return Opening(call(*args, **kwargs))

    return opened


async def notify(callback: Callable[[Any], Any], value: Any) -> None:
    """Calls a callback, which may be a coroutine function."""
    result: Awaitable[Any] | Any = callback(value)
    if inspect.isawaitable(result):
        await result


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Makes a blocking call without blocking the loop."""
    return await asyncio.to_thread(call, *args, **kwargs)


async def chunks(data: Any) -> AsyncIterator[bytes]:
    """Yields the pieces of a body."""
    if hasattr(data, "read"):
        while True:
            piece = (
                data.read(CHUNK) if inspect.iscoroutinefunction(data.read) else in_thread(data.read, CHUNK)
            )
            piece = await piece
            if not piece:
                return
            yield piece.encode() if isinstance(piece, str) else piece
    elif hasattr(data, "__aiter__"):
        async for piece in data:
            yield piece
    else:
        iterator = iter(data)
        while (piece := await in_thread(next, iterator, None)) is not None:
            yield piece
