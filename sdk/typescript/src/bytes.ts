import { ProtocolError, badArgument } from "./errors.ts";

/** Text or bytes to send. */
export type Data = string | Uint8Array<ArrayBuffer> | Uint8Array | ArrayBuffer;

/** Content to upload: at once, or as a stream that is read at the server's speed. */
export type Content = Data | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array | string>;

const encoder = new TextEncoder();

export function toBytes(data: Data): Uint8Array<ArrayBuffer> {
  if (typeof data === "string") return encoder.encode(data);
  return (data instanceof ArrayBuffer ? new Uint8Array(data) : data) as Uint8Array<ArrayBuffer>;
}

/** Returns a decoder that replaces invalid UTF-8 by U+FFFD and keeps a byte order mark. */
export function textDecoder(): TextDecoder {
  return new TextDecoder("utf-8", { ignoreBOM: true });
}

export function toText(bytes: Uint8Array): string {
  return textDecoder().decode(bytes);
}

export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

export function toBase64(bytes: Uint8Array): string {
  let text = "";
  // In parts, because a call takes a bounded number of arguments.
  for (let at = 0; at < bytes.length; at += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  }
  return btoa(text);
}

export function joined(parts: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  let length = 0;
  for (const part of parts) length += part.length;
  const whole = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** Returns whether content can be sent again, because it is not a stream. */
export function isReplayable(content: Content): content is Data | Blob {
  return (
    typeof content === "string" ||
    content instanceof Uint8Array ||
    content instanceof ArrayBuffer ||
    content instanceof Blob
  );
}

/** Converts a stream to a body of `fetch`; calls `progress` whenever more of it is sent. */
export function toStream(
  content: ReadableStream<Uint8Array> | AsyncIterable<Uint8Array | string>,
  progress: () => void,
  signal: AbortSignal,
): ReadableStream<Uint8Array> {
  let source: AsyncIterator<Uint8Array | string>;
  if (content instanceof ReadableStream) source = readerOf(content);
  else if (typeof content === "object" && Symbol.asyncIterator in content) source = content[Symbol.asyncIterator]();
  else throw badArgument("the content is neither text, bytes, a Blob nor a stream of bytes");
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      for (;;) {
        const { done, value } = await source.next();
        progress();
        if (signal.aborted) {
          // Node.js reads the body to its end even after an abort.
          await source.return?.();
          return controller.error(signal.reason);
        }
        if (done) return controller.close();
        if (value.length > 0) return controller.enqueue(typeof value === "string" ? encoder.encode(value) : value);
      }
    },
    async cancel() {
      await source.return?.();
    },
  });
}

/** Iterates over a stream, for browsers whose streams are not iterable. */
function readerOf(stream: ReadableStream<Uint8Array>): AsyncIterator<Uint8Array> {
  const reader = stream.getReader();
  return {
    next: async () => {
      const { done, value } = await reader.read();
      return done ? { done, value: undefined } : { done: false, value };
    },
    return: async () => {
      await reader.cancel();
      return { done: true, value: undefined };
    },
  };
}

/** Kinds of a frame of a raw stream. */
export const MESSAGE = 0;
export const STDOUT = 1;
export const STDERR = 2;

/** Output, or a message in JSON. */
export type Frame = readonly [kind: number, payload: Uint8Array];

const HEAD_BYTES = 5;
const MESSAGE_BYTES_MAX = 64 * 1024;

/** Splits a raw stream into frames: a byte for the kind, four for the length, the payload. */
export class Frames {
  #head = new Uint8Array(HEAD_BYTES);
  #filled = 0;
  #left = 0;
  #message: Uint8Array[] = [];

  /** True if the bytes so far end in the middle of a frame. */
  get partial(): boolean {
    return this.#filled > 0;
  }

  /** Yields the frames in received bytes. Output is neither copied nor held back. */
  *push(bytes: Uint8Array, url: string): Generator<Frame, void, undefined> {
    let at = 0;
    while (at < bytes.length) {
      if (this.#filled < HEAD_BYTES) {
        this.#head[this.#filled++] = bytes[at++] as number;
        if (this.#filled === HEAD_BYTES) this.#begin(url);
      } else {
        const part = bytes.subarray(at, at + this.#left);
        at += part.length;
        this.#left -= part.length;
        if (this.#head[0] === MESSAGE) this.#message.push(part.slice());
        else yield [this.#head[0] as number, part];
      }
      if (this.#filled === HEAD_BYTES && this.#left === 0) {
        this.#filled = 0;
        if (this.#message.length > 0) yield [MESSAGE, joined(this.#message.splice(0))];
      }
    }
  }

  #begin(url: string): void {
    const kind = this.#head[0] as number;
    this.#left = new DataView(this.#head.buffer).getUint32(1);
    if (kind > STDERR) throw new ProtocolError(url, `a raw stream has a frame of the unknown kind ${kind}`);
    if (kind === MESSAGE && this.#left > MESSAGE_BYTES_MAX) {
      throw new ProtocolError(url, `a message in a raw stream has ${this.#left} bytes`);
    }
  }
}

/** Longest line of a stream of JSON: a result of code has at most 10 MiB before its escapes. */
const LINE_CHARS_MAX = 20 * 1024 * 1024;

/** Yields the lines of a stream of text, without their ends. */
export async function* lines(source: AsyncIterable<Uint8Array>, url: string): AsyncGenerator<string, void, undefined> {
  const decoder = textDecoder();
  let rest: string[] = [];
  let length = 0;
  for await (const bytes of source) {
    const parts = decoder.decode(bytes, { stream: true }).split("\n");
    const last = parts.pop() as string;
    for (const part of parts) {
      const line = rest.length > 0 ? rest.join("") + part : part;
      rest = [];
      length = 0;
      yield line.endsWith("\r") ? line.slice(0, -1) : line;
    }
    rest.push(last);
    length += last.length;
    if (length > LINE_CHARS_MAX) throw new ProtocolError(url, `a line is longer than ${LINE_CHARS_MAX} characters`);
  }
  if (length > 0) yield rest.join("");
}

/** A server-sent event; a comment is an event without data. */
export interface ServerSentEvent {
  id?: string;
  data?: string;
  comment?: string;
}

/** Yields the events of a stream of server-sent events, and its comments. */
export async function* serverSentEvents(
  source: AsyncIterable<Uint8Array>,
  url: string,
): AsyncGenerator<ServerSentEvent, void, undefined> {
  let event: ServerSentEvent = {};
  for await (const line of lines(source, url)) {
    if (line === "") {
      if (event.data !== undefined) yield event;
      event = {};
      continue;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "") yield { comment: value };
    else if (name === "id") event.id = value;
    else if (name === "data") event.data = event.data === undefined ? value : `${event.data}\n${value}`;
  }
}
