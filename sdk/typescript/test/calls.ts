// The calls of cases.json, in terms of this SDK.
import { mkdir, readFile, readdir, writeFile } from "node:fs/promises";
import { connect } from "node:net";
import { dirname, join } from "node:path";
import { Client, Image, Key, Process, Sandbox, Secret, Snapshot, Template } from "../src/node.ts";
import type { ProcessPiece } from "../src/output.ts";

// biome-ignore lint: arguments of cases have no static types.
export type Args = Record<string, any>;

/** What a call of a case works with. */
export interface World {
  client: Client;
  /** Temporary directory of the case. */
  directory: string;
  /** Runs the steps of `during`. */
  during: () => Promise<void>;
  /** Number of items to read of a stream. */
  take: number;
}

export type Call = (on: any, args: Args, world: World) => Promise<unknown>;

/** Joins the pieces of a stream of output. */
async function output(pieces: AsyncIterable<ProcessPiece<string | Uint8Array>>, world: World): Promise<unknown> {
  const result: Record<string, unknown> = { stdout: "", stderr: "", exitCode: null, gap: null };
  let read = 0;
  for await (const piece of pieces) {
    if (piece.type === "exit") result.exitCode = piece.exitCode;
    else if (piece.type === "gap") result.gap = piece.bytes;
    else result[piece.type] = `${result[piece.type]}${piece.data}`;
    read += 1;
    if (read === world.take) break;
  }
  return result;
}

async function items(source: AsyncIterable<unknown>, world: World): Promise<unknown[]> {
  await world.during();
  const found: unknown[] = [];
  for await (const item of source) {
    found.push(item);
    if (found.length === world.take) break;
  }
  return found;
}

async function all(source: AsyncIterable<unknown>): Promise<unknown[]> {
  const found: unknown[] = [];
  for await (const item of source) found.push(item);
  return found;
}

async function exchange(port: number, data: string): Promise<{ received: string }> {
  return new Promise((resolve, reject) => {
    const socket = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
    let received = "";
    socket.on("data", (bytes) => (received += bytes.toString()));
    socket.on("end", () => resolve({ received }));
    socket.on("error", reject);
    socket.end(data);
  });
}

const withClient = (args: Args, world: World): Args => ({ ...args, client: world.client });

/** Splits named arguments off the options. */
function rest(args: Args, ...names: string[]): Args {
  return Object.fromEntries(Object.entries(args).filter(([name]) => !names.includes(name)));
}

const sandboxCalls: Record<string, Call> = {
  "sandbox.create": (_, args, world) => Sandbox.create(withClient(args, world)),
  "sandbox.connect": (_, args, world) => Sandbox.connect(args.id, withClient({}, world)),
  "sandbox.list": (_, args, world) => all(Sandbox.list(withClient(args, world))),
  "sandbox.list_stats": (_, args, world) => Sandbox.listStats(withClient(args, world)),
  "sandbox.get_info": (_, args, world) => Sandbox.getInfo(args.id, withClient({}, world)),
  info: (on: Sandbox) => on.info(),
  is_running: (on: Sandbox) => on.isRunning(),
  destroy: (on: Sandbox) => on.destroy(),
  kill: (on: Sandbox) => on.kill(),
  close: async (on: Sandbox) => on.close(),
  extend: (on: Sandbox, args) => on.extend(args.ttl),
  set_timeout: (on: Sandbox, args) => on.setTimeout(args.ttl),
  wait: (on: Sandbox, args) => on.wait(args.state, args),
  pause: (on: Sandbox, args) => on.pause(args),
  resume: (on: Sandbox) => on.resume(),
  snapshot: (on: Sandbox, args) => on.snapshot(args.name, args),
  fork: (on: Sandbox, args) => on.fork(args.count, args),
  stats: (on: Sandbox) => on.stats(),
  logs: (on: Sandbox, args) => on.logs(args),
  run: (on: Sandbox, args) => on.run(args.command, encodingOf(rest(args, "command"))),
  stream: (on: Sandbox, args, world) => output(on.stream(args.command, encodingOf(rest(args, "command"))), world),
  run_code: (on: Sandbox, args) => on.runCode(args.code, args),
  shell: (on: Sandbox, args) => on.shell(args),
  preview: (on: Sandbox, args) => on.preview(args.port, args),
  forward: async (on: Sandbox, args) => {
    const forward = await on.forward(args.port);
    try {
      return await exchange(forward.port, args.send);
    } finally {
      await forward.close();
    }
  },
  "ports.list": (on: Sandbox) => on.ports.list(),
  "egress.get": (on: Sandbox) => on.egress.get(),
  "egress.set": (on: Sandbox, args) => on.egress.set(args as { mode: "none" }),
};

