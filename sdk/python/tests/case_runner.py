"""Runner of the cases in sdk/cases.json."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import inspect
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

from canned import CannedServer
from matching import differences

import tidebox

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[2] / "cases.json").read_text())["cases"]
STREAMS = ("stream", "process.output", "files.watch", "client.events")
CLASSES = {name: name.capitalize() for name in ("sandbox", "template", "image", "snapshot", "secret", "key")}
RENAMED = {"image.import": "import_"}
UNTIL = 20.0


class CallbackError(Exception):
    """Error that a callback of a case raises."""


class Runner:
    """Runner of one case. `asynchronous` chooses the SDK."""

    def __init__(self, case: dict[str, Any], folder: Path, asynchronous: bool) -> None:
        self.case = case
        self.folder = folder
        self.prefix = "Async" if asynchronous else ""
        self.saved: dict[str, Any] = {}
        self.unique = uuid.uuid4().hex[:8]
        self.client: Any = None
        self.sandbox: Any = None
        self.made: list[Any] = []

    def cls(self, name: str) -> Any:
        return getattr(tidebox, self.prefix + name)

    async def run(self) -> None:
        canned = self.case.get("canned")
        options = dict(self.case.get("client", {}))
        if canned is None:
            await self._steps(options)
            return
        with CannedServer(canned) as server:
            await self._steps({"url": server.url, **options})
            assert not server.faults, server.faults
            if "requests" in self.case:
                assert len(server.requests) == self.case["requests"], server.requests

    async def _steps(self, options: dict[str, Any]) -> None:
        self.client = self.cls("Client")(**options)
        try:
            if "canned" in self.case:
                self.sandbox = self.client.sandbox("sb-canned")
            elif self.case.get("sandbox", True):
                fields = {"ttl": 120, **self.case.get("create", {})}
                self.sandbox = await settle(self.cls("Sandbox").create(client=self.client, **fields))
                self.made.append(self.sandbox)
            for step in self.case["steps"]:
                await self.step(step)
        finally:
            if "canned" not in self.case:
                for sandbox in self.made:
                    await settle(sandbox.destroy())
            await settle(self.client.close())

    async def step(self, step: dict[str, Any]) -> None:
        end = time.monotonic() + UNTIL
        while True:
            faults = await self._try(step)
            if not faults:
                return
            if not step.get("until") or time.monotonic() > end:
                raise AssertionError(f"{step['call']}: {'; '.join(faults)}")
            await asyncio.sleep(0.05)

    async def _try(self, step: dict[str, Any]) -> list[str]:
        called: dict[str, list[Any]] = {name: [] for name in step.get("callbacks", ())}
        raises = step.get("raises")
        try:
            value = await self._call(step, called)
        except CallbackError:
            return [] if raises == "callback" else ["the callback's error came out"]
        except tidebox.TideboxError as error:
            if raises is None:
                raise
            expected = {"code": raises} if isinstance(raises, str) else raises
            names = [cls.__name__ for cls in type(error).__mro__]
            seen = {
                name: getattr(error, name)
                for name in ("code", "status", "message", "retryable", "retry_after", "request_id")
            }
            wanted = dict(expected)
            fault = []
            if "class" in wanted and wanted.pop("class") != names[0]:
                fault = [f"the class is {names[0]}"]
            return fault + differences(seen, wanted)
        if raises is not None:
            return [f"it did not raise {raises!r}, but returned {value!r}"]
        if "save" in step:
            self.saved[step["save"]] = value
        faults = []
        for name, expected in step.get("called", {}).items():
            got = [plain(item) for item in called[name]]
            seen_: Any = "".join(got) if isinstance(expected, str) else got
            faults += differences(seen_, self._resolve(expected), name)
        if "returns" in step:
            faults += differences(plain(value), self._resolve(step["returns"]))
        return faults

    async def _call(self, step: dict[str, Any], called: dict[str, list[Any]]) -> Any:
        name = step["call"]
        args = self._resolve(step.get("args", {}))
        if name.startswith("local."):
            return self._local(name, args)
        for callback, got in called.items():
            args[callback] = got.append
        if "callback_raises" in step:

            def fail(_: Any) -> None:
                raise CallbackError

            args[step["callback_raises"]] = fail
        if name.startswith(("files.upload", "files.download", "files.sync")):
            args["local"] = self.folder / args["local"]
        if name == "forward":
            return await self._forward(args)
        call = self._method(name, step)
        result = call(**renamed(call, args))
        if name in STREAMS:
            return await self._stream(result, step)
        if hasattr(result, "__aiter__") or inspect.isgenerator(result):
            return [item async for item in items(result)]
        value = await settle(result)
        if type(value).__name__.endswith("FileStream"):
            return b"".join([item async for item in items(value)])
        found = value if isinstance(value, list) else [value]
        self.made += [item for item in found if type(item).__name__.endswith("Sandbox")]
        return value

    def _method(self, name: str, step: dict[str, Any]) -> Any:
        first, _, rest = name.partition(".")
        on = self._on(step.get("on"))
        if first == "process":
            return getattr(on, rest)
        if first in CLASSES and rest:
            attribute = getattr(self.cls(CLASSES[first]), RENAMED.get(name, rest))
            return lambda **args: attribute(client=self.client, **args)
        if first in ("client", "admin"):
            target = self.client if first == "client" else self.client.admin
            return getattr(target, rest)
        target = on or self.sandbox
        for part in name.split("."):
            target = getattr(target, part)
        return target

    def _on(self, on: Any) -> Any:
        if isinstance(on, dict):
            return self.sandbox.processes.handle(on["process"])
        return self._look(on) if on else None

    async def _stream(self, stream: Any, step: dict[str, Any]) -> Any:
        got: list[Any] = []
        await settle(stream.__aenter__() if self.prefix else stream.__enter__())
        try:
            for inner in step.get("during", ()):
                await self.step(inner)
            if step.get("take") != 0:
                async for item in items(stream):
                    got.append(item)
                    if len(got) == step.get("take"):
                        break
        finally:
            await settle(stream.close())
        if step["call"] not in ("stream", "process.output"):
            return got
        joined: dict[str, Any] = {"stdout": "", "stderr": "", "gap": 0, "exit_code": None}
        for item in got:
            if item.stream in ("stdout", "stderr"):
                joined[item.stream] += item.data
            elif item.stream == "gap":
                joined["gap"] += item.missing
            else:
                joined |= dataclasses.asdict(item)
        return joined

    async def _forward(self, args: dict[str, Any]) -> Any:
        send = args.pop("send")
        forward = self.sandbox.forward(**args)
        await settle(forward.__aenter__() if self.prefix else forward.__enter__())
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", forward.local_port)
            writer.write(send.encode())
            writer.write_eof()
            received = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            return {"received": received.decode()}
        finally:
            await settle(forward.close())

    def _local(self, name: str, args: dict[str, Any]) -> Any:
        path = self.folder / args.get("path", ".")
        if name == "local.write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(args["text"].encode() if "text" in args else base64.b64decode(args["base64"]))
            return None
        if name == "local.read":
            return path.read_bytes()
        assert name == "local.list", name
        return sorted(str(item.relative_to(path)) for item in path.rglob("*") if item.is_file())

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {"$"}:
                return self._look(value["$"])
            if set(value) == {"unique"}:
                return f"{value['unique']}-{self.unique}"
            return {name: self._resolve(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self._resolve(item) for item in value]
        return value

    def _look(self, reference: str) -> Any:
        name, *rest = reference.split(".")
        value = self.saved[name]
        for part in rest:
            if part.isdigit():
                value = value[int(part)]
            else:
                value = value[part] if isinstance(value, dict) else getattr(value, part)
        return value


def renamed(call: Any, args: dict[str, Any]) -> dict[str, Any]:
    """Fits the arguments to a call: bytes, and names that shadow others."""
    args = {
        name: base64.b64decode(value["base64"])
        if isinstance(value, dict) and set(value) == {"base64"}
        else value
        for name, value in args.items()
    }
    return args


async def settle(value: Any) -> Any:
    """Returns a value, awaited if it has to be."""
    return await value if inspect.isawaitable(value) else value


async def items(stream: Any) -> Any:
    """Yields the items of a stream of either SDK."""
    if hasattr(stream, "__aiter__"):
        async for item in stream:
            yield item
    else:
        for item in stream:
            yield item


def plain(value: Any) -> Any:
    """Returns a value as JSON has it, and bytes as they are."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        for name in ("text", "html", "png", "svg", "json", "markdown", "latex", "chart"):
            if isinstance(getattr(type(value), name, None), property):
                fields[name] = getattr(value, name)
        return fields
    if type(value).__name__.removeprefix("Async") in ("Sandbox", "Process"):
        return {"id": value.id, "name": getattr(value, "name", None)}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


def lacking() -> set[str]:
    """Returns what the server under test lacks."""
    return set(filter(None, os.environ.get("TIDEBOX_CASES_LACK", "").split(",")))
