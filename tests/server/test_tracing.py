"""Spans of requests: what they say, whose children they are, and what is refused."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import httpx
import pytest

from headrace.errors import ConfigError
from headrace.server.app import build_app
from headrace.server.observe import tracing
from headrace.server.observe.tracing import Tracer
from headrace.server.settings.server import ServerSettings
from tests.server.fakes import FakeEngine

URL = "http://localhost:4318/v1/traces"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def memory_exporter() -> Any:
    module = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    return module.InMemorySpanExporter()


@pytest.mark.parametrize("stream", [False, True])
async def test_request_becomes_a_span_below_the_callers(engine: FakeEngine, stream: bool) -> None:
    exporter = memory_exporter()
    tracer = Tracer(URL, "tiny", exporter=exporter)
    app = build_app(engine, ServerSettings())
    app.state.server.open_requests.on_end.append(tracer.add)
    transport = httpx.ASGITransport(app=app)
    body = {"prompt": "ab", "max_tokens": 3, "request_id": "x", "temperature": 0.5,
            "stream": stream}  # fmt: skip
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for headers in ({"traceparent": PARENT}, {"traceparent": "junk"}):
            assert (await client.post("/v1/completions", json=body, headers=headers)).is_success
    tracer.close()
    first, second = exporter.get_finished_spans()
    assert first.name == "llm_request"
    assert f"{first.context.trace_id:x}" == PARENT.split("-")[1].lstrip("0")
    assert f"{first.parent.span_id:x}" == PARENT.split("-")[2]
    assert second.parent is None
    assert first.end_time >= first.start_time
    found = dict(first.attributes)
    assert found["gen_ai.request.id"] == "cmpl-x"
    assert found["gen_ai.response.model"] == "tiny"
    assert found["gen_ai.usage.prompt_tokens"] == 3
    assert found["gen_ai.usage.completion_tokens"] == 3
    assert found["gen_ai.request.temperature"] == 0.5
    assert found["gen_ai.response.finish_reasons"] == ("length",)
    assert found["http.route"] == "/v1/completions"


def test_missing_extra_is_one_line_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError("No module named 'opentelemetry.sdk'")
        return importlib.import_module(name)

    monkeypatch.setattr(tracing, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[otel\]'"):
        Tracer(URL, "tiny")


def test_endpoint_that_is_no_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="otlp_traces_endpoint"):
        Tracer("localhost:4317", "tiny")


def test_nothing_of_it_is_imported_unless_switched_on() -> None:
    code = (
        "import sys, headrace.server.run; "
        "print([n for n in sys.modules if n.startswith('opentelemetry.sdk')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr
