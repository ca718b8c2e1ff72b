import { ProtocolError } from "../errors.ts";

/** Member of an archive. Names are byte strings: one character for each byte. */
export interface Member {
  type: "file" | "directory" | "symlink" | "hardlink" | "other";
  path: string;
  mode: number;
  /** Time of the last change, in seconds with a fraction, as text. */
  mtime: string;
  size: number;
  /** Target of a link. */
  target: string;
}

/** Member with its content, to write. */
export interface Source extends Member {
  content?: () => AsyncIterable<Uint8Array>;
}

const BLOCK_BYTES = 512;
const SIZE_MAX = 0o77777777777;
const FLAGS: Readonly<Record<string, Member["type"]>> = {
  "0": "file",
  "\0": "file",
  "7": "file",
  "1": "hardlink",
  "2": "symlink",
  "5": "directory",
};
/** Longest header of names and times that is read, in bytes. */
const EXTENSION_BYTES_MAX = 1024 * 1024;

function padding(size: number): number {
  return (BLOCK_BYTES - (size % BLOCK_BYTES)) % BLOCK_BYTES;
}

function header(member: Source, flag: string, size: number): Buffer {
  const block = Buffer.alloc(BLOCK_BYTES);
  const octal = (value: number, at: number, length: number): void => {
    block.write(value.toString(8).padStart(length - 1, "0"), at, length - 1, "latin1");
  };
  block.write(member.path, 0, 100, "latin1");
  octal(member.mode & 0o7777, 100, 8);
  octal(0, 108, 8);
  octal(0, 116, 8);
  if (size > SIZE_MAX) {
    // The size in base 256, as GNU tar writes it.
    block[124] = 0x80;
    block.writeBigUInt64BE(BigInt(size), 128);
  } else {
    octal(size, 124, 12);
  }
  octal(Math.min(Math.max(0, Math.floor(Number(member.mtime))), SIZE_MAX), 136, 12);
  block.write("        ", 148, "latin1");
  block.write(flag, 156, "latin1");
  block.write(member.target, 157, 100, "latin1");
  block.write("ustar\0" + "00", 257, "latin1");
  let sum = 0;
  for (const byte of block) sum += byte;
  octal(sum, 148, 7);
  return block;
}

/** Encodes a record of an extended header; its length counts itself. */
function record(name: string, value: string): Buffer {
  const rest = ` ${name}=${value}\n`;
  let length = rest.length + 1;
  while (String(length).length + rest.length > length) length += 1;
  return Buffer.from(`${length}${rest}`, "latin1");
}

/** Yields an archive. */
export async function* pack(members: AsyncIterable<Source> | Iterable<Source>): AsyncGenerator<Uint8Array> {
  for await (const member of members) {
    const flag = { file: "0", directory: "5", symlink: "2", hardlink: "1", other: "0" }[member.type];
    const size = member.type === "file" ? member.size : 0;
    const records = [record("mtime", member.mtime)];
    if (member.path.length > 100) records.push(record("path", member.path));
    if (member.target.length > 100) records.push(record("linkpath", member.target));
    const extension = Buffer.concat(records);
    const blocks = [
      header({ ...member, path: "pax", target: "" }, "x", extension.length),
      extension,
      Buffer.alloc(padding(extension.length)),
      header(member, flag, size),
    ];
    yield Buffer.concat(blocks);
    if (member.content === undefined) continue;
    let left = size;
    for await (const bytes of member.content()) {
      // A file that grows is cut at the size of its header.
      const part = bytes.subarray(0, left);
      left -= part.length;
      if (part.length > 0) yield part;
      if (left === 0) break;
    }
    if (left > 0) throw new Error(`${Buffer.from(member.path, "latin1")} shrank while it was read; try again`);
    if (padding(size) > 0) yield Buffer.alloc(padding(size));
  }
  yield Buffer.alloc(2 * BLOCK_BYTES);
}

/** Reads exact numbers of bytes from a stream. */
class Reader {
  readonly #source: AsyncIterator<Uint8Array>;
  #rest: Uint8Array = new Uint8Array();

