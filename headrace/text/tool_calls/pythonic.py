"""Pythonic (Llama 4, Llama 3.2): the answer is `[f(a=1), g(b="x")]`, between two marks or not.

Values that are no literals come as strings, as they were written.
"""

from __future__ import annotations

import json
import re

from headrace.text.tool_calls.call_parser import Calls, Family
from headrace.text.tool_calls.literals import NotALiteralError, read_literal, skip_space
from headrace.text.tool_calls.source import NotACallError, Reading, Source

START, END = "<|python_start|>", "<|python_end|>"
_NAME = re.compile(r"[\w.]+")
_CALL = re.compile(r"([A-Za-z_][\w.]*)\s*\(")
_KEYWORD = re.compile(r"([A-Za-z_]\w*)\s*=\s*")
_PIECE = re.compile(
    r"""\"\"\"(?:[^\\"]|\\.|"(?!""))*\"\"\"|'''(?:[^\\']|\\.|'(?!''))*'''"""
    r"""|"(?:[^\\"]|\\.)*"|'(?:[^\\']|\\.)*'|[\[\](){},]|[^"'\[\](){},]+""",
    re.DOTALL,
)


def read_opening(source: Source, calls: Calls, _mark: str) -> Reading[None]:
    """The whole answer, when it is calls of tools that were offered.

    Raises:
        NotACallError: it is something else.
    """
    yield from source.spaces()
    yield from source.expect("[")
    yield from source.spaces()
    if (yield from source.run(_NAME)) not in calls.tools:
        raise NotACallError
    yield from source.rest()
    found = parse_calls(source.held)
    if any(name not in calls.tools for name, _ in found):
        raise NotACallError
    calls.add_all(found)


def read(source: Source, calls: Calls, _mark: str) -> Reading[None]:
    """What stands between the marks.

    Raises:
        NotACallError: it is something else.
    """
    calls.add_all(parse_calls((yield from source.until(END, may_end=True))))


def parse_calls(text: str) -> list[tuple[str, str]]:
    """Name and arguments of each call in a list.

    Raises:
        NotACallError: it is none.
    """
    position = skip_space(text, 0)
    found: list[tuple[str, str]] = []
    if not text.startswith("[", position):
        raise NotACallError
    position += 1
    while True:
        begun = _CALL.match(text, skip_space(text, position))
        if begun is None:
            raise NotACallError
        arguments, position = _read_arguments(text, begun.end())
        found.append((begun[1], arguments))
        position = skip_space(text, position)
        if not text.startswith(",", position):
            break
        position += 1
    if text[position:].strip() != "]":
        raise NotACallError
    return found


def _read_arguments(text: str, position: int) -> tuple[str, int]:
    """What stands in the brackets of a call, as JSON, and the position behind them."""
    values: dict[str, str] = {}
    while True:
        position = skip_space(text, position)
        if text.startswith(")", position):
            break
        keyword = _KEYWORD.match(text, position)
        if keyword is None:
            raise NotACallError
        values[keyword[1]], position = _read_value(text, keyword.end())
        if text.startswith(",", position):
            position += 1
        elif not text.startswith(")", position):
            raise NotACallError
    members = [f"{json.dumps(key)}: {value}" for key, value in values.items()]
    return "{" + ", ".join(members) + "}", position + 1


def _read_value(text: str, start: int) -> tuple[str, int]:
    parts: list[str] = []
    try:
        end = skip_space(text, read_literal(text, start, parts))
        if text[end : end + 1] in (",", ")"):
            return "".join(parts), end
    except NotALiteralError:
        pass
    end = _end_of_value(text, start)
    return json.dumps(text[start:end].strip(), ensure_ascii=False), end


def _end_of_value(text: str, position: int) -> int:
    """Where the comma or the bracket behind a value stands."""
    depth = 0
    while (piece := _PIECE.match(text, position)) is not None:
        if depth == 0 and piece[0] in (",", ")"):
            return position
        if piece[0] in ("[", "(", "{"):
            depth += 1
        elif piece[0] in ("]", ")", "}"):
            depth -= 1
        position = piece.end()
    raise NotACallError


FAMILY = Family(marks=(START,), read=read, read_opening=read_opening, form=None)
