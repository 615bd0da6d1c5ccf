"""Events, however the bytes are cut."""

from __future__ import annotations

import pytest

from headrace.bench.sse import EventReader

STREAM = (
    b": hello\n\ndata: one\n\n"
    b"event: x\ndata:two\r\nid: 5\r\n\r\n"
    b"\n\ndata: three\ndata:  four\n\ndata: [DONE]\n\ndata: never"
)
EVENTS = [b"one", b"two", b"three\n four", b"[DONE]"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_however_the_bytes_are_cut(size: int) -> None:
    reader = EventReader()
    found = [
        event
        for start in range(0, len(STREAM), size)
        for event in reader.feed(STREAM[start : start + size])
    ]
    assert found == EVENTS
