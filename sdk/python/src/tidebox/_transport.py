"""Options of the HTTP clients."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import httpx2

from ._config import Config
from ._errors import InvalidArgument

# Bytes that are read from a source at once.
CHUNK = 256 * 1024


def _keep_alive() -> list[tuple[int, int, int]]:
    """Returns options that find a dead peer after some 35 seconds, also on an idle connection."""
    found = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            found.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return found


def _verify(config: Config) -> ssl.SSLContext | bool:
    if config.ca_file is not None:
        try:
            return ssl.create_default_context(cafile=config.ca_file)
        except OSError as error:
            raise InvalidArgument(f"cannot read the CA file {config.ca_file}: {error}") from error
    # Loading the system's authorities takes tens of milliseconds, and is of no use without TLS.
    return config.url.startswith("https://")


def options(config: Config) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Returns the options of the transport and of the client."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=20)
    common: dict[str, Any] = {"verify": _verify(config), "limits": limits}
    client: dict[str, Any] = {
        "headers": config.headers,
        "follow_redirects": False,
        "timeout": httpx2.Timeout(config.timeout, pool=None),
    }
    if config.socket is not None:
        return {**common, "uds": config.socket}, {**client, "trust_env": False}
    if config.is_local:
        return {**common, "socket_options": _keep_alive()}, {**client, "trust_env": False}
    import urllib.request

    if urllib.request.getproxies():
        return None, {**client, **common, "trust_env": True}
    return {**common, "socket_options": _keep_alive()}, {**client, "trust_env": False}
