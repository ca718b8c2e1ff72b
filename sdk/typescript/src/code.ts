import { lines } from "./bytes.ts";
import type { Target } from "./commands.ts";
import { CodeFailed, StreamInterrupted } from "./errors.ts";
import { type CallOptions, LONG_SECONDS, segment } from "./http.ts";
import type { Camel } from "./names.ts";
import { parse } from "./output.ts";
import type * as wire from "./wire.ts";

/** Language of code. */
export type Language = wire.CodeLanguage;
/** An interpreter that keeps its state between runs. */
export type ContextInfo = Camel<wire.Context>;
/** Possible continuations of code. */
export type Completions = Camel<wire.Completions>;

/** An error of code. */
export interface CodeError {
  /** Name of the error, such as `ZeroDivisionError`. */
  name: string;
  value: string;
  traceback: string;
}

/** A value that code shows, in one or more representations. */
export class CodeResult {
  /** Representations by MIME type: text, base64 for binary data, or a value for JSON. */
  readonly data: Readonly<Record<string, unknown>>;
  /** True for the value of the last expression, false for something displayed. */
  readonly main: boolean;

  constructor(data: Readonly<Record<string, unknown>>, main: boolean) {
    this.data = data;
    this.main = main;
  }

  #text(type: string): string | undefined {
    return this.data[type] as string | undefined;
  }

  get text(): string | undefined {
    return this.#text("text/plain");
  }
  get html(): string | undefined {
    return this.#text("text/html");
  }
  get markdown(): string | undefined {
    return this.#text("text/markdown");
  }
  get latex(): string | undefined {
    return this.#text("text/latex");
  }
  get svg(): string | undefined {
    return this.#text("image/svg+xml");
  }
  /** Image in base64. */
  get png(): string | undefined {
    return this.#text("image/png");
  }
  /** Image in base64. */
  get jpeg(): string | undefined {
    return this.#text("image/jpeg");
  }
  get json(): unknown {
    return this.data["application/json"];
  }
  /** Data of a figure. */
  get chart(): unknown {
    return this.data["application/vnd.tidebox.chart+json"];
  }
  /** Columns of a table: a list for each. */
  get frame(): unknown {
    return this.data["application/vnd.tidebox.frame+json"];
  }
}

/** Options of {@link Sandbox.runCode}. */
export interface CodeOptions extends CallOptions {
  /** `python` by default. */
  language?: Language | undefined;
  /** Context that runs the code, by its ID or as `contexts.create` returns it. */
  context?: string | { readonly id: string } | undefined;
  /** Deadline of the code, in seconds: it is interrupted then. */
  timeout?: number | undefined;
  /** Variables of the environment for this run. */
  env?: Readonly<Record<string, string>> | undefined;
  /** Gets stdout as it is written. An error that a callback throws interrupts the code. */
  onStdout?: ((text: string) => unknown) | undefined;
  onStderr?: ((text: string) => unknown) | undefined;
  onResult?: ((result: CodeResult) => unknown) | undefined;
  onError?: ((error: CodeError) => unknown) | undefined;
  /** True to throw {@link CodeFailed} unless the code succeeds. */
  check?: boolean | undefined;
}

/** Ends of code for a person or a model, where there is no error that says more. */
const ENDS: Partial<Record<string, string>> = {
  timed_out: "the code ran into its deadline; raise `timeout`",
  interrupted: "the code was interrupted",
  died: "the interpreter ended",
};

/** Outcome of a run of code; code that fails is not an error. */
export class Execution {
  readonly results: CodeResult[] = [];
  stdout = "";
  stderr = "";
  error: CodeError | undefined = undefined;
  /** End of the code: `ok`, `error`, `interrupted`, `timed_out` or `died`. */
  outcome: wire.RunOutcome = "died";
  /** Number of the run in its context, from 1. */
  executionCount = 0;
  contextId = "";
  /** True if the interpreter was replaced at the end, so its state is lost. */
  restarted = false;
  /** True if an earlier interpreter had ended, so the code began without its state. */
  stateLost = false;
  /** Number of results that the server left out because it lacks memory. */
  dropped = 0;
  /** Seconds that the code ran. */
  duration = 0;

  /** Text of the last expression's value. */
  get text(): string | undefined {
    return this.results.filter((result) => result.main).at(-1)?.text;
  }

  /** True if the code came to its end without an error. */
  get ok(): boolean {
    return this.outcome === "ok";
  }

  /**
   * Returns what the code showed, as a person or a model reads it: output, values (`[image]` for one), and its error
   * or end.
   */
  toString(): string {
    const { error, outcome } = this;
    const shown = [this.stdout.replace(/\n+$/, ""), this.stderr.replace(/\n+$/, "")];
    shown.push(...this.results.map((result) => (result.png ?? result.jpeg) === undefined ? (result.text ?? "") : "[image]"));
    if (error) shown.push(error.traceback || `${error.name}: ${error.value}`);
    else if (!this.ok) shown.push(ENDS[outcome] ?? outcome);
    return shown.filter((part) => part !== "").join("\n");
  }

  /** Throws {@link CodeFailed} unless the outcome is `ok`; returns this execution otherwise. */
  check(): this {
    if (this.outcome === "ok") return this;
    const { error, outcome } = this;
    const message = error ? `${error.name}: ${error.value}\n${error.traceback}` : (ENDS[outcome] ?? outcome);
    throw new CodeFailed(message, outcome);
  }
}

