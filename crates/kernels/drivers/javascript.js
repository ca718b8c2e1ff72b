// The driver of JavaScript and TypeScript. `marker` and `require` are given, and `TYPESCRIPT` is set for the latter.
//
// An interrupt ends code in three ways. `vm` ends code that runs synchronously. A thread receives all other interrupts,
// and passes them on as a message, which ends a pending `await`. If the message is not received, because a callback of
// the code does not return, the thread has it terminated.

"use strict";

const fs = require("fs");
const net = require("net");
const path = require("path");
const util = require("util");
const vm = require("vm");
const { createRequire, stripTypeScriptTypes, SourceMap } = require("module");
const { internalBinding } = require("internal/test/binding");

// Code may replace the global ones.
const { Array, ArrayBuffer, Atomics, Boolean, Buffer, Error, Int32Array, JSON, Map, Number, Object } = globalThis;
const { Promise, Set, SharedArrayBuffer, String, Symbol, SyntaxError, process, setImmediate } = globalThis;
const { stringify, parse } = JSON;
const isTypeScript = typeof TYPESCRIPT !== "undefined";
const exitProcess = process.reallyExit.bind(process);
if (isTypeScript && !stripTypeScriptTypes) exitProcess(126);

const SEGMENT_PAYLOAD_BYTES = 4096 - 38;
const REPRESENTATION_BYTES_MAX = 10 * 1024 * 1024;
const MESSAGE_BYTES_MAX = 15 * 1024 * 1024;
const TEXT_CHARACTERS_MAX = 100_000;

// ---- Messages

// A descriptor as a blocking stream, whose writes are one system call each.
class Output {
  constructor(fd) {
    const { Pipe, constants } = internalBinding("pipe_wrap");
    const { WriteWrap } = internalBinding("stream_wrap");
    try {
      // Opened again, so that no program of the code can make it non-blocking.
      const again = fs.openSync(`/proc/self/fd/${fd}`, fs.constants.O_WRONLY);
      fs.closeSync(fd);
      fd = again;
    } catch {
      // It is shared with the programs of the code.
    }
    this.pipe = new Pipe(constants.SOCKET);
    this.pipe.open(fd);
    this.pipe.setBlocking(true);
    this.pipe.unref();
    this.request = new WriteWrap();
    this.request.oncomplete = () => {};
  }
}

const output = new Output(3);
const errors = new Output(5);
// Segments that are to be written. Those of a message that an interrupt cut off are written before the next one.
let outbox = [];
let written = 0;

function flush() {
  while (written < outbox.length) {
    const { to, segment } = outbox[written];
    // Nothing can be interrupted between the system call and the count.
    if (to.pipe.writeBuffer(to.request, segment) !== 0) exitProcess(1);
    written += 1;
  }
  outbox = [];
  written = 0;
}

function send(message, ...streams) {
  const payload = Buffer.from(stringify(message));
  const segments = [];
  for (const to of streams) {
    for (let at = 0; at < payload.length; at += SEGMENT_PAYLOAD_BYTES) {
      const piece = payload.subarray(at, at + SEGMENT_PAYLOAD_BYTES);
      const end = at + piece.length < payload.length ? "+" : ".";
      const head = `\x1e${marker}${piece.length.toString(16).padStart(4, "0")}${end}`;
      segments.push({ to, segment: Buffer.concat([Buffer.from(head), piece]) });
    }
  }
  outbox.push(...segments);
  flush();
}

// Writes a line to stderr for the caller.
function warn(text) {
  try {
    fs.writeSync(2, `${text}\n`);
  } catch {
    // The code has closed it.
  }
}

// ---- Values

function shortened(text) {
  const { length } = text;
  if (length <= TEXT_CHARACTERS_MAX) return text;
  const half = TEXT_CHARACTERS_MAX / 2;
  const left = `[... ${length - TEXT_CHARACTERS_MAX} characters were left out ...]`;
  return `${text.slice(0, half)}\n${left}\n${text.slice(length - half)}`;
}

function inspected(value) {
  const options = { maxStringLength: REPRESENTATION_BYTES_MAX };
  if (typeof value === "string") options.breakLength = Infinity;
  try {
    return util.inspect(value, options);
  } catch (error) {
    warn(`the value could not be inspected: ${messageOf(error)}`);
    return Object.prototype.toString.call(value);
  }
}