function encodingOf(args: Args): Args {
  return "encoding" in args ? { ...args, encoding: args.encoding ?? "bytes" } : args;
}

const partCalls: Record<string, Call> = {
  "contexts.create": (on: Sandbox, args) => on.contexts.create(args),
  "contexts.list": (on: Sandbox) => on.contexts.list(),
  "contexts.get": (on: Sandbox, args) => on.contexts.get(args.context),
  "contexts.delete": (on: Sandbox, args) => on.contexts.delete(args.context),
  "contexts.run": (on: Sandbox, args) => on.contexts.run(args.context, args.code, rest(args, "context", "code")),
  "contexts.interrupt": (on: Sandbox, args) => on.contexts.interrupt(args.context),
  "contexts.restart": (on: Sandbox, args) => on.contexts.restart(args.context),
  "contexts.complete": (on: Sandbox, args) => on.contexts.complete(args.context, args.code, args),
  "files.read": async (on: Sandbox, args) => {
    const content: unknown = await on.files.read(args.path, args);
    return content instanceof ReadableStream ? new Uint8Array(await new Response(content).arrayBuffer()) : content;
  },
  "files.write": (on: Sandbox, args) => on.files.write(args.path, args.data, args),
  "files.list": (on: Sandbox, args) => on.files.list(args.path),
  "files.stat": (on: Sandbox, args) => on.files.stat(args.path),
  "files.exists": (on: Sandbox, args) => on.files.exists(args.path),
  "files.make_dir": (on: Sandbox, args) => on.files.makeDir(args.path),
  "files.move": (on: Sandbox, args) => on.files.move(args.oldPath, args.newPath),
  "files.rename": (on: Sandbox, args) => on.files.rename(args.oldPath, args.newPath),
  "files.remove": (on: Sandbox, args) => on.files.remove(args.path, args),
  "files.chmod": (on: Sandbox, args) => on.files.chmod(args.path, args.mode),
  "files.glob": (on: Sandbox, args) => on.files.glob(args.pattern),
  "files.search": (on: Sandbox, args) => on.files.search(args.pattern, args),
  "files.replace": (on: Sandbox, args) => on.files.replace(args.pattern, args.replacement, args),
  "files.watch": async (on: Sandbox, args, world) => items(await on.files.watch(args.path, args), world),
  "files.upload": (on: Sandbox, args, world) => on.files.upload(join(world.directory, args.local), args.remote),
  "files.download": (on: Sandbox, args, world) => on.files.download(args.remote, join(world.directory, args.local)),
  "files.sync": (on: Sandbox, args, world) => {
    return on.files.sync(join(world.directory, args.local), args.remote, rest(args, "local", "remote"));
  },
  "processes.start": (on: Sandbox, args) => on.processes.start(args.command, rest(args, "command")),
  "processes.list": (on: Sandbox) => on.processes.list(),
  "processes.get": (on: Sandbox, args) => on.processes.get(args.process),
  "processes.connect": (on: Sandbox, args) => on.processes.connect(args.process),
  "process.output": (on: Process, args, world) => output(on.output(encodingOf(args)), world),
  "process.info": (on: Process) => on.info(),
  "process.pid": async (on: Process) => on.pid,
  "process.wait": (on: Process, args) => on.wait(args),
  "process.write": (on: Process, args) => on.write(args.data),
  "process.close_stdin": (on: Process) => on.closeStdin(),
  "process.resize": (on: Process, args) => on.resize(args.cols, args.rows),
  "process.signal": (on: Process, args) => on.signal(args.signal),
  "process.kill": (on: Process) => on.kill(),
};

