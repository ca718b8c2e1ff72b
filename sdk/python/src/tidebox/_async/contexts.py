"""Contexts: interpreters whose state stays between runs."""

from __future__ import annotations

from builtins import list as list_
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from .._decode import LINES, LineSplitter, parse_object
from .._encode import body, seconds, segment
from .._errors import StreamInterrupted
from .._models import Execution
from . import _io
from .connection import AsyncConnection

if TYPE_CHECKING:
    from .. import _wire as wire

Callback = Callable[[Any], Awaitable[None] | None]
OUTPUT_MAX = 64 * 1024 * 1024


class AsyncContexts:
    """Contexts of a sandbox. `context` is an id, or a record that has one."""

    def __init__(self, connection: AsyncConnection, sandbox: str, env: Mapping[str, str]) -> None:
        self._connection = connection
        self._sandbox = sandbox
        self._env = env

    async def create(
        self,
        language: str = "python",
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> wire.Context:
        """Makes a context with its own state."""
        fields = body(language=language, workdir=cwd, user=user, env={**self._env, **(env or {})} or None)
        return cast("wire.Context", await self._connection.json("POST", self._sandbox + "/contexts", fields))

    async def list(self) -> list_[wire.Context]:
        """Returns the contexts."""
        return cast("list[wire.Context]", await self._connection.json("GET", self._sandbox + "/contexts"))

    async def get(self, context: str | wire.Context) -> wire.Context:
        """Returns one context."""
        return cast("wire.Context", await self._connection.json("GET", self._path(context)))

    async def delete(self, context: str | wire.Context) -> None:
        """Ends a context with all that it started."""
        await self._connection.json("DELETE", self._path(context))

    async def interrupt(self, context: str | wire.Context) -> None:
        """Interrupts the code of a context, as Ctrl-C does. Its state stays."""
        await self._connection.json("POST", self._path(context) + "/interrupt")

    async def restart(self, context: str | wire.Context) -> wire.Context:
        """Replaces the interpreter of a context. Its state is lost."""
        return cast("wire.Context", await self._connection.json("POST", self._path(context) + "/restart"))

    async def complete(
        self, context: str | wire.Context, code: str, cursor: int | None = None
    ) -> wire.Completions:
        """Completes code by the state of a context."""
        fields = body(code=code, cursor=cursor)
        answer = await self._connection.json("POST", self._path(context) + "/complete", fields)
        return cast("wire.Completions", answer)

    async def run(
        self,
        context: str | wire.Context,
        code: str,
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        on_result: Callback | None = None,
        on_error: Callback | None = None,
        check: bool = False,
        request_timeout: float | None = None,
    ) -> Execution:
        """Runs code in a context."""
        return await self.run_code(
            context,
            code,
            timeout=timeout,
            env=env,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
            on_error=on_error,
            check=check,
            request_timeout=request_timeout,
        )

    async def run_code(
        self,
        context: str | wire.Context | None,
        code: str,
        *,
        language: str | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        on_stdout: Callback | None = None,
        on_stderr: Callback | None = None,
        on_result: Callback | None = None,
        on_error: Callback | None = None,
        check: bool = False,
        request_timeout: float | None = None,
    ) -> Execution:
        """Runs code in a context, or in the default one of a language. See `Sandbox.run_code`."""
        path = self._sandbox if context is None else self._path(context)
        variables = {**self._env, **(env or {})} if context is None else dict(env or {})
        fields = body(
            code=code, language=language, timeout=seconds("timeout", timeout), env=variables or None
        )
        callbacks = {"stdout": on_stdout, "stderr": on_stderr, "result": on_result, "error": on_error}
        execution = Execution()
        texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        sizes = {"stdout": 0, "stderr": 0}
        stream = await self._connection.open(
            "POST", path + "/run", fields, media=(LINES,), timeout=request_timeout
        )
        try:
            lines = LineSplitter()
            async for data in stream.pieces():
                for found in lines.feed(data):
                    line = parse_object(found)
                    kind = str(line.get("type"))
                    value = execution.add(line)
                    if kind in texts and value:
                        sizes[kind] += len(value)
                        if sizes[kind] <= OUTPUT_MAX:
                            texts[kind].append(value)
                        else:
                            execution.truncated = True
                    callback = callbacks.get(kind)
                    if callback is not None and value:
                        await _io.notify(callback, value)
        except StreamInterrupted:
            if not execution.outcome:
                raise
        finally:
            await stream.close()
        if not execution.outcome:
            raise StreamInterrupted(
                "the stream of the code ended before the code did; its outcome is unknown"
            )
        execution.stdout, execution.stderr = "".join(texts["stdout"]), "".join(texts["stderr"])
        return execution.check() if check else execution

    def _path(self, context: str | wire.Context) -> str:
        id = context if isinstance(context, str) else context["id"]
        return f"{self._sandbox}/contexts/{segment('the context', id)}"
