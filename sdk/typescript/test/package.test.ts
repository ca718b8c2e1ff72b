// The package as its users get it: size, types, the tarball, and the quickstart on every runtime.
import { deepEqual, equal, ok } from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { cp, mkdir, mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build, transform } from "esbuild";

const root = fileURLToPath(new URL("..", import.meta.url));
const modules = join(root, "node_modules");
const lack = new Set((process.env.TIDEBOX_CASES_LACK ?? "").split(","));
const skip =
  process.env.TIDEBOX_URL === undefined || lack.has("programs") || lack.has("python") || lack.has("contexts");
const BUNDLE_BYTES_MAX = 15_000;
let project: string;

function run(command: string, args: readonly string[], cwd: string, env: Record<string, string> = {}): string {
  const result = spawnSync(command, args, { cwd, encoding: "utf8", env: { ...process.env, ...env } });
  equal(result.status, 0, `${command} ${args.join(" ")}\n${result.stdout}\n${result.stderr}\n${result.error ?? ""}`);
  return result.stdout;
}

/** Builds the package, and a project that has the content of its tarball. */
before(async () => {
  project = await mkdtemp(join(tmpdir(), "tidebox-package-"));
  const tsc = join(modules, "typescript/bin/tsc");
  const installed = join(project, "node_modules/tidebox");
  await mkdir(installed, { recursive: true });
  run(process.execPath, [tsc, "-p", "tsconfig.build.json"], root);
  const manifest = JSON.parse(await readFile(join(root, "package.json"), "utf8")) as { files: string[] };
  for (const name of [...manifest.files, "package.json"])
    await cp(join(root, name), join(installed, name), { recursive: true });
  await writeFile(join(project, "package.json"), '{"type": "module", "private": true}');
});

after(async () => {
  await rm(project, { recursive: true });
});

test("the main entry is below 15 KB compressed and needs no modules", async () => {
  const entry = join(root, "src/index.ts");
  const options = {
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    platform: "browser",
    write: false,
  } as const;
  const { outputFiles } = await build({ ...options, entryPoints: [entry] });
  const size = gzipSync((outputFiles[0] as { contents: Uint8Array }).contents, { level: 9 }).length;
  console.log(`# bundle: ${size} bytes compressed`);
  ok(size < BUNDLE_BYTES_MAX, `${size} bytes`);
});

test("the types of the API match docs/openapi.json", () => {
  run(process.execPath, ["scripts/generate.mjs", "--check"], root);
});

test("the package declares no dependency and only ships what it needs", async () => {
  const manifest = JSON.parse(await readFile(join(root, "package.json"), "utf8")) as Record<string, unknown>;
  for (const kind of ["dependencies", "peerDependencies", "optionalDependencies"]) equal(manifest[kind], undefined);
  const scripts = manifest.scripts as Record<string, string>;
  for (const name of ["install", "postinstall", "preinstall"]) equal(scripts[name], undefined);
  deepEqual(manifest.files, ["dist", "README.md", "LICENSE"]);
  const versions = Object.values(manifest.devDependencies as Record<string, string>);
  ok(
    versions.every((version) => /^\d/.test(version)),
    "development dependencies are pinned",
  );
  const { VERSION } = await import("../src/index.ts");
  equal(VERSION, manifest.version);
});

test("sources stay below 600 lines", async () => {
  for (const path of run("git", ["ls-files", "src", "test", "scripts"], root).trim().split("\n")) {
    if (path === "src/wire.ts") continue;
    const lines = (await readFile(join(root, path), "utf8")).split("\n").length;
    ok(lines < 600, `${path} has ${lines} lines`);
  }
});

/** Returns the program of the README. */
async function quickstart(): Promise<string> {
  const readme = await readFile(join(root, "README.md"), "utf8");
  const [, source] = /## Quickstart[\s\S]*?```ts\n([\s\S]*?)```/.exec(readme) as RegExpExecArray;
  return source as string;
}

