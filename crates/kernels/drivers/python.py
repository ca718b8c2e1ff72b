# Driver of Python: requests, messages, streams and interrupts. See lib.rs for the protocol.
import _thread
import builtins
import errno
import io
import linecache
import os
import select
import sys
import traceback
import types
from _json import encode_basestring, make_encoder
from _signal import SIGINT
from _signal import signal as set_signal

MESSAGES, REQUESTS, ERRORS = 3, 4, 5
# Name of the file that the frames of the driver have; tracebacks leave them out.
FILE = "<kernel>"
SEGMENT_BYTES_MAX = 4096
PID = os.getpid()
# Longest text of an error, in characters.
ERROR_CHARS_MAX = 100_000
# Time that output waits for the rest of its line, in seconds.
FLUSH_DELAY = 0.02
# Lines that are written at once, before further ones wait for each other: ten thousand lines a second would be as
# many system calls.
LINES_AT_ONCE = 64

# The code may replace or patch what it finds in the modules.
write_descriptor, read_descriptor, describe_descriptor = os.write, os.read, os.fstat
process_id, exit_process, environment = os.getpid, os._exit, os.environb
buffer_write, buffer_flush = io.BufferedWriter.write, io.BufferedWriter.flush


class Kernel:
    """State of the driver."""

    backend = None
    # Number of the request in hand, and number of runs.
    request = 0
    runs = 0
    # True while an interrupt is for the code, and true once one came that could not be raised at once.
    is_interruptible = False
    is_interrupted = False
    # Number of interrupts that were raised.
    interrupts = 0
    lock = _thread.allocate_lock()
    # Segments must not go to a file that the code has opened in place of a stream.
    identities = {}
    # Streams of the code by descriptor, and what they write to.
    streams = {}
    outputs = {}


def no_json(value):
    raise TypeError(f"{type(value).__name__} is not JSON")


# Not `json.dumps`, which the code may change, and which loads more.
encode = make_encoder(None, no_json, encode_basestring, None, ":", ",", False, False, False)


def dumps(value):
    return "".join(encode(value, 0))


