"""Encoding of arguments: paths, durations and request bodies."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ._errors import InvalidArgument

# Only RFC 3986's unreserved characters stay as they are, so that none has a meaning in the URL.
_SAFE = "-._~"


def encode(value: str) -> str:
    """Percent-encodes a value."""
    try:
        return quote(value, safe=_SAFE)
    except UnicodeEncodeError:
        raise InvalidArgument(f"{value!r} is not valid Unicode") from None


def segment(name: str, value: str) -> str:
    """Encodes an id or a name as one segment of a path."""
    if value in ("", ".", ".."):
        raise InvalidArgument(f"{name} cannot be {value!r}: it names nothing")
    return encode(value)


def query(pairs: Mapping[str, object]) -> str:
    """Returns a query string with its question mark, or nothing. `None` leaves a pair out."""
    parts = [f"{encode(name)}={encode(text(value))}" for name, value in pairs.items() if value is not None]
    return "?" + "&".join(parts) if parts else ""


def text(value: object) -> str:
    """Returns a value as it is written in a query."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def file_path(path: str) -> str:
    """Checks an absolute path of a sandbox, and writes the bytes that `os.fsdecode` kept as the API does."""
    if not isinstance(path, str) or not path.startswith("/"):
        raise InvalidArgument(
            f"the path {path!r} is not absolute; start it with a slash, such as /workspace/a"
        )
    if "\0" in path:
        raise InvalidArgument("a path cannot contain a zero byte")
    try:
        path.encode()
    except UnicodeEncodeError:
        return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return path


def file_segments(path: str) -> str:
    """Encodes an absolute path of a file for a URL, without its first slash."""
    path = file_path(path)
    parts = [part for part in path.split("/") if part]
    if path.endswith("/") or not parts:
        raise InvalidArgument(f"the path {path!r} names a directory; end it with the name of a file")
    if any(part in (".", "..") for part in parts):
        raise InvalidArgument(
            f"the path {path!r} contains `.` or `..`, which URLs cannot carry; resolve it first"
        )
    return "/".join(encode(part) for part in parts)


def seconds(name: str, value: float | str | None) -> str | None:
    """Returns a number of seconds as the API writes durations. Text is passed as it is."""
    if value is None or isinstance(value, str):
        return value
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not math.isfinite(value)
        or value < 0
    ):
        raise InvalidArgument(f"`{name}` must be a number of seconds that is not negative, not {value!r}")
    if float(value).is_integer():
        return f"{int(value)}s"
    return f"{value:.6f}".rstrip("0").rstrip(".") + "s"


_UNITS = {"ns": 1e-9, "µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_seconds(value: object) -> float:
    """Returns a duration of the API, such as `1h30m`, in seconds; 0 if it cannot be read."""
    if isinstance(value, (int, float)):
        return float(value)
    found = re.findall(r"([0-9]*\.?[0-9]+)(ns|µs|us|ms|s|m|h)", value) if isinstance(value, str) else []
    return float(sum(float(number) * _UNITS[unit] for number, unit in found))


# Fields of the API that are durations: text such as `1h30m` there, numbers of seconds here.
DURATIONS = frozenset(
    "auto_pause bucket_ttl cleanup_interval default_exec_timeout duration linger max_exec_timeout max_ttl "
    "spawn_queue_timeout spawn_queue_wait_avg spawn_queue_wait_max spawn_queue_wait_total timeout ttl "
    "uptime".split()
)
# Fields of the API whose names are chosen by users or by the server, and whose values stay as they are.
_MAPS = frozenset(
    "by_holder by_provider by_state by_worker data env env_secret labels metadata remediation".split()
)


def with_seconds(value: Any) -> Any:
    """Returns an answer with its durations as numbers of seconds."""
    if isinstance(value, list):
        return [with_seconds(item) for item in value]
    if isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, str):
                if name in DURATIONS:
                    value[name] = parse_seconds(item)
            elif isinstance(item, (list, dict)) and name not in _MAPS:
                value[name] = with_seconds(item)
    return value


def mode(value: int | str | None) -> str | None:
    """Returns permission bits in octal. A number is taken as it is, such as `0o644`."""
    return f"{value:o}" if isinstance(value, int) else value


def payload(value: str | bytes | bytearray | memoryview) -> dict[str, str]:
    """Returns `data` and `encoding` of bytes or text."""
    if isinstance(value, str):
        try:
            value.encode()
            return {"data": value, "encoding": "utf8"}
        except UnicodeEncodeError:
            value = value.encode("utf-8", "surrogateescape")
    return {"data": base64.b64encode(value).decode(), "encoding": "base64"}


def body(**fields: Any) -> dict[str, Any]:
    """Returns the fields that are set."""
    return {name: value for name, value in fields.items() if value is not None}


def command_fields(
    command: str | Sequence[str],
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    env_secret: Mapping[str, str] | None = None,
    user: str | None = None,
    timeout: float | str | None = None,
    stdin: str | bytes | None = None,
) -> dict[str, Any]:
    """Returns the fields that commands and processes share."""
    fields = body(
        workdir=cwd,
        env=dict(env) if env else None,
        env_secret=dict(env_secret) if env_secret else None,
        user=user,
        timeout=seconds("timeout", timeout),
    )
    if isinstance(command, str):
        fields["command"] = command
    else:
        argv = list(command)
        if not argv:
            raise InvalidArgument("an argument vector needs at least the program")
        fields.update(command=argv[0], args=argv[1:], mode="argv")
    if stdin is not None:
        encoded = payload(stdin)
        fields.update(stdin=encoded["data"], stdin_encoding=encoded["encoding"])
    return fields


def prepared(
    commands: Sequence[str | Mapping[str, Any]] | None, env: Mapping[str, str] | None = None
) -> list[dict[str, Any]] | None:
    """Returns commands of `prepare`: lines, or mappings with `command`, `cwd`, `timeout` and so on."""
    if commands is None:
        return None
    encoded = []
    for entry in commands:
        fields: dict[str, Any] = {"command": entry} if isinstance(entry, str) else dict(entry)
        if not isinstance(fields.get("command", ""), str):
            fields.update(command_fields(fields["command"]))
        if "cwd" in fields:
            fields["workdir"] = fields.pop("cwd")
        if "timeout" in fields:
            fields["timeout"] = seconds("timeout", fields["timeout"])
        if env:
            fields["env"] = {**env, **fields.get("env", {})}
        encoded.append(fields)
    return encoded


def spawn(
    *,
    ttl: float | str | None = None,
    auto_pause: float | str | None = None,
    prepare: Sequence[str | Mapping[str, Any]] | None = None,
    env: Mapping[str, str] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Returns the body of a spawn or a template."""
    for name in ("metadata", "egress"):
        if fields.get(name) is not None:
            fields[name] = dict(fields[name])
    return body(
        **fields,
        ttl=seconds("ttl", ttl),
        auto_pause=seconds("auto_pause", auto_pause),
        prepare=prepared(prepare, env),
    )
