// ---- Completions

const IDENTIFIER = /^[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*$/u;
const PATH = /(?:[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*\??\.)*(?:[\p{ID_Start}$_][\p{ID_Continue}$]*)?$/u;
const KEYWORDS =
  "async await break case catch class const continue debugger default delete do else export extends false finally for " +
  "function if import in instanceof let new null return static super switch this throw true try typeof undefined var " +
  "void while with yield";

// Returns where the word before the cursor begins, and what it can become. No code runs for it.
function completions(code, cursor) {
  const before = Array.from(code).slice(0, cursor).join("");
  const names = before.match(PATH)[0].split(/\??\./);
  const word = names.pop();
  const start = cursor - Array.from(word).length;
  const isMember = names.length > 0;
  if (!isMember && /\.\s*$/.test(before.slice(0, before.length - word.length))) return { start, matches: [] };
  let object = globalThis;
  for (const name of names) {
    object = valueOf(object, name);
    if (object === undefined || object === null) return { start, matches: [] };
  }
  const found = new Set(isMember ? [] : KEYWORDS.split(" "));
  for (object = Object(object); object; object = Object.getPrototypeOf(object)) {
    if (util.types.isTypedArray(object)) continue;
    for (const name of Object.getOwnPropertyNames(object)) found.add(name);
  }
  const matches = [...found].filter((name) => name.startsWith(word) && IDENTIFIER.test(name));
  return { start, matches: matches.sort().slice(0, 5000) };
}

// Returns a property without calling a getter of the code.
function valueOf(object, name) {
  for (let owner = Object(object); owner; owner = Object.getPrototypeOf(owner)) {
    if (util.types.isProxy(owner)) return undefined;
    const known = Object.getOwnPropertyDescriptor(owner, name);
    if (!known) continue;
    // The getters of the interpreter, such as that of `fs`, have no effect.
    return known.get && object === globalThis ? object[name] : known.value;
  }
  return undefined;
}

// ---- Requests

const queue = [];

function next() {
  if (run || queue.length === 0) return;
  const request = queue.shift();
  if (!request.isCompletion) {
    startRun(request);
    return;
  }
  begin(request);
  let found;
  try {
    found = completions(request.code, request.cursor);
  } catch {
    found = { start: request.cursor, matches: [] };
  }
  send({ type: "completions", run: run.number, ...found }, output);
  end(run);
  setImmediate(next);
}

// Takes requests apart, of which each begins with a line that announces its length.
let chunks = [];
let missing = 1;

function receive(chunk) {
  chunks.push(chunk);
  missing -= chunk.length;
  if (missing > 0) return;
  let bytes = Buffer.concat(chunks);
  for (;;) {
    const line = bytes.indexOf(10);
    if (line < 0) {
      missing = 1;
      break;
    }
    const [kind, number, ...words] = bytes.toString("latin1", 0, line).split(" ");
    const isCompletion = kind === "complete";
    const lengths = words.slice(isCompletion ? 1 : 0).map(Number);
    const total = lengths.reduce((sum, length) => sum + length, line + 1);
    if (bytes.length < total) {
      missing = total - bytes.length;
      break;
    }
    let at = line + 1;
    const [code, ...variables] = lengths.map((length) => bytes.toString("utf8", at, (at += length)));
    const pairs = variables.map((variable) => [
      variable.slice(0, variable.indexOf("=")),
      variable.slice(variable.indexOf("=") + 1),
    ]);
    queue.push({ isCompletion, run: Number(number), code, cursor: Number(words[0]), variables: pairs });
    bytes = bytes.subarray(total);
  }
  chunks = bytes.length > 0 ? [bytes] : [];
  next();
}

// ---- Interrupts

const contextify = internalBinding("contextify");

const WATCH = `
  const { workerData: { shared, RECEIVED, RUN }, parentPort } = require("worker_threads");
  const { setTimeout: sleep } = require("timers/promises");
  const vm = require("vm");
  const { internalBinding } = require("internal/test/binding");
  const { startSigintWatchdog, stopSigintWatchdog } = internalBinding("contextify");
  // Fails if there was an interrupt while the thread did not wait.
  globalThis.check = () => {
    startSigintWatchdog();
    if (stopSigintWatchdog()) throw new Error("an interrupt");
  };
  const wait = new vm.Script("check(); for (;;) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)");
  function watch() {
    try {
      wait.runInThisContext({ breakOnSigint: true });
    } catch {
      tellInterrupt().then(watch);
    }
  }
  async function tellInterrupt() {
    const received = Atomics.load(shared, RECEIVED);
    const isReceived = () => Atomics.load(shared, RECEIVED) !== received;
    parentPort.postMessage({ number: Atomics.load(shared, RUN) });
    for (let tries = 0; tries < 20 && !isReceived(); tries++) await sleep(5);
    if (isReceived()) return;
    const { Session } = require("inspector");
    const session = new Session();
    session.connectToMainThread();
    for (let tries = 0; tries < 20 && !isReceived(); tries++) {
      // A message that arrives while the one before is dispatched may be lost.
      await sleep(50);
      const expression = "globalThis[Symbol.for('tidebox')](" + received + ")";
      session.post("Runtime.evaluate", { expression });
      await sleep(100);
    }
    session.disconnect();
  }
  parentPort.postMessage({ isWatched: true });
  watch();
`;

// Terminates code that keeps an interrupt from being received. The thread has this called on top of whatever runs,
// because it must not terminate the driver instead.
let terminator;

function terminateCode(received) {
  if (Atomics.load(shared, RECEIVED) !== received) return;
  const { stackTraceLimit, prepareStackTrace } = Error;
  Error.stackTraceLimit = 200;
  Error.prepareStackTrace = undefined;
  const frames = new Error().stack.split("\n").slice(2);
  Error.stackTraceLimit = stackTraceLimit;
  Error.prepareStackTrace = prepareStackTrace;
  if (frames.every((frame) => /node:|tidebox:kernel|<anonymous>:1:|\(<anonymous>\)$/.test(frame))) return;
  if (!terminator) {
    const { Session } = require("inspector");
    terminator = new Session();
    terminator.connect();
  }
  if (run) run.isTerminated = true;
  terminator.post("Runtime.terminateExecution");
}

Object.defineProperty(globalThis, Symbol.for("tidebox"), { value: terminateCode });

// Whether the thread is there.
let isWatched = false;

// Forgets interrupts that came before a run.
function forgetInterrupts() {
  contextify.startSigintWatchdog();
  contextify.stopSigintWatchdog();
}

function interrupt(number) {
  if (run?.number === number && !run.isFinished) finish(run, { error: INTERRUPTED });
}

function watchInterrupts() {
  const { Worker } = require("worker_threads");
  const thread = new Worker(WATCH, {
    eval: true,
    workerData: { shared, RECEIVED, RUN },
    execArgv: ["--expose-internals", "--no-warnings"],
    resourceLimits: { maxOldGenerationSizeMb: 32, maxYoungGenerationSizeMb: 4, stackSizeMb: 1 },
  });
  thread.on("message", ({ number }) => {
    isWatched = true;
    if (number === undefined) return;
    Atomics.add(shared, RECEIVED, 1);
    if (terminator) {
      terminator.disconnect();
      terminator = undefined;
      // The interpreter still counts a timer that was terminated, and would not wait for later ones.
      internalBinding("timers").toggleTimerRef?.(true);
    }
    interrupt(number);
    process.emit("SIGINT", "SIGINT", 2);
  });
  thread.unref();
}

// ---- Start

// What an interrupt has terminated leaves a stack of asynchronous calls that the interpreter takes for a fault.
const { async_hook_fields, constants } = internalBinding("async_wrap");
async_hook_fields[constants.kCheck] = 0;
contextify.startSigintWatchdog();
// The code's own handlers of interrupts get them from the driver, because the last one removed would end the process.
for (const listener of process.listeners("newListener")) {
  if (listener.name !== "startListeningIfSignal") continue;
  process.off("newListener", listener);
  process.on("newListener", (type, ...rest) => type === "SIGINT" || listener(type, ...rest));
}
process.on("uncaughtException", (error) => uncaught(error, "Uncaught exception"));
process.on("unhandledRejection", (error) => uncaught(error, "Unhandled rejection"));
process.on("beforeExit", () => {
  if (!run || run.isFinished) return;
  // The thread's message may still be on its way.
  if (run.isTerminated) {
    finish(run, { error: INTERRUPTED });
    return;
  }
  const value = "the awaited promise never settles: no timer, stream or program is left that could settle it";
  finish(run, { error: { name: "UnsettledPromise", value, traceback: `UnsettledPromise: ${value}` } });
});
process.exit = exit;
process.execArgv = [];

// Writes at once, so that output has its order with that of programs. It has no state that an interrupt could break.
const SyncWriteStream = require("internal/fs/sync_write_stream");

function writeNow(fd, chunk, encoding, callback) {
  if (typeof encoding === "function") [encoding, callback] = [undefined, encoding];
  const bytes = ArrayBuffer.isView(chunk)
    ? Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength)
    : Buffer.from(chunk, encoding);
  let failed;
  for (let at = 0; at < bytes.length && !failed; ) {
    try {
      at += fs.writeSync(fd, bytes, at);
    } catch (error) {
      // A program may have made the pipe non-blocking.
      if (error.code === "EAGAIN") Atomics.wait(shared, RECEIVED, Atomics.load(shared, RECEIVED), 1);
      else failed = error;
    }
  }
  if (typeof callback === "function") process.nextTick(callback, failed);
  return true;
}

for (const [fd, name] of [[1, "stdout"], [2, "stderr"]]) {
  let stream;
  const get = () => {
    if (!stream) {
      stream = new SyncWriteStream(fd, { autoClose: false });
      stream._type = "pipe";
      stream._destroy = (error, callback) => callback(error);
      stream.write = (chunk, encoding, callback) => writeNow(fd, chunk, encoding, callback);
    }
    return stream;
  };
  Object.defineProperty(process, name, { configurable: true, enumerable: true, get });
}

// Warnings are printed as always, apart from those that the driver's own options cause.
const { onWarning } = require("internal/process/warning");
process.on("warning", (warning) => warning.name === "ExperimentalWarning" || onWarning(warning));

// `require` looks below the working directory.
const requireHere = { cwd: undefined, require: globalThis.require };

function requireFromHere() {
  const isTheirs = globalThis.require !== requireHere.require;
  requireHere.cwd = process.cwd();
  if (isTheirs) return;
  requireHere.require = createRequire(path.join(requireHere.cwd, "cell.js"));
  globalThis.require = requireHere.require;
}

// Imports a module for code of an interpreter that has no default for it.
function imported(specifier, _script, attributes) {
  const isPath = /^\.{0,2}\//.test(specifier);
  const url = isPath ? require("url").pathToFileURL(path.resolve(specifier)).href : specifier;
  return load(url, { assert: attributes, with: attributes });
}

for (const name of ["module", "exports", "__filename", "__dirname"]) delete globalThis[name];
globalThis.display = display;

const requests = new net.Socket({ fd: 4, readable: true, writable: false });
requests.on("data", receive);
requests.on("close", () => exitProcess(0));
watchInterrupts();
send({ type: "ready", version: `Node.js ${process.versions.node}` }, output);