  constructor(source: AsyncIterator<Uint8Array>) {
    this.#source = source;
  }

  /** Yields the next `size` bytes in parts; throws if the stream ends before. */
  async *parts(size: number, url: string): AsyncGenerator<Uint8Array> {
    for (let left = size; left > 0;) {
      if (this.#rest.length === 0) {
        const { done, value } = await this.#source.next();
        if (done) throw new ProtocolError(url, "an archive is incomplete");
        this.#rest = value;
      }
      const part = this.#rest.subarray(0, left);
      this.#rest = this.#rest.subarray(part.length);
      left -= part.length;
      if (part.length > 0) yield part;
    }
  }

  async read(size: number, url: string): Promise<Buffer> {
    const parts: Uint8Array[] = [];
    for await (const part of this.parts(size, url)) parts.push(part);
    return Buffer.concat(parts);
  }
}

function numberAt(block: Buffer, at: number, length: number): number {
  if ((block[at] as number) & 0x80) return Number(block.readBigUInt64BE(at + length - 8));
  return parseInt(textAt(block, at, length).trim() || "0", 8);
}

function textAt(block: Buffer, at: number, length: number): string {
  const text = block.toString("latin1", at, at + length);
  const end = text.indexOf("\0");
  return end < 0 ? text : text.slice(0, end);
}

function records(bytes: Buffer): Record<string, string> {
  const found: Record<string, string> = {};
  for (let at = 0; at < bytes.length;) {
    const space = bytes.indexOf(0x20, at);
    const length = Number(bytes.toString("latin1", at, space));
    if (space < 0 || !(length > 0)) break;
    const text = bytes.toString("latin1", space + 1, at + length - 1);
    const equals = text.indexOf("=");
    found[text.slice(0, equals)] = text.slice(equals + 1);
    at += length;
  }
  return found;
}

/** Reads an archive: calls `each` with each member and its content, which is skipped if not read. */
export async function unpack(
  source: AsyncIterable<Uint8Array>,
  url: string,
  each: (member: Member, content: AsyncGenerator<Uint8Array>) => Promise<void>,
): Promise<void> {
  const reader = new Reader(source[Symbol.asyncIterator]());
  let extra: Record<string, string> = {};
  for (;;) {
    const block = await reader.read(BLOCK_BYTES, url);
    if (block.every((byte) => byte === 0)) break;
    let sum = 8 * 0x20;
    for (const [at, byte] of block.entries()) if (at < 148 || at >= 156) sum += byte;
    if (sum !== numberAt(block, 148, 8)) throw new ProtocolError(url, "an archive is damaged");
    const flag = String.fromCharCode(block[156] as number);
    const size = Number(extra.size ?? numberAt(block, 124, 12));
    if ("xgLK".includes(flag)) {
      if (size > EXTENSION_BYTES_MAX) throw new ProtocolError(url, "an archive has a header that is too long");
      const bytes = await reader.read(size, url);
      await reader.read(padding(size), url);
      if (flag === "x") extra = { ...extra, ...records(bytes) };
      else if (flag === "L") extra.path = textAt(bytes, 0, size);
      else if (flag === "K") extra.linkpath = textAt(bytes, 0, size);
      continue;
    }
    const prefix = block.toString("latin1", 257, 263) === "ustar\0" ? textAt(block, 345, 155) : "";
    const name = textAt(block, 0, 100);
    const type = FLAGS[flag] ?? "other";
    const content = reader.parts(type === "file" ? size : 0, url);
    await each(
      {
        type,
        path: extra.path ?? (prefix === "" ? name : `${prefix}/${name}`),
        mode: numberAt(block, 100, 8),
        mtime: extra.mtime ?? String(numberAt(block, 136, 12)),
        size: type === "file" ? size : 0,
        target: extra.linkpath ?? textAt(block, 157, 100),
      },
      content,
    );
    for await (const _ of content);
    extra = {};
    if (type === "file") await reader.read(padding(size), url);
  }
  // The rest is read so that a broken end is noticed.
  for await (const _ of { [Symbol.asyncIterator]: () => source[Symbol.asyncIterator]() });
}