/** Fields of all lines of a run; a line has some of them. */
interface RunLine {
  type: string;
  context_id: string;
  execution_count: number;
  state_lost?: boolean;
  text: string;
  data: Record<string, unknown>;
  main: boolean;
  name: string;
  value: string;
  traceback: string;
  outcome: wire.RunOutcome;
  duration: string;
  restarted?: boolean;
}

/** Runs code: {@link Sandbox.runCode}. */
export async function runCode(target: Target, code: string, options: CodeOptions): Promise<Execution> {
  const { context, language, timeout, env } = options;
  const began = performance.now();
  const id = typeof context === "object" ? context.id : context;
  const base = id === undefined ? target.path : `${target.path}/contexts/${segment(id, "context")}`;
  const variables = { ...target.env, ...env };
  const json = {
    code,
    language: id === undefined ? language : undefined,
    timeout,
    env: Object.keys(variables).length > 0 ? variables : undefined,
  };
  const answer = await target.transport.open(
    // The answer begins when the context is free.
    { method: "POST", path: `${base}/run`, json, options, timeout: LONG_SECONDS },
    "application/x-ndjson",
  );
  const execution = new Execution();
  for await (const text of lines(answer.stream(), answer.url)) {
    if (text.trim() === "") continue;
    const line = parse<RunLine>(text, answer.url);
    if (line.type === "end") {
      execution.outcome = line.outcome;
      execution.restarted = line.restarted ?? false;
      execution.duration = (performance.now() - began) / 1000;
      return options.check ? execution.check() : execution;
    }
    await apply(execution, line, options);
  }
  throw new StreamInterrupted("the output ended before the code did, so its outcome is unknown");
}

async function apply(execution: Execution, line: RunLine, options: CodeOptions): Promise<void> {
  switch (line.type) {
    case "started":
      execution.contextId = line.context_id;
      execution.executionCount = line.execution_count;
      execution.stateLost = line.state_lost ?? false;
      break;
    case "stdout":
      execution.stdout += line.text;
      await options.onStdout?.(line.text);
      break;
    case "stderr":
      execution.stderr += line.text;
      await options.onStderr?.(line.text);
      break;
    case "result": {
      const result = new CodeResult(line.data, line.main);
      execution.results.push(result);
      await options.onResult?.(result);
      break;
    }
    case "error":
      execution.error = { name: line.name, value: line.value, traceback: line.traceback };
      await options.onError?.(execution.error);
      break;
    case "dropped":
      execution.dropped += 1;
      break;
  }
}

/** Options of {@link Contexts.create}. */
export interface ContextOptions extends CallOptions {
  /** `python` by default. */
  language?: Language | undefined;
  /** Absolute directory; `/workspace` by default. */
  cwd?: string | undefined;
  user?: string | undefined;
  env?: Readonly<Record<string, string>> | undefined;
}

/** Contexts of a sandbox: interpreters that keep their state between runs. */
export class Contexts {
  readonly #target: Target;

  constructor(target: Target) {
    this.#target = target;
  }

  #path(context: string, rest = ""): string {
    return `${this.#target.path}/contexts/${segment(context, "context")}${rest}`;
  }

  /** Makes a context. */
  create(options: ContextOptions = {}): Promise<ContextInfo> {
    const { language, cwd, user, env } = options;
    const variables = { ...this.#target.env, ...env };
    const json = { language, cwd, user, env: Object.keys(variables).length > 0 ? variables : undefined };
    return this.#target.transport.call({ method: "POST", path: `${this.#target.path}/contexts`, json, options });
  }

  /** Lists the contexts. */
  list(options?: CallOptions): Promise<ContextInfo[]> {
    return this.#target.transport.call({ path: `${this.#target.path}/contexts`, options });
  }

  /** Returns a context. */
  get(context: string, options?: CallOptions): Promise<ContextInfo> {
    return this.#target.transport.call({ path: this.#path(context), options });
  }

  /** Ends a context with all that it started. */
  async delete(context: string, options?: CallOptions): Promise<void> {
    await this.#target.transport.call({ method: "DELETE", path: this.#path(context), options });
  }

  /** Runs code in a context. */
  run(context: string, code: string, options: Omit<CodeOptions, "context" | "language"> = {}): Promise<Execution> {
    return runCode(this.#target, code, { ...options, context });
  }

  /** Interrupts the code of a context, as Ctrl-C does; its state stays. */
  async interrupt(context: string, options?: CallOptions): Promise<void> {
    await this.#target.transport.call({ method: "POST", path: this.#path(context, "/interrupt"), options });
  }

  /** Replaces the interpreter of a context; its state is lost. */
  restart(context: string, options?: CallOptions): Promise<ContextInfo> {
    return this.#target.transport.call({ method: "POST", path: this.#path(context, "/restart"), options });
  }

  /** Completes code at `cursor` (default: its end) by the state of a context. */
  complete(context: string, code: string, options: CallOptions & { cursor?: number } = {}): Promise<Completions> {
    const { cursor } = options;
    const json = { code, cursor };
    return this.#target.transport.call({ method: "POST", path: this.#path(context, "/complete"), json, options });
  }
}
