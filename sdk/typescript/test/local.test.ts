// Local files and ports: what is copied exactly, and what a hostile sandbox cannot do.
import { deepEqual, equal, ok, rejects } from "node:assert/strict";
import * as fs from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { toBase64 } from "../src/bytes.ts";
import { type Source, pack, unpack } from "../src/node/tar.ts";
import { walk } from "../src/node/tree.ts";
import { Client, NotFoundError, Sandbox, StreamInterrupted, TideboxError } from "../src/node.ts";
import { handle } from "../src/sandbox.ts";
import { canned } from "./server.ts";

const url = process.env.TIDEBOX_URL;
const lack = new Set((process.env.TIDEBOX_CASES_LACK ?? "").split(","));
const skip = url === undefined || lack.has("search");

async function inDirectory(body: (directory: string) => Promise<void>): Promise<void> {
  const directory = await fs.mkdtemp(join(tmpdir(), "tidebox-local-"));
  try {
    await body(directory);
  } finally {
    await fs.rm(directory, { recursive: true });
  }
}

async function withSandbox(body: (sandbox: Sandbox, directory: string) => Promise<void>): Promise<void> {
  const sandbox = await Sandbox.create({ ttl: 300 });
  try {
    await inDirectory((directory) => body(sandbox, directory));
  } finally {
    await sandbox.destroy();
  }
}

async function bytesOf(source: AsyncIterable<Uint8Array>): Promise<Buffer> {
  const parts: Uint8Array[] = [];
  for await (const part of source) parts.push(part);
  return Buffer.concat(parts);
}

function member(path: string, more: Partial<Source> = {}): Source {
  const text = more.content === undefined && (more.type ?? "file") === "file" ? path : "";
  const content = async function* () {
    yield Buffer.from(text);
  };
  return { type: "file", path, mode: 0o644, mtime: "1700000000.25", size: text.length, target: "", content, ...more };
}

/** Describes a tree: paths with their types, modes, times, content and targets. */
async function tree(root: string): Promise<string[]> {
  const found: string[] = [];
  for await (const { type, path, mode, mtime, size, target } of walk(root)) {
    const content = type === "file" && size < 100 ? await fs.readFile(join(root, path), "latin1") : "";
    // Times of links cannot be set everywhere.
    found.push([type, path, mode.toString(8), type === "symlink" ? "" : mtime, size, target, content].join(" "));
  }
  return found;
}

async function makeTree(root: string): Promise<void> {
  const long = `${"d".repeat(90)}/${"e".repeat(120)}`;
  await fs.mkdir(join(root, long), { recursive: true });
  await fs.mkdir(join(root, "empty"));
  await fs.writeFile(join(root, long, "deep"), "deep");
  await fs.writeFile(join(root, "run.sh"), "#!/bin/sh\n", { mode: 0o755 });
  await fs.writeFile(join(root, "with space #%?"), "odd");
  await fs.writeFile(join(root, "none"), "");
  await fs.writeFile(join(root, "big"), Buffer.alloc(3_000_000, 7));
  await fs.symlink("a target/with space", join(root, "link"));
  await fs.chmod(join(root, "empty"), 0o711);
  const entries = [];
  for await (const entry of walk(root)) entries.push(entry);
  // A fraction that a double holds exactly: runtimes set times with less than nanoseconds.
  for (const { type, path } of entries.reverse()) {
    if (type !== "symlink") await fs.utimes(join(root, path), 1_700_000_000.25, 1_700_000_000.25);
  }
}

test("an archive is read as it was written, however it is cut", async () => {
  const members = [
    member("a"),
    member("x".repeat(300)),
    member("d/", { type: "directory", size: 0 }),
    member("l", { type: "symlink", target: "y".repeat(200) }),
  ];
  const whole = await bytesOf(pack(members));
  for (const size of [1, 7, 512, whole.length]) {
    const found: string[] = [];
    const source = async function* () {
      for (let at = 0; at < whole.length; at += size) yield whole.subarray(at, at + size);
    };
    await unpack(source(), "u", async ({ type, path, mtime, target }, content) => {
      found.push(`${type} ${path} ${mtime} ${target} ${path === "a" ? (await bytesOf(content)).toString() : ""}`);
    });
    deepEqual(found, [
      "file a 1700000000.25  a",
      `file ${"x".repeat(300)} 1700000000.25  `,
      "directory d/ 1700000000.25  ",
      `symlink l 1700000000.25 ${"y".repeat(200)} `,
    ]);
  }
});

/** Downloads a directory from a server that sends this archive. */
async function download(archive: Uint8Array, local: string): Promise<void> {
  const headers = { "content-type": "application/x-tar" };
  const info = { name: "d", path: "/d", size: 0, is_dir: true, mode: "0755", mod_time: "2026-01-01T00:00:00Z" };
  const server = await canned([{ body: info }, { headers, base64: toBase64(archive) }]);
  const client = new Client({ url: server.url });
  try {
    await handle(Sandbox, client, "sb-1").files.download("/d", local);
  } finally {
    client.close();
    await server[Symbol.asyncDispose]();
  }
}

