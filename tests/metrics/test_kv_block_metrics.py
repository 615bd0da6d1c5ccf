"""Times of KV blocks in metrics: under the names of the field, and only where asked for."""

from __future__ import annotations

import msgspec

from headrace.config.engine import EngineConfig
from headrace.messages.outputs import KV_BLOCK_SECONDS, Durations, KVBlockTimes, SchedulerStats
from headrace.metrics.prometheus import PrometheusStatLogger
from headrace.metrics.stats import IterationStats
from tests.server.fakes import make_config

NAMES = (
    "kv_block_lifetime_seconds", "kv_block_idle_before_evict_seconds", "kv_block_reuse_gap_seconds",
)  # fmt: skip
LABELS = {"model_name": "tiny", "engine": "0"}


def measuring() -> EngineConfig:
    config = make_config()
    cache = msgspec.structs.replace(config.cache, kv_cache_metrics_sample=0.5)
    return msgspec.structs.replace(config, cache=cache)


def durations(bucket: int, seconds: float) -> Durations:
    counts = [0] * (len(KV_BLOCK_SECONDS) + 1)
    counts[bucket] = 2
    return Durations(counts, seconds)


def test_totals_of_the_core_are_shown_as_they_are() -> None:
    logger = PrometheusStatLogger(measuring())
    times = KVBlockTimes(durations(9, 1.5), durations(0, 0.001), durations(-1, 5000.0))
    # Over the wire, and again: totals are not added up.
    times = msgspec.msgpack.decode(msgspec.msgpack.encode(times), type=KVBlockTimes)
    for _ in range(2):
        logger.record(SchedulerStats(kv_block_times=times), IterationStats())
    values = [logger.registry.get_sample_value(f"headrace:{name}_sum", LABELS) for name in NAMES]
    assert values == [1.5, 0.001, 5000.0]
    for name, bound in zip(NAMES, ("1.0", "0.001", "+Inf"), strict=True):
        bucket = f"headrace:{name}_bucket"
        assert logger.registry.get_sample_value(bucket, {**LABELS, "le": bound}) == 2
    highest = {**LABELS, "le": "1800.0"}
    assert logger.registry.get_sample_value(f"headrace:{NAMES[2]}_bucket", highest) == 0


def test_blocks_are_told_of_only_where_they_are_sampled() -> None:
    def names(config: EngineConfig) -> set[str]:
        logger = PrometheusStatLogger(config)
        logger.record(SchedulerStats(), IterationStats())
        return {metric.name.removeprefix("headrace:") for metric in logger.registry.collect()}

    assert not set(NAMES) & names(make_config())
    assert set(NAMES) <= names(measuring())
