"""Partial comparison of values with what a case expects."""

from __future__ import annotations

import base64
import re
from typing import Any


def differences(value: Any, expected: Any, where: str = "it") -> list[str]:
    """Returns how a value differs from what is expected, or nothing."""
    if isinstance(expected, dict):
        if set(expected) == {"any"}:
            return []
        if set(expected) == {"matches"} and isinstance(expected["matches"], str):
            text = value if isinstance(value, str) else str(value)
            found = re.search(expected["matches"], text)
            return [] if found else [f"{where}: {value!r} does not match {expected['matches']!r}"]
        if set(expected) == {"length"}:
            return [] if len(value) == expected["length"] else [f"{where}: {value!r} has length {len(value)}"]
        if set(expected) == {"contains"}:
            found = any(not differences(item, expected["contains"]) for item in value)
            return [] if found else [f"{where}: {value!r} lacks {expected['contains']!r}"]
        if set(expected) == {"lacks"}:
            found = any(not differences(item, expected["lacks"]) for item in value)
            return [f"{where}: {value!r} has {expected['lacks']!r}"] if found else []
        if set(expected) == {"base64"} and isinstance(value, bytes):
            wanted = base64.b64decode(expected["base64"])
            return [] if value == wanted else [f"{where}: {value!r} is not {wanted!r}"]
        if not isinstance(value, dict):
            return [f"{where}: {value!r} is not an object"]
        faults = []
        for name, item in expected.items():
            if name not in value:
                # An absent field of a record is the same as null.
                faults += [] if item is None else [f"{where}: lacks {name!r} in {value!r}"]
            else:
                faults += differences(value[name], item, f"{where}.{name}")
        return faults
    if isinstance(expected, list):
        if not isinstance(value, list) or len(value) < len(expected):
            return [f"{where}: {value!r} does not have the items {expected!r}"]
        faults = []
        for number, item in enumerate(expected):
            faults += differences(value[number], item, f"{where}[{number}]")
        return faults
    same = value == expected and isinstance(value, bool) == isinstance(expected, bool)
    return [] if same else [f"{where}: {value!r} is not {expected!r}"]
