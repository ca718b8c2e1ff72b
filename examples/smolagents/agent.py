"""A code agent of smolagents whose Python runs in a sandbox. TIDEBOX_URL names the server."""

import base64
from io import BytesIO
from typing import Any

from PIL import Image
from smolagents import ActionStep, AgentError, AgentLogger, ChatMessage, CodeAgent, LogLevel, Model, Tool
from smolagents.local_python_executor import CodeOutput
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.tools import get_tools_definition_code
from tidebox import Sandbox


class TideboxExecutor(RemotePythonExecutor):
    """Runs an agent's code, and the tools that the code calls, in a sandbox."""

    def __init__(self, sandbox: Sandbox, logger: AgentLogger) -> None:
        super().__init__([], logger)
        self.sandbox = sandbox
        self.figures: list[Image.Image] = []
        self.definitions = ""

    def send_tools(self, tools: dict[str, Tool]) -> None:
        super().send_tools(tools)
        self.definitions = get_tools_definition_code(tools)

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        execution = self.sandbox.run_code(code, timeout=60)
        if execution.error and execution.error.name == self.FINAL_ANSWER_EXCEPTION:
            answer = self._deserialize_final_answer(execution.error.value)
            return CodeOutput(answer, execution.stdout, is_final_answer=True)
        if execution.outcome == "died" or execution.restarted:
            # The next interpreter needs the tools too.
            self.sandbox.run_code(self.definitions, check=True)
        if not execution.ok:
            error = execution.error.traceback or execution.error.value if execution.error else ""
            raise AgentError(f"{execution.stdout}{error}\noutcome: {execution.outcome}", self.logger)
        self.figures += [
            Image.open(BytesIO(base64.b64decode(result.png))) for result in execution.results if result.png
        ]
        return CodeOutput(execution.text, execution.stdout, is_final_answer=False)

    def show_figures(self, step: ActionStep) -> None:
        """Adds the figures of a step to what the model sees of it."""
        step.observations_images, self.figures = self.figures, []


SCRIPT = [
    """<code>
sales = {"Berlin": [18, 22, 20], "Lisbon": [19, 21, 17]}
averages = {city: sum(days) / len(days) for city, days in sales.items()}
averages
</code>""",
    """<code>
import matplotlib.pyplot as plt
plt.bar(list(averages), list(averages.values()))
plt.show()
</code>""",
    """<code>
final_answer(f"Berlin sold {averages['Berlin']:.0f} a day, Lisbon {averages['Lisbon']:.0f}.")
</code>""",
]


class ScriptedModel(Model):
    """Says what a model would say."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = iter(SCRIPT)

    def generate(self, messages: list[ChatMessage], **options: Any) -> ChatMessage:
        return ChatMessage(role="assistant", content=next(self.turns))


# For a real model, set HF_TOKEN and write: model = InferenceClientModel()
model = ScriptedModel()

with Sandbox.create() as sandbox:
    logger = AgentLogger(LogLevel.OFF)
    executor = TideboxExecutor(sandbox, logger)
    agent = CodeAgent(
        tools=[], model=model, executor=executor, step_callbacks=[executor.show_figures], logger=logger
    )
    answer = agent.run("Which city sells more? Draw it.")

for step in agent.memory.steps:
    if isinstance(step, ActionStep) and not step.is_final_answer:
        output = step.observations.splitlines()[-1]
        print("output:", output, *("[figure]" for _ in step.observations_images))
print(answer)
