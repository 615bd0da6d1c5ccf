"""Logging in one form: level, time, process role, message. Set up once per process."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any

FORMAT = "%(levelname)-7s %(asctime)s [%(role)s] %(message)s"
FORMAT_ENV = "HEADRACE_LOGGING_FORMAT"
"""`json` or `text`; children of a process follow it."""
LINE_FIELDS = "fields"
"""Key of `extra`: what a JSON line tells beside its text."""
_role = "headrace"
_seen: set[str] = set()


class Logger(logging.LoggerAdapter[logging.Logger]):
    """A logger that can say a thing once per process."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Leaves `extra` as the caller gave it."""
        return msg, kwargs

    def warning_once(self, message: str, *args: Any) -> None:
        """Warn, but only the first time this text comes up in this process."""
        text = message % args if args else message
        if text not in _seen:
            _seen.add(text)
            self.warning("%s", text)


class _RoleFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.role = _role
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "role": _role,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, LINE_FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def make_logger(name: str) -> Logger:
    """The logger of a module."""
    return Logger(logging.getLogger(name), {})


def set_up_logging(level: str | None = None, *, role: str = "headrace") -> None:
    """Send the package's log to standard error.

    Args:
        level: a level's name; default is HEADRACE_LOGGING_LEVEL, else INFO.
        role: which process speaks: `server`, `engine`, ...
    """
    global _role
    _role = role
    root = logging.getLogger("headrace")
    root.setLevel((level or os.environ.get("HEADRACE_LOGGING_LEVEL") or "INFO").upper())
    if not any(isinstance(handler, logging.StreamHandler) for handler in root.handlers):
        handler = logging.StreamHandler(sys.stderr)
        is_json = os.environ.get(FORMAT_ENV) == "json"
        handler.setFormatter(JsonFormatter() if is_json else logging.Formatter(FORMAT, "%H:%M:%S"))
        handler.addFilter(_RoleFilter())
        root.addHandler(handler)
        root.propagate = False
