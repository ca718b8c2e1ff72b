"""Servers that misbehave, and programs that do."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from canned import CannedServer

from tidebox import (
    ApiError,
    AsyncClient,
    Client,
    ConnectionFailed,
    InvalidArgument,
    ProtocolError,
    RequestTimeout,
    ResourceLimitError,
    Sandbox,
    StreamInterrupted,
)


def read_request(connection: socket.socket) -> None:
    """Reads a request to its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.I)
    left = int(length[1]) - len(body) if length else 0
    while left > 0:
        left -= len(connection.recv(left))


def is_closed(connection: socket.socket) -> bool:
    """Waits for the end of a connection."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


RUNNING = {"body": {"id": "sb-canned", "state": "running"}}
FRAMES = {"content-type": "application/octet-stream"}


class RawServer:
    """Server that hands each connection to a function."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._serve = serve
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._guard, args=(connection,), daemon=True).start()

    def _guard(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self._serve(connection)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def raw() -> Iterator[Callable[[Callable[[socket.socket], None]], RawServer]]:
    servers: list[RawServer] = []

    def make(serve: Callable[[socket.socket], None]) -> RawServer:
        servers.append(RawServer(serve))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def test_an_answer_that_trickles_ends_at_its_deadline(raw: Callable[..., RawServer]) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n"
        )
        while True:
            connection.sendall(b" ")
            time.sleep(0.02)

    client = Client(raw(serve).url, timeout=0.5)
    began = time.monotonic()
    with pytest.raises(RequestTimeout):
        client.health()
    assert time.monotonic() - began < 2


def test_a_server_that_accepts_and_says_nothing_is_left_at_the_deadline(
    raw: Callable[..., RawServer],
) -> None:
    server = raw(lambda connection: time.sleep(5))
    began = time.monotonic()
    with pytest.raises(RequestTimeout) as error:
        Client(server.url, timeout=0.4).health()
    assert time.monotonic() - began < 2
    assert "request_timeout" in str(error.value)


def test_bytes_that_are_not_http_are_a_protocol_error(raw: Callable[..., RawServer]) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"220 mail.example.com ESMTP ready\r\n\r\n")

    with pytest.raises(ProtocolError, match="HTTP"):
        Client(raw(serve).url, timeout=2).health()