const CONSUMER = `
import { Client, NotFoundError, Sandbox, type SandboxInfo, Template } from "tidebox";
import * as node from "tidebox/node";

export async function main(client: Client, signal?: AbortSignal): Promise<void> {
  await using sandbox = await Sandbox.create({ client, memoryMb: 128, ttl: 60, metadata: { a: "b" }, signal });
  const text: string = (await sandbox.run("x", { timeout: 1.5, onStdout: (data: string) => data.trim() })).stdout;
  const bytes: Uint8Array = (await sandbox.run(["x"], { encoding: "bytes", onStdout: (data: Uint8Array) => data.length })).stdout;
  const stream: ReadableStream<Uint8Array> = await sandbox.files.read("/a", { format: "stream" });
  const info: SandboxInfo = await sandbox.info();
  const end: Date = info.expiresAt;
  const pause: number | null | undefined = info.autoPause;
  const label: string | undefined = info.metadata?.a;
  for await (const piece of sandbox.stream("x")) if (piece.type === "exit") piece.exitCode.toFixed();
  for await (const event of await client.events()) event.sandboxId?.trim();
  await sandbox.egress.set({ mode: "allow-list", allow: ["a"] });
  await Template.create("t", { prepare: [{ command: ["a", "b"], timeout: 3 }], autoPause: 5 });
  const local = await node.Sandbox.create();
  await local.files.sync("a", "/b", { delete: true });
  const [copy] = await local.fork(1);
  await copy?.files.upload("a", "/b");
  const spawned: node.Sandbox = await node.Template.spawn("t");
  // @ts-expect-error: durations are numbers.
  await Sandbox.create({ ttl: "10m" });
  // @ts-expect-error: settings are checked.
  await Sandbox.create({ memory: 1 });
  // @ts-expect-error: the main entry knows no local files.
  await sandbox.files.upload("a", "/b");
  // @ts-expect-error: a policy has a mode.
  await sandbox.egress.set({ allow: [] });
  void [text, bytes, stream, end, pause, label, spawned, NotFoundError];
}
`;

/** Names that the examples of the documentation use. */
const PRELUDE = `
declare const code: string, id: string, readableStream: ReadableStream<Uint8Array>;
declare function retryIn(seconds: number): Promise<void>;
export {};
`;

test("the examples of the documentation compile", async () => {
  const page = await readFile(join(root, "../../docs/use/typescript.md"), "utf8");
  const blocks = [...page.matchAll(/```ts\n([\s\S]*?)```/g)].map((block) => block[1] as string);
  ok(blocks.length >= 6);
  const files = blocks.map((block, at) => {
    const isBound = /const sandbox|using sandbox/.test(block) || !block.includes("sandbox.");
    const sandbox = isBound ? "" : 'declare const sandbox: import("tidebox").Sandbox;';
    return [`example-${at}.ts`, `${block}\n${PRELUDE}${sandbox}`] as const;
  });
  for (const [name, text] of files) await writeFile(join(project, name), text);
  const options = [
    "--strict",
    "--noEmit",
    "--module",
    "nodenext",
    "--target",
    "es2022",
    "--lib",
    "es2022,esnext.disposable,dom,dom.asynciterable",
  ];
  await linkTypes();
  run(process.execPath, [join(modules, "typescript/bin/tsc"), ...options, ...files.map(([name]) => name)], project);
});

/** Makes the types of Node.js known to the project. */
async function linkTypes(): Promise<void> {
  for (const name of ["@types", "undici-types"]) {
    await symlink(join(modules, name), join(project, "node_modules", name)).catch(() => undefined);
  }
}

test("a strict consumer compiles against the types, with and without exact optional properties", async () => {
  await writeFile(join(project, "consumer.ts"), CONSUMER);
  await writeFile(join(project, "quickstart.ts"), await quickstart());
  await linkTypes();
  const options = [
    "--strict",
    "--noEmit",
    "--module",
    "nodenext",
    "--target",
    "es2022",
    "--lib",
    "es2022,esnext.disposable,dom,dom.asynciterable",
    "--skipLibCheck",
    "false",
  ];
  const tsc = join(modules, "typescript/bin/tsc");
  run(process.execPath, [tsc, ...options, "consumer.ts", "quickstart.ts"], project);
  run(
    process.execPath,
    [tsc, ...options, "--exactOptionalPropertyTypes", "--noUncheckedIndexedAccess", "consumer.ts"],
    project,
  );
});

for (const [runtime, binary, args] of [
  ["Node.js", process.execPath, []],
  ["Deno", join(modules, "@deno/linux-x64-glibc/deno"), ["run", "-A", "--no-lock"]],
  ["Bun", join(modules, "@oven/bun-linux-x64/bin/bun"), []],
] as const) {
  test(`the quickstart of the README works on ${runtime}`, { skip: skip || !existsSync(binary) }, async () => {
    // Node.js 22 has no \`await using\`; TypeScript compiles it, as the README says.
    const { code } = await transform(await quickstart(), { loader: "ts", format: "esm", target: "es2022" });
    await writeFile(join(project, "quickstart.mjs"), code);
    const output = run(binary, [...args, "quickstart.mjs"], project);
    // How the output is cut into pieces depends on time.
    equal(output.replace(/\s+/g, " "), "hello 3 3 1 2 3 ");
  });
}
