"""Text that comes in pieces, for readers written as generators: they yield when they need more.

Readers are plain code then, whatever way the text is cut.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]
SPACE = " \t\r\n"
_LINE_ENDS = re.compile(r"[\r\n]+")
_SPACES = re.compile(r"[ \t\r\n]+")


class NotACallError(Exception):
    """What was read is no call: it is text like any other."""


class Source:
    """The text of one answer. What has been read is held until somebody settles what it is.

    Attributes:
        text: what has come; before `position` it has been read.
        is_ended: nothing more will come.
    """

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.is_ended = False
        self._held: list[str] = []

    def give(self, text: str) -> None:
        """More text has come."""
        self.text = self.text[self.position :] + text
        self.position = 0

    def take(self, end: int) -> str:
        """Read up to this position of `text`."""
        taken = self.text[self.position : end]
        self._held.append(taken)
        self.position = end
        return taken

    @property
    def held(self) -> str:
        """What has been read and not been settled."""
        self._held = ["".join(self._held)]
        return self._held[0]

    def settle(self) -> str:
        """Hold nothing any more; gives what was held."""
        held, self._held = self._held, []
        return "".join(held)

    def more(self) -> Reading[bool]:
        """Wait for a character; False when there is none any more."""
        while self.position == len(self.text):
            if self.is_ended:
                return False
            yield
        return True

    def ends(self) -> Reading[bool]:
        """Whether nothing comes but white space, which is read."""
        yield from self.spaces()
        return self.position == len(self.text)

    def spaces(self) -> Reading[None]:
        """Read white space."""
        while (yield from self.more()):
            spaces = _SPACES.match(self.text, self.position)
            if spaces is None:
                return
            self.take(spaces.end())

    def line_ends(self) -> Reading[None]:
        """Read line ends."""
        yield from self.run(_LINE_ENDS)

    def run(self, pattern: re.Pattern[str]) -> Reading[str]:
        """What comes of the characters that a pattern (`[...]+`) matches; often nothing."""
        parts: list[str] = []
        while (yield from self.more()):
            found = pattern.match(self.text, self.position)
            if found is None:
                break
            parts.append(self.take(found.end()))
        return "".join(parts)

    def rest(self) -> Reading[None]:
        """Read all that comes."""
        while (yield from self.more()):
            self.take(len(self.text))

    def literal(self, text: str) -> Reading[bool]:
        """Whether this text comes next, which is read then."""
        while len(self.text) - self.position < len(text):
            if self.is_ended or not text.startswith(self.text[self.position :]):
                return False
            yield
        if not self.text.startswith(text, self.position):
            return False
        self.take(self.position + len(text))
        return True

    def one_of(self, texts: tuple[str, ...]) -> Reading[str]:
        """Which of these texts comes next, which is read then; none of them: nothing."""
        while True:
            for text in texts:
                if self.text.startswith(text, self.position):
                    return self.take(self.position + len(text))
            rest = self.text[self.position : self.position + max(map(len, texts))]
            if self.is_ended or not any(text.startswith(rest) for text in texts):
                return ""
            yield

    def closing(self, text: str) -> Reading[bool]:
        """Whether this text comes next, or its beginning at the end; it is read then."""
        if (yield from self.literal(text)):
            return True
        if not self.is_ended or not text.startswith(self.text[self.position :]):
            return False
        self.take(len(self.text))
        return True

    def expect(self, *texts: str) -> Reading[None]:
        """Read these texts.

        Raises:
            NotACallError: something else comes.
        """
        for text in texts:
            if not (yield from self.literal(text)):
                raise NotACallError

    def until(self, mark: str, *, may_end: bool = False) -> Reading[str]:
        """What comes before a mark, which is read, too.

        Args:
            may_end: the end of the text does as well.

        Raises:
            NotACallError: it does not come.
        """
        parts: list[str] = []
        while (at := self.text.find(mark, self.position)) < 0:
            kept = 0 if self.is_ended else begun_mark(self.text, (mark,))
            parts.append(self.take(max(len(self.text) - kept, self.position)))
            if self.is_ended:
                if not may_end:
                    raise NotACallError
                return "".join(parts)
            yield
        parts.append(self.take(at))
        self.take(at + len(mark))
        return "".join(parts)


def begun_mark(text: str, marks: tuple[str, ...]) -> int:
    """How many characters at the end of a text may be the beginning of one of these marks."""
    longest = 0
    for mark in marks:
        at = max(len(text) - len(mark) + 1, 0)
        while (at := text.find(mark[0], at)) >= 0:
            if mark.startswith(text[at:]):
                longest = max(longest, len(text) - at)
                break
            at += 1
    return longest
