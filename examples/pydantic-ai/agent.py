"""An agent of Pydantic AI whose tool runs code in a sandbox. TIDEBOX_URL names the server."""

import asyncio
import base64

from pydantic_ai import (
    Agent,
    BinaryImage,
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    RunContext,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tidebox import AsyncSandbox

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
SCRIPT: list[ModelResponsePart] = [
    ToolCallPart("run_code", {"code": SALES}),
    ToolCallPart("run_code", {"code": FIGURE}),
    TextPart("Berlin sold 20 a day, Lisbon 19."),
]


def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Says what a model would say."""
    turn = sum(message.kind == "response" for message in messages)
    return ModelResponse([SCRIPT[turn]])


# For a real model: pip install 'pydantic-ai-slim[anthropic]', set ANTHROPIC_API_KEY, and write
# model = "anthropic:claude-sonnet-5-5"
model = FunctionModel(say)
agent = Agent(
    model,
    deps_type=AsyncSandbox,
    instructions="Compute with run_code, never in your head.",
)


@agent.tool
async def run_code(context: RunContext[AsyncSandbox], code: str) -> list[str | BinaryImage]:
    """Runs Python and returns its output, the value of its last expression, and its figures.

    Variables and imports stay for the next call.
    """
    execution = await context.deps.run_code(code, timeout=60)
    figures = [result.png for result in execution.results if result.png]
    text = execution.stdout + "\n".join(result.text or "" for result in execution.results if not result.png)
    if execution.error:
        text += execution.error.traceback or execution.error.value
    if not execution.ok:
        text += f"\noutcome: {execution.outcome}"
    return [
        text or "(no text)",
        *(BinaryImage(base64.b64decode(figure), media_type="image/png") for figure in figures),
    ]


async def main() -> None:
    async with AsyncSandbox.create() as sandbox:
        result = await agent.run("Which city sells more? Draw it.", deps=sandbox)
    for message in result.all_messages():
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                items = part.content_items()
                print("run_code:", *(item if isinstance(item, str) else "[figure]" for item in items))
    print(result.output)


asyncio.run(main())
