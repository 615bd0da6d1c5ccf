"""From an error to a status and a body: one table, applied outermost.

Texts of our own errors are for users; anything else is told as `internal error` and logged.
"""

from __future__ import annotations

import http
import math
from collections.abc import Mapping

import msgspec
import pydantic
from starlette.exceptions import HTTPException
from starlette.responses import Response

from headrace.errors import (
    AdmissionError,
    EngineDeadError,
    EngineGenerateError,
    HeadraceError,
    ProfilerAlreadyActiveError,
    UnsupportedError,
    ValidationError,
)
from headrace.logger import make_logger

logger = make_logger(__name__)

RETRY_AFTER = 2.0
"""Seconds after which a server that starts, or its successor, may be asked again."""
MAX_SHOWN_ERRORS = 10
MAX_MESSAGE = 2000
MAX_PARAM = 200


class NotFoundError(ValidationError):
    """A model (or another thing named in a request) that does not exist."""


class BodyTooLargeError(ValidationError):
    """A body over the size limit."""


class BodyTimeoutError(ValidationError):
    """A body that did not come to its end in time."""


class AuthenticationError(ValidationError):
    """No key, or not one of the right ones."""


class PermissionDeniedError(ValidationError):
    """A key that is good, but not for this."""


class NotReadyError(HeadraceError):
    """The engine is still starting, or the server is ending. `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def server_is_ending() -> NotReadyError:
    """What requests are told once the server ends."""
    return NotReadyError("the server is shutting down", retry_after=RETRY_AFTER)


class KeyLimitError(AdmissionError):
    """A key has as much under way as it may."""


class UnhealthyError(HeadraceError):
    """The answer of health routes when the engine serves no more."""


class ErrorInfo(msgspec.Struct):
    """What users see of an error: the inside of `{"error": ...}`."""

    message: str
    type: str
    param: str | None
    code: int
    """The HTTP status."""


class ErrorBody(msgspec.Struct):
    """The body of every answer that is an error, and of the frame that ends a broken stream."""

    error: ErrorInfo


_TABLE: tuple[tuple[type[BaseException], int, str], ...] = (
    (NotFoundError, 404, "NotFoundError"),
    (BodyTooLargeError, 413, "RequestTooLargeError"),
    (BodyTimeoutError, 408, "RequestTimeoutError"),
    (AuthenticationError, 401, "AuthenticationError"),
    (PermissionDeniedError, 403, "PermissionDeniedError"),
    (ValidationError, 400, "BadRequestError"),
    (ProfilerAlreadyActiveError, 409, "ConflictError"),
    (pydantic.ValidationError, 400, "BadRequestError"),
    # Not 501: clients of this API take every 5xx for a fault that passes, and ask again.
    (UnsupportedError, 400, "NotImplementedError"),
    (KeyLimitError, 429, "RateLimitError"),
    (AdmissionError, 503, "ServiceUnavailableError"),
    (NotReadyError, 503, "ServiceUnavailableError"),
    (UnhealthyError, 503, "ServiceUnavailableError"),
    (EngineGenerateError, 500, "InternalServerError"),
    (EngineDeadError, 500, "InternalServerError"),
)
_HTTP_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
}


def error_info(error: BaseException) -> ErrorInfo:
    """What users are told about an error."""
    if isinstance(error, HTTPException):
        kind = _HTTP_TYPES.get(error.status_code, "HTTPError")
        return ErrorInfo(_http_message(error), kind, None, error.status_code)
    for kind_of, status, name in _TABLE:
        if isinstance(error, kind_of):
            message, param = _message_and_param(error)
            return ErrorInfo(message[:MAX_MESSAGE], name, param, status)
    return ErrorInfo("internal error; the server's log has more", "InternalServerError", None, 500)


def error_response(error: BaseException) -> Response:
    """The answer to a request that failed. Faults of ours are logged with their trace."""
    info = error_info(error)
    log_fault(error, info)
    return Response(
        encode_error(info),
        status_code=info.code,
        headers=dict(error_headers(error)),
        media_type="application/json",
    )


def log_fault(error: BaseException, info: ErrorInfo) -> None:
    """Write an error to the log, if it is a fault of ours."""
    if info.code != 500:
        return
    if isinstance(error, EngineDeadError):
        logger.warning_once("requests fail: %s", error)
    elif isinstance(error, EngineGenerateError):
        logger.error("request failed: %s", error)
    else:
        logger.error("request failed", exc_info=error)


def error_headers(error: BaseException) -> Mapping[str, str]:
    """Headers that belong to an error."""
    if isinstance(error, (AdmissionError, NotReadyError)):
        return {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    if isinstance(error, BodyTimeoutError):
        return {"Connection": "close"}
    if isinstance(error, AuthenticationError):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, HTTPException):
        return error.headers or {}
    return {}


def encode_error(info: ErrorInfo) -> bytes:
    """Strict JSON, whatever characters the message holds."""
    message = info.message.encode("utf-8", "replace").decode()
    param = info.param and info.param[:MAX_PARAM].encode("utf-8", "replace").decode()
    return msgspec.json.encode(ErrorBody(ErrorInfo(message, info.type, param, info.code)))


def _http_message(error: HTTPException) -> str:
    if error.status_code == 404:
        return "there is no such route"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return f"this route does not take that method; use {allowed}"
    try:
        return error.detail or http.HTTPStatus(error.status_code).phrase
    except ValueError:
        return "the request failed"


def _message_and_param(error: BaseException) -> tuple[str, str | None]:
    if isinstance(error, pydantic.ValidationError):
        return _pydantic_message(error)
    param = getattr(error, "param", None)
    return str(error) or "the request failed", param


def _pydantic_message(error: pydantic.ValidationError) -> tuple[str, str | None]:
    """One clause per field, and the first field as a dotted path."""
    reasons: dict[str, list[str]] = {}
    for item in error.errors(include_url=False, include_input=False, include_context=False):
        # Branches of a union ("list[str]", "constrained-int") stand in the path like fields.
        path = ".".join(
            str(part) for part in item["loc"] if isinstance(part, int) or str(part).isidentifier()
        )
        path = _strip_branch(path)
        reasons.setdefault(path, []).append(item["msg"])
    shown = [
        f"{path}: {' or '.join(dict.fromkeys(texts))}"[:200]
        for path, texts in list(reasons.items())[:MAX_SHOWN_ERRORS]
    ]
    left = len(reasons) - len(shown)
    more = f"; and {left} more" if left > 0 else ""
    return "; ".join(shown) + more, next(iter(reasons), None)


_BRANCHES = frozenset({"str", "int", "float", "bool", "none", "dict"})


def _strip_branch(path: str) -> str:
    parts = path.split(".")
    while len(parts) > 1 and parts[-1] in _BRANCHES:
        parts.pop()
    return ".".join(parts)
