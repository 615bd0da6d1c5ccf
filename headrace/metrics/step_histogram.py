"""A Prometheus histogram for what is measured at every step: written by one thread, no locks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class StepHistogram(Collector):
    """Counts of values by bucket.

    Args:
        labels: names and values, the same for all.
        buckets: upper bounds, ascending; one without a bound is added.
    """

    def __init__(
        self, name: str, help: str, labels: Mapping[str, str], buckets: Sequence[float]
    ) -> None:
        self._name = name
        self._help = help
        self._labels = labels
        self._bounds = list(buckets)
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe_all(self, values: Iterable[float]) -> None:
        """Take in some values."""
        counts, bounds = self._counts, self._bounds
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            self._sum += value

    def set_totals(self, counts: Sequence[int], sum: float) -> None:
        """Take over what was counted elsewhere, by bucket, the one without a bound last."""
        self._counts = list(counts)
        self._sum = sum

    def describe(self) -> Iterator[Metric]:
        """Its names, which a registry must know to find it by one of them."""
        yield HistogramMetricFamily(self._name, self._help, labels=list(self._labels))

    def collect(self) -> Iterator[Metric]:
        """The histogram as Prometheus reads it: each bucket holds those below it, too."""
        family = HistogramMetricFamily(self._name, self._help, labels=list(self._labels))
        buckets, total = [], 0
        for bound, count in zip([*self._bounds, float("inf")], self._counts, strict=True):
            total += count
            buckets.append((_bound_text(bound), total))
        family.add_metric(list(self._labels.values()), buckets, self._sum)
        yield family


def _bound_text(bound: float) -> str:
    """A bound as it stands in the label `le`."""
    return "+Inf" if bound == float("inf") else repr(float(bound))
