import { serverSentEvents, toText } from "./bytes.ts";
import { StreamInterrupted, badArgument } from "./errors.ts";
import { type Answer, type CallOptions, type Request, Subscription, Transport, segment } from "./http.ts";
import { type Camel, type Input, fromWire } from "./names.ts";
import { parse } from "./output.ts";
import { Resume } from "./processes.ts";
import type * as wire from "./wire.ts";

/** Version of this package. */
export const VERSION = "0.1.0";

/** Settings of a {@link Client}. */
export interface ClientOptions {
  /** Address of the server; else `TIDEBOX_URL`, else `http://127.0.0.1:7423`. */
  url?: string | undefined;
  /** API key; else `TIDEBOX_API_KEY`. */
  apiKey?: string | undefined;
  /** Owner that requests are charged to; else `TIDEBOX_USER_ID`. */
  userId?: string | undefined;
  /** More headers of each request. */
  headers?: Readonly<Record<string, string>> | undefined;
  /** Seconds until the answer of a request must be there; by default 60, or 330 for what takes long. */
  timeout?: number | undefined;
  /** Seconds without a byte after which a stream counts as dead; 45 by default. */
  streamTimeout?: number | undefined;
  /** Times that a request is sent again if that is safe; 2 by default. */
  retries?: number | undefined;
  /** Implementation of `fetch`; the global one by default. */
  fetch?: typeof globalThis.fetch | undefined;
}

/** An event of the server. Fields in `data` have the names of the API. */
export type TideboxEvent = Camel<wire.Event>;
/** State of a provider. */
export type ProviderHealth = Camel<wire.ProviderHealth>;
export type Health = Camel<wire.Health>;
export type Readiness = Camel<wire.Readiness>;
/** Limits of an owner. */
export type Quota = Camel<wire.OwnerQuota>;
/** A row of the audit history. */
export type AuditEntry = Camel<wire.AuditEntry>;
/** A server that runs sandboxes for this one. */
export type WorkerInfo = Camel<wire.Worker>;

/** Filter of {@link Client.events}. */
export interface EventOptions extends CallOptions {
  /** Types of events; all by default. */
  types?: readonly string[] | undefined;
  sandboxId?: string | undefined;
  /** Starts after this event instead of now; 0 yields all events that the server keeps. */
  lastEventId?: number | undefined;
  /** False to end without waiting for new events. */
  follow?: boolean | undefined;
}

/** Filter of {@link Admin.audit}. */
export interface AuditOptions extends CallOptions {
  actor?: string | undefined;
  action?: string | undefined;
  method?: string | undefined;
  status?: number | undefined;
  path?: string | undefined;
  since?: Date | undefined;
  until?: Date | undefined;
  /** Number of entries; all by default. */
  limit?: number | undefined;
}

const DEFAULT_URL = "http://127.0.0.1:7423";

type Environment = Readonly<Record<string, string | undefined>>;

/** Returns the environment, which a browser does not have and Deno may deny. */
function environment(): Environment {
  const { process } = globalThis as { process?: { env?: Environment } };
  const get = (name: string): string | undefined => {
    try {
      return process?.env?.[name]?.trim() || undefined;
    } catch {
      return undefined;
    }
  };
  return { url: get("TIDEBOX_URL"), key: get("TIDEBOX_API_KEY"), user: get("TIDEBOX_USER_ID") };
}

/** A connection to one server, with its address, key and deadlines. */
export class Client {
  /** @internal */
  readonly transport: Transport;
  /** The operator's calls. */
  readonly admin: Admin;

  constructor(options: ClientOptions = {}) {
    const env = environment();
    const headers: Record<string, string> = {};
    // A browser sets its own, and another would need a preflight.
    if ("process" in globalThis || "Deno" in globalThis) headers["user-agent"] = `tidebox-typescript/${VERSION}`;
    setHeader(headers, "x-api-key", options.apiKey ?? env.key);
    setHeader(headers, "x-user-id", options.userId ?? env.user);
    for (const [name, value] of Object.entries(options.headers ?? {})) setHeader(headers, name, value);
    this.transport = new Transport({
      url: options.url ?? env.url ?? DEFAULT_URL,
      headers,
      timeout: options.timeout,
      streamTimeout: options.streamTimeout ?? 45,
      retries: options.retries ?? 2,
      fetch: options.fetch,
    });
    this.admin = new Admin(this.transport);
  }

  /** Address of the server. */
  get url(): string {
    return this.transport.url;
  }

