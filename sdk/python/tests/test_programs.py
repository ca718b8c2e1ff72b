"""Programs that use the SDK in unusual ways: threads, forks, event loops, and wrong arguments."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path

import pytest
from canned import CannedServer

from tidebox import (
    ApiError,
    AsyncClient,
    Client,
    CodeError,
    CodeResult,
    ConnectionFailed,
    Execution,
    Image,
    InvalidArgument,
    NotFoundError,
    Sandbox,
    TideboxError,
    UnavailableError,
)

RUNNING = {"body": {"id": "sb-canned", "state": "running"}}


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


def test_a_client_works_in_one_event_loop_after_another() -> None:
    # Clients of other tests must not be what is warned of.
    gc.collect()
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


def test_a_connection_is_used_again_after_a_command_and_after_code() -> None:
    exit = b'{"type":"exit","exit_code":0}'
    frames = b"\1\0\0\0\2hi\0" + len(exit).to_bytes(4, "big") + exit
    command = {
        "headers": {"content-type": "application/octet-stream"},
        "base64": base64.b64encode(frames).decode(),
        "end": True,
    }
    code = {
        "headers": {"content-type": "application/x-ndjson"},
        "body": '{"type":"end","outcome":"ok","duration":"1ms"}\n',
        "end": True,
    }
    with CannedServer([command, code, command, RUNNING]) as server, Client(server.url) as client:
        sandbox = client.sandbox("sb-canned")
        assert sandbox.run("x").stdout == "hi"
        assert sandbox.run_code("x").ok
        assert [piece.stream for piece in sandbox.stream("x")] == ["stdout", "exit"]
        assert sandbox.is_running()
        assert server.connections == 1


def test_the_steps_of_a_pull_are_reported() -> None:
    lines = (
        '{"type":"resolving"}\n{"type":"downloading","bytes":1,"bytes_total":2}\n'
        '{"type":"done","image":{"digest":"sha256:1","names":["a"]}}\n'
    )
    failed = '{"type":"resolving"}\n{"type":"error","code":"unavailable","message":"later"}\n'
    sent = {"content-type": "application/x-ndjson"}
    with CannedServer([{"headers": sent, "body": lines}, {"headers": sent, "body": failed}]) as server:
        client, steps = Client(server.url), []
        image = Image.pull("a", on_progress=lambda step: steps.append(step["type"]), client=client)
        assert image["digest"] == "sha256:1"
        assert steps == ["resolving", "downloading", "done"]
        with pytest.raises(UnavailableError, match="later"):
            Image.pull("a", client=client)


def test_an_execution_reads_as_what_the_code_showed() -> None:
    execution = Execution(stdout="out\n", stderr="err\n", outcome="ok")
    execution.results = [
        CodeResult(data={"text/plain": "<Figure>", "image/png": "aGk="}),
        CodeResult(data={"text/plain": "42"}),
    ]
    assert (execution.ok, str(execution)) == (True, "out\nerr\n[image]\n42")
    failed = Execution(outcome="died", error=CodeError("KernelDied", "the interpreter ended", ""))
    assert (failed.ok, str(failed)) == (False, "KernelDied: the interpreter ended")
    assert str(Execution(outcome="timed_out")) == "the code ran into its deadline; raise `timeout`"