test("a hostile archive writes nothing outside of its directory", async () => {
  await inDirectory(async (directory) => {
    const outside = join(directory, "outside");
    await fs.mkdir(outside);
    await fs.writeFile(join(outside, "victim"), "safe");
    const hostile: Source[][] = [
      [member("../evil")],
      [member("/evil")],
      [member("a/../../evil")],
      [member("link", { type: "symlink", target: outside }), member("link/evil")],
      [
        member("link", { type: "symlink", target: outside }),
        member("link", { type: "directory" }),
        member("link/evil"),
      ],
      [member("hard", { type: "hardlink", target: "../outside/victim" }), member("hard")],
      [
        member("link", { type: "symlink", target: outside }),
        member("hard", { type: "hardlink", target: "link/victim" }),
      ],
      [member("..", { type: "directory", mode: 0o000 })],
    ];
    for (const [at, members] of hostile.entries()) {
      const local = join(directory, `local-${at}`);
      await rejects(download(await bytesOf(pack(members)), local), `archive ${at}`);
      deepEqual((await fs.readdir(outside)).sort(), ["victim"]);
      equal(await fs.readFile(join(outside, "victim"), "utf8"), "safe");
      deepEqual(
        (await fs.readdir(directory)).filter((name) => name === "evil"),
        [],
      );
      deepEqual(
        (await fs.readdir(local)).filter((name) => name.startsWith(".tidebox")),
        [],
      );
    }
  });
});

test("a link in the place of a file is replaced and not followed", async () => {
  await inDirectory(async (directory) => {
    const victim = join(directory, "victim");
    await fs.writeFile(victim, "safe");
    const local = join(directory, "local");
    await fs.mkdir(local);
    await fs.symlink(victim, join(local, "a"));
    await download(await bytesOf(pack([member("a", { mode: 0o4777 })])), local);
    equal(await fs.readFile(victim, "utf8"), "safe");
    equal(await fs.readFile(join(local, "a"), "utf8"), "a");
    equal((await fs.lstat(join(local, "a"))).mode & 0o7777, 0o777);
  });
});

test("an archive that breaks off or is damaged is an error", async () => {
  await inDirectory(async (directory) => {
    const whole = await bytesOf(pack([member("a"), member("b")]));
    await rejects(download(whole.subarray(0, 1536), join(directory, "1")), TideboxError);
    await rejects(download(whole.subarray(0, 700), join(directory, "2")), TideboxError);
    const damaged = Buffer.from(whole);
    damaged[0] = 0xff;
    await rejects(download(damaged, join(directory, "3")), TideboxError);
    await rejects(download(Buffer.from("<html>"), join(directory, "4")), TideboxError);
  });
});

test("a tree survives an upload and a download", { skip }, async () => {
  await withSandbox(async (sandbox, directory) => {
    await makeTree(join(directory, "src"));
    await sandbox.files.upload(join(directory, "src"), "/workspace/dst");
    await sandbox.files.download("/workspace/dst", join(directory, "back"));
    deepEqual(await tree(join(directory, "back")), await tree(join(directory, "src")));
  });
});

test(
  "a name that is not UTF-8 survives an upload and a download",
  { skip: skip || "Deno" in globalThis || "Bun" in globalThis },
  async () => {
    await withSandbox(async (sandbox, directory) => {
      await fs.mkdir(join(directory, "src"));
      await fs.writeFile(Buffer.from(`${directory}/src/caf\xe9`, "latin1"), "x");
      await sandbox.files.upload(join(directory, "src"), "/workspace/dst");
      equal((await sandbox.files.list("/workspace/dst"))[0]?.name, "caf\\xe9");
      await sandbox.files.download("/workspace/dst", join(directory, "back"));
      const [name] = await fs.readdir(join(directory, "back"), { encoding: "buffer" });
      equal(Buffer.from(name as Uint8Array).toString("latin1"), "caf\xe9");
      deepEqual(await sandbox.files.sync(join(directory, "src"), "/workspace/dst"), { sent: 0, bytes: 0, removed: 0 });
    });
  },
);

test("a file keeps its mode, and set-user-id is dropped", { skip }, async () => {
  await withSandbox(async (sandbox, directory) => {
    const local = join(directory, "a");
    await fs.writeFile(local, "x", { mode: 0o750 });
    await sandbox.files.upload(local, "/workspace/a");
    await sandbox.files.chmod("/workspace/a", "4755");
    await sandbox.files.download("/workspace/a", join(directory, "new/b"));
    equal((await fs.stat(join(directory, "new/b"))).mode & 0o7777, 0o755);
    await rejects(sandbox.files.download("/workspace/none", local), NotFoundError);
    equal(await fs.readFile(local, "utf8"), "x");
  });
});

