"""Fixtures of the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def server() -> str:
    """URL of the server under test."""
    url = os.environ.get("TIDEBOX_URL")
    if not url:
        pytest.skip("set TIDEBOX_URL to a running server")
    return url
