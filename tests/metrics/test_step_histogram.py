"""The histogram without locks shows what Prometheus's own would."""

from __future__ import annotations

import random

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from headrace.metrics.step_histogram import StepHistogram

BUCKETS = (0.01, 0.025, 1.0, 10.0)


def test_it_renders_as_prometheus_own() -> None:
    rng = random.Random(1)
    values = [rng.expovariate(1.0) for _ in range(500)] + [0.01, 0.025, 1.0, 10.0, 11.0, 0.0]
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = StepHistogram("a:b_seconds", "Help.", {"model_name": "m", "engine": "0"}, BUCKETS)
    ours.register(histogram)
    expected = Histogram(
        "a:b_seconds", "Help.", ("model_name", "engine"), buckets=BUCKETS, registry=theirs
    ).labels("m", "0")
    histogram.observe_all([])
    for start in range(0, len(values), 7):
        histogram.observe_all(values[start : start + 7])
    for value in values:
        expected.observe(value)
    lines = generate_latest(ours).decode().splitlines()
    # Theirs also tells when it was made.
    told = [
        line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line
    ]
    assert lines == told
