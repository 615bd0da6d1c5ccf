"""Texts of grammars: quoting, and what a caller's own grammar may hold.

The notation is Lark's as llguidance reads it; EBNF with `::=` is translated into it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from llguidance.gbnf_to_lark import any_to_lark

from headrace.errors import ValidationError
from headrace.structured.json_schema import depth, write_json
from headrace.structured_params import ThoughtMarks

HEADER = '%llguidance {"no_forcing": true}\n'
"""Any way to spell a text in tokens is allowed: the core has no tokenizer that could choose one."""
FIELD = "structured_outputs.grammar"
MAX_EBNF_DEPTH = 100
_START = re.compile(r"\bstart\b")
_PIECE = re.compile(
    r"""
    (?P<comment> //[^\n]* | \#[^\n]* )
    | (?P<string> "(?:\\.|[^"\\\n])*" )
    | (?P<regex> /(?:\\.|[^/\\\n])+/ )
    | (?P<option> \b(?:temperature|max_tokens|stop|stop_capture)[ \t]*= )
    | (?P<directive> %(?:json|llguidance|regex)\b )
    """,
    re.VERBOSE | re.DOTALL,
)


def quoted(text: str) -> str:
    """A string literal that matches just this text."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def regex_literal(pattern: str) -> str:
    """A regular expression between slashes. It cannot end early: slashes and line ends are escaped.

    Args:
        pattern: must not end within an escape.
    """
    pieces = re.findall(r"\\.|.", pattern, re.DOTALL)
    escapes = {"/": r"\/", "\n": r"\n", "\r": r"\r", "\\\n": r"\n", "\\\r": r"\r"}
    return "/" + "".join(escapes.get(piece, piece) for piece in pieces) + "/"


def callers_grammar(text: str, embed_schema: Callable[[Any], str], max_depth: int) -> str:
    """A caller's grammar, fit to be compiled.

    Args:
        embed_schema: checks the schema of a `%json` and gives the text for its place.
        max_depth: of embedded JSON.

    Raises:
        ValidationError: it uses what would not be enforced, or is no grammar.
    """
    if "::=" in text:
        text = _from_ebnf(text)
    parts: list[str] = []
    position = 0
    while (found := _PIECE.search(text, position)) is not None:
        parts.append(text[position : found.start()])
        position = found.end()
        if found["option"] is not None:
            name = found["option"].rstrip("= \t")
            raise ValidationError(
                f"{FIELD}: the rule option {name!r} is not supported", param=FIELD
            )
        if found["directive"] is None:
            parts.append("" if found["comment"] is not None else found[0])
            continue
        value, position = _embedded_json(text, position, max_depth)
        parts.append(_directive(found["directive"], value, embed_schema))
    parts.append(text[position:])
    return HEADER + "".join(parts)


def behind_thought(grammar: str, marks: ThoughtMarks) -> str:
    """The grammar with a thought, free text between two marks, before what it allows."""
    parts: list[str] = []
    position = 0
    for found in _PIECE.finditer(grammar):
        parts += [_START.sub("headrace_answer", grammar[position : found.start()]), found[0]]
        position = found.end()
    parts.append(_START.sub("headrace_answer", grammar[position:]))
    thought = "headrace_thought HEADRACE_LINES?"
    if not marks.is_open:
        thought = f"({quoted(marks.start)} {thought})?"
    # Lazy: the thought ends with the first closing mark.
    return (
        f"{''.join(parts)}\nstart: {thought} headrace_answer\n"
        f"headrace_thought[lazy]: HEADRACE_TEXT {quoted(marks.end)}\n"
        "HEADRACE_TEXT: /(.|\\n)*/\nHEADRACE_LINES: /\\n+/\n"
    )


def _directive(name: str, value: Any, embed_schema: Callable[[Any], str]) -> str:
    if name == "%json":
        return f"%json {embed_schema(value)}"
    if name == "%regex":
        return f"%regex {write_json(value, FIELD)}"
    unknown = set(value) - {"no_forcing", "skip_repetition"} if isinstance(value, dict) else {name}
    if unknown:
        raise ValidationError(
            f"{FIELD}: %llguidance may set skip_repetition and no_forcing only", param=FIELD
        )
    return f"%llguidance {write_json(value, FIELD)}"


def _embedded_json(text: str, position: int, max_depth: int) -> tuple[Any, int]:
    while position < len(text) and text[position].isspace():
        position += 1
    try:
        value, end = json.JSONDecoder().raw_decode(text, position)
    except (ValueError, RecursionError) as error:
        raise ValidationError(f"{FIELD}: embedded JSON: {error}", param=FIELD) from None
    if depth(value) > max_depth:
        raise ValidationError(
            f"{FIELD}: embedded JSON is nested deeper than {max_depth} levels", param=FIELD
        )
    return value, end


def _from_ebnf(text: str) -> str:
    if text.count("(") > MAX_EBNF_DEPTH and _paren_depth(text) > MAX_EBNF_DEPTH:
        raise ValidationError(
            f"{FIELD}: groups are nested deeper than {MAX_EBNF_DEPTH} levels", param=FIELD
        )
    try:
        return str(any_to_lark(text))
    except Exception as error:  # the library raises errors of its own, and some of Python's
        raise ValidationError(f"{FIELD}: {error}", param=FIELD) from None


def _paren_depth(text: str) -> int:
    level = deepest = 0
    for char in text:
        if char == "(":
            level += 1
            deepest = max(deepest, level)
        elif char == ")":
            level = max(0, level - 1)
    return deepest
