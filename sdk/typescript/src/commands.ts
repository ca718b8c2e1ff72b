import { type Data, joined, textDecoder, toBase64, toBytes } from "./bytes.ts";
import { CommandFailed, StreamInterrupted, badArgument } from "./errors.ts";
import type { Answer, CallOptions, Transport } from "./http.ts";
import {
  ACCEPT_OUTPUT,
  type CommandPiece,
  type Encoding,
  type Exit,
  OUTPUT_TYPES,
  type ProcessPiece,
  decoded,
  isOutput,
  readOutput,
} from "./output.ts";

/** A line for `/bin/sh -c`, or a program and its arguments. */
export type Command = string | readonly string[];

/** Options that all commands share. */
export interface CommandOptions extends CallOptions {
  /** Absolute directory; `/workspace` by default. */
  cwd?: string | undefined;
  /** Variables; they override the sandbox's. */
  env?: Readonly<Record<string, string>> | undefined;
  /** Variables whose values are secrets of the server, by their names. */
  envSecret?: Readonly<Record<string, string>> | undefined;
  /** User in the sandbox. */
  user?: string | undefined;
  /** Deadline of the command, in seconds: its processes are killed then. */
  timeout?: number | undefined;
}

/** Options of {@link Sandbox.stream}. */
export interface StreamOptions<E extends Encoding = "text"> extends CommandOptions {
  /** Content of stdin; write larger content to a file. */
  stdin?: Data | undefined;
  /** `text` (default), or `bytes` for exact output. */
  encoding?: E | undefined;
}

/** Output in an encoding. */
export type Encoded<E extends Encoding> = E extends "bytes" ? Uint8Array : string;

/** Options of {@link Sandbox.run}. */
export interface RunOptions<E extends Encoding = "text"> extends StreamOptions<E> {
  /** Gets stdout as it is written. An error that it throws ends the command. */
  onStdout?: ((data: Encoded<E>) => unknown) | undefined;
  /** Gets stderr as it is written. An error that it throws ends the command. */
  onStderr?: ((data: Encoded<E>) => unknown) | undefined;
  /** True to throw {@link CommandFailed} if the exit code is not 0. */
  check?: boolean | undefined;
  /** Bytes of each stream that the result keeps; 64 MiB by default. Callbacks get everything. */
  maxOutputBytes?: number | undefined;
}

const OUTPUT_BYTES_MAX = 64 * 1024 * 1024;

/** Outcome of a command that has ended; a code other than 0 is not an error. */
export class Result<T extends string | Uint8Array = string> {
  readonly stdout: T;
  readonly stderr: T;
  /** Exit code: 128+n for signal n, 124 at the deadline, 126 not executable, 127 not found. */
  readonly exitCode: number;
  /** Seconds from the request to the exit. */
  readonly duration: number;
  /** True if the deadline ended the command. */
  readonly timedOut: boolean;
  /** True if the memory limit ended the command or one of its children. */
  readonly oomKilled: boolean;
  /** True if the sandbox reached its limit of processes while the command ran. */
  readonly pidsExhausted: boolean;
  /** True if `stdout` or `stderr` is cut at `maxOutputBytes`. */
  readonly truncated: boolean;

  constructor(stdout: T, stderr: T, exit: Exit, duration: number, truncated: boolean) {
    this.stdout = stdout;
    this.stderr = stderr;
    this.exitCode = exit.exitCode;
    this.duration = duration;
    this.timedOut = exit.timedOut;
    this.oomKilled = exit.oomKilled;
    this.pidsExhausted = exit.pidsExhausted;
    this.truncated = truncated;
  }

  /** Throws {@link CommandFailed} if the exit code is not 0; returns this result otherwise. */
  check(): this {
    if (this.exitCode === 0) return this;
    const cause = this.timedOut
      ? "its deadline passed; raise `timeout`"
      : this.oomKilled
        ? "it ran out of memory; raise `memoryMb`"
        : this.pidsExhausted
          ? "the sandbox has too many processes; raise `pids`"
          : "";
    const end = typeof this.stderr === "string" ? this.stderr : textDecoder().decode(this.stderr);
    const words = [`the command exited with code ${this.exitCode}`, cause, end.trim().slice(-1000)];
    throw new CommandFailed(words.filter((part) => part !== "").join(": "), this);
  }
}

/** Part of a sandbox that its calls need. */
export interface Target {
  readonly transport: Transport;
  /** Path of the sandbox below `/api/v1`. */
  readonly path: string;
  /** Variables of all commands of the sandbox object. */
  readonly env: Readonly<Record<string, string>>;
}

