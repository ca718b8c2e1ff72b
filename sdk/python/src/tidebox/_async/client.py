"""Clients: the connection to a server, and what concerns the server itself."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from .._config import Config
from .._decode import field
from .._encode import body, query, seconds, segment
from .connection import AsyncConnection
from .streams import AsyncEventStream

if TYPE_CHECKING:
    from .. import _wire as wire
    from .sandbox import AsyncSandbox


class AsyncClient:
    """Connection to a Tidebox server. It sends nothing until it is used, and can be shared by tasks.

    Arguments come before the environment: `TIDEBOX_URL`, `TIDEBOX_API_KEY`, `TIDEBOX_USER_ID`,
    `TIDEBOX_CA_FILE`. `timeout` is the deadline of an answer, `stream_timeout` the longest silence of a
    stream, both in seconds; `retries` bounds how often a call that is safe to repeat is sent again.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        user_id: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        retries: int = 2,
        stream_timeout: float = 45.0,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        config = Config.resolve(url, api_key, user_id, headers, timeout, retries, stream_timeout, ca_file)
        self.connection = AsyncConnection(config)
        self.admin = AsyncAdmin(self.connection)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def url(self) -> str:
        """Address of the server."""
        return self.connection.config.address

    async def close(self) -> None:
        """Closes the connections. The client opens new ones if it is used again."""
        await self.connection.close()

    def sandbox(self, id: str) -> AsyncSandbox:
        """Returns a handle of a sandbox, without a request."""
        from .sandbox import AsyncSandbox

        return AsyncSandbox(id, self)

    async def health(self) -> wire.Health:
        """Returns whether the server lives, with its version."""
        return cast("wire.Health", await self.connection.json("GET", "/health"))

    async def ready(self) -> wire.Readiness:
        """Returns whether a provider is healthy; raises `UnavailableError` otherwise."""
        return cast("wire.Readiness", await self.connection.json("GET", "/ready"))

    async def version(self) -> str:
        """Returns the version of the server."""
        return str(field(await self.health(), "version"))

    async def providers(self) -> list[wire.ProviderHealth]:
        """Returns the providers with their last checks."""
        return cast("list[wire.ProviderHealth]", await self.connection.json("GET", "/providers"))

    def events(
        self,
        *,
        types: Sequence[str] | None = None,
        sandbox_id: str | None = None,
        last_event_id: int | None = None,
        follow: bool = True,
    ) -> AsyncEventStream:
        """Returns the stream of events, which resumes after the last one if the connection breaks.

        `last_event_id` 0 begins with all kept events; `follow=False` ends after the kept ones.
        """
        pairs = query(
            {
                "type": ",".join(types) if types else None,
                "sandbox_id": sandbox_id,
                "follow": None if follow else False,
            }
        )
        return AsyncEventStream(self.connection, f"/events{pairs}", last_id=last_event_id, follow=follow)


