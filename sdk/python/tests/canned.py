"""Server that gives canned answers, for what a healthy server does not do."""

from __future__ import annotations

import base64
import json
import socket
import threading
from typing import Any

from matching import differences


class CannedServer:
    """Server that gives its answers in turn, the last one again and again."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self.answers = answers
        self.requests: list[dict[str, Any]] = []
        self.faults: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.connections = 0
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> CannedServer:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.close()
        for connection in self._open:
            connection.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as file:
                while self._answer(connection, file):
                    pass
        except (OSError, ValueError):
            pass

    def _answer(self, connection: socket.socket, file: Any) -> bool:
        """Answers one request. Returns whether another can follow."""
        head = file.readline().decode()
        if not head:
            return False
        method, path, _ = head.split(" ", 2)
        headers: dict[str, str] = {}
        while (line := file.readline().decode("latin-1").strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = file.read(int(headers.get("content-length", 0)))
        with self._lock:
            answer = self.answers[min(len(self.requests), len(self.answers) - 1)]
            seen = {"method": method, "path": path, "headers": headers, "body": _json(body)}
            self.requests.append(seen)
        if "expect" in answer:
            self.faults += differences(seen, answer["expect"])
        if answer.get("close"):
            return False
        if answer.get("no_head"):
            file.read(1)
            return False
        content = self._content(answer)
        sent = {"content-type": "application/json", **answer.get("headers", {})}
        is_open = answer.get("cut") or answer.get("silent") or answer.get("end")
        sent["transfer-encoding" if is_open else "content-length"] = (
            "chunked" if is_open else str(len(content))
        )
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        connection.sendall(f"HTTP/1.1 {answer.get('status', 200)} Canned\r\n{lines}\r\n".encode())
        if is_open:
            connection.sendall(b"%x\r\n%b\r\n" % (len(content), content) if content else b"")
            if answer.get("end"):
                connection.sendall(b"0\r\n\r\n")
                return True
            if answer.get("silent"):
                file.read(1)
            return False
        connection.sendall(content)
        return True

    @staticmethod
    def _content(answer: dict[str, Any]) -> bytes:
        if "base64" in answer:
            return base64.b64decode(answer["base64"])
        body = answer.get("body", "")
        return body.encode() if isinstance(body, str) else json.dumps(body).encode()


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")
