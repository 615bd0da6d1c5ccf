"""Thoughts in what models write: what stands between two marks at the beginning of an answer.

One reader serves streamed and whole answers. Line ends beside the marks belong to them.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from typing import NamedTuple

from headrace.text.tool_calls.source import Reading, Source, begun_mark


class ReasoningFormat(NamedTuple):
    """How the models of a family mark their thoughts.

    Attributes:
        starts, ends: texts that open and close a thought; the first are those a grammar uses.
        answer_marks: around the answer behind a thought; they are left out. None: there are none.
    """

    starts: tuple[str, ...]
    ends: tuple[str, ...]
    answer_marks: tuple[str, str] | None = None

    def is_opened(self, text: str) -> bool:
        """Whether a prompt ends with a mark that opens a thought."""
        return text.rstrip().endswith(self.starts)

    def is_closed(self, text: str) -> bool:
        """Whether a prompt ends with a mark that closes one."""
        return text.rstrip().endswith(self.ends)

    def is_open_within(self, text: str) -> bool:
        """Whether a thought is open at the end of an unfinished answer."""
        return max(map(text.rfind, self.starts)) > max(map(text.rfind, self.ends))


_THINK = ReasoningFormat(("<think>",), ("</think>",))
FORMATS: dict[str, ReasoningFormat] = {
    "qwen3": _THINK,
    "deepseek_r1": _THINK,
    "granite": ReasoningFormat(
        ("<think>", "Here is my thought process:", "Here's my thought process:"),
        ("</think>", "Here is my response:", "Here's my response:"),
        ("<response>", "</response>"),
    ),
    "mistral": ReasoningFormat(("[THINK]",), ("[/THINK]",)),
    "seed_oss": ReasoningFormat(("<seed:think>",), ("</seed:think>",)),
}
"""By the names that `--reasoning-parser` takes."""


def format_of(template: str | None, model_type: str) -> str | None:
    """The format that a chat template tells of; None when it tells of none."""
    if not template:
        return None
    is_granite = "granite" in model_type
    has_marks = "</think>" in template or "<think>" in template
    if is_granite and (has_marks or "my thought process" in template):
        return "granite"
    if has_marks:
        return "deepseek_r1" if "deepseek" in model_type else "qwen3"
    signs = {"[THINK]": "mistral", "<seed:think>": "seed_oss"}
    return next((name for sign, name in signs.items() if sign in template), None)


class ReasoningParser:
    """From the text of an answer to thought and content: feed it as it comes, then finish. How it
    was cut makes no difference to either, joined.

    Args:
        is_open: the prompt has opened a thought.

    Attributes:
        is_thinking: a thought is open.
        is_done: all that comes is content.
    """

    def __init__(self, format: ReasoningFormat, *, is_open: bool) -> None:
        self.is_thinking = is_open
        self.is_done = False
        self._format = format
        self._source = Source()
        self._thought: list[str] = []
        self._content: list[str] = []
        self._line_ends: list[str] = []
        self._run = self._read()
        next(self._run, None)

    def feed(self, text: str) -> tuple[str, str]:
        """Thought and content that are certain with this text."""
        if self.is_done:
            return "", text
        self._source.give(text)
        next(self._run, None)
        return self._take()

    def finish(self) -> tuple[str, str]:
        """The text is complete: the rest of thought and content."""
        self._source.is_ended = True
        for _ in self._run:
            pass
        return self._take()

    def _take(self) -> tuple[str, str]:
        found = "".join(self._thought), "".join(self._content)
        self._thought.clear()
        self._content.clear()
        return found

    def _read(self) -> Reading[None]:
        source, format = self._source, self._format
        yield from source.spaces()
        if (yield from source.one_of(format.starts)) or self.is_thinking:
            source.settle()
            self.is_thinking = True
            yield from self._read_thought()
            self.is_thinking = False
            yield from source.line_ends()
            if format.answer_marks is not None:
                yield from self._read_marked(*format.answer_marks)
            source.settle()
        self._content.append(source.settle())
        self.is_done = not source.is_ended
        self._content.append(source.take(len(source.text)))

    def _read_thought(self) -> Reading[None]:
        """Pass a thought on, up to its end, which is read."""
        source, ends = self._source, self._format.ends
        yield from source.line_ends()
        while True:
            text, start = source.text, source.position
            found = min(
                ((at, end) for end in ends if (at := text.find(end, start)) >= 0), default=None
            )
            if found is not None:
                self._think(source.take(found[0]))
                source.take(found[0] + len(found[1]))
                source.settle()
                return
            kept = 0 if source.is_ended else begun_mark(text, ends)
            self._think(source.take(max(len(text) - kept, start)))
            source.settle()
            if source.is_ended:  # it was cut: what it ends with belongs to it
                self._thought += self._line_ends
                return
            yield

    def _think(self, text: str) -> None:
        """Thought, whose last line ends may belong to the mark that follows."""
        visible = text.rstrip("\r\n")
        if visible:
            self._thought += [*self._line_ends, visible]
            self._line_ends.clear()
        self._line_ends.append(text[len(visible) :])

    def _read_marked(self, start: str, end: str) -> Reading[None]:
        """Content between two marks, which are left out, if it has them."""
        source = self._source
        if not (yield from source.literal(start)):
            return
        source.settle()
        while (at := source.text.find(end, source.position)) < 0:
            kept = 0 if source.is_ended else begun_mark(source.text, (end,))
            source.take(max(len(source.text) - kept, source.position))
            self._content.append(source.settle())
            if source.is_ended:
                return
            yield
        source.take(at)
        self._content.append(source.settle())
        source.take(at + len(end))


class ReasoningCounter:
    """How many tokens of an answer its thought takes. Marks that are tokens do not count.

    Args:
        parser: a new one.
        token_bytes: what a token adds to the text.
    """

    def __init__(self, parser: ReasoningParser, token_bytes: Callable[[int], bytes]) -> None:
        self.num_tokens = 0
        self._parser = parser
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_ids: Iterable[int]) -> None:
        """Take in further tokens of the answer."""
        parser = self._parser
        for token_id in token_ids:
            if parser.is_done:
                break
            was_thinking = parser.is_thinking
            parser.feed(self._decoder.decode(self._token_bytes(token_id)))
            self.num_tokens += was_thinking and parser.is_thinking
