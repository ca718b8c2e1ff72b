import { type Content, isReplayable, joined, toBytes, toStream, toText } from "./bytes.ts";
import {
  ConnectionFailed,
  PayloadTooLargeError,
  ProtocolError,
  RequestTimeout,
  StreamInterrupted,
  TideboxError,
  apiError,
  badArgument,
} from "./errors.ts";
import { fromWire, toWire } from "./names.ts";

/** Options of every call. */
export interface CallOptions {
  /** Ends the call; its reason is thrown. */
  signal?: AbortSignal | undefined;
  /** Seconds until the answer must be there; a stream must only have begun. */
  requestTimeout?: number | undefined;
}

/** A request to the API. */
export interface Request {
  method?: "GET" | "POST" | "PUT" | "DELETE";
  /** Path below `/api/v1`, percent-encoded. */
  path: string;
  query?: Readonly<Record<string, string | number | boolean | undefined>>;
  headers?: Readonly<Record<string, string>> | undefined;
  /** Body in JSON, with names in camel case. */
  json?: unknown;
  /** Raw body. */
  content?: Content | undefined;
  /** True for a POST that may be sent again. */
  repeatable?: boolean;
  /** Seconds until the answer, if neither the caller nor the client sets any; 60 if absent. */
  timeout?: number;
  /** Seconds that the server was asked to wait, in addition. */
  extra?: number;
  options?: CallOptions | undefined;
}

/** Seconds until an answer, by default. */
const ANSWER_SECONDS = 60;
/** Seconds until an operation that makes or moves a sandbox must be done; a pull may take 5 minutes. */
export const LONG_SECONDS = 330;
/** Largest JSON body that the API accepts, in bytes. */
const JSON_BYTES_MAX = 1024 * 1024;
/** Longest pause before another attempt; a longer `Retry-After` is the caller's decision. */
const PAUSE_SECONDS_MAX = 30;
/** Bytes per second that a slow network carries at least; an upload gets the time it needs. */
const UPLOAD_BYTES_PER_SECOND = 100_000;
const QUOTED_CHARS_MAX = 120;

/** State of one attempt: its deadline, its abort signal, and why it ended. */
class Line {
  readonly #controller = new AbortController();
  readonly #signals: readonly AbortSignal[];
  #timer: ReturnType<typeof setTimeout> | undefined;
  #deadline = 0;
  #closed = false;
  /** Error that explains why the connection was ended. */
  reason: unknown;

