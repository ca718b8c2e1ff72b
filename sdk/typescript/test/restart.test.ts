// Streams that continue after the server was killed and started again; needs TIDEBOX_BINARY.
import { deepEqual, equal, ok } from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { Client, Sandbox } from "../src/index.ts";

const binary = process.env.TIDEBOX_BINARY;
const LINES = 40;

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  await new Promise<void>((resolve) => server.close(() => resolve()));
  return port;
}

async function untilReady(client: Client): Promise<void> {
  for (let round = 0; round < 200; round += 1) {
    if (await client.ready().catch(() => undefined)) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  throw new Error("the server did not become ready");
}

test(
  "output and events continue after the server was killed",
  { skip: binary === undefined, timeout: 60_000 },
  async () => {
    const directory = await mkdtemp(join(tmpdir(), "tidebox-restart-"));
    const port = await freePort();
    await writeFile(join(directory, "c.yaml"), `server: {port: ${port}}\n`);
    const env = { ...process.env, HOME: directory, TIDEBOX_DATA_DIR: join(directory, "data") };
    const start = (): ChildProcess => {
      return spawn(binary as string, ["serve", "--config", "c.yaml"], { cwd: directory, env, stdio: "ignore" });
    };
    let server = start();
    const client = new Client({ url: `http://127.0.0.1:${port}`, retries: 0 });
    try {
      await untilReady(client);
      const sandbox = await Sandbox.create({ client, ttl: 120 });
      const started = await sandbox.processes.start(`for i in $(seq 1 ${LINES}); do echo $i; sleep 0.1; done`);
      const events = await client.events({ types: ["sandbox.extended"] });
      const exit = started.wait();
      let text = "";
      let wasKilled = false;
      for await (const piece of started.output()) {
        if (piece.type === "stdout") text += piece.data;
        if (wasKilled || !text.includes("\n9\n")) continue;
        wasKilled = true;
        server.kill("SIGKILL");
        server = start();
      }
      ok(wasKilled);
      equal(text, Array.from({ length: LINES }, (_, at) => `${at + 1}\n`).join(""));
      equal((await exit).exitCode, 0);
      await untilReady(client);
      await sandbox.extend(300);
      const found: string[] = [];
      for await (const event of events) {
        found.push(event.type);
        if (event.type === "sandbox.extended") break;
      }
      deepEqual(
        found.filter((type) => type !== "events.gap"),
        ["sandbox.extended"],
      );
      await sandbox.destroy();
    } finally {
      const ended = new Promise((resolve) => server.on("exit", resolve));
      server.kill("SIGTERM");
      await ended;
      await rm(directory, { recursive: true });
    }
  },
);
