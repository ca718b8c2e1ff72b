"""A loop of tool use with the tools of `tidebox mcp`.

TIDEBOX names the program, and TIDEBOX_URL the server.
"""

import asyncio
import os
from types import SimpleNamespace
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult

DATA = '{"Berlin": [18, 22, 20], "Lisbon": [19, 21, 17]}'
SALES = """
import json
sales = json.load(open("/workspace/sales.json"))
averages = {city: sum(days) / len(days) for city, days in sales.items()}
averages
"""
FIGURE = """
import matplotlib.pyplot as plt
plt.bar(list(averages), list(averages.values()))
plt.show()
"""
SCRIPT = [
    ("write_file", {"path": "/workspace/sales.json", "content": DATA}),
    ("run_code", {"code": SALES}),
    ("run_code", {"code": FIGURE}),
    "Berlin sold 20 a day, Lisbon 19.",
]


class ScriptedClaude:
    """Says what a model would say, in the shape of the Messages API."""

    def __init__(self) -> None:
        self.messages = self
        self.turns = enumerate(SCRIPT, start=1)

    async def create(self, **request: Any) -> SimpleNamespace:
        number, turn = next(self.turns)
        if isinstance(turn, str):
            answer = SimpleNamespace(type="text", text=turn)
            return SimpleNamespace(stop_reason="end_turn", content=[answer])
        name, arguments = turn
        use = SimpleNamespace(type="tool_use", id=f"toolu_{number}", name=name, input=arguments)
        return SimpleNamespace(stop_reason="tool_use", content=[use])


# For a real model: pip install anthropic, set ANTHROPIC_API_KEY, and write: claude = AsyncAnthropic()
claude = ScriptedClaude()


def tool_result(use: Any, result: CallToolResult) -> dict[str, Any]:
    """Returns the result of a tool as the Messages API has it."""
    content: list[dict[str, Any]] = []
    for block in result.content:
        if block.type == "text":
            content.append({"type": "text", "text": block.text})
        elif block.type == "image":
            source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
            content.append({"type": "image", "source": source})
    is_error = bool(result.is_error)
    return {"type": "tool_result", "tool_use_id": use.id, "content": content, "is_error": is_error}


async def main() -> None:
    # Programs that a client starts get no variables but those named here.
    variables = {name: value for name, value in os.environ.items() if name.startswith("TIDEBOX_")}
    program = StdioServerParameters(command=os.environ.get("TIDEBOX", "tidebox"), args=["mcp"], env=variables)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Which city sells more? Draw it."}]
    # The sandbox is made at the first call, and removed when the client leaves.
    async with Client(program) as client:
        tools: list[dict[str, Any]] = [
            {"name": tool.name, "description": tool.description or "", "input_schema": tool.input_schema}
            for tool in (await client.list_tools()).tools
        ]
        print("tools:", ", ".join(sorted(tool["name"] for tool in tools)))
        while True:
            reply = await claude.messages.create(
                model="claude-sonnet-5-5", max_tokens=4096, tools=tools, messages=messages
            )
            messages.append({"role": "assistant", "content": reply.content})
            if reply.stop_reason != "tool_use":
                break
            results = []
            for use in reply.content:
                if use.type == "tool_use":
                    results.append(tool_result(use, await client.call_tool(use.name, use.input)))
                    print(f"{use.name}:", *(part.get("text", "[figure]") for part in results[-1]["content"]))
            messages.append({"role": "user", "content": results})
    print(*(block.text for block in reply.content if block.type == "text"))


asyncio.run(main())
