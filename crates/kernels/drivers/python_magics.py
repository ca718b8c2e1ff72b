# magics
# Lines that are no Python: `!command` and `%name`.
import os
import re
import subprocess
import sys

KNOWN = "%cd, %env, %matplotlib, %pip, %pwd, %set_env, %%bash, %%sh and %%writefile"
TOKEN = re.compile(r"#[^\n]*|'''|\"\"\"|'|\"|[([{]|[)\]}]|\\.", re.S)


def translated(code):
    """Returns code in which each such line is a call, with as many lines as before."""
    if not re.search(r"^[ \t]*[!%]", code, re.M):
        return code
    first, _, body = code.partition("\n")
    cell = re.match(r"\s*%%(\w+)[ \t]*(.*)", first)
    if cell:
        return f"__tidebox_magic__({'%' + cell.group(1)!r}, {cell.group(2)!r}, {body!r})"
    lines = code.split("\n")
    result = []
    state = ("", 0)
    at = 0
    while at < len(lines):
        line = lines[at]
        magic = re.match(r"([ \t]*)(!|%(?=\w)(\w+))[ \t]*(.*)", line, re.S) if state == ("", 0) else None
        if magic:
            indent, sign, name, rest = magic.groups()
            count = 1
            while rest.endswith("\\") and at + count < len(lines):
                rest = rest[:-1] + lines[at + count]
                count += 1
            result.append(f"{indent}__tidebox_magic__({name or '!'!r}, {rest.rstrip()!r})")
            result.extend([""] * (count - 1))
            at += count
        else:
            state = scanned(line, *state)
            result.append(line)
            at += 1
    return "\n".join(result)


def scanned(line, quote, depth):
    """Returns the quote and the number of brackets that are open after a line."""
    at = 0
    depth = max(depth, 0)
    while True:
        if quote:
            end = re.compile(r"\\.|" + quote, re.S).search(line, at)
            if end is None:
                # Only these strings go over the end of a line.
                is_open = len(quote) == 3 or line.endswith("\\")
                return (quote if is_open else ""), depth
            at = end.end()
            quote = quote if end.group().startswith("\\") else ""
            continue
        token = TOKEN.search(line, at)
        if token is None:
            break
        at = token.end()
        text = token.group()
        if text[0] in "'\"":
            quote = text
        elif text in "([{":
            depth += 1
        elif text in ")]}":
            depth = max(depth - 1, 0)
    # The next line belongs to this one, as in a bracket that it closes.
    return quote, depth if not line.endswith("\\") or depth else -1


def run(main, name, line, body):
    names = main.__dict__
    if name == "!":
        names["_exit_code"] = shell(expanded(line, names))
    elif name == "pip":
        shell(f"{quoted(sys.executable)} -m pip {expanded(line, names)}")
        invalidate()
    elif name == "cd":
        os.chdir(os.path.expanduser(unquoted(expanded(line, names)) or "~"))
        print(os.getcwd())
    elif name == "pwd":
        return os.getcwd()
    elif name in ("env", "set_env"):
        return environment(expanded(line, names))
    elif name == "matplotlib":
        # Figures are always shown.
        return None
    elif name in ("%bash", "%sh"):
        code = subprocess.call([name[1:], "-c", body])
        if code:
            raise subprocess.CalledProcessError(code, name[1:])
    elif name == "%writefile":
        words = line.split()
        is_appended = words[0] in ("-a", "--append")
        with open(os.path.expanduser(words[-1]), "a" if is_appended else "w", encoding="utf-8") as file:
            file.write(body)
        print(f"{'Appending to' if is_appended else 'Writing'} {words[-1]}")
    else:
        raise NameError(f"`%{name}` is not available: without IPython there are {KNOWN}; install `ipython` for others")


def shell(command):
    """Runs a command with the streams of the code; returns its exit code."""
    return subprocess.call(command, shell=True, executable=shell_program())


def shell_program():
    return next((program for program in ("/bin/bash", "/usr/bin/bash") if os.access(program, os.X_OK)), "/bin/sh")


def invalidate():
    sys.modules["importlib"].invalidate_caches() if "importlib" in sys.modules else None


def quoted(word):
    return "'" + word.replace("'", "'\\''") + "'"


def unquoted(text):
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def environment(line):
    if not line:
        return dict(os.environ)
    match = re.match(r"(\w+)(?:\s*=\s*|\s+)(.*)", line)
    if match is None:
        return os.environ.get(line)
    os.environ[match.group(1)] = match.group(2)
    print(f"env: {match.group(1)}={match.group(2)}")
    return None


def expanded(text, names):
    """Returns text with the values of `{expression}` and `$name`, or unchanged if an expression has no value."""

    def value(match):
        return match.group()[1:-1] if match.group(1) is None else str(eval(match.group(1), names))

    try:
        text = re.sub(r"(?<!\$)\{\{[^{}]*\}\}|(?<![${])\{([^{}]+)\}(?!\})", value, text)
    except Exception:
        return text
    return re.sub(r"\$(\$?)(\w+)", lambda match: variable(match, names), text)


def variable(match, names):
    if match.group(1):
        return "$" + match.group(2)
    return str(names[match.group(2)]) if match.group(2) in names else match.group()
