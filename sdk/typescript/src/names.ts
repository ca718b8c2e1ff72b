import { badArgument } from "./errors.ts";

/** Fields of the API that are durations: strings such as `1h30m` there, numbers of seconds here. */
export type DurationField =
  | "auto_pause"
  | "bucket_ttl"
  | "cleanup_interval"
  | "default_exec_timeout"
  | "duration"
  | "linger"
  | "max_exec_timeout"
  | "max_ttl"
  | "spawn_queue_timeout"
  | "spawn_queue_wait_avg"
  | "spawn_queue_wait_max"
  | "spawn_queue_wait_total"
  | "timeout"
  | "ttl"
  | "uptime";

/** Fields of the API that are times: strings there, `Date` here. */
export type TimeField =
  | "created_at"
  | "expires_at"
  | "generated_at"
  | "last_checked"
  | "last_heartbeat"
  | "last_used_at"
  | "mod_time"
  | "revoked_at"
  | "started_at"
  | "time"
  | "timestamp"
  | "updated_at";

/** Fields of the API that map names chosen by users or by the server, which stay as they are. */
export type MapField =
  | "by_holder"
  | "by_provider"
  | "by_state"
  | "by_worker"
  | "data"
  | "env"
  | "env_secret"
  | "labels"
  | "metadata"
  | "remediation";

const words = (text: string): ReadonlySet<string> => new Set(text.split(" "));

export const DURATIONS: ReadonlySet<string> = words(
  "auto_pause bucket_ttl cleanup_interval default_exec_timeout duration linger max_exec_timeout max_ttl " +
    "spawn_queue_timeout spawn_queue_wait_avg spawn_queue_wait_max spawn_queue_wait_total timeout ttl uptime",
);
export const TIMES: ReadonlySet<string> = words(
  "created_at expires_at generated_at last_checked last_heartbeat last_used_at mod_time revoked_at started_at time " +
    "timestamp updated_at",
);
export const MAPS: ReadonlySet<string> = words(
  "by_holder by_provider by_state by_worker data env env_secret labels metadata remediation",
);

type CamelName<S> = S extends "workdir"
  ? "cwd"
  : S extends `${infer Head}_${infer Tail}`
    ? `${Head}${Capitalize<CamelName<Tail> & string>}`
    : S;

type IsMap<K, V> = K extends MapField ? (string extends keyof NonNullable<V> ? true : false) : false;

type CamelValue<K, V> =
  IsMap<K, V> extends true
    ? V
    : K extends DurationField
      ? V extends string
        ? number
        : V
      : K extends TimeField
        ? V extends string
          ? Date
          : V
        : Camel<V>;

/** A type of the API with names in camel case, durations as numbers of seconds, and times as `Date`. */
export type Camel<T> = T extends readonly (infer E)[]
  ? Camel<E>[]
  : T extends object
    ? { [K in keyof T as CamelName<K>]: CamelValue<K, T[K]> }
    : T;

/** A body of the API as an argument of a call: as {@link Camel}, and `undefined` means absent. */
export type Input<T> = T extends readonly (infer E)[]
  ? readonly Input<E>[]
  : T extends object
    ? { [K in keyof T as CamelName<K>]: InputValue<K, T[K]> }
    : T;

type InputValue<K, V> =
  IsMap<K, V> extends true
    ? Readonly<Exclude<V, null>>
    : K extends DurationField
      ? number | Extract<V, undefined>
      : Input<Exclude<V, null>>;

function camelName(name: string): string {
  return name === "workdir" ? "cwd" : name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase());
}

function snakeName(name: string): string {
  return name === "cwd" ? "workdir" : name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Converts a value of the API; unknown fields are kept. */
export function fromWire(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(fromWire);
  if (typeof value !== "object" || value === null) return value;
  const result: Record<string, unknown> = {};
  for (const [name, field] of Object.entries(value)) {
    const text = typeof field === "string";
    if (text && DURATIONS.has(name)) result[camelName(name)] = seconds(field);
    else if (text && TIMES.has(name)) result[camelName(name)] = new Date(field);
    else result[camelName(name)] = isMap(name, field) ? field : fromWire(field);
  }
  return result;
}

/** Converts the argument of a call to a body of the API. */
export function toWire(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(toWire);
  if (typeof value !== "object" || value === null) return value;
  const result: Record<string, unknown> = {};
  for (const [camel, field] of Object.entries(value)) {
    if (field === undefined) continue;
    const name = snakeName(camel);
    if (typeof field === "number" && DURATIONS.has(name)) result[name] = duration(field, camel);
    else result[name] = isMap(name, field) ? field : toWire(field);
  }
  return result;
}

function isMap(name: string, field: unknown): boolean {
  return MAPS.has(name) && typeof field === "object";
}

/** Formats a number of seconds as a duration of the API. */
export function duration(value: number, name: string): string {
  if (!(value >= 0 && value < 1e9)) {
    throw badArgument(`\`${name}\` is ${value}; pass a number of seconds, for example 1.5`);
  }
  return Number.isInteger(value) ? `${value}s` : `${value.toFixed(6)}s`;
}

const UNITS: Readonly<Record<string, number>> = { h: 3600, m: 60, s: 1, ms: 1e-3, us: 1e-6, µs: 1e-6, ns: 1e-9 };

/** Parses a duration of the API, such as `1h30m` or `3.1ms`, to a number of seconds. */
export function seconds(text: string): number {
  let total = 0;
  for (const [, number, unit] of text.matchAll(/([\d.]+)(ms|us|µs|ns|h|m|s)/g)) {
    total += Number(number) * (UNITS[unit as string] as number);
  }
  return total;
}
