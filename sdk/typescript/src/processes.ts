import { type Data, toBase64, toBytes } from "./bytes.ts";
import { type Command, type CommandOptions, type Encoded, type Target, commandBody, stdinFields } from "./commands.ts";
import { ApiError, ConnectionFailed, RequestTimeout, StreamInterrupted, TideboxError } from "./errors.ts";
import { type Answer, type CallOptions, segment, sleep } from "./http.ts";
import type { Camel } from "./names.ts";
import {
  ACCEPT_OUTPUT,
  type Encoding,
  type Exit,
  OUTPUT_TYPES,
  type Position,
  type ProcessPiece,
  decoded,
  readOutput,
} from "./output.ts";
import type * as wire from "./wire.ts";

/** State of a background process. */
export type ProcessInfo = Camel<wire.Process>;

/** Options of {@link Processes.start}. */
export interface StartOptions extends CommandOptions {
  /** Name that no other running process of the sandbox has. */
  name?: string | undefined;
  /** Content that stdin begins with; `true` keeps stdin open for {@link Process.write}. */
  stdin?: boolean | Data | undefined;
  /** True for a terminal, whose stdin is always open. */
  terminal?: boolean | undefined;
  /** Size of the terminal; 80 by 24 by default. */
  cols?: number | undefined;
  rows?: number | undefined;
  /** Seconds without a reader after which the process is killed and removed; never by default. */
  linger?: number | undefined;
  /** Text that the process keeps and shows, of at most 4096 bytes. */
  note?: string | undefined;
}

/** Options of {@link Process.output}. */
export interface OutputOptions<E extends Encoding = "text"> extends CallOptions {
  /** Number of the first byte; 0 by default, the beginning. */
  from?: number | undefined;
  /** False to end at the latest byte instead of at the exit. */
  follow?: boolean | undefined;
  /** `text` (default), or `bytes` for exact output. */
  encoding?: E | undefined;
}

/** Seconds for which a broken connection is opened again. */
const RESUME_SECONDS = 45;

/** Returns whether a stream that ended with `error` can be resumed. */
export function isBroken(error: unknown): boolean {
  return (
    error instanceof StreamInterrupted ||
    error instanceof ConnectionFailed ||
    error instanceof RequestTimeout ||
    (error instanceof TideboxError && error.status !== undefined && error.status >= 502 && error.status <= 504)
  );
}

/** Milliseconds after which a connection counts as one that worked. */
const WORKED_MS = 5000;

/** Paces the attempts to resume a stream; gives up after some time in which no connection works. */
export class Resume {
  #brokenAt: number | undefined;
  #openedAt: number | undefined;
  readonly #signal: AbortSignal | undefined;

  constructor(signal: AbortSignal | undefined) {
    this.#signal = signal;
  }

  /** Notes that a connection is open. */
  opened(): void {
    this.#openedAt = performance.now();
  }

  /** Notes that something was received. */
  works(): void {
    this.#brokenAt = undefined;
  }

