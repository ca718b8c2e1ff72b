"""The cases that all SDKs share, with the synchronous and the asynchronous SDK."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from case_runner import CASES, Runner, lacking


def run(case: dict[str, Any], folder: Path, asynchronous: bool) -> None:
    lacks = lacking() & set(case.get("needs", ()))
    if lacks:
        pytest.skip(f"the server lacks {', '.join(sorted(lacks))}: {case['name']}")
    asyncio.run(Runner(case, folder, asynchronous).run())


def server_or_canned(case: dict[str, Any], request: pytest.FixtureRequest) -> None:
    if "canned" not in case and "url" not in case.get("client", {}):
        request.getfixturevalue("server")


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case_with_the_synchronous_sdk(
    case: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server_or_canned(case, request)
    run(case, tmp_path, False)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case_with_the_asynchronous_sdk(
    case: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server_or_canned(case, request)
    run(case, tmp_path, True)
