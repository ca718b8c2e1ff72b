"""An agent of LangChain whose tool runs code in a sandbox. TIDEBOX_URL names the server."""

import asyncio
from dataclasses import dataclass
from typing import Any

from langchain.agents import create_agent
from langchain.messages import AIMessage, ToolMessage
from langchain.tools import ToolRuntime, tool
from langchain_core.language_models import FakeMessagesListChatModel
from tidebox import AsyncSandbox


@dataclass
class Context:
    """What the tools of one conversation share."""

    sandbox: AsyncSandbox


@tool
async def run_code(code: str, runtime: ToolRuntime[Context]) -> list[dict[str, Any]]:
    """Runs Python and returns its output, the value of its last expression, and its figures.

    Variables and imports stay for the next call.
    """
    execution = await runtime.context.sandbox.run_code(code, timeout=60)
    figures = [result.png for result in execution.results if result.png]
    text = execution.stdout + "\n".join(result.text or "" for result in execution.results if not result.png)
    if execution.error:
        text += execution.error.traceback or execution.error.value
    if not execution.ok:
        text += f"\noutcome: {execution.outcome}"
    return [
        {"type": "text", "text": text or "(no text)"},
        *({"type": "image", "base64": figure, "mime_type": "image/png"} for figure in figures),
    ]


SALES = """
sales = {"Berlin": [18, 22, 20], "Lisbon": [19, 21, 17]}
averages = {city: sum(days) / len(days) for city, days in sales.items()}
averages
"""
FIGURE = """
import matplotlib.pyplot as plt
plt.bar(list(averages), list(averages.values()))
plt.show()
"""


class ScriptedModel(FakeMessagesListChatModel):
    """Says what a model would say."""

    def bind_tools(self, tools: Any, **options: Any) -> "ScriptedModel":
        return self


def call(id: str, code: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"id": id, "name": "run_code", "args": {"code": code}}])


# For a real model: pip install langchain-anthropic, set ANTHROPIC_API_KEY, and write
# model = "anthropic:claude-sonnet-5-5"
model = ScriptedModel(
    responses=[call("call-1", SALES), call("call-2", FIGURE), AIMessage("Berlin sold 20 a day, Lisbon 19.")]
)
agent = create_agent(
    model,
    tools=[run_code],
    system_prompt="Compute with run_code, never in your head.",
    context_schema=Context,
)


async def main() -> None:
    async with AsyncSandbox.create() as sandbox:
        question = {"role": "user", "content": "Which city sells more? Draw it."}
        state = await agent.ainvoke({"messages": [question]}, context=Context(sandbox))
    for message in state["messages"]:
        if isinstance(message, ToolMessage):
            print("run_code:", *(block.get("text", "[figure]") for block in message.content_blocks))
    print(state["messages"][-1].text)


asyncio.run(main())
