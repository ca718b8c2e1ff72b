// Servers that misbehave, and callers that give up.
import { deepEqual, equal, ok, rejects } from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { toBase64 } from "../src/bytes.ts";
import { CodeResult, Execution } from "../src/code.ts";
import {
  ApiError,
  Client,
  ConnectionFailed,
  InvalidArgument,
  PayloadTooLargeError,
  ProtocolError,
  RequestTimeout,
  ResourceLimitError,
  Sandbox,
  StreamInterrupted,
  TideboxError,
} from "../src/node.ts";
import { handle } from "../src/sandbox.ts";
import { type Canned, canned } from "./server.ts";

const FRAMES = { "content-type": "application/octet-stream" };
const EXIT = '{"type":"exit","exit_code":0}';

function frame(kind: number, text: string): Buffer {
  const payload = Buffer.from(text);
  const head = Buffer.alloc(5);
  head[0] = kind;
  head.writeUInt32BE(payload.length, 1);
  return Buffer.concat([head, payload]);
}

const base64 = (...frames: Buffer[]): string => toBase64(Buffer.concat(frames));

async function using<T>(
  answers: Canned[],
  body: (sandbox: Sandbox, client: Client, server: Awaited<ReturnType<typeof canned>>) => Promise<T>,
  options: object = {},
): Promise<T> {
  const server = await canned(answers);
  const client = new Client({ url: server.url, ...options });
  try {
    return await body(handle(Sandbox, client, "sb-1"), client, server);
  } finally {
    client.close();
    await server[Symbol.asyncDispose]();
  }
}

async function thrown(promise: Promise<unknown>): Promise<TideboxError> {
  try {
    await promise;
  } catch (error) {
    return error as TideboxError;
  }
  throw new Error("nothing was thrown");
}

/** Waits for a condition. */
async function until(condition: () => boolean): Promise<void> {
  for (let round = 0; round < 200 && !condition(); round += 1) await new Promise((resolve) => setTimeout(resolve, 20));
  ok(condition(), "the condition did not come true");
}

test("a server that is away names its address and the command that starts it", async () => {
  for (const url of ["http://127.0.0.1:1", "http://does-not-exist.invalid:81"]) {
    const error = await thrown(new Client({ url, retries: 0 }).health());
    ok(error instanceof ConnectionFailed, String(error));
    ok(error.message.includes(url) && error.message.includes("tidebox serve"), error.message);
    ok(error.retryable);
  }
});

test("a connection that breaks before the answer is not a failure to connect", async () => {
  await using([{ close: true }], async (sandbox) => {
    const error = await thrown(sandbox.run("true"));
    ok(error instanceof StreamInterrupted, String(error));
  });
});

test("a server that dies in a stream is an error, and its output so far was delivered", async () => {
  await using([{ headers: FRAMES, base64: base64(frame(1, "begun")), cut: true }], async (sandbox) => {
    const pieces: string[] = [];
    const error = await thrown(sandbox.run("x", { onStdout: (text) => pieces.push(text) }));
    ok(error instanceof StreamInterrupted, String(error));
    deepEqual(pieces, ["begun"]);
  });
});

test("a stream that ends within a frame or a message is an error", async () => {
  for (const cut of [
    frame(1, "hello").subarray(0, 7),
    frame(1, "hello").subarray(0, 3),
    frame(0, EXIT).subarray(0, 20),
  ]) {
    await using([{ headers: FRAMES, base64: toBase64(cut) }], async (sandbox) => {
      ok((await thrown(sandbox.run("x"))) instanceof StreamInterrupted);
    });
  }
});

test("frames are the same however they are cut", async () => {
  const whole = Buffer.concat([frame(1, "hällo"), frame(0, ""), frame(2, "oh"), frame(1, ""), frame(0, EXIT)]);
  const { Frames } = await import("../src/bytes.ts");
  for (let size = 1; size <= whole.length; size += 1) {
    const frames = new Frames();
    const output: Buffer[] = [];
    const messages: string[] = [];
    for (let at = 0; at < whole.length; at += size) {
      for (const [kind, payload] of frames.push(whole.subarray(at, at + size), "u")) {
        if (kind === 1) output.push(Buffer.from(payload));
        if (kind === 0) messages.push(Buffer.from(payload).toString());
      }
    }
    equal(Buffer.concat(output).toString(), "hällo");
    deepEqual(messages, [EXIT]);
    ok(!frames.partial);
  }
});

