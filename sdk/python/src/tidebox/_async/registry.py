"""What outlives sandboxes: templates, images, snapshots, secrets and keys."""

from __future__ import annotations

import os
from builtins import list as list_
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from .._config import LONG
from .._decode import LINES, LineSplitter, parse_object
from .._encode import body, query, seconds, segment, spawn
from .._errors import StreamInterrupted, api_error
from . import _io
from .client import AsyncClient, default_client
from .sandbox import AsyncSandbox, spawn_sandbox

if TYPE_CHECKING:
    from .. import _wire as wire


class AsyncTemplate:
    """Templates: settings of sandboxes under a name."""

    @staticmethod
    async def create(
        name: str,
        *,
        image: str | None = None,
        ttl: float | None = None,
        memory_mb: int | None = None,
        vcpus: int | None = None,
        disk_mb: int | None = None,
        pids: int | None = None,
        metadata: Mapping[str, str] | None = None,
        egress: wire.EgressPolicy | None = None,
        provider: str | None = None,
        prepare: Sequence[str | Mapping[str, Any]] | None = None,
        auto_pause: float | None = None,
        entrypoint: bool | None = None,
        client: AsyncClient | None = None,
    ) -> wire.Template:
        """Creates a template."""
        fields = spawn(
            name=name,
            image=image,
            ttl=ttl,
            memory_mb=memory_mb,
            vcpus=vcpus,
            disk_mb=disk_mb,
            pids=pids,
            metadata=metadata,
            egress=egress,
            provider=provider,
            prepare=prepare,
            auto_pause=auto_pause,
            entrypoint=entrypoint,
        )
        return cast(
            "wire.Template", await default_client(client).connection.json("POST", "/templates", fields)
        )

    @staticmethod
    async def get(
        name: str, *, owner_id: str | None = None, client: AsyncClient | None = None
    ) -> wire.Template:
        """Returns a template."""
        return cast(
            "wire.Template", await default_client(client).connection.json("GET", _template(name, owner_id))
        )

    @staticmethod
    async def list(*, owner_id: str | None = None, client: AsyncClient | None = None) -> list_[wire.Template]:
        """Returns the templates."""
        path = "/templates" + query({"owner_id": owner_id})
        return cast("list_[wire.Template]", await default_client(client).connection.json("GET", path))

    @staticmethod
    async def update(
        name: str,
        *,
        image: str | None = None,
        ttl: float | None = None,
        memory_mb: int | None = None,
        vcpus: int | None = None,
        disk_mb: int | None = None,
        pids: int | None = None,
        metadata: Mapping[str, str] | None = None,
        egress: wire.EgressPolicy | None = None,
        provider: str | None = None,
        prepare: Sequence[str | Mapping[str, Any]] | None = None,
        auto_pause: float | None = None,
        entrypoint: bool | None = None,
        owner_id: str | None = None,
        client: AsyncClient | None = None,
    ) -> wire.Template:
        """Replaces a template. Settings that are left out are cleared."""
        fields = spawn(
            image=image,
            ttl=ttl,
            memory_mb=memory_mb,
            vcpus=vcpus,
            disk_mb=disk_mb,
            pids=pids,
            metadata=metadata,
            egress=egress,
            provider=provider,
            prepare=prepare,
            auto_pause=auto_pause,
            entrypoint=entrypoint,
        )
        path = _template(name, owner_id)
        return cast("wire.Template", await default_client(client).connection.json("PUT", path, fields))

    @staticmethod
    async def delete(name: str, *, owner_id: str | None = None, client: AsyncClient | None = None) -> None:
        """Deletes a template."""
        await default_client(client).connection.json("DELETE", _template(name, owner_id))

    @staticmethod
    @_io.opening
    async def spawn(
        name: str,
        *,
        ttl: float | None = None,
        memory_mb: int | None = None,
        vcpus: int | None = None,
        disk_mb: int | None = None,
        pids: int | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        egress: wire.EgressPolicy | None = None,
        owner_id: str | None = None,
        prepare: Sequence[str | Mapping[str, Any]] | None = None,
        auto_pause: float | None = None,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
        client: AsyncClient | None = None,
    ) -> AsyncSandbox:
        """Makes a sandbox from a template. Settings given here override those of the template."""
        fields = spawn(
            ttl=ttl,
            memory_mb=memory_mb,
            vcpus=vcpus,
            disk_mb=disk_mb,
            pids=pids,
            env=env,
            metadata=metadata,
            egress=egress,
            owner_id=owner_id,
            prepare=prepare,
            auto_pause=auto_pause,
        )
        path = f"/templates/{segment('the template', name)}/spawn"
        return await spawn_sandbox(
            default_client(client), path, fields, idempotency_key, request_timeout, env, AsyncSandbox
        )


