"""Metrics as plain records, for programs that hold an engine and scrape nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Metric:
    """A metric with one set of labels."""

    name: str
    labels: dict[str, str]


@dataclass(slots=True)
class Counter(Metric):
    """Only grows. The name is without `_total`."""

    value: int


@dataclass(slots=True)
class Gauge(Metric):
    """Goes up and down."""

    value: float


@dataclass(slots=True)
class Vector(Metric):
    """Counters by position, as one list."""

    values: list[int]


@dataclass(slots=True)
class Histogram(Metric):
    """How many observations are at most as large as each bound (`buckets`), and their sum."""

    count: int
    sum: float
    buckets: dict[str, int]
