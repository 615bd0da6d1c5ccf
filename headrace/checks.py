"""Checks of single values that callers give, and how values of array libraries become Python's.

Knows no field: every function is told the name to complain about.
"""

from __future__ import annotations

import math
import sys
from typing import Any, TypeGuard

from headrace.errors import ValidationError, shown

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
TOKEN_ID_LIMIT = 2**31
_PLAIN = frozenset({int, float, bool, str, list, dict, tuple, type(None)})


def plain(value: Any) -> Any:
    """A number or an array of NumPy, PyTorch and their like as Python's own; the rest as it is.

    Nothing is imported for it: such values know how to become lists.
    """
    if type(value) in _PLAIN:
        return value
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) and not isinstance(value, type) else value


def check_integer(name: str, value: object, low: int, high: int, *, also: str = "") -> None:
    """Raise ValidationError unless it is an integer in [low, high], and no boolean."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        bounds = f"at least {low}" if high == INT64_MAX else f"in [{low}, {high}]"
        raise ValidationError(
            f"{name} must be an integer {bounds}{' ' + also if also else ''}, got {shown(value)}",
            param=name,
            value=value,
        )


def check_real(
    name: str, value: object, low: float, high: float, *, low_open: bool = False
) -> None:
    """Raise ValidationError unless it is a finite number in [low, high], or in (low, high]."""
    ok = (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and (low < value if low_open else low <= value)
        and (value <= high if high < math.inf else value <= sys.float_info.max)
    )
    if not ok:
        bracket = "(" if low_open else "["
        bounds = f"in {bracket}{low:g}, {high:g}]" if high < math.inf else "finite and above 0"
        raise ValidationError(
            f"{name} must be {bounds}, got {shown(value)}", param=name, value=value
        )


def check_boolean(name: str, value: object) -> None:
    """Raise ValidationError unless it is a boolean."""
    if not isinstance(value, bool):
        raise ValidationError(f"{name} must be a boolean", param=name, value=value)


def check_utf8(name: str, text: str) -> None:
    """Raise ValidationError when a text holds a lone surrogate, which no UTF-8 can say."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValidationError(f"{name} holds a lone surrogate", param=name) from None


def checked_token_ids(name: str, ids: object) -> list[int]:
    """Token ids as a list; whether the vocabulary has them is not known here.

    Raises:
        ValidationError: something else than a sequence of ids.
    """
    ids = plain(ids)
    if not isinstance(ids, (list, tuple)):
        raise ValidationError(f"{name} must be a list of token ids", param=name, value=ids)
    good: list[int] = []
    for given in ids:
        token_id = given if type(given) is int else plain(given)
        if not is_token_id(token_id):
            raise ValidationError(
                f"{name} must hold token ids, got {shown(given)}", param=name, value=given
            )
        good.append(token_id)
    return good


def is_token_id(value: object) -> TypeGuard[int]:
    """Whether it could be an id of some vocabulary."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer and 0 <= value < TOKEN_ID_LIMIT  # type: ignore[operator]


def checked_strings(name: str, texts: object) -> list[str]:
    """Strings as a list, each with text that UTF-8 can say.

    Raises:
        ValidationError: something else than a list of non-empty strings.
    """
    texts = plain(texts)
    if not isinstance(texts, (list, tuple)) or not all(isinstance(t, str) for t in texts):
        raise ValidationError(f"{name} must be a list of strings", param=name, value=texts)
    for text in texts:
        if not text:
            raise ValidationError(f"{name} must not hold an empty string", param=name, value=texts)
        check_utf8(name, text)
    return list(texts)


def checked_logit_bias(bias: object) -> dict[int, float]:
    """Token id -> number in [-100, 100]; JSON's string keys become ids.

    Raises:
        ValidationError: names the key.
    """
    if not isinstance(bias, dict):
        raise ValidationError("logit_bias must map token ids to numbers", param="logit_bias")
    clean: dict[int, float] = {}
    for key, given in bias.items():
        token_id = _digits(key) if isinstance(key, str) else plain(key)
        if not is_token_id(token_id):
            name = shown(key).strip("'")
            raise ValidationError(
                f"logit_bias key {name} is not a token id", param=f"logit_bias.{name}", value=key
            )
        value = plain(given)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not -100 <= value <= 100:
            raise ValidationError(
                f"logit_bias of token {token_id} must be a number in [-100, 100], "
                f"got {shown(value)}",
                param=f"logit_bias.{token_id}",
                value=value,
            )
        clean[token_id] = float(value)
    return clean


def check_extra_args(extra: object) -> None:
    """Raise ValidationError unless it is an object whose integers all fit 64 bits."""
    if not isinstance(extra, dict):
        raise ValidationError("extra_args must be an object", param="extra_args")
    pending: list[tuple[str, object]] = [(f"extra_args[{k!r}]", v) for k, v in extra.items()]
    if not all(isinstance(key, str) for key in extra):
        raise ValidationError("extra_args must have strings as keys", param="extra_args")
    while pending:
        where, value = pending.pop()
        if isinstance(value, dict):
            pending += [(f"{where}[{k!r}]", v) for k, v in value.items()]
        elif isinstance(value, (list, tuple)):
            pending += [(f"{where}[{i}]", v) for i, v in enumerate(value)]
        elif isinstance(value, int) and not INT64_MIN <= value <= INT64_MAX:
            raise ValidationError(f"{where} does not fit 64 bits", param="extra_args", value=value)


def _digits(text: str) -> int | None:
    """The number a JSON key stands for: up to ten digits and nothing else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None
