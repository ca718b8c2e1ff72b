// A local server that answers as a test tells it to, also badly.
import { createServer, type Socket } from "node:net";

/** A request as the server got it. */
export interface Seen {
  method: string;
  path: string;
  headers: Record<string, string>;
  body: string;
}

/** An answer, as in cases.json. */
export interface Canned {
  status?: number;
  headers?: Record<string, string>;
  body?: unknown;
  base64?: string;
  /** The connection breaks after the body. */
  cut?: boolean;
  /** Nothing follows the body, and the connection stays open. */
  silent?: boolean;
  /** Nothing is answered at all. */
  no_head?: boolean;
  /** The connection breaks without an answer. */
  close?: boolean;
  expect?: Record<string, unknown>;
}

export interface CannedServer extends AsyncDisposable {
  url: string;
  seen: Seen[];
  /** Number of open connections with a request: Node.js opens another one ahead after an abort. */
  open(): number;
}

/** Starts a server that gives `answers` in turn, the last one again and again. */
export async function canned(
  answers: readonly Canned[],
  onRequest?: (seen: Seen, answer: Canned) => void,
): Promise<CannedServer> {
  const seen: Seen[] = [];
  const sockets = new Set<Socket>();
  const used = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("close", () => {
      sockets.delete(socket);
      used.delete(socket);
    });
    socket.on("error", () => undefined);
    let received = Buffer.alloc(0);
    let answered = false;
    socket.on("data", (bytes) => {
      received = Buffer.concat([received, bytes]);
      const request = answered ? undefined : parse(received);
      if (request === undefined) return;
      answered = true;
      used.add(socket);
      const answer = answers[Math.min(seen.length, answers.length - 1)] as Canned;
      seen.push(request);
      onRequest?.(request, answer);
      reply(socket, answer);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  return {
    url: `http://127.0.0.1:${port}`,
    seen,
    open: () => used.size,
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy();
      await new Promise<void>((resolve) => server.close(() => resolve()));
    },
  };
}

/** Parses a request once it is complete. */
function parse(bytes: Buffer): Seen | undefined {
  const text = bytes.toString("latin1");
  const end = text.indexOf("\r\n\r\n");
  if (end < 0) return undefined;
  const [first = "", ...lines] = text.slice(0, end).split("\r\n");
  const [method = "", path = ""] = first.split(" ");
  const headers: Record<string, string> = {};
  for (const line of lines) {
    const colon = line.indexOf(":");
    headers[line.slice(0, colon).toLowerCase()] = line.slice(colon + 1).trim();
  }
  const rest = text.slice(end + 4);
  if (headers["transfer-encoding"] === "chunked") {
    return rest.endsWith("0\r\n\r\n") ? { method, path, headers, body: rest } : undefined;
  }
  if (rest.length < Number(headers["content-length"] ?? 0)) return undefined;
  return { method, path, headers, body: Buffer.from(rest, "latin1").toString("utf8") };
}

function reply(socket: Socket, answer: Canned): void {
  if (answer.no_head) return;
  if (answer.close) {
    socket.destroy();
    return;
  }
  const { status = 200, body } = answer;
  const isText = typeof body === "string";
  let bytes = Buffer.alloc(0);
  if (answer.base64 !== undefined) bytes = Buffer.from(answer.base64, "base64");
  else if (body !== undefined) bytes = Buffer.from(isText ? body : JSON.stringify(body));
  const headers: Record<string, string> = { connection: "close", ...answer.headers };
  if (!isText && answer.base64 === undefined) headers["content-type"] ??= "application/json";
  const unfinished = answer.cut || answer.silent;
  if (unfinished) headers["transfer-encoding"] = "chunked";
  else headers["content-length"] = String(bytes.length);
  const head = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
  socket.write(`HTTP/1.1 ${status} Canned\r\n${head.join("")}\r\n`);
  if (!unfinished) {
    socket.end(bytes);
    return;
  }
  if (bytes.length > 0)
    socket.write(Buffer.concat([Buffer.from(`${bytes.length.toString(16)}\r\n`), bytes, Buffer.from("\r\n")]));
  // The body must arrive before the connection breaks.
  if (answer.cut) setTimeout(() => socket.destroy(), 20);
}
