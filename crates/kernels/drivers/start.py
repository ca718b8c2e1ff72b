# Reads the driver and evaluates it. Also valid in Python 2, so that it can say that it is too old.
import os
import sys

if sys.version_info < (3, 8):
    sys.stderr.write("this Python is too old for a kernel: %d.%d is before 3.8\n" % sys.version_info[:2])
    sys.exit(126)


def read(count):
    data = b""
    while len(data) < count:
        chunk = os.read(4, count - len(data))
        if not chunk:
            os._exit(0)
        data += chunk
    return data


def start():
    head = b""
    while not head.endswith(b"\n"):
        head += read(1)
    marker, length = head.split()
    # The rest is compiled when it is needed.
    source, rest = read(int(length)).decode().split("\f", 1)
    # A file of the code with the name of a module of the driver is not that module.
    path = sys.path[:]
    sys.path[:] = [folder for folder in path if folder not in ("", os.getcwd())]
    # Nor is a builtin that the code replaces.
    own = dict(__import__("builtins").__dict__)
    driver = {"__name__": "kernel", "__builtins__": own, "MARKER": marker, "REST": rest}
    try:
        exec(compile(source, "<kernel>", "exec"), driver)
        serve = driver["prepare"]()
    except ImportError as missing:
        # As in Debian's `python3-minimal`, which has a part of the standard library.
        sys.stderr.write("this Python is not whole: %s\n" % missing)
        sys.exit(126)
    sys.path[:] = path
    serve()


start()
