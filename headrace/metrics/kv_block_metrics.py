"""How long sampled KV blocks live, lie idle and wait to be used again, as histograms."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from headrace.messages.outputs import KV_BLOCK_SECONDS, KVBlockTimes
from headrace.metrics.step_histogram import StepHistogram


class KVBlockMetrics:
    """The histograms; the core counts, here they are shown.

    Args:
        labels: names and values, the same for all.
    """

    def __init__(self, registry: CollectorRegistry, prefix: str, labels: dict[str, str]) -> None:
        def histogram(name: str, help: str) -> StepHistogram:
            made = StepHistogram(f"{prefix}:{name}", help, labels, KV_BLOCK_SECONDS)
            registry.register(made)
            return made

        self._lifetimes = histogram(
            "kv_block_lifetime_seconds",
            "From being given out until its cached prefix was evicted, of sampled KV blocks.",
        )
        self._idle_times = histogram(
            "kv_block_idle_before_evict_seconds",
            "From its last use until its cached prefix was evicted, of sampled KV blocks.",
        )
        self._reuse_gaps = histogram(
            "kv_block_reuse_gap_seconds",
            "From being taken by a request until being taken by another, of sampled KV blocks.",
        )

    def record(self, times: KVBlockTimes) -> None:
        """Take in the totals."""
        self._lifetimes.set_totals(times.lifetimes.counts, times.lifetimes.sum)
        self._idle_times.set_totals(times.idle_times.counts, times.idle_times.sum)
        self._reuse_gaps.set_totals(times.reuse_gaps.counts, times.reuse_gaps.sum)
