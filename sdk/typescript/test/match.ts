// Partial matching of values, as cases.json defines it.
import { seconds } from "../src/names.ts";

const DURATION = /^(\d+(\.\d+)?(h|m|s|ms|us|ns))+$/;

/** Returns what differs; `undefined` if `actual` matches. */
export function mismatch(expected: unknown, actual: unknown, path = "result"): string | undefined {
  const differs = (): string => `${path}: expected ${JSON.stringify(expected)}, got ${JSON.stringify(actual)}`;
  if (expected === null) return actual === null || actual === undefined ? undefined : differs();
  if (typeof expected !== "object") {
    if (expected === actual) return undefined;
    // Durations of the API are numbers of seconds in this SDK.
    const isDuration = typeof expected === "string" && typeof actual === "number" && DURATION.test(expected);
    return isDuration && seconds(expected) === actual ? undefined : differs();
  }
  if (Array.isArray(expected)) {
    if (!Array.isArray(actual) || actual.length < expected.length) return differs();
    return first(expected.map((item, at) => mismatch(item, actual[at], `${path}[${at}]`)));
  }
  const rule = expected as Record<string, unknown>;
  if (rule.any === true) return actual === null || actual === undefined ? differs() : undefined;
  if (typeof rule.matches === "string") {
    return new RegExp(rule.matches, "s").test(String(actual)) ? undefined : differs();
  }
  if (typeof rule.length === "number") return (actual as unknown[])?.length === rule.length ? undefined : differs();
  if ("contains" in rule) {
    return Array.isArray(actual) && actual.some((item) => !mismatch(rule.contains, item)) ? undefined : differs();
  }
  if ("lacks" in rule) {
    return Array.isArray(actual) && actual.every((item) => mismatch(rule.lacks, item)) ? undefined : differs();
  }
  if (typeof actual !== "object" || actual === null) return differs();
  return first(
    Object.entries(rule).map(([name, value]) => {
      return mismatch(value, (actual as Record<string, unknown>)[name], `${path}.${name}`);
    }),
  );
}

function first(found: (string | undefined)[]): string | undefined {
  return found.find((item) => item !== undefined);
}
