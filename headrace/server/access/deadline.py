"""The time a client, or a proxy before it, gives a request in a header."""

from __future__ import annotations

import math
from collections.abc import Mapping

from headrace.errors import ValidationError

TIMEOUT_HEADER = "X-Request-Timeout-Ms"


def timeout_ms(headers: Mapping[str, str]) -> float | None:
    """Milliseconds from a request's arrival to its end; None without a limit.

    Raises:
        ValidationError: not a positive number.
    """
    text = headers.get(TIMEOUT_HEADER.lower())
    if text is None:
        return None
    try:
        limit = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise ValidationError(
            f"the header {TIMEOUT_HEADER} must be a positive number of milliseconds",
            param=TIMEOUT_HEADER,
        )
    return limit


def shorter(limit: float | None, other: float | None) -> float | None:
    """Of two limits the one that is over first; None is no limit."""
    given = [one for one in (limit, other) if one is not None]
    return min(given, default=None)
