"""Who sent a request, and when it came; noted in its scope by the middleware."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.server.access.keys import Key

CALLER = "headrace.caller"


@dataclass(slots=True)
class Caller:
    """Attributes:
    arrived: wall clock, seconds.
    key: None where no key is needed, or none was given.
    """

    arrived: float
    key: Key | None = None

    @property
    def name(self) -> str | None:
        """The name of its key, for logs, metrics, lists, and for fair turns."""
        return None if self.key is None else self.key.name


def caller_of(scope: Mapping[str, Any]) -> Caller:
    """The caller of a request."""
    caller: Caller | None = scope.get(CALLER)
    return Caller(time.time()) if caller is None else caller
