// The interface of a language model, and a model that follows a script.

import { readFileSync } from "node:fs";

export type Arguments = Record<string, unknown>;

/** A function that the model may call. Its parameters are a JSON Schema. */
export interface Tool {
  name: string;
  description: string;
  parameters: object;
}

/** A call that the model asks for. Nothing guarantees that the arguments match the schema. */
export interface ToolCall {
  id: string;
  name: string;
  arguments: Arguments;
}

/** The model's next message. Without tool calls it is the answer. */
export interface Turn {
  text: string;
  toolCalls: ToolCall[];
}

/** A part of the conversation: the task, a turn of the model, or the result of a tool call. */
export type Message =
  | { role: "user"; text: string }
  | { role: "assistant"; text: string; toolCalls: ToolCall[] }
  | { role: "tool"; text: string; toolCallId: string };

export interface Model {
  /** Continues the conversation. */
  nextTurn(messages: Message[], tools: Tool[]): Promise<Turn>;
}

interface Script {
  task: string;
  turns: { text: string; tool_calls: { name: string; arguments: Arguments }[] }[];
}

/** Plays the turns of a script, whatever the tools return. */
export class ScriptedModel implements Model {
  readonly task: string;
  #turns: Script["turns"];

  constructor(path: string | URL) {
    const script = JSON.parse(readFileSync(path, "utf8")) as Script;
    this.task = script.task;
    this.#turns = script.turns;
  }

  async nextTurn(messages: Message[], _tools: Tool[]): Promise<Turn> {
    const turn = this.#turns.shift() ?? { text: "The script has ended.", tool_calls: [] };
    const toolCalls = turn.tool_calls.map((call, number) => ({ id: `call-${messages.length}-${number}`, ...call }));
    return { text: turn.text, toolCalls };
  }
}