class AsyncImage:
    """Images of the server's store."""

    @staticmethod
    async def list(*, client: AsyncClient | None = None) -> list_[wire.Image]:
        """Returns the images."""
        return cast("list_[wire.Image]", await default_client(client).connection.json("GET", "/images"))

    @staticmethod
    async def get(name: str, *, client: AsyncClient | None = None) -> wire.ImageDetail:
        """Returns an image with its configuration and layers."""
        path = f"/images/{segment('the image', name)}"
        return cast("wire.ImageDetail", await default_client(client).connection.json("GET", path))

    @staticmethod
    async def delete(name: str, *, client: AsyncClient | None = None) -> None:
        """Removes an image, or stops its pull."""
        await default_client(client).connection.json("DELETE", f"/images/{segment('the image', name)}")

    @staticmethod
    async def pull(
        name: str,
        *,
        on_progress: Callable[[wire.PullProgress], Awaitable[None] | None] | None = None,
        client: AsyncClient | None = None,
    ) -> wire.Image:
        """Pulls an image and returns it. `on_progress` gets the steps as they happen."""
        connection = default_client(client).connection
        stream = await connection.open("POST", "/images/pull", {"name": name, "stream": True}, media=(LINES,))
        try:
            lines = LineSplitter()
            async for data in stream.pieces():
                for found in lines.feed(data):
                    line = parse_object(found)
                    if on_progress is not None:
                        await _io.notify(on_progress, line)
                    if line.get("type") == "error":
                        raise api_error(line.get("code", "internal"), line.get("message", ""), status=200)
                    if line.get("type") == "done":
                        return cast("wire.Image", line["image"])
        finally:
            await stream.close()
        raise StreamInterrupted(
            "the stream of the pull ended before the pull did; it continues on the server"
        )

    @staticmethod
    async def import_(
        archive: str | os.PathLike[str] | _io.Data,
        *,
        name: str | None = None,
        client: AsyncClient | None = None,
    ) -> list_[wire.Image]:
        """Imports an archive: of `docker save`, an OCI layout, or a root file system.

        `archive` is the path of a file, an open file, or an iterator of bytes.
        """
        connection = default_client(client).connection
        path = "/images/import" + query({"name": name})
        headers = {"content-type": "application/octet-stream"}
        if isinstance(archive, (str, os.PathLike)):
            with open(archive, "rb") as file:
                answer = await connection.json("POST", path, content=file, headers=headers, timeout=LONG)
        else:
            answer = await connection.json("POST", path, content=archive, headers=headers, timeout=LONG)
        return cast("list_[wire.Image]", answer)

    @staticmethod
    async def prune(*, all: bool = False, client: AsyncClient | None = None) -> wire.PrunedImages:
        """Removes images without a name, and leftovers; with `all` every image that is not used."""
        answer = await default_client(client).connection.json("POST", "/images/prune", {"all": all})
        return cast("wire.PrunedImages", answer)


