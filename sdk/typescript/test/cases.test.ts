// Runs the cases that every SDK runs, against the server of TIDEBOX_URL and against canned answers.
import { ok } from "node:assert/strict";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { Client, CodeResult, Execution, Process, Sandbox, TideboxError } from "../src/node.ts";
import { MAPS } from "../src/names.ts";
import { handle } from "../src/sandbox.ts";
import { type Args, CALLS, type World } from "./calls.ts";
import { mismatch } from "./match.ts";
import { type Canned, canned } from "./server.ts";

interface Step {
  call: string;
  args?: Args;
  on?: string | { process: string };
  save?: string;
  returns?: unknown;
  raises?: unknown;
  until?: boolean;
  during?: Step[];
  take?: number;
  callbacks?: string[];
  called?: Record<string, unknown>;
  callback_raises?: string;
}

interface Case {
  name: string;
  needs?: string[];
  sandbox?: boolean;
  create?: Args;
  client?: Args;
  canned?: Canned[];
  requests?: number;
  steps: Step[];
}

const { cases } = JSON.parse(await readFile(new URL("../../cases.json", import.meta.url), "utf8")) as { cases: Case[] };
const lack = new Set((process.env.TIDEBOX_CASES_LACK ?? "").split(","));
const hasServer = process.env.TIDEBOX_URL !== undefined;
const UNTIL_SECONDS = 20;

for (const item of cases) {
  const missing = item.needs?.find((need) => lack.has(need));
  const isLocal = item.canned !== undefined || item.client?.url !== undefined;
  const skip = missing ? `the server lacks ${missing}` : !isLocal && !hasServer ? "TIDEBOX_URL is not set" : false;
  // Bun's runner has no reason for a skipped test.
  test(item.name, { skip: skip !== false, timeout: 120_000 }, () => new Run(item).run());
}

class CallbackError extends Error {}

const camel = (name: string): string => name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());
const snake = (name: string): string => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

class Run {
  readonly #case: Case;
  readonly #saved = new Map<string, unknown>();
  readonly #made = new Set<Sandbox>();
  readonly #unique = Math.random().toString(36).slice(2, 10);
  readonly #faults: string[] = [];
  #sandbox: Sandbox | undefined;

  constructor(item: Case) {
    this.#case = item;
  }

