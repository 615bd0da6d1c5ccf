"""Hermes, Qwen 2.5 and Qwen 3: `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`.

Small models of the family forget the marks: an answer that is nothing but such objects, in a
Markdown fence or not, and names tools that were offered, is calls, too.
"""

from __future__ import annotations

from headrace.text.tool_calls.call_parser import CallForm, Calls, Family
from headrace.text.tool_calls.json_calls import read_bare, read_one
from headrace.text.tool_calls.source import NotACallError, Reading, Source

END = "</tool_call>"


def read(source: Source, calls: Calls, _mark: str) -> Reading[None]:
    """The object of one call, and the mark behind it, which may be missing at the end.

    Raises:
        NotACallError: it is none.
    """
    yield from source.spaces()
    call = yield from read_one(source, calls)
    yield from source.spaces()
    if not (yield from source.closing(END)):
        raise NotACallError
    calls.add_all(call)


FAMILY = Family(
    marks=("<tool_call>",),
    read=read,
    read_opening=read_bare,
    forms=(
        CallForm(
            begin='<tool_call>\n{"name": "NAME", "arguments": ',
            end="}\n</tool_call>",
            separator="\n",
        ),
    ),
    openings=("{", "```json"),
)
