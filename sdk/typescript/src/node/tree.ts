import { createReadStream } from "node:fs";
import * as fs from "node:fs/promises";
import { TideboxError } from "../errors.ts";
import type { Member, Source } from "./tar.ts";

/** Entry of a local directory, by its path below it as a byte string. */
export interface LocalEntry extends Member {
  type: "file" | "directory" | "symlink";
}

/** Makes the error of a path that must not be touched. */
export function refused(message: string): TideboxError {
  return new TideboxError(message, { code: "refused_path" });
}

/** Returns the local path of an entry: text, or bytes if the name is not UTF-8. */
export function localPath(root: string, path: string): string | Buffer {
  if (path === "") return root;
  const bytes = Buffer.from(path, "latin1");
  const text = bytes.toString("utf8");
  if (Buffer.from(text, "utf8").equals(bytes)) return `${root}/${text}`;
  return Buffer.concat([Buffer.from(`${root}/`), bytes]);
}

/** Returns a path of a byte string as text for people. */
export function shown(path: string): string {
  return Buffer.from(path, "latin1").toString("utf8");
}

/** Decodes a percent-encoded path to a byte string. */
export function bytesOf(path: string): string {
  const utf8 = Buffer.from(path, "utf8").toString("latin1");
  return utf8.replace(/%([0-9A-Fa-f]{2})/g, (_, hex: string) => String.fromCharCode(parseInt(hex, 16)));
}

/** Formats nanoseconds since 1970 as seconds. */
function secondsText(nanoseconds: bigint): string {
  const billion = 1_000_000_000n;
  const whole = nanoseconds >= 0n ? nanoseconds / billion : -((-nanoseconds + billion - 1n) / billion);
  return `${whole}.${String(nanoseconds - whole * billion).padStart(9, "0")}`;
}

/** Yields the directories, files and links below a local directory, parents first. */
export async function* walk(root: string, path = ""): AsyncGenerator<LocalEntry> {
  const names = await fs.readdir(localPath(root, path), { encoding: "buffer" });
  const texts = names.map((name) => Buffer.from(name).toString("latin1")).sort();
  for (const name of texts) {
    const below = path === "" ? name : `${path}/${name}`;
    const local = localPath(root, below);
    const stat = await fs.lstat(local, { bigint: true });
    const type = stat.isDirectory() ? "directory" : stat.isFile() ? "file" : stat.isSymbolicLink() ? "symlink" : null;
    if (type === null) continue;
    const target = type === "symlink" ? Buffer.from(await fs.readlink(local, { encoding: "buffer" })) : Buffer.alloc(0);
    yield {
      type,
      path: below,
      mode: Number(stat.mode) & 0o777,
      mtime: secondsText(stat.mtimeNs),
      size: type === "file" ? Number(stat.size) : 0,
      target: target.toString("latin1"),
    };
    if (type === "directory") yield* walk(root, below);
  }
}

/** Adds the content of an entry. */
export function withContent(root: string, entry: LocalEntry): Source {
  if (entry.type !== "file") return entry;
  return { ...entry, content: () => createReadStream(localPath(root, entry.path)) };
}

let temporary = 0;

/** Unpacks members below a local directory; data of a sandbox is not trusted. */
export class Extraction {
  readonly #root: string;
  readonly #safe = new Set<string>([""]);
  readonly #directories: Member[] = [];

  constructor(root: string) {
    this.#root = root;
  }

  /** Returns the parts of a member's path; throws if it leads outside. */
  #parts(path: string): string[] {
    const parts = path.split("/").filter((part) => part !== "" && part !== ".");
    if (path.startsWith("/") || parts.includes("..") || path.includes("\0")) {
      throw refused(`the sandbox sent the path \`${shown(path)}\`, which leads outside the directory`);
    }
    return parts;
  }

  /** Makes a directory below the root, without following links. */
  async #makeDirectory(path: string): Promise<void> {
    if (this.#safe.has(path)) return;
    const parent = path.slice(0, Math.max(0, path.lastIndexOf("/")));
    await this.#makeDirectory(parent);
    const local = localPath(this.#root, path);
    await fs.mkdir(local).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "EEXIST") throw error;
    });
    const stat = await fs.lstat(local);
    if (!stat.isDirectory()) throw refused(`\`${shown(path)}\` is not a directory; remove it first`);
    await fs.chmod(local, (stat.mode & 0o777) | 0o700);
    this.#safe.add(path);
  }

  /** Writes a member. */
  async add(member: Member, content: AsyncIterable<Uint8Array>): Promise<void> {
    const parts = this.#parts(member.path);
    const path = parts.join("/");
    if (member.type === "directory") {
      await this.#makeDirectory(path);
      this.#directories.push({ ...member, path });
      return;
    }
    if (path === "" || member.type === "other") return;
    const parent = parts.slice(0, -1).join("/");
    await this.#makeDirectory(parent);
    const local = localPath(this.#root, path);
    temporary += 1;
    const temporaryPath = localPath(
      this.#root,
      `${parent === "" ? "" : `${parent}/`}.tidebox-${process.pid}-${temporary}`,
    );
    try {
      await this.#write(member, content, temporaryPath);
      await fs.rename(temporaryPath, local);
    } catch (error) {
      await fs.rm(temporaryPath, { force: true });
      throw error;
    }
  }

  async #write(member: Member, content: AsyncIterable<Uint8Array>, local: string | Buffer): Promise<void> {
    if (member.type === "symlink") {
      await fs.symlink(Buffer.from(member.target, "latin1"), local);
      return;
    }
    if (member.type === "hardlink") {
      const source = this.#parts(member.target).join("/");
      const parent = source.slice(0, Math.max(0, source.lastIndexOf("/")));
      await this.#makeDirectory(parent);
      await fs.link(localPath(this.#root, source), local);
      return;
    }
    await writeFile(local, content, member.mode, Number(member.mtime));
  }

  /** Sets modes and times of the directories, which writing their content changed. */
  async finish(): Promise<void> {
    for (const { path, mode, mtime } of this.#directories.reverse()) {
      const local = localPath(this.#root, path);
      await fs.chmod(local, mode & 0o777);
      await fs.utimes(local, Number(mtime), Number(mtime));
    }
  }
}

/** Writes a new local file; set-user-id and similar bits are dropped. */
export async function writeFile(
  local: string | Buffer,
  content: AsyncIterable<Uint8Array>,
  mode: number,
  mtime: number,
): Promise<void> {
  const file = await fs.open(local, "wx", 0o600);
  try {
    for await (const bytes of content) {
      for (let at = 0; at < bytes.length;) at += (await file.write(bytes, at)).bytesWritten;
    }
    await file.chmod(mode & 0o777);
    await file.utimes(mtime, mtime);
  } finally {
    await file.close();
  }
}
