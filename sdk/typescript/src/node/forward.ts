import * as net from "node:net";
import type { Target } from "../commands.ts";
import { TideboxError, badArgument } from "../errors.ts";
import type { CallOptions } from "../http.ts";
import { type Socket, openSocket } from "./websocket.ts";

/** Options of `sandbox.forward`. */
export interface ForwardOptions extends Pick<CallOptions, "signal"> {
  /** Port on this machine; 0 (default) chooses a free one. */
  localPort?: number | undefined;
  /** Address on this machine; others on the network can connect to any but 127.0.0.1. */
  host?: string | undefined;
  /** Gets errors of single connections, which are reset. */
  onError?: ((error: unknown) => void) | undefined;
}

/** A port of this machine that leads to a port of a sandbox. */
export class Forward {
  /** Port on this machine. */
  readonly port: number;
  readonly host: string;
  readonly #server: net.Server;
  readonly #connections: ReadonlySet<net.Socket>;

  constructor(server: net.Server, connections: ReadonlySet<net.Socket>) {
    const { port, address } = server.address() as net.AddressInfo;
    this.port = port;
    this.host = address;
    this.#server = server;
    this.#connections = connections;
  }

  /** Stops listening, and resets the open connections. */
  async close(): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    for (const connection of this.#connections) connection.destroy();
    await closed;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** Listens on this machine, and connects each client to a port of a sandbox. */
export async function forward(target: Target, port: number, options: ForwardOptions): Promise<Forward> {
  if (!(port >= 1 && port <= 65535)) throw badArgument(`\`${port}\` is not a port; use 1 to 65535`);
  const { localPort = 0, host = "127.0.0.1", signal, onError } = options;
  signal?.throwIfAborted();
  const connections = new Set<net.Socket>();
  const server = net.createServer({ allowHalfOpen: true, pauseOnConnect: true }, (connection) => {
    connections.add(connection);
    connection.on("close", () => connections.delete(connection));
    connection.on("error", () => undefined);
    serve(target, port, connection).catch((error: unknown) => {
      connection.resetAndDestroy();
      onError?.(error);
    });
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(localPort, host, () => {
      server.off("error", reject);
      resolve();
    });
  });
  const result = new Forward(server, connections);
  const abort = (): void => void result.close();
  signal?.addEventListener("abort", abort);
  server.on("close", () => signal?.removeEventListener("abort", abort));
  return result;
}

async function serve(target: Target, port: number, connection: net.Socket): Promise<void> {
  const socket = await openSocket(target.transport, `${target.path}/ports/${port}/connect`);
  send(connection, socket);
  // A client that resets its connection ends the one in the sandbox too.
  connection.on("close", (failed) => {
    if (failed || !connection.readableEnded) socket.destroy();
  });
  let complete = false;
  for await (const message of socket.messages()) {
    if ("bytes" in message) await write(connection, message.bytes);
    else {
      const { type, code, message: text } = JSON.parse(message.text) as { type: string; code: string; message: string };
      if (type === "error") throw new TideboxError(text, { code });
      if (type === "eof") {
        complete = true;
        connection.end();
      }
    }
  }
  if (!complete && !connection.destroyed) connection.resetAndDestroy();
}

/** Sends what a client writes, and its end. An iterator would close the connection at that end. */
function send(connection: net.Socket, socket: Socket): void {
  connection.on("data", (bytes: Buffer) => {
    connection.pause();
    void socket.send(bytes).then(() => connection.resume());
  });
  connection.on("end", () => void socket.send('{"type":"eof"}'));
  connection.resume();
}

function write(connection: net.Socket, bytes: Buffer): Promise<void> {
  if (connection.destroyed || connection.write(bytes)) return Promise.resolve();
  return new Promise((resolve) => {
    const done = (): void => {
      connection.off("drain", done).off("close", done);
      resolve();
    };
    connection.on("drain", done).on("close", done);
  });
}
