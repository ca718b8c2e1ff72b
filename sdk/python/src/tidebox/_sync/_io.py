"""What differs between the synchronous and the asynchronous SDK. `_async/_io.py` is its twin."""

from __future__ import annotations

import os
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, ParamSpec, TypeVar

import httpx2

from .._config import Config
from .._transport import CHUNK, options

P = ParamSpec("P")
T = TypeVar("T")

Lock = threading.Lock
sleep = time.sleep
# TLS errors may come without a wrapper.
BROKEN = (httpx2.TransportError, ssl.SSLError)
HttpClient = httpx2.Client
Data = str | bytes | bytearray | IO[bytes] | Iterable[bytes]

_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


class Pool:
    """HTTP client of a connection. A child makes its own after a fork."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._client: HttpClient | None = None
        self._lock = threading.Lock()
        _pools.add(self)

    def get(self) -> HttpClient:
        """Returns the client."""
        client = self._client
        if client is None:
            with self._lock:
                client = self._client = self._client or make_client(self._config)
        return client

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def forget(self) -> None:
        """Drops the client of the parent in a child. Its sockets are closed without sending anything."""
        self._lock = threading.Lock()
        self._client = None


def _after_fork() -> None:
    for pool in list(_pools):
        pool.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def make_client(config: Config) -> HttpClient:
    """Makes an HTTP client."""
    transport, client = options(config)
    return HttpClient(transport=httpx2.HTTPTransport(**transport) if transport else None, **client)


def opening(call: Callable[P, T]) -> Callable[P, T]:
    """Returns the call as it is; its result can be entered."""
    return call


def notify(callback: Callable[[Any], Any], value: Any) -> None:
    """Calls a callback."""
    callback(value)


def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Makes a blocking call."""
    return call(*args, **kwargs)


def chunks(data: Any) -> Iterator[bytes]:
    """Yields the pieces of a body."""
    if hasattr(data, "read"):
        while piece := data.read(CHUNK):
            yield piece.encode() if isinstance(piece, str) else piece
    else:
        yield from data
