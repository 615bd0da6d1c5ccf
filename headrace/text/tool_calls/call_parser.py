"""The part of every family: finds where calls may begin, and gives back what was none as it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from headrace.text.tool_calls.events import Content, Event, MoreArguments, ToolCall
from headrace.text.tool_calls.source import SPACE, NotACallError, Reading, Source, begun_mark

ANY = re.compile(r"(?s:.*)")


class CallForm(NamedTuple):
    """How a grammar writes calls: begin, arguments as JSON, end; all of them between two texts.

    Attributes:
        begin: with NAME where the tool's name is to stand, in quotes where the form has quotes.
        names: those of tools that can be written so.
    """

    begin: str
    end: str
    separator: str
    before_all: str = ""
    after_all: str = ""
    names: re.Pattern[str] = ANY


class ParameterForm(NamedTuple):
    """How a grammar writes calls whose parameters stand one by one, as plain text.

    Attributes:
        calls: of each mark of the family: what begins and what ends a call behind it, with NAME.
        begin, end: around the value of a parameter, with KEY; `end` ends it wherever it stands.
    """

    calls: tuple[tuple[str, str], ...]
    begin: str
    end: str


class KeywordForm(NamedTuple):
    """How a grammar writes calls as Python does: `[NAME(KEY=value, ...), ...]`.

    Attributes:
        end: what closes them where a mark stands before them.
    """

    end: str


Reader: TypeAlias = Callable[[Source, "Calls", str], Reading[None]]
"""Reads behind a mark, which it is told, and reports calls.

