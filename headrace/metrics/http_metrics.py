"""What the HTTP server measures beside the engine: requests, keys, calls of tools, sleep.

Labels come from closed sets: patterns of routes, known methods, names of keys in the key file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

LATENCY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
FINE_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0,
    7.5, 10.0, 30.0, 60.0,
)  # fmt: skip
SLEEP_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")


class HttpMetrics:
    """HTTP requests, by the pattern of their route."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "http_requests",
            "HTTP requests answered.",
            ("method", "status", "handler"),
            registry=registry,
        )
        self._seconds = Histogram(
            "http_request_duration_seconds",
            "Time to answer HTTP requests, streamed bodies included.",
            ("method", "handler"),
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self._fine_seconds = Histogram(
            "http_request_duration_highr_seconds",
            "The same in finer steps, over all routes.",
            buckets=FINE_BUCKETS,
            registry=registry,
        )
        self._received = Summary(
            "http_request_size_bytes", "Bodies of requests.", ("handler",), registry=registry
        )
        self._sent = Summary(
            "http_response_size_bytes", "Bodies of answers.", ("handler",), registry=registry
        )

    def record(
        self,
        method: str,
        handler: str,
        status: int,
        seconds: float,
        num_received: int = 0,
        num_sent: int = 0,
    ) -> None:
        """An HTTP request was answered.

        Args:
            handler: the route's pattern, never the path a stranger sent.
            seconds: until the whole body was sent.
            num_received, num_sent: bytes of the bodies.
        """
        method = method if method in METHODS else "other"
        self._requests.labels(method, f"{status // 100}xx", handler).inc()
        self._seconds.labels(method, handler).observe(seconds)
        self._fine_seconds.observe(seconds)
        self._received.labels(handler).observe(num_received)
        self._sent.labels(handler).observe(num_sent)


class KeyMetrics:
    """What the holders of keys took, by the names of the keys."""

    def __init__(self, registry: CollectorRegistry, prefix: str, model_name: str) -> None:
        def counter(name: str, help: str, *more: str) -> Counter:
            labels = ("model_name", "key", *more)
            return Counter(f"{prefix}:{name}", help, labels, registry=registry)

        self._model_name = model_name
        self._requests = counter("key_requests", "HTTP requests that reached the engine.")
        self._prompt_tokens = counter("key_prompt_tokens", "Their prompt tokens.")
        self._generation_tokens = counter("key_generation_tokens", "Their generated tokens.")
        self._rejections = counter(
            "key_rejections", "Requests refused because the key was at a limit.", "reason"
        )

    def record(self, key: str, num_prompt_tokens: int, num_generation_tokens: int) -> None:
        """A request has ended."""
        labels = (self._model_name, key)
        self._requests.labels(*labels).inc()
        self._prompt_tokens.labels(*labels).inc(num_prompt_tokens)
        self._generation_tokens.labels(*labels).inc(num_generation_tokens)

    def count_rejection(self, key: str, reason: str) -> None:
        """A request was refused because a limit of the key was reached."""
        self._rejections.labels(self._model_name, key, reason).inc()


class ToolMetrics:
    """What reading answers for calls of tools came to."""

    def __init__(self, registry: CollectorRegistry, prefix: str, model_name: str) -> None:
        read = Counter(
            f"{prefix}:tool_call_parser_invocations",
            "Answers read for calls of tools, by what was found; one for each choice.",
            ("model_name", "mode", "outcome", "request_type"),
            registry=registry,
        )
        self._read = {
            (mode == "streaming", outcome == "tool_call"): read.labels(
                model_name, mode, outcome, "chat_completions"
            )
            for mode in ("streaming", "non_streaming")
            for outcome in ("tool_call", "no_tool_call")
        }

    def record(self, is_streamed: bool, has_called: bool) -> None:
        """A choice that may hold calls has ended."""
        self._read[is_streamed, has_called].inc()


class SleepMetrics:
    """Sleep and wake, as the server's routes bring them about."""

    def __init__(self, registry: CollectorRegistry, prefix: str, labels: dict[str, str]) -> None:
        names, values = tuple(labels), tuple(labels.values())
        state = Gauge(
            f"{prefix}:engine_sleep_state",
            "1 for the state the engine is in.",
            (*names, "sleep_state"),
            registry=registry,
        )
        self._states = {name: state.labels(*values, name) for name in SLEEP_STATES}
        self._seconds = Histogram(
            f"{prefix}:sleep_mode_operation_duration_seconds",
            "Time to sleep and to wake up.",
            (*names, "operation"),
            buckets=SLEEP_BUCKETS,
            registry=registry,
        )
        self._in_flight = Gauge(
            f"{prefix}:sleep_mode_operations_in_flight",
            "Operations of sleep mode under way.",
            (*names, "operation"),
            registry=registry,
        )
        self._values = values
        self.set_level(None)

    def set_level(self, level: int | None) -> None:
        """Note how deep the engine sleeps; None: it is awake."""
        now = "awake" if level is None else "discard_all" if level == 2 else "weights_offloaded"
        for name, gauge in self._states.items():
            gauge.set(name == now)

    @contextmanager
    def operation(self, name: str) -> Iterator[None]:
        """Time `sleep` or `wake_up`."""
        begin = monotonic()
        in_flight = self._in_flight.labels(*self._values, name)
        in_flight.inc()
        try:
            yield
        finally:
            in_flight.dec()
            self._seconds.labels(*self._values, name).observe(monotonic() - begin)