test("frames of an unknown kind and messages that are too long are refused", async () => {
  const long = Buffer.from([0, 0, 1, 0, 1]);
  for (const bytes of [frame(9, "x"), long, frame(0, "no json")]) {
    await using([{ headers: FRAMES, base64: toBase64(bytes) }], async (sandbox) => {
      ok((await thrown(sandbox.run("x"))) instanceof ProtocolError);
    });
  }
});

test("HTML with status 200 is a protocol error with its first words, for calls and for streams", async () => {
  const page = { headers: { "content-type": "text/html" }, body: "<html>\n<h1>Sign in</h1>" };
  await using([page], async (sandbox, client) => {
    const calls = [sandbox.info(), sandbox.run("x"), sandbox.runCode("x"), client.events(), sandbox.files.watch("/a")];
    for (const error of await Promise.all(calls.map(thrown))) {
      ok(error instanceof ProtocolError && error.message.includes("Sign in"), String(error));
    }
  });
});

test("a redirect is not followed, so the key stays with its server", async () => {
  await using(
    [{ status: 302, headers: { location: "http://127.0.0.1:1/login" }, body: "" }],
    async (_, client, server) => {
      const error = await thrown(client.health());
      ok(error instanceof ProtocolError, String(error));
      equal(server.seen.length, 1);
    },
  );
});

