"""Background processes and terminals."""

from __future__ import annotations

from builtins import list as list_
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from .._decode import field
from .._encode import command_fields, payload, seconds, segment
from .._errors import StreamInterrupted
from .._models import Exit
from .connection import AsyncConnection
from .streams import AsyncProcessOutput

if TYPE_CHECKING:
    from .. import _wire as wire

# Bytes of input in one request.
_INPUT_MAX = 512 * 1024


class AsyncProcesses:
    """Background processes of a sandbox. They outlive their caller, but not the sandbox."""

    def __init__(self, connection: AsyncConnection, sandbox: str, env: Mapping[str, str]) -> None:
        self._connection = connection
        self._sandbox = sandbox
        self._env = env

    async def start(
        self,
        command: str | Sequence[str],
        *,
        name: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        env_secret: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        stdin: bool | str | bytes = False,
        terminal: bool = False,
        cols: int | None = None,
        rows: int | None = None,
        linger: float | None = None,
        paced: bool = False,
        note: str | None = None,
    ) -> AsyncProcess:
        """Starts a command in the background and returns at once.

        `stdin=True` keeps its input open for `write`; text or bytes are written to it first.
        """
        fields = command_fields(
            command,
            cwd=cwd,
            env={**self._env, **(env or {})},
            env_secret=env_secret,
            user=user,
            timeout=timeout,
            stdin=None if isinstance(stdin, bool) else stdin,
        )
        fields["background"] = True
        for key, value in (
            ("name", name),
            ("stdin_open", stdin is True or None),
            ("tty", terminal or None),
            ("cols", cols),
            ("rows", rows),
            ("linger", seconds("linger", linger)),
            ("paced", paced or None),
            ("note", note),
        ):
            if value is not None:
                fields[key] = value
        made = await self._connection.json("POST", self._sandbox + "/exec", fields)
        return AsyncProcess(self._connection, self._sandbox, str(field(made, "process_id")), made.get("name"))

    async def list(self) -> list_[wire.Process]:
        """Returns the processes that run, and those that ended most recently."""
        return cast("list[wire.Process]", await self._connection.json("GET", self._sandbox + "/processes"))

    async def get(self, process: str | int) -> wire.Process:
        """Returns the description of a process, by its number or name."""
        path = f"{self._sandbox}/processes/{segment('the process', str(process))}"
        return cast("wire.Process", await self._connection.json("GET", path))

    async def connect(self, process: str | int) -> AsyncProcess:
        """Returns a process that exists, by its number or name."""
        info = await self.get(process)
        return AsyncProcess(self._connection, self._sandbox, str(field(info, "process_id")), info.get("name"))

    def handle(self, process: str | int) -> AsyncProcess:
        """Returns a handle of a process, without a request."""
        return AsyncProcess(self._connection, self._sandbox, str(process), None)


class AsyncProcess:
    """Background process."""

    def __init__(self, connection: AsyncConnection, sandbox: str, id: str, name: str | None) -> None:
        self.id = id
        self.name = name
        self._connection = connection
        self._path = f"{sandbox}/processes/{segment('the process', id)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, name={self.name!r})"

    async def info(self) -> wire.Process:
        """Returns the description of the process: its state, exit code and `pid`."""
        return cast("wire.Process", await self._connection.json("GET", self._path))

    async def pid(self) -> int | None:
        """Returns the process id in the sandbox, or `None` if it is not known."""
        return (await self.info()).get("pid")

    def output(
        self, position: int = 0, *, follow: bool = True, encoding: str | None = "utf-8"
    ) -> AsyncProcessOutput:
        """Returns the output from a position on, which resumes by itself after a cut.

        With `follow=False` it ends at the newest byte. Leaving it leaves the process running.
        """
        return AsyncProcessOutput(self._connection, self._path, position, follow, encoding)

    async def write(self, data: str | bytes) -> None:
        """Writes to the stdin of the process, and returns once it has taken the data."""
        raw = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else bytes(data)
        for start in range(0, len(raw), _INPUT_MAX):
            await self._connection.json(
                "POST", self._path + "/stdin", payload(raw[start : start + _INPUT_MAX])
            )

    async def close_stdin(self) -> None:
        """Ends the stdin of the process."""
        await self._connection.json("POST", self._path + "/stdin", {"eof": True})

    async def resize(self, cols: int, rows: int) -> None:
        """Sets the size of the terminal."""
        await self._connection.json("POST", self._path + "/resize", {"cols": cols, "rows": rows})

    async def signal(self, signal: str = "SIGTERM") -> None:
        """Sends a signal to the process group, or to the foreground of the terminal."""
        await self._connection.json("POST", self._path + "/signal", {"signal": signal})

    async def kill(self) -> None:
        """Kills the process with all its descendants, and removes it."""
        await self._connection.json("DELETE", self._path)

    async def wait(self) -> Exit:
        """Waits until the process ends."""
        info: Any = await self.info()
        if field(info, "state") == "exited":
            return Exit.parse(
                {"exit_code": -1, **{key: value for key, value in info.items() if value is not None}}
            )
        async with self.output(int(field(info, "last_seq")), encoding=None) as output:
            async for piece in output:
                if isinstance(piece, Exit):
                    return piece
        raise StreamInterrupted("the output of the process ended before the process did")
