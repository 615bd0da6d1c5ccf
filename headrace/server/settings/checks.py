"""Checks of options: each is told the name, says what is allowed, and what was given."""

from __future__ import annotations

import math
from collections.abc import Collection

from headrace.errors import ConfigError, shown


def check_integer(settings: object, name: str, low: int, high: int = 2**31) -> None:
    """Raise ConfigError unless the option is an integer in [low, high], and no boolean."""
    value = getattr(settings, name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} must be an integer in [{low}, {high}], got {shown(value)}")


def check_seconds(settings: object, name: str) -> None:
    """Raise ConfigError unless the option is a finite number of seconds, 0 or more."""
    value = getattr(settings, name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise ConfigError(f"{name} must be a number of seconds, 0 or more, got {shown(value)}")


def check_choice(settings: object, name: str, choices: Collection[str]) -> None:
    """Raise ConfigError unless the option is one of these."""
    value = getattr(settings, name)
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {shown(value)}")