  /** Waits before the next attempt; throws `error` if there must be none. */
  async after(error: unknown): Promise<void> {
    const now = performance.now();
    // A quiet stream works too.
    if (this.#openedAt !== undefined && now - this.#openedAt > WORKED_MS) this.works();
    this.#openedAt = undefined;
    const isFirst = this.#brokenAt === undefined;
    this.#brokenAt ??= now;
    if (!isBroken(error) || now - this.#brokenAt > RESUME_SECONDS * 1000) throw error;
    await sleep(isFirst ? 0.05 : 0.5, this.#signal);
  }
}

/** A background process. It keeps running when its caller disconnects. */
export class Process {
  /** Number or name of the process in its sandbox. */
  readonly id: number | string;
  readonly name: string | undefined;
  protected readonly target: Target;
  #pid: number | undefined;

  constructor(target: Target, id: number | string, name?: string | null, pid?: number | null) {
    this.target = target;
    this.id = id;
    this.name = name ?? undefined;
    this.#pid = pid ?? undefined;
  }

  /** Process id in the sandbox, once {@link info} has read it. */
  get pid(): number | undefined {
    return this.#pid;
  }

  #path(rest = ""): string {
    return `${this.target.path}/processes/${segment(this.id, "process")}${rest}`;
  }

  async #post(action: string, json: unknown, options: CallOptions | undefined): Promise<void> {
    await this.target.transport.call({ method: "POST", path: this.#path(action), json, options });
  }

  /** Returns the state of the process. */
  async info(options?: CallOptions): Promise<ProcessInfo> {
    const info = await this.target.transport.call<ProcessInfo>({ path: this.#path(), options });
    this.#pid = info.pid ?? undefined;
    return info;
  }

  /** Yields the output, and at the end the exit. After a cut it continues where it was. */
  output<E extends Encoding = "text">(
    options: OutputOptions<E> = {},
  ): AsyncGenerator<ProcessPiece<Encoded<E>>, void, undefined> {
    const raw = this.#output(options, { seq: options.from ?? 0 });
    return (options.encoding === "bytes" ? raw : decoded(raw)) as AsyncGenerator<ProcessPiece<Encoded<E>>>;
  }

  async *#output(
    options: OutputOptions<Encoding>,
    position: Position,
  ): AsyncGenerator<ProcessPiece<Uint8Array>, void, undefined> {
    const resume = new Resume(options.signal);
    for (;;) {
      try {
        const answer = await this.#open(options, position);
        resume.opened();
        for await (const piece of readOutput(answer, position)) {
          resume.works();
          yield piece;
          if (piece.type === "exit") return;
        }
        if (options.follow === false) return;
        throw new StreamInterrupted("the output ended without the exit of the process");
      } catch (error) {
        await resume.after(error);
      }
    }
  }

  #open(options: OutputOptions<Encoding>, position: Position): Promise<Answer> {
    const query = { from: position.seq ?? 0, follow: options.follow ?? true, encoding: "base64" };
    const request = { path: this.#path("/output"), query, headers: ACCEPT_OUTPUT, options };
    return this.target.transport.open(request, ...OUTPUT_TYPES);
  }

  /** Iterates over {@link output} as text. */
  [Symbol.asyncIterator](): AsyncGenerator<ProcessPiece, void, undefined> {
    return this.output();
  }

  /** Waits for the exit. */
  async wait(options: CallOptions = {}): Promise<Exit> {
    const info = await this.info(options);
    if (info.state === "exited") {
      const { exitCode, timedOut = false, oomKilled = false, pidsExhausted = false } = info;
      return { type: "exit", exitCode: exitCode ?? 0, timedOut, oomKilled, pidsExhausted };
    }
    for await (const piece of this.#output(options, { seq: info.lastSeq })) {
      if (piece.type === "exit") return piece;
    }
    throw new StreamInterrupted("the output ended without the exit of the process");
  }

  /** Writes to stdin. */
  async write(data: Data, options?: CallOptions): Promise<void> {
    const json = { data: toBase64(toBytes(data)), encoding: "base64" };
    await this.#post("/stdin", json, options);
  }

  /** Ends stdin. */
  async closeStdin(options?: CallOptions): Promise<void> {
    await this.#post("/stdin", { eof: true }, options);
  }

  /** Changes the size of the terminal. */
  async resize(cols: number, rows: number, options?: CallOptions): Promise<void> {
    await this.#post("/resize", { cols, rows }, options);
  }

  /** Sends a signal such as `SIGTERM` to the process group, or to the terminal's foreground. */
  async signal(signal: string, options?: CallOptions): Promise<void> {
    await this.#post("/signal", { signal }, options);
  }

  /** Kills the process and its descendants, and removes it. */
  async kill(options?: CallOptions): Promise<void> {
    try {
      await this.target.transport.call({ method: "DELETE", path: this.#path(), options });
    } catch (error) {
      if (!(error instanceof ApiError && error.code === "not_found")) throw error;
    }
  }
}

/** A terminal in a sandbox, which is killed when its `await using` block ends. */
export class Terminal extends Process {
  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
  }
}

/** Background processes of a sandbox. */
export class Processes {
  readonly #target: Target;

  constructor(target: Target) {
    this.#target = target;
  }

  /** Starts a process. */
  async start(command: Command, options: StartOptions = {}): Promise<Process> {
    const started = await startProcess(this.#target, command, options);
    return new Process(this.#target, started.processId, started.name);
  }

  /** Lists the running processes, and those that ended most recently. */
  list(options?: CallOptions): Promise<ProcessInfo[]> {
    return this.#target.transport.call({ path: `${this.#target.path}/processes`, options });
  }

  /** Returns the state of a process, by its number or name. */
  get(process: number | string, options?: CallOptions): Promise<ProcessInfo> {
    return new Process(this.#target, process).info(options);
  }

  /** Returns a process to read and write, by its number or name. */
  async connect(process: number | string, options?: CallOptions): Promise<Process> {
    const info = await this.get(process, options);
    return new Process(this.#target, info.processId, info.name, info.pid);
  }
}

type Started = Camel<wire.ProcessStarted>;

function startProcess(target: Target, command: Command, options: StartOptions): Promise<Started> {
  const { name, stdin, terminal, cols, rows, linger, note } = options;
  const json = {
    ...commandBody(target, command, options),
    ...(typeof stdin === "boolean" ? { stdinOpen: stdin } : stdinFields(stdin)),
    background: true,
    tty: terminal,
    name,
    cols,
    rows,
    linger,
    note,
  };
  return target.transport.call<Started>({ method: "POST", path: `${target.path}/exec`, json, options });
}

/** Options of {@link Sandbox.shell}. */
export interface ShellOptions extends Omit<StartOptions, "terminal" | "stdin"> {
  /** Program of the shell; bash by default, or sh without bash. */
  command?: Command | undefined;
}

/** Seconds that a terminal outlives its last reader. */
const SHELL_LINGER_SECONDS = 60;
const SHELL = "command -v bash >/dev/null 2>&1 && exec bash -l; exec sh -l";

/** Opens a terminal: {@link Sandbox.shell}. */
export async function shell(target: Target, options: ShellOptions): Promise<Terminal> {
  const { command = SHELL, linger = SHELL_LINGER_SECONDS } = options;
  const started = await startProcess(target, command, { ...options, linger, terminal: true });
  return new Terminal(target, started.processId, started.name);
}
