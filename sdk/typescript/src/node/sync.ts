import { createHash } from "node:crypto";
import { createReadStream } from "node:fs";
import { TideboxError } from "../errors.ts";
import type { ManifestEntry } from "../wire.ts";
import { type LocalEntry, bytesOf, localPath, shown } from "./tree.ts";

/** Changes that a synchronization made. */
export interface SyncResult {
  /** Number of files and links that were sent. */
  sent: number;
  /** Bytes of these files. */
  bytes: number;
  /** Number of files, links and directories that were removed. */
  removed: number;
}

/** Changes that make a directory of a sandbox like a local one. */
export interface SyncPlan {
  /** Paths to remove before anything is sent, because their type changes; children first. */
  replaced: string[];
  /** Entries to send, parents first. */
  sent: LocalEntry[];
  /** Paths to remove at the end; children first. */
  removed: string[];
  /** Entries of which only the mode or the time differs, and directories that lose or get entries. */
  attributes: LocalEntry[];
  result: SyncResult;
}

/** Content of one archive, in bytes; a larger file goes alone. */
const PART_BYTES = 256 * 1024 * 1024;
const PART_ENTRIES = 100_000;

/** Compares a local directory with a manifest. */
export async function plan(
  root: string,
  entries: readonly LocalEntry[],
  found: ReadonlyMap<string, ManifestEntry>,
  options: { delete?: boolean | undefined; checksum?: boolean | undefined },
): Promise<SyncPlan> {
  const local = new Set(entries.map((entry) => entry.path));
  const extra = [...found.keys()]
    .filter((path) => path !== "" && !local.has(path))
    .sort()
    .reverse();
  const result: SyncPlan = {
    replaced: [],
    sent: [],
    removed: options.delete ? extra : [],
    attributes: [],
    result: { sent: 0, bytes: 0, removed: 0 },
  };
  for (const entry of entries) {
    const remote = found.get(entry.path);
    const changesType = remote !== undefined && (remote.type === "directory") !== (entry.type === "directory");
    if (changesType) replace(result, entry, extra, options.delete ?? false);
    if (remote === undefined || changesType || !(await isSame(root, entry, remote, options.checksum ?? false))) {
      result.sent.push(entry);
    } else if (entry.type !== "symlink" && (Number.parseInt(remote.mode ?? "", 8) & 0o777) !== entry.mode) {
      result.attributes.push(entry);
    } else if (entry.type === "file" && !isSameTime(remote.mtime, entry.mtime)) {
      result.attributes.push(entry);
    }
  }
  const replaced = new Set(result.replaced);
  result.removed = result.removed.filter((path) => !replaced.has(path));
  // Writing into a directory changes its time, so the times of directories come last.
  result.attributes.push(...entries.filter((entry) => entry.type === "directory").reverse());
  const content = result.sent.filter((entry) => entry.type !== "directory");
  result.result = {
    sent: content.length,
    bytes: content.reduce((sum, entry) => sum + entry.size, 0),
    removed: result.removed.length + result.replaced.length,
  };
  return result;
}

function replace(result: SyncPlan, entry: LocalEntry, extra: readonly string[], isAllowed: boolean): void {
  if (!isAllowed) {
    const message = `\`${shown(entry.path)}\` is a directory on one side only; pass \`delete: true\` to replace it`;
    throw new TideboxError(message, { code: "conflict" });
  }
  const below = extra.filter((path) => path.startsWith(`${entry.path}/`));
  result.replaced.push(...below, entry.path);
}

async function isSame(root: string, entry: LocalEntry, remote: ManifestEntry, checksum: boolean): Promise<boolean> {
  if (entry.type !== remote.type) return false;
  if (entry.type === "directory") return true;
  if (entry.type === "symlink") return bytesOf(remote.target ?? "") === entry.target;
  if (entry.size !== remote.size) return false;
  if (!checksum) return isSameTime(remote.mtime, entry.mtime);
  const hash = createHash("sha256");
  for await (const bytes of createReadStream(localPath(root, entry.path))) hash.update(bytes as Buffer);
  return hash.digest("hex") === remote.sha256;
}

/** Nanoseconds between times that count as equal: a download sets times to a microsecond. */
const SAME_TIME = 2000n;

function isSameTime(first: string | null | undefined, second: string): boolean {
  const difference = nanoseconds(first ?? "0") - nanoseconds(second);
  return difference < SAME_TIME && difference > -SAME_TIME;
}

function nanoseconds(seconds: string): bigint {
  const [whole = "0", fraction = ""] = seconds.split(".");
  return BigInt(whole) * 1_000_000_000n + BigInt(fraction.padEnd(9, "0").slice(0, 9));
}

/** Splits entries into archives. */
export function* parts(entries: readonly LocalEntry[]): Generator<LocalEntry[]> {
  let part: LocalEntry[] = [];
  let bytes = 0;
  for (const entry of entries) {
    if (part.length > 0 && (bytes + entry.size > PART_BYTES || part.length >= PART_ENTRIES)) {
      yield part;
      part = [];
      bytes = 0;
    }
    part.push(entry);
    bytes += entry.size;
  }
  if (part.length > 0) yield part;
}
