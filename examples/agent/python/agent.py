"""An agent loop: a model asks for tool calls, and they run in a sandbox.

    python3 agent.py [SCRIPT]

TIDEBOX_URL and TIDEBOX_API_KEY name the server and its key.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

from model import Message, Model, ScriptedModel, Tool, ToolCall
from sandbox import ApiError, Sandbox, Server, TideboxError

SCRIPT = Path(__file__).parent.parent / "script.json"
MAX_TURNS = 20
MAX_TIMEOUT = 120
MAX_RESULT = 8_000
# Statuses of errors that the model may correct: a bad path, no such file, too large, too much, the disk is full.
CORRECTABLE = {400, 404, 413, 429, 507}


def tool(name: str, description: str, required: dict[str, Any], optional: dict[str, Any] | None = None) -> Tool:
    properties = {**required, **(optional or {})}
    return Tool(name, description, {"type": "object", "properties": properties, "required": list(required)})


PATH = {"type": "string", "description": "An absolute path."}
TIMEOUT = {"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT, "default": 30}
TOOLS = [
    tool(
        "run_command",
        "Run a shell command in /workspace. Returns its exit code and output.",
        {"command": {"type": "string"}},
        {"timeout_seconds": TIMEOUT},
    ),
    tool("write_file", "Write a text file, or replace it.", {"path": PATH, "content": {"type": "string"}}),
    tool("read_file", "Read a text file.", {"path": PATH}),
]


class BadCall(Exception):
    """A tool call that the definition of the tool does not allow."""


class NoAnswer(Exception):
    """The model still calls tools after `MAX_TURNS` turns."""


def run_agent(model: Model, sandbox: Sandbox, task: str) -> str:
    """Runs the loop and returns the model's answer."""
    messages = [Message("user", task)]
    for _ in range(MAX_TURNS):
        turn = model.next_turn(messages, TOOLS)
        print(f"\nmodel: {turn.text}", flush=True)
        if not turn.tool_calls:
            return turn.text
        messages.append(Message("assistant", turn.text, turn.tool_calls))
        for call in turn.tool_calls:
            print(f"  {call.name} {preview(call.arguments)}", flush=True)
            result = shorten(call_tool(sandbox, call))
            print(indent(result.rstrip(), "    "), flush=True)
            messages.append(Message("tool", result, tool_call_id=call.id))
    raise NoAnswer(f"no answer after {MAX_TURNS} turns")


def call_tool(sandbox: Sandbox, call: ToolCall) -> str:
    """Runs a tool call and returns the result for the model, which may be an error.

    Raises errors that the model cannot correct: they end the run.
    """
    try:
        if call.name == "run_command":
            return run_command(sandbox, text(call, "command"), timeout(call))
        if call.name == "write_file":
            sandbox.write_file(text(call, "path"), text(call, "content"))
            return "written"
        if call.name == "read_file":
            return sandbox.read_file(text(call, "path"))
        raise BadCall(f"there is no tool `{call.name}`")
    except BadCall as error:
        return f"error: {error}"
    except ApiError as error:
        if error.status in CORRECTABLE:
            return f"error: {error}"
        raise


def run_command(sandbox: Sandbox, command: str, seconds: int) -> str:
    result = sandbox.run(command, seconds)
    parts = [f"timed out after {seconds} s" if result.timed_out else f"exit code {result.exit_code}"]
    if result.stdout:
        parts.append(f"stdout:\n{result.stdout.rstrip()}")
    if result.stderr:
        parts.append(f"stderr:\n{result.stderr.rstrip()}")
    return "\n".join(parts)


def text(call: ToolCall, name: str) -> str:
    value = call.arguments.get(name)
    if not isinstance(value, str):
        raise BadCall(f"{call.name} needs `{name}`, a string")
    return value


def timeout(call: ToolCall) -> int:
    value = call.arguments.get("timeout_seconds", TIMEOUT["default"])
    if type(value) is not int or not 1 <= value <= MAX_TIMEOUT:
        raise BadCall(f"`timeout_seconds` must be an integer from 1 to {MAX_TIMEOUT}")
    return value


def shorten(result: str) -> str:
    """Leaves out the middle of a long result, because it counts against the model's context in every turn."""
    left_out = len(result) - MAX_RESULT
    if left_out <= 0:
        return result
    half = MAX_RESULT // 2
    return f"{result[:half]}\n[{left_out} characters left out]\n{result[-half:]}"


def preview(arguments: dict[str, Any]) -> str:
    line = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return line if len(line) <= 90 else line[:90] + "…"


def main() -> int:
    # Like Ctrl-C, so that the `with` statement below deletes the sandbox.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    model = ScriptedModel(Path(sys.argv[1]) if len(sys.argv) > 1 else SCRIPT)
    print(f"task: {model.task}", flush=True)
    try:
        with Sandbox(Server.from_environment(), ttl="10m", metadata={"example": "agent"}) as sandbox:
            answer = run_agent(model, sandbox, model.task)
    except (TideboxError, NoAnswer) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    print(f"\nanswer: {answer}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
