"""What the shared cases have to cover, and what is generated."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from case_runner import CASES

import tidebox
from tidebox import _encode, _errors

ROOT = Path(__file__).parents[1]
PARTS = {
    "": tidebox.Sandbox,
    "files.": tidebox.Files,
    "processes.": tidebox.Processes,
    "process.": tidebox.Process,
    "contexts.": tidebox.Contexts,
    "ports.": tidebox.Ports,
    "egress.": tidebox.Egress,
    "client.": tidebox.Client,
    "admin.": tidebox.Admin,
    "template.": tidebox.Template,
    "image.": tidebox.Image,
    "snapshot.": tidebox.Snapshot,
    "secret.": tidebox.Secret,
    "key.": tidebox.Key,
}
STATIC = {"create", "connect", "list", "list_stats", "get_info"}
WITHOUT_CASE = {
    "client.sandbox": "makes the handle of every canned case",
    "processes.handle": "makes the handle of the canned case of a process",
    "contexts.run_code": "is what run_code and contexts.run call",
}


def calls(steps: list[dict[str, Any]]) -> set[str]:
    found = set()
    for step in steps:
        found |= {step["call"]} | calls(step.get("during", []))
    return found


def test_every_public_method_has_a_case() -> None:
    covered = calls([step for case in CASES for step in case["steps"]])
    missing = []
    for prefix, cls in PARTS.items():
        for name, member in inspect.getmembers(cls):
            if name.startswith("_") or not callable(member):
                continue
            neutral = f"sandbox.{name}" if not prefix and name in STATIC else prefix + name.rstrip("_")
            if neutral not in covered and neutral not in WITHOUT_CASE:
                missing.append(neutral)
    assert not missing


def test_every_code_has_a_case() -> None:
    raised = set()
    for case in CASES:
        for step in case["steps"]:
            raises = step.get("raises")
            raised.add(raises if isinstance(raises, str) else str((raises or {}).get("code")))
    ours = {cls.code for cls in vars(_errors).values() if inspect.isclass(cls) and hasattr(cls, "code")}
    assert ours - raised - {"error"} == set()


def test_the_two_sdks_have_the_same_surface() -> None:
    for prefix, cls in PARTS.items():
        twin = getattr(tidebox, f"Async{cls.__name__}")
        names = {name for name in vars(cls) if not name.startswith("_")}
        assert names == {name for name in vars(twin) if not name.startswith("_")}, prefix
        for name in names:
            if callable(getattr(cls, name)):
                here, there = (
                    [
                        parameter
                        for parameter in inspect.signature(getattr(side, name)).parameters
                        if parameter != "cls"
                    ]
                    for side in (cls, twin)
                )
                assert here == there, name


def test_every_name_of_the_package_can_be_imported() -> None:
    assert set(tidebox.__all__) == set(tidebox._WHERE) | {"types"}
    for name in tidebox.__all__:
        assert getattr(tidebox, name).__name__.split(".")[-1] == name


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_synchronous_sdk_is_what_the_asynchronous_one_generates() -> None:
    for path, text in generator().sync_files().items():
        assert path.read_text() == text, f"{path.name} differs: run generate.py"


def test_the_types_are_what_the_description_of_the_api_generates() -> None:
    pytest.importorskip("datamodel_code_generator", reason="datamodel-code-generator is not installed")
    made = generator()
    if not made.OPENAPI.exists():
        pytest.skip("docs/openapi.json is not there")
    assert (made.PACKAGE / "_wire.py").read_text() == made.wire(), "_wire.py differs: run generate.py"


def test_every_duration_of_the_api_is_known() -> None:
    made = generator()
    if not made.OPENAPI.exists():
        pytest.skip("docs/openapi.json is not there")
    schemas = json.loads(made.OPENAPI.read_text())["components"]["schemas"]
    for owner, schema in schemas.items():
        for name, field in schema.get("properties", {}).items():
            text = json.dumps(field)
            is_text = '"string"' in text or "/Span" in text or "/Duration" in text
            if is_text and re.search(r"(^|_)(ttl|timeout|duration|uptime|interval|linger|pause)$", name):
                assert name in _encode.DURATIONS, f"{owner}.{name}"
            if name in _encode.DURATIONS:
                assert is_text, f"{owner}.{name}"


def test_durations_of_answers_are_seconds_and_the_names_of_users_stay() -> None:
    answer = {
        "ttl": "1h30m",
        "auto_pause": None,
        "metadata": {"ttl": "1h"},
        "prepare": [{"timeout": "1m30s", "env": {"timeout": "5m"}}],
        "uptime": "2m0.5s",
        "max_ttl": "0",
        "duration": "3.1ms",
    }
    assert _encode.with_seconds([answer]) == [
        {
            "ttl": 5400,
            "auto_pause": None,
            "metadata": {"ttl": "1h"},
            "prepare": [{"timeout": 90, "env": {"timeout": "5m"}}],
            "uptime": 120.5,
            "max_ttl": 0,
            "duration": pytest.approx(0.0031),
        }
    ]


@pytest.mark.parametrize("tool", ["mypy", "pyright"])
def test_the_types_are_checked_without_an_error(tool: str) -> None:
    pytest.importorskip(tool, reason=f"{tool} is not installed")
    command = [sys.executable, "-m", tool]
    if tool == "pyright":
        command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


SAMPLE = """
import asyncio
from typing import assert_type
from tidebox import AsyncSandbox, Exit, Output, Result, Sandbox, types

