"""The fields of an answer whose text is read for calls of tools and for thoughts."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from headrace.outputs import CompletionOutput
from headrace.server.generation.answer import Tally
from headrace.server.protocol.chat import CalledFunction, ToolCallRecord
from headrace.server.tools.choice import ToolPlan
from headrace.text.answer_parser import AnswerParser
from headrace.text.reasoning import ReasoningCounter, ReasoningFormat, ReasoningParser
from headrace.text.tokenizer import Tokenizer
from headrace.text.tool_calls.call_parser import ToolCallParser
from headrace.text.tool_calls.events import (
    Content,
    Event,
    MoreArguments,
    Reasoning,
    ToolCall,
    joined,
)


@dataclass
class Piece:
    """What a piece of text comes to."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallRecord] = field(default_factory=list)

    @property
    def is_content(self) -> bool:
        """Whether it is text for the user, or nothing."""
        return not self.reasoning and not self.tool_calls

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)


@dataclass(frozen=True)
class ReasoningPlan:
    """What is known about the thoughts of answers.

    Attributes:
        is_open: the prompt has opened one.
        may_think: there may be one: the prompt has not closed it.
        is_told: whether they are sent.
    """

    format: ReasoningFormat
    is_open: bool
    may_think: bool
    is_told: bool

    def parser(self) -> ReasoningParser:
        """What reads one answer."""
        return ReasoningParser(self.format, is_open=self.is_open)


@dataclass(frozen=True)
class ParsingPlan:
    """How the answers to a request are read.

    Attributes:
        tools: None when no tool is to be called.
        reasoning: None for a model that does not think.
    """

    tools: ToolPlan | None
    reasoning: ReasoningPlan | None

    @property
    def is_plain(self) -> bool:
        """Whether all text is content, with nothing to be read."""
        return self.tools is None and self.reasoning is None

    @property
    def hides_thoughts(self) -> bool:
        """Whether there may be thoughts that are not sent."""
        return self.reasoning is not None and not self.reasoning.is_told

    @property
    def marks(self) -> Iterator[str]:
        """The texts that tell what is what."""
        if self.tools is not None:
            yield from self.tools.family.marks
        if self.reasoning is not None:
            yield from self.reasoning.format.starts
            yield from self.reasoning.format.ends


class AnswerReader:
    """Of one choice: feed it what comes, piece by piece or whole; the pieces joined are the same.

    Args:
        tokenizer: to count the tokens of thoughts with.
        tally: where they are counted.
        on_end: told at the end, where tools may be called, whether one was.
    """

    def __init__(
        self,
        plan: ParsingPlan,
        tokenizer: Tokenizer | None,
        tally: Tally,
        on_end: Callable[[bool], None] | None = None,
    ) -> None:
        self._plan = plan
        self._tally = tally
        self._on_end = on_end if plan.tools is not None else None
        self._num_calls = 0
        self._counter: ReasoningCounter | None = None
        reasoning, tools = plan.reasoning, plan.tools
        if reasoning is not None and tokenizer is not None:
            self._counter = ReasoningCounter(reasoning.parser(), tokenizer.token_bytes)
        calls = None
        if tools is not None:
            parameters = {tool.name: tool.parameters for tool in tools.tools}
            calls = ToolCallParser(
                tools.family,
                parameters,
                is_certain=tools.has_grammar,
                only_offered=tools.is_narrowed,
            )
        self._calls = calls
        self._parser = AnswerParser(None if reasoning is None else reasoning.parser(), calls)

    def read(self, answer: CompletionOutput, *, is_last: bool) -> Piece:
        """What comes to light with these tokens.

        Args:
            is_last: they end the answer.
        """
        if self._plan.is_plain:
            return Piece(content=answer.text)
        self._count(answer.token_ids)
        events = self._parser.feed(answer.text)
        if is_last:
            events += self._parser.finish()
        piece = Piece()
        for event in joined(events) if len(events) > 1 else events:
            self._put(event, piece)
        if is_last and self._on_end is not None:
            self._on_end(self._num_calls > 0)
        return piece

    def _count(self, token_ids: Sequence[int]) -> None:
        counter = self._counter
        if counter is not None and self._tally.reasoning_tokens is not None:
            self._tally.reasoning_tokens -= counter.num_tokens
            counter.add(token_ids)
            self._tally.reasoning_tokens += counter.num_tokens

    def finish_reason(self, reason: str | None) -> str | None:
        """The reason to tell, for the engine's: calls that were left to the model tell so, unless
        a stop text cut the last one."""
        tools, calls = self._plan.tools, self._calls
        is_whole = self._num_calls > 0 and calls is not None and not calls.is_open
        is_told = tools is not None and tools.kind != "named" and is_whole
        return "tool_calls" if reason == "stop" and is_told else reason

    def _put(self, event: Event, piece: Piece) -> None:
        match event:
            case Content(text):
                # Where the answer must be calls, text is what comes before one that was cut.
                if self._plan.tools is None or not self._plan.tools.is_forced:
                    piece.content += text
            case Reasoning(text):
                if not self._plan.hides_thoughts:
                    piece.reasoning += text
            case ToolCall(index, name, arguments):
                if self._is_wanted(index):
                    self._num_calls += 1
                    assert self._plan.tools is not None
                    call_id = _call_id(self._plan.tools.family.id_length)
                    called = CalledFunction(name=name, arguments=arguments)
                    piece.tool_calls.append(
                        ToolCallRecord(index=index, id=call_id, type="function", function=called)
                    )
            case MoreArguments(index, text):
                if self._is_wanted(index):
                    more = CalledFunction(arguments=text)
                    piece.tool_calls.append(ToolCallRecord(index=index, function=more))

    def _is_wanted(self, index: int) -> bool:
        tools = self._plan.tools
        return index == 0 or (tools is not None and tools.is_parallel)


def without_indices(calls: list[ToolCallRecord]) -> list[ToolCallRecord]:
    """Calls as a whole answer holds them: in their order."""
    return [ToolCallRecord(id=call.id, type=call.type, function=call.function) for call in calls]


def _call_id(length: int | None) -> str:
    """A new id; of letters and digits only when it has to have a length."""
    return f"call_{secrets.token_hex(12)}" if length is None else secrets.token_hex(length)[:length]
