"""A client for one sandbox of a Tidebox server. It needs the standard library alone."""

from __future__ import annotations

import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

MAX_FILE = 1 << 20


class TideboxError(Exception):
    """A failed request."""


class Unreachable(TideboxError):
    """The server did not answer."""


class SandboxGone(TideboxError):
    """The sandbox reached its end, or somebody deleted it. Its files are lost."""


class ApiError(TideboxError):
    """The server refused the request. The message says what to change."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{message} ({status} {code})")
        self.status = status


@dataclass(frozen=True)
class CommandResult:
    """The outcome of a command. A failed command is a result, not an error of the API."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool


class Server:
    """Sends requests to a server."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self.url = url.rstrip("/")
        self._headers = {"X-API-Key": api_key} if api_key else {}

    @classmethod
    def from_environment(cls) -> Server:
        url = os.environ.get("TIDEBOX_URL", "http://127.0.0.1:7423")
        return cls(url, os.environ.get("TIDEBOX_API_KEY"))

    def request(
        self, method: str, path: str, body: Any = None, *, headers: dict[str, str] | None = None, timeout: float = 60
    ) -> bytes:
        headers = {**self._headers, **(headers or {})}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                content: bytes = response.read()
                return content
        except urllib.error.HTTPError as error:
            raise api_error(error) from None
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"no answer from {self.url}: {error}") from error


class Sandbox:
    """A sandbox that lives as long as a `with` statement:

    with Sandbox(server, ttl="10m") as sandbox:
        print(sandbox.run("uname -a").stdout)
    """

    def __init__(self, server: Server, **options: Any) -> None:
        self._server = server
        self._options = options
        self._path = ""

    def __enter__(self) -> Sandbox:
        sandbox = json.loads(self._server.request("POST", "/sandboxes", self._options))
        self._path = f"/sandboxes/{sandbox['id']}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._server.request("DELETE", self._path)
        except TideboxError as failure:
            if isinstance(failure, ApiError) and failure.status == 404:
                return
            # Only a warning: raised, it would hide the error that ended the run.
            print(f"warning: the sandbox stays until the end of its ttl: {failure}", file=sys.stderr)

    def run(self, command: str, timeout: int = 30) -> CommandResult:
        """Runs a shell command. The server ends it after `timeout` seconds, and returns the output so far."""
        body = {"command": command, "timeout": f"{timeout}s"}
        # The client waits longer than the server, so that it gets the output of a command that is too slow.
        result = json.loads(self._request("POST", "/exec", body, timeout=timeout + 15))
        return CommandResult(result["exit_code"], result["stdout"], result["stderr"], result.get("timed_out", False))

    def write_file(self, path: str, content: str) -> None:
        """Writes a file, and creates the folders above it."""
        self._request("POST", "/files", {"path": path, "content": content})

    def read_file(self, path: str) -> str:
        """Reads the first MiB of a file, because a file can be larger than the memory of this program."""
        query = urlencode({"path": path})
        try:
            content = self._request("GET", f"/files?{query}", headers={"Range": f"bytes=0-{MAX_FILE - 1}"})
        except ApiError as error:
            if error.status == 416:  # an empty file has no such range
                return ""
            raise
        return content.decode(errors="replace")

    def _request(self, method: str, path: str, body: Any = None, **options: Any) -> bytes:
        try:
            return self._server.request(method, self._path + path, body, **options)
        except ApiError as error:
            # For example, a 404 can mean that the file is missing, or the sandbox.
            if not self._is_alive():
                raise SandboxGone("the sandbox is gone") from error
            raise

    def _is_alive(self) -> bool:
        try:
            sandbox = json.loads(self._server.request("GET", self._path))
        except ApiError as error:
            return error.status != 404
        return sandbox["state"] in ("running", "paused")


def api_error(error: urllib.error.HTTPError) -> ApiError:
    """Reads the body of an error. A proxy may have answered instead of the server, without JSON."""
    try:
        body = json.loads(error.read())
        return ApiError(error.code, body["code"], body["message"])
    except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
        return ApiError(error.code, "unknown", str(error.reason))
