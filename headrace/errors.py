"""The error tree every floor raises from. Holds no HTTP: the server maps these to statuses."""

from __future__ import annotations

MAX_SHOWN = 100


def shown(value: object) -> str:
    """A caller's value as error messages show it: short, and never an error of its own."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no number of thousands of digits
        return "a very large number"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


class HeadraceError(Exception):
    """Root of everything headrace raises on purpose."""


class ConfigError(HeadraceError, ValueError):
    """A setting that cannot work. The message is one line: the setting and the way out."""


class ModelError(HeadraceError):
    """A model that cannot be found, read or run. One line: file, tensor, what was expected."""


class ValidationError(HeadraceError, ValueError):
    """A value in a request that is not allowed.

    Attributes:
        param: name of the offending field (dotted path), or None.
        value: the offending value, or None.
    """

    def __init__(self, message: str, *, param: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.param = param
        self.value = value


class UnsupportedError(HeadraceError, NotImplementedError):
    """A known feature that this model or this version does not offer. Never silently ignored."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class AdmissionError(HeadraceError):
    """The queue is full. `retry_after` is an estimate in seconds."""

    def __init__(self, message: str, *, reason: str, retry_after: float) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after


class QueueTimeoutError(AdmissionError):
    """The time of a request was over before it was started (`deadline_ms`, `max_queue_ms`)."""


class ProfilerAlreadyActiveError(HeadraceError):
    """A profile is being taken already; stop it first."""


class EngineGenerateError(HeadraceError):
    """One request failed inside the engine; the engine itself goes on."""


class EngineDeadError(HeadraceError):
    """The engine core has ended; no request can be served any more."""

    def __init__(self, message: str = "the engine core is not running any more") -> None:
        super().__init__(message)


class EngineStartError(HeadraceError):
    """The engine core did not come up. The message holds its own one-line reason."""
