"""Guessed tokens in metrics: under their names and once, and in the log."""

from __future__ import annotations

import logging

import msgspec
import pytest

from headrace.config.engine import EngineConfig, SpeculativeConfig
from headrace.messages.outputs import SchedulerStats
from headrace.metrics.loggers import LoggingStatLogger
from headrace.metrics.prometheus import PrometheusStatLogger
from headrace.metrics.reader import Counter, Vector, read_metrics
from headrace.metrics.stats import IterationStats
from tests.server.fakes import make_config

FIRST = SchedulerStats(
    num_drafts=2, num_draft_tokens=6, num_accepted_tokens=3, num_accepted_tokens_per_pos=[2, 1, 0]
)
SECOND = SchedulerStats(
    num_drafts=5, num_draft_tokens=14, num_accepted_tokens=7, num_accepted_tokens_per_pos=[4, 2, 1]
)


@pytest.fixture
def config() -> EngineConfig:
    speculative = SpeculativeConfig(
        num_speculative_tokens=3, prompt_lookup_min=2, prompt_lookup_max=4, disable_by_batch_size=8
    )
    return msgspec.structs.replace(make_config(), speculative=speculative)


def test_counters_have_the_names_of_the_field_and_count_once(config: EngineConfig) -> None:
    logger = PrometheusStatLogger(config)
    for stats in (FIRST, FIRST, SECOND):
        logger.record(stats, IterationStats())
    metrics = {one.name: one for one in read_metrics(logger.registry, "headrace")}
    for name, expected in (("drafts", 5), ("draft_tokens", 14), ("accepted_tokens", 7)):
        counter = metrics[f"headrace:spec_decode_num_{name}"]
        assert isinstance(counter, Counter)
        assert counter.value == expected
    places = metrics["headrace:spec_decode_num_accepted_tokens_per_pos"]
    assert isinstance(places, Vector)
    assert places.values == [4, 2, 1]
    text = logger.render().decode()
    assert (
        'headrace:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",'
        'position="1"} 2.0'
    ) in text


def test_without_speculative_decoding_there_are_no_such_counters() -> None:
    assert b"spec_decode" not in PrometheusStatLogger(make_config()).render()


def test_the_log_line_tells_how_many_were_right(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("headrace").propagate = True
    caplog.set_level(logging.DEBUG, "headrace.metrics.loggers")
    logger = LoggingStatLogger()
    for stats in (FIRST, SECOND, SECOND):
        logger.record(stats, IterationStats())
        logger.log()
    ends = [message.partition("hits -")[2] for message in caplog.messages]
    assert ends == [
        ", guessed tokens right 3 of 6 (50.0%)",
        ", guessed tokens right 4 of 8 (50.0%)",
        "",
    ]