class AsyncAdmin:
    """Calls for the operator, which need the admin key where authentication is on."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def quotas(self) -> list[wire.OwnerQuota]:
        """Returns the quotas of all owners."""
        return cast("list[wire.OwnerQuota]", await self._connection.json("GET", "/admin/quotas"))

    async def quota(self, owner_id: str) -> wire.OwnerQuota:
        """Returns the quota of an owner."""
        return cast("wire.OwnerQuota", await self._connection.json("GET", _quota(owner_id)))

    async def set_quota(
        self,
        owner_id: str,
        *,
        max_sandboxes: int | None = None,
        max_ttl: float | None = None,
        max_exec_timeout: float | None = None,
        max_memory_mb: int | None = None,
        max_vcpus: int | None = None,
        max_disk_mb: int | None = None,
    ) -> wire.OwnerQuota:
        """Sets the quota of an owner. Limits that are left out do not apply."""
        fields = body(
            max_sandboxes=max_sandboxes,
            max_ttl=seconds("max_ttl", max_ttl),
            max_exec_timeout=seconds("max_exec_timeout", max_exec_timeout),
            max_memory_mb=max_memory_mb,
            max_vcpus=max_vcpus,
            max_disk_mb=max_disk_mb,
        )
        return cast("wire.OwnerQuota", await self._connection.json("PUT", _quota(owner_id), fields))

    async def delete_quota(self, owner_id: str) -> None:
        """Deletes the quota of an owner."""
        await self._connection.json("DELETE", _quota(owner_id))

    async def quota_summary(self) -> wire.QuotaSummary:
        """Returns how many quotas set each limit."""
        return cast("wire.QuotaSummary", await self._connection.json("GET", "/admin/quotas/summary"))

    async def usage(self, owner_id: str) -> wire.OwnerUsage:
        """Returns what an owner uses, with its limits."""
        return cast("wire.OwnerUsage", await self._connection.json("GET", _quota(owner_id) + "/usage"))

    async def audit(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        method: str | None = None,
        status: int | None = None,
        path: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[wire.AuditEntry]:
        """Yields rows of the audit history, newest first: all, or `limit` of them."""
        filters = {
            "actor": actor,
            "action": action,
            "method": method,
            "status": status,
            "path": path,
            "since": since,
            "until": until,
            "limit": min(limit or 1000, 1000),
        }
        left = limit
        async for row in pages(self._connection, "/admin/audit", filters):
            yield cast("wire.AuditEntry", row)
            if left is not None:
                left -= 1
                if left <= 0:
                    return

    async def workers(self) -> list[wire.Worker]:
        """Returns the workers."""
        return cast("list[wire.Worker]", await self._connection.json("GET", "/workers"))

    async def worker(self, id: str) -> wire.Worker:
        """Returns one worker."""
        return cast(
            "wire.Worker", await self._connection.json("GET", f"/workers/{segment('the worker', id)}")
        )

    async def delete_worker(self, id: str) -> None:
        """Removes a worker."""
        await self._connection.json("DELETE", f"/admin/workers/{segment('the worker', id)}")

    async def metrics(self) -> wire.Metrics:
        """Returns the metrics of the service."""
        return cast("wire.Metrics", await self._connection.json("GET", "/admin/metrics"))

    async def prometheus(self) -> str:
        """Returns the metrics as Prometheus reads them."""
        text, _ = await self._connection.full("GET", "/admin/metrics/prometheus", text=True)
        return cast(str, text)

    async def diagnostics(self) -> wire.Diagnostics:
        """Returns the state of the service, without secrets."""
        return cast("wire.Diagnostics", await self._connection.json("GET", "/admin/diagnostics"))

    async def provider(self, name: str) -> wire.ProviderDetail:
        """Returns one provider with its configuration."""
        path = f"/admin/providers/{segment('the provider', name)}"
        return cast("wire.ProviderDetail", await self._connection.json("GET", path))

    async def test_providers(self) -> Mapping[str, Any]:
        """Checks the providers now."""
        answer = await self._connection.json("POST", "/admin/providers/test", {})
        return cast("Mapping[str, Any]", answer)

    async def pool_status(self) -> wire.PoolStatus:
        """Returns the state of pool mode."""
        return cast("wire.PoolStatus", await self._connection.json("GET", "/pool/status"))

    async def prune(self) -> wire.Pruned:
        """Removes every sandbox whose lifetime is over."""
        return cast("wire.Pruned", await self._connection.json("DELETE", "/sandboxes"))


def _quota(owner_id: str) -> str:
    return f"/admin/quotas/{segment('the owner', owner_id)}"


async def pages(connection: AsyncConnection, path: str, filters: Mapping[str, object]) -> AsyncIterator[Any]:
    """Yields the items of a list that is read page by page."""
    cursor: str | None = None
    while True:
        items, headers = await connection.full("GET", path + query({**filters, "cursor": cursor}))
        for item in items:
            yield item
        cursor = headers.get("x-next-cursor")
        if cursor is None:
            return


_clients: dict[tuple[str | None, ...], AsyncClient] = {}


def default_client(client: AsyncClient | None = None) -> AsyncClient:
    """Returns the client, or else the one that the environment describes."""
    if client is not None:
        return client
    names = ("TIDEBOX_URL", "TIDEBOX_API_KEY", "TIDEBOX_USER_ID", "TIDEBOX_CA_FILE")
    key = tuple(os.environ.get(name) for name in names)
    return _clients.get(key) or _clients.setdefault(key, AsyncClient())
