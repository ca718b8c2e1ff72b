import { type Client, type ClientCallOptions, clientOf, pages } from "./client.ts";
import { type CodeOptions, Contexts, type Execution, runCode } from "./code.ts";
import {
  type Command,
  type Encoded,
  type Result,
  type RunOptions,
  type StreamOptions,
  type Target,
  commandFields,
  run,
  stream,
} from "./commands.ts";
import { ApiTimeoutError, NotFoundError } from "./errors.ts";
import { Files } from "./files.ts";
import { type CallOptions, LONG_SECONDS, type Transport, segment } from "./http.ts";
import type { Camel, Input } from "./names.ts";
import type { CommandPiece, Encoding } from "./output.ts";
import { Processes, type ShellOptions, type Terminal, shell } from "./processes.ts";
import type * as wire from "./wire.ts";

/** State and settings of a sandbox. */
export type SandboxInfo = Camel<wire.Sandbox>;
/** Resources that a sandbox uses. */
export type SandboxStats = Camel<wire.SandboxStats>;
/** A snapshot of a sandbox. */
export type SnapshotInfo = Camel<wire.SnapshotSummary>;
/** Hosts that a sandbox may connect to. */
export type EgressPolicy = Camel<wire.EgressPolicy>;
/** Policy and connections of a sandbox. */
export type EgressInfo = Camel<wire.Egress>;
/** A TCP port that a program of a sandbox listens on. */
export type ListeningPort = Camel<wire.ListeningPort>;
/** Address under which a port of a sandbox is open to browsers. */
export type Preview = Camel<wire.Preview>;

/** A command that runs before a sandbox counts as running, or code with a `language`. */
export type PrepareCommand = Omit<Input<wire.PrepareCommand>, "command" | "args" | "mode"> & {
  command: Command;
};

/** Settings of a sandbox, in a creation or a template. */
export type SandboxSettings = Omit<Input<wire.TemplateBody>, "prepare"> & {
  prepare?: readonly PrepareCommand[] | undefined;
};

/** Options of {@link Sandbox.create}. */
export type CreateOptions = ClientCallOptions &
  Omit<Input<wire.SpawnRequest>, "prepare"> & {
    prepare?: readonly PrepareCommand[] | undefined;
    /** Variables of all commands and code that run through the returned object. */
    env?: Readonly<Record<string, string>> | undefined;
    /** Name of this creation: the same one returns the same sandbox for 24 hours. */
    idempotencyKey?: string | undefined;
  };

/** Filter of {@link Sandbox.list}. */
export interface ListOptions extends ClientCallOptions {
  ownerId?: string | undefined;
  state?: string | undefined;
  provider?: string | undefined;
  /** Labels that a sandbox must have. */
  metadata?: Readonly<Record<string, string>> | undefined;
  /** Sandboxes in one answer; 100 by default. */
  pageSize?: number | undefined;
}

/** Options of {@link Sandbox.pause}. */
export type PauseOptions = CallOptions & Input<wire.PauseRequest>;

type Constructor<S> = new (target: Target, id: string, client: Client) => S;

/** Returns the fields of a creation without the options of the call. */
export function settingsOf(options: object): Record<string, unknown> {
  const { client, signal, requestTimeout, idempotencyKey, env, prepare, ...settings } = options as CreateOptions;
  return { ...settings, prepare: prepare?.map((step) => ({ ...step, ...commandFields(step.command) })) };
}

/** Creates a sandbox; a repeat after a lost answer returns the same sandbox. */
export async function spawn<S>(constructor: Constructor<S>, path: string, options: CreateOptions): Promise<S> {
  const client = clientOf(options);
  const info = await client.transport.call<SandboxInfo>({
    method: "POST",
    path,
    json: settingsOf(options),
    headers: { "idempotency-key": options.idempotencyKey ?? randomKey() },
    repeatable: true,
    timeout: LONG_SECONDS,
    options,
  });
  return handle(constructor, client, info.id, options.env);
}

/** Makes the object of a sandbox. */
export function handle<S>(
  constructor: Constructor<S>,
  client: Client,
  id: string,
  env: Readonly<Record<string, string>> = {},
): S {
  const target = { transport: client.transport, path: `/sandboxes/${segment(id, "sandbox ID")}`, env };
  return new constructor(target, id, client);
}

function randomKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function filterQuery(options: ListOptions): Record<string, string | undefined> {
  const query: Record<string, string | undefined> = { owner_id: options.ownerId, provider: options.provider };
  for (const [name, value] of Object.entries(options.metadata ?? {})) query[`metadata.${name}`] = value;
  return query;
}