def identity(descriptor):
    try:
        status = describe_descriptor(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Messages


def write_all(descriptor, data):
    while data:
        try:
            data = data[write_descriptor(descriptor, data):]
        except BlockingIOError:
            # The code has changed the mode of the stream, which is that of its stdout too.
            select.select([], [descriptor], [])
        except OSError:
            exit_process(1)


def emit(message, descriptors=(MESSAGES,)):
    """Writes a message. Is never interrupted, because half a message would break all that follow."""
    if process_id() != PID:
        return
    head = b"\x1e" + MARKER
    room = SEGMENT_BYTES_MAX - len(head) - 5
    with Kernel.lock:
        for descriptor in descriptors:
            if identity(descriptor) != Kernel.identities[descriptor]:
                exit_process(1)
            for start in range(0, len(message), room):
                payload = message[start:start + room]
                end = b"." if start + room >= len(message) else b"+"
                write_all(descriptor, head + b"%04x" % len(payload) + end + payload)


def text_bytes(text):
    """Returns text in UTF-8, in which half of a surrogate pair has no place."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def message(kind, **fields):
    return text_bytes(dumps({"type": kind, "run": Kernel.request, **fields}))


def send(data, is_main):
    """Shows representations by MIME type, after what was printed before."""
    parts = part("show").pack(data)
    if not parts:
        return
    if process_id() != PID:
        # Nobody reads what a child shows, but the output of a child is seen.
        print(data.get("text/plain", ""))
        return
    flush(1)
    shown = b",".join(text_bytes(dumps(mime)) + b":" + encoded for mime, encoded in parts.items())
    head = message("result", main=is_main)
    if Kernel.is_interruptible:
        emit(head[:-1] + b',"data":{' + shown + b"}}")
    if Kernel.is_interrupted and _thread.get_ident() == Kernel.thread:
        Kernel.is_interrupted = False
        raise KeyboardInterrupt


def shortened(text, limit=ERROR_CHARS_MAX):
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters were left out ...\n{text[-half:]}"


# Streams of the code


class Output(io.BufferedWriter):
    """Stream that writes each line at once, and what is no whole line soon."""

    def __init__(self, descriptor, name):
        # Code that closes it must not close the descriptor, which its programs use.
        raw = io.FileIO(descriptor, "wb", closefd=False)
        raw.name = name
        super().__init__(raw, 1 << 16)
        self.is_waiting = False
        self.lines_left = LINES_AT_ONCE

    def write(self, data):
        count = buffer_write(self, data)
        if self.lines_left > 0 and type(data) is bytes and b"\n" in data:
            self.lines_left -= 1
            buffer_flush(self)
        elif not self.is_waiting:
            self.is_waiting = True
            Flusher.wake()
        return count


class Flusher:
    """Thread that writes what waits. It ends before a fork, of which Python warns where there are threads."""

    is_running = False
    waking = _thread.allocate_lock()
    stopping = _thread.allocate_lock()
    stopped = _thread.allocate_lock()
    for lock in (waking, stopping, stopped):
        lock.acquire()
    del lock

    @classmethod
    def wake(cls):
        try:
            if not cls.is_running:
                _thread.start_new_thread(cls.run, ())
                cls.is_running = True
            cls.waking.release()
        except RuntimeError:
            # It is awake, or there can be no more threads: then the end of the run writes what waits.
            pass

    @classmethod
    def run(cls):
        while True:
            cls.waking.acquire()
            if cls.stopping.acquire(timeout=FLUSH_DELAY):
                cls.is_running = False
                cls.stopped.release()
                return
            for descriptor in (1, 2):
                output = Kernel.outputs[descriptor]
                output.is_waiting = False
                flush(descriptor)
                output.lines_left = LINES_AT_ONCE

    @classmethod
    def stop(cls):
        if cls.is_running:
            for lock in (cls.stopping, cls.waking):
                try:
                    lock.release()
                except RuntimeError:
                    pass
            cls.stopped.acquire(timeout=1)


def flush(descriptor):
    try:
        buffer_flush(Kernel.outputs[descriptor])
    except (OSError, ValueError, RuntimeError):
        # The code has closed it, or this interrupts a write to it.
        pass


def flush_replaced():
    """Flushes what the code has put in place of the streams."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and stream not in Kernel.streams.values():
            stream.flush()


def flush_all():
    flush(1)
    flush(2)


def open_streams():
    """Opens the streams that the code has closed or, at first, all of them."""
    for descriptor, name, source in ((1, "stdout", MESSAGES), (2, "stderr", ERRORS)):
        if identity(descriptor) is None:
            os.dup2(source, descriptor)
            Kernel.outputs.pop(descriptor, None)
        elif identity(descriptor) == Kernel.identities[source]:
            os.set_blocking(descriptor, True)
        output = Kernel.outputs.get(descriptor)
        if output is None or output.closed:
            output = Kernel.outputs[descriptor] = Output(descriptor, f"<{name}>")
        output.lines_left = LINES_AT_ONCE
        is_closed = is_closed_stream(getattr(sys, name, None))
        if is_closed or descriptor not in Kernel.streams:
            errors = "surrogateescape" if descriptor == 1 else "backslashreplace"
            stream = io.TextIOWrapper(output, encoding="utf-8", errors=errors, newline="\n", write_through=True)
            stream.mode = "w"
            Kernel.streams[descriptor] = stream
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    if is_closed_stream(getattr(sys, "stdin", None)):
        sys.stdin = open(os.devnull)


def is_closed_stream(stream):
    if type(stream) is not io.TextIOWrapper:
        # One that the code has made.
        return False
    try:
        return stream.closed
    except ValueError:
        # Its buffer was detached.
        return True


def no_input(prompt=""):
    raise EOFError("`input()` is not available, because code here has no stdin; set the value in the code instead")


# Interrupts


def on_interrupt(signum, frame):
    if not Kernel.is_interruptible:
        return
    at = frame
    while at is not None:
        if at.f_code is emit.__code__ or at.f_code is handle.__code__:
            # Not in the code: raised as soon as it is.
            Kernel.is_interrupted = True
            return
        if at.f_code is enter.__code__:
            break
        at = at.f_back
    Kernel.interrupts += 1
    raise KeyboardInterrupt


def enter(function, arguments):
    """Calls a function that may be interrupted."""
    if Kernel.is_interrupted:
        Kernel.is_interrupted = False
        raise KeyboardInterrupt
    return function(*arguments)


def attempt(function, *arguments):
    """Calls a function of the code; returns its value and what it raised."""
    # An interrupt in this frame is not raised, so that no second one escapes the handling of the first.
    try:
        return enter(function, arguments), None
    except BaseException as error:
        return None, error




# Requests


class Reader:
    """Requests from the server."""

    pending = b""

    @classmethod
    def fill(cls):
        if identity(REQUESTS) != Kernel.identities[REQUESTS]:
            exit_process(1)
        chunk = read_descriptor(REQUESTS, 1 << 16)
        if not chunk:
            raise SystemExit
        return chunk

    @classmethod
    def line(cls):
        while b"\n" not in cls.pending:
            cls.pending += cls.fill()
        line, _, cls.pending = cls.pending.partition(b"\n")
        return line

    @classmethod
    def take(cls, count):
        chunks, length = [cls.pending], len(cls.pending)
        while length < count:
            chunk = cls.fill()
            chunks.append(chunk)
            length += len(chunk)
        data = b"".join(chunks)
        cls.pending = data[count:]
        return data[:count]


def serve():
    while True:
        words = Reader.line().split()
        run = int(words[1])
        if words[0] == b"run":
            code = Reader.take(int(words[2])).decode()
            variables = [Reader.take(int(length)).partition(b"=") for length in words[3:]]
            handle(run, run_code, (code,), {name: value for name, _, value in variables})
        else:
            code = Reader.take(int(words[3])).decode()
            handle(run, complete, (code, int(words[2])), {})


def handle(run, function, arguments, variables):
    old = {name: environment.get(name) for name in variables}
    for name, value in variables.items():
        environment[name] = value
    open_streams()
    flush_all()
    Kernel.request = run
    if function is run_code:
        Kernel.runs += 1
    set_signal(SIGINT, on_interrupt)
    Kernel.is_interrupted = False
    Kernel.is_interruptible = True
    emit(message("begin", count=Kernel.runs), (MESSAGES, ERRORS))
    function(*arguments)
    attempt(flush_replaced)
    Kernel.is_interruptible = False
    flush(1)
    emit(message("end"))
    flush(2)
    emit(message("end"), (ERRORS,))
    set_signal(SIGINT, on_interrupt)
    for name, value in old.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value


def run_code(code):
    failure, error = attempt(Kernel.backend.run, code)
    error = error or failure
    if process_id() != PID:
        end_child(error)
    Kernel.is_interrupted = False
    if "matplotlib" in sys.modules:
        _, other = attempt(part("show").end_figures)
        error = error or other
    if error is not None:
        report(error)


def report(error):
    Kernel.is_interrupted = False
    description, _ = attempt(Kernel.backend.describe, error)
    value, text = description or ("the error cannot be shown", type(error).__name__)
    flush(1)
    emit(message("error", name=type(error).__name__, value=shortened(value), traceback=shortened(text)))


def end_child(error):
    """Ends a child of the code that has come to the end of the code, as the end of a script would end it."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        code = 1
        print(Kernel.backend.describe(error)[1], file=sys.stderr)
    attempt(flush_replaced)
    flush_all()
    exit_process(code & 255)


def complete(code, cursor):
    found, _ = attempt(Kernel.backend.complete, code, cursor)
    start, matches = found or (cursor, [])
    emit(message("completions", start=start, matches=matches))


def error_value(error):
    try:
        return str(error)
    except Exception as other:
        return f"<its text cannot be shown: {type(other).__name__}>"


# Parts that are compiled at first use


def part(name, loaded={}):
    if name not in loaded:
        source = next(text for text in REST.split("\f") if text.startswith(f"# {name}\n"))
        module = types.ModuleType(f"kernel_{name}")
        module.__dict__.update(__builtins__=globals()["__builtins__"], driver=DRIVER, part=part)
        exec(compile(source, FILE, "exec"), module.__dict__)
        loaded[name] = module
    return loaded[name]


DRIVER = types.SimpleNamespace(**{name: value for name, value in globals().items() if not name.startswith("__")})


def on_fork_in_child():
    Kernel.lock = _thread.allocate_lock()
    for descriptor, known in Kernel.identities.items():
        if identity(descriptor) == known:
            os.close(descriptor)


def before_fork():
    Flusher.stop()
    flush_all()


def prepare():
    """Prepares for requests; returns what serves them."""
    Kernel.thread = _thread.get_ident()
    for descriptor in (MESSAGES, REQUESTS, ERRORS):
        os.set_inheritable(descriptor, False)
        Kernel.identities[descriptor] = identity(descriptor)
    open_streams()
    set_signal(SIGINT, on_interrupt)
    os.register_at_fork(before=before_fork, after_in_child=on_fork_in_child)
    builtins.input = no_input
    os.environ.setdefault("MPLBACKEND", "Agg")
    # The names of the driver are none of the code.
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    Kernel.own_main = sys.modules["__main__"]
    sys.modules["__main__"] = main
    sys.argv = [""]
    part("hooks").install()
    version = f"{sys.implementation.name.replace('cpython', 'CPython')} {sys.version.split()[0]}"
    # The completer of IPython imports it, whether it is used or not.
    had = sys.modules.setdefault("jedi", None)
    try:
        Kernel.backend = part("ipython").Backend(main)
        version += f", IPython {sys.modules['IPython'].__version__}"
    except Exception:
        # It is not there, or does not work here.
        sys.modules["__main__"] = main
        Kernel.backend = part("plain").Backend(main)
    finally:
        if had is None:
            del sys.modules["jedi"]
    emit(text_bytes(dumps({"type": "ready", "version": version})))
    return serve
