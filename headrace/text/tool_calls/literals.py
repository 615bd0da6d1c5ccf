"""Python literals as JSON, by a reader of their own: nothing is ever compiled or evaluated."""

from __future__ import annotations

import json
import math
import re

MAX_DEPTH = 64
MAX_NUMBER = 64
"""Characters; longer ones are no numbers that anybody means."""
_SPACE = re.compile(r"\s*")
_STRING = re.compile(
    r"""(?P<raw>[rR]?)(?P<quote>\"\"\"|'''|"|')""",
)
_BODIES = {
    '"""': re.compile(r'((?:[^\\"]|\\.|"(?!""))*)"""', re.DOTALL),
    "'''": re.compile(r"((?:[^\\']|\\.|'(?!''))*)'''", re.DOTALL),
    '"': re.compile(r'((?:[^\\"]|\\.)*)"', re.DOTALL),
    "'": re.compile(r"((?:[^\\']|\\.)*)'", re.DOTALL),
}
_NUMBER = re.compile(r"[+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
WORDS = {
    "True": "true", "False": "false", "None": "null", "true": "true", "false": "false",
    "null": "null",
}  # fmt: skip
_WORD = re.compile(r"[A-Za-z_]\w*")
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{1,3})|(\n)|(.))", re.DOTALL
)
_ESCAPED = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a",
    "\\": "\\", "'": "'", '"': '"',
}  # fmt: skip


class NotALiteralError(ValueError):
    """What stands there is no literal that JSON can say."""


def literal(text: str) -> str:
    """The JSON of a text that is one literal.

    Raises:
        NotALiteralError: it is none.
    """
    parts: list[str] = []
    position = skip_space(text, read_literal(text, 0, parts))
    if position != len(text):
        raise NotALiteralError
    return "".join(parts)


def skip_space(text: str, position: int) -> int:
    """The position behind white space."""
    found = _SPACE.match(text, position)
    assert found is not None
    return found.end()


def read_literal(text: str, position: int, parts: list[str], depth: int = 0) -> int:
    """Write the literal that stands at a position as JSON; the position behind it.

    Args:
        parts: pieces of the JSON are added here.

    Raises:
        NotALiteralError: there is none.
    """
    if depth > MAX_DEPTH:
        raise NotALiteralError
    position = skip_space(text, position)
    if _STRING.match(text, position):
        value, position = _strings(text, position)
        parts.append(_json_string(value))
        return position
    opener = text[position : position + 1]
    if opener in ("[", "("):
        return _read_items(text, position + 1, "]" if opener == "[" else ")", parts, depth)
    if opener == "{":
        return _read_pairs(text, position + 1, parts, depth)
    word = _WORD.match(text, position)
    if word is not None and word[0] in WORDS:
        parts.append(WORDS[word[0]])
        return word.end()
    number = _NUMBER.match(text, position)
    if number is None or number.end() - position > MAX_NUMBER:
        raise NotALiteralError
    parts.append(_number(number[0]))
    return number.end()


def _strings(text: str, position: int) -> tuple[str, int]:
    """One string, or several behind each other, which are one."""
    values: list[str] = []
    end = position
    while (found := _STRING.match(text, position)) is not None:
        body = _BODIES[found["quote"]].match(text, found.end())
        if body is None:
            raise NotALiteralError
        values.append(body[1] if found["raw"] else _ESCAPE.sub(_unescaped, body[1]))
        end = body.end()
        position = skip_space(text, end)
    return "".join(values), end


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3]
    if code is not None or found[4] is not None:
        number = int(code, 16) if code is not None else int(found[4], 8)
        return chr(number) if number <= 0x10FFFF else found[0]
    if found[5] is not None:
        return ""
    return _ESCAPED.get(found[6], found[0])


def _json_string(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate, by its escape
        raise NotALiteralError from None
    return json.dumps(value, ensure_ascii=False)


def _number(text: str) -> str:
    text = text.replace("_", "")
    if text.lstrip("+-").isdigit():
        return str(int(text))
    value = float(text)
    if not math.isfinite(value):
        raise NotALiteralError
    return repr(value)


def _read_items(text: str, position: int, closer: str, parts: list[str], depth: int) -> int:
    """A list or a tuple; one value in round brackets is that value."""
    out: list[str] = ["["]
    num_items, has_comma = 0, False
    while True:
        position = skip_space(text, position)
        if text.startswith(closer, position):
            break
        if num_items and not has_comma:
            raise NotALiteralError
        out += ", " if num_items else ""
        position = skip_space(text, read_literal(text, position, out, depth + 1))
        num_items += 1
        has_comma = text.startswith(",", position)
        position += has_comma
    is_value = closer == ")" and num_items == 1 and not has_comma
    parts += out[1:] if is_value else [*out, "]"]
    return position + 1


def _read_pairs(text: str, position: int, parts: list[str], depth: int) -> int:
    parts.append("{")
    num_pairs, has_comma = 0, False
    while True:
        position = skip_space(text, position)
        if text.startswith("}", position):
            break
        if num_pairs and not has_comma:
            raise NotALiteralError
        parts.append(", " if num_pairs else "")
        if not _STRING.match(text, position):
            raise NotALiteralError
        key, position = _strings(text, position)
        position = skip_space(text, position)
        if not text.startswith(":", position):
            raise NotALiteralError
        parts += [_json_string(key), ": "]
        position = skip_space(text, read_literal(text, position + 1, parts, depth + 1))
        num_pairs += 1
        has_comma = text.startswith(",", position)
        position += has_comma
    parts.append("}")
    return position + 1
