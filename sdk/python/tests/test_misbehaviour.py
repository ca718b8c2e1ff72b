"""Servers that misbehave, and programs that do."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import re
import shutil
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from canned import CannedServer

from tidebox import (
    ApiError,
    AsyncClient,
    Client,
    ConnectionFailed,
    InvalidArgument,
    NotFoundError,
    ProtocolError,
    RequestTimeout,
    ResourceLimitError,
    Sandbox,
    StreamInterrupted,
    TideboxError,
)
from tidebox._decode import EventDecoder, LineSplitter, OutputDecoder


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


def test_errors_survive_pickling() -> None:
    answer = {"status": 404, "body": {"code": "not_found", "message": "m"}}
    with CannedServer([answer]) as server, pytest.raises(NotFoundError) as error:
        Client(server.url).health()
    copy = pickle.loads(pickle.dumps(error.value))
    assert (type(copy), copy.code, copy.status, str(copy)) == (NotFoundError, "not_found", 404, "m")


def test_the_key_is_not_in_any_representation() -> None:
    client = Client("http://127.0.0.1:1", api_key="very-secret", retries=0)
    assert "very-secret" not in repr(client) + repr(client.connection.config) + repr(vars(client))
    with pytest.raises(ConnectionFailed) as error:
        client.health()
    assert "very-secret" not in str(error.value)


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:7423", "http//x"])
def test_a_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidArgument, match="http://"):
        Client(url)


@pytest.mark.parametrize("key", ["a\nb", "schlüssel"])
def test_a_key_that_headers_cannot_carry_is_refused(key: str) -> None:
    with pytest.raises(InvalidArgument, match="x-api-key"):
        Client(api_key=key)


@pytest.mark.parametrize("ttl", [-1, float("nan"), float("inf"), True])
def test_a_duration_that_is_none_is_refused_before_a_request(ttl: float) -> None:
    with pytest.raises(InvalidArgument, match="ttl"):
        Sandbox.create(ttl=ttl, client=Client("http://127.0.0.1:1"))


def test_arguments_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEBOX_URL", "http://from-environment:1")
    monkeypatch.setenv("TIDEBOX_API_KEY", "from-environment")
    assert Client().url == "http://from-environment:1"
    with CannedServer([RUNNING]) as server:
        Client(server.url, "from-argument").health()
        Client(server.url).health()
        assert [seen["headers"]["x-api-key"] for seen in server.requests] == [
            "from-argument",
            "from-environment",
        ]


def test_a_proxy_of_the_environment_is_used_unless_the_server_is_local(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with CannedServer([RUNNING]) as proxy, CannedServer([RUNNING]) as local:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        Client("http://tidebox.example").health()
        Client(local.url).health()
        assert [seen["path"] for seen in proxy.requests] == ["http://tidebox.example/api/v1/health"]
        assert [seen["path"] for seen in local.requests] == ["/api/v1/health"]


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


def test_a_client_works_in_one_event_loop_after_another() -> None:
    with CannedServer([RUNNING]) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        client = AsyncClient(server.url)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            assert asyncio.run(client.sandbox("sb-canned").info())["state"] == "running"
            gc.collect()
        # Connections of closed loops are closed when the next loop uses the client.
        assert len(os.listdir("/proc/self/fd")) <= before + 4


def test_connections_are_closed_when_their_event_loop_ends() -> None:
    with CannedServer([RUNNING]) as server:
        script = textwrap.dedent(
            f"""
            import asyncio
            from tidebox import AsyncClient
            client = AsyncClient({server.url!r})
            for _ in range(2):
                asyncio.run(client.health())
            loop = asyncio.new_event_loop()
            loop.run_until_complete(client.health())
            loop.run_until_complete(client.close())
            loop.close()
            """
        )
        command = [sys.executable, "-X", "dev", "-W", "error", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr


def test_a_child_after_a_fork_opens_its_own_connection() -> None:
    with CannedServer([RUNNING]) as server:
        script = textwrap.dedent(
            f"""
            import asyncio, os, sys, warnings
            warnings.simplefilter("ignore")
            from tidebox import AsyncClient, Client
            client, other = Client({server.url!r}), AsyncClient({server.url!r})
            client.health()
            pool = client.connection._pool
            parent = pool._client
            async def main():
                await other.health()
                child = os.fork()
                if not child:
                    ok = client.health()["state"] == "running" and pool._client is not parent
                    os._exit(0 if ok else 1)
                # The parent's connections must still work.
                client.health(); await other.health()
                return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            code = asyncio.run(main())
            child = os.fork()
            if not child:
                asyncio.run(other.health())
                os._exit(0)
            sys.exit(code or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            """
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr


def test_threads_share_a_client() -> None:
    with CannedServer([RUNNING]) as server:
        client = Client(server.url)
        faults: list[BaseException] = []

        def use() -> None:
            try:
                for _ in range(20):
                    assert client.sandbox("sb-canned").is_running()
            except BaseException as error:
                faults.append(error)

        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults


def test_the_error_of_a_block_comes_before_that_of_the_destruction() -> None:
    with CannedServer([{"status": 500, "body": {"code": "internal", "message": "m"}}]) as server:
        sandbox = Client(server.url).sandbox("sb-1")
        with pytest.raises(ZeroDivisionError), sandbox:
            raise ZeroDivisionError
        with pytest.raises(ApiError), sandbox:
            pass


def test_an_archive_from_a_sandbox_writes_nothing_outside(tmp_path: Path) -> None:
    import io
    import tarfile

    from tidebox._tar import unpack

    def archive(*members: tuple[str, bytes, str]) -> io.BytesIO:
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            for name, kind, link in members:
                info = tarfile.TarInfo(name)
                info.type, info.linkname, info.mode = kind, link, 0o6777
                tar.addfile(info)
        file.seek(0)
        return file

    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    inside = tmp_path / "inside"
    for members in (
        [("../outside/a", tarfile.REGTYPE, "")],
        [(f"{outside}/a", tarfile.REGTYPE, "")],
        [("l", tarfile.SYMTYPE, str(outside)), ("l/a", tarfile.REGTYPE, "")],
        [("l", tarfile.SYMTYPE, str(outside)), ("h", tarfile.LNKTYPE, "l/secret")],
        [("h", tarfile.LNKTYPE, "../outside/secret")],
    ):
        with pytest.raises(TideboxError):
            unpack(archive(*members), str(inside))
        assert [path.name for path in outside.iterdir()] == ["secret"]
    # A link that is there already is replaced, not followed.
    (inside / "x").symlink_to(outside / "secret")
    unpack(archive(("x", tarfile.REGTYPE, "")), str(inside))
    assert (outside / "secret").read_text() == "s"
    assert (inside / "x").stat().st_mode & 0o7777 == 0o777


def test_output_is_the_same_however_it_is_cut() -> None:
    data = b""
    for kind, payload in (
        (0, b'{"type":"position","seq":5}'),
        (1, b"out"),
        (0, b""),
        (2, b"error"),
        (1, b""),
    ):
        data += bytes([kind]) + len(payload).to_bytes(4, "big") + payload
    exit = b'{"type":"exit","exit_code":3,"novel":1}'
    data += b"\0" + len(exit).to_bytes(4, "big") + exit
    for size in range(1, len(data) + 1):
        decoder = OutputDecoder("application/octet-stream")
        found = [piece for at in range(0, len(data), size) for piece in decoder.feed(data[at : at + size])]
        text = {
            name: b"".join(value for kind, value in found if kind == name) for name in ("stdout", "stderr")
        }
        assert text == {"stdout": b"out", "stderr": b"error"}
        assert found[-1][1].exit_code == 3
        assert decoder.position == 13


def test_events_and_lines_are_the_same_however_they_are_cut() -> None:
    events = b': hello\n\nid: 7\r\nevent: a\r\ndata: {"x":\r\ndata: 1}\r\n\r\ndata: {"y": 2}\n\n'
    lines = b'{"a": 1}\n\n{"b": 2}\n'
    for size in range(1, len(events) + 1):
        decoder, splitter = EventDecoder(), LineSplitter()
        found = [item for at in range(0, len(events), size) for item in decoder.feed(events[at : at + size])]
        assert found == [None, ("7", "a", {"x": 1}), (None, "message", {"y": 2})]
        split = [item for at in range(0, len(lines), size) for item in splitter.feed(lines[at : at + size])]
        assert split == [b'{"a": 1}', b'{"b": 2}']


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


def test_streams_of_nonsense_end_in_a_protocol_error() -> None:
    random = Random(7)
    for _ in range(3000):
        data = bytes(
            random.choices(b'\0\1\2{}[]":,\n exitpostnsqdaeq0123456789\xff', k=random.randint(1, 60))
        )
        for decoder in (
            OutputDecoder("application/octet-stream"),
            OutputDecoder("application/x-ndjson"),
            EventDecoder(),
        ):
            with contextlib.suppress(ProtocolError):
                list(decoder.feed(data))
    for message in (
        b"{}",
        b"[]",
        b'{"type":"exit"}',
        b'{"type":"exit","exit_code":"x"}',
        b'{"type":"position"}',
    ):
        frame = b"\0" + len(message).to_bytes(4, "big") + message
        with contextlib.suppress(ProtocolError):
            list(OutputDecoder("application/octet-stream").feed(frame))


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


def test_arguments_that_cannot_be_sent_are_refused() -> None:
    sandbox = Client("http://127.0.0.1:1", retries=0).sandbox("sb-1")
    for call in (
        lambda: sandbox.run("\udc80"),
        lambda: sandbox.run([]),
        lambda: sandbox.run("x", env={"A": object()}),  # type: ignore[dict-item]
        lambda: sandbox.files.read("/a\0"),
        lambda: sandbox.files.glob("*.py"),
        lambda: sandbox.processes.get(""),
        lambda: sandbox.processes.get("\udc80"),
        lambda: Sandbox.create(idempotency_key="é\n", client=sandbox.client),
        lambda: sandbox.client.sandbox(".."),
    ):
        with pytest.raises(InvalidArgument):
            call()


def test_a_line_without_end_is_refused() -> None:
    splitter = LineSplitter()
    with pytest.raises(ProtocolError):
        for _ in range(10):
            list(splitter.feed(b"x" * (1 << 20)))
