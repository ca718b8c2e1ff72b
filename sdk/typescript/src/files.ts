import { type Content, serverSentEvents, toText } from "./bytes.ts";
import type { Target } from "./commands.ts";
import { NotFoundError, StreamInterrupted, badArgument } from "./errors.ts";
import { type Answer, type CallOptions, LONG_SECONDS, Subscription, segment } from "./http.ts";
import { type Camel, type Input, fromWire } from "./names.ts";
import { parse } from "./output.ts";
import type * as wire from "./wire.ts";

/** A file, directory or link. */
export type FileInfo = Camel<wire.FileInfo>;
/** Matches of a search. */
export type SearchResult = Camel<wire.SearchResult>;
/** Files that a replacement changed. */
export type ReplaceResult = Camel<wire.ReplaceResult>;

/** Options of {@link Files.search}. */
export type SearchOptions = CallOptions & Omit<Input<wire.SearchRequest>, "pattern">;
/** Options of {@link Files.replace}. */
export type ReplaceOptions = CallOptions & Omit<Input<wire.ReplaceRequest>, "pattern" | "replacement">;

/** Form of a file's content. */
export type Format = "text" | "bytes" | "stream";
/** Content of a file in a form. */
export type FileContent<F extends Format> = F extends "stream"
  ? ReadableStream<Uint8Array>
  : F extends "bytes"
    ? Uint8Array<ArrayBuffer>
    : string;

/** A change of a file. */
export interface FileChange {
  /** `overflow` says that changes are missing: list the directory again. */
  type: "created" | "modified" | "deleted" | "attributes" | "overflow";
  path: string;
  isDir: boolean;
}

/** Two blocks of zeros: an archive without members. */
const EMPTY_ARCHIVE_BYTES = 1024;

/** Files of a sandbox. Paths are absolute. */
export class Files {
  protected readonly target: Target;

  constructor(target: Target) {
    this.target = target;
  }

