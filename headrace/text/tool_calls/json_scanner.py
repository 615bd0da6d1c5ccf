"""Follows one JSON value as it comes, in pieces cut anywhere: where it ends, or ceases to be JSON.

Each character is looked at once, and none is kept.
"""

from __future__ import annotations

import re
from enum import IntEnum, auto
from typing import NamedTuple

MAX_DEPTH = 64
"""Deeper values are none that a tool's parameters could ask for."""
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBERS = re.compile(
    r"(?:-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?[ \t\n\r]*,[ \t\n\r]*)+"
)
_SPACE = " \t\n\r"
_DIGITS = "0123456789"
_HEX = frozenset("0123456789abcdefABCDEF")


class _State(IntEnum):
    VALUE = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    FIRST_ITEM = auto()
    AFTER = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    LITERAL = auto()
    MINUS = auto()
    ZERO = auto()
    INTEGER = auto()
    POINT = auto()
    FRACTION = auto()
    EXPONENT = auto()
    SIGN = auto()
    POWER = auto()


_ITEMS = (_State.VALUE, _State.FIRST_ITEM)
_COMPLETE_NUMBERS = {_State.ZERO, _State.INTEGER, _State.FRACTION, _State.POWER}
_NUMBER: dict[_State, tuple[tuple[str, _State], ...]] = {
    _State.MINUS: (("0", _State.ZERO), (_DIGITS, _State.INTEGER)),
    _State.ZERO: ((".", _State.POINT), ("eE", _State.EXPONENT)),
    _State.INTEGER: ((_DIGITS, _State.INTEGER), (".", _State.POINT), ("eE", _State.EXPONENT)),
    _State.POINT: ((_DIGITS, _State.FRACTION),),
    _State.FRACTION: ((_DIGITS, _State.FRACTION), ("eE", _State.EXPONENT)),
    _State.EXPONENT: (("+-", _State.SIGN), (_DIGITS, _State.POWER)),
    _State.SIGN: ((_DIGITS, _State.POWER),),
    _State.POWER: ((_DIGITS, _State.POWER),),
}
"""What may follow within a number."""


class Span(NamedTuple):
    """Characters from `start` to before `end`, counted from the value's first."""

    start: int
    end: int