  constructor(signals: readonly (AbortSignal | undefined)[]) {
    this.#signals = signals.filter((signal) => signal !== undefined);
    for (const signal of this.#signals) {
      signal.throwIfAborted();
      signal.addEventListener("abort", this.#aborted);
    }
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  #aborted = (event: Event): void => this.end((event.target as AbortSignal).reason);

  /** Ends the connection with `error` unless `stop` or another `expect` comes first. */
  expect(seconds: number, error: () => unknown): void {
    this.#deadline = performance.now() + seconds * 1000;
    // One timer serves all chunks of a stream: it looks again when it fires too early.
    if (this.#timer !== undefined || this.#closed) return;
    const check = (): void => {
      const left = this.#deadline - performance.now();
      this.#timer = undefined;
      if (left <= 0) this.end(error());
      else if (left < Infinity) this.#timer = setTimeout(check, Math.min(left, 2 ** 31 - 1));
    };
    this.#timer = setTimeout(check, Math.min(seconds * 1000, 2 ** 31 - 1));
  }

  /** Waits without a deadline, until the next `expect`. */
  rest(): void {
    this.#deadline = Infinity;
  }

  /** Drops the deadline and its timer. */
  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  /** Ends the connection. */
  end(reason?: unknown): void {
    this.reason ??= reason;
    this.close();
    this.#controller.abort(reason);
  }

  /** Releases the timer and the signals once the answer is complete. */
  close(): void {
    this.#closed = true;
    this.stop();
    for (const signal of this.#signals) signal.removeEventListener("abort", this.#aborted);
  }
}

/** An answer whose head is good. */
export class Answer {
  readonly #line: Line;
  readonly response: Response;
  readonly url: string;
  readonly #silence: number;
  #cancelled = false;

  constructor(response: Response, line: Line, transport: Transport) {
    this.response = response;
    this.url = transport.url;
    this.#silence = transport.streamTimeout;
    this.#line = line;
  }

  header(name: string): string | undefined {
    return this.response.headers.get(name) ?? undefined;
  }

  /** Media type, without its parameters. */
  get type(): string | undefined {
    return this.header("content-type")?.split(";")[0]?.trim().toLowerCase();
  }

  /** Throws unless the answer has this media type: proxies answer 200 with HTML too. */
  async expectType(...wanted: readonly string[]): Promise<void> {
    const found = this.type;
    if (found !== undefined && wanted.includes(found)) return;
    const body = await this.bytes();
    throw new ProtocolError(
      this.url,
      `it sent ${found ?? "no content type"} instead of ${wanted[0]}: ${quoted(body)}`,
      this.response.status,
    );
  }

  async json(): Promise<unknown> {
    await this.expectType("application/json");
    const body = await this.bytes();
    try {
      return JSON.parse(toText(body));
    } catch {
      throw new ProtocolError(this.url, `its JSON cannot be parsed: ${quoted(body)}`, this.response.status);
    }
  }

  /** Returns the whole body; the deadline of the request applies. */
  bytes(): Promise<Uint8Array<ArrayBuffer>> {
    return collect(this.#read(undefined));
  }

  /** Returns a body of any size; it may take any time, but not fall silent. */
  download(): Promise<Uint8Array<ArrayBuffer>> {
    return collect(this.stream());
  }

  /** Streams the body. Leaving the stream early ends the connection, and so the command behind it. */
  stream(): AsyncGenerator<Uint8Array, void, undefined> {
    this.#line.stop();
    return this.#read(this.#silence);
  }

  async *#read(silence: number | undefined): AsyncGenerator<Uint8Array, void, undefined> {
    const reader = this.response.body?.getReader();
    let complete = reader === undefined;
    try {
      while (reader !== undefined) {
        if (silence !== undefined) this.#line.expect(silence, () => silent(silence));
        const { done, value } = await reader.read();
        // The time that the caller takes for a chunk is not silence.
        if (silence !== undefined) this.#line.rest();
        complete = done;
        if (done) break;
        yield value;
      }
    } catch (error) {
      if (this.#cancelled) return;
      throw failure(this.#line, error, "the answer is incomplete", this.url);
    } finally {
      if (complete) this.#line.close();
      else this.#line.end();
    }
  }

  /** Drops the rest of the answer: its stream ends. */
  cancel(): void {
    this.#cancelled = true;
    this.#line.end();
  }
}

/** A stream that is open, so that nothing is missed from here on. */
export class Subscription<T> {
  readonly #items: AsyncGenerator<T, void, undefined>;
  readonly #close: () => void;

  /** @internal */
  constructor(items: AsyncGenerator<T, void, undefined>, close: () => void) {
    this.#items = items;
    this.#close = close;
  }

  /** Yields the items. Leaving the iteration ends the subscription. */
  [Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    return this.#items;
  }

  /** Ends the subscription and its iteration. */
  close(): void {
    this.#close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }
}

async function collect(source: AsyncIterable<Uint8Array>): Promise<Uint8Array<ArrayBuffer>> {
  const parts: Uint8Array[] = [];
  for await (const part of source) parts.push(part);
  return joined(parts);
}

function silent(seconds: number): StreamInterrupted {
  return new StreamInterrupted(`the server sent nothing for ${seconds} seconds`);
}

/** Settings of a transport. */
export interface TransportOptions {
  url: string;
  headers: Readonly<Record<string, string>>;
  timeout: number | undefined;
  streamTimeout: number;
  retries: number;
  fetch: typeof globalThis.fetch | undefined;
}

/** Sends requests: deadlines, retries, and the errors that all calls share. */
export class Transport {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly timeout: number | undefined;
  readonly streamTimeout: number;
  readonly retries: number;
  readonly #fetch: typeof globalThis.fetch;
  #closed = new AbortController();

  constructor(options: TransportOptions) {
    this.url = checkedUrl(options.url);
    this.headers = options.headers;
    this.timeout = options.timeout;
    this.streamTimeout = options.streamTimeout;
    this.retries = options.retries;
    this.#fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init));
  }

  /** Ends all calls and streams that are open. */
  close(): void {
    const closed = this.#closed;
    this.#closed = new AbortController();
    closed.abort(new TideboxError("the client was closed during this call", { code: "client_closed" }));
  }

  /** Sends a request and returns its answer in JSON, with names in camel case. */
  call<T>(request: Request): Promise<T> {
    return this.send(request, async (answer) => fromWire(await answer.json()) as T);
  }

  /** Opens an answer of one of these media types, or of any, to stream it. */
  open(request: Request, ...types: readonly string[]): Promise<Answer> {
    return this.send(request, async (answer) => {
      if (types.length > 0) await answer.expectType(...types);
      return answer;
    });
  }

  /** Sends a request until it succeeds or may not be sent again. `read` belongs to the attempt. */
  async send<T>(request: Request, read: (answer: Answer) => Promise<T>): Promise<T> {
    const { method = "GET", options } = request;
    const streamed = request.content !== undefined && !isReplayable(request.content);
    const attempts = (method !== "POST" || request.repeatable) && !streamed ? 1 + this.retries : 1;
    for (let attempt = 1; ; attempt += 1) {
      const line = new Line([options?.signal, this.#closed.signal]);
      try {
        return await read(await this.#attempt(request, line));
      } catch (error) {
        line.end();
        // The first attempt removed it, and only its answer was lost.
        const removed = method === "DELETE" && attempt > 1 && isStatus(error, 404);
        if (removed) return { status: "deleted" } as T;
        const pause = attempt < attempts ? pauseSeconds(error, attempt) : undefined;
        if (pause === undefined) throw error;
        await sleep(pause, options?.signal);
      }
    }
  }

  async #attempt(request: Request, line: Line): Promise<Answer> {
    const headers: Record<string, string> = { ...this.headers, ...request.headers };
    const asked = request.options?.requestTimeout ?? this.timeout ?? request.timeout ?? ANSWER_SECONDS;
    const seconds = asked + (request.extra ?? 0);
    const late = (): RequestTimeout => new RequestTimeout(seconds);
    let allowed = seconds;
    const init: RequestInit & { duplex?: "half" } = { method: request.method ?? "GET", headers, redirect: "manual" };
    if (request.json !== undefined) {
      headers["content-type"] = "application/json";
      init.body = JSON.stringify(toWire(request.json));
      checkSize(init.body);
    } else if (request.content !== undefined) {
      headers["content-type"] ??= "application/octet-stream";
      if (isReplayable(request.content)) {
        const body = request.content instanceof Blob ? request.content : toBytes(request.content);
        init.body = body;
        allowed += (body instanceof Blob ? body.size : body.length) / UPLOAD_BYTES_PER_SECOND;
      } else {
        init.body = toStream(request.content, () => line.expect(seconds, late), line.signal);
        init.duplex = "half";
      }
    }
    line.expect(allowed, late);
    init.signal = line.signal;
    const url = `${this.url}/api/v1${request.path}${queryText(request.query)}`;
    let response: Response;
    try {
      response = await this.#fetch(url, init);
    } catch (error) {
      throw failure(line, error, undefined, this.url);
    }
    const answer = new Answer(response, line, this);
    if (!response.ok) throw await refusal(answer);
    return answer;
  }
}

/** Makes the error of an answer that is not a success. */
async function refusal(answer: Answer): Promise<TideboxError> {
  const { status } = answer.response;
  const requestId = answer.header("x-request-id");
  if (status < 400) {
    const where = answer.header("location");
    return new ProtocolError(answer.url, `it redirects${where === undefined ? "" : ` to ${where}`}`, status, requestId);
  }
  const body = await answer.bytes();
  const retryAfter = retryAfterSeconds(answer.header("retry-after"));
  let parsed: { code?: unknown; message?: unknown } | undefined;
  try {
    parsed = JSON.parse(toText(body)) as typeof parsed;
  } catch {
    // Explained below.
  }
  const { code, message } = parsed ?? {};
  if (typeof code === "string" && typeof message === "string") {
    return apiError(message, { code, status, requestId, retryAfter });
  }
  const error = new ProtocolError(answer.url, `status ${status} with ${quoted(body)}`, status, requestId);
  return Object.assign(error, { retryAfter });
}

function retryAfterSeconds(text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  const number = Number(text);
  const value = Number.isNaN(number) ? (Date.parse(text) - Date.now()) / 1000 : number;
  return Number.isNaN(value) ? undefined : Math.max(0, value);
}

/** Converts an error of `fetch` or of its body; `incomplete` says what is missing once bytes came. */
function failure(line: Line, error: unknown, incomplete: string | undefined, url: string): unknown {
  if (line.reason !== undefined) return line.reason;
  if (error instanceof TideboxError) return error;
  const { codes, text } = causes(error);
  if (incomplete !== undefined) return new StreamInterrupted(`${incomplete} (${text})`, error);
  const sent = /ECONNRESET|EPIPE|UND_ERR_(SOCKET|HEADERS|BODY|REQ|RES)|ConnectionClosed|HPE_/.test(codes);
  // Deno has no codes: it names the phase in the text of its error.
  const deno = /client error \(SendRequest\)|connection (closed|error|reset)/i.test(text);
  if (sent || deno) return new StreamInterrupted(`it broke before the answer (${text})`, error);
  return new ConnectionFailed(url, text, error);
}

/** Returns the codes of an error and its causes, and the most specific text. */
function causes(error: unknown): { codes: string; text: string } {
  let codes = "";
  let text = "";
  let current: unknown = error;
  for (let depth = 0; depth < 5 && typeof current === "object" && current !== null; depth += 1) {
    const { code, message, cause, errors } = current as Record<string, unknown>;
    if (typeof code === "string") codes += ` ${code}`;
    if (typeof message === "string" && message !== "") text = message;
    current = cause ?? (Array.isArray(errors) ? errors[0] : undefined);
  }
  return { codes, text: text || String(error) };
}

function isStatus(error: unknown, status: number): boolean {
  return error instanceof TideboxError && error.status === status;
}

/** Returns the pause before another attempt; `undefined` if there must be none. */
function pauseSeconds(error: unknown, attempt: number): number | undefined {
  if (!(error instanceof TideboxError)) return undefined;
  const { status, retryAfter } = error;
  const lost = error instanceof ConnectionFailed || error instanceof StreamInterrupted;
  const limited = status === 429 && retryAfter !== undefined;
  if (!lost && !limited && !(status !== undefined && status >= 502 && status <= 504)) return undefined;
  const pause = 0.2 * 2 ** attempt * (0.5 + Math.random() / 2);
  if (retryAfter === undefined) return pause;
  return retryAfter > PAUSE_SECONDS_MAX ? undefined : retryAfter + Math.random() * 0.1;
}

export function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const end = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      if (signal?.aborted) reject(signal.reason);
      else resolve();
    };
    const timer = setTimeout(end, seconds * 1000);
    if (signal?.aborted) end();
    else signal?.addEventListener("abort", end);
  });
}

function checkSize(body: string): void {
  // A character has at most three bytes in UTF-8.
  if (body.length <= JSON_BYTES_MAX / 3) return;
  const size = new TextEncoder().encode(body).length;
  if (size <= JSON_BYTES_MAX) return;
  throw new PayloadTooLargeError(
    `the request has ${size} bytes, more than the ${JSON_BYTES_MAX} that the API accepts; ` +
      "write the data to a file with `files.write` first",
    { code: "payload_too_large" },
  );
}

function quoted(body: Uint8Array): string {
  const text = toText(body.subarray(0, 4 * QUOTED_CHARS_MAX))
    .replace(/\s+/g, " ")
    .trim();
  return text === "" ? "an empty body" : `\`${text.slice(0, QUOTED_CHARS_MAX)}\``;
}

function checkedUrl(text: string): string {
  let url: URL | undefined;
  try {
    url = new URL(text.trim());
  } catch {
    // Reported below.
  }
  if (url === undefined || !/^https?:$/.test(url.protocol)) {
    throw badArgument(`\`${text}\` is not the URL of a server; write it like http://127.0.0.1:7423`);
  }
  if (url.username !== "" || url.password !== "") {
    throw badArgument("the URL of the server has a user name or password; pass `apiKey` instead");
  }
  if (url.search !== "" || url.hash !== "") {
    throw badArgument(`\`${text}\` has a query or a fragment; write it like http://127.0.0.1:7423`);
  }
  return url.href.replace(/\/+$/, "");
}

function queryText(query: Request["query"]): string {
  const pairs = Object.entries(query ?? {}).filter(([, value]) => value !== undefined);
  const text = pairs.map(([name, value]) => `${encode(name)}=${encode(String(value))}`);
  return text.length > 0 ? `?${text.join("&")}` : "";
}

/** Encodes a part of a path. */
export function segment(value: string | number, what: string): string {
  const text = String(value);
  // URL parsers resolve these, encoded or not, so the request would reach another route.
  if (text === "" || text === "." || text === "..") throw badArgument(`\`${text}\` is not a valid ${what}`);
  return encode(text);
}

function encode(text: string): string {
  try {
    return encodeURIComponent(text);
  } catch {
    throw badArgument(`\`${text}\` has half of a surrogate pair, which UTF-8 cannot encode`);
  }
}