  async run(): Promise<void> {
    const { canned: answers, steps, requests } = this.#case;
    const directory = await mkdtemp(join(tmpdir(), "tidebox-case-"));
    const server = answers && (await canned(answers, (seen, { expect }) => this.#check(expect, seen)));
    const options = this.#resolve(this.#case.client ?? {}) as Args;
    const client = new Client({ url: server?.url, ...camelArgs(options) });
    try {
      if (server) this.#sandbox = handle(Sandbox, client, "sb-canned");
      else if (this.#case.sandbox !== false) {
        this.#sandbox = this.#track(await Sandbox.create({ client, ...camelArgs(this.#case.create ?? {}) })) as Sandbox;
      }
      for (const step of steps) await this.#step(step, client, directory);
      if (server && requests !== undefined) this.#note(mismatch(requests, server.seen.length, "requests"));
      ok(this.#faults.length === 0, this.#faults.join("\n"));
    } finally {
      for (const sandbox of this.#made) await sandbox.destroy();
      client.close();
      await server?.[Symbol.asyncDispose]();
      await rm(directory, { recursive: true });
    }
  }

  #check(expect: Record<string, unknown> | undefined, seen: { body: string }): void {
    if (expect === undefined) return;
    const isJson = typeof expect.body === "object" && expect.body !== null;
    this.#note(mismatch(expect, { ...seen, body: isJson ? JSON.parse(seen.body) : seen.body }, "request"));
  }

  #note(fault: string | undefined): void {
    if (fault !== undefined) this.#faults.push(fault);
  }

  /** Notes sandboxes, which are destroyed at the end. */
  #track(value: unknown): unknown {
    for (const item of Array.isArray(value) ? value : [value]) if (item instanceof Sandbox) this.#made.add(item);
    return value;
  }

  /** Replaces references to saved results, unique names and bytes. */
  #resolve(value: unknown): unknown {
    if (Array.isArray(value)) return value.map((item) => this.#resolve(item));
    if (typeof value !== "object" || value === null) return value;
    const rule = value as Record<string, unknown>;
    if (typeof rule.$ === "string") return this.#lookup(rule.$);
    if (typeof rule.unique === "string") return `sdk-${this.#unique}-${rule.unique}`;
    return Object.fromEntries(Object.entries(rule).map(([name, item]) => [name, this.#resolve(item)]));
  }

  #lookup(path: string): unknown {
    const [name = "", ...fields] = path.split(".");
    let value = this.#saved.get(name);
    for (const field of fields) value = (value as Record<string, unknown>)[camel(field)];
    return value;
  }

  #target(on: Step["on"], client: Client): unknown {
    if (typeof on === "string") return this.#lookup(on);
    if (on === undefined) return this.#sandbox;
    return new Process({ transport: client.transport, path: "/sandboxes/sb-canned", env: {} }, on.process);
  }

  async #step(step: Step, client: Client, directory: string): Promise<void> {
    const deadline = Date.now() + UNTIL_SECONDS * 1000;
    for (;;) {
      const fault = await this.#attempt(step, client, directory);
      if (fault === undefined) return;
      if (!step.until || Date.now() > deadline) throw new Error(`${step.call}: ${fault}`);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }

  async #attempt(step: Step, client: Client, directory: string): Promise<string | undefined> {
    const call = CALLS[step.call];
    ok(call, `the runner has no call \`${step.call}\``);
    const args = camelArgs(this.#resolve(step.args ?? {}) as Args);
    const called: Record<string, unknown[]> = {};
    for (const name of step.callbacks ?? []) {
      const items: unknown[] = (called[name] = []);
      args[camel(name)] = (item: unknown) => void items.push(item);
    }
    const raised = new CallbackError("the callback fails");
    if (step.callback_raises !== undefined) {
      args[camel(step.callback_raises)] = () => {
        throw raised;
      };
    }
    const world: World = {
      client,
      directory,
      take: step.take ?? Infinity,
      during: async () => {
        for (const inner of step.during ?? []) await this.#step(inner, client, directory);
      },
    };
    let result: unknown;
    try {
      result = this.#track(await call(this.#target(step.on, client), args, world));
    } catch (error) {
      if (step.raises === "callback") return error === raised ? undefined : `raised ${String(error)}`;
      if (step.raises === undefined || !(error instanceof TideboxError)) throw error;
      return this.#raised(step.raises, error);
    }
    if (step.raises !== undefined) return `expected the error ${JSON.stringify(step.raises)}, got a result`;
    if (step.save !== undefined) this.#saved.set(step.save, result);
    for (const [name, expected] of Object.entries(step.called ?? {})) {
      const items = called[name] ?? [];
      const actual = typeof expected === "string" ? items.join("") : plain(items);
      const fault = mismatch(expected, actual, name);
      if (fault !== undefined) return fault;
    }
    return "returns" in step ? mismatch(bytesRule(this.#resolve(step.returns)), plain(result)) : undefined;
  }

  #raised(expected: unknown, error: TideboxError): string | undefined {
    const { code, status, message, retryable, retryAfter, requestId } = error;
    const actual = {
      code,
      status,
      message,
      retryable,
      retry_after: retryAfter,
      request_id: requestId,
      class: error.name,
    };
    return mismatch(typeof expected === "string" ? { code: expected } : expected, actual, "error");
  }
}

/** Converts arguments to camel case, and base64 to bytes. */
function camelArgs(args: Args): Args {
  const convert = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(convert);
    if (typeof value !== "object" || value === null) return value;
    if ("base64" in value) return new Uint8Array(Buffer.from(String(value.base64), "base64"));
    return camelArgs(value);
  };
  return Object.fromEntries(
    Object.entries(args).map(([name, value]) => [
      camel(name),
      MAPS.has(name) && name !== "data" ? value : convert(value),
    ]),
  );
}

/** Converts a result to the neutral names of the cases. */
function plain(value: unknown): unknown {
  if (value instanceof Uint8Array) return Buffer.from(value).toString("base64");
  if (value instanceof Date) return value.toISOString();
  if (value instanceof Sandbox) return { id: value.id };
  if (value instanceof Process) return { id: value.id, name: value.name };
  if (value instanceof CodeResult) {
    const { text, html, png, svg, json, markdown, latex, chart, main, data } = value;
    return { text, html, png, svg, json, markdown, latex, chart, main, data };
  }
  if (value instanceof Execution) return plain({ ...value, text: value.text });
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== "object" || value === null) return value;
  const fields = Object.entries(value).map(([name, item]) => [snake(name), MAPS.has(name) ? item : plain(item)]);
  return Object.fromEntries(fields);
}

/** Bytes are compared in base64. */
function bytesRule(rule: unknown): unknown {
  if (Array.isArray(rule)) return rule.map(bytesRule);
  if (typeof rule !== "object" || rule === null) return rule;
  if ("base64" in rule) return rule.base64;
  return Object.fromEntries(Object.entries(rule).map(([name, item]) => [name, bytesRule(item)]));
}
