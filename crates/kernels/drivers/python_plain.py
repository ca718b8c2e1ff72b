# plain
# Runs code without IPython.
import __future__
import builtins
import os
import re
import sys
import traceback
import types
from _ast import PyCF_ALLOW_TOP_LEVEL_AWAIT, PyCF_ONLY_AST, Expr, Expression

FUTURE_FLAGS = 0
for feature in __future__.all_feature_names:
    FUTURE_FLAGS |= getattr(__future__, feature).compiler_flag
COROUTINE = 0x80
# Longest sources that are kept for tracebacks, in characters.
SOURCES_CHARS_MAX = 16_000_000


class Backend:
    """Runs code in a namespace, and keeps what it needs from one run to the next."""

    def __init__(self, main):
        self.main = main
        self.flags = 0
        self.sources = []
        builtins.display = part("show").display
        builtins.__tidebox_magic__ = lambda name, line, body=None: part("magics").run(main, name, line, body)
        self.represent = part("show").represent

    def run(self, code):
        name = f"<cell {driver.Kernel.runs}>"
        code = dedented(code)
        self.remember(name, code)
        if "!" in code or "%" in code:
            code = part("magics").translated(code)
        flags = self.flags | PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(code, name, "exec", flags | PyCF_ONLY_AST, True)
        last = None
        if tree.body and isinstance(tree.body[-1], Expr):
            expression = tree.body.pop()
            last = compile(Expression(expression.value), name, "eval", flags, True)
            is_shown = not is_suppressed(code, expression)
        body = compile(tree, name, "exec", flags, True)
        self.flags |= body.co_flags & FUTURE_FLAGS
        if (body.co_flags | (last.co_flags if last else 0)) & COROUTINE:
            # All of it, because what comes before an `await` may want the loop too.
            value = part("loop").run(self.evaluate_in_loop(body, last))
        else:
            eval(body, self.main.__dict__)
            value = eval(last, self.main.__dict__) if last else None
        if value is not None and is_shown:
            builtins.___, builtins.__, builtins._ = self.last_values(value)
            driver.send(self.represent(value), True)

    async def evaluate_in_loop(self, *codes):
        value = None
        for code in codes:
            if code is not None:
                value = eval(code, self.main.__dict__)
                if code.co_flags & COROUTINE:
                    value = await value
        return value if code is not None else None

    @staticmethod
    def last_values(value):
        return getattr(builtins, "__", None), getattr(builtins, "_", None), value

    def remember(self, name, code):
        """Keeps a source for tracebacks and `inspect`."""
        driver.linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        self.sources.append((name, len(code)))
        while sum(length for _, length in self.sources) > SOURCES_CHARS_MAX and len(self.sources) > 1:
            driver.linecache.cache.pop(self.sources.pop(0)[0], None)

    def describe(self, error):
        """Returns the message of an error, and its traceback without the frames of the driver."""
        return driver.error_value(error), traceback_text(error)

    def complete(self, code, cursor):
        return part("completion").complete(self.main.__dict__, code[:cursor])


def dedented(code):
    """Returns code without the indentation that all of it has."""
    indent = re.match(r"(?:[ \t]*(?:#[^\n]*)?\n)*([ \t]*)", code).group(1)
    return re.sub(f"^{indent}", "", code, flags=re.M) if indent else code


def is_suppressed(code, expression):
    """Returns whether a semicolon follows the last expression."""
    lines = code.encode().split(b"\n")[expression.end_lineno - 1:]
    after = b"\n".join([lines[0][expression.end_col_offset:], *lines[1:]])
    return re.sub(rb"#[^\n]*", b"", after).strip(b") \t\r\n\f\\").startswith(b";")


def traceback_text(error):
    try:
        trim(error)
        error.__traceback__ = from_cell(error.__traceback__)
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except RecursionError:
        return f"{type(error).__name__}: {driver.error_value(error)}"


def trim(error):
    """Takes the frames of the driver from the tracebacks of an error and of what led to it."""
    errors, seen = [error], set()
    while errors:
        error = errors.pop()
        if error is None or id(error) in seen:
            continue
        seen.add(id(error))
        if error.__traceback__ is not None:
            error.__traceback__ = trimmed(error.__traceback__)
        errors += [error.__cause__, error.__context__, *(getattr(error, "exceptions", None) or ())]


def from_cell(trace):
    """Returns a traceback from the code on, without the frames of the loop before it."""
    at = trace
    while at is not None and not at.tb_frame.f_code.co_filename.startswith("<cell "):
        at = at.tb_next
    return at or trace


def trimmed(trace):
    while trace is not None and trace.tb_frame.f_code.co_filename == driver.FILE:
        trace = trace.tb_next
    at = trace
    while at is not None and at.tb_next is not None:
        if at.tb_next.tb_frame.f_code.co_filename == driver.FILE:
            at.tb_next = at.tb_next.tb_next
        else:
            at = at.tb_next
    return trace
