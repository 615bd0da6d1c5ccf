"""Texts and patterns in the rules of grammars."""

from __future__ import annotations

import json
from collections.abc import Sequence

SPACES = r"SPACES: /[ \t\r\n]+/"
"""A rule for what readers pass over before an answer that is calls from its beginning on."""


def quoted(text: str) -> str:
    """A string literal that matches just this text."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def beginning_otherwise(texts: Sequence[str]) -> str:
    """A pattern for the first characters of what begins with none of these texts, nor with white
    space: as few as tell that."""
    begun = sorted({text[:i] for text in texts for i in range(len(text))}, key=len)
    options = []
    for prefix in begun:
        taken = {text[len(prefix)] for text in texts if text.startswith(prefix)}
        excluded = "".join(sorted(_escaped(char) for char in taken))
        spaces = r" \t\r\n" if not prefix else ""
        options.append("".join(map(_escaped, prefix)) + f"[^{excluded}{spaces}]")
    return f"/{'|'.join(options)}/"


def only_begun(texts: Sequence[str]) -> str:
    """A pattern for what begins one of these texts and ends there; nothing when nothing does."""
    begun = sorted({text[:i] for text in texts for i in range(1, len(text))} - set(texts))
    return f"/{'|'.join(''.join(map(_escaped, text)) for text in begun)}/" if begun else ""


def _escaped(char: str) -> str:
    """A character in a pattern, also between brackets."""
    if char == "\n":
        return r"\n"
    return char if char.isalnum() or char in '_"<>`' else f"\\{char}"
