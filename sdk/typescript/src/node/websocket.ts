import { createHash, randomBytes } from "node:crypto";
import * as http from "node:http";
import * as https from "node:https";
import type { Duplex } from "node:stream";
import { ConnectionFailed, ProtocolError, RequestTimeout, TideboxError, apiError } from "../errors.ts";
import type { Transport } from "../http.ts";

/** Message of a WebSocket. */
export type Message = { text: string } | { bytes: Buffer };

const TEXT = 1;
const BINARY = 2;
const CLOSE = 8;
const PING = 9;
const PONG = 10;
const CONNECT_SECONDS = 60;
const MESSAGE_BYTES_MAX = 1024 * 1024;

/** Opens a WebSocket of the API. The global one can neither send headers nor slow its server down. */
export function openSocket(transport: Transport, path: string): Promise<Socket> {
  const url = new URL(`${transport.url}/api/v1${path}`);
  const key = randomBytes(16).toString("base64");
  const accept = createHash("sha1").update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest("base64");
  return new Promise((resolve, reject) => {
    const request = (url.protocol === "https:" ? https : http).request(url, {
      agent: false,
      headers: {
        ...transport.headers,
        connection: "Upgrade",
        upgrade: "websocket",
        "sec-websocket-key": key,
        "sec-websocket-version": "13",
        "sec-websocket-protocol": "tidebox.v1",
      },
    });
    const seconds = transport.timeout ?? CONNECT_SECONDS;
    const timer = setTimeout(() => request.destroy(new RequestTimeout(seconds)), seconds * 1000);
    request.on("upgrade", (response, stream, head) => {
      clearTimeout(timer);
      if (response.headers["sec-websocket-accept"] !== accept) {
        stream.destroy();
        reject(new ProtocolError(transport.url, "the WebSocket handshake does not match the request"));
        return;
      }
      resolve(new Socket(stream, head));
    });
    request.on("response", (response) => {
      const parts: Buffer[] = [];
      response.on("data", (part: Buffer) => parts.push(part));
      response.on("end", () => {
        clearTimeout(timer);
        reject(refusal(transport.url, response, Buffer.concat(parts).toString()));
      });
      response.on("error", reject);
    });
    request.on("error", (error) => {
      clearTimeout(timer);
      reject(error instanceof TideboxError ? error : new ConnectionFailed(transport.url, error.message, error));
    });
    request.end();
  });
}

function refusal(url: string, response: http.IncomingMessage, body: string): TideboxError {
  const status = response.statusCode ?? 0;
  const requestId = response.headers["x-request-id"] as string | undefined;
  try {
    const { code, message } = JSON.parse(body) as { code: string; message: string };
    return apiError(message, { code, status, requestId });
  } catch {
    const reason = `status ${status} instead of a WebSocket: \`${body.slice(0, 120)}\``;
    return new ProtocolError(url, reason, status, requestId);
  }
}

/** An open WebSocket. It is read at the speed of its reader, and written at that of the server. */
export class Socket {
  readonly #stream: Duplex;
  #buffer: Buffer;
  #ended = false;

  constructor(stream: Duplex, head: Buffer) {
    this.#stream = stream;
    this.#buffer = head;
    stream.on("error", () => undefined);
  }

  /** Yields the messages until the server closes the connection. */
  async *messages(): AsyncGenerator<Message> {
    const source = this.#stream[Symbol.asyncIterator]() as AsyncIterator<Buffer>;
    let parts: Buffer[] = [];
    let kind = 0;
    for (;;) {
      const frame = this.#frame();
      if (frame === undefined) {
        const { done, value } = await source.next();
        if (done) return;
        this.#buffer = this.#buffer.length === 0 ? value : Buffer.concat([this.#buffer, value]);
        continue;
      }
      const { opcode, payload, last } = frame;
      if (opcode === PING) await this.#write(PONG, payload);
      else if (opcode === CLOSE) {
        await this.#write(CLOSE, payload.subarray(0, 2));
        this.#stream.end();
        return;
      } else if (opcode <= BINARY) {
        kind = opcode === 0 ? kind : opcode;
        parts.push(payload);
        if (!last) continue;
        const whole = parts.length === 1 ? payload : Buffer.concat(parts);
        parts = [];
        yield kind === TEXT ? { text: whole.toString() } : { bytes: whole };
      }
    }
  }

  #frame(): { opcode: number; payload: Buffer; last: boolean } | undefined {
    const buffer = this.#buffer;
    if (buffer.length < 2) return undefined;
    const first = buffer[0] as number;
    let length = (buffer[1] as number) & 0x7f;
    let at = 2;
    if (length === 126) {
      if (buffer.length < 4) return undefined;
      length = buffer.readUInt16BE(2);
      at = 4;
    } else if (length === 127) {
      if (buffer.length < 10) return undefined;
      length = Number(buffer.readBigUInt64BE(2));
      at = 10;
    }
    if (length > MESSAGE_BYTES_MAX) throw new ProtocolError("the server", `a message has ${length} bytes`);
    if (buffer.length < at + length) return undefined;
    this.#buffer = buffer.subarray(at + length);
    return { opcode: first & 0x0f, payload: buffer.subarray(at, at + length), last: (first & 0x80) !== 0 };
  }

  send(data: string | Uint8Array): Promise<void> {
    return this.#write(typeof data === "string" ? TEXT : BINARY, Buffer.from(data as Uint8Array));
  }

  /** Writes a frame, and waits until the server has room for more. */
  #write(opcode: number, payload: Buffer): Promise<void> {
    if (this.#ended || this.#stream.destroyed) return Promise.resolve();
    if (opcode === CLOSE) this.#ended = true;
    const mask = randomBytes(4);
    const length = payload.length;
    const head = length < 126 ? Buffer.alloc(2) : length < 0x10000 ? Buffer.alloc(4) : Buffer.alloc(10);
    head[0] = 0x80 | opcode;
    head[1] = 0x80 | (length < 126 ? length : length < 0x10000 ? 126 : 127);
    if (head.length === 4) head.writeUInt16BE(length, 2);
    else if (head.length === 10) head.writeBigUInt64BE(BigInt(length), 2);
    const masked = Buffer.alloc(length);
    for (let at = 0; at < length; at += 1) masked[at] = (payload[at] as number) ^ (mask[at & 3] as number);
    const room = this.#stream.write(Buffer.concat([head, mask, masked]));
    if (room) return Promise.resolve();
    return new Promise((resolve) => {
      const done = (): void => {
        this.#stream.off("drain", done).off("close", done);
        resolve();
      };
      this.#stream.on("drain", done).on("close", done);
    });
  }

  /** Breaks the connection. */
  destroy(): void {
    this.#stream.destroy();
  }
}
