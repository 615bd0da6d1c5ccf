"""Measurements as Prometheus metrics, under the names dashboards of this field know.

Each logger has a registry of its own, so several engines in one process do not collide. What each
step changes is kept as plain numbers, and becomes metrics when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client import Metric as Family
from prometheus_client.registry import RestrictedRegistry

from headrace.config.engine import EngineConfig
from headrace.messages.outputs import FinishReason, SchedulerStats
from headrace.metrics.http_metrics import HttpMetrics, KeyMetrics, SleepMetrics, ToolMetrics
from headrace.metrics.kv_block_metrics import KVBlockMetrics
from headrace.metrics.reader import read_metrics
from headrace.metrics.records import Metric
from headrace.metrics.stats import FinishedRequestStats, IterationStats
from headrace.metrics.step_histogram import StepHistogram

LABELS = ("model_name", "engine")
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
ITL_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
LATENCY_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
ITERATION_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
N_BUCKETS = (1, 2, 5, 10, 20)
PREEMPTION_BUCKETS = (0, 1, 2, 5, 10, 20)

# counters of the core: name -> (field of SchedulerStats, help)
_CORE_COUNTERS = {
    "prefix_cache_queries": ("prefix_cache_queries", "Tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("prefix_cache_hits", "Tokens found in the prefix cache."),
    "num_preemptions": ("num_preemptions", "Requests put back to make room for older ones."),
    "corrupted_requests": (
        "num_corrupted",
        "Requests ended because the model gave logits that are no numbers.",
    ),
}

# the same, when tokens are guessed
_DRAFT_COUNTERS = {
    "spec_decode_num_drafts": ("num_drafts", "Guesses of tokens that were checked."),
    "spec_decode_num_draft_tokens": ("num_draft_tokens", "Tokens that were guessed."),
    "spec_decode_num_accepted_tokens": (
        "num_accepted_tokens", "Guessed tokens that are part of an answer.",
    ),
}  # fmt: skip


class _FreshRegistry(CollectorRegistry):
    """A registry whose metrics are brought up to date before they are read.

    Args:
        refresh: does so.
    """

    def __init__(self, refresh: Callable[[], None]) -> None:
        super().__init__()
        self._refresh = refresh

    def collect(self) -> Iterable[Family]:
        self._refresh()
        return super().collect()

    def restricted_registry(self, names: Iterable[str]) -> RestrictedRegistry:
        self._refresh()
        return super().restricted_registry(names)


class PrometheusStatLogger:
    """Engine metrics in a registry of their own, and the HTTP server's beside them.

    Args:
        config: model name and limits.
        prefix: what stands before the colon of engine metrics.
        engine: the value of the label `engine`.
    """

    def __init__(
        self, config: EngineConfig, *, prefix: str = "headrace", engine: str = "0"
    ) -> None:
        self.registry: CollectorRegistry = _FreshRegistry(self._publish)
        self._stats = self._published_stats = SchedulerStats()
        self._num_generation_tokens = self._num_published_tokens = 0
        self._publishing = Lock()
        self._prefix = prefix
        self._model_name = config.model.served_names[0]
        self._labels = (self._model_name, engine)
        self._make_state(config)
        self._make_drafts(config)
        self._make_tokens(config.model.max_model_len)
        self._make_times()
        self.http = HttpMetrics(self.registry)
        self.keys = KeyMetrics(self.registry, prefix, self._model_name)
        self.tools = ToolMetrics(self.registry, prefix, self._model_name)
        labels = dict(zip(LABELS, self._labels, strict=True))
        self.sleep = SleepMetrics(self.registry, prefix, labels)
        self._kv_blocks = None
        if config.cache.kv_cache_metrics_sample is not None:
            self._kv_blocks = KVBlockMetrics(self.registry, prefix, labels)

    def render(self) -> bytes:
        """All metrics in the text format that Prometheus scrapes."""
        return generate_latest(self.registry)

    def read(self) -> list[Metric]:
        """The engine's metrics as plain records."""
        return read_metrics(self.registry, self._prefix)

    def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
        """Take in one iteration."""
        self._stats = scheduler
        self._num_generation_tokens += iteration.num_generation_tokens
        if iteration.num_step_tokens:
            self._iteration_tokens.observe_all((iteration.num_step_tokens,))
        self._itl.observe_all(iteration.inter_token_latencies)
        if iteration.num_prompt_tokens:
            self._prompt_tokens.inc(iteration.num_prompt_tokens)
            self._cached_tokens.inc(iteration.num_cached_tokens)
            num_cached = iteration.num_cached_tokens
            self._tokens_from["local_compute"].inc(iteration.num_prompt_tokens - num_cached)
            self._tokens_from["local_cache_hit"].inc(num_cached)
            self._cached_from.inc(num_cached)
        for seconds in iteration.time_to_first_tokens:
            self._ttft.observe(seconds)
        for finished in iteration.finished:
            self._record_finished(finished)

    def _publish(self) -> None:
        """Make metrics of what the iterations since the last time came to. From any thread."""
        with self._publishing:
            now, before = self._stats, self._published_stats
            self._published_stats = now
            self._running.set(now.num_running)
            self._waiting.set(now.num_waiting)
            self._waiting_for["capacity"].set(now.num_waiting - now.num_held)
            self._waiting_for["deferred"].set(now.num_held)
            self._kv_usage.set(now.kv_cache_usage)
            for counter, name in self._core_counters:
                counter.inc(max(0, getattr(now, name) - getattr(before, name)))
            last_at = before.num_accepted_tokens_per_pos or [0] * len(self._accepted_at)
            now_at = now.num_accepted_tokens_per_pos
            for counter, new, old in zip(self._accepted_at, now_at, last_at, strict=False):
                counter.inc(max(0, new - old))
            if self._kv_blocks is not None and now.kv_block_times is not None:
                self._kv_blocks.record(now.kv_block_times)
            num_tokens = self._num_generation_tokens
            self._generation_tokens.inc(num_tokens - self._num_published_tokens)
            self._num_published_tokens = num_tokens

    def log(self) -> None:
        """Nothing: Prometheus comes and asks."""

    def count_rejection(self, reason: str) -> None:
        """A request was refused because a queue limit was reached."""
        self._rejections.labels(self._model_name, reason).inc()

    # -- the metrics, by kind ------------------------------------------------------------------

    def _gauge(self, name: str, help: str) -> Gauge:
        gauge = Gauge(self._name(name), help, LABELS, registry=self.registry)
        return gauge.labels(*self._labels)

    def _counter(self, name: str, help: str) -> Counter:
        counter = Counter(self._name(name), help, LABELS, registry=self.registry)
        return counter.labels(*self._labels)

    def _histogram(self, name: str, help: str, buckets: Iterable[float]) -> Histogram:
        histogram = Histogram(
            self._name(name), help, LABELS, buckets=tuple(buckets), registry=self.registry
        )
        return histogram.labels(*self._labels)

    def _step_histogram(self, name: str, help: str, buckets: Sequence[float]) -> StepHistogram:
        labels = dict(zip(LABELS, self._labels, strict=True))
        histogram = StepHistogram(self._name(name), help, labels, buckets)
        self.registry.register(histogram)
        return histogram

    def _name(self, name: str) -> str:
        return f"{self._prefix}:{name}"

    def _make_state(self, config: EngineConfig) -> None:
        self._running = self._gauge("num_requests_running", "Requests being computed.")
        self._waiting = self._gauge("num_requests_waiting", "Requests waiting to be computed.")
        waiting = Gauge(
            self._name("num_requests_waiting_by_reason"),
            "Requests waiting: for room, or because the engine is being paused.",
            (*LABELS, "reason"),
            registry=self.registry,
        )
        self._waiting_for = {
            reason: waiting.labels(*self._labels, reason) for reason in ("capacity", "deferred")
        }
        self._kv_usage = self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.")
        self._core_counters = [
            (self._counter(name, help), source) for name, (source, help) in _CORE_COUNTERS.items()
        ]
        facts = {
            "block_size": str(config.cache.block_size),
            "kv_cache_dtype": config.cache.kv_cache_dtype,
            "enable_prefix_caching": str(config.cache.enable_prefix_caching),
            "kv_cache_memory_bytes": str(config.cache.kv_cache_memory_bytes),
            "gpu_memory_utilization": str(config.cache.memory_utilization),
            "num_gpu_blocks_override": str(config.cache.num_blocks_override),
        }
        info = Gauge(
            self._name("cache_config_info"),
            "Settings of the KV cache, as labels; always 1.",
            ("engine", *facts),
            registry=self.registry,
        )
        info.labels(self._labels[1], *facts.values()).set(1)
        self._rejections = Counter(
            self._name("admission_rejections"),
            "Requests refused because a queue limit was reached.",
            ("model_name", "reason"),
            registry=self.registry,
        )
        success = Counter(
            self._name("request_success"),
            "Requests that ended, by how.",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._success = {
            str(reason): success.labels(*self._labels, str(reason)) for reason in FinishReason
        }

    def _make_drafts(self, config: EngineConfig) -> None:
        """Only with speculative decoding."""
        self._accepted_at: list[Counter] = []
        if config.speculative is None:
            return
        self._core_counters += [
            (self._counter(name, help), source) for name, (source, help) in _DRAFT_COUNTERS.items()
        ]
        accepted = Counter(
            self._name("spec_decode_num_accepted_tokens_per_pos"),
            "Guessed tokens that are part of an answer, by their place in the guess.",
            (*LABELS, "position"),
            registry=self.registry,
        )
        self._accepted_at = [
            accepted.labels(*self._labels, str(place))
            for place in range(config.speculative.num_speculative_tokens)
        ]

    def _make_tokens(self, max_model_len: int) -> None:
        sizes = one_two_five(max_model_len)
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of started answers.")
        self._cached_tokens = self._counter(
            "prompt_tokens_cached", "Those of them that came from the prefix cache."
        )
        by_source = Counter(
            self._name("prompt_tokens_by_source"),
            "Prompt tokens of started answers, by where they came from.",
            (*LABELS, "source"),
            registry=self.registry,
        )
        self._tokens_from = {
            source: by_source.labels(*self._labels, source)
            for source in ("local_compute", "local_cache_hit")
        }
        self._cached_from = Counter(
            self._name("prompt_tokens_cached_by_source"),
            "Prompt tokens that came from a cache, by which one.",
            (*LABELS, "source"),
            registry=self.registry,
        ).labels(*self._labels, "local_cache_hit")
        self._generation_tokens = self._counter("generation_tokens", "Generated tokens.")
        self._iteration_tokens = self._step_histogram(
            "iteration_tokens_total", "Tokens computed per step.", ITERATION_BUCKETS
        )
        self._request_prompt = self._histogram(
            "request_prompt_tokens", "Prompt tokens per request.", sizes
        )
        self._request_generation = self._histogram(
            "request_generation_tokens", "Generated tokens per request.", sizes
        )
        self._request_max_generation = self._histogram(
            "request_max_num_generation_tokens",
            "Generated tokens of the longest of a request's n answers.",
            sizes,
        )
        self._request_max_tokens = self._histogram(
            "request_params_max_tokens", "The parameter max_tokens of requests.", sizes
        )
        self._request_computed = self._histogram(
            "request_prefill_kv_computed_tokens",
            "Prompt tokens per request that were computed, not found in the cache.",
            sizes,
        )
        self._request_n = self._histogram(
            "request_params_n", "The parameter n of requests.", N_BUCKETS
        )
        self._request_preemptions = self._histogram(
            "request_num_preemptions", "Preemptions per request.", PREEMPTION_BUCKETS
        )

    def _make_times(self) -> None:
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token.", TTFT_BUCKETS
        )
        self._itl = self._step_histogram(
            "inter_token_latency_seconds", "Between two tokens of a request.", ITL_BUCKETS
        )
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean time per token after the first.",
            ITL_BUCKETS,
        )
        help_of = {
            "e2e_request_latency_seconds": ("e2e_latency", "Arrival to the end."),
            "request_queue_time_seconds": ("queue_time", "Queued to scheduled."),
            "request_prefill_time_seconds": ("prefill_time", "Scheduled to first token."),
            "request_decode_time_seconds": ("decode_time", "First to last token."),
            "request_inference_time_seconds": ("inference_time", "Scheduled to last token."),
        }
        self._latencies = [
            (self._histogram(name, help, LATENCY_BUCKETS), source)
            for name, (source, help) in help_of.items()
        ]

    def _record_finished(self, stats: FinishedRequestStats) -> None:
        self._success[stats.finish_reason].inc()
        self._request_prompt.observe(stats.num_prompt_tokens)
        self._request_generation.observe(stats.num_generation_tokens)
        if stats.max_num_generation_tokens is not None:
            self._request_max_generation.observe(stats.max_num_generation_tokens)
        self._request_computed.observe(stats.num_prompt_tokens - stats.num_cached_tokens)
        self._request_n.observe(stats.n_param)
        self._request_preemptions.observe(stats.num_preemptions)
        if stats.max_tokens_param is not None:
            self._request_max_tokens.observe(stats.max_tokens_param)
        if stats.time_per_output_token is not None:
            self._tpot.observe(stats.time_per_output_token)
        for histogram, source in self._latencies:
            seconds = getattr(stats, source)
            if seconds is not None:
                histogram.observe(seconds)


def one_two_five(limit: int) -> list[float]:
    """1, 2, 5, 10, 20, 50, ... up to `limit`."""
    sizes: list[float] = []
    step = 1
    while step <= limit:
        sizes += [step * factor for factor in (1, 2, 5) if step * factor <= limit]
        step *= 10
    return sizes
