// Makes a sandbox, runs a command in it and reads a file, with the generated types.
import { deepEqual, equal } from "node:assert/strict";
import createClient from "openapi-fetch";
import type { paths } from "./api.js";

const [baseUrl, key] = process.argv.slice(2);
if (!baseUrl || !key) throw new Error("usage: main.js URL KEY");
const client = createClient<paths>({ baseUrl, headers: { "X-API-Key": key } });

const made = await client.POST("/api/v1/sandboxes", { body: { ttl: "10m" } });
if (!made.data) throw new Error(made.error.message);
const path = { id: made.data.id };

const command = "printf hello > /tmp/file; echo done";
const ran = await client.POST("/api/v1/sandboxes/{id}/exec", { params: { path }, body: { command } });
if (typeof ran.data !== "object" || !("exit_code" in ran.data)) throw new Error(JSON.stringify(ran));
deepEqual([ran.data.exit_code, ran.data.stdout], [0, "done\n"]);

const query = { path: "/tmp/file" };
const file = await client.GET("/api/v1/sandboxes/{id}/files", { params: { path, query }, parseAs: "text" });
equal(file.data, "hello");

await client.DELETE("/api/v1/sandboxes/{id}", { params: { path } });
const gone = await client.GET("/api/v1/sandboxes/{id}", { params: { path } });
equal(gone.error?.code, "not_found");
console.log(made.data.created_at);