test("a stream that is silent is an error, and signs of life are not", async () => {
  const silent = { headers: FRAMES, base64: base64(frame(1, "x")), silent: true };
  await using(
    [silent],
    async (sandbox) => {
      const error = await thrown(sandbox.run("x"));
      ok(error instanceof StreamInterrupted && error.message.includes("nothing for 0.3 seconds"), String(error));
    },
    { streamTimeout: 0.3 },
  );
  const server = createServer((_, response) => {
    response.writeHead(200, FRAMES);
    let round = 0;
    const timer = setInterval(() => {
      round += 1;
      response.write(round < 8 ? frame(0, "") : frame(0, EXIT));
      if (round === 8) {
        clearInterval(timer);
        response.end();
      }
    }, 100);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  const client = new Client({ url: `http://127.0.0.1:${port}`, streamTimeout: 0.4 });
  equal((await handle(Sandbox, client, "s").run("x")).exitCode, 0);
  server.closeAllConnections();
  server.close();
});

test("a reader that takes its time is not taken for silence", async () => {
  const answer = { headers: FRAMES, base64: base64(frame(1, "a"), frame(0, EXIT)) };
  await using(
    [answer],
    async (sandbox) => {
      const pieces: string[] = [];
      for await (const piece of sandbox.stream("x")) {
        pieces.push(piece.type);
        if (piece.type === "stdout") await new Promise((resolve) => setTimeout(resolve, 500));
      }
      deepEqual(pieces, ["stdout", "exit"]);
    },
    { streamTimeout: 0.2 },
  );
});

test("no call hangs on a server that accepts and says nothing", async () => {
  await using(
    [{ no_head: true }],
    async (sandbox, client) => {
      const calls = [
        client.health(),
        sandbox.info(),
        sandbox.run("x"),
        sandbox.runCode("x"),
        sandbox.destroy(),
        client.events(),
        sandbox.files.read("/a"),
        sandbox.files.write("/a", "x"),
        sandbox.files.watch("/a"),
        sandbox.processes.list(),
        sandbox.stats(),
        sandbox.forward(80).then(async (forward) => {
          await forward.close();
          throw new RequestTimeout(0);
        }),
      ];
      for (const error of await Promise.all(calls.map(thrown))) ok(error instanceof RequestTimeout, String(error));
      const create = thrown(Sandbox.create({ client, requestTimeout: 0.3 }));
      ok((await create) instanceof RequestTimeout);
    },
    { timeout: 0.3, retries: 0 },
  );
});

test("429 with Retry-After is retried after that time, and without it is not", async () => {
  const limited = { status: 429, body: { code: "resource_limit", message: "too many" } };
  await using(
    [{ ...limited, headers: { "retry-after": "1" } }, { body: { status: "ok" } }],
    async (_, client, server) => {
      const began = performance.now();
      equal((await client.health()).status, "ok");
      ok(performance.now() - began >= 990 && performance.now() - began < 3000);
      equal(server.seen.length, 2);
    },
  );
  await using([limited], async (_, client, server) => {
    const error = await thrown(client.health());
    ok(error instanceof ResourceLimitError && !error.retryable && error.retryAfter === undefined);
    equal(server.seen.length, 1);
  });
  await using([{ ...limited, headers: { "retry-after": "3600" } }], async (_, client, server) => {
    const error = await thrown(client.health());
    ok(error.retryable && error.retryAfter === 3600 && error.message.includes("3600"), String(error));
    equal(server.seen.length, 1);
  });
});

test("exec, code and other POST requests are sent once", async () => {
  await using([{ status: 503, body: { code: "unavailable", message: "m" } }], async (sandbox, _, server) => {
    const calls = [
      () => sandbox.run("x"),
      () => sandbox.runCode("x"),
      () => sandbox.processes.start("x"),
      () => sandbox.fork(),
      () => sandbox.pause(),
      () => sandbox.extend(1),
      () => sandbox.files.move("/a", "/b"),
      () => sandbox.files.makeDir("/a"),
    ];
    for (const [at, call] of calls.entries()) {
      ok((await thrown(call())) instanceof ApiError);
      equal(server.seen.length, at + 1);
    }
  });
});

test("a streamed upload is sent once, and bytes are sent again", async () => {
  await using([{ status: 503, body: { code: "unavailable", message: "m" } }], async (sandbox, _, server) => {
    await thrown(
      sandbox.files.write(
        "/a",
        (async function* () {
          yield "x";
        })(),
      ),
    );
    equal(server.seen.length, 1);
    await thrown(sandbox.files.write("/a", "x"));
    equal(server.seen.length, 4);
  });
});

test("an error of the source of an upload comes out of the call", async () => {
  await using([{ body: { status: "ok" } }], async (sandbox) => {
    const source = (async function* () {
      yield "x";
      throw new RangeError("the disk is gone");
    })();
    const error = await thrown(sandbox.files.write("/a", source));
    ok(String(error).includes("the disk is gone"), String(error));
  });
});

test("an abort before, during and after the answer throws the reason", async () => {
  const silent = { headers: FRAMES, base64: base64(frame(1, "x")), silent: true };
  await using([silent], async (sandbox, client, server) => {
    const reason = new Error("the user left");
    await rejects(sandbox.info({ signal: AbortSignal.abort(reason) }), reason);
    equal(server.seen.length, 0);
    for (const call of [
      (signal: AbortSignal) => sandbox.run("x", { signal }),
      (signal: AbortSignal) => sandbox.files.read("/a", { signal }),
    ]) {
      const controller = new AbortController();
      const result = call(controller.signal);
      const seen = server.seen.length + 1;
      await until(() => server.seen.length === seen);
      controller.abort(reason);
      await rejects(result, reason);
    }
    await until(() => server.open() === 0);
    const controller = new AbortController();
    const pause = thrown(new Client({ url: "http://127.0.0.1:1" }).health({ signal: controller.signal }));
    controller.abort(reason);
    equal(await pause, reason as TideboxError);
    ok(client.url.startsWith("http"));
  });
});

test("a callback that throws ends the connection and its error comes out unchanged", async () => {
  const output = { headers: FRAMES, base64: base64(frame(1, "x")), silent: true };
  const line = '{"type":"stdout","text":"x"}\n';
  const code = { headers: { "content-type": "application/x-ndjson" }, body: line, silent: true };
  await using([output, output, code], async (sandbox, _, server) => {
    const mine = new Error("mine");
    const fail = (): never => {
      throw mine;
    };
    const late = async (): Promise<never> => {
      throw mine;
    };
    await rejects(sandbox.run("x", { onStdout: fail }), mine);
    await rejects(sandbox.run("x", { onStdout: late }), mine);
    await rejects(sandbox.runCode("x", { onStdout: fail }), mine);
    await until(() => server.open() === 0);
  });
});

test("leaving a stream early ends its connection", async () => {
  await using([{ headers: FRAMES, base64: base64(frame(1, "x")), silent: true }], async (sandbox, _, server) => {
    for await (const piece of sandbox.stream("x")) {
      equal(piece.type, "stdout");
      break;
    }
    await until(() => server.open() === 0);
  });
});

test("closing a subscription ends its iteration without an error", async () => {
  const events = { headers: { "content-type": "text/event-stream" }, body: ": watching\n\n", silent: true };
  await using([events], async (sandbox, client, server) => {
    for (const subscription of [await sandbox.files.watch("/a"), await client.events()]) {
      const next = subscription[Symbol.asyncIterator]().next();
      await new Promise((resolve) => setTimeout(resolve, 20));
      subscription.close();
      deepEqual(await next, { done: true, value: undefined });
    }
    await until(() => server.open() === 0);
  });
});

test("closing a client ends its open calls, and later calls work", async () => {
  await using([{ no_head: true }, { body: { status: "ok", version: "1" } }], async (_, client, server) => {
    const open = thrown(client.health());
    await until(() => server.seen.length === 1);
    client.close();
    equal((await open).code, "client_closed");
    equal(await client.version(), "1");
  });
});

test("arguments that cannot be sent are refused before a request", async () => {
  await using([{ body: {} }], async (sandbox, client, server) => {
    const bad = [
      () => sandbox.run([]),
      () => sandbox.run("x", { timeout: -1 }),
      () => sandbox.files.read("a"),
      () => sandbox.files.write("/a/../b", ""),
      () => sandbox.files.write("/a/", ""),
      () => sandbox.files.read("/\ud800"),
      () => sandbox.processes.get(".."),
      () => sandbox.files.write("/a", 5 as never),
      () => sandbox.extend(Number.NaN),
      async () => new Client({ url: "localhost:7423" }),
      async () => new Client({ url: "http://a:b@c" }),
      async () => new Client({ url: "http://a/?b" }),
      async () => new Client({ apiKey: "a\nb" }),
      () => sandbox.forward(0),
    ];
    for (const call of bad) {
      const error = await thrown((async () => call())());
      ok(error instanceof InvalidArgument, `${call}: ${error}`);
    }
    ok((await thrown(sandbox.run("x".repeat(1024 * 1024)))) instanceof PayloadTooLargeError);
    equal(server.seen.length, 0);
    ok(!String(await thrown((async () => new Client({ url: "http://user:hunter2@h" }))())).includes("hunter2"));
    ok(client);
  });
});

test("the settings come from arguments first, and else from the environment", async () => {
  const before = { ...process.env };
  try {
    process.env.TIDEBOX_URL = "http://env.example:1/prefix/";
    process.env.TIDEBOX_API_KEY = " key ";
    const client = new Client();
    equal(client.url, "http://env.example:1/prefix");
    equal(client.transport.headers["x-api-key"], "key");
    equal(new Client({ url: "http://h:2", apiKey: "other" }).transport.headers["x-api-key"], "other");
    delete process.env.TIDEBOX_URL;
    equal(new Client().url, "http://127.0.0.1:7423");
  } finally {
    for (const name of ["TIDEBOX_URL", "TIDEBOX_API_KEY"]) {
      if (before[name] === undefined) delete process.env[name];
      else process.env[name] = before[name];
    }
  }
});

test("timers and listeners of finished calls are released", async () => {
  await using([{ body: { status: "ok" } }], async (_, client) => {
    const controller = new AbortController();
    let listeners = 0;
    const { signal } = controller;
    const add = signal.addEventListener.bind(signal);
    const remove = signal.removeEventListener.bind(signal);
    signal.addEventListener = (...args: Parameters<typeof add>) => ((listeners += 1), add(...args));
    signal.removeEventListener = (...args: Parameters<typeof remove>) => ((listeners -= 1), remove(...args));
    for (let round = 0; round < 20; round += 1) await client.health({ signal });
    equal(listeners, 0);
  });
});

test("an execution reads as what the code showed", () => {
  const execution = new Execution();
  execution.outcome = "ok";
  execution.stdout = "out\n";
  execution.results.push(new CodeResult({ "text/plain": "<Figure>", "image/png": "aGk=" }, false));
  execution.results.push(new CodeResult({ "text/plain": "42" }, true));
  deepEqual([execution.ok, String(execution)], [true, "out\n[image]\n42"]);
  const failed = new Execution();
  failed.error = { name: "KernelDied", value: "the interpreter ended", traceback: "" };
  deepEqual([failed.ok, String(failed)], [false, "KernelDied: the interpreter ended"]);
});