class AsyncSnapshot:
    """Snapshots of sandboxes."""

    @staticmethod
    async def list(
        *, owner_id: str | None = None, sandbox_id: str | None = None, client: AsyncClient | None = None
    ) -> list_[wire.SnapshotSummary]:
        """Returns the snapshots."""
        path = "/snapshots" + query({"owner_id": owner_id, "sandbox_id": sandbox_id})
        return cast("list_[wire.SnapshotSummary]", await default_client(client).connection.json("GET", path))

    @staticmethod
    async def get(id: str, *, client: AsyncClient | None = None) -> wire.SnapshotSummary:
        """Returns a snapshot."""
        path = f"/snapshots/{segment('the snapshot', id)}"
        return cast("wire.SnapshotSummary", await default_client(client).connection.json("GET", path))

    @staticmethod
    async def delete(id: str, *, client: AsyncClient | None = None) -> None:
        """Deletes a snapshot. Sandboxes made from it stay."""
        await default_client(client).connection.json("DELETE", f"/snapshots/{segment('the snapshot', id)}")


class AsyncSecret:
    """Secrets of the operator, which never enter a sandbox."""

    @staticmethod
    async def set(
        name: str,
        value: str,
        *,
        hosts: Sequence[str] | None = None,
        header: str | None = None,
        form: str | None = None,
        owners: Sequence[str] | None = None,
        client: AsyncClient | None = None,
    ) -> wire.Secret:
        """Stores a secret, or replaces it. Without `hosts` it is for `env_secret` of commands."""
        fields = body(
            value=value,
            hosts=list_(hosts) if hosts is not None else None,
            header=header,
            form=form,
            owners=list_(owners) if owners is not None else None,
        )
        return cast("wire.Secret", await default_client(client).connection.json("PUT", _secret(name), fields))

    @staticmethod
    async def get(name: str, *, client: AsyncClient | None = None) -> wire.Secret:
        """Returns a secret without its value."""
        return cast("wire.Secret", await default_client(client).connection.json("GET", _secret(name)))

    @staticmethod
    async def list(*, client: AsyncClient | None = None) -> list_[wire.Secret]:
        """Returns the secrets without their values."""
        return cast("list_[wire.Secret]", await default_client(client).connection.json("GET", "/secrets"))

    @staticmethod
    async def delete(name: str, *, client: AsyncClient | None = None) -> None:
        """Deletes a secret."""
        await default_client(client).connection.json("DELETE", _secret(name))


class AsyncKey:
    """Keys of owners. These calls need the admin key where authentication is on."""

    @staticmethod
    async def create(
        owner_id: str,
        *,
        name: str | None = None,
        scopes: Sequence[str] | None = None,
        ttl: float | None = None,
        format: str | None = None,
        client: AsyncClient | None = None,
    ) -> wire.CreatedOwnerKey:
        """Creates a key of an owner. Its text, `secret`, is in this answer only."""
        fields = body(
            owner_id=owner_id,
            name=name,
            scopes=list_(scopes) if scopes is not None else None,
            ttl=seconds("ttl", ttl),
            format=format,
        )
        answer = await default_client(client).connection.json("POST", "/admin/keys", fields)
        return cast("wire.CreatedOwnerKey", answer)

    @staticmethod
    async def list(*, owner_id: str | None = None, client: AsyncClient | None = None) -> list_[wire.OwnerKey]:
        """Returns the keys without their texts."""
        path = "/admin/keys" + query({"owner_id": owner_id})
        return cast("list_[wire.OwnerKey]", await default_client(client).connection.json("GET", path))

    @staticmethod
    async def revoke(id: str, *, client: AsyncClient | None = None) -> None:
        """Revokes a key. Streams that were opened with it end."""
        await default_client(client).connection.json("DELETE", f"/admin/keys/{segment('the key', id)}")


def _template(name: str, owner_id: str | None) -> str:
    return f"/templates/{segment('the template', name)}{query({'owner_id': owner_id})}"


def _secret(name: str) -> str:
    return f"/secrets/{segment('the secret', name)}"
