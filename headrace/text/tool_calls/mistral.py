"""Mistral: `[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]`.

Since its tokenizer's version 11: `[TOOL_CALLS]f[ARGS]{...}`, once per call.
"""

from __future__ import annotations

import re

from headrace.text.tool_calls.call_parser import Calls, Family
from headrace.text.tool_calls.json_calls import read_arguments, read_list
from headrace.text.tool_calls.source import NotACallError, Reading, Source

_NAME = re.compile(r"[^\s{}\[\]]+")


def read(source: Source, calls: Calls, mark: str) -> Reading[None]:
    """All calls behind a mark, or the one.

    Raises:
        NotACallError: there is none.
    """
    yield from source.spaces()
    if not (yield from source.more()):
        raise NotACallError
    if source.text[source.position] == "[":
        yield from read_list(source, calls, mark)
        return
    name = yield from source.run(_NAME)
    if (yield from source.literal("[CALL_ID]")):
        yield from source.run(_NAME)
    yield from source.literal("[ARGS]")
    yield from source.spaces()
    arguments = yield from read_arguments(source)
    if not name:
        raise NotACallError
    calls.add(name, arguments)


FAMILY = Family(marks=("[TOOL_CALLS]",), read=read, read_opening=None, form=None, id_length=9)
