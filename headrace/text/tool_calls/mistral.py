"""Mistral: `[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]`.

Since its tokenizer's version 11: `[TOOL_CALLS]f[ARGS]{...}`, once per call.
"""

from __future__ import annotations

import re

from headrace.text.tool_calls.call_parser import CallForm, Calls, Family
from headrace.text.tool_calls.json_calls import (
    LIST_FORM,
    pass_arguments,
    read_arguments,
    read_list,
)
from headrace.text.tool_calls.source import NotACallError, Reading, Source

MARK, ARGUMENTS = "[TOOL_CALLS]", "[ARGS]"
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
    is_separated = yield from source.literal(ARGUMENTS)
    yield from source.spaces()
    if not name or (calls.is_certain and not is_separated):  # a name that is cut, at the latter
        raise NotACallError
    if calls.is_certain:
        yield from pass_arguments(source, calls, name)
    else:
        calls.add(name, (yield from read_arguments(source)))


FAMILY = Family(
    marks=(MARK,),
    read=read,
    read_opening=None,
    forms=(
        LIST_FORM._replace(before_all=f"{MARK}["),
        LIST_FORM._replace(before_all=f"{MARK} ["),
        CallForm(begin=f"{MARK}NAME{ARGUMENTS}", end="", separator="", names=_NAME),
    ),
    id_length=9,
)
