// Holds the package to its surface: every public method has a case, every code of the API has a class.
import { deepEqual, equal, ok } from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import * as sdk from "../src/node.ts";
import { API_ERRORS } from "../src/errors.ts";
import { DURATIONS, MAPS, TIMES, duration, fromWire, seconds, toWire } from "../src/names.ts";
import { CALLS } from "./calls.ts";

interface Schema {
  $ref?: string;
  type?: string | string[];
  format?: string;
  properties?: Record<string, Schema>;
  additionalProperties?: unknown;
  oneOf?: Schema[];
  anyOf?: Schema[];
  allOf?: Schema[];
}

const read = async (path: string): Promise<unknown> => {
  return JSON.parse(await readFile(new URL(path, import.meta.url), "utf8"));
};
const api = (await read("../../../docs/openapi.json")) as { components: { schemas: Record<string, Schema> } };
const cases = (await read("../../cases.json")) as {
  cases: { steps: { call: string; during?: { call: string }[] }[] }[];
};

const called = new Set(
  cases.cases.flatMap(({ steps }) => steps.flatMap((step) => [step.call, ...(step.during ?? []).map((s) => s.call)])),
);

/** Public methods that have no case, and why. */
const WITHOUT_CASE: Readonly<Record<string, string>> = {};

const snake = (name: string): string => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);

function methods(object: object, prefix: string): string[] {
  const found: string[] = [];
  for (let at = object; at !== Object.prototype && at !== Function.prototype; at = Object.getPrototypeOf(at)) {
    for (const [name, { value }] of Object.entries(Object.getOwnPropertyDescriptors(at))) {
      if (typeof value === "function" && name !== "constructor" && !/^class /.test(String(value)))
        found.push(`${prefix}${snake(name)}`);
    }
  }
  return found;
}

const HIDDEN = ["make_files", "open_archive", "write_archive", "open_manifest", "amend"];

test("every public method of the surface has a case", () => {
  const client = new sdk.Client({ url: "http://127.0.0.1:1" });
  const target = { transport: client.transport, path: "/sandboxes/x", env: {} };
  const sandbox = new sdk.Sandbox(target, "x", client);
  const surface = [
    ...methods(sdk.Sandbox.prototype, ""),
    ...methods(sdk.Sandbox, "sandbox."),
    ...methods(Object.getPrototypeOf(sandbox.files), "files."),
    ...methods(Object.getPrototypeOf(sandbox.processes), "processes."),
    ...methods(sdk.Process.prototype, "process."),
    ...methods(Object.getPrototypeOf(sandbox.contexts), "contexts."),
    ...methods(Object.getPrototypeOf(sandbox.ports), "ports."),
    ...methods(Object.getPrototypeOf(sandbox.egress), "egress."),
    ...methods(sdk.Client.prototype, "client."),
    ...methods(Object.getPrototypeOf(client.admin), "admin."),
    ...methods(sdk.Template, "template."),
    ...methods(sdk.Snapshot, "snapshot."),
    ...methods(sdk.Secret, "secret."),
    ...methods(sdk.Key, "key."),
    ...methods(sdk.Image, "image."),
  ];
  const public_ = [...new Set(surface)].filter((name) => !HIDDEN.includes(name.split(".").pop() as string));
  ok(public_.length > 90, `only ${public_.length} methods were found`);
  const missing = public_.filter((name) => !called.has(name) && !(name in WITHOUT_CASE));
  deepEqual(missing, []);
  deepEqual(
    [...called].filter((name) => !(name in CALLS)),
    [],
  );
});

test("every code of the API has a class and a case", async () => {
  const documentation = await readFile(new URL("../../../docs/use/api.md", import.meta.url), "utf8");
  const table = documentation.slice(documentation.indexOf("| Status | Code |"), documentation.indexOf("## Sandboxes"));
  const codes = [...table.matchAll(/^\| \d+ \| (.*?) \|/gm)].flatMap(([, cell]) =>
    [...(cell as string).matchAll(/`(\w+)`/g)].map((m) => m[1]),
  );
  ok(codes.length >= 13);
  deepEqual(Object.keys(API_ERRORS).sort(), codes.sort());
  const text = JSON.stringify(cases);
  for (const code of codes) ok(text.includes(`"code":"${code}"`), `no case has the code ${code}`);
});

/** Calls `each` with every field of the API. */
function fields(each: (name: string, schema: Schema, owner: string) => void): void {
  const { schemas } = api.components;
  const resolved = (schema: Schema): Schema => {
    if (schema.$ref !== undefined) return resolved(schemas[schema.$ref.split("/").pop() as string] as Schema);
    const variants = (schema.oneOf ?? schema.anyOf ?? []).filter((variant) => variant.type !== "null");
    return variants.length === 1 ? resolved(variants[0] as Schema) : schema;
  };
  const visit = (schema: Schema, owner: string): void => {
    for (const [name, field] of Object.entries(schema.properties ?? {})) each(name, resolved(field), owner);
    for (const part of [...(schema.oneOf ?? []), ...(schema.anyOf ?? []), ...(schema.allOf ?? [])]) visit(part, owner);
  };
  for (const [owner, schema] of Object.entries(schemas)) visit(schema, owner);
}

test("fields that map free names, durations and times are known by their names", () => {
  const maps = new Set<string>();
  fields((name, schema, owner) => {
    const isMap = String(schema.type).includes("object") && schema.additionalProperties && !schema.properties;
    if (isMap) maps.add(name);
    if (schema.format === "date-time") ok(TIMES.has(name), `${owner}.${name} is a time`);
    if (DURATIONS.has(name)) ok(String(schema.type).includes("string"), `${owner}.${name} is not a duration`);
    if (/(^|_)(ttl|timeout|duration|uptime|interval|linger)$/.test(name) && String(schema.type).includes("string")) {
      ok(DURATIONS.has(name), `${owner}.${name} is a duration`);
    }
  });
  // The settings of a provider have names of the server.
  maps.delete("limits");
  deepEqual([...maps].sort(), [...MAPS].sort());
});

test("names, durations and times are converted, and free names are not", () => {
  const wire = {
    memory_mb: 1,
    metadata: { a_b: "c_d" },
    auto_pause: "1h0m1.5s",
    created_at: "2026-01-31T12:00:00.000Z",
    workdir: "/tmp",
    novel_field: { inner_field: [{ x_y: 1 }] },
  };
  deepEqual(fromWire(wire), {
    memoryMb: 1,
    metadata: { a_b: "c_d" },
    autoPause: 3601.5,
    createdAt: new Date("2026-01-31T12:00:00.000Z"),
    cwd: "/tmp",
    novelField: { innerField: [{ xY: 1 }] },
  });
  deepEqual(toWire({ memoryMb: 1, metadata: { aB: "x" }, ttl: 90, timeout: 0.25, cwd: "/", image: undefined }), {
    memory_mb: 1,
    metadata: { aB: "x" },
    ttl: "90s",
    timeout: "0.250000s",
    workdir: "/",
  });
  for (const [text, value] of [
    ["0s", 0],
    ["3.5ms", 0.0035],
    ["2h0m0s", 7200],
    ["250us", 0.00025],
  ] as const) {
    ok(Math.abs(seconds(text) - value) < 1e-12, text);
  }
  for (const value of [-1, Number.NaN, Infinity]) {
    let message = "";
    try {
      duration(value, "ttl");
    } catch (error) {
      message = String(error);
    }
    ok(message.includes("`ttl`"), `${value}`);
  }
  equal(duration(30, "ttl"), "30s");
});
