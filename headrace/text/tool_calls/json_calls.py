"""Calls as JSON objects with a name and arguments, which most families have at heart."""

from __future__ import annotations

import json

from headrace.text.tool_calls.call_parser import CallForm, Calls, Family
from headrace.text.tool_calls.json_scanner import JsonScanner, Span, is_json
from headrace.text.tool_calls.source import NotACallError, Reading, Source

LIST_FORM = CallForm(
    begin='{"name": "NAME", "arguments": ',
    end="}",
    separator=", ",
    before_all="[",
    after_all="]",
)
"""Understood for every family: for those whose own form no grammar can hold to a JSON schema."""
_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", *_ARGUMENTS, "type", "id")


class _Object:
    """Reads one JSON object; what its outermost members are."""

    def __init__(self, *, pauses: bool = False) -> None:
        self.scanner = JsonScanner(pauses=pauses)
        self._parts: list[str] = []

    def read(self, source: Source) -> Reading[str]:
        """Its next piece; nothing when it is whole.

        Raises:
            NotACallError: it is none.
        """
        if self.scanner.is_done:
            return ""
        if not (yield from source.more()):
            raise NotACallError
        if not self._parts and source.text[source.position] != "{":
            raise NotACallError
        piece = source.take(self.scanner.scan(source.text, source.position))
        self._parts.append(piece)
        if self.scanner.is_broken:
            raise NotACallError
        return piece

    def rest(self, source: Source) -> Reading[None]:
        """Read all of it.

        Raises:
            NotACallError: it is none.
        """
        while (yield from self.read(source)):
            pass

    def text(self, span: Span | None = None) -> str:
        """What was read, or a part of it."""
        self._parts = ["".join(self._parts)]
        return self._parts[0] if span is None else self._parts[0][span.start : span.end]

    def arguments(self, span: Span | None = None) -> str:
        """This part, an object, as JSON.

        Raises:
            NotACallError: it cannot be.
        """
        text = self.text(span)
        if text.startswith('"'):  # some models write the object as a text
            text = _string(text)
            if not is_json(text):
                raise NotACallError
            text = text.strip()
        if not text.startswith("{"):
            raise NotACallError
        if not self.scanner.has_raw_controls:
            return text
        # A mistake that models make often, and that can be mended without a doubt.
        try:
            value = json.loads(text, strict=False)
            mended = json.dumps(value, ensure_ascii=False, allow_nan=False)
        except ValueError:  # numbers that Python cannot hold
            raise NotACallError from None
        return _sendable(mended)

    def members(self) -> dict[str, Span]:
        """Key -> where its value stands. Of equal keys the last counts."""
        return {_string(self.text(key)): value for key, value in self.scanner.members}


def read_call(source: Source, calls: Calls, *, is_marked: bool) -> Reading[tuple[str, str]]:
    """An object as a whole: the name and the arguments of a call.

    Args:
        is_marked: a mark says that it is a call: it may lack arguments then. Else it must be of a
            tool that was offered, and hold what calls do; as soon as it does not it is text.

    Raises:
        NotACallError: it is none.
    """
    found = _Object(pauses=not is_marked)
    if is_marked:
        yield from found.rest(source)
    else:
        while (yield from found.read(source)):
            for key, value in found.scanner.members[-1:]:
                _check_member(_string(found.text(key)), found.text(value), calls)
    members = found.members()
    if "name" not in members:
        raise NotACallError
    name = _string(found.text(members["name"]))
    spans = [members[key] for key in _ARGUMENTS if key in members]
    if name and is_marked and (not spans or found.text(spans[0]) == "null"):
        return name, "{}"
    if not name or not spans:
        raise NotACallError
    return name, found.arguments(spans[0])


def _check_member(key: str, value: str, calls: Calls) -> None:
    is_known = value.startswith('"') and _string(value) in calls.tools if key == "name" else True
    if not is_known or key not in _KEYS:
        raise NotACallError


def read_arguments(source: Source) -> Reading[str]:
    """An object as a whole: arguments.

    Raises:
        NotACallError: it is none.
    """
    found = _Object()
    yield from found.rest(source)
    return found.arguments()


def pass_call(source: Source, calls: Calls) -> Reading[None]:
    """An object that a grammar holds to the form of a call: reported while it comes.

    Raises:
        NotACallError: it is cut before its arguments, or within them.
    """
    found, num_read, start = _Object(), 0, None
    while piece := (yield from found.read(source)):
        num_read += len(piece)
        members = found.scanner.members
        if start is None and members and found.scanner.value_start > members[0][1].end:
            start = found.scanner.value_start
            calls.begin(_string(found.text(members[0][1])))
        if start is not None:
            source.settle()
            end = members[1][1].end if len(members) > 1 else num_read
            begin = num_read - len(piece)
            calls.more_arguments(piece[max(start - begin, 0) : max(end - begin, 0)])
            if len(members) > 1:
                calls.end()


def pass_arguments(source: Source, calls: Calls, name: str) -> Reading[None]:
    """An object of arguments that a grammar holds to its schema: reported while it comes.

    Raises:
        NotACallError: it is cut.
    """
    calls.begin(name)
    found = _Object()
    while piece := (yield from found.read(source)):
        source.settle()
        calls.more_arguments(piece)
    calls.end()


def read_one(
    source: Source, calls: Calls, *, is_marked: bool = True
) -> Reading[list[tuple[str, str]]]:
    """An object that is a call: given back to be added when all around it is right, or reported
    while it comes, where that is certain.

    Args:
        is_marked: see `read_call`.

    Raises:
        NotACallError: it is none.
    """
    if calls.is_certain:
        yield from pass_call(source, calls)
        return []
    return [(yield from read_call(source, calls, is_marked=is_marked))]


def read_list(source: Source, calls: Calls, _mark: str) -> Reading[None]:
    """A list of objects, each a call (see LIST_FORM).

    Raises:
        NotACallError: it is none. Calls before the fault stay.
    """
    yield from source.spaces()
    yield from source.expect("[")
    while True:
        yield from source.spaces()
        call = yield from read_one(source, calls)
        yield from source.spaces()
        is_last = not (yield from source.literal(","))
        if is_last and not (yield from source.closing("]")):
            raise NotACallError
        calls.add_all(call)
        if is_last:
            return


LIST_FAMILY = Family(marks=(), read=read_list, read_opening=read_list, forms=(LIST_FORM,))
"""Reads answers that are a list of calls and nothing else."""


def read_bare(source: Source, calls: Calls, mark: str) -> Reading[None]:
    """All the rest is calls, one after the other, fenced or not; without a mark: of tools that were
    offered.

    Raises:
        NotACallError: it is not.
    """
    found: list[tuple[str, str]] = []
    num_before = calls.num_calls
    while not (yield from source.ends()):
        is_fenced = yield from source.literal("```json")
        if not is_fenced and (found or calls.num_calls > num_before):
            yield from source.literal(";")
        yield from source.spaces()
        found += yield from read_one(source, calls, is_marked=bool(mark))
        yield from source.spaces()
        while is_fenced and not (yield from source.closing("```")):
            yield from source.literal(";")
            yield from source.spaces()
            found += yield from read_one(source, calls, is_marked=bool(mark))
            yield from source.spaces()
    calls.add_all(found)


def _string(text: str) -> str:
    """A JSON string.

    Raises:
        NotACallError: it is none.
    """
    if not text.startswith('"'):
        raise NotACallError
    return _sendable(json.loads(text, strict=False))


def _sendable(text: str) -> str:
    """A text again.

    Raises:
        NotACallError: it holds half a character (a lone surrogate), which no client can be sent.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotACallError from None
    return text