  #path(rest = ""): string {
    return `${this.target.path}/files${rest}`;
  }

  /** Reads a file as text (default), as bytes, or as a stream. */
  async read<F extends Format = "text">(
    path: string,
    options: CallOptions & { format?: F } = {},
  ): Promise<FileContent<F>> {
    const request = { path: this.#path(), query: { path: absolute(path) }, options };
    const { format = "text" } = options;
    if (format === "stream") return asStream((await this.target.transport.open(request)).stream()) as FileContent<F>;
    const bytes = await this.target.transport.send(request, (answer) => answer.download());
    return (format === "bytes" ? bytes : toText(bytes)) as FileContent<F>;
  }

  /** Writes a file at once: its parents are made, and readers see the old or the new content. */
  async write(path: string, content: Content, options: CallOptions & { mode?: string } = {}): Promise<void> {
    const query = { mode: options.mode };
    const request = { method: "PUT" as const, path: this.#path(`/${fileSegments(path)}`), query, content, options };
    await this.target.transport.call(request);
  }

  /** Lists a directory; `/workspace` by default. */
  list(path?: string, options?: CallOptions): Promise<FileInfo[]> {
    const query = { path: path === undefined ? undefined : absolute(path) };
    return this.target.transport.call({ path: this.#path("/list"), query, options });
  }

  /** Describes a file, directory or link, which it does not follow. */
  stat(path: string, options?: CallOptions): Promise<FileInfo> {
    return this.target.transport.call({ path: this.#path("/stat"), query: { path: absolute(path) }, options });
  }

  /** Returns whether a path exists. */
  async exists(path: string, options?: CallOptions): Promise<boolean> {
    try {
      await this.stat(path, options);
      return true;
    } catch (error) {
      if (!(error instanceof NotFoundError)) throw error;
      // The sandbox itself may be what does not exist.
      await this.target.transport.call({ path: this.target.path, options });
      return false;
    }
  }

  /** Makes a directory and its parents; it may exist already. */
  async makeDir(path: string, options?: CallOptions): Promise<void> {
    await this.writeArchive(path, new Uint8Array(EMPTY_ARCHIVE_BYTES), options);
  }

  /** Moves a file or directory. */
  async move(oldPath: string, newPath: string, options?: CallOptions): Promise<void> {
    const json = { oldPath: absolute(oldPath), newPath: absolute(newPath) };
    await this.target.transport.call({ method: "POST", path: this.#path("/move"), json, options });
  }

  /** Moves a file or directory, as {@link move}. */
  rename(oldPath: string, newPath: string, options?: CallOptions): Promise<void> {
    return this.move(oldPath, newPath, options);
  }

  /** Removes a file or an empty directory, or with `recursive` a directory and its content. */
  async remove(path: string, options: CallOptions & { recursive?: boolean } = {}): Promise<void> {
    const query = { path: absolute(path), recursive: options.recursive };
    await this.target.transport.call({ method: "DELETE", path: this.#path(), query, timeout: LONG_SECONDS, options });
  }

  /** Sets the mode, as octal digits such as `755`. */
  async chmod(path: string, mode: string, options?: CallOptions): Promise<void> {
    const json = { path: absolute(path), mode };
    await this.target.transport.call({ method: "POST", path: this.#path("/chmod"), json, options });
  }

  /** Returns the paths that match a pattern such as `/workspace/**\/*.py`. */
  glob(pattern: string, options?: CallOptions): Promise<string[]> {
    return this.target.transport.call({ path: this.#path("/glob"), query: { pattern }, options });
  }

  /** Searches the content of files for a regular expression. */
  search(pattern: string, options: SearchOptions = {}): Promise<SearchResult> {
    return this.#query("/search", { pattern, ...options }, options);
  }

  /** Replaces what a regular expression matches in the content of files. */
  replace(pattern: string, replacement: string, options: ReplaceOptions = {}): Promise<ReplaceResult> {
    return this.#query("/replace", { pattern, replacement, ...options }, options);
  }

  #query<T>(rest: string, body: object, options: CallOptions): Promise<T> {
    const json = { ...body, signal: undefined, requestTimeout: undefined };
    return this.target.transport.call({ method: "POST", path: this.#path(rest), json, timeout: LONG_SECONDS, options });
  }

  /** Watches a file or directory; returns once changes are noticed, and ends when it is deleted. */
  async watch(path: string, options: CallOptions & { recursive?: boolean } = {}): Promise<Subscription<FileChange>> {
    const query = { path: absolute(path), recursive: options.recursive };
    const answer = await this.target.transport.open(
      { path: this.#path("/watch"), query, options },
      "text/event-stream",
    );
    const events = serverSentEvents(answer.stream(), answer.url);
    // The server begins with a comment once the watch is in place.
    const first = await events.next();
    if (first.done) throw new StreamInterrupted("the watch ended before it began");
    return new Subscription(changes(events, answer.url), () => answer.cancel());
  }

  /** Opens an archive of a file or directory, as tar. */
  protected async openArchive(path: string, options: CallOptions): Promise<Answer> {
    return this.target.transport.open({ path: this.#path("/archive"), query: { path: absolute(path) }, options });
  }

  /** Unpacks an archive, as tar, into a directory. */
  protected async writeArchive(path: string, content: Content, options: CallOptions | undefined): Promise<void> {
    const headers = { "content-type": "application/x-tar" };
    const request = { query: { path: absolute(path) }, content, headers, timeout: LONG_SECONDS, options };
    await this.target.transport.call({ method: "POST", path: this.#path("/archive"), ...request });
  }

  /** Opens the manifest of a directory, in lines. */
  protected openManifest(path: string, checksum: boolean, options: CallOptions): Promise<Answer> {
    const query = { path: absolute(path), checksum: checksum || undefined };
    return this.target.transport.open({ path: this.#path("/manifest"), query, options }, "application/x-ndjson");
  }

  /** Removes paths below a directory, then sets modes and times. */
  protected amend(body: Input<wire.AmendRequest>, options: CallOptions): Promise<Camel<wire.Amended>> {
    return this.target.transport.call({ method: "POST", path: this.#path("/amend"), json: body, options });
  }
}

async function* changes(
  events: AsyncIterable<{ data?: string }>,
  url: string,
): AsyncGenerator<FileChange, void, undefined> {
  for await (const { data } of events) {
    if (data !== undefined) yield fromWire(parse(data, url)) as FileChange;
  }
}

function asStream(source: AsyncGenerator<Uint8Array, void, undefined>): ReadableStream<Uint8Array> {
  return new ReadableStream({
    async pull(controller) {
      const { done, value } = await source.next();
      if (done) controller.close();
      else controller.enqueue(value);
    },
    async cancel() {
      await source.return();
    },
  });
}

function absolute(path: string): string {
  if (!path.startsWith("/")) {
    throw badArgument(`the path \`${path}\` is not absolute; write it like /workspace/${path}`);
  }
  return path;
}

/** Encodes the path of a file for a URL. */
function fileSegments(path: string): string {
  if (absolute(path).endsWith("/")) {
    throw badArgument(`the path \`${path}\` names a directory; end it with a file name`);
  }
  const parts = path.split("/").filter((part) => part !== "");
  if (parts.includes(".") || parts.includes("..")) {
    throw badArgument(`the path \`${path}\` has a \`.\` or \`..\` part, which a URL cannot carry; resolve it first`);
  }
  return parts.map((part) => segment(part, "file name")).join("/");
}
