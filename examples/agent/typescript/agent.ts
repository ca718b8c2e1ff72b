// An agent loop: a model asks for tool calls, and they run in a sandbox.
//
//     node agent.ts [SCRIPT]
//
// TIDEBOX_URL and TIDEBOX_API_KEY name the server and its key.

import { ScriptedModel } from "./model.ts";
import type { Arguments, Message, Model, Tool, ToolCall } from "./model.ts";
import { ApiError, Sandbox, Server, TideboxError } from "./sandbox.ts";

const SCRIPT = new URL("../script.json", import.meta.url);
const MAX_TURNS = 20;
const MAX_TIMEOUT = 120;
const MAX_RESULT = 8_000;
// Statuses of errors that the model may correct: a bad path, no such file, too large, too much, the disk is full.
const CORRECTABLE = [400, 404, 413, 429, 507];

const PATH = { type: "string", description: "An absolute path." };
const TIMEOUT = { type: "integer", minimum: 1, maximum: MAX_TIMEOUT, default: 30 };
const TOOLS: Tool[] = [
  tool(
    "run_command",
    "Run a shell command in /workspace. Returns its exit code and output.",
    { command: { type: "string" } },
    { timeout_seconds: TIMEOUT },
  ),
  tool("write_file", "Write a text file, or replace it.", { path: PATH, content: { type: "string" } }),
  tool("read_file", "Read a text file.", { path: PATH }),
];

function tool(name: string, description: string, required: object, optional: object = {}): Tool {
  const properties = { ...required, ...optional };
  return { name, description, parameters: { type: "object", properties, required: Object.keys(required) } };
}

/** A tool call that the definition of the tool does not allow. */
class BadCall extends Error {}

/** The model still calls tools after `MAX_TURNS` turns. */
class NoAnswer extends Error {}

/** SIGINT or SIGTERM. */
class Stopped extends Error {}

/** Runs the loop and returns the model's answer. */
async function runAgent(model: Model, sandbox: Sandbox, task: string): Promise<string> {
  const messages: Message[] = [{ role: "user", text: task }];
  for (let turns = 0; turns < MAX_TURNS; turns++) {
    const { text, toolCalls } = await model.nextTurn(messages, TOOLS);
    console.log(`\nmodel: ${text}`);
    if (toolCalls.length === 0) return text;
    messages.push({ role: "assistant", text, toolCalls });
    for (const call of toolCalls) {
      console.log(`  ${call.name} ${preview(call.arguments)}`);
      const result = shorten(await callTool(sandbox, call));
      console.log(result.trimEnd().replace(/^(?=.*\S)/gm, "    "));
      messages.push({ role: "tool", text: result, toolCallId: call.id });
    }
  }
  throw new NoAnswer(`no answer after ${MAX_TURNS} turns`);
}

/**
 * Runs a tool call and returns the result for the model, which may be an error.
 *
 * Throws errors that the model cannot correct: they end the run.
 */
async function callTool(sandbox: Sandbox, call: ToolCall): Promise<string> {
  try {
    switch (call.name) {
      case "run_command":
        return await runCommand(sandbox, text(call, "command"), timeout(call));
      case "write_file":
        await sandbox.writeFile(text(call, "path"), text(call, "content"));
        return "written";
      case "read_file":
        return await sandbox.readFile(text(call, "path"));
      default:
        throw new BadCall(`there is no tool \`${call.name}\``);
    }
  } catch (error) {
    const isCorrectable = error instanceof ApiError && CORRECTABLE.includes(error.status);
    if (error instanceof BadCall || isCorrectable) return `error: ${error.message}`;
    throw error;
  }
}

async function runCommand(sandbox: Sandbox, command: string, seconds: number): Promise<string> {
  const result = await sandbox.run(command, seconds);
  const parts = [result.timed_out ? `timed out after ${seconds} s` : `exit code ${result.exit_code}`];
  if (result.stdout) parts.push(`stdout:\n${result.stdout.trimEnd()}`);
  if (result.stderr) parts.push(`stderr:\n${result.stderr.trimEnd()}`);
  return parts.join("\n");
}

function text(call: ToolCall, name: string): string {
  const value = call.arguments[name];
  if (typeof value !== "string") throw new BadCall(`${call.name} needs \`${name}\`, a string`);
  return value;
}

function timeout(call: ToolCall): number {
  const value = call.arguments["timeout_seconds"] ?? TIMEOUT.default;
  if (typeof value !== "number" || !Number.isInteger(value) || value < 1 || value > MAX_TIMEOUT) {
    throw new BadCall(`\`timeout_seconds\` must be an integer from 1 to ${MAX_TIMEOUT}`);
  }
  return value;
}

/** Leaves out the middle of a long result, because it counts against the model's context in every turn. */
function shorten(result: string): string {
  const leftOut = result.length - MAX_RESULT;
  if (leftOut <= 0) return result;
  const half = MAX_RESULT / 2;
  return `${result.slice(0, half)}\n[${leftOut} characters left out]\n${result.slice(-half)}`;
}

function preview(values: Arguments): string {
  const line = JSON.stringify(values);
  return line.length <= 90 ? line : `${line.slice(0, 90)}…`;
}

/** Returns a signal that Ctrl-C and SIGTERM abort, so that the program can delete the sandbox before it ends. */
function stopSignal(): AbortSignal {
  const controller = new AbortController();
  for (const name of ["SIGINT", "SIGTERM"] as const) process.once(name, () => controller.abort(new Stopped("stopped")));
  return controller.signal;
}

async function main(): Promise<number> {
  const model = new ScriptedModel(process.argv[2] ?? SCRIPT);
  console.log(`task: ${model.task}`);
  try {
    const options = { ttl: "10m", metadata: { example: "agent" } };
    const sandbox = await Sandbox.create(Server.fromEnvironment(), options, stopSignal());
    try {
      console.log(`\nanswer: ${await runAgent(model, sandbox, model.task)}`);
      return 0;
    } finally {
      await sandbox.delete();
    }
  } catch (error) {
    if (error instanceof Stopped) {
      console.error("stopped");
      return 130;
    }
    if (!(error instanceof TideboxError || error instanceof NoAnswer)) throw error;
    console.error(`error: ${error.message}`);
    return 1;
  }
}

process.exitCode = await main();
