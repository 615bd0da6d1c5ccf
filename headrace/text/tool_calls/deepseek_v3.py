"""DeepSeek V3 and R1: marks around each call and around all of them, arguments in a JSON fence.

V3.1 writes the name in place of the type, and no fence; both are read.
"""

from __future__ import annotations

import re

from headrace.text.tool_calls.call_parser import CallForm, Calls, Family
from headrace.text.tool_calls.json_calls import pass_arguments, read_arguments
from headrace.text.tool_calls.source import SPACE, NotACallError, Reading, Source

ALL, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
ONE, ONE_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
NAME = "<｜tool▁sep｜>"
_SPACE = re.compile(f"[{SPACE}]")


def read(source: Source, calls: Calls, _mark: str) -> Reading[None]:
    """All calls up to the mark that ends them, which may be missing at the end.

    Raises:
        NotACallError: something else stands there. Calls before it stay.
    """
    while True:
        yield from source.spaces()
        if not (yield from source.literal(ONE)):
            if not (yield from source.closing(ALL_END)):
                raise NotACallError
            return
        yield from _read_one(source, calls)


def _read_one(source: Source, calls: Calls) -> Reading[None]:
    name = yield from source.until(NAME)
    is_fenced = name == "function" and not (yield from _comes_object(source))
    if is_fenced:
        name = yield from source.until("\n")
        yield from source.expect("```json")
    yield from source.spaces()
    arguments = ""
    if calls.is_certain:
        yield from pass_arguments(source, calls, name)
    else:
        arguments = yield from read_arguments(source)
    yield from source.spaces()
    for text in ("```", ONE_END)[0 if is_fenced else 1 :]:
        if not (yield from source.closing(text)):
            raise NotACallError
    name = name.strip(SPACE)
    if not name or _SPACE.search(name):
        raise NotACallError
    if not calls.is_certain:
        calls.add(name, arguments)


def _comes_object(source: Source) -> Reading[bool]:
    """Whether arguments come at once: what stood there was the name of a tool then."""
    yield from source.spaces()
    return (yield from source.more()) and source.text[source.position] == "{"


FAMILY = Family(
    marks=(ALL,),
    read=read,
    read_opening=None,
    forms=(
        CallForm(
            begin=f"{ONE}function{NAME}NAME\n```json\n",
            end=f"\n```{ONE_END}",
            separator="\n",
            before_all=ALL,
            after_all=ALL_END,
        ),
    ),
    names=re.compile(rf"(?!\{{)(?:(?!{re.escape(NAME)}).)*", re.DOTALL),
)
FAMILY_V31 = FAMILY._replace(
    forms=(
        CallForm(
            begin=f"{ONE}NAME{NAME}", end=ONE_END, separator="", before_all=ALL, after_all=ALL_END
        ),
    )
)
