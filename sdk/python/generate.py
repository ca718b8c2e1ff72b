"""Writes the generated code: `_sync` from `_async`, and `_wire.py` from the API's description.

python generate.py          write both
python generate.py --check  exit with 1 if a file differs
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE / "src" / "tidebox"
OPENAPI = HERE.parent.parent / "docs" / "openapi.json"
# What differs between the two by more than words is written by hand on both sides.
BY_HAND = {"_io.py", "forward.py"}
HEADER = "# Generated from _async by generate.py. Do not edit.\n"

REPLACEMENTS = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(Iterator|Iterable|Generator)\b", r"\1"),
    (r"\bAsync([A-Z])", r"\1"),
    (r"\bAwaitable\[None\] \| None\b", "object"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"\baiter_(raw|bytes)\b", r"iter_\1"),
    (r"`async with`", "`with`"),
    (r"shared by tasks", "shared by threads"),
    (r"\b_async\b", "_sync"),
]


def to_sync(text: str) -> str:
    """Returns synchronous code for asynchronous code."""
    for pattern, replacement in REPLACEMENTS:
        text = re.sub(pattern, replacement, text)
    imports = re.search(r"^from collections\.abc import (.*)$", text, re.M)
    if imports:
        body = text[: imports.start()] + text[imports.end() :]
        names = [name for name in imports[1].split(", ") if re.search(rf"\b{name}\b", body)]
        line = f"from collections.abc import {', '.join(sorted(set(names)))}" if names else ""
        text = text[: imports.start()] + line + text[imports.end() + (not names) :]
    return HEADER + text


def sync_files() -> dict[Path, str]:
    """Returns the synchronous files."""
    return {
        PACKAGE / "_sync" / source.name: to_sync(source.read_text())
        for source in sorted((PACKAGE / "_async").glob("*.py"))
        if source.name not in BY_HAND
    }


def wire() -> str:
    """Returns the types of the API as `TypedDict`s."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "wire.py"
        command = [
            *(sys.executable, "-m", "datamodel_code_generator"),
            *("--input", str(OPENAPI), "--input-file-type", "openapi", "--output", str(output)),
            *("--output-model-type", "typing.TypedDict", "--target-python-version", "3.11"),
            *("--use-standard-collections", "--use-union-operator", "--disable-timestamp"),
            *("--enum-field-as-literal", "all", "--use-double-quotes", "--formatters", "builtin"),
        ]
        subprocess.run(command, check=True, cwd=folder)
        text = output.read_text()
    # `closed` (PEP 728) is not in the standard library yet, and answers may gain fields.
    text = text.replace(", closed=True", "").replace("from typing_extensions import TypedDict\n", "")
    text = re.sub(
        r"^from typing import (.*)$", r"from typing import \1, TypedDict", text, count=1, flags=re.M
    )
    # Answers have numbers of seconds.
    sys.path.insert(0, str(PACKAGE.parent))
    from tidebox._encode import DURATIONS

    names = "|".join(sorted(DURATIONS))
    text = re.sub(rf"^(    (?:{names}): .*)\b(?:str|Span|Duration)\b", r"\1float", text, flags=re.M)
    header = '"""Types of the API. Generated from docs/openapi.json by generate.py. Do not edit."""\n\n'
    return header + re.sub(r"\A(#.*\n|\s)*", "", text)


def main() -> int:
    """Writes or compares the files."""
    files = sync_files()
    if "--sync" not in sys.argv:
        files[PACKAGE / "_wire.py"] = wire()
    differ = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in differ:
            print(f"{path} differs: run generate.py")
        return 1 if differ else 0
    for path in differ:
        path.write_text(files[path])
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