  /** Ends all calls and streams of this client that are open. */
  close(): void {
    this.transport.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** Returns whether the server runs, and its version. */
  health(options?: CallOptions): Promise<Health> {
    return this.transport.call({ path: "/health", options });
  }

  /** Returns whether the server can make sandboxes; throws `unavailable` if it cannot. */
  ready(options?: CallOptions): Promise<Readiness> {
    return this.transport.call({ path: "/ready", options });
  }

  /** Returns the version of the server. */
  async version(options?: CallOptions): Promise<string> {
    return (await this.health(options)).version;
  }

  /** Lists the providers of sandboxes. */
  providers(options?: CallOptions): Promise<ProviderHealth[]> {
    return this.transport.call({ path: "/providers", options });
  }

  /** Follows events; returns once it is connected. After a cut it continues after the last event. */
  async events(options: EventOptions = {}): Promise<Subscription<TideboxEvent>> {
    const closed = new AbortController();
    const connect = (last: number | undefined): Promise<Answer> => this.#openEvents(options, last);
    let answer = await connect(options.lastEventId);
    const next = async (last: number | undefined): Promise<Answer | undefined> => {
      if (closed.signal.aborted) return undefined;
      answer = await connect(last);
      return closed.signal.aborted ? undefined : answer;
    };
    return new Subscription(follow(answer, next, options, closed.signal), () => {
      closed.abort();
      answer.cancel();
    });
  }

  #openEvents(options: EventOptions, last: number | undefined): Promise<Answer> {
    const { types, sandboxId, follow } = options;
    const query = { type: types?.join(",") || undefined, sandbox_id: sandboxId, follow };
    const headers: Record<string, string> = last === undefined ? {} : { "last-event-id": String(last) };
    return this.transport.open({ path: "/events", query, headers, options }, "text/event-stream");
  }
}

/** Yields the events of an answer, and of the next ones after it breaks. */
async function* follow(
  first: Answer,
  next: (last: number | undefined) => Promise<Answer | undefined>,
  options: EventOptions,
  closed: AbortSignal,
): AsyncGenerator<TideboxEvent, void, undefined> {
  const resume = new Resume(options.signal);
  let last = options.lastEventId;
  // The server's time, in whole seconds; pages of other origins do not see it.
  const since = Date.parse(first.header("date") ?? "");
  for (let answer: Answer | undefined = first; answer !== undefined;) {
    resume.opened();
    try {
      for await (const event of serverSentEvents(answer.stream(), answer.url)) {
        resume.works();
        if (event.data === undefined) continue;
        const item = fromWire(parse(event.data, answer.url)) as TideboxEvent;
        // After a cut before the first event, the server sends all that it keeps.
        if (last === undefined && item.timestamp?.getTime() < since) continue;
        last = event.id === undefined ? last : Number(event.id);
        yield item;
      }
      if (options.follow === false || closed.aborted) return;
      // A server that stops ends its streams; the next attempt says whether it is back.
      throw new StreamInterrupted("the events ended");
    } catch (error) {
      await resume.after(error);
    }
    for (;;) {
      try {
        answer = await next(last ?? (Number.isNaN(since) ? undefined : 0));
        break;
      } catch (error) {
        await resume.after(error);
      }
    }
  }
}

function setHeader(headers: Record<string, string>, name: string, value: string | undefined): void {
  if (value === undefined) return;
  if (!/^[\x20-\x7e]*$/.test(value.trim())) {
    throw badArgument(`the header \`${name}\` has characters that HTTP does not allow; use printable ASCII`);
  }
  headers[name.toLowerCase()] = value.trim();
}

/** Options of a call with the client that sends it. */
export interface ClientCallOptions extends CallOptions {
  /** Client of the call; by default one with the settings of the environment. */
  client?: Client | undefined;
}

let shared: { key: string; client: Client } | undefined;

/** Returns the client of a call: the given one, or one that all calls share. */
export function clientOf(options: { client?: Client | undefined } | undefined): Client {
  if (options?.client !== undefined) return options.client;
  const key = JSON.stringify(environment());
  if (shared?.key !== key) shared = { key, client: new Client() };
  return shared.client;
}

/** Yields the items of a list that the server returns in pages. */
export async function* pages<T>(
  transport: Transport,
  request: Request,
  pageSize: number,
  limit: number = Infinity,
): AsyncGenerator<T, void, undefined> {
  let cursor: string | undefined;
  let left = limit;
  do {
    const query = { ...request.query, limit: Math.min(pageSize, left), cursor };
    const [items, next] = await transport.send({ ...request, query }, async (answer) => {
      return [fromWire(await answer.json()) as T[], answer.header("x-next-cursor")] as const;
    });
    yield* items;
    left -= items.length;
    cursor = next;
  } while (cursor !== undefined && left > 0);
}

