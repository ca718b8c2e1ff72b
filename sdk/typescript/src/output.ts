import { Frames, STDERR, STDOUT, fromBase64, lines, textDecoder, toText } from "./bytes.ts";
import { ProtocolError, StreamInterrupted } from "./errors.ts";
import type { Answer } from "./http.ts";

/** Media types of a stream of output: raw frames, or lines of an older server. */
export const OUTPUT_TYPES: readonly string[] = ["application/octet-stream", "application/x-ndjson"];
export const ACCEPT_OUTPUT: Readonly<Record<string, string>> = {
  accept: "application/octet-stream, application/x-ndjson;q=0.5",
};

/** The end of a command. */
export interface Exit {
  type: "exit";
  /** Exit code: 128+n for signal n, 124 at the deadline, 126 not executable, 127 not found. */
  exitCode: number;
  /** True if the deadline ended the command. */
  timedOut: boolean;
  /** True if the memory limit ended the command or one of its children. */
  oomKilled: boolean;
  /** True if the sandbox reached its limit of processes while the command ran. */
  pidsExhausted: boolean;
}

/** A piece of the output of a command. */
export interface Output<T = string> {
  type: "stdout" | "stderr";
  data: T;
}

/** Output that the server no longer has. */
export interface Gap {
  type: "gap";
  /** Number of missing bytes. */
  bytes: number;
}

/** Item of a stream of a command: output, and at the end the exit. */
export type CommandPiece<T = string> = Output<T> | Exit;
/** Item of the output of a background process. */
export type ProcessPiece<T = string> = Output<T> | Gap | Exit;

/** Form of output: text with U+FFFD for invalid UTF-8, or exact bytes. */
export type Encoding = "text" | "bytes";

/** Number of the next byte of a numbered output. */
export interface Position {
  seq: number | undefined;
}

interface WireMessage {
  type: string;
  seq?: number;
  exit_code?: number;
  timed_out?: boolean;
  oom_killed?: boolean;
  pids_exhausted?: boolean;
}

interface WireLine extends WireMessage {
  stream: string;
  data: string;
}

function exitOf(message: WireMessage, exitCode: number): Exit {
  return {
    type: "exit",
    exitCode,
    timedOut: message.timed_out ?? false,
    oomKilled: message.oom_killed ?? false,
    pidsExhausted: message.pids_exhausted ?? false,
  };
}

/** Yields the pieces of an answer that streams output, and keeps `position` up to date. */
export async function* readOutput(
  answer: Answer,
  position: Position,
): AsyncGenerator<ProcessPiece<Uint8Array>, void, undefined> {
  const pieces = answer.type === "application/x-ndjson" ? readLines(answer, position) : readFrames(answer, position);
  yield* pieces;
}

async function* readFrames(answer: Answer, position: Position): AsyncGenerator<ProcessPiece<Uint8Array>> {
  const frames = new Frames();
  for await (const bytes of answer.stream()) {
    for (const [kind, payload] of frames.push(bytes, answer.url)) {
      if (kind === STDOUT || kind === STDERR) {
        if (position.seq !== undefined) position.seq += payload.length;
        yield { type: kind === STDOUT ? "stdout" : "stderr", data: payload };
        continue;
      }
      const message = parse<WireMessage>(toText(payload), answer.url);
      if (message.type === "position" && message.seq !== undefined) {
        const missing = message.seq - (position.seq ?? message.seq);
        position.seq = message.seq;
        if (missing > 0) yield { type: "gap", bytes: missing };
      } else if (message.type === "exit" && message.exit_code !== undefined) {
        yield exitOf(message, message.exit_code);
        return;
      }
    }
  }
  if (frames.partial) throw new StreamInterrupted("the output ended within a frame");
}

async function* readLines(answer: Answer, position: Position): AsyncGenerator<ProcessPiece<Uint8Array>> {
  for await (const line of lines(answer.stream(), answer.url)) {
    if (line.trim() === "") continue;
    const message = parse<WireLine>(line, answer.url);
    position.seq = message.seq ?? position.seq;
    if (message.stream === "exit") {
      yield exitOf(message, Number(message.data));
      return;
    }
    if (message.stream === "gap") yield { type: "gap", bytes: Number(message.data) };
    else if (message.data !== "") yield { type: message.stream as "stdout", data: fromBase64(message.data) };
  }
}

export function parse<T>(text: string, url: string): T {
  try {
    return JSON.parse(text) as T;
  } catch {
    throw new ProtocolError(url, `a message of a stream is not JSON: \`${text.slice(0, 120)}\``);
  }
}

export function isOutput<T>(piece: ProcessPiece<T>): piece is Output<T> {
  return piece.type === "stdout" || piece.type === "stderr";
}

/** Decodes pieces to text, so that a character that is cut between pieces is decoded whole. */
export async function* decoded(
  pieces: AsyncIterable<ProcessPiece<Uint8Array>>,
): AsyncGenerator<ProcessPiece, void, undefined> {
  const decoders = { stdout: textDecoder(), stderr: textDecoder() };
  for await (const piece of pieces) {
    if (isOutput(piece)) {
      const data = decoders[piece.type].decode(piece.data, { stream: true });
      if (data !== "") yield { type: piece.type, data };
      continue;
    }
    for (const type of ["stdout", "stderr"] as const) {
      const data = decoders[type].decode();
      if (data !== "") yield { type, data };
    }
    yield piece;
  }
}
