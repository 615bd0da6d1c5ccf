"""Pythonic (Llama 4, Llama 3.2): the answer is `[f(a=1), g(b="x")]`, between two marks or not.

Values that are no literals come as strings, as they were written. Under a grammar values are JSON,
or the single ones that `server/tools/keyword_grammar.py` lets be written as in Python.
"""

from __future__ import annotations

import json
import re

from headrace.text.tool_calls.call_parser import Calls, Family, KeywordForm
from headrace.text.tool_calls.json_scanner import JsonScanner
from headrace.text.tool_calls.literals import WORDS, NotALiteralError, read_literal, skip_space
from headrace.text.tool_calls.source import NotACallError, Reading, Source

START, END = "<|python_start|>", "<|python_end|>"
_NAME = re.compile(r"[\w.-]+")
_CALL = re.compile(rf"({_NAME.pattern})\s*\(")
_KEY = re.compile(r"[^\W\d][\w.$-]*")
_KEYWORD = re.compile(rf"({_KEY.pattern})\s*=\s*")
_KEY_PARTS = re.compile(r"[\w.$-]+")
_WORD = re.compile(r"[\w.+-]+")
_PLAIN = {'"': re.compile(r'[^"\\]+'), "'": re.compile(r"[^'\\]+")}
_ESCAPED = {"'": "'", "\\": "\\\\", "n": "\\n", "t": "\\t"}
"""Behind a backslash between single quotes -> the same in JSON."""
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
    if calls.is_certain:
        yield from _pass_calls(source, calls)
        return
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
    if calls.is_certain:
        yield from _pass_calls(source, calls)
        yield from source.closing(END)
        return
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


def _pass_calls(source: Source, calls: Calls) -> Reading[None]:
    """Calls that a grammar holds to their form once the first has begun: reported while they come.

    Raises:
        NotACallError: none has begun, or the last is cut.
    """
    num_before = calls.num_calls
    try:
        yield from source.expect("[")
        while True:
            name = yield from source.run(_NAME)
            if name not in calls.tools:
                raise NotACallError
            yield from source.expect("(")
            calls.begin(name)
            yield from _pass_arguments(source, calls)
            calls.end()
            if not (yield from source.literal(", ")):
                break
        if not (yield from source.closing("]")):
            raise NotACallError
    except NotACallError:
        if calls.num_calls > num_before:
            if source.is_ended:
                source.take(len(source.text))
            source.settle()  # what is left of a call is no text
        raise


def _pass_arguments(source: Source, calls: Calls) -> Reading[None]:
    calls.more_arguments("{")
    separator = ""
    while not (yield from source.literal(")")):
        if separator:
            yield from source.expect(", ")
        key = yield from source.run(_KEY_PARTS)
        yield from source.expect("=")
        calls.more_arguments(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
        separator = ", "
        yield from _pass_value(source, calls)
    calls.more_arguments("}")


def _pass_value(source: Source, calls: Calls) -> Reading[None]:
    if not (yield from source.more()):
        raise NotACallError
    first = source.text[source.position]
    if first in _PLAIN:
        yield from _pass_text(source, calls, first)
    elif first in "[{":
        scanner = JsonScanner()
        while not scanner.is_done:
            if not (yield from source.more()):
                raise NotACallError
            calls.more_arguments(source.take(scanner.scan(source.text, source.position)))
            source.settle()
            if scanner.is_broken:
                raise NotACallError
    else:
        word = yield from source.run(_WORD)
        if not word or not (yield from source.more()):
            raise NotACallError
        calls.more_arguments(WORDS.get(word, word))


def _pass_text(source: Source, calls: Calls, quote: str) -> Reading[None]:
    """A text in JSON, or between single quotes; a piece as soon as it comes."""
    source.take(source.position + 1)
    calls.more_arguments('"')
    while (yield from source.more()):
        found = _PLAIN[quote].match(source.text, source.position)
        if found is not None:
            piece = source.take(found.end())
            source.settle()
            is_json = quote == '"'
            calls.more_arguments(piece if is_json else json.dumps(piece, ensure_ascii=False)[1:-1])
            continue
        sign = source.take(source.position + 1)
        if sign == quote:
            calls.more_arguments('"')
            return
        if not (yield from source.more()):
            break
        escaped = source.take(source.position + 1)
        calls.more_arguments(f"\\{escaped}" if quote == '"' else _ESCAPED.get(escaped, escaped))
    raise NotACallError


FAMILY = Family(
    marks=(START,),
    read=read,
    read_opening=read_opening,
    keyword_form=KeywordForm(end=END),
    names=_NAME,
    keys=_KEY,
)
