"""How busy the engine is, in a header of answers: for load balancers that ask for it (ORCA)."""

from __future__ import annotations

import json

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.messages.outputs import SchedulerStats
from headrace.server.state import ServerState

ASK_HEADER = "endpoint-load-metrics-format"
REPORT_HEADER = b"endpoint-load-metrics"


class LoadReport:
    """Answers `endpoint-load-metrics-format: TEXT` or `JSON` with the load at the first byte."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Headers(scope=scope).get(ASK_HEADER, "") if scope["type"] == "http" else ""
        form = asked.strip().upper()
        if form not in ("TEXT", "JSON"):
            await self._app(scope, receive, send)
            return

        async def send_with_report(message: Message) -> None:
            client = self._state.client
            if message["type"] == "http.response.start" and client is not None:
                report = load_report(client.scheduler_stats, form).encode()
                message["headers"] = [*message.get("headers", []), (REPORT_HEADER, report)]
            await send(message)

        await self._app(scope, receive, send_with_report)


def load_report(stats: SchedulerStats, form: str) -> str:
    """The value of the header.

    Args:
        form: TEXT or JSON.
    """
    values = {
        "kv_cache_usage_perc": round(stats.kv_cache_usage, 4),
        "num_requests_waiting": stats.num_waiting,
    }
    if form == "JSON":
        return f"JSON {json.dumps({'named_metrics': values})}"
    return "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in values.items())