const serviceCalls: Record<string, Call> = {
  "template.create": (_, args, world) => Template.create(args.name, withClient(rest(args, "name"), world)),
  "template.get": (_, args, world) => Template.get(args.name, withClient({}, world)),
  "template.list": (_, __, world) => Template.list(withClient({}, world)),
  "template.update": (_, args, world) => Template.update(args.name, withClient(rest(args, "name"), world)),
  "template.delete": (_, args, world) => Template.delete(args.name, withClient({}, world)),
  "template.spawn": (_, args, world) => Template.spawn(args.name, withClient(rest(args, "name"), world)),
  "snapshot.list": (_, args, world) => Snapshot.list(withClient(args, world)),
  "snapshot.get": (_, args, world) => Snapshot.get(args.id, withClient({}, world)),
  "snapshot.delete": (_, args, world) => Snapshot.delete(args.id, withClient({}, world)),
  "secret.set": (_, args, world) => Secret.set(args.name, args.value, withClient(args, world)),
  "secret.get": (_, args, world) => Secret.get(args.name, withClient({}, world)),
  "secret.list": (_, __, world) => Secret.list(withClient({}, world)),
  "secret.delete": (_, args, world) => Secret.delete(args.name, withClient({}, world)),
  "key.create": (_, args, world) => Key.create(args.ownerId, withClient(args, world)),
  "key.list": (_, args, world) => Key.list(withClient(args, world)),
  "key.revoke": (_, args, world) => Key.revoke(args.id, withClient({}, world)),
  "image.list": (_, __, world) => Image.list(withClient({}, world)),
  "image.get": (_, args, world) => Image.get(args.name, withClient({}, world)),
  "image.delete": (_, args, world) => Image.delete(args.name, withClient({}, world)),
  "image.pull": (_, args, world) => Image.pull(args.name, withClient(args, world)),
  "image.prune": (_, args, world) => Image.prune(withClient(args, world)),
  "image.import": (_, args, world) => Image.import(args.archive, withClient(args, world)),
  "client.close": async (_, __, world) => world.client.close(),
  "client.health": (_, __, world) => world.client.health(),
  "client.ready": (_, __, world) => world.client.ready(),
  "client.version": (_, __, world) => world.client.version(),
  "client.providers": (_, __, world) => world.client.providers(),
  "client.events": async (_, args, world) => items(await world.client.events(args), world),
  "admin.quotas": (_, __, world) => world.client.admin.quotas(),
  "admin.quota": (_, args, world) => world.client.admin.quota(args.ownerId),
  "admin.quota_summary": (_, __, world) => world.client.admin.quotaSummary(),
  "admin.set_quota": (_, args, world) => world.client.admin.setQuota(args.ownerId, rest(args, "ownerId")),
  "admin.delete_quota": (_, args, world) => world.client.admin.deleteQuota(args.ownerId),
  "admin.usage": (_, args, world) => world.client.admin.usage(args.ownerId),
  "admin.audit": (_, args, world) => all(world.client.admin.audit(args)),
  "admin.workers": (_, __, world) => world.client.admin.workers(),
  "admin.worker": (_, args, world) => world.client.admin.worker(args.id),
  "admin.delete_worker": (_, args, world) => world.client.admin.deleteWorker(args.id),
  "admin.metrics": (_, __, world) => world.client.admin.metrics(),
  "admin.prometheus": (_, __, world) => world.client.admin.prometheus(),
  "admin.diagnostics": (_, __, world) => world.client.admin.diagnostics(),
  "admin.provider": (_, args, world) => world.client.admin.provider(args.name),
  "admin.test_providers": (_, __, world) => world.client.admin.testProviders(),
  "admin.pool_status": (_, __, world) => world.client.admin.poolStatus(),
  "admin.prune": (_, __, world) => world.client.admin.prune(),
};

const localCalls: Record<string, Call> = {
  "local.write": async (_, args, world) => {
    const path = join(world.directory, args.path);
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, args.text ?? Buffer.from(args.base64, "base64"));
  },
  "local.read": async (_, args, world) => new Uint8Array(await readFile(join(world.directory, args.path))),
  "local.list": async (_, args, world) => {
    const root = join(world.directory, args.path);
    const found = await readdir(root, { recursive: true, withFileTypes: true });
    const files = found.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath, entry.name));
    return files.map((path) => path.slice(root.length + 1)).sort();
  },
};

export const CALLS: Readonly<Record<string, Call>> = { ...sandboxCalls, ...partCalls, ...serviceCalls, ...localCalls };