def program() -> None:
    with Sandbox.create("host", ttl=60, egress={"mode": "none"}) as sandbox:
        assert_type(sandbox, Sandbox)
        assert_type(sandbox.run("x"), Result[str])
        assert_type(sandbox.run("x", encoding=None), Result[bytes])
        assert_type(sandbox.files.read("/a"), str)
        assert_type(sandbox.files.read("/a", "bytes"), bytes)
        for chunk in sandbox.files.read("/a", "stream"):
            assert_type(chunk, bytes)
        for piece in sandbox.stream("x"):
            if isinstance(piece, Exit):
                assert_type(piece.exit_code, int)
        info: types.Sandbox = sandbox.info()
        assert_type(info["state"], str)
        for item in Sandbox.list():
            assert_type(item["id"], str)

async def main() -> None:
    async with AsyncSandbox.create(ttl=60) as sandbox:
        assert_type(sandbox, AsyncSandbox)
        assert_type(await sandbox.run(["x"]), Result[str])
        assert_type((await sandbox.run_code("x")).text, str | None)
    other = await AsyncSandbox.connect("sb-1")
    assert_type(other, AsyncSandbox)
    async for piece in other.stream("x"):
        print(piece.stream)
"""


@pytest.mark.parametrize("tool", ["mypy", "pyright"])
def test_a_program_that_uses_the_sdk_is_typed(tool: str, tmp_path: Path) -> None:
    pytest.importorskip(tool, reason=f"{tool} is not installed")
    program = tmp_path / "program.py"
    program.write_text(SAMPLE)
    options = ["--strict"] if tool == "mypy" else ["--pythonpath", sys.executable]
    command = [sys.executable, "-m", tool, *options, str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


def test_files_are_short() -> None:
    long = {
        path.name: lines
        for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("*/*.py")]
        if path.name != "_wire.py" and (lines := len(path.read_text().splitlines())) >= 600
    }
    assert not long


def test_the_import_is_quick_and_loads_one_sdk() -> None:
    code = (
        "import time; began = time.process_time(); from tidebox import Sandbox; "
        "took = time.process_time() - began; import sys, json; "
        "print(json.dumps([took, 'tidebox._async.client' in sys.modules, 'tidebox._wire' in sys.modules]))"
    )
    found = [
        json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(5)
    ]
    assert min(took for took, _, _ in found) < 0.15
    assert not any(other or wire for _, other, wire in found)
