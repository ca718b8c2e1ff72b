"""Calls every tool with the official client: client.py MODE stdio PROGRAM ARGUMENT... | client.py MODE http URL KEY"""

import asyncio
import base64
import os
import socket
import sys
import time

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

MODE, TRANSPORT, *WORDS = sys.argv[1:]
LONG = "for i in 1 2 3 4 5 6 7 8 9 10; do echo step $i; sleep 0.5; done"
SITE = "mkdir -p site && echo '<h1>Tides</h1>' > site/index.html"


resolve = socket.getaddrinfo


def as_browsers_do(host, *more, **named):
    """Names below `localhost` are this machine."""
    name = host.decode() if isinstance(host, bytes) else host or ""
    return resolve("127.0.0.1" if name.endswith(".localhost") else host, *more, **named)


socket.getaddrinfo = as_browsers_do


def connection():
    if TRANSPORT == "stdio":
        return StdioServerParameters(command=WORDS[0], args=WORDS[1:], env=dict(os.environ))
    url, key = WORDS
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60)
    return streamable_http_client(url, http_client=http)


def text(result):
    return "\n".join(block.text for block in result.content if block.type == "text")


async def main():
    async with Client(connection(), mode=MODE) as client:
        print("version", client.protocol_version)
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        print("tools", " ".join(sorted(tools)))
        where = {}

        async def call(tool, is_error=False, **arguments):
            result = await client.call_tool(tool, {**where, **arguments})
            assert bool(result.is_error) == is_error, (tool, text(result))
            assert result.structured_content is None, tool
            return result

        if TRANSPORT == "http":
            said = text(await call("run_code", is_error=True, code="1"))
            assert "sandbox" in said, said
            made = text(await client.call_tool("create_sandbox", {"ttl_minutes": 10}))
            where["sandbox"] = made.split()[1].rstrip(":")

        assert text(await call("run_code", code="n = 20")) == "[no output]"
        assert text(await call("run_code", code="print('hi'); 2 * n + 2")) == "hi\n42"
        assert "ZeroDivisionError" in text(await call("run_code", code="1 / 0"))
        assert "no language" in text(await call("run_code", is_error=True, code="1", language="cobol"))
        assert "code" in text(await call("run_code", is_error=True, cod="1"))
        said = text(await call("run_code", is_error=True, code="while True: pass", timeout=1))
        assert "interrupted at the timeout" in said, said
        assert text(await call("run_code", code="n")) == "20"

        ran = text(await call("run_command", command="echo out; echo err >&2; exit 3"))
        assert sorted(ran.splitlines()) == ["[exit code 3]", "err", "out"], ran
        long = text(await call("run_command", command="seq 1 100000"))
        assert len(long) < 20_000 and long.startswith("1\n2\n") and "100000\n[exit code 0]" in long, long[-300:]
        process = int(long.split("`process`: ")[1].split(",")[0])
        some = text(await call("run_command", process=process, position=488_890))
        assert some.startswith("100\n") or "\n100" in some or some[0].isdigit(), some[:100]

        await call("write_file", path="/workspace/a/poem.txt", content="one\ntwo\nthree\n")
        assert text(await call("read_file", path="/workspace/a/poem.txt", first_line=2, lines=1)).startswith("two\n[")
        await call("edit_file", path="/workspace/a/poem.txt", old_text="two", new_text="zwei")
        said = text(await call("edit_file", is_error=True, path="/workspace/a/poem.txt", old_text="two", new_text=""))
        assert "does not occur" in said, said
        assert "file 15 poem.txt" in text(await call("list_files", path="/workspace/a"))
        assert "/workspace/a/poem.txt:2: zwei" in text(await call("search_files", pattern="^zw"))
        assert "not_found" not in text(await call("read_file", is_error=True, path="/workspace/none"))

        progress = []

        async def report(done, total, message):
            progress.append((done, message))

        await client.call_tool("run_command", {**where, "command": LONG}, progress_callback=report)
        assert len(progress) >= 2 and any("step" in (message or "") for _, message in progress), progress

        # A caller that leaves ends its command.
        waiting = asyncio.create_task(client.call_tool("run_command", {**where, "command": "touch on; sleep 321"}))
        while "file 0 on" not in text(await call("list_files")):
            await asyncio.sleep(0.05)
        waiting.cancel()
        try:
            await waiting
        except asyncio.CancelledError:
            pass
        until = time.monotonic() + 10
        while "321" in text(await call("run_command", command="ps -eo args | grep '[s]leep 321' || true")):
            assert time.monotonic() < until, "the command runs on"
            await asyncio.sleep(0.1)

        # Code is interrupted so too, and its variables stay.
        endless = {"code": "open('/workspace/busy', 'w').close()\nwhile True: pass", "timeout": 600}
        waiting = asyncio.create_task(client.call_tool("run_code", {**where, **endless}))
        while "busy" not in text(await call("list_files")):
            await asyncio.sleep(0.05)
        waiting.cancel()
        try:
            await waiting
        except asyncio.CancelledError:
            pass
        assert text(await asyncio.wait_for(call("run_code", code="n"), 30)) == "20"

        # A page, seen by a person, and a figure of it.
        assert "[exit code 0]" in text(await call("run_command", command=SITE))
        server = await call("run_command", command="cd site && nohup python3 -m http.server 8000 >/dev/null 2>&1 &")
        assert "[exit code 0]" in text(server)
        # The first answer may come before the server listens.
        while "Nothing listens" in (shown := text(await call("expose_port", port=8000))):
            await asyncio.sleep(0.1)
        url = shown.splitlines()[0]
        async with httpx2.AsyncClient() as browser:
            # As a program: a browser would take the token as a cookie.
            page = await browser.get(url.split("?")[0], headers={"X-Preview-Token": url.split("token=")[1]})
        assert "<h1>Tides</h1>" in page.text, page.text
        code = "import urllib.request; page = urllib.request.urlopen('http://127.0.0.1:8000').read().decode(); len(page)"
        assert text(await call("run_code", code=code)) == "15"
        figure = "import matplotlib.pyplot as plt\nplt.bar(['letters'], [len(page)])\nplt.show()"
        result = await call("run_code", code=figure)
        images = [block for block in result.content if block.type == "image"]
        assert len(images) == 1 and base64.b64decode(images[0].data).startswith(b"\x89PNG"), result
        await call("run_code", code="plt.bar(['letters'], [15]); plt.savefig('/workspace/bar.png')")
        seen = (await call("read_file", path="/workspace/bar.png")).content
        assert seen[0].type == "image" and seen[0].mime_type == "image/png", seen

        where_text = text(await client.call_tool("list_sandboxes", {}))
        sandbox = where_text.split(":")[0]
        read = await client.read_resource(f"tidebox://{sandbox}/workspace/a/poem.txt")
        assert read.contents[0].text == "one\nzwei\nthree\n", read
        try:
            await client.read_resource("tidebox://nowhere")
            raise AssertionError("a URI without a path was read")
        except MCPError as error:
            assert "tidebox://SANDBOX/PATH" in str(error), error

        kept = text(await call("snapshot", name="poems"))
        snapshot = kept.split()[1].rstrip(".")
        copy = text(await client.call_tool("create_sandbox", {"snapshot": snapshot, "ttl_minutes": 5}))
        copy = copy.split()[1].rstrip(":")
        said = await client.call_tool("read_file", {"sandbox": copy, "path": "/workspace/a/poem.txt"})
        assert text(said) == "one\nzwei\nthree\n", text(said)
        assert "is removed" in text(await client.call_tool("destroy_sandbox", {"sandbox": copy}))
        gone = await client.call_tool("list_files", {"sandbox": copy})
        assert gone.is_error, text(gone)

        said = text(await call("install", packages=["no-such-package-of-anybody"]))
        assert "allow_hosts" in said and "pypi.org" in said, said
        assert "use pip, npm or apt" in text(await call("install", is_error=True, packages=["a"], manager="brew"))
        try:
            await client.call_tool("fly", {})
            raise AssertionError("an unknown tool was called")
        except MCPError as error:
            assert "run_code" in str(error), error
        if where:
            await client.call_tool("destroy_sandbox", where)
    print("done")


asyncio.run(main())
