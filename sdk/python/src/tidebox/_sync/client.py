# Generated from _async by generate.py. Do not edit.
"""Clients: the connection to a server, and what concerns the server itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from .._config import Config
from .._decode import field
from .._encode import body, query, seconds, segment
from .connection import Connection
from .streams import EventStream

if TYPE_CHECKING:
    from .. import _wire as wire
    from .sandbox import Sandbox


class Client:
    """Connection to a Tidebox server. It sends nothing until it is used, and can be shared by threads.

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
        self.connection = Connection(config)
        self.admin = Admin(self.connection)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Address of the server."""
        return self.connection.config.address

    def close(self) -> None:
        """Closes the connections. The client opens new ones if it is used again."""
        self.connection.close()

    def sandbox(self, id: str) -> Sandbox:
        """Returns a handle of a sandbox, without a request."""
        from .sandbox import Sandbox

        return Sandbox(id, self)

    def health(self) -> wire.Health:
        """Returns whether the server lives, with its version."""
        return cast("wire.Health", self.connection.json("GET", "/health"))

    def ready(self) -> wire.Readiness:
        """Returns whether a provider is healthy; raises `UnavailableError` otherwise."""
        return cast("wire.Readiness", self.connection.json("GET", "/ready"))

    def version(self) -> str:
        """Returns the version of the server."""
        return str(field(self.health(), "version"))

    def providers(self) -> list[wire.ProviderHealth]:
        """Returns the providers with their last checks."""
        return cast("list[wire.ProviderHealth]", self.connection.json("GET", "/providers"))

    def events(
        self,
        *,
        types: Sequence[str] | None = None,
        sandbox_id: str | None = None,
        last_event_id: int | None = None,
        follow: bool = True,
    ) -> EventStream:
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
        return EventStream(self.connection, f"/events{pairs}", last_id=last_event_id, follow=follow)


class Admin:
    """Calls for the operator, which need the admin key where authentication is on."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def quotas(self) -> list[wire.OwnerQuota]:
        """Returns the quotas of all owners."""
        return cast("list[wire.OwnerQuota]", self._connection.json("GET", "/admin/quotas"))

    def quota(self, owner_id: str) -> wire.OwnerQuota:
        """Returns the quota of an owner."""
        return cast("wire.OwnerQuota", self._connection.json("GET", _quota(owner_id)))

    def set_quota(
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
        return cast("wire.OwnerQuota", self._connection.json("PUT", _quota(owner_id), fields))

    def delete_quota(self, owner_id: str) -> None:
        """Deletes the quota of an owner."""
        self._connection.json("DELETE", _quota(owner_id))

    def quota_summary(self) -> wire.QuotaSummary:
        """Returns how many quotas set each limit."""
        return cast("wire.QuotaSummary", self._connection.json("GET", "/admin/quotas/summary"))

    def usage(self, owner_id: str) -> wire.OwnerUsage:
        """Returns what an owner uses, with its limits."""
        return cast("wire.OwnerUsage", self._connection.json("GET", _quota(owner_id) + "/usage"))

    def audit(
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
    ) -> Iterator[wire.AuditEntry]:
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
        for row in pages(self._connection, "/admin/audit", filters):
            yield cast("wire.AuditEntry", row)
            if left is not None:
                left -= 1
                if left <= 0:
                    return

    def workers(self) -> list[wire.Worker]:
        """Returns the workers."""
        return cast("list[wire.Worker]", self._connection.json("GET", "/workers"))

    def worker(self, id: str) -> wire.Worker:
        """Returns one worker."""
        return cast(
            "wire.Worker", self._connection.json("GET", f"/workers/{segment('the worker', id)}")
        )

    def delete_worker(self, id: str) -> None:
        """Removes a worker."""
        self._connection.json("DELETE", f"/admin/workers/{segment('the worker', id)}")

    def metrics(self) -> wire.Metrics:
        """Returns the metrics of the service."""
        return cast("wire.Metrics", self._connection.json("GET", "/admin/metrics"))

    def prometheus(self) -> str:
        """Returns the metrics as Prometheus reads them."""
        text, _ = self._connection.full("GET", "/admin/metrics/prometheus", text=True)
        return cast(str, text)

    def diagnostics(self) -> wire.Diagnostics:
        """Returns the state of the service, without secrets."""
        return cast("wire.Diagnostics", self._connection.json("GET", "/admin/diagnostics"))

    def provider(self, name: str) -> wire.ProviderDetail:
        """Returns one provider with its configuration."""
        path = f"/admin/providers/{segment('the provider', name)}"
        return cast("wire.ProviderDetail", self._connection.json("GET", path))

    def test_providers(self) -> Mapping[str, Any]:
        """Checks the providers now."""
        answer = self._connection.json("POST", "/admin/providers/test", {})
        return cast("Mapping[str, Any]", answer)

    def pool_status(self) -> wire.PoolStatus:
        """Returns the state of pool mode."""
        return cast("wire.PoolStatus", self._connection.json("GET", "/pool/status"))

    def prune(self) -> wire.Pruned:
        """Removes every sandbox whose lifetime is over."""
        return cast("wire.Pruned", self._connection.json("DELETE", "/sandboxes"))


def _quota(owner_id: str) -> str:
    return f"/admin/quotas/{segment('the owner', owner_id)}"


def pages(connection: Connection, path: str, filters: Mapping[str, object]) -> Iterator[Any]:
    """Yields the items of a list that is read page by page."""
    cursor: str | None = None
    while True:
        items, headers = connection.full("GET", path + query({**filters, "cursor": cursor}))
        for item in items:
            yield item
        cursor = headers.get("x-next-cursor")
        if cursor is None:
            return


_clients: dict[tuple[str | None, ...], Client] = {}


def default_client(client: Client | None = None) -> Client:
    """Returns the client, or else the one that the environment describes."""
    if client is not None:
        return client
    names = ("TIDEBOX_URL", "TIDEBOX_API_KEY", "TIDEBOX_USER_ID", "TIDEBOX_CA_FILE")
    key = tuple(os.environ.get(name) for name in names)
    return _clients.get(key) or _clients.setdefault(key, Client())
