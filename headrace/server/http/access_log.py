"""One line per HTTP request: who asked for what, with what result, how long it took.

Neither keys nor query strings are told; a key's name is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.logger import LINE_FIELDS, make_logger
from headrace.server.access.caller import caller_of

logger = make_logger(__name__)

MAX_PATH = 200
CLIENT_LEFT = 499


class AccessLog:
    """Writes the lines.

    Args:
        quiet_paths: paths whose requests get none.
    """

    def __init__(self, app: ASGIApp, quiet_paths: Collection[str]) -> None:
        self._app = app
        self._quiet_paths = frozenset(quiet_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._quiet_paths:
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        status = CLIENT_LEFT  # every other end sends a status

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            if logger.isEnabledFor(logging.INFO):
                _write(scope, status, time.perf_counter() - begin)


def _write(scope: Scope, status: int, seconds: float) -> None:
    client = scope.get("client")
    fields = {
        "client": f"{client[0]}:{client[1]}" if client else None,
        "method": scope["method"][:20],
        "path": quote(scope["path"], safe="/:@-._~!$&'()*+,;=")[:MAX_PATH],
        "status": status,
        "ms": round(1000 * seconds, 1),
        "key": caller_of(scope).name,
    }
    logger.info(
        "%s %s %s -> %d (%.1f ms%s)",
        fields["client"] or "-",
        fields["method"],
        fields["path"],
        status,
        fields["ms"],
        "" if fields["key"] is None else f", key {fields['key']}",
        extra={LINE_FIELDS: fields},
    )