// Returns whether JSON has all of a value.
function isPlain(value, depth = 0) {
  switch (typeof value) {
    case "string":
    case "boolean":
      return true;
    case "number":
      return Number.isFinite(value);
    case "object":
      break;
    default:
      return false;
  }
  if (value === null) return true;
  if (depth > 100) return false;
  if (Array.isArray(value)) return value.every((item) => isPlain(item, depth + 1));
  const prototype = Object.getPrototypeOf(value);
  if ((prototype !== null && prototype !== Object.prototype) || Object.getOwnPropertySymbols(value).length > 0) {
    return false;
  }
  return Object.values(value).every((item) => isPlain(item, depth + 1));
}

const METHODS = [
  ["_toHtml", "text/html"],
  ["toHtml", "text/html"],
  ["_toSvg", "image/svg+xml"],
  ["_toPng", "image/png"],
  ["_toJpeg", "image/jpeg"],
  ["_toMarkdown", "text/markdown"],
  ["_toLatex", "text/latex"],
];

// Calls a method of a value that shows it; says on stderr why it fails.
function shownBy(value, method) {
  try {
    return typeof value[method] === "function" ? value[method]() : undefined;
  } catch (error) {
    if (error === exitMarker) throw error;
    warn(`\`${String(method)}\` failed: ${messageOf(error)}`);
    return undefined;
  }
}

// Returns the representations of a value, or a promise of them.
function representations(value) {
  const isObject = (typeof value === "object" && value !== null) || typeof value === "function";
  const bundle = isObject ? shownBy(value, Symbol.for("Jupyter.display")) : undefined;
  if (typeof bundle?.then === "function") {
    return bundle.then(
      (bundle) => withText(value, { ...bundle }),
      (error) => {
        warn(`\`Jupyter.display\` failed: ${messageOf(error)}`);
        return withText(value, {});
      },
    );
  }
  const data = { ...bundle };
  if (isObject && !bundle) {
    Object.assign(data, shownBy(value, "_toMime"));
    for (const [method, type] of METHODS) {
      if (type in data) continue;
      const shown = shownBy(value, method);
      if (shown !== undefined) data[type] = shown;
    }
    if (Object.keys(data).length === 0 && isPlain(value)) data["application/json"] = value;
  }
  return withText(value, data);
}

function withText(value, data) {
  const length = typeof value === "string" ? value.length : 0;
  const text = length > REPRESENTATION_BYTES_MAX ? leftOut("text/plain", length) : inspected(value);
  return bounded({ "text/plain": text, ...data });
}

function leftOut(type, length) {
  return `${type} was left out: ${(length / 1e6).toFixed(1)} MB are more than 10 MiB`;
}

// Returns representations as a message has them, without those that are too long.
function bounded(data) {
  const result = {};
  const missing = [];
  let total = 0;
  for (const type of Object.keys(data)) {
    let shown = data[type];
    if (shown === undefined || shown === null) continue;
    if (ArrayBuffer.isView(shown)) {
      shown = Buffer.from(shown.buffer, shown.byteOffset, shown.byteLength).toString("base64");
    } else if (typeof shown !== "string") {
      try {
        const text = stringify(shown);
        shown = /\bjson$/.test(type) ? parse(text) : text;
      } catch (error) {
        warn(`\`${type}\` was left out: ${messageOf(error)}`);
        continue;
      }
    }
    const length = typeof shown === "string" ? Buffer.byteLength(shown) : Buffer.byteLength(stringify(shown));
    if (length > REPRESENTATION_BYTES_MAX || total + length > MESSAGE_BYTES_MAX) {
      missing.push(leftOut(type, length));
    } else {
      total += length;
      result[type] = shown;
    }
  }
  if (missing.length > 0) {
    const text = missing.join("\n");
    result["text/plain"] = result["text/plain"] === undefined ? text : `${result["text/plain"]}\n${text}`;
  }
  return result;
}

// Shows a value, or with `raw` representations by their MIME types.
function display(value, options) {
  const data = options?.raw ? bounded(value) : representations(value);
  const show = (data) => {
    if (run) send({ type: "result", run: run.number, main: false, data }, output);
  };
  return typeof data.then === "function" ? data.then(show) : show(data);
}

// ---- Errors