def test_an_answer_without_end_is_refused(
    raw: Callable[..., RawServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidebox._sync.connection._BODY_MAX", 1 << 20)

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        while True:
            connection.sendall(b" " * 65536)

    with pytest.raises(ProtocolError, match="more than"):
        Client(raw(serve).url, timeout=10).health()


def test_a_refusal_in_the_middle_of_an_upload_is_what_the_caller_gets(raw: Callable[..., RawServer]) -> None:
    body = b'{"code":"payload_too_large","message":"at most 1 GiB"}'

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(
            b"HTTP/1.1 413 Too Large\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(body), body)
        )
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20):
            pass

    sandbox = Client(raw(serve).url).sandbox("sb-1")
    with pytest.raises(ApiError) as error:
        sandbox.files.write("/workspace/a", iter([b"x" * 65536] * 100))
    assert error.value.code == "payload_too_large"


def test_an_upload_from_an_iterator_is_never_sent_twice() -> None:
    with CannedServer([{"close": True}]) as server:
        with pytest.raises(StreamInterrupted):
            Client(server.url).sandbox("sb-1").files.write("/a", iter([b"x"]))
        assert len(server.requests) == 1


def test_an_error_of_the_source_of_an_upload_comes_out() -> None:
    def source() -> Iterator[bytes]:
        yield b"x"
        raise OSError("the disk is gone")

    with CannedServer([RUNNING]) as server, pytest.raises(OSError, match="the disk is gone"):
        Client(server.url).sandbox("sb-1").files.write("/a", source())


def test_a_redirect_says_where_it_leads() -> None:
    with CannedServer([{"status": 302, "headers": {"location": "https://login.example"}}]) as server:
        with pytest.raises(ProtocolError, match=r"login\.example"):
            Client(server.url).health()
        assert len(server.requests) == 1


def test_a_retry_after_that_is_too_long_is_left_to_the_caller() -> None:
    body = {"code": "resource_limit", "message": "slow down"}
    with CannedServer([{"status": 429, "headers": {"retry-after": "3600"}, "body": body}]) as server:
        with pytest.raises(ResourceLimitError) as error:
            Client(server.url).health()
        assert error.value.retry_after == 3600
        assert error.value.retryable
        assert len(server.requests) == 1


def test_retries_stop_at_the_deadline() -> None:
    body = {"code": "resource_limit", "message": "slow down"}
    with CannedServer([{"status": 429, "headers": {"retry-after": "20"}, "body": body}]) as server:
        began = time.monotonic()
        with pytest.raises(ResourceLimitError):
            Client(server.url, timeout=1).health()
        assert time.monotonic() - began < 1


def test_a_malformed_retry_after_is_ignored() -> None:
    answer = {
        "status": 503,
        "headers": {"retry-after": "soon"},
        "body": {"code": "unavailable", "message": "m"},
    }
    with CannedServer([answer, RUNNING]) as server:
        assert Client(server.url).sandbox("sb-canned").info()["state"] == "running"


def test_a_frame_of_an_unknown_kind_is_a_protocol_error() -> None:
    with (
        CannedServer([{"headers": FRAMES, "base64": "CQAAAAJoaQ=="}]) as server,
        pytest.raises(ProtocolError),
    ):
        Client(server.url).sandbox("sb-1").run("x")


def test_a_page_in_the_place_of_a_stream_is_a_protocol_error() -> None:
    page = {"headers": {"content-type": "text/html"}, "body": "<title>Please log in</title>"}
    with CannedServer([page]) as server, pytest.raises(ProtocolError, match="Please log in"):
        Client(server.url).sandbox("sb-1").run("x")


def test_a_server_behind_a_unix_socket_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        for _ in range(2):
            connection, _ = listener.accept()
            with connection:
                read_request(connection)
                connection.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\n{"version":"9.9"}')

    threading.Thread(target=serve, daemon=True).start()
    assert Client(f"unix://{path}").version() == "9.9"
    assert asyncio.run(AsyncClient(f"unix://{path}").version()) == "9.9"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_certificate_is_trusted_only_with_its_ca_file(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    extension = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    arguments = [*command.split(), "-addext", extension, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(arguments, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def serve(connection: socket.socket) -> None:
        with contextlib.suppress(ssl.SSLError), context.wrap_socket(connection, server_side=True) as secure:
            read_request(secure)
            secure.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\n{"version":"9.9"}')

    server = RawServer(serve)
    url = server.url.replace("http:", "https:")
    assert Client(url, ca_file=certificate).version() == "9.9"
    assert asyncio.run(AsyncClient(url, ca_file=certificate).version()) == "9.9"
    with pytest.raises(ConnectionFailed, match="certificate"):
        Client(url, retries=0).version()
    with pytest.raises(InvalidArgument, match="missing"):
        Client(url, ca_file=tmp_path / "missing.pem").version()
    server.close()


def test_a_callback_that_raises_closes_the_stream(raw: Callable[..., RawServer]) -> None:
    closed = threading.Event()

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n7\r\n\x01\x00\x00\x00\x02hi\r\n"
        )
        if is_closed(connection):
            closed.set()

    def fail(_: str) -> None:
        raise KeyError("mine")

    sandbox = Client(raw(serve).url).sandbox("sb-1")
    with pytest.raises(KeyError, match="mine"):
        sandbox.run("x", on_stdout=fail)
    assert closed.wait(5)


def test_breaking_out_of_a_loop_closes_the_stream(raw: Callable[..., RawServer]) -> None:
    closed = threading.Event()

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n7\r\n\x01\x00\x00\x00\x02hi\r\n"
        )
        if is_closed(connection):
            closed.set()

    url = raw(serve).url
    for _ in Client(url).sandbox("sb-1").stream("x"):
        break
    assert closed.wait(5)
    closed.clear()

    async def leave() -> None:
        async with AsyncClient(url) as client:
            async for _ in client.sandbox("sb-1").stream("x"):
                break
            await asyncio.sleep(0)
            await asyncio.to_thread(closed.wait, 5)

    asyncio.run(leave())
    assert closed.is_set()


def test_a_cancelled_task_closes_its_stream(raw: Callable[..., RawServer]) -> None:
    started, closed = threading.Event(), threading.Event()

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        started.set()
        if is_closed(connection):
            closed.set()

    async def cancel() -> None:
        async with AsyncClient(raw(serve).url) as client:
            task = asyncio.create_task(client.sandbox("sb-1").run("x"))
            await asyncio.to_thread(started.wait, 5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(closed.wait, 5)

    asyncio.run(cancel())


def test_events_that_come_while_a_quiet_stream_is_broken_are_not_lost() -> None:
    def event(id: int, time_: str) -> str:
        return f'id: {id}\ndata: {{"id": {id}, "type": "a", "timestamp": "{time_}"}}\n\n'

    sent = {"content-type": "text/event-stream", "date": "Sat, 31 Jan 2026 12:00:05 GMT"}
    kept = event(1, "2026-01-31T12:00:04.900Z") + event(2, "2026-01-31T12:00:06.000Z")
    answers = [
        {"headers": sent, "body": ": quiet\n\n", "cut": True},
        {"headers": sent, "body": kept, "silent": True, "expect": {"headers": {"last-event-id": "0"}}},
    ]
    with CannedServer(answers) as server, Client(server.url) as client:
        with client.events() as events:
            assert next(iter(events))["id"] == 2
        assert not server.faults


@pytest.mark.parametrize("body", [{}, [], "null", {"sandbox": "sb-1"}])
def test_an_answer_that_lacks_a_field_is_a_protocol_error(body: object) -> None:
    with CannedServer([{"status": 201, "body": body}]) as server:
        client = Client(server.url)
        for call in (
            lambda: Sandbox.create(client=client),
            lambda: client.sandbox("sb-1").processes.start("x"),
            lambda: client.sandbox("sb-1").is_running(),
            client.version,
        ):
            with pytest.raises(ProtocolError):
                call()
