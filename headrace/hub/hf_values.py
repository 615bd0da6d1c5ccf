"""Numbers of a config.json, each checked for its kind: a wrong file ends in one line.

Says nothing about which keys a model has; its family does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from headrace.errors import ModelError, shown

MAX_COUNT = 2**31 - 1


def count(
    values: Mapping[str, Any], key: str, default: int | None = None, *, at_least: int = 1
) -> int:
    """An integer that is not too small; a key that is missing or null has the default.

    Raises:
        ModelError: missing without a default, or something else.
    """
    value = _value(values, key, default)
    is_count = isinstance(value, int) and not isinstance(value, bool)
    if not is_count or not at_least <= value <= MAX_COUNT:
        raise ModelError(
            f"config.json: {key} must be an integer from {at_least} to {MAX_COUNT}, "
            f"found {shown(value)}"
        )
    return int(value)


def positive_number(values: Mapping[str, Any], key: str, default: float | None = None) -> float:
    """A finite number above 0; a key that is missing or null has the default.

    Raises:
        ModelError: missing without a default, or something else.
    """
    value = _value(values, key, default)
    is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_real or not 0 < value < math.inf:
        raise ModelError(f"config.json: {key} must be a positive number, found {shown(value)}")
    return float(value)


def _value(values: Mapping[str, Any], key: str, default: float | None) -> Any:
    value = values.get(key)
    value = default if value is None else value
    if value is None:
        raise ModelError(f"config.json lacks the key {key!r}")
    return value
