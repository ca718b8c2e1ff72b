"""What needs a server (`TIDEBOX_URL`) and is not in the shared cases."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from case_runner import lacking

import tidebox
from tidebox import AsyncClient, AsyncSandbox, Client, Sandbox

MIB = 1024 * 1024
BIG = int(os.environ.get("TIDEBOX_TEST_BIG_MIB", "256")) * MIB
# Memory that a transfer may add, whatever its size.
GROWTH_MAX = 40 * MIB


def needs(*names: str) -> Any:
    missing = lacking() & set(names)
    return pytest.mark.skipif(bool(missing), reason=f"the server lacks {', '.join(sorted(missing))}")


def script(text: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


SYNC = """
    from tidebox import Sandbox
    sandbox = Sandbox.connect({id!r})
    sandbox.run("echo started; sleep 4321", on_stdout=lambda text: print(text, end="", flush=True))
"""
ASYNC = """
    import asyncio
    from tidebox import AsyncSandbox
    async def main():
        sandbox = await AsyncSandbox.connect({id!r})
        await sandbox.run("echo started; sleep 4321", on_stdout=lambda text: print(text, end="", flush=True))
    asyncio.run(main())
"""


@needs("programs")
@pytest.mark.parametrize("program", [SYNC, ASYNC], ids=["sync", "async"])
def test_ctrl_c_in_a_run_leaves_no_command_running(server: str, program: str) -> None:
    with Sandbox.create(ttl=120) as sandbox:
        process = script(program.format(id=sandbox.id))
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        process.wait(10)
        assert process.returncode != 0
        assert "KeyboardInterrupt" in process.communicate()[1]
        end = time.monotonic() + 10
        while sandbox.run("ps ax | grep -c '[s]leep 4321'").stdout != "0\n":
            assert time.monotonic() < end


TRANSFER = """
    import asyncio, re
    import tidebox
    from tidebox import AsyncSandbox, Exit, Sandbox
    MIB = 1024 * 1024

    def peak():
        # Unlike `ru_maxrss`, this does not count the parent from before the `exec`.
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

    def source(size):
        for _ in range(size // MIB):
            yield bytes(MIB)

    def round_of(sandbox, size):
        sandbox.files.write("/workspace/big", source(size))
        assert sum(map(len, sandbox.files.read("/workspace/big", "stream"))) == size
        read = 0
        for piece in sandbox.stream(f"head -c {{size}} /dev/zero", encoding=None, timeout=300):
            read += 0 if isinstance(piece, Exit) else len(piece.data)
        assert read == size

    async def async_round_of(sandbox, size):
        await sandbox.files.write("/workspace/big", source(size))
        read = 0
        async for piece in await sandbox.files.read("/workspace/big", "stream"):
            read += len(piece)
        assert read == size
        read = 0
        async for piece in sandbox.stream(f"head -c {{size}} /dev/zero", encoding=None, timeout=300):
            read += 0 if isinstance(piece, Exit) else len(piece.data)
        assert read == size

    def main():
        sandbox = Sandbox.connect({id!r})
        round_of(sandbox, MIB)
        before = peak()
        round_of(sandbox, {size})
        return peak() - before

    async def async_main():
        sandbox = await AsyncSandbox.connect({id!r})
        await async_round_of(sandbox, MIB)
        before = peak()
        await async_round_of(sandbox, {size})
        return peak() - before

    print(main() if {sync} else asyncio.run(async_main()))
"""


@needs("programs")
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_memory_stays_flat_while_a_large_file_is_written_and_read(server: str, sync: bool) -> None:
    with Sandbox.create(ttl=300, disk_mb=2048, memory_mb=1024) as sandbox:
        process = script(TRANSFER.format(id=sandbox.id, size=BIG, sync=sync))
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        print(f"transfers of {BIG // MIB} MiB took {int(out) // MIB} MiB of memory")
        assert int(out) < GROWTH_MAX, f"the transfer took {int(out) // MIB} MiB"


@needs("programs", "search")
def test_memory_stays_flat_while_a_large_directory_is_copied(server: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with open(source / "big", "wb") as file:
        file.truncate(BIG)
    text = f"""
        import re
        from tidebox import Sandbox

        def peak():
            return int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024

        sandbox = Sandbox.connect({{id!r}})
        before = peak()
        sandbox.files.upload({str(source)!r}, "/workspace/copy")
        sandbox.files.download("/workspace/copy", {str(tmp_path / "back")!r})
        print(peak() - before)
    """
    with Sandbox.create(ttl=300, disk_mb=2048, memory_mb=1024) as sandbox:
        process = script(text.replace("{id!r}", repr(sandbox.id)))
        out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    print(f"the copy of {BIG // MIB} MiB took {int(out) // MIB} MiB of memory")
    assert (tmp_path / "back" / "big").stat().st_size == BIG
    assert int(out) < GROWTH_MAX, f"the copy took {int(out) // MIB} MiB"


class CuttingProxy:
    """TCP proxy that resets each connection after so many bytes from the server."""

    def __init__(self, url: str, limit: int) -> None:
        host, port = url.split("//")[1].split(":")
        self._target = (host, int(port))
        self._limit = limit
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        server = socket.create_connection(self._target)

        def requests() -> None:
            with contextlib.suppress(OSError):
                while data := client.recv(65536):
                    server.sendall(data)
                server.shutdown(socket.SHUT_WR)

        threading.Thread(target=requests, daemon=True).start()
        left = self._limit
        with client, server, contextlib.suppress(OSError):
            while left > 0 and (data := server.recv(min(left, 65536))):
                client.sendall(data)
                left -= len(data)
            for side in (client, server):
                side.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@needs("programs")
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_output_of_a_process_is_whole_through_a_line_that_breaks_again_and_again(
    server: str, sync: bool
) -> None:
    proxy = CuttingProxy(server, 20_000)
    wanted = "".join(f"{number}\n" for number in range(30_000))
    with Sandbox.create(ttl=120) as sandbox:
        process = sandbox.processes.start("seq 0 29999; sleep 1; echo end")

        def joined(pieces: list[Any]) -> str:
            return "".join(piece.data for piece in pieces if piece.stream == "stdout")

        if sync:
            with Client(proxy.url) as client:
                got = joined(list(client.sandbox(sandbox.id).processes.handle(process.id).output()))
        else:

            async def read() -> list[Any]:
                async with AsyncClient(proxy.url) as client:
                    handle = client.sandbox(sandbox.id).processes.handle(process.id)
                    return [piece async for piece in handle.output()]

            got = joined(asyncio.run(read()))
    proxy.close()
    assert got == wanted + "end\n"
    assert proxy.connections > 5


@needs("programs")
def test_the_end_of_a_sandbox_ends_what_runs_in_it(server: str) -> None:
    sandbox = Sandbox.create(ttl=120)
    faults: list[BaseException] = []
    started = threading.Event()

    def run() -> None:
        try:
            sandbox.run("echo; sleep 60", timeout=60, on_stdout=lambda _: started.set())
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(10)
    sandbox.destroy()
    thread.join(15)
    assert not thread.is_alive()
    assert isinstance(faults[0], tidebox.TideboxError)


@needs("programs")
def test_a_deadline_around_a_run_ends_the_command(server: str) -> None:
    async def main() -> None:
        async with AsyncSandbox.create(ttl=60) as sandbox:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await sandbox.run("sleep 5432")
            async with asyncio.timeout(10):
                while (await sandbox.run("ps ax | grep -c '[s]leep 5432'")).stdout != "0\n":
                    pass

    asyncio.run(main())


@needs("programs")
def test_a_path_that_the_system_gave_is_understood(server: str) -> None:
    with Sandbox.create(ttl=60) as sandbox:
        path = "/workspace/" + os.fsdecode(b"caf\xe9.txt")
        sandbox.files.write(path, "x")
        assert sandbox.files.read(path) == "x"
        assert sandbox.run("ls | od -An -tx1").stdout.split()[:4] == ["63", "61", "66", "e9"]


@needs("programs", "search")
def test_a_synchronization_keeps_names_links_modes_and_times(server: str, tmp_path: Path) -> None:
    here, back = tmp_path / "here", tmp_path / "back"
    (here / "sub").mkdir(parents=True)
    (here / "empty").mkdir()
    (here / "a").write_text("a")
    (here / "a").chmod(0o750)
    os.utime(here / "a", ns=(1, 1700000000_123456789))
    Path(os.fsdecode(os.fsencode(here) + b"/caf\xe9.txt")).write_text("x")
    (here / "sub" / "sp ace#%?\n").write_text("y")
    (here / ("x" * 200)).write_text("long")
    (here / "link").symlink_to("a")
    os.mkfifo(here / "fifo")
    with Sandbox.create(ttl=120) as sandbox:
        result = sandbox.files.sync(here, "/workspace/p")
        assert (result.sent, result.removed, result.failures) == (5, 0, ())
        assert sandbox.files.sync(here, "/workspace/p", checksum=True).sent == 0
        assert sandbox.run("stat -c '%a %.9Y' /workspace/p/a").stdout == "750 1700000000.123456789\n"
        # A file becomes a directory, a directory a file, and only a mode changes.
        (here / "a").unlink()
        (here / "a").mkdir()
        (here / "a" / "b").write_text("b")
        (here / "sub" / "sp ace#%?\n").unlink()
        (here / "sub").rmdir()
        (here / "sub").write_text("a file now")
        (here / ("x" * 200)).chmod(0o600)
        with pytest.raises(tidebox.BadRequestError):
            sandbox.files.sync(here, "/workspace/p")
        result = sandbox.files.sync(here, "/workspace/p", delete=True)
        assert (result.sent, result.removed) == (2, 3)
        assert sandbox.files.sync(here, "/workspace/p", delete=True).sent == 0
        assert sandbox.files.stat("/workspace/p/" + "x" * 200)["mode"].endswith("600")
        sandbox.files.download("/workspace/p", back)
    assert (back / "sub").read_text() == "a file now"
    assert os.readlink(back / "link") == "a"
    assert b"caf\xe9.txt" in os.listdir(os.fsencode(back))


def test_a_thousand_sandboxes_come_from_one_client(server: str) -> None:
    async def main() -> None:
        async with AsyncClient() as client:
            if "mock" not in [provider["name"] for provider in await client.providers()]:
                pytest.skip("the server does not have the provider mock")

            async def one() -> None:
                async with AsyncSandbox.create(provider="mock", ttl=60, client=client) as sandbox:
                    assert (await sandbox.run("echo hi")).stdout == "hi\n"

            await asyncio.gather(*(one() for _ in range(1000)))

    asyncio.run(main())


@pytest.mark.skipif("TIDEBOX_MEASURE" not in os.environ, reason="set TIDEBOX_MEASURE on an idle machine")
def test_an_sdk_costs_at_most_2_ms_more_than_a_raw_client(server: str) -> None:
    client = Client()
    raw = httpx2.Client(base_url=client.url + "/api/v1", headers=client.connection.config.headers)

    def with_sdk() -> None:
        with Sandbox.create(ttl=60, client=client) as sandbox:
            assert sandbox.run("echo hi").stdout == "hi\n"

    def with_raw() -> None:
        id = raw.post("/sandboxes", json={"ttl": "60s"}).json()["id"]
        answer = raw.post(f"/sandboxes/{id}/exec", json={"command": "echo hi"}).json()
        assert answer["stdout"] == "hi\n"
        raw.delete(f"/sandboxes/{id}")

    def seconds_of(call: Any) -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    # On a busy machine one measurement says little; a real cost shows in each of them.
    for _ in range(4):
        pairs = [(seconds_of(with_sdk), seconds_of(with_raw)) for _ in range(30)]
        sdk, raw_, more = (
            statistics.median(values) * 1000
            for values in ([a for a, _ in pairs], [b for _, b in pairs], [a - b for a, b in pairs])
        )
        print(f"create, run, destroy: {sdk:.2f} ms with the SDK, {raw_:.2f} ms with a raw client")
        if more < 2:
            return
    pytest.fail(f"the SDK takes {more:.2f} ms more")


@needs("programs")
def test_two_commands_run_at_once_with_one_client(server: str) -> None:
    async def main() -> None:
        async with AsyncSandbox.create(ttl=60) as sandbox:
            began = time.monotonic()
            await asyncio.gather(*(sandbox.run("sleep 1") for _ in range(8)))
            assert time.monotonic() - began < 5

    asyncio.run(main())


@needs("python", "ports")
def test_a_forward_carries_large_data_both_ways(server: str) -> None:
    program = (
        "import socket\ns = socket.create_server(('127.0.0.1', 4567))\nwhile 1:\n c, _ = s.accept()\n"
        " while (d := c.recv(65536)): c.sendall(d)\n c.close()\n"
    )
    with Sandbox.create(ttl=60) as sandbox:
        sandbox.processes.start(["python3", "-c", program])
        while not any(port["port"] == 4567 for port in sandbox.ports.list()):
            time.sleep(0.05)
        with sandbox.forward(4567) as forward:
            local = socket.create_connection(("127.0.0.1", forward.local_port))
            data = bytes(range(256)) * 4096 * 8

            def send() -> None:
                local.sendall(data)
                local.shutdown(socket.SHUT_WR)

            threading.Thread(target=send, daemon=True).start()
            received = b""
            while piece := local.recv(1 << 20):
                received += piece
            assert received == data
            # Nothing listens on this port: the connection ends, and the reason is kept.
            with sandbox.forward(4568) as other:
                refused = socket.create_connection(("127.0.0.1", other.local_port))
                with refused, contextlib.suppress(ConnectionResetError):
                    assert refused.recv(1) == b""
                assert isinstance(other.error, tidebox.NotFoundError)


def test_the_quickstart_of_the_readme_runs_from_top_to_bottom(server: str, tmp_path: Path) -> None:
    if lacking() & {"programs", "python", "contexts", "terminal"}:
        pytest.skip("the server lacks what the quickstart uses")
    text = (Path(__file__).parents[1] / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) > 3
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
