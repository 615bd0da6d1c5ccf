"""From the text of an answer to thought, content and calls of tools, in this order."""

from __future__ import annotations

from headrace.text.reasoning import ReasoningParser
from headrace.text.tool_calls.call_parser import ToolCallParser
from headrace.text.tool_calls.events import Content, Event, Reasoning


class AnswerParser:
    """Feed it the text as it comes, then finish. How it was cut makes no difference.

    Args:
        reasoning: what looks for a thought at the beginning, if any.
        calls: what looks for calls behind that, if any.
    """

    def __init__(self, reasoning: ReasoningParser | None, calls: ToolCallParser | None) -> None:
        self._reasoning = reasoning
        self._calls = calls

    def feed(self, text: str) -> list[Event]:
        """What is certain with this text."""
        if self._reasoning is None:
            return self._found(text)
        thought, content = self._reasoning.feed(text)
        return ([Reasoning(thought)] if thought else []) + self._found(content)

    def finish(self) -> list[Event]:
        """The text is complete: the rest."""
        events: list[Event] = []
        if self._reasoning is not None:
            thought, content = self._reasoning.finish()
            events = ([Reasoning(thought)] if thought else []) + self._found(content)
        return events + self._calls.finish() if self._calls is not None else events

    def _found(self, content: str) -> list[Event]:
        if not content:
            return []
        return [Content(content)] if self._calls is None else self._calls.feed(content)