const AUDIT_PAGE_SIZE = 500;

/** Calls of the operator, which need the admin key. */
export class Admin {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  #get<T>(path: string, options: CallOptions | undefined): Promise<T> {
    return this.#transport.call({ path, options });
  }

  /** Lists the quotas. */
  quotas(options?: CallOptions): Promise<Quota[]> {
    return this.#get("/admin/quotas", options);
  }

  /** Returns the number of quotas that set each limit. */
  quotaSummary(options?: CallOptions): Promise<Camel<wire.QuotaSummary>> {
    return this.#get("/admin/quotas/summary", options);
  }

  /** Returns the quota of an owner. */
  quota(ownerId: string, options?: CallOptions): Promise<Quota> {
    return this.#get(`/admin/quotas/${segment(ownerId, "owner")}`, options);
  }

  /** Sets the quota of an owner. */
  setQuota(ownerId: string, quota: Input<wire.QuotaRequest>, options?: CallOptions): Promise<Quota> {
    const path = `/admin/quotas/${segment(ownerId, "owner")}`;
    return this.#transport.call({ method: "PUT", path, json: quota, options });
  }

  /** Deletes the quota of an owner. */
  async deleteQuota(ownerId: string, options?: CallOptions): Promise<void> {
    await this.#transport.call({ method: "DELETE", path: `/admin/quotas/${segment(ownerId, "owner")}`, options });
  }

  /** Returns what an owner uses, and its limits. */
  usage(ownerId: string, options?: CallOptions): Promise<Camel<wire.OwnerUsage>> {
    return this.#get(`/admin/quotas/${segment(ownerId, "owner")}/usage`, options);
  }

  /** Yields the audit history, the newest entry first. */
  audit(options: AuditOptions = {}): AsyncGenerator<AuditEntry, void, undefined> {
    const { actor, action, method, status, path, since, until, limit } = options;
    const times = { since: since?.toISOString(), until: until?.toISOString() };
    const query = { actor, action, method, status, path, ...times };
    return pages(this.#transport, { path: "/admin/audit", query, options }, AUDIT_PAGE_SIZE, limit);
  }

  /** Lists the workers. */
  workers(options?: CallOptions): Promise<WorkerInfo[]> {
    return this.#get("/workers", options);
  }

  /** Returns a worker. */
  worker(id: string, options?: CallOptions): Promise<WorkerInfo> {
    return this.#get(`/workers/${segment(id, "worker")}`, options);
  }

  /** Removes a worker. */
  async deleteWorker(id: string, options?: CallOptions): Promise<void> {
    await this.#transport.call({ method: "DELETE", path: `/admin/workers/${segment(id, "worker")}`, options });
  }

  /** Returns the metrics. */
  metrics(options?: CallOptions): Promise<Camel<wire.Metrics>> {
    return this.#get("/admin/metrics", options);
  }

  /** Returns the metrics as Prometheus reads them. */
  async prometheus(options?: CallOptions): Promise<string> {
    const request = { path: "/admin/metrics/prometheus", options };
    return toText(await this.#transport.send(request, (answer) => answer.bytes()));
  }

  /** Returns the state of the server and its limits. */
  diagnostics(options?: CallOptions): Promise<Camel<wire.Diagnostics>> {
    return this.#get("/diagnostics", options);
  }

  /** Returns a provider and its settings. */
  provider(name: string, options?: CallOptions): Promise<Camel<wire.ProviderDetail>> {
    return this.#get(`/providers/${segment(name, "provider")}`, options);
  }

  /** Checks the providers now; returns whether each is healthy. */
  testProviders(options?: CallOptions): Promise<Record<string, boolean>> {
    const path = "/providers/test";
    return this.#transport.send({ method: "POST", path, json: {}, options }, async (answer) => {
      return (await answer.json()) as Record<string, boolean>;
    });
  }

  /** Returns the state of the pool mode. */
  poolStatus(options?: CallOptions): Promise<Camel<wire.PoolStatus>> {
    return this.#get("/pool/status", options);
  }

  /** Destroys the sandboxes whose lifetime is over. */
  prune(options?: CallOptions): Promise<Camel<wire.Pruned>> {
    return this.#transport.call({ method: "DELETE", path: "/sandboxes", options });
  }
}