test("a sync sends differences only, and a second one finds none", { skip }, async () => {
  await withSandbox(async (sandbox, directory) => {
    const root = join(directory, "src");
    const remote = "/workspace/dst";
    await makeTree(root);
    const first = await sandbox.files.sync(root, remote);
    equal(first.sent, 6);
    ok(first.bytes > 3_000_000);
    const none = { sent: 0, bytes: 0, removed: 0 };
    deepEqual(await sandbox.files.sync(root, remote, { delete: true }), none);
    deepEqual(await sandbox.files.sync(root, remote, { delete: true, checksum: true }), none);
    await fs.chmod(join(root, "run.sh"), 0o700);
    deepEqual(await sandbox.files.sync(root, remote), none);
    equal((await sandbox.files.stat(`${remote}/run.sh`)).mode.slice(-3), "700");
    deepEqual(await sandbox.files.sync(root, remote, { checksum: true }), none);
    await fs.utimes(join(root, "none"), 1, 1);
    equal((await sandbox.files.sync(root, remote, { dryRun: true })).sent, 1);
    equal((await sandbox.files.sync(root, remote, { checksum: true })).sent, 0);
    await sandbox.files.write(`${remote}/extra dir/file`, "x");
    deepEqual(await sandbox.files.sync(root, remote), none);
    deepEqual(await sandbox.files.sync(root, remote, { delete: true }), { sent: 0, bytes: 0, removed: 2 });
    await sandbox.files.download(remote, join(directory, "back"));
    deepEqual(await tree(join(directory, "back")), await tree(root));
  });
});

test("a sync replaces a directory by a file only with delete", { skip }, async () => {
  await withSandbox(async (sandbox, directory) => {
    const root = join(directory, "src");
    const remote = "/workspace/dst";
    await fs.mkdir(root);
    await fs.writeFile(join(root, "a"), "file");
    await fs.mkdir(join(root, "b"));
    await fs.writeFile(join(root, "b/inner"), "x");
    await sandbox.files.write(`${remote}/a/below/x`, "dir");
    await sandbox.files.write(`${remote}/b`, "file");
    await rejects(sandbox.files.sync(root, remote), { code: "conflict" });
    equal(await sandbox.files.read(`${remote}/b`), "file");
    equal((await sandbox.files.sync(root, remote, { delete: true })).sent, 2);
    equal(await sandbox.files.read(`${remote}/a`), "file");
    equal(await sandbox.files.read(`${remote}/b/inner`), "x");
  });
});

const SERVER = `
import socket, threading
def serve(c):
    while (p := c.recv(65536)): c.sendall(p)
    c.shutdown(socket.SHUT_WR); c.close()
s = socket.create_server(("127.0.0.1", 3456))
while True: threading.Thread(target=serve, args=(s.accept()[0],)).start()
`;

/** Sends bytes through a port and returns what came back. */
function echo(port: number, data: Uint8Array): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    const socket = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
    const parts: Buffer[] = [];
    socket.on("data", (part) => parts.push(part));
    socket.on("end", () => resolve(Buffer.concat(parts)));
    socket.on("error", reject);
    socket.end(data);
  });
}

test(
  "a forward carries large data both ways on many connections",
  { skip: skip || lack.has("ports") || lack.has("python") },
  async () => {
    await withSandbox(async (sandbox) => {
      await sandbox.processes.start(["python3", "-c", SERVER]);
      while (!(await sandbox.ports.list()).some(({ port }) => port === 3456))
        await new Promise((r) => setTimeout(r, 20));
      const errors: unknown[] = [];
      const forward = await sandbox.forward(3456, { onError: (error) => errors.push(error) });
      const data = Buffer.alloc(8 * 1024 * 1024, "0123456789abcde");
      ok((await echo(forward.port, data)).equals(data));
      const small = await Promise.all(Array.from({ length: 20 }, (_, at) => echo(forward.port, Buffer.from(`n${at}`))));
      deepEqual(
        small.map(String),
        Array.from({ length: 20 }, (_, at) => `n${at}`),
      );
      deepEqual(errors, []);
      await forward.close();
      await rejects(echo(forward.port, data));
    });
  },
);

test(
  "a connection to a port that nothing listens on is reset, and says why",
  { skip: skip || lack.has("ports") },
  async () => {
    await withSandbox(async (sandbox) => {
      const errors: unknown[] = [];
      const controller = new AbortController();
      const forward = await sandbox.forward(3999, {
        onError: (error) => errors.push(error),
        signal: controller.signal,
      });
      await echo(forward.port, Buffer.from("x")).catch(() => undefined);
      ok(errors[0] instanceof NotFoundError, String(errors[0]));
      controller.abort();
      while (
        await echo(forward.port, Buffer.from("x")).then(
          () => true,
          (error) => error.code !== "ECONNREFUSED",
        )
      );
    });
  },
);

test("a terminal is killed at the end of its block", { skip: skip || lack.has("terminal") }, async () => {
  await withSandbox(async (sandbox) => {
    const terminal = await sandbox.shell();
    await terminal.write("echo $((6*7))\n");
    for await (const piece of terminal) if (piece.type === "stdout" && piece.data.includes("42")) break;
    await terminal[Symbol.asyncDispose]();
    await rejects(terminal.info(), NotFoundError);
    ok(StreamInterrupted);
  });
});
