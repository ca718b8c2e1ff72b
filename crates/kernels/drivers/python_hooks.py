# hooks
# What is changed in modules that the code imports, once it does.
import functools
import os
import signal
import sys


class Finder:
    """Finder that has a module changed after its import."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        change = CHANGES.get(name)
        if change is None:
            return None
        others = [finder for finder in sys.meta_path if finder is not Finder and hasattr(finder, "find_spec")]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and hasattr(spec.loader, "exec_module") and not isinstance(spec.loader, type):
            execute = spec.loader.exec_module

            def exec_module(module):
                del spec.loader.exec_module
                execute(module)
                attempt(change, module)

            spec.loader.exec_module = exec_module
        return spec


def attempt(change, module):
    try:
        change(module)
    except AttributeError:
        # A version that lacks it, or another module of this name.
        pass


def flushing(function):
    """Wraps what starts a program, so that what was printed before comes before its output."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        driver.flush_all()
        return function(*args, **kwargs)

    return wrapper


def interruptible(system):
    """Wraps `os.system`, in which this process ignores an interrupt while its child does not."""

    @functools.wraps(system)
    def wrapper(command):
        status = system(command)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGINT or status >> 8 == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        return status

    return wrapper


def change_subprocess(module):
    module.Popen._execute_child = flushing(module.Popen._execute_child)


def change_multiprocessing(module):
    # Any other method needs a file with the functions that its processes call.
    module._default_context._default_context = module._concrete_contexts["fork"]


def change_pyplot(module):
    @functools.wraps(module.show)
    def show(*args, **kwargs):
        part("show").show_figures()

    module.show = show


def change_figure(module):
    @functools.wraps(module.Figure.show)
    def show(self, *args, **kwargs):
        part("show").show_figure(self)

    module.Figure.show = show


def change_image(module):
    save = module.Image.save

    @functools.wraps(module.Image.show)
    def show_image(self, *args, **kwargs):
        part("show").display(self)

    @functools.wraps(save)
    def save_and_show(self, fp, *args, **kwargs):
        save(self, fp, *args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        # A figure is shown as one, and not again for its file.
        if isinstance(fp, (str, os.PathLike)) and caller.split(".")[0] not in ("matplotlib", "PIL"):
            part("show").display(self)

    module.Image.show = show_image
    module.Image.save = save_and_show


CHANGES = {
    "multiprocessing.context": change_multiprocessing,
    "subprocess": change_subprocess,
    "matplotlib.pyplot": change_pyplot,
    "matplotlib.figure": change_figure,
    "PIL.Image": change_image,
}


def install():
    os.system = interruptible(flushing(os.system))
    for name, change in CHANGES.items():
        if name in sys.modules:
            attempt(change, sys.modules[name])
    sys.meta_path.insert(0, Finder)