Raises: NotACallError: it is none. Calls reported before stay.
"""


class Family(NamedTuple):
    """How the models of a family write calls.

    Attributes:
        marks: texts with which calls begin anywhere in an answer.
        read: reads what comes behind a mark.
        read_opening: tried at the beginning of an answer, for calls without a mark.
        forms: how a grammar writes calls, each way that models of the family know; `read` and
            `read_opening` know them. Empty where arguments are no JSON object.
        ends_answer: behind the first call nothing but calls comes.
        id_length: of the ids that its chat templates take; None: any.
        parameter_form, keyword_form: how a grammar writes calls where `forms` is empty.
        openings: how calls without a mark begin, as far as a grammar has to prevent others.
        names, keys: the names of tools and of parameters that can be written so.
    """

    marks: tuple[str, ...]
    read: Reader
    read_opening: Reader | None
    forms: tuple[CallForm, ...] = ()
    parameter_form: ParameterForm | None = None
    keyword_form: KeywordForm | None = None
    openings: tuple[str, ...] = ()
    ends_answer: bool = False
    id_length: int | None = None
    names: re.Pattern[str] = ANY
    keys: re.Pattern[str] = ANY


class Calls:
    """Where readers report calls.

    Attributes:
        tools: name -> parameters (a JSON schema) of the tools that were offered.
        is_open: the last call lacks a part of its arguments.
        is_certain: a grammar holds the model to calls in their form once one has begun, so that
            nothing has to be held back until it is whole.

    Args:
        only_offered: calls of other tools are none.
        on_call: told of each call: what was read before it is settled.
    """

    def __init__(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        on_call: Callable[[], None],
        *,
        is_certain: bool,
        only_offered: bool = False,
    ) -> None:
        self.tools = tools
        self.is_certain = is_certain
        self.events: list[Event] = []
        self.num_calls = 0
        self.is_open = False
        self._on_call = on_call
        self._only_offered = only_offered

    def begin(self, name: str) -> None:
        """A call whose arguments follow, up to `end`."""
        self.add(name, "")
        self.is_open = True

    def more_arguments(self, text: str) -> None:
        """Further arguments of the last call."""
        if text:
            self.events.append(MoreArguments(self.num_calls - 1, text))

    def end(self) -> None:
        """The arguments of the last call are whole."""
        self.is_open = False

    def add(self, name: str, arguments: str) -> None:
        """A whole call.

        Raises:
            NotACallError: it is of a tool that must not be called.
        """
        self._check(name)
        self.events.append(ToolCall(self.num_calls, name, arguments))
        self.num_calls += 1
        self._on_call()

    def add_all(self, calls: list[tuple[str, str]]) -> None:
        """Whole calls, or none of them; see `add`."""
        for name, _ in calls:
            self._check(name)
        for name, arguments in calls:
            self.add(name, arguments)

    def _check(self, name: str) -> None:
        if self._only_offered and name not in self.tools:
            raise NotACallError


def _plain_text(marks: tuple[str, ...]) -> re.Pattern[str]:
    """What most text is: nothing in it begins a mark, and no white space ends it."""
    firsts = "".join(re.escape(mark[0]) for mark in marks)
    return re.compile(rf"[^{firsts}]*[^{firsts}\s]" if marks else r"(?s:.*)\S")


class ToolCallParser:
    """From the text of an answer to events: feed it as it comes, then finish. How it was cut makes
    no difference to the events, joined.

    White space beside calls belongs to them. All other text that is no call comes as content,
    unchanged.

    Args:
        tools: name -> parameters of the tools that were offered.
        is_certain, only_offered: see `Calls`.
    """

    def __init__(
        self,
        family: Family,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        is_certain: bool = False,
        only_offered: bool = False,
    ) -> None:
        self._family = family
        self._mark = re.compile("|".join(map(re.escape, family.marks))) if family.marks else None
        self._source = Source()
        self._calls = Calls(
            tools, self._settle_call, is_certain=is_certain, only_offered=only_offered
        )
        self._spaces: list[str] = []
        self._is_behind_call = False
        self._is_plain = _plain_text(family.marks).fullmatch
        self._awaits_mark = False
        self._run = self._read()
        next(self._run, None)

    @property
    def num_calls(self) -> int:
        """How many there have been."""
        return self._calls.num_calls

    @property
    def is_open(self) -> bool:
        """Whether the last of them lacks a part of its arguments."""
        return self._calls.is_open

    def feed(self, text: str) -> list[Event]:
        """What is certain with this text."""
        if self._awaits_mark and not self._spaces and self._is_plain(text):
            self._is_behind_call = False
            return [Content(text)]
        self._source.give(text)
        next(self._run, None)
        return self._take_events()

    def finish(self) -> list[Event]:
        """The text is complete: the rest."""
        self._source.is_ended = True
        for _ in self._run:
            pass
        return self._take_events()

    def _take_events(self) -> list[Event]:
        events, self._calls.events = self._calls.events, []
        return events

    def _read(self) -> Reading[None]:
        if self._family.read_opening is not None:
            yield from self._attempt(self._family.read_opening, "")
        while mark := (yield from self._read_content()):
            yield from self._attempt(self._family.read, mark)
        if not self._is_behind_call:
            self._write("")

    def _read_content(self) -> Reading[str]:
        """Pass text on up to a mark, which is read; nothing at the end."""
        source, marks = self._source, self._family.marks
        while True:
            text = source.text
            found = None
            if self._mark is not None:
                found = self._mark.search(text, source.position)
            if found is not None:
                self._write_visible(source.take(found.start()))
                source.settle()
                return source.take(found.end())
            kept = 0 if source.is_ended else begun_mark(text, marks)
            self._write_visible(source.take(max(len(text) - kept, source.position)))
            source.settle()
            if source.is_ended:
                return ""
            self._awaits_mark = not kept
            yield
            self._awaits_mark = False

    def _attempt(self, read: Reader, mark: str) -> Reading[None]:
        num_before = self._calls.num_calls
        try:
            yield from read(self._source, self._calls, mark)
            if self._calls.num_calls > num_before:
                self._source.settle()  # what closes calls is no text
        except NotACallError:
            pass
        self._write_visible(self._source.settle())

    def _settle_call(self) -> None:
        """What led to a call is no text."""
        self._source.settle()
        self._spaces.clear()
        self._is_behind_call = True

    def _write_visible(self, text: str) -> None:
        """Content, whose last white space may belong to a call that follows."""
        visible = text.rstrip(SPACE)
        if visible:
            self._write(visible)
        if len(visible) < len(text):
            self._spaces.append(text[len(visible) :])

    def _write(self, text: str) -> None:
        text = "".join(self._spaces) + text
        self._spaces.clear()
        if text:
            self._calls.events.append(Content(text))
            self._is_behind_call = False
