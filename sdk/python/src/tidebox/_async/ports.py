"""Ports of a sandbox, and its connections to the network."""

from __future__ import annotations

from builtins import list as list_
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from .._encode import body
from .connection import AsyncConnection

if TYPE_CHECKING:
    from .. import _wire as wire


class AsyncPorts:
    """Ports that programs in a sandbox listen on."""

    def __init__(self, connection: AsyncConnection, sandbox: str) -> None:
        self._connection = connection
        self._path = sandbox + "/ports"

    async def list(self) -> list_[wire.ListeningPort]:
        """Returns the TCP ports that programs listen on."""
        return cast("list[wire.ListeningPort]", await self._connection.json("GET", self._path))


class AsyncEgress:
    """Policy on connections out of a sandbox."""

    def __init__(self, connection: AsyncConnection, sandbox: str) -> None:
        self._connection = connection
        self._path = sandbox + "/egress"

    async def get(self) -> wire.Egress:
        """Returns the policy, the traffic, and the newest decisions."""
        return cast("wire.Egress", await self._connection.json("GET", self._path))

    async def set(
        self,
        mode: str,
        *,
        allow: Sequence[str] | None = None,
        deny: Sequence[str] | None = None,
        secrets: Sequence[str] | None = None,
    ) -> wire.Egress:
        """Replaces the policy, for open connections too. `mode` is `none`, `allow-list` or `open`."""
        policy = body(
            mode=mode,
            allow=list(allow) if allow is not None else None,
            deny=list(deny) if deny is not None else None,
            secrets=list(secrets) if secrets is not None else None,
        )
        return cast("wire.Egress", await self._connection.json("PUT", self._path, policy))
