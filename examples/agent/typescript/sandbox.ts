// A client for one sandbox of a Tidebox server. It needs `fetch` alone.

const MAX_FILE = 1 << 20;

/** A failed request. */
export class TideboxError extends Error {}

/** The server did not answer. */
export class Unreachable extends TideboxError {}

/** The sandbox reached its end, or somebody deleted it. Its files are lost. */
export class SandboxGone extends TideboxError {}

/** The server refused the request. The message says what to change. */
export class ApiError extends TideboxError {
  readonly status: number;

  constructor(status: number, code: string, message: string) {
    super(`${message} (${status} ${code})`);
    this.status = status;
  }
}

/** The outcome of a command. A failed command is a result, not an error of the API. */
export interface CommandResult {
  exit_code: number;
  stdout: string;
  stderr: string;
  timed_out?: boolean;
}

interface RequestOptions {
  body?: object;
  headers?: Record<string, string>;
  /** In seconds. */
  timeout?: number;
  /** Aborts the request. */
  signal?: AbortSignal;
}

/** Sends requests to a server. */
export class Server {
  readonly url: string;
  #headers: Record<string, string>;

  constructor(url: string, apiKey?: string) {
    this.url = url.replace(/\/+$/, "");
    this.#headers = apiKey ? { "X-API-Key": apiKey } : {};
  }

  static fromEnvironment(): Server {
    return new Server(process.env["TIDEBOX_URL"] ?? "http://127.0.0.1:7423", process.env["TIDEBOX_API_KEY"]);
  }

  /** Returns the body of the response. */
  async request(method: string, path: string, options: RequestOptions = {}): Promise<string> {
    const { body, signal, timeout = 60 } = options;
    const headers = { ...this.#headers, ...options.headers };
    if (body) headers["Content-Type"] = "application/json";
    const deadline = AbortSignal.timeout(timeout * 1000);
    let response: Response;
    let text: string;
    try {
      response = await fetch(`${this.url}/api/v1${path}`, {
        method,
        headers,
        body: body ? JSON.stringify(body) : null,
        signal: signal ? AbortSignal.any([signal, deadline]) : deadline,
      });
      text = await response.text();
    } catch (error) {
      signal?.throwIfAborted();
      throw new Unreachable(`no answer from ${this.url}: ${reason(error)}`, { cause: error });
    }
    if (!response.ok) throw apiError(response, text);
    return text;
  }
}

/** A sandbox on a server. Call `delete` in a `finally` block. */
export class Sandbox {
  #server: Server;
  #path: string;
  #signal: AbortSignal | undefined;

  private constructor(server: Server, path: string, signal: AbortSignal | undefined) {
    this.#server = server;
    this.#path = path;
    this.#signal = signal;
  }

  /** Creates a sandbox. Once `signal` is aborted, every method but `delete` throws its reason. */
  static async create(server: Server, body: object, signal?: AbortSignal): Promise<Sandbox> {
    // Not aborted by the signal, because a sandbox whose id is unknown could not be deleted.
    const { id } = JSON.parse(await server.request("POST", "/sandboxes", { body })) as { id: string };
    return new Sandbox(server, `/sandboxes/${id}`, signal);
  }

  /** Deletes the sandbox. A failure is only a warning: thrown, it would hide the error that ended the run. */
  async delete(): Promise<void> {
    try {
      await this.#server.request("DELETE", this.#path);
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return;
      console.error(`warning: the sandbox stays until the end of its ttl: ${reason(error)}`);
    }
  }

  /** Runs a shell command. The server ends it after `timeout` seconds, and returns the output so far. */
  async run(command: string, timeout = 30): Promise<CommandResult> {
    const body = { command, timeout: `${timeout}s` };
    // The client waits longer than the server, so that it gets the output of a command that is too slow.
    return JSON.parse(await this.#request("POST", "/exec", { body, timeout: timeout + 15 })) as CommandResult;
  }

  /** Writes a file, and creates the folders above it. */
  async writeFile(path: string, content: string): Promise<void> {
    await this.#request("POST", "/files", { body: { path, content } });
  }

  /** Reads the first MiB of a file, because a file can be larger than the memory of this program. */
  async readFile(path: string): Promise<string> {
    const query = new URLSearchParams({ path });
    try {
      return await this.#request("GET", `/files?${query}`, { headers: { Range: `bytes=0-${MAX_FILE - 1}` } });
    } catch (error) {
      if (error instanceof ApiError && error.status === 416) return ""; // an empty file has no such range
      throw error;
    }
  }

  async #request(method: string, path: string, options: RequestOptions = {}): Promise<string> {
    const signal = this.#signal;
    signal?.throwIfAborted();
    try {
      return await this.#server.request(method, this.#path + path, signal ? { ...options, signal } : options);
    } catch (error) {
      // For example, a 404 can mean that the file is missing, or the sandbox.
      if (error instanceof ApiError && !(await this.#isAlive())) {
        throw new SandboxGone("the sandbox is gone", { cause: error });
      }
      throw error;
    }
  }

  async #isAlive(): Promise<boolean> {
    try {
      const { state } = JSON.parse(await this.#server.request("GET", this.#path)) as { state: string };
      return state === "running" || state === "paused";
    } catch (error) {
      if (error instanceof ApiError) return error.status !== 404;
      throw error;
    }
  }
}

/** Reads the body of an error. A proxy may have answered instead of the server, without JSON. */
function apiError(response: Response, text: string): ApiError {
  try {
    const { code, message } = JSON.parse(text) as { code: string; message: string };
    return new ApiError(response.status, code, message);
  } catch {
    return new ApiError(response.status, "unknown", response.statusText);
  }
}

/** Returns the message of an error. `fetch` keeps the useful one in `cause`. */
function reason(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error ? error.cause.message || error.message : error.message;
}
