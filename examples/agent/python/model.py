"""The interface of a language model, and a model that follows a script."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class Tool:
    """A function that the model may call. Its parameters are a JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """A call that the model asks for. Nothing guarantees that the arguments match the schema."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """The model's next message. Without tool calls it is the answer."""

    text: str
    tool_calls: list[ToolCall] = field(default_factory=list)


@dataclass(frozen=True)
class Message:
    """A part of the conversation: the task, a turn of the model, or the result of a tool call."""

    role: Literal["user", "assistant", "tool"]
    text: str
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_call_id: str | None = None


class Model(Protocol):
    def next_turn(self, messages: list[Message], tools: list[Tool]) -> Turn:
        """Continues the conversation."""


class ScriptedModel:
    """Plays the turns of a script, whatever the tools return."""

    def __init__(self, script: Path) -> None:
        content = json.loads(script.read_text(encoding="utf-8"))
        self.task: str = content["task"]
        self._turns = iter(content["turns"])

    def next_turn(self, messages: list[Message], tools: list[Tool]) -> Turn:
        turn: dict[str, Any] = next(self._turns, {"text": "The script has ended.", "tool_calls": []})
        calls = [
            ToolCall(f"call-{len(messages)}-{number}", call["name"], call["arguments"])
            for number, call in enumerate(turn["tool_calls"])
        ]
        return Turn(turn["text"], calls)
