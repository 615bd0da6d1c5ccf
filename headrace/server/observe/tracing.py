"""A span of OpenTelemetry for each request that reached the engine. Needs `headrace[otel]`.

Sent by a thread of the library's, from a bounded queue; nothing of it is imported unless it is
switched on.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import headrace
from headrace.errors import ConfigError
from headrace.server.access.open_requests import OpenRequest
from headrace.server.protocol.usage import usage_details

SPAN = "llm_request"


class Tracer:
    """Makes and sends the spans of one server.

    Args:
        endpoint: URL of the collector, as in http://localhost:4318/v1/traces.
        model_name: the first served one.
        exporter: where spans go in place of a collector; given by tests.

    Raises:
        ConfigError: the extra is not installed, or the endpoint is none.
    """

    def __init__(self, endpoint: str, model_name: str, *, exporter: Any = None) -> None:
        if not endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                f"otlp_traces_endpoint must be a URL like http://localhost:4318/v1/traces, "
                f"got {endpoint!r}"
            )
        try:
            trace = import_module("opentelemetry.sdk.trace")
            export = import_module("opentelemetry.sdk.trace.export")
            resources = import_module("opentelemetry.sdk.resources")
            propagation = import_module("opentelemetry.trace.propagation.tracecontext")
            if exporter is None:
                otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
                exporter = otlp.OTLPSpanExporter(endpoint)
            self._api = import_module("opentelemetry.trace")
        except ImportError as error:
            raise ConfigError(
                f"otlp_traces_endpoint needs more packages: pip install 'headrace[otel]' ({error})"
            ) from None
        resource = resources.Resource.create(
            {"service.name": "headrace", "service.version": headrace.__version__}
        )
        self._model_name = model_name
        self._provider = trace.TracerProvider(resource=resource)
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("headrace")
        self._context_of = propagation.TraceContextTextMapPropagator().extract

    def add(self, request: OpenRequest) -> None:
        """Send the span of a request that has ended."""
        details = usage_details([stream.metrics for stream in request.streams])
        total_ms = details.total_ms or 0.0
        start = int(1e9 * request.caller.arrived)
        span = self._tracer.start_span(
            SPAN,
            context=self._context_of(request.trace_headers),
            kind=self._api.SpanKind.SERVER,
            start_time=start,
            attributes=self._attributes(request),
        )
        if any("error" in stream.metrics.finish_reasons for stream in request.streams):
            span.set_status(self._api.StatusCode.ERROR)
        span.end(end_time=start + int(1e6 * total_ms))

    def close(self) -> None:
        """Send what waits, and end."""
        self._provider.shutdown()

    def _attributes(self, request: OpenRequest) -> dict[str, Any]:
        metrics = [stream.metrics for stream in request.streams]
        details, params = usage_details(metrics), request.params
        inference = [one.inference_time for one in metrics if one.inference_time is not None]
        values: dict[str, Any] = {
            "gen_ai.response.model": self._model_name,
            "gen_ai.request.id": request.id,
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.n": params.n,
            "gen_ai.usage.prompt_tokens": request.num_prompt_tokens,
            "gen_ai.usage.completion_tokens": details.generated_tokens,
            "gen_ai.usage.num_sequences": request.num_answers,
            "gen_ai.latency.time_in_queue": _seconds(details.queue_ms),
            "gen_ai.latency.time_to_first_token": _seconds(details.time_to_first_token_ms),
            "gen_ai.latency.e2e": _seconds(details.total_ms),
            "gen_ai.latency.time_in_model_prefill": _seconds(details.prefill_ms),
            "gen_ai.latency.time_in_model_decode": _seconds(details.decode_ms),
            "gen_ai.latency.time_in_model_inference": max(inference, default=None),
            "gen_ai.response.finish_reasons": [r for one in metrics for r in one.finish_reasons],
            "headrace.key": request.caller.name,
            "http.route": request.route,
        }
        return {name: value for name, value in values.items() if value is not None}


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