/** Returns the fields of a request for a command. */
export function commandBody(target: Target, command: Command, options: CommandOptions): Record<string, unknown> {
  const { cwd, env, envSecret, user, timeout } = options;
  const body: Record<string, unknown> = { ...commandFields(command), cwd, envSecret, user, timeout };
  const variables = { ...target.env, ...env };
  if (Object.keys(variables).length > 0) body.env = variables;
  return body;
}

export function commandFields(command: Command): Record<string, unknown> {
  if (typeof command === "string") return { command };
  const [program, ...args] = command;
  if (program === undefined) throw badArgument("the command is an empty list; its first item must be a program");
  return { mode: "argv", command: program, args };
}

export function stdinFields(stdin: Data | undefined): Record<string, unknown> {
  if (stdin === undefined || typeof stdin === "string") return { stdin };
  return { stdin: toBase64(toBytes(stdin)), stdinEncoding: "base64" };
}

/** Starts a command and yields its output; ending the iteration early kills the command. */
async function* pieces(
  target: Target,
  command: Command,
  options: StreamOptions<Encoding>,
): AsyncGenerator<ProcessPiece<Uint8Array>, void, undefined> {
  const answer: Answer = await target.transport.open(
    {
      method: "POST",
      path: `${target.path}/exec`,
      headers: ACCEPT_OUTPUT,
      json: {
        ...commandBody(target, command, options),
        ...stdinFields(options.stdin),
        stream: true,
        exitEvent: true,
        encoding: "base64",
      },
      options,
    },
    ...OUTPUT_TYPES,
  );
  for await (const piece of readOutput(answer, { seq: undefined })) {
    yield piece;
    if (piece.type === "exit") return;
  }
  throw new StreamInterrupted("the output ended without the command's exit, so the exit code is unknown");
}

/** Streams a command: {@link Sandbox.stream}. */
export function stream<E extends Encoding>(
  target: Target,
  command: Command,
  options: StreamOptions<E>,
): AsyncGenerator<CommandPiece<Encoded<E>>, void, undefined> {
  const raw = pieces(target, command, options);
  const result = options.encoding === "bytes" ? raw : decoded(raw);
  return result as AsyncGenerator<CommandPiece<Encoded<E>>, void, undefined>;
}

/** Keeps output up to a number of bytes. */
class Kept {
  readonly #parts: Uint8Array[] = [];
  #left: number;
  truncated = false;

  constructor(bytesMax: number) {
    this.#left = bytesMax;
  }

  add(bytes: Uint8Array): void {
    const part = bytes.subarray(0, this.#left);
    if (part.length < bytes.length) this.truncated = true;
    if (part.length === 0) return;
    this.#left -= part.length;
    // A small piece would keep the whole buffer that it was received in.
    this.#parts.push(part.length * 2 < part.buffer.byteLength ? part.slice() : part);
  }

  whole(): Uint8Array {
    return joined(this.#parts);
  }
}

/** Runs a command to its end: {@link Sandbox.run}. */
export async function run<E extends Encoding>(
  target: Target,
  command: Command,
  options: RunOptions<E>,
): Promise<Result<Encoded<E>>> {
  const began = performance.now();
  const kept = {
    stdout: new Kept(options.maxOutputBytes ?? OUTPUT_BYTES_MAX),
    stderr: new Kept(options.maxOutputBytes ?? OUTPUT_BYTES_MAX),
  };
  const callbacks = { stdout: options.onStdout, stderr: options.onStderr };
  const isText = options.encoding !== "bytes";
  let source: AsyncIterable<ProcessPiece<string | Uint8Array>> = collected(pieces(target, command, options), kept);
  // Decoding costs time, and without callbacks the whole is decoded at the end.
  if (isText && (callbacks.stdout ?? callbacks.stderr)) {
    source = decoded(source as AsyncIterable<ProcessPiece<Uint8Array>>);
  }
  let exit: Exit | undefined;
  for await (const piece of source) {
    if (piece.type === "exit") exit = piece;
    else if (isOutput(piece)) await callbacks[piece.type]?.(piece.data as Encoded<E>);
  }
  const finish = (bytes: Uint8Array): Encoded<E> => (isText ? textDecoder().decode(bytes) : bytes) as Encoded<E>;
  const result = new Result(
    finish(kept.stdout.whole()),
    finish(kept.stderr.whole()),
    exit as Exit,
    (performance.now() - began) / 1000,
    kept.stdout.truncated || kept.stderr.truncated,
  );
  return options.check ? result.check() : result;
}

async function* collected(
  source: AsyncIterable<ProcessPiece<Uint8Array>>,
  kept: { stdout: Kept; stderr: Kept },
): AsyncGenerator<ProcessPiece<Uint8Array>, void, undefined> {
  for await (const piece of source) {
    if (isOutput(piece)) kept[piece.type].add(piece.data);
    yield piece;
  }
}
