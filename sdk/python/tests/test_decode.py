"""Decoders of streams."""

from __future__ import annotations

import contextlib
from random import Random

import pytest

from tidebox import ProtocolError
from tidebox._decode import EventDecoder, LineSplitter, OutputDecoder


def test_output_is_the_same_however_it_is_cut() -> None:
    data = b""
    for kind, payload in (
        (0, b'{"type":"position","seq":5}'),
        (1, b"out"),
        (0, b""),
        (2, b"error"),
        (1, b""),
    ):
        data += bytes([kind]) + len(payload).to_bytes(4, "big") + payload
    exit = b'{"type":"exit","exit_code":3,"novel":1}'
    data += b"\0" + len(exit).to_bytes(4, "big") + exit
    for size in range(1, len(data) + 1):
        decoder = OutputDecoder("application/octet-stream")
        found = [piece for at in range(0, len(data), size) for piece in decoder.feed(data[at : at + size])]
        text = {
            name: b"".join(value for kind, value in found if kind == name) for name in ("stdout", "stderr")
        }
        assert text == {"stdout": b"out", "stderr": b"error"}
        assert found[-1][1].exit_code == 3
        assert decoder.position == 13


def test_events_and_lines_are_the_same_however_they_are_cut() -> None:
    events = b': hello\n\nid: 7\r\nevent: a\r\ndata: {"x":\r\ndata: 1}\r\n\r\ndata: {"y": 2}\n\n'
    lines = b'{"a": 1}\n\n{"b": 2}\n'
    for size in range(1, len(events) + 1):
        decoder, splitter = EventDecoder(), LineSplitter()
        found = [item for at in range(0, len(events), size) for item in decoder.feed(events[at : at + size])]
        assert found == [None, ("7", "a", {"x": 1}), (None, "message", {"y": 2})]
        split = [item for at in range(0, len(lines), size) for item in splitter.feed(lines[at : at + size])]
        assert split == [b'{"a": 1}', b'{"b": 2}']


def test_streams_of_nonsense_end_in_a_protocol_error() -> None:
    random = Random(7)
    for _ in range(3000):
        data = bytes(
            random.choices(b'\0\1\2{}[]":,\n exitpostnsqdaeq0123456789\xff', k=random.randint(1, 60))
        )
        for decoder in (
            OutputDecoder("application/octet-stream"),
            OutputDecoder("application/x-ndjson"),
            EventDecoder(),
        ):
            with contextlib.suppress(ProtocolError):
                list(decoder.feed(data))
    for message in (
        b"{}",
        b"[]",
        b'{"type":"exit"}',
        b'{"type":"exit","exit_code":"x"}',
        b'{"type":"position"}',
    ):
        frame = b"\0" + len(message).to_bytes(4, "big") + message
        with contextlib.suppress(ProtocolError):
            list(OutputDecoder("application/octet-stream").feed(frame))


def test_a_line_without_end_is_refused() -> None:
    splitter = LineSplitter()
    with pytest.raises(ProtocolError):
        for _ in range(10):
            list(splitter.feed(b"x" * (1 << 20)))
