# Generated from _async by generate.py. Do not edit.
"""Sandboxes."""

from __future__ import annotations

import contextlib
import time
import uuid
from builtins import list as list_
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast, overload

from .._config import LONG
from .._decode import field
from .._encode import body, command_fields, query, seconds, segment, spawn
from .._errors import InvalidArgument, NotFoundError, TideboxError
from .._models import Execution, Exit, Result
from . import _io
from .client import Client, default_client, pages
from .contexts import Contexts
from .files import Files
from .forward import Forward
from .ports import Egress, Ports
from .processes import Process, Processes
from .streams import CommandStream

if TYPE_CHECKING:
    from .. import _wire as wire

Callback = Callable[[Any], object]
OUTPUT_MAX = 64 * 1024 * 1024


class Sandbox:
    """Sandbox. As a context manager it is destroyed at the end."""

    def __init__(
        self, id: str, client: Client | None = None, *, env: Mapping[str, str] | None = None
    ) -> None:
        self.id = id
        self.client = default_client(client)
        self._connection = self.client.connection
        self._path = f"/sandboxes/{segment('the sandbox id', id)}"
        self._env = dict(env or {})
        self._is_closed = False
        self.files = Files(self._connection, self._path)
        self.processes = Processes(self._connection, self._path, self._env)
        self.contexts = Contexts(self._connection, self._path, self._env)
        self.ports = Ports(self._connection, self._path)
        self.egress = Egress(self._connection, self._path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_closed:
            return
        try:
            self.destroy()
        except TideboxError:
            # The error of the block says more.
            if error is None:
                raise

    @classmethod
    @_io.opening
    def create(
        cls,
        image: str | None = None,
        *,
        template: str | None = None,
        snapshot: str | None = None,
        ttl: float | None = None,
        memory_mb: int | None = None,
        vcpus: int | None = None,
        disk_mb: int | None = None,
        pids: int | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        egress: wire.EgressPolicy | None = None,
        provider: str | None = None,
        owner_id: str | None = None,
        prepare: Sequence[str | Mapping[str, Any]] | None = None,
        auto_pause: float | None = None,
        entrypoint: bool | None = None,
        idempotency_key: str | None = None,
        request_timeout: float | None = None,
        client: Client | None = None,
    ) -> Sandbox:
        """Makes a sandbox and returns it once it runs.

        The call has an idempotency key (a random one unless set), so that it is safe to repeat: after a
        lost answer the same sandbox is returned. `env` is added by this object to each command, process
        and context; the server does not keep it.
        """
        client = default_client(client)
        fields = spawn(
            image=image,
            template=template,
            snapshot=snapshot,
            ttl=ttl,
            memory_mb=memory_mb,
            vcpus=vcpus,
            disk_mb=disk_mb,
            pids=pids,
            env=env,
            metadata=metadata,
            egress=egress,
            provider=provider,
            owner_id=owner_id,
            prepare=prepare,
            auto_pause=auto_pause,
            entrypoint=entrypoint,
        )
        return spawn_sandbox(client, "/sandboxes", fields, idempotency_key, request_timeout, env, cls)

    @classmethod
    @_io.opening
    def connect(
        cls, id: str, *, env: Mapping[str, str] | None = None, client: Client | None = None
    ) -> Sandbox:
        """Returns a sandbox that exists. A paused one resumes with the first call that needs it."""
        sandbox = cls(id, client, env=env)
        sandbox.info()
        return sandbox

    @staticmethod
    def list(
        *,
        owner_id: str | None = None,
        state: str | None = None,
        provider: str | None = None,
        metadata: Mapping[str, str] | None = None,
        page_size: int = 100,
        client: Client | None = None,
    ) -> Iterator[wire.Sandbox]:
        """Yields the sandboxes that match, newest first. Pages are read as they are needed."""
        filters: dict[str, object] = {"owner_id": owner_id, "state": state, "provider": provider}
        filters.update({f"metadata.{key}": value for key, value in (metadata or {}).items()})
        filters["limit"] = page_size
        for item in pages(default_client(client).connection, "/sandboxes", filters):
            yield cast("wire.Sandbox", item)

    @staticmethod
    def list_stats(
        *,
        owner_id: str | None = None,
        provider: str | None = None,
        metadata: Mapping[str, str] | None = None,
        client: Client | None = None,
    ) -> list_[wire.SandboxStats]:
        """Returns what the running sandboxes use that match."""
        filters: dict[str, object] = {"owner_id": owner_id, "provider": provider}
        filters.update({f"metadata.{key}": value for key, value in (metadata or {}).items()})
        answer = default_client(client).connection.json("GET", "/sandboxes/stats" + query(filters))
        return cast("list_[wire.SandboxStats]", answer)

    @staticmethod
    def get_info(id: str, *, client: Client | None = None) -> wire.Sandbox:
        """Returns the description of a sandbox."""
        return Sandbox(id, client).info()

    def info(self) -> wire.Sandbox:
        """Returns the description of the sandbox."""
        return cast("wire.Sandbox", self._connection.json("GET", self._path))

    def is_running(self) -> bool:
        """Returns whether the sandbox exists and runs; a paused one does not run."""
        try:
            return bool(field(self.info(), "state") == "running")
        except NotFoundError:
            return False

    def destroy(self) -> None:
        """Destroys the sandbox with everything in it. A sandbox that has ended is no error."""
        with contextlib.suppress(NotFoundError):
            self._connection.json("DELETE", self._path, timeout=LONG)

    kill = destroy

    def close(self) -> None:
        """Leaves the sandbox as it is, also at the end of a block. Connections belong to the client."""
        self._is_closed = True

    def extend(self, ttl: float) -> wire.Sandbox:
        """Sets the lifetime, in seconds from now; it may be shorter than before."""
        fields = {"ttl": seconds("ttl", ttl)}
        return cast("wire.Sandbox", self._connection.json("POST", self._path + "/extend", fields))

    set_timeout = extend

    def wait(
        self, state: Literal["running", "destroyed", "failed"] = "running", *, timeout: float = 30.0
    ) -> wire.Sandbox:
        """Waits until the sandbox is in a state; raises `ApiTimeoutError` if it is not in time."""
        pairs = query({"state": state, "timeout": seconds("timeout", timeout)})
        longest = timeout + self._connection.config.timeout
        answer = self._connection.json("GET", f"{self._path}/wait{pairs}", timeout=longest)
        return cast("wire.Sandbox", answer)

    def pause(
        self, *, force: bool = False, reclaim: bool = False, to_disk: bool = False
    ) -> wire.Sandbox:
        """Pauses the sandbox: its processes stop until a call needs it."""
        fields = {"force": force, "reclaim": reclaim, "to_disk": to_disk}
        answer = self._connection.json("POST", self._path + "/pause", fields, timeout=LONG)
        return cast("wire.Sandbox", answer)

    def resume(self) -> wire.Sandbox:
        """Resumes the sandbox."""
        return cast("wire.Sandbox", self._connection.json("POST", self._path + "/resume"))

    def snapshot(self, name: str | None = None, *, memory: bool | None = None) -> wire.SnapshotSummary:
        """Takes a snapshot, from which `create(snapshot=...)` makes sandboxes."""
        fields = body(name=name, memory=memory)
        answer = self._connection.json("POST", self._path + "/snapshots", fields, timeout=2 * LONG)
        return cast("wire.SnapshotSummary", answer)

    def fork(
        self, count: int = 1, *, ttl: float | None = None, metadata: Mapping[str, str] | None = None
    ) -> list_[Sandbox]:
        """Makes copies of the sandbox."""
        fields = body(count=count, ttl=seconds("ttl", ttl), metadata=dict(metadata) if metadata else None)
        made = self._connection.json("POST", self._path + "/fork", fields, timeout=2 * LONG)
        return [Sandbox(field(copy, "id"), self.client, env=self._env) for copy in made]

    def stats(self) -> wire.SandboxStats:
        """Returns the resources that the sandbox uses."""
        return cast("wire.SandboxStats", self._connection.json("GET", self._path + "/stats"))

    def logs(self, lines: int = 100) -> list_[str]:
        """Returns the newest lines of the console: of what outlives its command, and of the entry point."""
        answer = self._connection.json("GET", f"{self._path}/logs{query({'lines': lines})}")
        return cast("list_[str]", answer)

    @overload
    def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        env_secret: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: str | bytes | None = None,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        check: bool = False,
        encoding: str = "utf-8",
        max_output_bytes: int = OUTPUT_MAX,
        request_timeout: float | None = None,
    ) -> Result[str]: ...

    @overload
    def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        env_secret: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: str | bytes | None = None,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        check: bool = False,
        encoding: None,
        max_output_bytes: int = OUTPUT_MAX,
        request_timeout: float | None = None,
    ) -> Result[bytes]: ...

    def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        env_secret: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: str | bytes | None = None,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        check: bool = False,
        encoding: str | None = "utf-8",
        max_output_bytes: int = OUTPUT_MAX,
        request_timeout: float | None = None,
    ) -> Result[Any]:
        """Runs a command (a line for the shell, or a list of arguments) and returns its outcome.

        A non-zero exit code is a result, unless `check` is true. `timeout` is the deadline of the command
        (the server's default if absent); `request_timeout` is that for the server to begin its answer.
        Callbacks get output as it comes; an exception in a callback ends the command and is passed on.
        `encoding=None` returns bytes. Output beyond `max_output_bytes` per stream is dropped, and
        `truncated` says so.
        """
        began = time.monotonic()
        stream = self.stream(
            command,
            cwd=cwd,
            env=env,
            env_secret=env_secret,
            user=user,
            timeout=timeout,
            stdin=stdin,
            encoding=None,
            request_timeout=request_timeout,
        )
        output = _Collected(encoding, max_output_bytes, {"stdout": on_stdout, "stderr": on_stderr})
        end = Exit(0)
        with stream:
            for piece in stream:
                if isinstance(piece, Exit):
                    end = piece
                else:
                    output.add(piece.stream, piece.data)
        output.finish()
        result: Result[Any] = Result(
            stdout=output.text("stdout"),
            stderr=output.text("stderr"),
            exit_code=end.exit_code,
            duration=time.monotonic() - began,
            timed_out=end.timed_out,
            oom_killed=end.oom_killed,
            pids_exhausted=end.pids_exhausted,
            truncated=output.truncated,
        )
        return result.check() if check else result

    def stream(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        env_secret: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: str | bytes | None = None,
        encoding: str | None = "utf-8",
        request_timeout: float | None = None,
    ) -> CommandStream:
        """Returns the output of a command as it comes: `Output` pieces and `Exit`.

        The command starts with the first piece that is read. Leaving the stream early kills it.
        """
        fields = command_fields(
            command,
            cwd=cwd,
            env={**self._env, **(env or {})},
            env_secret=env_secret,
            user=user,
            timeout=timeout,
            stdin=stdin,
        )
        stream = CommandStream(self._connection, self._path + "/exec", fields, encoding)
        if request_timeout is not None and request_timeout <= 0:
            raise InvalidArgument("`request_timeout` must be positive")
        stream.request_timeout = request_timeout
        return stream

    def run_code(
        self,
        code: str,
        language: str = "python",
        *,
        context: str | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        on_result: Callback | None = None,
        on_error: Callback | None = None,
        check: bool = False,
        request_timeout: float | None = None,
    ) -> Execution:
        """Runs code whose state stays for the next run, as in a notebook.

        It runs in the default context of the language, or in `context`. An error of the code is a part of
        the outcome, unless `check` is true.
        """
        return self.contexts.run_code(
            context,
            code,
            language=language if context is None else None,
            timeout=timeout,
            env=env,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
            on_error=on_error,
            check=check,
            request_timeout=request_timeout,
        )

    def shell(
        self,
        command: str | Sequence[str] = "command -v bash >/dev/null && exec bash -i; exec sh -i",
        *,
        name: str | None = None,
        cols: int = 80,
        rows: int = 24,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Process:
        """Opens a shell in a terminal: write to the process, and read its output."""
        return self.processes.start(
            command, name=name, terminal=True, cols=cols, rows=rows, cwd=cwd, env=env, user=user
        )

    def preview(self, port: int, *, ttl: float | None = None, public: bool = False) -> wire.Preview:
        """Returns a URL that opens a port in a browser."""
        fields = body(port=port, ttl=seconds("ttl", ttl), public=public)
        return cast("wire.Preview", self._connection.json("POST", self._path + "/preview", fields))

    def forward(self, port: int, local_port: int = 0, *, address: str = "127.0.0.1") -> Forward:
        """Forwards a local TCP port (0: a free one) to a port of the sandbox, while it is entered."""
        return Forward(self._connection, f"{self._path}/ports/{port}/connect", address, local_port)


class _Collected:
    """Output of a command in memory, up to a limit."""

    def __init__(self, encoding: str | None, limit: int, callbacks: Mapping[str, Callback | None]) -> None:
        from .._decode import TextDecoder

        self._encoding = encoding
        self._limit = limit
        self._callbacks = callbacks
        self._decoders = {name: TextDecoder(encoding) for name in ("stdout", "stderr")}
        self._kept = {name: bytearray() for name in ("stdout", "stderr")}
        self.truncated = False

    def add(self, stream: str, data: bytes) -> None:
        """Adds a piece, and calls back."""
        kept = self._kept[stream]
        room = self._limit - len(kept)
        if len(data) > room:
            self.truncated = True
            kept += data[: max(room, 0)]
        else:
            kept += data
        self._notify(stream, data, False)

    def finish(self) -> None:
        """Passes on what is left of an incomplete character."""
        for stream in ("stdout", "stderr"):
            self._notify(stream, b"", True)

    def _notify(self, stream: str, data: bytes, final: bool) -> None:
        callback = self._callbacks[stream]
        if callback is not None:
            piece = self._decoders[stream].decode(data, final)
            if piece:
                _io.notify(callback, piece)

    def text(self, stream: str) -> Any:
        """Returns a whole stream."""
        kept = bytes(self._kept[stream])
        return kept if self._encoding is None else kept.decode(self._encoding, "replace")


def spawn_sandbox(
    client: Client,
    path: str,
    fields: Mapping[str, Any],
    key: str | None,
    timeout: float | None,
    env: Mapping[str, str] | None,
    cls: type[Sandbox] = Sandbox,
) -> Sandbox:
    """Makes a sandbox under an idempotency key."""
    made = client.connection.json(
        "POST",
        path,
        fields,
        headers={"idempotency-key": key or str(uuid.uuid4())},
        timeout=timeout or LONG,
        repeat=True,
    )
    return cls(field(made, "id"), client, env=env)
