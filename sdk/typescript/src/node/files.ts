import { createReadStream } from "node:fs";
import * as fs from "node:fs/promises";
import * as path from "node:path";
import { lines } from "../bytes.ts";
import { NotFoundError, ProtocolError, TideboxError, badArgument } from "../errors.ts";
import { Files } from "../files.ts";
import type { CallOptions } from "../http.ts";
import { parse } from "../output.ts";
import { type SyncPlan, type SyncResult, parts, plan } from "./sync.ts";
import { pack, unpack } from "./tar.ts";
import { Extraction, bytesOf, withContent, walk, writeFile } from "./tree.ts";
import type { ManifestEntry } from "../wire.ts";

/** Options of {@link LocalFiles.sync}. */
export interface SyncOptions extends CallOptions {
  /** True to remove what the local directory does not have. */
  delete?: boolean | undefined;
  /** True to compare files of the same size by SHA-256 instead of by time. */
  checksum?: boolean | undefined;
  /** True to only count the changes. */
  dryRun?: boolean | undefined;
}

/** Paths in one request to `amend`. */
const AMEND_PATHS_MAX = 2000;
const AMEND_CHARS_MAX = 200_000;

/** Files of a sandbox, and copies of local files. */
export class LocalFiles extends Files {
  /** Copies a local file or directory to `remote`. */
  async upload(local: string, remote: string, options: CallOptions = {}): Promise<void> {
    const stat = await fs.stat(local);
    if (stat.isFile()) {
      const mode = (stat.mode & 0o777).toString(8);
      await this.write(remote, createReadStream(local), { ...options, mode });
      return;
    }
    if (!stat.isDirectory()) throw badArgument(`\`${local}\` is neither a file nor a directory`);
    const members = async function* (root: string) {
      for await (const entry of walk(root)) yield withContent(root, entry);
    };
    await this.writeArchive(remote, pack(members(path.resolve(local))), options);
  }

  /** Copies a file or directory of the sandbox to `local`, which becomes that file or directory. */
  async download(remote: string, local: string, options: CallOptions = {}): Promise<void> {
    const info = await this.stat(remote, options);
    const root = path.resolve(local);
    if (info.isDir) {
      await fs.mkdir(root, { recursive: true });
      const answer = await this.openArchive(remote, options);
      const extraction = new Extraction(root);
      await unpack(answer.stream(), answer.url, (member, content) => extraction.add(member, content));
      await extraction.finish();
      return;
    }
    const content = await this.read(remote, { ...options, format: "stream" });
    await fs.mkdir(path.dirname(root), { recursive: true });
    const partial = `${root}.tidebox-${process.pid}-${Date.now()}`;
    try {
      await writeFile(partial, content, parseInt(info.mode, 8), info.modTime.getTime() / 1000);
      await fs.rename(partial, root);
    } catch (error) {
      await fs.rm(partial, { force: true });
      throw error;
    }
  }

  /** Makes a directory of the sandbox like a local one, and sends only the differences. */
  async sync(local: string, remote: string, options: SyncOptions = {}): Promise<SyncResult> {
    const root = path.resolve(local);
    const entries = [];
    for await (const entry of walk(root)) entries.push(entry);
    const found = await this.#manifest(remote, options);
    const changes = await plan(root, entries, found, options);
    if (!options.dryRun) await this.#apply(root, remote, changes, options);
    return changes.result;
  }

  async #manifest(remote: string, options: SyncOptions): Promise<Map<string, ManifestEntry>> {
    const entries = new Map<string, ManifestEntry>();
    try {
      const answer = await this.openManifest(remote, options.checksum ?? false, options);
      for await (const line of lines(answer.stream(), answer.url)) {
        const entry = parse<ManifestEntry>(line, answer.url);
        if (entry.type === "end") return entries;
        entries.set(bytesOf(entry.path ?? ""), entry);
      }
      throw new ProtocolError(answer.url, "a manifest has no end");
    } catch (error) {
      if (!(error instanceof NotFoundError)) throw error;
      // The directory may be missing, but not the sandbox.
      await this.target.transport.call({ path: this.target.path, options });
      return entries;
    }
  }

  async #apply(root: string, remote: string, changes: SyncPlan, options: SyncOptions): Promise<void> {
    await this.#amend(remote, changes.replaced.map(encoded), [], options);
    for (const part of parts(changes.sent)) {
      const members = part.map((entry) => withContent(root, entry));
      await this.writeArchive(remote, pack(members), options);
    }
    const attributes = changes.attributes.map(({ path, mode, mtime }) => {
      return { path: encoded(path), mode: mode.toString(8).padStart(4, "0"), mtime };
    });
    await this.#amend(remote, changes.removed.map(encoded), attributes, options);
  }

  async #amend(
    path: string,
    removed: string[],
    attributes: { path: string; mode: string; mtime: string }[],
    options: CallOptions,
  ): Promise<void> {
    const work = [...removed.map((path) => ({ remove: path })), ...attributes.map((set) => ({ set }))];
    for (let at = 0; at < work.length;) {
      const body = { path, remove: [] as string[], attributes: [] as typeof attributes };
      for (let chars = 0; at < work.length; at += 1) {
        const item = work[at] as (typeof work)[number];
        chars += ("set" in item ? item.set.path : item.remove).length;
        if (chars > AMEND_CHARS_MAX || body.remove.length + body.attributes.length >= AMEND_PATHS_MAX) break;
        if ("set" in item) body.attributes.push(item.set);
        else body.remove.push(item.remove);
      }
      const { failures } = await this.amend(body, options);
      const [failure] = failures;
      if (failure !== undefined) {
        const message = `cannot change \`${failure.path}\` in the sandbox: ${failure.message}`;
        throw new TideboxError(message, { code: "sync_failed" });
      }
    }
  }
}

/** Encodes a byte string as a percent-encoded path. */
function encoded(path: string): string {
  return path.replace(/[^A-Za-z0-9._~/-]/g, (letter) => {
    return `%${letter.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}`;
  });
}
