"""Patterns of strings in JSON, as the library that compiles schemas can follow them exactly."""

from __future__ import annotations

import re

_NUL = re.compile(r"\\(?:x00|u0000|U0{8}|[xuU]\{0+\})")
_CATEGORY = re.compile(r"\\[pP](?:\{[^}]*\}|.)", re.DOTALL)


def without_nul(pattern: str) -> str:
    r"""The same pattern, except that its classes do not hold U+0000.

    A class with all control characters would be compiled as if it held quotes and backslashes too:
    `[^"\\]` would let both through. Without one of them it means what it says, and a text without
    U+0000 still follows the pattern.

    Raises:
        ValueError: it asks for U+0000 itself; or the message of what is wrong with a class.
    """
    pieces: list[str] = []
    i = 0
    while i < len(pattern):
        if pattern[i] == "[":
            end = _end_of_class(pattern, i)
        elif (category := _CATEGORY.match(pattern, i)) is not None:
            end = category.end()
        else:
            if _NUL.match(pattern, i):
                raise ValueError("asks for U+0000, which no text may hold")
            end = i + (2 if pattern[i] == "\\" else 1)
            pieces.append(pattern[i:end])
            i = end
            continue
        pieces.append(rf"[{pattern[i:end]}--\x00]")
        i = end
    return "".join(pieces)


def _end_of_class(pattern: str, start: int) -> int:
    """The place behind a class that begins at `start`, with the classes within it."""
    depth = 0
    i = start
    while i < len(pattern):
        char = pattern[i]
        if char == "[":
            depth += 1
            i += 1
            if pattern.startswith("^", i):
                i += 1
            if pattern.startswith("]", i):  # as the first of a class it is meant itself
                i += 1
            continue
        if char == "]":
            depth -= 1
            if depth == 0:
                return i + 1
        i += 2 if char == "\\" else 1
    raise ValueError("has a class in brackets that does not end")
