"""From the metrics of a registry to plain records."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.samples import Sample

from headrace.metrics.records import Counter, Gauge, Histogram, Metric, Vector

POSITION = "position"
"""The label whose values are places in a Vector."""


def read_metrics(registry: CollectorRegistry, prefix: str) -> list[Metric]:
    """The metrics of a registry whose names begin with the prefix and a colon."""
    found: list[Metric] = []
    for family in registry.collect():
        if family.name.startswith(f"{prefix}:"):
            found += _read(family)
    return found


def _read(family: Family) -> list[Metric]:
    name, samples = family.name, family.samples
    if family.type == "gauge":
        return [Gauge(name, dict(one.labels), one.value) for one in samples]
    if family.type == "histogram":
        return _histograms(name, samples)
    counters = [one for one in samples if one.name == f"{name}_total"]
    if any(POSITION in one.labels for one in counters):
        return _vectors(name, counters)
    return [Counter(name, dict(one.labels), int(one.value)) for one in counters]


def _vectors(name: str, samples: list[Sample]) -> list[Metric]:
    vectors: dict[tuple[tuple[str, str], ...], dict[int, int]] = {}
    for one in samples:
        labels = {key: value for key, value in one.labels.items() if key != POSITION}
        values = vectors.setdefault(tuple(labels.items()), {})
        values[int(one.labels[POSITION])] = int(one.value)
    return [
        Vector(name, dict(labels), [values.get(i, 0) for i in range(max(values) + 1)])
        for labels, values in vectors.items()
    ]


def _histograms(name: str, samples: list[Sample]) -> list[Metric]:
    found: dict[tuple[tuple[str, str], ...], Histogram] = {}
    for one in samples:
        labels = {key: value for key, value in one.labels.items() if key != "le"}
        histogram = found.setdefault(
            tuple(labels.items()), Histogram(name, labels, count=0, sum=0.0, buckets={})
        )
        if one.name == f"{name}_bucket":
            histogram.buckets[one.labels["le"]] = int(one.value)
        elif one.name == f"{name}_count":
            histogram.count = int(one.value)
        elif one.name == f"{name}_sum":
            histogram.sum = one.value
    return list(found.values())
