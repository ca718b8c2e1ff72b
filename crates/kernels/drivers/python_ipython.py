# ipython
# Runs code with IPython, in this process.
import os
import shutil
import sys
import tempfile
import warnings
from contextlib import nullcontext

from IPython.core.autocall import ExitAutocall
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.formatters import DisplayFormatter
from IPython.core.interactiveshell import InteractiveShell
from traitlets import Any, Type
from traitlets.config import Config, Configurable

MATCHES_MAX = 1000


class Formatter(DisplayFormatter):
    is_active = False

    def format(self, obj, include=None, exclude=None):
        was_active, self.is_active = self.is_active, True
        self.value = obj
        try:
            data, metadata = super().format(obj, include=include, exclude=exclude)
        finally:
            self.is_active, self.value = was_active, None
        if not data and hasattr(type(obj), "_ipython_display_"):
            # It has shown itself.
            return data, metadata
        if "text/plain" not in data:
            # Its `__repr__` has failed.
            data["text/plain"] = object.__repr__(obj)
        for mime, shown in part("show").more(obj).items():
            if (not include or mime in include) and (not exclude or mime not in exclude):
                data.setdefault(mime, shown)
        return data, metadata


class Hook(DisplayHook):
    def __call__(self, result=None):
        self.check_for_underscore()
        if result is None or self.quiet():
            return
        data, _ = self.compute_format_data(result)
        self.update_user_ns(result)
        self.fill_exec_result(result)
        if data:
            driver.send(data, True)


class Publisher(DisplayPublisher):
    def publish(self, data, metadata=None, *others, **more):
        driver.send(data, False)

    def clear_output(self, wait=False):
        # What was sent is seen.
        pass


class InlineBackend(Configurable):
    """Takes what notebooks say about figures, so that they do not fail."""

    figure_format = Any().tag(config=True)
    figure_formats = Any().tag(config=True)
    rc = Any().tag(config=True)
    print_figure_kwargs = Any().tag(config=True)
    close_figures = Any().tag(config=True)


class Exit(ExitAutocall):
    def __call__(self, code=None):
        raise SystemExit(code)


class Compiler(CachingCompiler):
    def get_code_name(self, raw_code, transformed_code, number):
        return f"<cell {number}>"


class Shell(InteractiveShell):
    displayhook_class = Type(Hook)
    display_pub_class = Type(Publisher)
    compiler_class = Type(Compiler)
    last_error = None
    last_traceback = None
    is_endless = False

    def init_display_formatter(self):
        self.display_formatter = Formatter(parent=self)
        self.configurables.append(self.display_formatter)

    def init_user_ns(self):
        super().init_user_ns()
        self.user_ns["exit"] = self.user_ns["quit"] = Exit(self)

    def system(self, cmd):
        self.user_ns["_exit_code"] = part("magics").shell(self.var_expand(cmd, depth=1))

    def enable_matplotlib(self, gui=None):
        # Figures are always shown.
        return gui, "agg"

    def enable_gui(self, gui=None):
        pass

    def showtraceback(self, exc_tuple=None, *others, **more):
        kind, error, trace = self._get_exc_info(exc_tuple)
        if self.display_formatter.is_active and not isinstance(error, KeyboardInterrupt):
            self.complain(error)
            return
        self.last_error, self.last_traceback = error, None
        part("plain").trim(error)
        interrupts = driver.Kernel.interrupts
        super().showtraceback(exc_tuple, *others, **more)
        # IPython may have caught it, in an error whose text takes forever.
        self.is_endless = driver.Kernel.interrupts != interrupts

    def complain(self, error):
        names, trace = [], error.__traceback__
        while trace is not None:
            names.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        own = (name for name in names if name == "__repr__" or name.startswith("_repr_") and name.endswith("_"))
        name = next(own, "a representation")
        part("show").complain(name, self.display_formatter.value, error)

    def get_exception_only(self, exc_tuple=None):
        # It may come while an error is shown whose text takes forever, and knows of that error.
        is_interrupt = exc_tuple is None and isinstance(sys.exc_info()[1], KeyboardInterrupt)
        return "KeyboardInterrupt" if is_interrupt else super().get_exception_only(exc_tuple)

    def _tee(self, channel):
        # Newer versions keep all output for a notebook's file, and errors too.
        return nullcontext()

    def _format_exception_for_storage(self, exception, *others, **more):
        return {"ename": type(exception).__name__, "evalue": "", "traceback": []}

    def show_usage_error(self, exc):
        self.last_error, self.last_traceback = exc, f"UsageError: {exc}"

    def _showtraceback(self, etype, evalue, stb):
        self.last_error = evalue
        self.last_traceback = "\n".join(stb) if isinstance(stb, list) else str(stb)


class Backend:
    """Runs code in a namespace, and keeps what it needs from one run to the next."""

    def __init__(self, main):
        config = Config()
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        config.InteractiveShell.display_page = True
        config.InteractiveShell.warn_venv = False
        config.Completer.use_jedi = False
        # It wants a folder for its files at its start, and can do without it.
        folder = tempfile.mkdtemp()
        try:
            self.shell = Shell.instance(config=config, ipython_dir=folder, user_module=main, user_ns=main.__dict__)
            self.shell.run_line_magic("colors", "nocolor")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.shell.db = {}
        self.shell.loop_runner = lambda coroutine: part("loop").run(coroutine)
        self.shell.configurables.append(InlineBackend(parent=self.shell))
        warnings.filterwarnings("ignore", message="To exit: use")

    def run(self, code):
        self.shell.last_error = None
        self.shell.execution_count = driver.Kernel.runs
        result = self.shell.run_cell(code, store_history=True)
        return result.error_before_exec or result.error_in_exec

    def represent(self, value):
        return self.shell.display_formatter.format(value)[0]

    def describe(self, error):
        """Returns the message of an error, and its traceback without the frames of the driver."""
        text = self.shell.last_traceback if self.shell.last_error is error else None
        if self.shell.last_error is error and self.shell.is_endless:
            return "", text or type(error).__name__
        if text:
            return driver.error_value(error), text
        return driver.error_value(error), part("plain").traceback_text(error)

    def complete(self, code, cursor):
        line = code[:cursor].rsplit("\n", 1)[-1]
        text, matches = self.shell.complete("", line, len(line))
        return cursor - len(text), matches[:MATCHES_MAX]