function messageOf(error) {
  try {
    return shortened(String(error instanceof Error ? error.message : inspected(error)));
  } catch {
    return "an error without a message";
  }
}

// Returns text without the frames of the driver, and with the lines of the code before its types were removed.
function cleaned(text) {
  const lines = [];
  let isOurs = false;
  for (const line of text.split("\n")) {
    const isFrame = /^\s+at /.test(line);
    if (isFrame && line.includes("tidebox:kernel")) {
      isOurs = true;
      while (/^\s+at .*\(node:vm:/.test(lines.at(-1) ?? "")) lines.pop();
    }
    if (!isFrame) isOurs = false;
    if (!isOurs) lines.push(line);
  }
  const own = lines.join("\n").replace(/^(<cell \d+>:1\n)\(async \(\) => \{(.*\n) {14}/, "$1$2");
  return own.replace(/<cell (\d+)>:(\d+):(\d+)/g, (place, cell, line, column) => {
    const entry = sourceMaps.get(Number(cell))?.findEntry(line - 1, column - 1);
    return entry?.originalLine === undefined
      ? place
      : `<cell ${cell}>:${entry.originalLine + 1}:${entry.originalColumn + 1}`;
  });
}

function described(error) {
  if (!util.types.isNativeError(error) && !(error instanceof Error)) {
    const value = shortened(inspected(error));
    return { name: "Error", value, traceback: `Uncaught ${value}` };
  }
  let name = "Error";
  try {
    name = String(error.name);
  } catch {
    // A getter of the code.
  }
  return { name, value: messageOf(error), traceback: shortened(cleaned(inspected(error))) };
}

const INTERRUPTED = {
  name: "KeyboardInterrupt",
  value: "",
  traceback: "KeyboardInterrupt: the code was interrupted",
};

// What `process.exit` throws, to end the run and not the kernel.
const exitMarker = new Error("process.exit was called");
exitMarker.name = "ExitStatus";
exitMarker.stack = "ExitStatus: process.exit was called";

function exit(code) {
  const status = Number(code ?? process.exitCode ?? 0) || 0;
  if (run && run.status === undefined) run.status = status;
  throw exitMarker;
}

function uncaught(error, origin) {
  if (error === exitMarker) {
    if (run && !run.isFinished) finish(run, {});
    return;
  }
  warn(`${origin}\n${described(error).traceback}`);
}

// ---- Runs

// The run in progress, if any.
let run;
let count = 0;
const sourceMaps = new Map();

// Memory that the thread of interrupts shares: the number of interrupts that were received, and that of the run in
// progress.
const shared = new Int32Array(new SharedArrayBuffer(8));
const RECEIVED = 0;
const RUN = 1;

// An interrupt ends what is called by this script. It has a context of its own, because code may replace any global.
let guarded;
const guard = new vm.Script("guarded()", { filename: "tidebox:kernel" });
const guardContext = vm.createContext({ guarded: () => guarded() });

// Returns whether an error is an interrupt, or that of a program which an interrupt has ended, and which may be noticed
// before the interrupt is.
function isInterrupt(error) {
  try {
    return error?.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED" || error?.signal === "SIGINT";
  } catch {
    return false;
  }
}

function withInterrupts(action) {
  guarded = action;
  try {
    return { value: guard.runInContext(guardContext, { breakOnSigint: true, displayErrors: false }) };
  } catch (error) {
    if (isInterrupt(error)) return { error: INTERRUPTED };
    if (error === exitMarker) return {};
    try {
      return { error: described(error) };
    } catch {
      return { error: { name: "Error", value: "", traceback: "an error that cannot be described" } };
    }
  }
}

function begin(request) {
  count += request.isCompletion ? 0 : 1;
  if (!isWatched) forgetInterrupts();
  run = { number: request.run, cell: count, old: [], isFinished: false, status: undefined };
  Atomics.store(shared, RUN, run.number);
  send({ type: "begin", run: run.number, count }, output, errors);
}

function startRun(request) {
  const outcome = withInterrupts(() => {
    begin(request);
    for (const [name, value] of request.variables) {
      run.old.push([name, process.env[name]]);
      process.env[name] = value;
    }
    return evaluated(request.code);
  });
  flush();
  const ours = run;
  if (outcome.error || !outcome.value?.promise) {
    settle(ours, outcome.error, outcome.value);
    return;
  }
  // So that `beforeExit` tells when nothing is left that could settle the promise.
  requests.unref();
  const { promise, hasValue } = outcome.value;
  promise.then(
    (value) => settle(ours, undefined, { value, hasValue }),
    (error) => settle(ours, error === exitMarker ? undefined : failure(error)),
  );
}

// Returns the error of a promise.
function failure(error) {
  return isInterrupt(error) ? INTERRUPTED : withInterrupts(() => described(error)).value ?? INTERRUPTED;
}

// Evaluates code, and returns its value, or a promise of it.
function evaluated(code) {
  const filename = `<cell ${run.cell}>`;
  if (isTypeScript) code = withoutTypes(code, run.cell);
  const { source, names, before, isAsync, hasValue } = scriptOf(code);
  const script = new vm.Script(source, {
    filename,
    columnOffset: -before,
    importModuleDynamically: vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER ?? imported,
  });
  for (const name of names) declare(name, isAsync);
  if (requireHere.cwd !== process.cwd()) requireFromHere();
  const value = script.runInThisContext({ displayErrors: false });
  if (isAsync || (hasValue && typeof value?.then === "function")) return { promise: Promise.resolve(value), hasValue };
  return { value, hasValue };
}

// Makes sure that code can assign to a global variable, for example to `crypto`, which has only a getter.
function declare(name, isAsync) {
  const known = Object.getOwnPropertyDescriptor(globalThis, name);
  if (known ? !known.configurable || "value" in known : !isAsync) return;
  Object.defineProperty(globalThis, name, { value: undefined, writable: true, enumerable: true, configurable: true });
}

// Returns TypeScript without its types, with the same lines.
function withoutTypes(code, cell) {
  try {
    return stripTypeScriptTypes(code);
  } catch (error) {
    if (error.code !== "ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX") throw syntaxError(error, cell);
  }
  let transformed;
  try {
    transformed = stripTypeScriptTypes(code, { mode: "transform", sourceMap: true });
  } catch (error) {
    throw syntaxError(error, cell);
  }
  const [script, map] = transformed.split("\n//# sourceMappingURL=data:application/json;base64,");
  sourceMaps.set(cell, new SourceMap(parse(Buffer.from(map, "base64").toString())));
  return script;
}

// Returns the error of wrong TypeScript with the line that is wrong.
function syntaxError(error, cell) {
  const short = new SyntaxError(error.message);
  const [, line, excerpt] = /^:(\d+)\n([^]*?\^)\n/.exec(error.stack) ?? [];
  const place = line ? `<cell ${cell}>:${line}\n${excerpt.split("\n").slice(-2).join("\n")}\n\n` : "";
  // A frame, without which an error is shown in brackets.
  short.stack = `${place}SyntaxError: ${error.message}\n    at tidebox:kernel`;
  return short;
}

// Shows the value of a run, or its error, and ends it.
function settle(ours, error, { value, hasValue } = {}) {
  // An interrupt may have ended it already.
  if (ours.isFinished) return undefined;
  if (error || !hasValue || value === undefined || ours.status !== undefined) return finish(ours, { error });
  const shown = withInterrupts(() => representations(value));
  if (shown.error) return finish(ours, { error: shown.error });
  if (typeof shown.value?.then !== "function") return finish(ours, { data: shown.value });
  return shown.value.then((data) => ours.isFinished || finish(ours, { data }));
}

function finish(ours, { error, data }) {
  flush();
  ours.isFinished = true;
  requests.ref();
  for (const [name, old] of ours.old.reverse()) {
    if (old === undefined) delete process.env[name];
    else process.env[name] = old;
  }
  if (error !== INTERRUPTED && ours.status !== undefined) error = undefined;
  if (!error && ours.status) {
    const value = `the code exited with status ${ours.status}`;
    error = { name: "ExitStatus", value, traceback: `ExitStatus: ${value}` };
  }
  if (data) send({ type: "result", run: ours.number, main: true, data }, output);
  if (error) send({ type: "error", run: ours.number, ...error }, output);
  // Rejections of this run that nobody handles are printed first.
  setImmediate(() => {
    end(ours);
    next();
  });
}

function end(ours) {
  run = undefined;
  Atomics.store(shared, RUN, 0);
  send({ type: "end", run: ours.number }, output, errors);
}