class JsonScanner:
    """Of one object or list; the first character given is its first.

    Args:
        pauses: take nothing more in one go when a member of the outermost object is complete.

    Attributes:
        is_done: it is complete.
        is_broken: what came is no JSON; nothing is taken any more.
        num_items: how many values the outermost list holds.
        members: where keys and values of the outermost object stand, as far as they are complete.
        value_start: where the outermost object's present value began.
        has_raw_controls: a string holds line ends or the like as they are, which JSON forbids.
    """

    def __init__(self, *, pauses: bool = False) -> None:
        self._pauses = pauses
        self.is_done = False
        self.is_broken = False
        self.has_raw_controls = False
        self.members: list[tuple[Span, Span]] = []
        self.num_items = 0
        self.value_start = 0
        self._num_taken = 0
        self._state = _State.VALUE
        self._closers: list[str] = []
        self._is_key = False
        self._key = Span(0, 0)
        self._rest = ""
        self._num_hex = 0

    def scan(self, text: str, start: int) -> int:
        """Take in what comes next.

        Returns:
            the position behind the last character taken: the end of `text`, unless the value is
            done or broken before, or it pauses.
        """
        position, end = start, len(text)
        base = self._num_taken - start
        num_members = len(self.members)
        while position < end and not self.is_done:
            run = None
            if self._state is _State.STRING:
                run = _PLAIN.match(text, position)
            elif self._state in _ITEMS and len(self._closers) > 1 and self._closers[-1] == "]":
                run = _NUMBERS.match(text, position)
            if run is not None:
                if self._state is _State.FIRST_ITEM:
                    self._state = _State.VALUE
                position = run.end()
                continue
            if not self._take(text[position], base + position):
                self.is_broken = True
                break
            position += 1
            if self._pauses and len(self.members) > num_members:
                break
        self._num_taken = base + position
        return position

    def _take(self, char: str, offset: int) -> bool:
        """Whether a character can stand here."""
        state = self._state
        if state is _State.STRING:
            return self._in_string(char, offset)
        if state in _NUMBER:
            for allowed, following in _NUMBER[state]:
                if char in allowed:
                    self._state = following
                    return True
            if state not in _COMPLETE_NUMBERS:
                return False
            self._end_value(offset)
            state = self._state
        if state is _State.ESCAPE:
            self._state = _State.HEX if char == "u" else _State.STRING
            self._num_hex = 0
            return char in '"\\/bfnrtu'
        if state is _State.HEX:
            self._num_hex += 1
            if self._num_hex == 4:
                self._state = _State.STRING
            return char in _HEX
        if state is _State.LITERAL:
            fits, self._rest = char == self._rest[0], self._rest[1:]
            if not self._rest:
                self._end_value(offset + 1)
            return fits
        if char in _SPACE and self._closers:
            return True
        return self._mark(char, offset)

    def _in_string(self, char: str, offset: int) -> bool:
        if char == "\\":
            self._state = _State.ESCAPE
        elif char != '"':
            self.has_raw_controls = True
        elif self._is_key:
            if len(self._closers) == 1:
                self._key = Span(self._key.start, offset + 1)
            self._state = _State.COLON
        else:
            self._end_value(offset + 1)
        return True

    def _mark(self, char: str, offset: int) -> bool:
        """Outside of strings, numbers and words."""
        state = self._state
        if state is _State.COLON:
            self._state = _State.VALUE
            return char == ":"
        if state is _State.AFTER:
            if char == ",":
                self._state = _State.KEY if self._closers[-1] == "}" else _State.VALUE
                return True
            return self._close(char, offset)
        if state is _State.FIRST_KEY or state is _State.KEY:
            if char == '"':
                self._state, self._is_key = _State.STRING, True
                if len(self._closers) == 1:
                    self._key = Span(offset, offset)
                return True
            return state is _State.FIRST_KEY and self._close(char, offset)
        if state is _State.FIRST_ITEM and char == "]":
            return self._close(char, offset)
        return self._begin_value(char, offset)

    def _begin_value(self, char: str, offset: int) -> bool:
        if len(self._closers) == 1:
            self.value_start = offset
        if char in "{[":
            self._closers.append("}" if char == "{" else "]")
            self._state = _State.FIRST_KEY if char == "{" else _State.FIRST_ITEM
            return len(self._closers) <= MAX_DEPTH
        if not self._closers:
            return False
        if char == '"':
            self._state, self._is_key = _State.STRING, False
        elif char == "-":
            self._state = _State.MINUS
        elif char == "0":
            self._state = _State.ZERO
        elif char in _DIGITS:
            self._state = _State.INTEGER
        elif char in "tfn":
            self._state = _State.LITERAL
            self._rest = {"t": "rue", "f": "alse", "n": "ull"}[char]
        else:
            return False
        return True

    def _close(self, char: str, offset: int) -> bool:
        if char != self._closers[-1]:
            return False
        self._closers.pop()
        if self._closers:
            self._end_value(offset + 1)
        else:
            self.is_done = True
        return True

    def _end_value(self, end: int) -> None:
        self._state = _State.AFTER
        if len(self._closers) != 1:
            return
        if self._closers[0] == "}":
            self.members.append((self._key, Span(self.value_start, end)))
        else:
            self.num_items += 1


def is_json(text: str) -> bool:
    """Whether a text is one JSON value, not too deep, and white space around it."""
    scanner = JsonScanner()
    text = text.strip(_SPACE)
    end = scanner.scan(f"[{text}]", 0)
    one_value = scanner.is_done and end == len(text) + 2 and not scanner.has_raw_controls
    return one_value and scanner.num_items == 1
