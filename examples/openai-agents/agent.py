"""An agent of the OpenAI Agents SDK whose tool runs code in a sandbox. TIDEBOX_URL names the server."""

import asyncio

from agents import (
    Agent,
    RunContextWrapper,
    Runner,
    ToolOutputImage,
    ToolOutputText,
    function_tool,
    set_tracing_disabled,
)
from agents.testing import ScriptedModel, assistant_message, function_call
from tidebox import AsyncSandbox


@function_tool
async def run_code(
    context: RunContextWrapper[AsyncSandbox], code: str
) -> list[ToolOutputText | ToolOutputImage]:
    """Runs Python and returns its output, the value of its last expression, and its figures.

    Variables and imports stay for the next call.
    """
    execution = await context.context.run_code(code, timeout=60)
    figures = [result.png for result in execution.results if result.png]
    text = execution.stdout + "\n".join(result.text or "" for result in execution.results if not result.png)
    if execution.error:
        text += execution.error.traceback or execution.error.value
    if not execution.ok:
        text += f"\noutcome: {execution.outcome}"
    return [
        ToolOutputText(text=text or "(no text)"),
        *(ToolOutputImage(image_url=f"data:image/png;base64,{figure}") for figure in figures),
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

# Says what a model would say. For a real one, set OPENAI_API_KEY and write: model = "gpt-6.1-sol"
model = ScriptedModel(
    [
        [function_call("run_code", {"code": SALES}, call_id="call-1")],
        [function_call("run_code", {"code": FIGURE}, call_id="call-2")],
        [assistant_message("Berlin sold 20 a day, Lisbon 19.")],
    ]
)
set_tracing_disabled(True)  # Traces go to OpenAI: remove this line to have them.


async def main() -> None:
    agent = Agent[AsyncSandbox](
        name="Analyst",
        instructions="Compute with run_code, never in your head.",
        tools=[run_code],
        model=model,
    )
    async with AsyncSandbox.create() as sandbox:
        result = await Runner.run(agent, "Which city sells more? Draw it.", context=sandbox)
    for item in result.new_items:
        if item.type == "tool_call_output_item":
            print("run_code:", *(part.text if part.type == "text" else "[figure]" for part in item.output))
    print(result.final_output)


asyncio.run(main())