/** Seconds of one wait: long answers are cut by proxies and by runtimes. */
const WAIT_STEP_SECONDS = 30;

/** A disposable environment for code that is not trusted. */
export class Sandbox {
  /** ID of the sandbox. */
  readonly id: string;
  /** Client that its calls use. */
  readonly client: Client;
  readonly files: Files;
  readonly processes: Processes;
  /** Interpreters that keep their state between runs. */
  readonly contexts: Contexts;
  readonly ports: Ports;
  readonly egress: EgressControl;
  protected readonly target: Target;
  #closed = false;

  /** @internal */
  constructor(target: Target, id: string, client: Client) {
    this.id = id;
    this.client = client;
    this.target = target;
    this.files = this.makeFiles(target);
    this.processes = new Processes(target);
    this.contexts = new Contexts(target);
    this.ports = new Ports(target);
    this.egress = new EgressControl(target);
  }

  protected makeFiles(target: Target): Files {
    return new Files(target);
  }

  get #transport(): Transport {
    return this.target.transport;
  }

  #post<T>(rest: string, json: unknown, options: CallOptions | undefined): Promise<T> {
    const path = `${this.target.path}${rest}`;
    return this.#transport.call({ method: "POST", path, json, timeout: LONG_SECONDS, options });
  }

  /** Creates a sandbox. With `await using`, it is destroyed at the end of the block. */
  static create<S extends Sandbox>(this: Constructor<S>, options: CreateOptions = {}): Promise<S> {
    return spawn(this, "/sandboxes", options);
  }

  /** Returns an existing sandbox; `env` is for all commands through the returned object. */
  static async connect<S extends Sandbox>(
    this: Constructor<S>,
    id: string,
    options: ClientCallOptions & { env?: Readonly<Record<string, string>> } = {},
  ): Promise<S> {
    const client = clientOf(options);
    const sandbox = handle(this, client, id, options.env);
    await sandbox.info(options);
    return sandbox;
  }

  /** Yields the sandboxes that match a filter; reads the list in pages. */
  static list(options: ListOptions = {}): AsyncGenerator<SandboxInfo, void, undefined> {
    const query = { ...filterQuery(options), state: options.state };
    return pages(clientOf(options).transport, { path: "/sandboxes", query, options }, options.pageSize ?? 100);
  }

  /** Returns what the running sandboxes that match a filter use. */
  static listStats(options: Omit<ListOptions, "state" | "pageSize"> = {}): Promise<SandboxStats[]> {
    const query = filterQuery(options);
    return clientOf(options).transport.call({ path: "/sandboxes/stats", query, options });
  }

  /** Returns the state and settings of a sandbox. */
  static getInfo(id: string, options?: ClientCallOptions): Promise<SandboxInfo> {
    return clientOf(options).transport.call({ path: `/sandboxes/${segment(id, "sandbox ID")}`, options });
  }

  /** Returns the state and settings. */
  info(options?: CallOptions): Promise<SandboxInfo> {
    return this.#transport.call({ path: this.target.path, options });
  }

  /** Returns whether the sandbox exists and runs. */
  async isRunning(options?: CallOptions): Promise<boolean> {
    try {
      return (await this.info(options)).state === "running";
    } catch (error) {
      if (error instanceof NotFoundError) return false;
      throw error;
    }
  }

  /** Destroys the sandbox; it may have ended already. */
  async destroy(options?: CallOptions): Promise<void> {
    this.#closed = true;
    try {
      await this.#transport.call({ method: "DELETE", path: this.target.path, options });
    } catch (error) {
      if (!(error instanceof NotFoundError)) throw error;
    }
  }

  /** Destroys the sandbox, as {@link destroy}. */
  kill(options?: CallOptions): Promise<void> {
    return this.destroy(options);
  }

  /** Lets go of the sandbox: it keeps running when the `await using` block ends. */
  close(): void {
    this.#closed = true;
  }

  /** Destroys the sandbox unless {@link close} was called. */
  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#closed) await this.destroy();
  }

  /** Runs a command to its end. A code other than 0 is a result, not an error. */
  run<E extends Encoding = "text">(command: Command, options: RunOptions<E> = {}): Promise<Result<Encoded<E>>> {
    return run(this.target, command, options);
  }

  /** Runs a command and yields its output, and at the end its exit. Leaving early kills it. */
  stream<E extends Encoding = "text">(
    command: Command,
    options: StreamOptions<E> = {},
  ): AsyncGenerator<CommandPiece<Encoded<E>>, void, undefined> {
    return stream(this.target, command, options);
  }

  /** Runs code in an interpreter that keeps its state. Code that fails is a result, not an error. */
  runCode(code: string, options: CodeOptions = {}): Promise<Execution> {
    return runCode(this.target, code, options);
  }

  /** Opens a terminal with a shell. */
  shell(options: ShellOptions = {}): Promise<Terminal> {
    return shell(this.target, options);
  }

  /** Sets the lifetime, in seconds from now. */
  extend(ttl: number, options?: CallOptions): Promise<SandboxInfo> {
    return this.#post("/extend", { ttl }, options);
  }

  /** Sets the lifetime, as {@link extend}. */
  setTimeout(ttl: number, options?: CallOptions): Promise<SandboxInfo> {
    return this.extend(ttl, options);
  }

  /** Waits until the sandbox is `running` (default), `destroyed` or `failed`; 60 seconds by default. */
  async wait(state = "running", options: CallOptions & { timeout?: number } = {}): Promise<SandboxInfo> {
    const deadline = performance.now() + (options.timeout ?? 60) * 1000;
    for (;;) {
      const left = Math.max(0, (deadline - performance.now()) / 1000);
      const step = Math.min(left, WAIT_STEP_SECONDS);
      const query = { state, timeout: `${step.toFixed(3)}s` };
      try {
        return await this.#transport.call({ path: `${this.target.path}/wait`, query, extra: step, options });
      } catch (error) {
        if (!(error instanceof ApiTimeoutError) || performance.now() >= deadline) throw error;
      }
    }
  }

  /** Stops all processes; the next call that needs the sandbox resumes it. */
  pause(options: PauseOptions = {}): Promise<SandboxInfo> {
    const { force, reclaim, toDisk } = options;
    return this.#post("/pause", { force, reclaim, toDisk }, options);
  }

  /** Resumes the processes. */
  resume(options?: CallOptions): Promise<SandboxInfo> {
    return this.#post("/resume", undefined, options);
  }

  /** Keeps the files, and where the provider can the memory, for other sandboxes to start from. */
  snapshot(name?: string, options: CallOptions & { memory?: boolean } = {}): Promise<SnapshotInfo> {
    const timeout = 2 * LONG_SECONDS;
    const json = { name, memory: options.memory };
    const path = `${this.target.path}/snapshots`;
    return this.#transport.call({ method: "POST", path, json, timeout, options });
  }

  /** Copies the sandbox; returns the copies. */
  async fork(
    count = 1,
    options: CallOptions & { ttl?: number; metadata?: Readonly<Record<string, string>> } = {},
  ): Promise<this[]> {
    const { ttl, metadata } = options;
    const copies = await this.#post<SandboxInfo[]>("/fork", { count, ttl, metadata }, options);
    const constructor = this.constructor as Constructor<this>;
    return copies.map((copy) => handle(constructor, this.client, copy.id, this.target.env));
  }

  /** Returns what the sandbox uses. */
  stats(options?: CallOptions): Promise<SandboxStats> {
    return this.#transport.call({ path: `${this.target.path}/stats`, options });
  }

  /** Returns the last lines of its background processes. */
  logs(options: CallOptions & { lines?: number } = {}): Promise<string[]> {
    const query = { lines: options.lines };
    return this.#transport.call({ path: `${this.target.path}/logs`, query, options });
  }

  /** Returns the address of a port for a browser; its token is valid for an hour by default. */
  preview(port: number, options: CallOptions & { ttl?: number; public?: boolean } = {}): Promise<Preview> {
    const { ttl, public: isPublic } = options;
    return this.#post("/preview", { port, ttl, public: isPublic }, options);
  }
}

/** Ports of a sandbox. */
export class Ports {
  readonly #target: Target;

  constructor(target: Target) {
    this.#target = target;
  }

  /** Lists the TCP ports that programs listen on. */
  list(options?: CallOptions): Promise<ListeningPort[]> {
    return this.#target.transport.call({ path: `${this.#target.path}/ports`, options });
  }
}

/** Network out of a sandbox. */
export class EgressControl {
  readonly #target: Target;

  constructor(target: Target) {
    this.#target = target;
  }

  /** Returns the policy, and the newest connections. */
  get(options?: CallOptions): Promise<EgressInfo> {
    return this.#target.transport.call({ path: `${this.#target.path}/egress`, options });
  }

  /** Replaces the policy; it applies to open connections too. */
  set(policy: Input<wire.EgressPolicy>, options?: CallOptions): Promise<EgressInfo> {
    return this.#target.transport.call({ method: "PUT", path: `${this.#target.path}/egress`, json: policy, options });
  }
}
